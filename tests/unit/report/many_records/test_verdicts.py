"""Verdicts: corrected for being many, with the error of test rows, and equal is not unknown."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from smidgen.report import fields, render_many
from smidgen.report.many_records.aggregate import gather
from smidgen.report.many_records.findings import findings
from smidgen.report.many_records.verdicts import (
    Contrast,
    adjust_by_holm,
    find_clear_best,
    judge,
)
from smidgen.report.wording import ALIKE, EQUAL, HIGHER, LOWER
from tests.support.study_records import record


def method(name, nll, losses=None):
    held = {} if losses is None else {"losses": [float(loss) for loss in losses]}
    return {"name": name, "label": name, "scores": {"nll": {"value": float(nll)}}, **held}


def table(*seeds, data="X"):
    """Records of one data set: of each seed the methods, by name NLL or losses."""
    return gather(
        record(
            data,
            seed,
            "c",
            {
                "methods": [
                    method(name, np.mean(value), value if np.ndim(value) else None)
                    for name, value in methods.items()
                ]
            },
        )
        for seed, methods in enumerate(seeds)
    )


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1, never falling.
    assert adjust_by_holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx(
        [0.06, 0.04, 0.06, 0.06]
    )
    assert adjust_by_holm([0.9, 0.8]) == [1.0, 1.0]
    assert adjust_by_holm([]) == []


def test_the_chance_of_a_difference_is_that_of_students_test():
    gaps = [0.3, 0.1, 0.25, 0.4]
    found = table(*({"map": 1.0, "swag": 1.0 + gap} for gap in gaps))
    assert found.difference("swag", "map", "nll").chance == pytest.approx(
        ttest_1samp(gaps, 0).pvalue
    )


def test_of_many_methods_without_a_difference_hardly_ever_one_is_clear():
    generator = np.random.default_rng(0)
    names = [f"m{i}" for i in range(20)]
    wrong = alone = 0
    for _ in range(100):
        seeds = [
            {"map": 0.0, **{name: 0.3 * generator.normal() for name in names}}
            for _ in range(5)
        ]
        verdicts = judge(table(*seeds), "map")
        sides = [verdicts.side(Contrast(name, "map")) for name in names]
        wrong += any(side in (LOWER, HIGHER) for side in sides)
        gaps = [verdicts.gap(Contrast(name, "map")) for name in names]
        alone += any(gap.below_zero or gap.above_zero for gap in gaps)
    # 5 of 100 are expected, and up to 11 are within chance; without a correction about 60.
    assert wrong <= 11
    assert alone > 40


def test_what_other_test_rows_would_change_is_in_the_interval():
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(2, 50))
    seeds = [
        {"map": rows[0] + 0.001 * seed, "swag": rows[1] - 0.3 + 0.002 * seed}
        for seed in range(4)
    ]
    with_rows = table(*seeds).difference("swag", "map", "nll")
    means = [{name: losses.mean() for name, losses in each.items()} for each in seeds]
    of_seeds = table(*means).difference("swag", "map", "nll")
    assert of_seeds.value == pytest.approx(with_rows.value)
    assert of_seeds.error < 0.01
    gap = rows[1] - rows[0]
    expected = (of_seeds.error**2 + gap.var(ddof=1) / 50) ** 0.5
    assert with_rows.error == pytest.approx(expected, rel=1e-3)
    # Nearly all of the error is the rows', of which there are many: Student's is the normal.
    assert with_rows.high - with_rows.value == pytest.approx(1.96 * expected, rel=0.01)


def test_the_interval_covers_the_difference_that_other_rows_and_seeds_would_give():
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        of_rows = 0.4 * generator.normal(size=60)
        seeds = [
            {"map": np.zeros(60), "swag": 0.1 + of_rows + 0.03 * generator.normal()}
            for _ in range(4)
        ]
        gap = table(*seeds).difference("swag", "map", "nll")
        hits += gap.low < 0.1 < gap.high
    assert hits >= 180


def test_splits_have_rows_of_their_own():
    generator = np.random.default_rng(3)
    seeds = [
        {"map": generator.normal(size=20), "swag": generator.normal(size=20)}
        for _ in range(3)
    ]
    found = table(*seeds)
    splits = gather(found.records, test_to_train=0.1)
    plain = [each["swag"].mean() - each["map"].mean() for each in seeds]
    expected = np.std(plain, ddof=1) * (1 / 3 + 0.1) ** 0.5
    assert splits.difference("swag", "map", "nll").error == pytest.approx(expected)


def test_equal_within_a_margin_is_not_unknown():
    seeds = [
        {"map": 1.0, "near": 1.0 + near, "far": 1.0 + far}
        for near, far in zip((0.002, -0.001, 0.001), (0.2, -0.3, 0.1), strict=True)
    ]
    verdicts = judge(table(*seeds), "map")
    assert verdicts.side(Contrast("near", "map")) == EQUAL
    assert verdicts.side(Contrast("far", "map")) == ALIKE
    text = " ".join(findings(table(*seeds), "map"))
    assert "1 is equal within the margin: “near”; 1 cannot be told apart." in text
    assert "“Equal within the margin” is a whole interval within ±0.01 of NLL" in text


def test_data_sets_are_a_family_of_their_own():
    seeds = [{"map": 1.0, "swag": 0.9 + 0.001 * seed, "full": 1.1} for seed in range(3)]
    several = gather([*table(*seeds).records, *table(*seeds, data="Y").records])
    verdicts = judge(several, "map", [("swag", "full")])
    # Three pairs over all data, and three on each of two data sets.
    assert verdicts.families == {"of NLL": 3, "of NLL on single data sets": 6}
    assert verdicts.side(Contrast("swag", "full", data="Y")) == LOWER
    assert find_clear_best(several, "Y", "map", verdicts) == "swag"
    assert judge(table(*seeds), "map").families == {"of NLL": 2}


def test_the_page_says_which_results_lack_their_rows():
    seeds = [{"map": 1.0, "swag": 0.9 + 0.001 * seed} for seed in range(3)]
    assert "6 of the methods' results are older" in render_many(table(*seeds).records)
    full = [{name: np.full(4, nll) for name, nll in each.items()} for each in seeds]
    assert "results are older" not in render_many(table(*full).records)


def test_calibration_is_corrected_as_a_family():
    curve = {"confidence": [0.7], "accuracy": [0.6], "count": [100]}
    records = [
        record(
            "X",
            seed,
            "c",
            {
                "methods": [
                    {**method("map", 1.0), "reliability": curve},
                    {
                        **method("swag", 1.0 + seed),
                        "reliability": {**curve, "accuracy": [0.7]},
                    },
                ]
            },
        )
        for seed in range(3)
    ]
    verdicts = judge(gather(records), "map")
    assert verdicts.side(Contrast("swag", "map", fields.SQUARED_CALIBRATION)) == LOWER
    assert verdicts.families == {"of NLL": 1, "of calibration": 1}
