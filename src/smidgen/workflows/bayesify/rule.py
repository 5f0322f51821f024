"""The rule of the choice: the cheapest candidate that is not clearly worse than the best.

*Clearly* is what it is in every comparison of smidgen: the 95 % bootstrap interval of the
paired difference of NLLs excludes zero. Candidates are walked through in the order of cost and the
first is kept whose difference to the best is not clearly above zero. So temperature scaling
stays unless something is clearly better, and a user never pays for what cannot be told.

A candidate whose NLL is above that of a cheaper one is passed over: few rows may not tell it
from the best, but what is cheaper and does better was refused already.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from smidgen.evaluate import paired_difference


def find_clearly_worse(nlls: Mapping[str, Tensor], *, seed: int = 0) -> set[str]:
    """Find the candidates whose NLLs, (N,) each, are clearly above those of the best."""
    best = min(nlls.values(), key=lambda nll: float(nll.mean()))
    return {
        name
        for name, nll in nlls.items()
        if nll is not best and paired_difference(nll, best, seed=seed).low > 0
    }


def keep_cheapest(nlls: Mapping[str, Tensor], *, seed: int = 0) -> str:
    """Name the candidate to keep; the NLLs are in the order of cost, the cheapest first."""
    worse = find_clearly_worse(nlls, seed=seed)
    lowest = float("inf")
    for name, nll in nlls.items():
        mean = float(nll.mean())
        if name not in worse and mean < lowest:
            return name
        lowest = min(lowest, mean)
    raise AssertionError("the best is never clearly worse than itself")
