"""How long things take: what a prediction costs, and which candidates a time budget affords."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import smidgen.fit as fit
from smidgen.errors import ArgumentError
from smidgen.outputs.batches import take_few
from smidgen.outputs.problem import SettledProblem
from smidgen.posterior.base import Posterior
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.prediction import point_outputs, predict_batches
from smidgen.runtime.progress import count_batches
from smidgen.types import Batch
from smidgen.workflows.bayesify.candidates import ISOTROPIC_SOURCE, Contender, Field

# A slow prediction is timed twice, a fast one a few times.
_ROUNDS, _SECONDS = 5, 0.3


def time_predictions(
    posteriors: Mapping[str, Posterior], problem: SettledProblem, batch: Batch
) -> dict[str, float]:
    """Time predictions of one batch over a plain forward pass, interleaved."""
    for posterior in posteriors.values():
        # What is prepared once should not be timed.
        predict_batches(posterior, problem, [take_few(batch)], progress=False)
    if not posteriors:
        return {}
    plain: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in posteriors}
    started = time.perf_counter()
    while len(plain) < 2 or (
        len(plain) < _ROUNDS and time.perf_counter() < started + _SECONDS
    ):
        plain.append(_time(lambda: point_outputs(problem, [batch], progress=False)))
        for name, posterior in posteriors.items():
            times[name].append(_time_prediction(posterior, problem, batch))
    # Whatever else the machine does only adds: the shortest times are the true ones.
    return {name: min(taken) / min(plain) for name, taken in times.items()}


def _time_prediction(posterior: Posterior, problem: SettledProblem, batch: Batch) -> float:
    return _time(lambda: predict_batches(posterior, problem, [batch], progress=False))


def _time(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def find_too_slow(
    problem: SettledProblem,
    field: Field,
    whole: LaplacePosterior | None,
    loaders: tuple[Iterable[Batch], Iterable[Batch]],
    first: Batch,
    seconds: float,
) -> dict[str, str]:
    """Find the contenders for which both passes would take too long, by a first batch."""
    # The passes are shared: a contender takes what it adds to those that are cheaper.
    counts = [count_batches(batches) for batches in loaders]
    if None in counts:
        raise ArgumentError(
            "seconds must be left out for data without a length, got a stream of batches. Pass "
            "lists or data loaders of known length."
        )
    train, validation = (count or 0 for count in counts)
    forward = _time(lambda: point_outputs(problem, [first], progress=False))
    deep, curved = forward, forward
    if whole is not None and ISOTROPIC_SOURCE in field.subsets:
        deep = _time_prediction(whole, problem, first)
    sizes = [s for source, s in field.subsets.items() if isinstance(source, float)]
    if sizes:
        largest = max(sizes, key=lambda subset: subset.size)
        curved = _time(lambda: fit.laplace(problem, [first], largest, progress=False))
        deep = max(deep, curved)

    def estimate(contenders: Iterable[Contender]) -> float:
        sources = {source for each in contenders for source in each.sources}
        below = any(each.body is not None for each in contenders)
        held_out = validation * (deep if below else forward)
        if any(isinstance(source, float) for source in sources):
            return held_out + train * curved
        return held_out + train * forward * bool(sources - {ISOTROPIC_SOURCE})

    affordable: list[Contender] = []
    reasons: dict[str, str] = {}
    for contender in field.contenders:
        taken = estimate([*affordable, contender])
        if contender.sources and taken > seconds:
            reasons[contender.name] = (
                f"it would take about {taken:.3g} s, and seconds allows {seconds:g}"
            )
        else:
            affordable.append(contender)
    return reasons
