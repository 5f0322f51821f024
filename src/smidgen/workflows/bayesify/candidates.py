"""Which candidates there are for a model, in the order of their cost, and who is left out.

The cost is that of every prediction to come: first those that need no more than a forward
pass, then those with a backward pass through the network; of each the smaller to store first.

Every candidate is some of three kinds of *sources*: the last layer with its curvature, all
layers without any, and a part of every layer with its curvature. So the sources of all
candidates come from one pass over training data, and their variances from one more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

import smidgen.select as select
from smidgen.curvature.dry_run import ActivationTrace
from smidgen.curvature.operators import Isotropic
from smidgen.outputs.problem import SettledProblem
from smidgen.posterior.choice import LeftOutCandidate
from smidgen.posterior.cost.laplace import LAPLACE_COSTS
from smidgen.posterior.cost.model import Setting
from smidgen.runtime.memory import available_bytes, format_bytes
from smidgen.weights.subset import Subset
from smidgen.workflows.bayesify.settings import BayesifySettings
from smidgen.workflows.naming import label_temperature

Source = str | float
"""A posterior of the curvature pass: `HEAD_SOURCE`, `ISOTROPIC_SOURCE` or a percentage."""
HEAD_SOURCE, ISOTROPIC_SOURCE = "last-layer", Isotropic.structure
TEMPERATURE = "temperature"
# Sources of which no number is stored.
_UNSTORED = (None, ISOTROPIC_SOURCE)


@dataclass(frozen=True, eq=False)
class Contender:
    """A candidate before it is fitted: where its last layer and all others come from.

    What has no source stays fixed: temperature scaling has neither.
    """

    name: str
    label: str
    head: Source | None = None
    body: Source | None = None

    @property
    def sources(self) -> set[Source]:
        """The posteriors that it is made of."""
        return {source for source in (self.head, self.body) if source is not None}


@dataclass(frozen=True, eq=False)
class Field:
    """The contenders, the subset of each of their sources, and those that were left out."""

    contenders: tuple[Contender, ...]
    subsets: Mapping[Source, Subset]
    left_out: tuple[LeftOutCandidate, ...] = ()

    def without(self, reasons: Mapping[str, str]) -> Field:
        """Leave out some contenders, by name, each for a reason."""
        staying = tuple(each for each in self.contenders if each.name not in reasons)
        needed = {source for each in staying for source in each.sources}
        leaving = [each for each in self.contenders if each.name in reasons]
        return Field(
            staying,
            {source: subset for source, subset in self.subsets.items() if source in needed},
            (
                *self.left_out,
                *(LeftOutCandidate(x.name, x.label, reasons[x.name]) for x in leaving),
            ),
        )


def list_contenders(
    problem: SettledProblem,
    whole: Subset | None,
    last: Subset | None,
    settings: BayesifySettings,
) -> Field:
    """List what can be tried, the cheapest first, and the subsets that it takes."""
    # `whole` are all layers that can be treated, `last` those of them that make the outputs.
    wanted = settings.candidates
    contenders = [Contender(TEMPERATURE, label_temperature(problem.likelihood))]
    subsets: dict[Source, Subset] = {}
    if whole is None:
        return Field(tuple(contenders), subsets)
    top = None if last is None else HEAD_SOURCE
    has_body = last is None or bool(whole.parts.keys() - last.parts.keys())
    if last is not None:
        subsets[HEAD_SOURCE] = last
    if "isotropic" in wanted:
        subsets[ISOTROPIC_SOURCE] = whole
        head = None if last is None else ISOTROPIC_SOURCE
        body = ISOTROPIC_SOURCE if has_body else None
        contenders.append(Contender("isotropic", "Isotropic", head, body))
    if "last-layer" in wanted and last is not None:
        contenders.append(Contender("last-layer", "Last layer", top))
    if "head-isotropic" in wanted and last is not None and has_body:
        subsets[ISOTROPIC_SOURCE] = whole
        label = "Last layer | isotropic body"
        contenders.append(Contender("head-isotropic", label, top, ISOTROPIC_SOURCE))
    if "sparse-kfac" in wanted and has_body:
        blocks = _choose_sizes(problem.model, whole, last, settings.percents)
        for percent, subset in blocks.items():
            subsets[percent] = subset
            label = f"Sparse-KFAC {percent:g} %" + (" | last layer" if top else "")
            contenders.append(Contender(f"sparse-kfac-{percent:g}", label, top, percent))
    # They are listed by what they store; of those alike, `sorted` keeps that order.
    ordered = sorted(contenders, key=lambda each: each.body is not None)
    return Field(tuple(ordered), subsets).without({})


def _choose_sizes(
    model: nn.Module, whole: Subset, last: Subset | None, percents: Sequence[float]
) -> dict[float, Subset]:
    """Choose a part of every layer, and the last one whole; the same rows and columns once."""
    sizes: dict[float, Subset] = {}
    for percent in percents:
        chosen = select.sparse_kfac(model, percent=percent)
        parts = {n: part for n, part in chosen.parts.items() if n in whole.parts}
        subset = Subset(chosen.universe, parts, chosen.origin)
        subset = subset if last is None else subset | last
        if subset not in sizes.values():
            sizes[percent] = subset
    return sizes


def find_too_large(
    problem: SettledProblem, field: Field, memory: int | None
) -> dict[str, str]:
    """Find the contenders that need more memory than they may take, or than there is."""
    # Neither batches nor activations matter to what is stored; both sums are of shapes.
    setting, trace = Setting.of(problem), ActivationTrace(1, 0)
    available = available_bytes(problem.device)
    reasons: dict[str, str] = {}
    for contender in field.contenders:
        # Of what has no curvature nothing is stored.
        curved = [x for x in (contender.body, contender.head) if x not in _UNSTORED]
        if not curved:
            continue
        subset = field.subsets[curved[0]]
        form = LAPLACE_COSTS.forms[0]
        cost = LAPLACE_COSTS.cost(problem.model, subset, form, trace, setting)
        stored, peak = format_bytes(cost.stored_bytes), format_bytes(cost.fit_peak_bytes)
        if memory is not None and cost.stored_bytes > memory:
            reasons[contender.name] = (
                f"it takes {stored}, and memory allows {format_bytes(memory)}"
            )
        elif available is not None and cost.fit_peak_bytes > available:
            reasons[contender.name] = (
                f"to fit it takes {peak} of memory, and {format_bytes(available)} are free"
            )
    return reasons
