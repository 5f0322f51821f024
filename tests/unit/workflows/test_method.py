"""Methods side by side: what each is compared with, and what people read as its name."""

from __future__ import annotations

import re

import pytest
import torch

from smidgen.outputs.predictive import CategoricalPredictive
from smidgen.runtime.record import BASELINES
from smidgen.workflows.method import Method, score_methods
from smidgen.workflows.ramp.schemes import SCHEMES
from smidgen.workflows.ramp.swag import SWAG_SCHEMES
from smidgen_studies.engine.study import list_profiles, read_study
from smidgen_studies.kinds import swag
from smidgen_studies.methods.mixtures import mixture_methods

ROWS, CLASSES = 40, 3
TARGETS = torch.arange(ROWS) % CLASSES
# A slug in a label: small letters around a hyphen. Sparse-KFAC is none.
SLUG = re.compile(r"[a-z0-9]-[a-z0-9]")


def outputs(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, ROWS, CLASSES, generator=generator, dtype=torch.float64)


def method(name):
    return Method(name, CategoricalPredictive.from_logits(outputs()))


def compared(*methods):
    found = score_methods(methods, TARGETS)["differences"]
    return {(each["method"], each["baseline"]) for each in found}


def mixtures(name):
    held = (outputs(4), TARGETS)
    return mixture_methods(name, held, outputs(4), floats=0, settings={})


def test_only_the_baselines_are_what_others_are_compared_with():
    methods = [method(name) for name in (*BASELINES, "sparse-kfac", "last-layer")]
    pairs = {(name, base) for name in ("sparse-kfac", "last-layer") for base in BASELINES}
    assert compared(*methods) == {*pairs, ("temperature", "map")}
    # Wherever they stand.
    assert compared(*reversed(methods)) == {*pairs, ("temperature", "map")}
    assert compared(method("map"), method("swag")) == {("swag", "map")}


@pytest.mark.parametrize("name", ["dropout", "ensemble"])
def test_without_a_baseline_nothing_is_compared(name):
    assert compared(*mixtures(name)) == set()
    with_map = compared(method("map"), *mixtures(name))
    assert with_map == {(name, "map"), (f"{name}-temperature", "map")}


def scored(*methods):
    return score_methods(methods, TARGETS)["methods"]


def rows_of(cell):
    """The methods that a cell of Table 2 reports, by the code that names them."""
    kind = cell.kind
    if kind == "constant":
        return scored(method("constant"))
    if kind == "finetune":
        told = cell.parsed_settings
        return scored(*map(method, BASELINES)) if told.report else []
    if kind == "laplace":
        told = cell.parsed_settings
        return scored(*map(method, told.schemes))
    if kind == "swag":
        scheme = cell.parsed_settings.scheme
        curves = {"points": [], "chosen": {}, "best": scheme}
        made = scored(*map(method, (*BASELINES, scheme)))
        return swag.rename_schemes(
            {"methods": made, "ramp": curves, "data": {}, "seconds": {}}
        )["methods"]
    assert kind in ("dropout", "ensemble")
    return scored(*mixtures(kind))


def require_readable(name, label):
    assert label != name
    assert label[0].isupper()
    assert not SLUG.search(label), label
    assert "mlp" not in label
    assert ("mlp" in name) == ("MLP" in label)


def test_every_method_of_table_2_has_a_name_for_people():
    labels = {}
    for profile in list_profiles("glue-table2"):
        cells = read_study("glue-table2", profile).cells
        for cell in {each.name: each for each in cells}.values():
            labels |= {row["name"]: row["label"] for row in rows_of(cell)}
    # Laplace with curvature, SWAG, the baselines, mixtures without and with a temperature,
    # the constant.
    schemes = SCHEMES.index("isotropic") + len(SWAG_SCHEMES)
    assert len(labels) == schemes + len(BASELINES) + 4 + 1
    assert len(set(labels.values())) == len(labels)
    for name, label in labels.items():
        require_readable(name, label)
    assert set(read_study("glue-table2").paper["values"]) <= set(labels)
    assert labels["swag-max-mlp"] == "SWAG, max norm, MLP"
    assert labels["swag-magnitude"] == "SWAG, largest weights"
