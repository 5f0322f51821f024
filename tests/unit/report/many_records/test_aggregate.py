"""Many records side by side: means, intervals, paired differences and what they say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from statistics import fmean, variance

import pytest
import torch
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from smidgen import evaluate
from smidgen.cli import main
from smidgen.errors import DataError
from smidgen.report import About, fields, render_many
from smidgen.report.many_records.aggregate import average_groups, average_seeds, gather
from smidgen.report.many_records.figures import draw_intervals, join_ramps
from smidgen.report.many_records.findings import findings
from smidgen.report.many_records.verdicts import find_clear_best, judge
from smidgen.report.names import assign_styles
from smidgen.report.ramp.figures import collect_lines
from smidgen.runtime.record import Record
from tests.support.ramp_record import make_ramp_record
from tests.support.study_records import (
    DATA,
    SEEDS,
    make_level_records,
    make_study_records,
    record,
)
from tests.support.tolerances import EXACT


def scores(records, data, name, score="nll"):
    """The plain way: read every record for one number of each seed."""
    found = {}
    for each in records:
        for one in each.results["methods"]:
            if each.config["data"]["name"] == data and one["name"] == name:
                found[each.seed] = one["scores"][score]["value"]
    return [found[seed] for seed in sorted(found)]


def test_means_and_intervals_are_students_over_seeds():
    records = make_study_records()
    across = gather(records)
    for data in DATA:
        for name in ("map", "sparse-kfac"):
            values = scores(records, data, name)
            assert len(values) == len(SEEDS)
            found = across.mean(data, name, "nll")
            low, high = ttest_1samp(values, 0).confidence_interval(0.95)
            assert found.value == pytest.approx(fmean(values), rel=EXACT["rtol"])
            assert (found.low, found.high) == pytest.approx((low, high), rel=EXACT["rtol"])


def test_differences_are_of_the_same_seed():
    records = make_study_records()
    across = gather(records)
    data = DATA[0]
    ours, theirs = (scores(records, data, n) for n in ("sparse-kfac", "temperature"))
    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    found = across.difference("sparse-kfac", "temperature", "nll", data)
    low, high = ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert found.value == pytest.approx(fmean(gaps), rel=EXACT["rtol"])
    assert (found.low, found.high) == pytest.approx((low, high), rel=EXACT["rtol"])
    # Seeds differ by more than the methods do: unpaired intervals would overlap.
    assert found.below_zero
    assert (
        find_clear_best(across, data, "temperature", judge(across, "temperature"))
        == "sparse-kfac"
    )


def test_data_sets_count_alike_and_their_seeds_vary_within_them():
    steady, wide = [-0.1, -0.1, -0.1, -0.1], [-2.0, 1.0]
    found = average_groups([steady, wide])
    assert found.value == pytest.approx((-0.1 - 0.5) / 2)
    # All variance is of the second, with one degree of freedom: s²/n = 4.5/2, halved twice.
    half = student.ppf(0.975, 1) * (4.5 / 2 / 4) ** 0.5
    assert found.high == pytest.approx(found.value + half)
    assert average_groups([steady, [1.0]]).low is None
    assert average_groups([wide]) == average_seeds(wide)


def test_splits_of_the_same_rows_have_wider_intervals():
    values, ratio = [0.1, 0.3, 0.2, 0.5], 1 / 9
    found = average_seeds(values, ratio)
    half = student.ppf(0.975, 3) * (variance(values) * (1 / 4 + ratio)) ** 0.5
    assert found.high == pytest.approx(fmean(values) + half)
    records = make_level_records()
    plain_gap, wider = (
        gather(records, each).difference("laplace-magnitude", "map", "nll")
        for each in (0.0, ratio)
    )
    noted = [
        replace(each, config={**each.config, "test_to_train": ratio}) for each in records
    ]
    assert gather(noted).difference("laplace-magnitude", "map", "nll") == wider
    assert wider.value == plain_gap.value
    count = len(SEEDS)
    assert wider.error / plain_gap.error == pytest.approx((1 + count * ratio) ** 0.5)


def test_a_data_set_of_one_seed_takes_no_interval_from_the_others():
    gaps = {"many": (-0.3, -0.31, -0.29), "single": (5.0,)}
    records = [
        record(data, seed, "c", {"methods": [plain("dense", gap), plain("dense-vi", 0.0)]})
        for data, own in gaps.items()
        for seed, gap in enumerate(own)
    ]
    across = gather(records)
    found = across.difference("dense", "dense-vi", "nll")
    assert (found.count, found.value) == (3, pytest.approx(-0.3))
    (line,) = (each for each in findings(across, "dense-vi") if "Over many" in each)
    assert line.startswith(
        "Over many, which has enough seeds, 1 of 1 method has a clearly lower"
    )


def test_words_agree_with_their_numbers():
    gaps = {"one": (-0.3, -0.31, -0.29), "two": (-0.3, -0.31, -0.29), "single": (5.0,)}
    others = {"dense": 1, "sparse": -1, "constant": -2}
    records = [
        record(data, seed, "c", {"methods": [plain("map", 0.0), *methods]})
        for data, own in gaps.items()
        for seed, gap in enumerate(own)
        for methods in [[plain(name, side * gap) for name, side in others.items()]]
    ]
    text = " ".join(findings(gather(records), "map"))
    opening = (
        "Over one, two, which have enough seeds, 1 of 3 methods has a clearly lower NLL"
    )
    assert f"{opening} than “map”: “dense”; 2 have a clearly higher one: " in text
    assert (
        "“constant”, “sparse”; 0 are equal within the margin; 0 cannot be told apart."
        in text
    )


def test_a_mean_over_fewer_seeds_is_not_the_lowest():
    records = [
        record("X", seed, name, {"methods": [plain(name, value)]})
        for name, own in {"map": (1.0, 3.0), "swag": (1.1,), "constant": (1.2, 3.3)}.items()
        for seed, value in enumerate(own)
    ]
    across = gather(records)
    assert across.lowest("X") == "map"
    # SWAG's only seed is the easy one: below the constant there, if not below its mean.
    assert not any("a higher one" in line for line in findings(across, "map"))
    assert "<small>1 of 2 seeds</small>" in render_many(records)


def test_sizes_are_shown_from_the_smallest_to_the_largest():
    records = [
        record("X", seed, "a", {"methods": [{**plain("full", 1.0), "floats": floats}]})
        for seed, floats in enumerate((4567, 384798))
    ]
    assert "4,567 – 384,798" in render_many(records)


def test_precisions_at_an_end_are_said_and_marked():
    records = [
        record("X", seed, "a", {"methods": [{**plain("full", 1.0), **told}]})
        for seed, told in enumerate({"precision_at_edge": at} for at in (True, False))
    ]
    text = " ".join(findings(gather(records), "full"))
    assert "1 of 2 posteriors has a precision at an end of its grid (X 1)" in text
    assert "full&nbsp;†" in render_many(records)


def test_rates_at_an_end_are_said_where_a_study_leaves_them_to_their_default():
    own = {"learning_rate": 0.001, "rates": [0.001, 0.01]}
    found = record("X", 0, "a", {"methods": [{**plain("swag", 1.0), **own}]})
    text = " ".join(findings(gather([found]), "swag"))
    assert "Of 1 run of SWAG, 1 took the lowest rate" in text


def test_warnings_of_records_are_listed_and_counted():
    told = [["SGD left"], ["SGD left", "a <map> mixes"], []]
    records = [
        record("X", seed, "a", {"methods": [plain("swag", 1.0)], "notes": notes})
        for seed, notes in enumerate(told)
    ]
    text = re.sub(r"\s+", " ", render_many(records))
    assert "2 ×&#8239;: SGD left</li> <li>1 ×&#8239;: a &lt;map&gt; mixes</li>" in text
    assert 'id="notes"' not in render_many(records[2:])


def test_extreme_temperatures_are_said():
    records = [
        record("X", seed, "a", {"methods": [{**plain("full", 1.0), "temperature": scale}]})
        for seed, scale in enumerate((0.03, 0.5, 9.9))
    ]
    text = " ".join(findings(gather(records), "full"))
    assert "more than tenfold from one for “full” on X (seed 0: 0.0300):" in text


def test_rates_at_an_end_are_said():
    records = [
        Record(
            "cell",
            {"data": {"name": "X"}, "settings": {"rates": [0.001, 0.01, 0.1]}},
            {"methods": [{**plain("swag", 1.0), "learning_rate": rate}]},
            seed=seed,
        )
        for seed, rate in enumerate((0.001, 0.01, 0.1, 0.1))
    ]
    text = " ".join(findings(gather(records), "swag"))
    assert "Of 4 runs of SWAG, 1 took the lowest rate that was tried and 2 the" in text


def test_a_mean_curve_has_every_seed_at_every_budget():
    def ramp(points, temperature):
        return {
            "points": [
                {"scheme": "best-budget", "level": b, "floats": b, "nll": v, "ece": v}
                for b, v in points
            ],
            "chosen": {},
            "map": {"nll": 1.0, "ece": 1.0},
            "temperature": {"nll": temperature, "ece": temperature},
        }

    joined = join_ramps([ramp([(10, 1.0), (20, 0.8)], 0.5), ramp([(10, 3.0)], 2.0)])
    (line,) = collect_lines(joined, "nll")
    # The second seed has nothing to buy for twenty, and stays where it was.
    assert line.value == pytest.approx((0.75, 0.65))
    assert joined["temperature"]["nll"] == 0.0
    assert joined["map"]["nll"] == pytest.approx(-0.25)
    same = join_ramps([ramp([(4, 1.0)], 0.0), ramp([(6, 2.0)], 0.0)])
    assert collect_lines(same, "nll")[0].value == pytest.approx((1.5,))


def test_ramps_without_curvature_are_drawn_by_weights():
    records = [
        replace(make_ramp_record(), seed=seed, config={"data": {"name": "X"}})
        for seed in range(2)
    ]
    text = render_many(records)
    assert "With curvature and without" in text
    # Two figures each, and a heading.
    assert text.count("against weights stochastic") == 3
    assert text.count("against floats stored") == 2 * 3


def test_one_seed_claims_nothing():
    records = [
        each
        for each in make_study_records()
        if each.seed == 0 and each.config["data"]["name"] == DATA[0]
    ]
    across = gather(records)
    assert average_seeds([1.0]).low is None
    assert (
        find_clear_best(across, DATA[0], "temperature", judge(across, "temperature"))
        is None
    )
    text = " ".join(findings(across, "temperature"))
    assert "one pair allows no verdict" in text
    assert "clearly" not in text


def test_a_lead_that_may_be_chance_is_not_marked():
    values = {"temperature": [0.5, 0.6, 0.7], "sparse-kfac": [0.49, 0.61, 0.66]}
    records = [
        record("X", seed, name, {"methods": [plain(name, value)]})
        for name, own in values.items()
        for seed, value in enumerate(own)
    ]
    across = gather(records)
    assert across.lowest("X") == "sparse-kfac"
    assert find_clear_best(across, "X", "temperature", judge(across, "temperature")) is None
    assert "No NLL is marked" in render_many(records)


def test_data_of_one_name_drawn_otherwise_are_not_paired():
    small, large = (
        Record("cell", {"data": {"name": "X", "train_size": size}}, results, seed=0)
        for size, results in (
            (10, {"methods": [plain("map", 1.0)]}),
            (20, {"methods": [plain("temperature", 0.5)]}),
        )
    )
    across = gather([small, large])
    assert across.data == ["X", "X (2)"]
    assert across.difference("temperature", "map", "nll") is None
    assert across.records_of("X (2)") == [large]


def test_regressions_have_a_median_beside_the_mean():
    records = [
        record(
            "X",
            seed,
            "a",
            {
                "methods": [
                    {
                        **plain("map", v),
                        "scores": {"nll": {"value": v}, "rmse": {"value": 1.0}},
                    }
                ]
            },
        )
        for seed, v in enumerate((0.4, 7.0, 0.6))
    ]
    across = gather(records)
    assert across.median("X", "map", "nll") == 0.6
    assert re.search(r'data-score="nll.median"[^>]*>0.6000<', render_many(records))
    classes = [record("X", 0, "a", {"methods": [plain("map", 0.4)]})]
    assert "nll.median" not in render_many(classes)


def test_two_seeds_have_a_standard_error_and_three_an_interval():
    records = [
        record("X", seed, "a", {"methods": [plain("map", value)]})
        for seed, value in enumerate((0.4, 0.8, 0.6))
    ]
    two, three = render_many(records[:2]), render_many(records)
    assert re.search(r'± <[^>]*data-score="nll.error" data-value="0.2">0.2000<', two)
    assert "standard errors over them" in two
    assert "± +" not in two
    assert "nll.low" not in two
    assert "nll.error" not in three
    assert "nll.low" in three


def test_one_method_scored_by_two_studies_is_refused():
    first, same, other = (
        record("X", 0, cell, {"methods": [plain("map", value)]})
        for cell, value in (("a", 1.0), ("b", 1.0 + 1e-9), ("c", 1.1))
    )
    assert gather([first, same]).value(("X", 0), "map", "nll") == 1.0
    with pytest.raises(DataError, match=r"Got 1 and 1\.1 for the nll of 'map'"):
        gather([first, other])


def plain(name, value):
    return {"name": name, "label": name, "scores": {"nll": {"value": value}}}


def test_ranks_are_means_over_data_and_seeds():
    ranks = gather(make_study_records()).ranks("nll")
    assert ranks["sparse-kfac"] == 1
    assert ranks["constant"] == len(ranks)


def test_findings_are_of_the_numbers():
    across = gather(make_study_records())
    lines = findings(across, "temperature")
    assert any(line.startswith("SST-2: the lowest mean NLL is") for line in lines)
    assert any(
        "“Sparse kfac” has a clearly lower NLL than “Ensemble" in line for line in lines
    )
    levels = findings(gather(make_level_records()), "map")
    assert any(
        "“Laplace magnitude” has a clearly lower NLL than" in line for line in levels
    )


def test_a_mean_that_one_data_set_makes_is_said_to_be_so():
    gaps = {"one": (-2.0, -2.1, -1.9), "other": (0.3, -0.3, 0.01)}
    records = [
        record(
            data, seed, "c", {"methods": [plain("sparse-kfac", gap), plain("full", 0.0)]}
        )
        for data, own in gaps.items()
        for seed, gap in enumerate(own)
    ]
    lines = findings(gather(records), "full")
    (line,) = (each for each in lines if each.startswith("“sparse-kfac” "))
    assert "has a clearly lower NLL than “full”" in line
    assert line.endswith("Data set by data set: clearly lower on one.")


@pytest.mark.parametrize(
    ("side", "words"),
    [
        (1, "“sparse-kfac” has a clearly higher NLL than “full”"),
        (-1, "“sparse-kfac” has a clearly lower NLL than “full”"),
        (0, "“sparse-kfac” cannot be told apart in NLL from “full”"),
    ],
)
def test_findings_say_both_directions_in_the_same_words(side, words):
    values = [side + noise for noise in (-0.1, 0.02, 0.09)]
    records = [
        record("X", seed, "c", {"methods": [plain("sparse-kfac", v), plain("full", 0.0)]})
        for seed, v in enumerate(values)
    ]
    lines = findings(gather(records), "full")
    assert any(line.startswith(words) for line in lines)
    lowest = {
        1: "NLL is 0.0000, of “full”, the baseline itself",
        -1: "of “sparse-kfac”, clearly lower than that of “full”",
        0: "of “full”, the baseline itself",
    }[side]
    assert lowest in lines[0]
    middle = findings(gather(records), "sparse-kfac")[0]
    if side == 0:
        assert "of “full”, which cannot be told apart from that of “sparse-kfac”" in middle


def made(confidence, accuracy, count):
    curve = {"confidence": confidence, "accuracy": accuracy, "count": count}
    ece = {"ece_equal_mass": {"value": 0.05}, "nll": {"value": 0.5}}
    return {"name": "full", "label": "full", "scores": ece, "reliability": curve}


def test_an_older_record_has_the_floor_of_its_bins():
    """Ten bins of a curve come within a few percent of the twenty of the error."""
    generator = torch.Generator().manual_seed(0)
    for n in (277, 2000):
        confidence = 0.5 + 0.5 * torch.rand(n, generator=generator).double().sqrt()
        correct = (torch.rand(n, generator=generator) < confidence).double()
        curve = evaluate.reliability_curve(confidence, correct, bins=10)
        method = made(**curve.to_dict())
        assert fields.read_floor(method, "ece_equal_mass") == pytest.approx(
            evaluate.calibration_floor(confidence), rel=0.03
        )
        # Of bins of equal width nothing is known, and a record's own floor comes first.
        assert fields.read_floor(method, "ece_equal_width") is None
        method["scores"]["ece_equal_mass"]["floor"] = 0.5
        assert fields.read_floor(method, "ece_equal_mass") == 0.5
        squared = evaluate.squared_calibration_error(confidence, correct, bins=10).value
        assert fields.read_squared_calibration(method) == pytest.approx(squared, abs=3e-4)


def test_calibration_is_compared_without_what_chance_adds():
    """A calibrated method against one that is off by 0.1, on few rows: no bias."""
    generator = torch.Generator().manual_seed(1)
    records = []
    for seed in range(200):
        confidence = 0.6 + 0.3 * torch.rand(200, generator=generator).double()
        right = torch.rand(200, generator=generator).double() < confidence
        curves = [
            evaluate.reliability_curve(said, right.double(), bins=10).to_dict()
            for said in (confidence, confidence + 0.1)
        ]
        methods = [
            {**made(**curve), "name": name, "label": name}
            for name, curve in zip(("full", "map"), curves, strict=True)
        ]
        records.append(record("X", seed, "c", {"methods": methods}))
    across = gather(records)
    gap = across.difference("map", "full", "squared_calibration")
    assert gap.low < 0.1**2 < gap.high
    assert gap.value == pytest.approx(0.1**2, abs=0.002)
    assert across.mean("X", "full", "squared_calibration").value == pytest.approx(
        0, abs=1e-3
    )
    lines = findings(across, "full")
    assert any("clearly higher one: “map”" in line for line in lines)
    page = render_many(records[:3])
    assert "by chance <span" in page
    assert "squared calibration error" in page


def test_the_page_shows_published_figures_as_such():
    paper = {
        "label": "paper, DistilBERT",
        "note": "a note",
        "values": {"sparse-kfac": {"SST-2": {"nll": 0.28, "ece": 0.04}}},
    }
    page = render_many(make_study_records(), About(paper=paper))
    found = re.findall(r'data-score="paper\.(\w+)" data-value="([\d.]+)"', page)
    assert found == [("nll", "0.28"), ("ece_equal_width", "0.04")]
    assert "ECE, equal widths" in page
    assert "ECE, equal widths" not in render_many(make_study_records())
    assert "paper, DistilBERT: a note" in page


def test_thirty_methods_of_a_study_of_ones_own_all_look_different():
    names = [f"mine-{i}" for i in range(30)]
    given = assign_styles(names)
    assert len({given[name] for name in names}) == 30
    known = {look for name, look in given.items() if name not in names}
    assert known.isdisjoint(given[name] for name in names)


def test_names_that_begin_alike_are_told_apart_in_the_figure():
    labels = {
        "a": "SSVI 5 %, removal by exponential",
        "b": "SSVI 5 %, removal by exponential-snr",
    }
    gaps = {name: average_seeds([0.1, 0.2, 0.3]) for name in labels}
    drawn = draw_intervals(
        gaps, labels, assign_styles(list(labels)), xlabel="NLL", name="f"
    )
    written = re.findall(r">([^<>]+)</text>", drawn)
    assert {"exponential", "exponential-snr"} <= set(written)


def test_records_without_methods_are_refused():
    for none in ([], {"laid out": "otherwise"}):
        with pytest.raises(DataError, match="at least one method.*got none in records of"):
            render_many([record("X", 0, "cell", {"methods": none})])


def test_report_takes_several_records_and_folders(tmp_path, capsys):
    for place, each in enumerate(make_study_records()):
        each.save(tmp_path / "records" / f"{place}.json")
    page = tmp_path / "page.html"
    words = ["report", str(tmp_path / "records"), "--out", str(page)]
    with pytest.raises(SystemExit) as left:
        main([*words, "--json", str(tmp_path / "found.json")])
    assert left.value.code == 0
    assert "clearly" in capsys.readouterr().out
    assert "What we found" in page.read_text()
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["findings"]) > 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as left:
        main(["report", str(tmp_path / "empty"), "--out", str(tmp_path / "other.html")])
    assert left.value.code == 1
