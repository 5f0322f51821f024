"""Which row goes where: training, validation, calibration, decision and test rows.

Rows that share a key, such as the same text or the same patient, are one group and stay
together. Groups are dealt out by a seed, class by class, to where most are missing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from random import Random

from smidgen.errors import ArgumentError, DataError

PARTS = ("train", "validation", "calibration", "decision", "test")
"""What rows are for: to train, to stop training, to calibrate, to make rules, to report."""
HELD_OUT = PARTS[1:4]
"""The parts that a file of validation rows is divided into."""
# From so many rows on, the part of them that each gets: the fewer rows there are, the more of
# them are held out, since a guarantee needs about as many rows however many there are.
_SHARES = {
    2000: (0.6, 0.1, 0.1, 0.1, 0.1),
    600: (0.5, 0.1, 0.12, 0.14, 0.14),
    0: (0.4, 0.12, 0.2, 0.14, 0.14),
}
_LEAST_ROWS = 25
_MOST_TOGETHER, _MOST_SHARE = 10, 0.01
"""Pairs, or a share of all pairs, that a text may hold together."""
# To hold out of a training file, which leaves twenty or more to calibrate with.
_HELD_OUT = 64
LEAST_TO_HOLD_OUT = 80
"""Of fewer training rows none can be held out."""


def choose_shares(count: int) -> dict[str, float]:
    """Choose the share of each part for so many rows."""
    shares = next(shares for least, shares in _SHARES.items() if count >= least)
    return dict(zip(PARTS, shares, strict=True))


def choose_held_out(count: int) -> dict[str, float]:
    """Choose how many of so many training rows stop training and how many calibrate.

    Args:
        count: How many rows there are.

    Returns:
        The share of each part: a tenth of the rows is held out, at least 64 or half of them.

    Raises:
        DataError: If the rows are too few.
    """
    if count < LEAST_TO_HOLD_OUT:
        raise DataError(
            f"--train must have {LEAST_TO_HOLD_OUT} rows or more to hold some out, got "
            f"{count}. Add rows, or give --val."
        )
    half = max(0.1, min(_HELD_OUT / count, 0.5)) / 2
    return dict(zip(PARTS, (1 - 2 * half, half, half), strict=False))


def group_rows(keys: Sequence[Iterable[Hashable]]) -> list[int]:
    """Number the groups of rows that share a key, directly or through other rows.

    Args:
        keys: The keys of each row.

    Returns:
        The number of each row's group, which is that of its first row.
    """
    leader = list(range(len(keys)))

    def find(row: int) -> int:
        while leader[row] != row:
            leader[row] = leader[leader[row]]
            row = leader[row]
        return row

    first: dict[Hashable, int] = {}
    for row, shared in enumerate(keys):
        for key in shared:
            one, two = find(first.setdefault(key, row)), find(row)
            leader[max(one, two)] = min(one, two)
    return [find(row) for row in range(len(keys))]


def group_pairs(pairs: Sequence[tuple[str, ...]]) -> tuple[list[int], tuple[int, ...]]:
    """Group pairs of texts that share one, as far as that leaves groups small.

    A sentence that stands in a few pairs is a hint to the others; one that stands in many,
    such as a topic or a question that is always asked, is not.

    Args:
        pairs: The two texts of each row.

    Returns:
        The number of each row's group, and the sides that pairs were grouped by: both, one,
        or none, where only equal pairs are together.
    """
    # Equal pairs count once: they are together anyway.
    different = {pair: row for row, pair in enumerate(pairs)}.values()
    most = max(_MOST_TOGETHER, int(_MOST_SHARE * len(different)))
    for sides in ((0, 1), (0,), (1,)):
        groups = group_rows([(pair, *(pair[side] for side in sides)) for pair in pairs])
        sizes = Counter(groups[row] for row in different)
        if max(sizes.values(), default=0) <= most:
            return groups, sides
    return group_rows([(pair,) for pair in pairs]), ()


def deal_rows(
    rows: Sequence[int],
    groups: Sequence[int],
    shares: Mapping[str, float],
    *,
    classes: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[str, tuple[int, ...]]:
    """Deal rows out to parts; a group stays together.

    Args:
        rows: The rows to deal out.
        groups: The number of the group of every row there is.
        shares: The share of each part; they need not sum to one.
        classes: The class of every row there is; each class is dealt out by itself.
        seed: Fixes the order in which groups are dealt.

    Returns:
        The rows of each part, sorted.

    Raises:
        ArgumentError: If a share is not above zero.
        DataError: If there are too few rows or groups for all parts.
    """
    if not shares or min(shares.values()) <= 0:
        raise ArgumentError(f"shares must be above 0, got {dict(shares)}. Name others.")
    if len(shares) == 1:
        return {name: tuple(sorted(rows)) for name in shares}
    if len(rows) < _LEAST_ROWS:
        raise DataError(
            f"the data must have {_LEAST_ROWS} rows or more to be divided into "
            f"{', '.join(shares)} rows, got {len(rows)}. Add rows."
        )
    members: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        members[groups[row]].append(row)
    order = sorted(members)
    Random(seed).shuffle(order)
    # Large groups first: small ones then fill what they left.
    order.sort(key=lambda group: -len(members[group]))
    quotas = {name: share / sum(shares.values()) for name, share in shares.items()}
    dealt: dict[str, list[int]] = {name: [] for name in shares}
    overall = dict.fromkeys(shares, 0)
    by_class: dict[int | None, dict[str, int]] = defaultdict(
        lambda: dict.fromkeys(shares, 0)
    )
    for group in order:
        taken = members[group]
        own = by_class[None if classes is None else classes[taken[0]]]
        name = _find_neediest(quotas, own, overall, len(taken))
        dealt[name] += taken
        own[name] += len(taken)
        overall[name] += len(taken)
    empty = [name for name, taken in dealt.items() if not taken]
    if empty:
        raise DataError(
            f"the data must have rows for {', '.join(shares)}, got none for {empty[0]}: "
            f"{len(rows)} rows are only {len(members)} groups of the same or related rows. "
            "Add rows of other groups, or give --val and --test."
        )
    return {name: tuple(sorted(taken)) for name, taken in dealt.items()}


def _find_neediest(
    quotas: Mapping[str, float],
    own: Mapping[str, int],
    overall: Mapping[str, int],
    size: int,
) -> str:
    """Find the part that lacks most: rows of a class, and rows of any; training comes first."""
    if own.get("train") == 0:
        return "train"

    # Of the class alone, classes of a few rows each would all starve the same part.
    def lack(counts: Mapping[str, int], part: str) -> float:
        return quotas[part] * (sum(counts.values()) + size) - counts[part]

    # Rounded, since ties must not be broken by the last bit of a sum.
    return max(quotas, key=lambda part: round(lack(own, part) + lack(overall, part), 9))


def find_overlap(
    groups: Sequence[int], kept: Iterable[int], others: Iterable[int]
) -> dict[int, int]:
    """Find rows of `others` that share a group with a row that is kept: row → such a row."""
    owners = {groups[row]: row for row in kept}
    return {row: owners[groups[row]] for row in others if groups[row] in owners}


def name_part(value: object) -> str | None:
    """Read a cell of a split column: "train", "validation" or "test"; None if unknown."""
    word = str(value).strip().casefold()
    known = {
        "train": ("train", "training", "trn"),
        "validation": ("validation", "val", "valid", "dev", "development"),
        "test": ("test", "testing", "tst"),
    }
    return next((part for part, words in known.items() if word in words), None)
