"""Trials: what a cell takes from them, and when it does not need them."""

from __future__ import annotations

from pathlib import Path

import pytest

from smidgen.errors import ArgumentError
from smidgen.runtime.record import Record
from smidgen_studies.engine.cell import FinishedCell
from smidgen_studies.kinds import tuning
from smidgen_studies.methods.trials import TrialChoice, choose_values, trial_results


def tried(rate, nll, method="full"):
    choice = TrialChoice({"rate": rate})
    told = trial_results(method, method, ["rate"], choice, nll)
    results = {"trial": told, "choice": choice.to_dict()}
    return FinishedCell(f"trial-{rate}", Record("cell", {}, results), Path("nowhere"))


def test_the_best_trial_is_taken_and_its_edge_known():
    found = choose_values(
        {"rate": None}, [tried(0.1, 2.0), tried(1.0, 1.0), tried(9.0, None)], {}
    )
    assert found.values == {"rate": 1.0}
    assert found.tried == {"rate": (0.1, 1.0, 9.0)}
    assert found.at_edge == ()
    assert choose_values(
        {"rate": None}, [tried(0.1, 0.5), tried(1.0, 1.0)], {}
    ).at_edge == ("rate",)


def test_what_is_told_needs_no_trial_that_learned():
    assert choose_values({"rate": 3.0}, [tried(0.1, None)], {}).values == {"rate": 3.0}
    with pytest.raises(ArgumentError, match="finite validation NLL"):
        choose_values({"rate": None}, [tried(0.1, None)], {})


def test_rates_of_another_method_are_not_taken():
    assert tuning._tries(tried(0.1, 1.0, "lora"), "lora")
    assert not tuning._tries(tried(0.1, 1.0, "full"), "lora")
