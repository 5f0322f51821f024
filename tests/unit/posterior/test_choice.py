"""The account of a choice reads well, and is stored as strictly as all else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smidgen.errors import StoreError
from smidgen.posterior.choice import Choice, LeftOutCandidate, TriedCandidate


def tried(name, label, nll, low=0.0, high=0.0, *, worse=False, first=0.5, floats=0):
    return TriedCandidate(
        name=name,
        label=label,
        floats=floats,
        relative_seconds=1.0,
        nll=nll,
        difference=nll - first,
        low=low,
        high=high,
        clearly_worse=worse,
    )


TEMPERATURE = tried("temperature", "Temperature scaling", 0.5, worse=True)
ISOTROPIC = tried("isotropic", "Isotropic", 0.502, -0.003, 0.006, worse=True)
LAST = tried("last-layer", "Last layer", 0.481, -0.027, -0.011, floats=1500)
DEEP = tried("sparse-kfac-10", "Sparse-KFAC 10 % | last layer", 0.480, -0.03, -0.01)
CHOICE = Choice(
    "last-layer",
    (TEMPERATURE, ISOTROPIC, LAST, DEEP),
    (LeftOutCandidate("sparse-kfac-30", "Sparse-KFAC 30 %", "it takes too much"),),
    400,
    5,
)


def test_the_verdict_is_one_sentence():
    assert CHOICE.verdict() == (
        "Last layer: NLL 0.019 below temperature scaling (0.011 to 0.027); deeper layers add "
        "nothing that can be told."
    )
    assert CHOICE.kept_candidate is LAST
    assert CHOICE.best_candidate is DEEP


@pytest.mark.parametrize(
    ("kept", "candidates", "sentence"),
    [
        ("temperature", (TEMPERATURE,), "Temperature scaling: nothing else was tried."),
        (
            "temperature",
            (TEMPERATURE, ISOTROPIC),
            "Temperature scaling: nothing that was tried has a lower NLL.",
        ),
        (
            "temperature",
            (TEMPERATURE, tried("last-layer", "Last layer", 0.496, -0.01, 0.002)),
            "Temperature scaling: nothing is clearly better. The best, last layer, has an NLL "
            "0.004 below temperature scaling (-0.002 to 0.010).",
        ),
        (
            "sparse-kfac-10",
            (TEMPERATURE, ISOTROPIC, DEEP),
            "Sparse-KFAC 10 % | last layer: NLL 0.020 below temperature scaling (0.010 to "
            "0.030); nothing cheaper does as well.",
        ),
        (
            "isotropic",
            (TEMPERATURE, replace(LAST, name="isotropic", label="Isotropic"), LAST),
            "Isotropic: NLL 0.019 below temperature scaling (0.011 to 0.027); what costs more "
            "adds nothing that can be told.",
        ),
    ],
)
def test_every_outcome_has_its_sentence(kept, candidates, sentence):
    assert Choice(kept, candidates, (), 400, 5).verdict() == sentence


def test_the_account_has_an_aligned_table_and_says_what_was_left_out():
    lines = str(CHOICE).splitlines()
    assert lines[0] == CHOICE.verdict()
    assert [line for line in lines if line.endswith("kept")][0].startswith("Last layer ")
    assert lines[-1] == "Not tried: Sparse-KFAC 30 %: it takes too much."
    assert "400 held-out rows in 5 folds" in str(CHOICE)
    unmeasured = Choice(
        "a", (replace(TEMPERATURE, name="a", relative_seconds=None),), (), 9, 2
    )
    assert "–" in str(unmeasured)


def test_it_is_read_as_it_was_written():
    assert Choice.from_json(CHOICE.to_json()) == CHOICE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored.pop("kept"), "lacks 'kept'"),
        (lambda stored: stored.update(kept="swag"), "'swag' is not among the tried"),
        (lambda stored: stored.update(more=1), "has the unknown 'more'"),
        (lambda stored: stored.update(candidates={}), "candidates"),
        (lambda stored: stored["candidates"][0].update(nll="0.5"), "nll must not be"),
        (lambda stored: stored["candidates"][0].pop("low"), "lacks 'low'"),
        (lambda stored: stored["left_out"][0].update(reason=3), "reason must not be"),
        (lambda stored: stored.update(rows=0.5), "rows must not be"),
    ],
)
def test_what_is_wrong_is_refused(change, message):
    stored = CHOICE.to_json()
    change(stored)
    with pytest.raises(StoreError, match=message):
        Choice.from_json(stored)
    with pytest.raises(StoreError):
        Choice.from_json([stored])
