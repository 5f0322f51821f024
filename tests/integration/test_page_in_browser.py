from __future__ import annotations

import json
import os
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from smidgen.report import render
from smidgen.runtime.record import Record
from tests.support.browser_page import WIDTHS, opened
from tests.support.decision_record import make_decided, make_regression
from tests.support.ramp_record import make_ramp_record
from tests.support.tuned_record import make_tuned_record

pytestmark = pytest.mark.browser

_BUILDER = runpy.run_path(str(Path(__file__).parents[1] / "support" / "report_record.py"))
make_record = _BUILDER["make_record"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SMALLEST_TEXT = 9.0


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        message = f"no browser: none of {', '.join(BROWSERS)} is on the path"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return found


def look(browser: str, folder: Path, record: Record) -> dict[int, dict[str, Any]]:
    return opened(browser, folder, render(record))


@pytest.fixture(scope="module")
def record() -> Record:
    return make_record()


@pytest.fixture(scope="module")
def seen(
    browser: str, record: Record, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, Any]]:
    return look(browser, tmp_path_factory.mktemp("page"), record)


@pytest.mark.parametrize("width", WIDTHS)
def test_page_opens_without_errors_or_loads(
    seen: dict[int, dict[str, Any]], width: int
) -> None:
    assert seen[width]["wrong"] == []
    assert seen[width]["loads"] == []
    assert len(seen[width]["sections"]) == 8


@pytest.mark.parametrize("width", WIDTHS)
def test_page_does_not_scroll_sideways(seen: dict[int, dict[str, Any]], width: int) -> None:
    assert seen[width]["scroll"] <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_every_figure_is_seen_and_fits(
    seen: dict[int, dict[str, Any]], record: Record, width: int
) -> None:
    figures = seen[width]["figures"]
    layers = len(record.results["subset"]["maps"])
    panels = len(record.results["methods"]) + len(_BUILDER["SETS"])
    assert len(figures) == layers + panels + 3
    assert all(0 < w <= width and h > 0 for w, h in figures)


@pytest.mark.parametrize("width", WIDTHS)
def test_text_of_figures_is_legible(seen: dict[int, dict[str, Any]], width: int) -> None:
    assert seen[width]["clashes"] == []
    assert seen[width]["outside"] == []
    assert seen[width]["smallest"] >= SMALLEST_TEXT


@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_are_those_of_the_record(
    seen: dict[int, dict[str, Any]], record: Record, width: int
) -> None:
    assert seen[width]["record"] == json.loads(record.to_json())
    numbers = {(m, s): float(v) for m, s, v, _ in seen[width]["numbers"]}
    assert all(shown > 0 for *_, shown in seen[width]["numbers"])
    for method in record.results["methods"]:
        for score, one in method["scores"].items():
            assert numbers[method["name"], score] == one["value"]
            assert numbers[method["name"], f"{score}.low"] == one["low"]
            assert numbers[method["name"], f"{score}.high"] == one["high"]
        for score in ("floats", "relative_seconds"):
            assert numbers[method["name"], score] == method[score]


def test_long_and_hostile_names_do_not_break_the_page(
    browser: str, record: Record, tmp_path: Path
) -> None:
    long = "<img src=x onerror=console.error(1)>" + "unbroken_" * 30
    methods = [
        {
            **method,
            "label": f"{method['label']} {long}",
            "detection": {long: {"value": 0.4, "low": 0.3, "high": 0.5}},
        }
        for method in record.results["methods"]
    ]
    one = {**record.results["subset"]["maps"][0], "name": long}
    changed = make_record(
        methods=methods, subset={"maps": [one]}, data={long: 1}, precision_curve=None
    )
    changed.config["title"] = long  # type: ignore[index]
    for width, found in look(browser, tmp_path, changed).items():
        assert found["wrong"] == []
        assert found["loads"] == []
        assert found["scroll"] <= width


@pytest.fixture(scope="module")
def ramp_seen(
    browser: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, Any]]:
    return look(browser, tmp_path_factory.mktemp("ramp"), make_ramp_record())


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_ramping_study_is_whole(
    ramp_seen: dict[int, dict[str, Any]], width: int
) -> None:
    found, record = ramp_seen[width], make_ramp_record()
    assert found["wrong"] == []
    assert found["loads"] == []
    assert found["scroll"] <= width
    assert len(found["sections"]) == 8
    # Six of scores against sizes, two of norms, one of risk and coverage.
    assert len(found["figures"]) == len(record.results["methods"]) + 9
    assert all(0 < w <= width and h > 0 for w, h in found["figures"])
    assert found["record"] == json.loads(record.to_json())


@pytest.mark.parametrize("width", WIDTHS)
def test_names_in_figures_of_a_ramping_study_are_apart(
    ramp_seen: dict[int, dict[str, Any]], width: int
) -> None:
    assert ramp_seen[width]["clashes"] == []
    assert ramp_seen[width]["outside"] == []
    assert ramp_seen[width]["smallest"] >= SMALLEST_TEXT


@pytest.mark.parametrize("precision", [3.0, {"query": 0.2, "dense": 10.0}])
def test_the_page_of_a_tuned_model_is_whole(
    browser: str, tmp_path: Path, precision: Any
) -> None:
    record = make_tuned_record(precision=precision)
    for width, found in look(browser, tmp_path, record).items():
        assert found["wrong"] == []
        assert found["loads"] == []
        assert found["scroll"] <= width
        wanted = ["tuned", "posterior", "precision-curve", "chains", "measured"]
        assert found["sections"] == wanted
        assert found["clashes"] == []
        assert found["outside"] == []
        assert found["smallest"] >= SMALLEST_TEXT
        # The precision's curve, and three traces of the chain.
        assert len(found["figures"]) == 4
        numbers = {m: float(v) for m, s, v, _ in found["numbers"] if s == "validation_nll"}
        assert numbers == {"map": 0.5606, "temperature": 0.5438, "posterior": 0.5353}


def check(found: dict[str, Any], width: int) -> None:
    assert found["wrong"] == []
    assert found["loads"] == []
    assert found["scroll"] <= width
    assert found["clashes"] == []
    assert found["outside"] == []
    assert found["smallest"] >= SMALLEST_TEXT


def test_the_page_of_decisions_is_whole(browser: str, tmp_path: Path) -> None:
    record = make_decided()
    for width, found in look(browser, tmp_path, record).items():
        check(found, width)
        first = ["automation", "risk-coverage", "rules", "classes", "rows", "scores"]
        assert found["sections"][: len(first)] == first
        numbers = {(m, s): (float(v), shown) for m, s, v, shown in found["numbers"]}
        value, shown = numbers["sparse-kfac", "automation.0.05"]
        assert value == record.results["methods"][-1]["automation"][0]["value"]
        assert shown > 0


def test_the_page_of_a_regression_has_its_intervals(browser: str, tmp_path: Path) -> None:
    for width, found in look(browser, tmp_path, make_regression()).items():
        check(found, width)
        assert found["sections"] == ["intervals", "rows", "scores", "measured"]
        assert len(found["figures"]) == 1


def test_hostile_texts_of_rows_do_not_break_the_page(browser: str, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=console.error(1)></td><script>console.error(2)</script>"
    words = hostile + "unbroken_" * 200 + "\u202e\u0645\u0631\u062d\u0628\u0627" + "𝔘" * 300
    row = {"row": 5, "label": words, "answer": words, "confidence": 0.4, "text": words}
    record = make_decided(least_certain=[row], strangest=[{**row, "score": 1.0}])
    for width, found in look(browser, tmp_path, record).items():
        assert found["wrong"] == []
        assert found["loads"] == []
        assert found["scroll"] <= width
