"""Decisions on the page: what to do comes first, every number is there, texts stay texts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smidgen.report import fields, render, score_rows, verdict
from smidgen.report.formats import format_share
from smidgen.report.one_record.decision_tables import LONGEST_SHOWN
from smidgen.report.one_record.tables import list_columns
from smidgen.runtime.record import Record
from tests.support.decision_record import (
    CLASSES,
    interval,
    make_decided,
    make_regression,
    make_rules,
)
from tests.support.report_page import Page
from tests.support.report_record import difference, make_record

NEW = {"automation", "rules", "classes", "rows", "uncertainty-scores"}
OLD = {
    "scores",
    "reliability",
    "risk-coverage",
    "shift-detection",
    "disagreement",
    "subset",
    "precision-curve",
    "measured",
}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp; {{ 7*7 }}"
OLD_RECORD = Path(__file__).parents[3] / "data" / "old_record.json"


@pytest.fixture(scope="module")
def text() -> str:
    return render(make_decided())


def with_results(record: Record, **changes: Any) -> Record:
    results = {**record.results, **changes}
    return replace(record, results={k: v for k, v in results.items() if v is not None})


def with_methods(record: Record, **changes: Any) -> Record:
    methods = [{**method, **changes} for method in record.results["methods"]]
    return with_results(record, methods=methods)


def test_the_page_leads_with_what_to_do(text: str) -> None:
    page = Page(text)
    assert page.sections == OLD | NEW
    order = [
        text.index(f'id="{name}"') for name in ("verdict", "automation", "risk-coverage")
    ]
    order += [text.index(f'id="{name}"') for name in ("rules", "classes", "rows", "scores")]
    assert order == sorted(order)
    first, second, *rest = verdict(make_decided())
    assert first == (
        "What to do: the rule answers 69\u202f% of the rows, 4.1\u202f% of them wrong (asked: at "
        "most 5\u202f%). At best, with the threshold chosen afterwards on these test rows, "
        "71\u202f% of the answers could be automated at 95\u202f% accuracy (95\u202f% interval "
        "68\u202f% to 74\u202f%); the plain model 61\u202f%, temperature scaling 63\u202f%. "
        "Sparse-KFAC automates clearly more than either."
    )
    assert second.startswith(
        "With the saved rules: sets of 1.23 classes on average hold the truth on 90.7\u202f% "
        "(asked: 90\u202f%). 4.8\u202f% of the test rows are flagged"
    )
    assert rest == verdict(make_record())


def test_every_number_of_the_decisions_is_on_the_page(text: str) -> None:
    numbers = Page(text).numbers
    record = make_decided()
    primary = record.results["methods"][-1]
    for method in record.results["methods"]:
        name = method["name"]
        for entry in method["automation"]:
            key = f"automation.{entry['max_error']:g}"
            assert numbers[name, key] == repr(entry["value"])
            assert numbers[name, f"{key}.low"] == repr(entry["low"])
            assert numbers[name, f"{key}.high"] == repr(entry["high"])
        assert numbers[name, "automation.threshold"] == "0.93"
        if name == "last-layer":
            continue  # neither a baseline nor what the verdict is about
        same = method["same_rules"]
        for rule, measure in (
            ("abstain", "answered"),
            ("sets", "covered"),
            ("sets", "size"),
        ):
            value = repr(same[rule][measure]["value"])
            assert numbers[name, f"same_rules.{rule}.{measure}"] == value
        for score, area in method["error_detection"].items():
            assert numbers[name, f"error_detection.{score}"] == repr(area["value"])
            assert numbers[name, f"detection.tweets.{score}.low"] == repr(area["low"])
        for place, row in enumerate(method["by_class"]):
            key = ("sparse-kfac", f"class.{place}.automation.{name}")
            assert numbers[key] == repr(row["automation"])
    for place, row in enumerate(primary["by_class"]):
        for score in ("rows", "accuracy", "confidence"):
            assert numbers["sparse-kfac", f"class.{place}.{score}"] == repr(row[score])
    for name in CLASSES:
        assert f'<th scope="row">{name}</th>' in text


def test_a_score_is_said_to_be_higher_lower_or_neither(text: str) -> None:
    table = text[text.index('id="uncertainty-scores"') :]
    table = table[: table.index("</section>")]
    ours = table[table.index("Sparse-KFAC, confidence") :]
    assert "clearly higher" in ours[: ours.index("</td>")]
    variance = ours[ours.index("Sparse-KFAC, variance of the logits") :].split("</td>")
    assert "clearly lower" in variance[0]
    assert "cannot be told apart" in variance[1]
    # What no difference was recorded of says nothing.
    assert "clearly" not in variance[2]


def judge(against_map: tuple[float, float], against_scaling: tuple[float, float]) -> str:
    record = make_decided()
    gaps = [
        difference("sparse-kfac", baseline, "automation", *gap)
        for baseline, gap in (("map", against_map), ("temperature", against_scaling))
    ]
    return verdict(with_results(record, differences=gaps))[0]


@pytest.mark.parametrize(
    ("gaps", "words"),
    [
        (((0.1, 0.05), (0.1, 0.05)), "automates clearly more than either."),
        (
            ((0.1, 0.05), (0.01, 0.05)),
            "automates clearly more than the plain model, but no more that can be told than "
            "temperature scaling: for this, that is enough.",
        ),
        (
            ((0.01, 0.05), (0.01, 0.05)),
            "automates no more that can be told: for this, the plain model is enough.",
        ),
        (
            ((0.1, 0.05), (-0.1, 0.05)),
            "automates clearly less than temperature scaling: use that instead.",
        ),
        (
            ((-0.1, 0.05), (0.1, 0.05)),
            "automates clearly less than the plain model: use that instead.",
        ),
    ],
)
def test_the_verdict_can_say_that_nothing_helps(gaps: Any, words: str) -> None:
    assert judge(*gaps).endswith(f"Sparse-KFAC {words}")


def test_what_is_read_off_the_test_rows_permits_nothing() -> None:
    best = "t best, with the threshold chosen afterwards on these test rows, 71\u202f% of"
    without = verdict(make_decided(rules=None))[0]
    assert without.startswith(f"What to do: a{best}")
    assert "Make a rule on rows that chose nothing else to hold it. Sparse-KFAC" in without
    rules = {k: v for k, v in make_rules().items() if k != "abstain"}
    for made in (rules, {}):
        unpromised = verdict(make_decided(rules=made))[0]
        assert unpromised.startswith("What to do: no error rate can be promised yet, as")
        assert f"there is no rule to abstain. A{best}" in unpromised
    known = make_decided(rules=rules, rows_for_promise={"needed": 45, "made": 30})
    assert (
        "no rule to abstain. It takes 45 labelled rows or more (30 made the other rules), and "
        f"few errors among the most certain. A{best}"
    ) in verdict(known)[0]
    enough = make_decided(rules=rules, rows_for_promise={"needed": 45, "made": 84})
    assert (
        "no rule to abstain. There were rows enough (84; it takes 45), but too many of the most "
        f"certain ones are wrong. A{best}"
    ) in verdict(enough)[0]
    reason = "max_error=0.05 cannot be promised: of 84 rows 9 are wrong. Ask for 0.38."
    told = {"needed": 45, "made": 84, "reason": reason}
    assert (
        f"no rule to abstain. On its rows, {reason} A{best}"
        in verdict(make_decided(rules=rules, rows_for_promise=told))[0]
    )
    labels = verdict(make_decided(rules=rules, multilabel=True))[0]
    assert labels.startswith(
        "What to do: no rule promises the error rate of several labels"
    )
    for line in (without, unpromised, labels):
        assert "you may" not in line
        assert line.endswith("Sparse-KFAC automates clearly more than either.")


def test_a_rule_is_said_by_what_it_answers() -> None:
    rule = make_rules()["abstain"]
    free = verdict(make_decided(rules={"abstain": {**rule, "max_error": None}}))[0]
    assert "4.1\u202f% of them wrong (no error rate was asked for)." in free
    none = {**rule, "answered": interval(0.0, 0.0), "error": None}
    assert (
        "the rule answers none of the rows."
        in verdict(make_decided(rules={"abstain": none}))[0]
    )
    # Without what could be automated at best, the rule alone.
    alone = verdict(with_methods(make_decided(), automation=None))[0]
    assert alone.endswith("(asked: at most 5\u202f%).")


def test_without_baselines_nothing_is_claimed() -> None:
    record = make_decided()
    ours = [record.results["methods"][-1]]
    line = verdict(with_results(record, methods=ours, differences=[]))[0]
    assert "; the plain" not in line
    assert line.endswith("Nothing was there to compare it with.")


@pytest.mark.parametrize(
    ("share", "claim"),
    [
        (0.0, "no answers could be automated at 95\u202f% accuracy"),
        (1.0, "every answer could be automated at 95\u202f% accuracy"),
        (0.9999, "100.0\u202f% of the answers could be automated"),
    ],
)
def test_none_and_all_are_said_in_words(share: float, claim: str) -> None:
    threshold = None if share == 0 else 0.5
    entry = {"max_error": 0.05, "value": share, "low": 0.0, "high": 1.0}
    entry |= {"threshold": threshold, "error": None if share == 0 else 0.04}
    record = with_methods(make_decided(), automation=[entry])
    first = verdict(record)[0]
    assert claim in first
    assert "the plain model and temperature scaling" in first
    assert "automation" in Page(render(record)).sections


def test_shares_never_round_to_all_or_nothing() -> None:
    shown = {0.0: "0", 0.001: "0.1", 0.714: "71", 0.9999: "100.0", 1.0: "100"}
    assert {v: format_share(v) for v in shown} == {
        v: f"{t}\u202f%" for v, t in shown.items()
    }


def test_the_chosen_point_is_marked_on_the_curve() -> None:
    def marks(record: Record) -> tuple[bool, int]:
        text = render(record)
        figure = text[text.index('id="risk-coverage"') :]
        figure = figure[: figure.index("</section>")]
        return "Each marker is the most" in figure, figure.count("<use")

    marked, drawn = marks(make_decided())
    plain, before = marks(make_record())
    # The markers of the three that the verdict is about.
    assert (marked, plain) == (True, False)
    assert drawn > before


def test_texts_stay_texts() -> None:
    long = HOSTILE + "数" * 3000 + "unbroken" * 400
    row = {"row": 3, "label": HOSTILE, "answer": HOSTILE, "confidence": 0.3, "text": long}
    record = make_decided(
        least_certain=[row],
        strangest=[{**row, "score": 2.0, "text": "\x00\u202e\ud7ff" + HOSTILE}],
        strange_score=HOSTILE,
        rules={"abstain": {**make_rules()["abstain"], "sentence": HOSTILE}},
    )
    by_class = [
        {"name": HOSTILE, "rows": 2, "accuracy": 0.5, "confidence": 0.5, "automation": 0.1}
    ]
    detection = {HOSTILE: {HOSTILE: interval(0.5)}}
    record = with_methods(record, by_class=by_class, score_detection=detection)
    text = render(record)
    page = Page(text)
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert not page.values("onerror")
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    assert "49" not in re.findall(r"\{\{ (\S*)", text)
    shown = text[text.index('id="rows"') : text.index('id="scores"')]
    assert "数" * (LONGEST_SHOWN - len(HOSTILE) - 1) + "…" in shown
    assert "unbroken" not in shown


@pytest.mark.parametrize(
    ("part", "section"),
    [
        ("rules", "rules"),
        ("least_certain", None),
        ("strangest", None),
    ],
)
def test_parts_of_the_decisions_may_be_absent(part: str, section: str | None) -> None:
    page = Page(render(make_decided(**{part: None})))
    assert page.sections == (OLD | NEW) - {section}


@pytest.mark.parametrize(
    ("part", "sections"),
    [
        ("automation", {"automation"}),
        ("by_class", {"classes"}),
        ("error_detection", set()),
        ("score_detection", set()),
    ],
)
def test_parts_of_the_methods_may_be_absent(part: str, sections: set[str]) -> None:
    record = make_decided()
    methods = [
        {key: value for key, value in method.items() if key != part}
        for method in record.results["methods"]
    ]
    page = Page(render(with_results(record, methods=methods)))
    assert page.sections == (OLD | NEW) - sections


def test_rows_without_texts_have_no_column_for_them(text: str) -> None:
    rows = [
        {"row": 1234, "label": "a", "answer": "b", "confidence": 0.5, "score": 1.0}
        for _ in range(2)
    ]
    bare = render(make_decided(least_certain=rows, strangest=rows))
    heading = ">Text</th>"
    assert heading in text
    assert heading not in bare
    assert ">1,234</th>" in bare


def test_old_records_are_as_they_were() -> None:
    record = Record.load(OLD_RECORD)
    page = Page(render(record))
    assert not page.sections & NEW
    assert "scores" in page.sections
    assert [line.partition(":")[0] for line in verdict(record)] == [
        "Against the MAP",
        "Against temperature scaling",
        "Cost",
    ]


def test_the_plain_table_has_a_column_of_what_is_automated() -> None:
    record = make_decided()
    assert [column.score for column in list_columns(record)][0] == "automation"
    cells = {row.name: row.cells[0].plain_text for row in score_rows(record)}
    assert cells == {
        "map": "61\u202f%",
        "temperature": "63\u202f%",
        "last-layer": "66\u202f%",
        "sparse-kfac": "71\u202f%",
    }
    # On the page it has a table of its own.
    scores = render(record)
    scores = scores[scores.index('id="scores"') : scores.index('id="reliability"')]
    assert "Automated" not in scores
    assert "automation" not in [column.score for column in list_columns(make_record())]


def test_a_regression_leads_with_its_intervals() -> None:
    record = make_regression()
    text = render(record)
    page = Page(text)
    assert page.sections == {"intervals", "rows", "scores", "measured"}
    first = verdict(record)[0]
    assert first.startswith(
        "What to do: give each number with its 95\u202f% interval. Those of"
    )
    assert "hold the truth on 94.5\u202f% of the rows, mean width 10.6." in first
    assert "the plain model 85.0\u202f% of the rows, mean width 9.70; fitted noise" in first
    for method in record.results["methods"]:
        for entry in method["intervals"]:
            key = f"intervals.{entry['coverage']:g}"
            assert page.numbers[method["name"], key] == repr(entry["covered"]["value"])
            width = page.numbers[method["name"], f"{key}.width"]
            assert width == repr(entry["width"]["value"])
    assert "±" in text
    assert "True value" in text


@pytest.mark.parametrize(
    ("covered", "words"),
    [
        (0.85, "do not trust the 95\u202f% intervals, they are too narrow."),
        (0.985, "the 95\u202f% intervals are safe, but wider than need be."),
        (0.95, "give each number with its 95\u202f% interval."),
    ],
)
def test_intervals_are_judged_by_what_they_hold(covered: float, words: str) -> None:
    entries = [
        {"coverage": 0.95, "covered": interval(covered, 0.01), "width": interval(3.0)}
    ]
    record = with_methods(make_regression(), intervals=entries)
    assert words in verdict(record)[0]


def test_intervals_of_several_outputs_each_have_a_picture() -> None:
    truth = make_regression().results["decisions"]["truth"]
    one = truth["outputs"][0]
    several = {**truth, "outputs": [one, {**one, "name": HOSTILE}], "by_rule": True}
    text = render(make_regression(truth=several))
    assert text.count("Intervals of the predictions against the true values") == 2
    assert "img" not in Page(text).tags
    assert "the saved rule’s" in text


def test_what_bayesify_tried_is_a_table_with_a_sentence() -> None:
    candidate = {
        "floats": 0,
        "relative_seconds": 1.0,
        "nll": 0.45,
        "difference": 0.0,
        "low": 0.0,
        "high": 0.0,
        "clearly_worse": False,
    }
    tried = {"nll": 0.43, "difference": -0.02, "low": -0.03, "high": -0.01}
    choice = {
        "kept": "last-layer",
        "rows": 1200,
        "folds": 5,
        "candidates": [
            {**candidate, "name": "temperature", "label": "Temperature scaling"},
            {**candidate, **tried, "name": "last-layer", "label": "Last layer"},
        ],
        "left_out": [{"name": "x", "label": "All layers", "reason": HOSTILE}],
        "verdict": "Last layer: NLL 0.020 below temperature scaling.",
    }
    text = render(with_results(make_record(), choice=choice))
    page = Page(text)
    assert page.sections == OLD | {"choice"}
    assert "Last layer: NLL 0.020 below temperature scaling." in text
    assert "1,200 held-out rows" in text
    assert page.numbers["last-layer", "choice.difference"] == "-0.02"
    assert page.numbers["last-layer", "choice.difference.low"] == "-0.03"
    assert ("temperature", "choice.difference") not in page.numbers
    assert "Not tried: All layers" in text
    assert "img" not in page.tags


def test_labels_are_called_labels() -> None:
    row = {"row": 1, "label": [], "answer": ["rain", "wind"], "confidence": 0.4}
    text = render(make_decided(multilabel=True, least_certain=[row], strangest=[]))
    assert "Label by label" in text
    assert "yes or no answers" in text
    assert ">rain, wind</td>" in text
    assert ">none</td>" in text


def test_many_classes_are_said_to_be_left_out() -> None:
    assert "1,234 smaller classes are not shown" in render(
        make_decided(classes_left_out=1234)
    )


def test_a_baseline_that_was_kept_has_one_row() -> None:
    record = make_decided()
    baseline = fields.find_method(record, "temperature")
    assert baseline is not None
    point = {**baseline, "name": "point", "label": "Kept temperature scaling"}
    point["relative_seconds"] = 1.67
    first = fields.find_method(record, "map")
    methods = [first, baseline, point]
    kept = replace(
        record, results={**record.results, "methods": methods, "primary": "point"}
    )
    assert [(row.name, row.label) for row in score_rows(kept)] == [
        ("map", "MAP"),
        ("temperature", "Temperature scaling (kept)"),
    ]
    for part in ("reliability", "risk_coverage"):
        assert "point" not in fields.collect_part(kept, part)
    assert "Temperature scaling (kept)" in render(kept)
    cost = next(line for line in verdict(kept) if line.startswith("Cost"))
    assert "a plain forward pass" in cost
    assert "1.67" not in cost
    # One that was calibrated on other rows is no longer the baseline.
    scores = {**point["scores"], "nll": {"value": 0.9}}
    methods = [first, baseline, {**point, "scores": scores}]
    other = replace(kept, results={**kept.results, "methods": methods})
    assert [row.name for row in score_rows(other)] == ["map", "temperature", "point"]
