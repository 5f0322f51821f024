"""The page of a ramping study holds every number of its record."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from smidgen.report import render, score_rows, verdict
from smidgen.report.drawing.axes import BETWEEN, move_apart
from smidgen.report.ramp.figures import collect_lines, score_limits
from smidgen.report.ramp.layers import locate_layers
from smidgen.runtime.record import Record
from tests.support.ramp_record import BEST, LABELS, SECONDS, make_ramp_record
from tests.support.report_page import Page
from tests.support.report_record import difference

SECTIONS = {
    "scores",
    "ramp",
    "allocation",
    "norms",
    "reliability",
    "risk-coverage",
    "ramp-numbers",
    "measured",
}


@pytest.fixture(scope="module")
def record() -> Record:
    return make_ramp_record()


@pytest.fixture(scope="module")
def page(record: Record) -> Page:
    return Page(render(record))


def test_every_number_of_the_study_is_on_the_page(record: Record, page: Page) -> None:
    expected: dict[tuple[str, str], float] = {}
    for method in record.results["methods"]:
        for score, one in method["scores"].items():
            expected[method["name"], score] = one["value"]
            expected[method["name"], f"{score}.low"] = one["low"]
            expected[method["name"], f"{score}.high"] = one["high"]
            if "floor" in one:
                expected[method["name"], f"{score}.floor"] = one["floor"]
        for score in ("floats", "precision", "body_precision", "temperature", "level", "weights",
                      "fraction", "validation_nll"):  # fmt: skip
            if score in method:
                expected[method["name"], score] = method[score]
        expected[method["name"], "risk_coverage.area"] = method["risk_coverage"]["area"]
    ramp = record.results["ramp"]
    for i, point in enumerate(ramp["points"]):
        for score in ("level", "floats", "weights", "fraction", "precision",
                      "temperature", "nll", "ece", "ece_floor"):  # fmt: skip
            expected[point["scheme"], f"points.{i}.{score}"] = point[score]
        if "body_precision" in point:
            place = f"points.{i}.body_precision"
            expected[point["scheme"], place] = point["body_precision"]
    for key in ("map", "temperature"):
        for score, value in ramp[key].items():
            expected[key, f"validation.{score}"] = value
    for percent, name in ramp["points"][ramp["chosen"]["best-budget"]]["shares"]:
        expected[name, "percent"] = percent
    for entry in record.results["norms"]:
        expected[entry["name"], "norm"] = entry["norm"]
    for phase, seconds in SECONDS.items():
        expected["seconds", phase] = seconds
    assert page.numbers == {place: repr(value) for place, value in expected.items()}


def test_the_page_has_every_section_and_loads_nothing(record: Record, page: Page) -> None:
    text = render(record)
    assert page.sections == SECTIONS
    assert json.loads(page.texts["script"]) == json.loads(record.to_json())
    assert not page.values("src")
    assert "http" not in text
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    targets = [target[1:] for target in page.values("href")]
    targets += re.findall(r"url\(#([^)]*)\)", text)
    assert set(targets) <= set(ids)


@pytest.mark.parametrize(
    ("part", "section"),
    [
        ("norms", {"norms", "allocation"}),
        ("methods", {"scores", "reliability", "risk-coverage"}),
    ],
)
def test_missing_parts_are_left_out(part: str, section: set[str]) -> None:
    page = Page(render(make_ramp_record(**{part: None})))
    assert page.sections == SECTIONS - section


def only(record: Record, *schemes: str) -> Record:
    ramp = record.results["ramp"]
    points = [point for point in ramp["points"] if point["scheme"] in schemes]
    chosen = {}
    for scheme in schemes:
        found = ramp["points"][ramp["chosen"][scheme]]
        chosen[scheme] = points.index(found)
    methods = [
        method
        for method in record.results["methods"]
        if method["name"] in ("map", "temperature", *schemes)
    ]
    few = {**ramp, "points": points, "chosen": chosen, "best": schemes[0]}
    return make_ramp_record(ramp=few, methods=methods)


def test_few_schemes_make_a_page_without_what_they_lack(record: Record) -> None:
    text = render(only(record, "sparse-kfac"))
    assert "Max against min norm" not in text
    assert "Random modules" not in text
    assert Page(text).sections == SECTIONS - {"allocation"}
    assert Page(render(only(record, "last-layer"))).sections == SECTIONS - {"allocation"}
    assert "Max against min norm" in render(only(record, "min-mlp"))


def test_the_verdict_is_about_what_validation_chose(record: Record) -> None:
    first, second, cost = verdict(record)
    assert f"the NLL of {LABELS[BEST]} is clearly lower, but no more than" in first
    assert "temperature scaling is enough" in second
    assert "of the weights stochastic" in cost
    assert "All layers: " in cost
    gap = difference("random", "temperature", "nll", -0.02, 0.01)
    changed = [d for d in record.results["differences"] if d["method"] != "random"]
    line = verdict(make_ramp_record(differences=[*changed, gap]))[1]
    assert "cannot be told apart for the scheme that validation data chose" in line
    assert "each taken by itself: Random modules." in line
    assert "enough" not in line


def test_best_is_marked_only_where_it_is_clear(record: Record) -> None:
    assert not any(cell.best for row in score_rows(record) for cell in row.cells)
    gap = difference("sparse-kfac", "temperature", "nll", -0.02, 0.01)
    rows = score_rows(make_ramp_record(differences=[gap]))
    marked = [row.name for row in rows for cell in row.cells if cell.best]
    assert marked == ["sparse-kfac"]


def test_rows_say_size_and_edge(record: Record) -> None:
    rows = {row.name: row for row in score_rows(record)}
    assert rows["map"].size == ""
    assert rows["full"].at_edge
    assert rows["full"].size == "38 layers"
    level = rows["sparse-kfac"].settings[0]
    assert level.score == "level"
    assert level.text.endswith("% of rows and columns")
    assert rows["best-budget"].settings[0].text == "at most 30,000 floats"


def test_what_stores_nothing_is_drawn_by_weights_beside_sparse_kfac(record: Record) -> None:
    text = render(record)
    assert "With curvature and without" in text
    assert text.count("against weights stochastic") == 2
    by_weights = {
        x.scheme: x for x in collect_lines(record.results["ramp"], "nll", "weights")
    }
    assert by_weights["isotropic"].sizes == by_weights["sparse-kfac"].sizes
    by_floats = {x.scheme: x for x in collect_lines(record.results["ramp"], "nll")}
    assert set(by_floats["isotropic"].sizes) == {0}
    rows = {row.name: row for row in score_rows(record)}
    assert rows["isotropic"].settings[0].text.endswith("% of rows and columns")
    assert rows["isotropic"].size.endswith("%")
    assert rows["head-isotropic"].settings[2].text == "31,600"
    assert "τ of the body" in text
    assert "body 31,600" in text
    alone = render(only(record, "isotropic"))
    assert "against floats stored" not in alone
    assert "Last layer | isotropic body" not in alone


def test_a_study_without_such_schemes_says_nothing_of_curvature(record: Record) -> None:
    text = render(only(record, "sparse-kfac", "random"))
    assert "With curvature and without" not in text


def test_random_modules_are_a_mean_within_a_band(record: Record) -> None:
    ramp = record.results["ramp"]
    drawn = {line.scheme: line for line in collect_lines(ramp, "nll")}
    line = drawn["random"]
    own = [p for p in ramp["points"] if p["scheme"] == "random" and p["level"] == 1]
    assert line.low[0] == min(p["nll"] for p in own)
    assert line.high[0] == max(p["nll"] for p in own)
    assert line.low[0] < line.value[0] < line.high[0]
    assert drawn["sparse-kfac"].low == drawn["sparse-kfac"].high
    assert list(line.sizes) == sorted(line.sizes)


def test_levels_far_away_do_not_flatten_the_curves(record: Record) -> None:
    drawn = collect_lines(record.results["ramp"], "nll")
    low, high = score_limits(drawn, {"map": 0.5804, "temperature": 0.4526})
    assert low < 0.4501
    assert 0.4526 < high < 0.46


@pytest.mark.parametrize(
    "wanted", [[50.0] * 6, [0.0, 0.0, 99.0, 100.0, 100.0], [10.0, 50.0, 90.0], []]
)
def test_names_are_moved_apart_within_the_axes(wanted: list[float]) -> None:
    found = move_apart(wanted, 0.0, 100.0)
    assert all(b - a >= BETWEEN - 1e-9 for a, b in pairwise(found))
    assert all(-1e-9 <= height <= 100 + 1e-9 for height in found)
    if wanted == [10.0, 50.0, 90.0]:
        assert found == wanted


def test_maps_have_short_kinds_of_their_own() -> None:
    names = [
        "bert.encoder.layer.3.attention.self.query",
        "bert.encoder.layer.3.attention.output.dense",
        "bert.encoder.layer.3.output.dense",
        "bert.encoder.layer.10.output.dense",
        "bert.pooler.dense",
        "classifier",
    ]
    found = locate_layers(names)
    kinds = [found[name].kind for name in names]
    assert kinds == [
        "query",
        "attention.output",
        "output",
        "output",
        "pooler",
        "classifier",
    ]
    assert [found[name].depth for name in names] == [3, 3, 3, 10, None, None]
    plain = locate_layers(["0", "2"])
    assert {(place.kind, place.depth) for place in plain.values()} == {
        ("layers", 0),
        ("layers", 2),
    }
    experts = [f"l.{i}.experts.{j}.fc" for i in range(2) for j in range(2)]
    assert len(set(locate_layers(experts).values())) == 4


def test_norms_of_many_kinds_are_drawn_by_place(record: Record) -> None:
    names = [f"stage{i}.block{j}" for i in range(4) for j in range(4)]
    norms = [{"name": name, "group": "mlp", "norm": 1.5} for name in names]
    assert "by place in the model" in render(make_ramp_record(norms=norms))


def test_hostile_names_stay_text(record: Record) -> None:
    hostile = "</script><img src=x onerror=alert(2)>$\\frac{ & 数\x01"
    norms = [{"name": hostile, "group": "mlp", "norm": 2.0}]
    methods = [{**m, "label": hostile} for m in record.results["methods"]]
    changed = replace(
        make_ramp_record(norms=norms, methods=methods, seconds={hostile: 1.0}),
        config={"title": hostile, "most_stochastic": 0.1},
    )
    page = Page(render(changed))
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert not page.values("onerror")


def test_an_old_record_without_a_best_scheme_still_has_a_verdict(record: Record) -> None:
    ramp: dict[str, Any] = dict(record.results["ramp"])
    del ramp["best"]
    assert "Sparse-KFAC" in verdict(make_ramp_record(ramp=ramp))[0]


def test_a_ramp_record_survives_its_file(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "record.json")
    assert render(Record.load(tmp_path / "record.json")) == render(record)
