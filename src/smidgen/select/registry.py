"""Every selector by name, with what it takes: for the command line, studies and tests.

A selector is tested and offered by being registered: one row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.outputs.problem import Problem, as_problem
from smidgen.select.bayestune import bayestune
from smidgen.select.last_layer import last_layer
from smidgen.select.modules import LayerGroup, Order, modules
from smidgen.select.named import named
from smidgen.select.ranking import check_fraction, check_percent
from smidgen.select.scores import activation, curvature, squared_gradient
from smidgen.select.sparse_kfac import sparse_kfac
from smidgen.select.weights import weights
from smidgen.types import Batch
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Subset

Need = Literal["batches", "scores", "patterns"]
Size = Literal["percent", "fraction", "count"]

_ADVICE: Mapping[Need, str] = {
    "batches": "Pass training batches, a list or a data loader",
    "scores": "Make them with smidgen.select.scores: a tensor for each parameter by name",
    "patterns": "Pass shell patterns of parameter names, such as 'classifier.*'",
}
_SIZES: Mapping[Size, str] = {
    "percent": "percent of rows and of columns, in (0, 100]",
    "fraction": "a fraction of the weights, in (0, 1]",
    "count": "how many layers",
}


@dataclass(frozen=True)
class Selector:
    """One way to choose weights.

    Args:
        name: The name `choose` knows it by.
        choose: Makes the subset of a model. What it needs, and its size, are keywords; a
            selector that needs batches takes a `Problem` in place of the model.
        needs: What it takes besides the model.
        takes: What it takes besides, where it is given.
        size: Which argument sets its size, if any does.
        random: Whether it chooses at random and so takes a seed.
    """

    name: str
    choose: Callable[..., Subset]
    needs: frozenset[Need] = frozenset()
    takes: frozenset[Need] = frozenset()
    size: Size | None = None
    random: bool = False

    @property
    def scattered(self) -> bool:
        """Whether it chooses single weights and not rows × columns."""
        return self.size == "fraction"

    def check_size(self, size: float | None) -> None:
        """Refuse a size that no model allows: missing, out of range or not for this selector."""
        if self.size is None and size is not None:
            raise ArgumentError(
                f"size must be left out for the selector {self.name!r}, got {size!r}: it "
                "has one size only."
            )
        if self.size is not None and size is None:
            raise ArgumentError(
                f"size must be given for the selector {self.name!r}, got None. It is "
                f"{_SIZES[self.size]}."
            )
        if size is not None and self.size == "percent":
            check_percent(size)
        if size is not None and self.size == "fraction":
            check_fraction(size)


def _choose_by_scores(model: nn.Module, *, fraction: float, scores: Any) -> Subset:
    return weights(model, fraction=fraction, by=scores)


def _select_by_data(
    name: str,
    score: Callable[[Problem, Iterable[Batch]], dict[str, Tensor]],
    select: Callable[..., Subset],
    size: Size,
) -> Selector:
    """Score the weights in one pass over the data, then choose by the scores."""

    def choose(problem: Problem, *, batches: Iterable[Batch], **sizes: float) -> Subset:
        return select(problem.model, by=score(problem, batches), **sizes)

    return Selector(name, choose, frozenset({"batches"}), size=size)


def _select_by_norm(group: LayerGroup, order: Order) -> Selector:
    choose = partial(modules, order=order, group=group)
    return Selector(f"{order}-{group}", choose, size="count")


def _select_at_random(name: str, select: Callable[..., Subset], size: Size) -> Selector:
    return Selector(name, partial(select, by="random"), size=size, random=True)


_SCORES = frozenset[Need]({"scores"})

SELECTORS: dict[str, Selector] = {
    selector.name: selector
    for selector in (
        Selector("sparse-kfac", sparse_kfac, size="percent"),
        _select_at_random("sparse-kfac-random", sparse_kfac, "percent"),
        _select_by_data("sparse-kfac-activation", activation, sparse_kfac, "percent"),
        _select_by_data("sparse-kfac-curvature", curvature, sparse_kfac, "percent"),
        Selector("last-layer", last_layer, takes=frozenset({"batches"})),
        *(
            _select_by_norm(group, order)
            for group in get_args(LayerGroup)
            for order in get_args(Order)
        ),
        _select_at_random("random-modules", modules, "count"),
        Selector("magnitude", weights, size="fraction"),
        _select_at_random("random-weights", weights, "fraction"),
        Selector("variance", _choose_by_scores, _SCORES, size="fraction"),
        Selector("bayestune", partial(bayestune, head="none"), _SCORES, size="fraction"),
        _select_by_data("squared-gradient", squared_gradient, weights, "fraction"),
        Selector("named", named, frozenset({"patterns"})),
    )
}


def choose(
    name: str,
    model: nn.Module | Problem,
    *,
    size: float | None = None,
    batches: Iterable[Batch] | None = None,
    seed: int = 0,
    scores: Mapping[str, Tensor] | None = None,
    patterns: str | Sequence[str] | None = None,
) -> Subset:
    """Choose weights by the name of a selector.

    What a selector does not need is ignored, so that one call serves them all; but a
    size for a selector that has none is refused.

    Args:
        name: A name of `smidgen.select.SELECTORS`.
        model: The trained model, or a `Problem` that says how to read its batches.
        size: Percent of rows and columns, fraction of weights or count of modules,
            depending on the selector.
        batches: Training batches, for selectors that score by data; read once. "last-layer"
            runs the first to see which layer it is.
        seed: Seed of a random choice.
        scores: Scores by parameter name, for "variance" and "bayestune".
        patterns: Shell patterns of parameter names, for "named".

    Returns:
        The subset.

    Raises:
        ArgumentError: If the name is unknown or something is missing.
    """
    if not isinstance(name, str) or name not in SELECTORS:
        raise ArgumentError(
            f"name must be one of {', '.join(SELECTORS)}, got {name!r}. Try 'sparse-kfac'."
        )
    selector, problem = SELECTORS[name], as_problem(model)
    inputs: dict[Need, Any] = {"batches": batches, "scores": scores, "patterns": patterns}
    selector.check_size(size)
    for need in sorted(selector.needs):
        if inputs[need] is None:
            raise ArgumentError(
                f"{need} must be given for the selector {name!r}, got None. "
                f"{_ADVICE[need]}."
            )
    taken = selector.needs | {need for need in selector.takes if inputs[need] is not None}
    arguments: dict[str, Any] = {need: inputs[need] for need in taken}
    if selector.size is not None:
        arguments[selector.size] = size
    if selector.random:
        arguments["seed"] = seed
    first = problem if "batches" in arguments else problem.model
    subset = selector.choose(first, **arguments)
    # A selector that was passed scores cannot know whose they are.
    settings = dict(subset.origin.settings) if subset.origin else {}
    settings.pop("by", None)
    return replace(subset, origin=Origin(name, settings))
