"""Rows are dealt out: no group on two sides, sizes near their shares, the same by a seed."""

from collections import Counter
from random import Random

import pytest

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.reading.splitting import (
    PARTS,
    choose_held_out,
    choose_shares,
    deal_rows,
    find_overlap,
    group_pairs,
    group_rows,
    name_part,
)


def test_rows_that_share_a_key_are_one_group():
    keys = [("a", "b"), ("c",), ("b", "d"), ("e",), ("d",), ("c",)]
    assert group_rows(keys) == [0, 1, 0, 3, 0, 1]


@pytest.mark.parametrize(
    ("count", "held_out"), [(80, 40), (100, 50), (200, 64), (640, 64), (5000, 500)]
)
def test_a_tenth_is_held_out_and_more_of_few(count, held_out):
    dealt = deal_rows(range(count), list(range(count)), choose_held_out(count))
    sizes = {name: len(rows) for name, rows in dealt.items()}
    half = held_out // 2
    assert sizes == {"train": count - held_out, "validation": half, "calibration": half}


def test_too_few_are_not_held_out():
    with pytest.raises(DataError, match="80 rows or more .* got 79. Add rows, or give"):
        choose_held_out(79)


def test_sizes_are_those_of_the_shares():
    shares = choose_shares(5000)
    dealt = deal_rows(range(5000), list(range(5000)), shares)
    assert {name: len(rows) for name, rows in dealt.items()} == {
        "train": 3000,
        **dict.fromkeys(PARTS[1:], 500),
    }
    assert sorted(row for rows in dealt.values() for row in rows) == list(range(5000))


@pytest.mark.parametrize("seed", range(5))
def test_no_group_is_on_two_sides_and_classes_are_even(seed):
    draw = Random(seed)
    groups = group_rows([(draw.randrange(400),) for _ in range(1000)])
    # A group is of one class, as the texts of one author may be.
    classes = [int(group % 10 == 0) for group in groups]
    dealt = deal_rows(range(1000), groups, choose_shares(1000), classes=classes, seed=seed)
    sides = [{groups[row] for row in rows} for rows in dealt.values()]
    assert sum(map(len, sides)) == len(set().union(*sides)) == len(set(groups))
    for name, rows in dealt.items():
        assert len(rows) == pytest.approx(1000 * choose_shares(1000)[name], abs=8)
        counts = Counter(classes[row] for row in rows)
        assert counts[1] == pytest.approx(sum(classes) * len(rows) / 1000, abs=8)


def test_the_seed_decides():
    groups = list(range(100))
    first, same, other = (
        deal_rows(range(100), groups, choose_shares(100), seed=seed) for seed in (0, 0, 1)
    )
    assert first == same != other


def test_some_rows_only_are_dealt_to_some_parts():
    dealt = deal_rows(range(50, 80), list(range(80)), {"validation": 1, "decision": 1})
    assert sorted(len(rows) for rows in dealt.values()) == [15, 15]
    assert min(map(min, dealt.values())) >= 50
    assert deal_rows([3, 1], [0, 1, 2, 3], {"test": 1.0}) == {"test": (1, 3)}


def test_every_class_of_a_few_rows_reaches_training():
    classes = [row // 3 for row in range(60)]
    dealt = deal_rows(range(60), list(range(60)), choose_shares(60), classes=classes)
    assert {classes[row] for row in dealt["train"]} == set(range(20))


def test_few_rows_hold_out_more():
    assert choose_shares(100)["decision"] > choose_shares(10_000)["decision"]
    for count in (0, 700, 10_000):
        assert sum(choose_shares(count).values()) == pytest.approx(1)


def test_too_few_rows_or_groups_are_refused():
    with pytest.raises(DataError, match="25 rows or more.*got 10"):
        deal_rows(range(10), list(range(10)), choose_shares(10))
    with pytest.raises(DataError, match="3 groups"):
        deal_rows(range(90), [row % 3 for row in range(90)], choose_shares(90))
    with pytest.raises(ArgumentError, match="above 0"):
        deal_rows(range(90), list(range(90)), {"train": 1, "test": 0})


def test_overlap_names_rows_and_their_likes():
    assert find_overlap([0, 1, 0, 3], kept=[2], others=[0, 1]) == {0: 2}


def test_names_of_parts():
    names = [name_part(word) for word in ("Train", " dev ", "TEST", "other", None)]
    assert names == ["train", "validation", "test", None, None]


def test_pairs_that_share_a_rare_text_are_together():
    pairs = [("a", "b"), ("c", "a"), ("d", "b"), ("e", "f")]
    assert group_pairs(pairs) == ([0, 0, 0, 3], (0, 1))


def test_a_text_of_many_pairs_holds_nothing_together():
    topics = [(f"text {row // 2}", f"topic {row % 3}") for row in range(500)]
    groups, sides = group_pairs(topics)
    assert sides == (0,)
    assert groups == [row - row % 2 for row in range(500)]
    both = [(f"first {row % 20}", f"second {row // 20 % 20}") for row in range(800)]
    groups, sides = group_pairs(both)
    assert sides == ()
    assert len(set(groups)) == 400


def test_equal_pairs_do_not_make_a_text_common():
    pairs = [("same", "pair")] * 30 + [("same", "other"), ("new", "one")]
    assert group_pairs(pairs) == ([0] * 31 + [31], (0, 1))
