"""How few eigenvectors of two Kronecker factors are enough, and what the others can change.

Of G and A some eigenvectors are kept, and in all other directions a factor is taken for a
multiple of the identity, half-way between the least and the largest eigenvalue there. So
G = G' ± Δ_G and A = A' ± Δ_A, with Δ half that range, in units of the identity, and

    |G ⊗ A − G' ⊗ A'| ⪯ Δ_A G' ⊗ I + Δ_G I ⊗ A' + Δ_G Δ_A I,

which has the eigenvectors of H' = G' ⊗ A'. So every variance is right up to a relative error
of at most the largest (g Δ_A + Δ_G a + Δ_G Δ_A) / (g a + τ), and that is at an end of g and
of a: zero or the largest (DESIGN 4.11).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

from smidgen.curvature.factors.factor_sum import Spectrum
from smidgen.errors import ArgumentError, is_number, is_whole

TOLERANCE = 0.01
"""The largest relative error of variances that a prediction allows itself."""
TOLD_ERROR = 0.1
"""A larger bound on the relative error is told: ranks were cut, or the precision is another."""
MORE_VECTORS = (
    "Fit with a larger LaplaceSettings(rank=...), or calibrate before compress()."
)
"""What helps where too few eigenvectors are there."""
# A side this many times as wide as the other may be cut: LoRA's, a head of few classes.
_WIDE = 16
# Vectors of wide sides take so many floats for each of their layers' weights, or this many if
# one layer is of that shape, and a quarter of it if there are many.
_FLOATS_EACH, _LEAST_FLOATS, _MANY = 4, 2**20, 4
# By how much less a side may be off if both together are off by too much.
_SHRINK, _TINY = 0.9, 1e-300
LARGEST_SHARE = 0.8
"""A box with a larger share of the vectors is contracted as slowly as all of them."""
LEAST_SIZE = 2**14
"""A layer with fewer weights is contracted as fast with all eigenvectors."""


def check_tolerance(tolerance: float | None, *, none: bool = True) -> None:
    """Refuse a tolerance that is not in (0, 1); None may stand for all vectors there are."""
    if tolerance is None and none:
        return
    if tolerance is None or not is_number(tolerance) or not 0 < tolerance < 1:
        exact = ", or pass None for all the eigenvectors there are" if none else ""
        raise ArgumentError(
            f"tolerance must be in (0, 1), the largest relative error of a variance, got "
            f"{tolerance!r}. Leave it out for {TOLERANCE}{exact}."
        )


def check_rank(rank: int | None) -> None:
    """Refuse a rank that is not a whole number above zero, nor None."""
    if rank is not None and (not is_whole(rank) or rank < 1):
        raise ArgumentError(
            f"rank must be a whole number, 1 or more, got {rank!r}. Leave it out to cut only "
            "sides that are much wider than the other."
        )


def bound_error(rows: Spectrum, columns: Spectrum, precision: float) -> float:
    """Bound the relative error of variances that are made of two spectra."""
    rest_left, rest_right = float(rows.rest), float(columns.rest)
    return max(
        (g * rest_right + rest_left * a + rest_left * rest_right) / (g * a + precision)
        for g, a in product((0.0, rows.largest), (0.0, columns.largest))
    )


def choose_box(
    rows: Spectrum, columns: Spectrum, precision: float, tolerance: float
) -> tuple[Spectrum, Spectrum] | None:
    """Keep the fewest eigenvectors with an error within a tolerance; None if it is beyond."""
    if bound_error(rows, columns, precision) > tolerance:
        return None
    # What a side may be off beside the largest of the other; less where both add up.
    most = tolerance * precision
    while True:
        left = rows.drop(most / max(columns.largest + float(columns.rest), _TINY))
        right = columns.drop(most / max(rows.largest + float(rows.rest), _TINY))
        unchanged = left is rows and right is columns
        if unchanged or bound_error(left, right, precision) <= tolerance:
            return left, right
        most *= _SHRINK


def cap_ranks(sides: Sequence[tuple[int, int]], rank: int | None) -> list[tuple[int, int]]:
    """Cap the ranks of the factors of some blocks, n × m each: all of them, or very wide sides."""
    # A factor of such a side would have many times the floats of the weights it is of. By
    # default the wide sides of blocks of one shape share a budget of a few floats a weight:
    # what one shape gets does not depend on which others were chosen, a head, say.
    if rank is not None:
        return [(min(n, rank), min(m, rank)) for n, m in sides]
    caps = {pair: _cap_pair(pair, count) for pair, count in Counter(sides).items()}
    return [caps[pair] for pair in sides]


def _cap_pair(pair: tuple[int, int], count: int) -> tuple[int, int]:
    """Cap the wider side of so many blocks of one shape, if it is much wider."""
    wide, narrow = max(pair), min(pair)
    if wide <= _WIDE * narrow:
        return pair
    least = _LEAST_FLOATS // min(count, _MANY)
    budget = max(_FLOATS_EACH * wide * narrow * count, least)
    cap = max(1, min(wide, budget // (wide * count)))
    return (cap, pair[1]) if pair[0] == wide else (pair[0], cap)
