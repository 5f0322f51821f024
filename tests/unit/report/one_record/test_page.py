from __future__ import annotations

import json
import re
import runpy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from smidgen.errors import DataError, StoreError
from smidgen.report import render, score_rows, verdict, write
from smidgen.report.formats import (
    format_count,
    format_nll,
    format_percent,
    format_ratio,
    format_signed,
    format_significant,
)
from smidgen.report.one_record.subset_picture import subset_picture
from smidgen.report.one_record.tables import list_columns
from smidgen.report.one_record.verdict import list_sides
from smidgen.runtime.record import Record
from tests.support.report_page import Page
from tests.support.tuned_record import make_tuned_record

_BUILDER = runpy.run_path(str(Path(__file__).parents[3] / "support" / "report_record.py"))
make_record = _BUILDER["make_record"]
difference = _BUILDER["difference"]

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'$\\frac{ & 数"
SECTIONS = {
    "scores",
    "reliability",
    "risk-coverage",
    "shift-detection",
    "disagreement",
    "subset",
    "precision-curve",
    "measured",
}


@pytest.fixture(scope="module")
def record() -> Record:
    return make_record()


@pytest.fixture(scope="module")
def text(record: Record) -> str:
    return render(record)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def without(record: Record, *parts: str) -> Record:
    methods = [
        {key: value for key, value in method.items() if key not in parts}
        for method in record.results["methods"]
    ]
    results = {k: v for k, v in record.results.items() if k not in parts}
    return replace(record, results={**results, "methods": methods})


def with_gap(value: float, half: float) -> Record:
    gap = difference("sparse-kfac", "temperature", "nll", value, half)
    return make_record(differences=[gap])


def test_every_number_of_the_record_is_on_the_page(record: Record, page: Page) -> None:
    expected: dict[tuple[str, str], float] = {}
    for method in record.results["methods"]:
        intervals = {
            **method["scores"],
            **{f"detection.{name}": one for name, one in method["detection"].items()},
            "disagreement": method["disagreement"],
        }
        for score, one in intervals.items():
            expected[method["name"], score] = one["value"]
            expected[method["name"], f"{score}.low"] = one["low"]
            expected[method["name"], f"{score}.high"] = one["high"]
            if "floor" in one:
                expected[method["name"], f"{score}.floor"] = one["floor"]
        for score in ("floats", "relative_seconds", "precision", "temperature"):
            if score in method:
                expected[method["name"], score] = method[score]
        expected[method["name"], "risk_coverage.area"] = method["risk_coverage"]["area"]
    assert page.numbers == {place: repr(value) for place, value in expected.items()}


def test_page_has_every_section_and_the_verdict(text: str, page: Page) -> None:
    assert page.sections == SECTIONS
    assert "Bayes helped beyond temperature scaling, the NLL of Sparse-KFAC is" in text
    assert page.texts["h1"].strip() == "Sentiment of film reviews, MiniLM"


def test_record_is_embedded_whole(record: Record, page: Page) -> None:
    assert json.loads(page.texts["script"]) == json.loads(record.to_json())
    assert json.loads(page.texts["pre"]) == json.loads(record.to_json())


def test_page_loads_nothing(text: str, page: Page) -> None:
    assert not page.values("src")
    assert all(target.startswith("#") for target in page.values("href"))
    assert not {"link", "iframe", "object", "embed", "img"} & set(page.tags)
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", text))
    assert "http://" not in text
    assert "https://" not in text


def test_ids_are_unique_and_references_resolve(text: str, page: Page) -> None:
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    targets = [target[1:] for target in page.values("href")]
    targets += re.findall(r"url\(#([^)]*)\)", text)
    assert set(targets) <= set(ids)


def test_figures_scale_and_speak(text: str) -> None:
    figures = re.findall(r"<svg [^>]*>", text)
    assert len(figures) > 40
    for figure in figures:
        assert "viewBox=" in figure
        assert " width=" not in figure
        assert 'role="img"' in figure or 'aria-hidden="true"' in figure
    assert text.count('role="img"') == text.count("<title>") - 1


def test_hostile_strings_stay_text() -> None:
    record = make_record()
    methods = [{**method, "label": HOSTILE} for method in record.results["methods"]]
    methods[0] = {**methods[0], "name": HOSTILE}
    for method in methods:
        method["detection"] = {HOSTILE + "\x01": {"value": 0.5, "low": 0.4, "high": 0.6}}
    layers = [{**record.results["subset"]["maps"][0], "name": HOSTILE}]
    hostile = replace(
        record,
        kind=HOSTILE,
        status=HOSTILE,
        config={"title": HOSTILE, HOSTILE: HOSTILE, "list": [HOSTILE]},
        results={
            **record.results,
            "methods": methods,
            "data": {HOSTILE: HOSTILE},
            "subset": {**record.results["subset"], "maps": layers},
        },
        versions={HOSTILE: HOSTILE},
        machine={HOSTILE: HOSTILE},
    )
    page = Page(render(hostile))
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert not page.values("onerror")
    assert json.loads(page.texts["script"]) == json.loads(hostile.to_json())
    assert page.texts["h1"].strip() == HOSTILE


@pytest.mark.parametrize(
    ("part", "section"),
    [
        ("reliability", "reliability"),
        ("risk_coverage", "risk-coverage"),
        ("detection", "shift-detection"),
        ("disagreement", "disagreement"),
        ("subset", "subset"),
        ("precision_curve", "precision-curve"),
    ],
)
def test_missing_sections_are_left_out(record: Record, part: str, section: str) -> None:
    assert Page(render(without(record, part))).sections == SECTIONS - {section}


def test_bare_record_still_makes_a_page() -> None:
    bare = Record(kind="study", config={}, results={}, status="stopped early")
    text = render(bare)
    assert Page(text).sections == {"measured"}
    assert "This run is not complete: stopped early." in text
    assert "nothing to judge" in text


def test_methods_may_lack_scores_and_bounds(record: Record) -> None:
    methods = [
        {"name": "map"},
        {"name": "swag", "scores": {"nll": {"value": 0.4}, "brier": {"value": 0.2}}},
    ]
    rows = score_rows(replace(record, results={"methods": methods}))
    # Columns that no method has a number for are left out.
    assert [cell.text for cell in rows[0].cells] == ["–", "–"]
    assert rows[1].cells[0].text == "0.4000"
    assert rows[1].cells[0].bounds == ()
    assert ("swag", "nll") in Page(render(make_record(methods=methods))).numbers


def test_part_of_a_detection_may_be_missing(record: Record) -> None:
    methods = [dict(method) for method in record.results["methods"]]
    methods[0]["detection"] = {"tweets": {"value": 0.6}}
    del methods[1]["detection"]
    page = Page(render(make_record(methods=methods)))
    assert "shift-detection" in page.sections
    assert ("map", "detection.amazon") not in page.numbers


def test_rows_show_formatted_numbers(record: Record) -> None:
    last = score_rows(record)[-1]
    assert last.label == "Sparse-KFAC"
    assert [cell.text for cell in last.cells] == [
        "83.5\u202f%",
        "0.3819",
        "0.031",
        "0.033",
        "0.2291",
        "170,352",
        "2.31×",
    ]
    assert [bound.text for bound in last.cells[1].bounds] == ["0.3509", "0.4129"]
    assert [cell.text for cell in last.settings] == ["12.3", "1.23"]


def test_number_formats() -> None:
    assert format_percent(0.8309) == "83.1\u202f%"
    assert format_nll(-0.25) == "−0.2500"
    assert format_signed(0.0012) == "+0.0012"
    assert format_signed(-0.0132) == "−0.0132"
    assert format_count(1234567) == "1,234,567"
    assert format_ratio(1.081) == "1.08×"
    shown = {
        12.34: "12.3",
        0.0: "0",
        1234.5: "1,234",
        4.56e-5: "4.56×10⁻⁵",
        1e7: "1.00×10⁷",
    }
    assert {value: format_significant(value) for value in shown} == shown


@pytest.mark.parametrize(
    ("value", "half", "marked"),
    [(-0.0132, 0.007, True), (-0.0132, 0.02, False), (0.01, 0.001, False)],
)
def test_best_is_marked_only_where_it_is_clear(
    value: float, half: float, marked: bool
) -> None:
    record = with_gap(value, half)
    cells = [cell for row in score_rows(record) for cell in row.cells]
    assert [cell.score for cell in cells if cell.best] == ["nll"] * marked
    assert ("No NLL is marked" in render(record)) is not marked


def test_verdict_is_three_lines_from_the_numbers(record: Record) -> None:
    lines = verdict(record)
    assert [line.partition(":")[0] for line in lines] == [
        "Against the MAP",
        "Against temperature scaling",
        "Cost",
    ]
    assert (
        "Bayes helped, also beyond temperature scaling: the NLL of Sparse-KFAC" in lines[0]
    )
    assert "NLL 0.3819 against 0.5204" in lines[0]
    ece = "ECE 0.031 against 0.107 (0.021 and 0.018 by chance alone), clearly lower with chance"
    assert ece in lines[0]
    assert "the NLL of Sparse-KFAC is clearly lower. " in lines[1]
    assert "−0.0203 to −0.0061" in lines[1]
    ece = "ECE 0.031 against 0.054 (0.021 and 0.019 by chance alone), cannot be told apart with"
    assert ece in lines[1]
    assert "170,352 floats stored and 2.31× the time" in lines[2]
    assert (
        "Mean AUROC over 4 shifted sets: 0.721 against 0.697 for temperature scaling, "
        "clearly higher on 2, clearly lower on 1, cannot be told apart on 1."
    ) in lines[2]
    assert "Human disagreement: 0.270 against 0.230, clearly lower." in lines[2]


@pytest.mark.parametrize(
    ("gap", "words"),
    [(-0.05, "clearly lower"), (0.05, "clearly higher"), (0.0, "cannot be told apart")],
)
def test_every_score_of_the_verdict_has_both_directions_in_the_same_words(
    gap: float, words: str
) -> None:
    scores = ("nll", "squared_calibration", "detection.tweets", "disagreement")
    gaps = [difference("sparse-kfac", "temperature", score, gap, 0.01) for score in scores]
    record = make_record(differences=gaps)
    methods = [
        {**method, "detection": {"tweets": method["detection"]["tweets"]}}
        for method in record.results["methods"]
    ]
    _, scaling, cost = verdict(make_record(differences=gaps, methods=methods))
    assert scaling.count(words) == 2
    assert re.search(rf"AUROC on the shifted set: [^,]*, {words}\.", cost)
    assert re.search(rf"Human disagreement: [^,]*, {words}\.", cost)
    # Over several sets each direction is counted.
    several = verdict(record)[2]
    assert f"{words} on 1" in several or words == "cannot be told apart"


def test_auroc_that_fell_is_said_to_be_lower_without_paired_differences_too() -> None:
    """As the records before these differences were kept: by two intervals."""
    record = make_record(differences=None)
    methods = [dict(method) for method in record.results["methods"]]
    for method, value in zip(methods, (0.6, 0.68, 0.6, 0.6), strict=True):
        interval = {"value": value, "low": value - 0.02, "high": value + 0.02}
        method["detection"] = {"tweets": interval, "news": interval}
    line = verdict(make_record(differences=None, methods=methods))[2]
    assert (
        "clearly higher on none, clearly lower on 2, cannot be told apart on none" in line
    )
    assert "by unpaired intervals" in line


@pytest.mark.parametrize(
    ("gap", "against_map", "against_scaling"),
    [
        (-0.02, "Bayes helped, also beyond temperature", "Bayes helped beyond temperature"),
        (
            0.0,
            "but no more than temperature scaling brings",
            "Sparse-KFAC is no better than",
        ),
        (0.02, "but temperature scaling alone brings more", "Sparse-KFAC is worse than"),
    ],
)
def test_what_temperature_scaling_does_too_is_not_called_help(
    gap: float, against_map: str, against_scaling: str
) -> None:
    gaps = [
        difference("sparse-kfac", "map", "nll", -0.1, 0.01),
        difference("sparse-kfac", "temperature", "nll", gap, 0.01),
    ]
    first, second, _ = verdict(make_record(differences=gaps))
    assert against_map in first
    assert second.startswith(f"Against temperature scaling: {against_scaling}")
    assert ("Bayes helped" in first) is (gap < 0)
    alone = verdict(make_record(differences=gaps[:1]))[0]
    assert "whether temperature scaling would do is unknown" in alone


@pytest.mark.parametrize(("value", "half"), [(-0.0132, 0.02), (-0.01, 0.01), (0.02, 0.001)])
def test_verdict_says_when_temperature_is_enough(value: float, half: float) -> None:
    line = verdict(with_gap(value, half))[1]
    assert "temperature scaling is enough on this data" in line
    assert "clearly lower" not in line
    assert ("is worse than" in line) is (value > 0)


def test_kept_temperature_scaling_is_not_compared_with_itself() -> None:
    scores = {"nll": {"value": 0.4}}
    methods = [{"name": name, "scores": scores} for name in ("map", "temperature", "point")]
    gaps = [difference("point", other, "nll", 0.0, 0.0) for other in ("map", "temperature")]
    first, second, _ = verdict(make_record(differences=gaps, methods=methods))
    assert first.startswith("Against the MAP: Temperature scaling made no clear difference")
    assert second == (
        "Against temperature scaling: what was kept is temperature scaling itself, so there "
        "is nothing to tell apart."
    )


def test_verdict_names_another_method_that_is_clearly_better() -> None:
    gaps = [
        difference("sparse-kfac", "temperature", "nll", -0.005, 0.01),
        difference("last-layer", "temperature", "nll", -0.02, 0.01),
    ]
    line = verdict(make_record(differences=gaps))[1]
    assert "Sparse-KFAC is no better than temperature scaling, the NLLs cannot" in line
    assert "but that of Last layer is clearly lower." in line
    assert "enough" not in line


def test_the_side_of_every_method_is_said_beneath_the_table() -> None:
    gaps = [
        difference("sparse-kfac", "temperature", "nll", 0.02, 0.01),
        difference("last-layer", "temperature", "nll", 0.001, 0.01),
    ]
    line = (
        "NLL against temperature scaling, clearly lower: none; clearly higher: "
        "Sparse-KFAC; cannot be told apart: Last layer."
    )
    assert list_sides(make_record(differences=gaps)) == [line]
    assert line in render(make_record(differences=gaps))
    # Of a single method the verdict has said it.
    assert not list_sides(make_record(differences=gaps[:1]))


def test_verdict_claims_nothing_without_an_interval() -> None:
    for line in verdict(make_record(differences=None))[:2]:
        assert "no gain is claimed" in line


def test_verdict_without_temperature_or_bayes(record: Record) -> None:
    methods = record.results["methods"]
    alone = verdict(make_record(methods=[methods[0], methods[3]]))
    assert "not measured" in alone[1]
    assert alone[2].endswith("a plain forward pass.")
    assert len(verdict(make_record(methods=methods[:2]))) == 1


@pytest.mark.parametrize(
    ("beyond", "claim"),
    [
        (0.1, "Bayes did harm, also beyond temperature scaling"),
        (0.0, "beyond it Bayes did no clear harm"),
        (-0.1, "temperature scaling alone does more harm"),
        (None, "whether by temperature scaling or by Bayes is unknown"),
    ],
)
def test_verdict_says_whose_harm_it_is(beyond: float | None, claim: str) -> None:
    """A posterior that adds no variance still has a temperature, which may do harm."""
    gaps = [difference("sparse-kfac", "map", "nll", 0.1, 0.01)]
    if beyond is not None:
        gaps.append(difference("sparse-kfac", "temperature", "nll", beyond, 0.01))
    line = verdict(make_record(differences=gaps))[0]
    assert claim in line
    assert "clearly higher" in line
    assert ("Bayes did harm" in line) == (beyond == 0.1)


def test_write_is_whole_or_not_at_all(tmp_path: Path, record: Record, text: str) -> None:
    path = write(record, tmp_path / "deep" / "page.html")
    assert path.read_text(encoding="utf-8") == text
    with pytest.raises(StoreError, match="JSON"):
        write(replace(record, config={"x": float("nan")}), path)
    assert path.read_text(encoding="utf-8") == text
    assert [entry.name for entry in path.parent.iterdir()] == ["page.html"]


def test_drawing_leaves_matplotlib_as_it_was(record: Record, text: str) -> None:
    before = dict(matplotlib.rcParams)
    assert render(record) == text
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    "methods",
    [
        [{"label": "nameless"}],
        [{"name": "map"}, {"name": "map"}],
        [{"name": "map", "scores": {"nll": {"value": "low"}}}],
        [{"name": "map", "reliability": {"confidence": [0.5]}}],
        ["map"],
    ],
)
def test_malformed_results_are_refused(methods: list[Any]) -> None:
    with pytest.raises(DataError, match=r"names of their own|cannot be shown"):
        render(make_record(methods=methods))


def test_subset_picture_is_compact_and_to_scale(record: Record) -> None:
    layers = record.results["subset"]["maps"]
    picture = subset_picture(layers)
    panels = [panel for group in picture.groups for panel in group.panels]
    assert len(panels) == len(layers)
    assert picture.hidden == 0
    assert sum(len(panel.svg) for panel in panels) < 100_000
    headings = {group.heading: group.shape for group in picture.groups}
    assert headings["attention.self.query"] == "384 × 384, chosen 39 × 39"
    assert headings["intermediate.dense"] == "1,536 × 384, chosen 154 × 39"
    assert {panel.width for panel in panels} == {384, 1536}
    row = layers[0]["rows"][3]
    assert f"M0 {row}.5h384" in panels[0].svg


def test_subset_picture_stays_small_for_large_models() -> None:
    some = [*range(0, 4096, 10)]
    one = {"outputs": 4096, "inputs": 4096, "rows": some, "columns": some}
    layers = [{**one, "name": f"model.layers.{i}.q"} for i in range(224)]
    layers.append({**one, "name": "head", "outputs": 128_000, "rows": [0]})
    picture = subset_picture(layers)
    panels = [panel for group in picture.groups for panel in group.panels]
    assert sum(len(panel.svg) for panel in panels) < 300_000
    assert picture.hidden == len(layers) - len(panels) > 0
    head = subset_picture(layers[-2:])
    assert max(panel.height for group in head.groups for panel in group.panels) < 128_000


def test_subset_picture_of_everything_is_one_block() -> None:
    every = [*range(64)]
    layers = [
        {"name": "head", "outputs": 64, "inputs": 64, "rows": every, "columns": every}
    ]
    picture = subset_picture(layers)
    assert "M0 0h64v64H0z" in picture.groups[0].panels[0].svg
    assert len(picture.groups[0].panels[0].svg) < 1000


def test_record_is_left_alone(record: Record) -> None:
    before = json.dumps(asdict(record))
    render(record)
    assert json.dumps(asdict(record)) == before


def test_a_precision_at_the_edge_is_said(record: Record) -> None:
    assert "at the edge of its grid" not in render(record)
    methods = [dict(method) for method in record.results["methods"]]
    methods[3]["precision_at_edge"] = True
    assert render(make_record(methods=methods)).count("τ at the edge of its grid") == 1


def test_several_precisions_are_shown_from_the_smallest_to_the_largest(
    record: Record,
) -> None:
    methods = [dict(method) for method in record.results["methods"]]
    methods[3].pop("precision", None)
    methods[3]["precision_range"] = [5.6e-4, 1.78]
    assert "τ\xa0=\xa05.60×10⁻⁴ to 1.78, T" in re.sub(
        "<[^>]*>", "", render(make_record(methods=methods))
    )


def test_a_tuned_model_is_judged_by_what_its_record_holds() -> None:
    lines = verdict(make_tuned_record())
    assert lines == [
        "Tuned: 26,594 pretrained weights and 770 of the head. A delta of 816 kB. Epoch 1 "
        "of 2 was kept: validation NLL 0.5606, accuracy 73.5\u202f%.",
        "Against the MAP: lower NLL on the validation data that chose the posterior. "
        "0.5353 against 0.5606; no gain is claimed from that.",
        "Against temperature scaling: lower NLL on the validation data that chose the "
        "posterior. 0.5353 against 0.5438; no gain is claimed from that. 'smidgen "
        "evaluate' tests it on test data.",
    ]
    higher = verdict(make_tuned_record(chosen_nll=0.55))
    assert higher[1].startswith("Against the MAP: lower")
    assert "scaling: higher NLL" in higher[2]
    assert "0.5500 against 0.5438. 'smidgen" in higher[2]
    assert "scaling: the same NLL" in verdict(make_tuned_record(chosen_nll=0.54381))[2]
    assert verdict(make_tuned_record(posterior=None)) == lines[:1]


def test_the_page_of_a_tuned_model_shows_its_posterior_and_its_size() -> None:
    text = render(make_tuned_record())
    for words in (
        "precision 3, temperature 0.206; 27,364 floats",
        "(bert.pooler.dense, classifier)",
        "The delta is 816 kB.",
        "the 200 validation examples",
        "The marked point was chosen",
    ):
        assert words in text
    assert Page(text).numbers["posterior", "validation_nll"] == "0.5353"
    several = render(make_tuned_record(precision={"query": 0.2, "dense": 10.0}))
    assert "Several were chosen instead, for groups of weights, from 0.2 to 10" in several
    assert "marked point" not in several
    none = Page(render(make_tuned_record(posterior=None)))
    assert "tuned" in none.sections
    assert not none.sections & {"posterior", "precision-curve"}
    numbers = render(make_tuned_record(accuracy=None))
    assert "MAP with its noise fitted" in numbers
    assert "temperature scaling" not in numbers.partition('<section id="measured">')[0]


def test_a_record_of_an_older_run_has_a_page_too() -> None:
    record = make_tuned_record()
    old = {key: value for key, value in record.results.items() if key != "head"}
    config = {key: value for key, value in record.config.items() if key != "head"}
    text = render(replace(record, results=old, config=config))
    assert "27,364 weights; all others" in text


def make_scored(scores: dict[str, dict[str, float]]) -> Record:
    """Build a comparison by hand: methods with these scores, and one difference."""

    def estimate(value: float) -> dict[str, float]:
        return {"value": value, "low": value - 0.01, "high": value + 0.01}

    methods = [
        {"name": name, "scores": {key: estimate(value) for key, value in values.items()}}
        for name, values in scores.items()
    ]
    differences = [
        difference("sparse-kfac", "map", "nll", -0.3, 0.1),
        difference("sparse-kfac", "temperature", "nll", 0.01, 0.05),
    ]
    return Record(
        kind="evaluate", config={}, results={"methods": methods, "differences": differences}
    )


def test_a_regression_is_shown_by_nll_rmse_and_coverage() -> None:
    record = make_scored(
        {
            "map": {"nll": 1.5, "rmse": 0.61, "coverage": 0.81},
            "temperature": {"nll": 1.19, "rmse": 0.61, "coverage": 0.94},
            "sparse-kfac": {"nll": 1.2, "rmse": 0.61, "coverage": 0.953},
        }
    )
    assert [column.score for column in list_columns(record)] == ["nll", "rmse", "coverage"]
    first, second, cost = verdict(record)
    assert "the NLL of Sparse-KFAC is clearly lower, but no more than fitted noise" in first
    assert "NLL 1.2000 against 1.5000" in first
    assert second.startswith("Against fitted noise: Sparse-KFAC is no better than fitted")
    assert "fitted noise is enough" in second
    assert "ECE" not in first + second + cost
    text = render(record)
    assert Page(text).numbers["sparse-kfac", "coverage"] == "0.953"
    assert "root mean squared error" in text
    assert "expected calibration error" not in text
    assert "temperature scaling" not in text
    assert Page(text).sections == {"scores", "measured"}


def test_labels_are_shown_by_nll_brier_ece_and_accuracy() -> None:
    scores = {"nll": 0.9, "brier": 0.3, "accuracy": 0.8, "ece": 0.05}
    names = ("map", "temperature", "sparse-kfac")
    record = make_scored(dict.fromkeys(names, scores))
    shown = [column.score for column in list_columns(record)]
    assert shown == ["accuracy", "nll", "ece", "brier"]
    first, second, _ = verdict(record)
    assert "ECE 0.050 against 0.050" in first
    assert "Sparse-KFAC is no better than temperature scaling" in second
    text = render(record)
    numbers = Page(text).numbers
    # A record that does not hold what chance gives says so.
    assert text.count("by chance –") == 3
    assert {("map", score) for score in shown} <= set(numbers)
