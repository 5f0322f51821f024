"""What posteriors are called says what they are, in few words."""

from __future__ import annotations

from dataclasses import replace

import pytest

import smidgen
from smidgen.report.names import label_method
from smidgen.workflows.naming import (
    label_posterior,
    label_temperature,
    name_posterior,
)
from tests.support.posteriors import make_problem

THIN = "\u202f"


@pytest.fixture(scope="module")
def made():
    problem, batches = make_problem("classes")
    model = problem.model
    subsets = {
        "all": smidgen.select.sparse_kfac(model, percent=100),
        "some": smidgen.select.sparse_kfac(model, percent=10),
        "head": smidgen.select.last_layer(model),
        "body": smidgen.select.named(model, ["0.*"]),
        "single": smidgen.select.choose("magnitude", model, size=0.2),
    }
    subsets["union"] = subsets["some"] | subsets["head"]
    bare = {
        name: smidgen.fit.isotropic(problem, subset) for name, subset in subsets.items()
    }

    def curved(name, structure="kron"):
        return smidgen.fit.laplace(
            problem, batches, subsets[name], structure=structure, progress=False
        )

    return bare, curved


def named(posterior):
    return name_posterior(posterior, [posterior]), label_posterior(posterior)


@pytest.mark.parametrize(
    ("subset", "label"),
    [
        ("all", "Isotropic, all layers"),
        ("some", f"Isotropic 10{THIN}%"),
        ("head", "Isotropic, last layer"),
        ("body", "Isotropic, chosen by name"),
        ("single", "Isotropic, largest weights"),
    ],
)
def test_without_curvature_the_weights_alone_are_said(made, subset, label):
    bare, _ = made
    assert named(bare[subset]) == ("isotropic", label)


def test_joined_posteriors_are_named_by_both(made, tmp_path):
    bare, curved = made
    wanted = ("head-isotropic", "Last layer | isotropic body")
    head = curved("head")
    assert named(head | bare["body"]) == wanted
    # Whichever comes first, and when it comes from a folder.
    assert named(bare["body"] | head) == wanted
    problem, _ = make_problem("classes")
    folder = smidgen.save(head | bare["body"], tmp_path / "posterior")
    assert named(smidgen.load(folder, problem)) == wanted
    assert named(curved("body") | bare["head"]) == (
        "named-isotropic",
        "Chosen by name | isotropic body",
    )
    assert named(curved("head", "diag") | bare["body"]) == (
        "head-isotropic",
        "Last layer, diag | isotropic body",
    )
    assert label_posterior(head | curved("body", "diag")) == (
        "Last layer | Chosen by name, diag"
    )
    assert named(bare["head"] | bare["body"]) == ("isotropic", "Isotropic")


def test_the_usual_structure_goes_without_saying(made):
    _, curved = made
    assert named(curved("some")) == ("sparse-kfac", "Sparse-KFAC")
    assert named(curved("some", "ekfac")) == ("sparse-kfac", "Sparse-KFAC, ekfac")
    assert named(curved("single", "diag")) == ("magnitude", "Largest weights")


def test_a_comparison_tells_curvature_from_none(made):
    bare, curved = made
    problem, batches = make_problem("classes")
    posteriors = [curved("some"), bare["some"], bare["all"], curved("head") | bare["body"]]
    record = smidgen.compare(problem, posteriors, batches, progress=False)
    rows = {row["name"]: row["label"] for row in record.results["methods"][1:]}
    assert rows == {
        "sparse-kfac": "Sparse-KFAC",
        "isotropic": f"Isotropic 10{THIN}%",
        "isotropic-2": "Isotropic, all layers",
        "head-isotropic": "Last layer | isotropic body",
    }


def test_a_union_is_named_by_all_who_chose_it(made):
    _, curved = made
    wanted = ("sparse-kfac-last-layer", "Sparse-KFAC | last layer")
    assert named(curved("union")) == wanted


def test_a_point_estimate_is_named_as_one():
    problem, batches = make_problem("classes")
    posterior = smidgen.fit.point(problem, batches, progress=False)
    assert named(posterior) == ("point", "Kept temperature scaling")
    assert label_temperature(posterior.likelihood) == label_method("temperature")
    noisy = replace(posterior, likelihood=smidgen.Gaussian(1))
    assert label_posterior(noisy) == "Kept MAP, noise refitted"
