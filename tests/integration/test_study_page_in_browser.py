"""The page of many records in headless Chromium: it opens, filters, and tells the truth."""

from __future__ import annotations

from statistics import fmean

import pytest
from scipy.stats import ttest_1samp

from smidgen.report import render_many
from tests.integration.test_page_in_browser import SMALLEST_TEXT, browser
from tests.support.browser_page import PROBE, WIDTHS, opened
from tests.support.study_records import (
    DATA,
    SEEDS,
    SHIFTS,
    make_level_records,
    make_study_records,
)
from tests.support.tolerances import EXACT

__all__ = ["browser"]
pytestmark = pytest.mark.browser

# After the first look: uncheck a data set and a method, look again, check them again.
FILTERS = """
const shown = () => ({
  sections: [...document.querySelectorAll("[data-of-data]")]
    .filter(e => e.offsetParent !== null).map(e => e.dataset.ofData),
  methods: [...new Set([...document.querySelectorAll("tr[data-of-method]")]
    .filter(e => e.offsetParent !== null).map(e => e.dataset.ofMethod))],
});
const filtered = () => {
  const boxes = [...document.querySelectorAll("input[data-filter]")];
  const before = shown();
  const off = [boxes.find(b => b.dataset.filter === "data"),
    boxes.find(b => b.value === "map" || b.value === "sparse-kfac")];
  off.forEach(b => b.click());
  const after = shown();
  off.forEach(b => b.click());
  return {before, off: off.map(b => b.value), after, again: shown()};
};
"""


def look(program, folder, records):
    probe = PROBE.replace("function probe() {", FILTERS + "function probe() {")
    probe = probe.replace(
        'record: JSON.parse(document.getElementById("record").textContent)',
        'record: JSON.parse(document.getElementById("numbers").textContent),'
        "data: [...document.querySelectorAll('[data-value]')].map(e => e.dataset.data),"
        "filtered: filtered()",
    )
    return opened(program, folder, render_many(records), probe)


@pytest.fixture(scope="module", params=["classes", "levels"])
def seen(request, browser, tmp_path_factory):  # noqa: F811
    make = {"classes": make_study_records, "levels": make_level_records}[request.param]
    records = make()
    return records, look(browser, tmp_path_factory.mktemp("page"), records)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_opens_without_errors_or_loads(seen, width):
    found = seen[1][width]
    assert found["wrong"] == []
    assert found["loads"] == []
    assert found["scroll"] <= width
    assert found["sections"][0] == "findings"


@pytest.mark.parametrize("width", WIDTHS)
def test_figures_fit_and_their_text_is_legible(seen, width):
    found = seen[1][width]
    assert found["figures"]
    assert all(0 < w <= width and h > 0 for w, h in found["figures"])
    assert found["clashes"] == []
    assert found["outside"] == []
    assert found["smallest"] >= SMALLEST_TEXT


@pytest.mark.parametrize("width", WIDTHS)
def test_filters_hide_data_and_methods_and_show_them_again(seen, width):
    found = seen[1][width]["filtered"]
    data, method = found["off"]
    assert data in found["before"]["sections"]
    assert method in found["before"]["methods"]
    assert data not in found["after"]["sections"]
    assert method not in found["after"]["methods"]
    assert found["again"] == found["before"]


def check_numbers(shown, place, values):
    """A mean and Student's interval, as scipy finds them."""
    data, method, score = place
    close = {"rel": EXACT["rtol"], "abs": EXACT["atol"]}
    assert shown[place] == pytest.approx(fmean(values), **close)
    ends = ttest_1samp(values, 0).confidence_interval()
    assert shown[data, method, f"{score}.low"] == pytest.approx(ends.low, **close)
    assert shown[data, method, f"{score}.high"] == pytest.approx(ends.high, **close)


@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_are_those_of_the_records(seen, width):
    records, found = seen[0], seen[1][width]
    by_place: dict[tuple[str, str, str], list[float]] = {}
    listed = []
    for record in records:
        data = record.config["data"]["name"]
        for method in record.results["methods"]:
            plain = {name: one["value"] for name, one in method["scores"].items()}
            entry = {"data": data, "seed": record.seed, "method": method["name"]}
            listed.append({**entry, "scores": plain})
            for name, value in plain.items():
                by_place.setdefault((data, method["name"], name), []).append(value)
    assert found["record"] == listed
    pairs = zip(found["data"], found["numbers"], strict=True)
    shown = {(data, m, score): float(value) for data, (m, score, value, _) in pairs}
    baseline = "temperature" if (DATA[0], "temperature", "nll") in by_place else "map"
    for (data, method, score), values in by_place.items():
        # Shown only beside a paper's figure of that kind.
        if score == "ece_equal_width":
            continue
        check_numbers(shown, (data, method, score), values)
        if score == "nll" and method != baseline:
            others = by_place[data, baseline, score]
            gaps = [ours - theirs for ours, theirs in zip(values, others, strict=True)]
            check_numbers(shown, (data, method, "nll.difference"), gaps)
    assert len(SHIFTS) * len(DATA) * len(SEEDS) == 42
