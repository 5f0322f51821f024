"""Outputs of a network under several draws of its weights.

Layers below the lowest stochastic weight run once for each batch, not once for each draw.
A small network runs all draws at once instead, on stacked weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from smidgen.errors import ArgumentError, is_whole
from smidgen.outputs.batches import model_outputs, require_examples
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import SAMPLES, Posterior, Sampler
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.prefix_cache import PrefixCache
from smidgen.types import Batch

# Networks up to this many weights run all draws at once: three to five times as fast on a
# CPU for an MLP of 3,000, and slower than one by one from about 70,000 on.
_MOST_WEIGHTS = 2**14
# The most numbers in the inputs of all draws: activations are several times more.
_MOST_INPUTS = 2**20


def sampled_outputs(
    problem: Problem,
    posterior: Posterior,
    batches: Iterable[Batch],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    reuse: bool = True,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield every batch and its outputs under the same draws: (S, R, C), fp64, on the CPU."""
    # With samples=0, or if draws do not differ, they are the point estimate's, twice. `reuse`
    # keeps what lies below the stochastic weights for all draws of a batch; it is compared
    # with a plain pass once, and given up if it differs.
    if not is_whole(samples) or samples < 0 or samples == 1:
        raise ArgumentError(
            f"samples must be 2 or more, or 0, got {samples!r}. Leave them out for the usual "
            "number."
        )
    posterior.require(problem.model)
    count = samples if posterior.stochastic else 0
    # One seed for each draw: drawn anew for every batch, only one is ever in memory,
    # and a loader is read once.
    source = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**62, (count,), generator=source).tolist()
    runs = _Runs(problem, posterior, seeds, reuse)
    for number, batch in enumerate(batches, 1):
        with problem.reading(batch, number):
            with preserve_random_state(problem.model), torch.no_grad():
                outputs = runs.outputs(batch)
            require_examples(outputs)
        yield batch, outputs.flatten(1, -2).double().cpu()


class _Runs:
    """Runs batches under the same draws, one by one or all at once."""

    def __init__(
        self, problem: Problem, posterior: Posterior, seeds: list[int], reuse: bool
    ) -> None:
        model = posterior.point_model(problem.model)
        self.problem, self.seeds = replace(problem, model=model).on_shadow(), seeds
        self.sampler: Sampler = posterior.sampler(problem.model)
        self.reuse, self.trusted = reuse, False
        self.cache: PrefixCache | None = None
        size = sum(parameter.numel() for parameter in model.parameters())
        # A forward of the user's own may look at single values, or keep what it sees; the
        # layers of a sparse network multiply by one set of weights at a time.
        plain = problem.forward is model_outputs and model is problem.model
        self.small = plain and size <= _MOST_WEIGHTS
        self.stacked: dict[str, Tensor] | None = None

    def outputs(self, batch: Batch) -> Tensor:
        """Outputs (S, ..., C) under every draw; of the point twice if there is none."""
        if not self.seeds:
            return torch.stack([self._outputs(batch, {})] * 2)
        inputs = sum(v.numel() for v in tree_leaves(batch) if isinstance(v, Tensor))
        if self.small and len(self.seeds) * inputs <= _MOST_INPUTS:
            return self.run_at_once(batch)
        return self.run_one_by_one(batch)

    def draws(self) -> Iterator[dict[str, Tensor]]:
        return self.sampler([torch.Generator().manual_seed(seed) for seed in self.seeds])

    def run_one_by_one(self, batch: Batch) -> Tensor:
        """Outputs (S, ..., C); what lies below the stochastic weights runs once."""
        if self.cache is not None:
            self.cache.forget()
        outputs: list[Tensor] = []
        for weights in self.draws():
            if self.reuse and self.cache is None:
                self.cache = PrefixCache(self.problem.model, weights)
            with self.cache.passing() if self.cache else nullcontext():
                outputs.append(self._outputs(batch, weights))
            if len(outputs) == 2 and self.cache is not None and not self.trusted:
                outputs[1] = self._prove_reuse(self.cache, batch, weights, outputs[1])
        return torch.stack(outputs)

    def _prove_reuse(
        self, cache: PrefixCache, batch: Batch, weights: dict[str, Tensor], reused: Tensor
    ) -> Tensor:
        """Compare a pass that reused something with a plain one; give up if they differ."""
        self.trusted = True
        plain = self._outputs(batch, weights) if cache.reused else reused
        if not cache.reused or not torch.equal(plain, reused):
            self.reuse, self.cache = False, None
        return plain

    def run_at_once(self, batch: Batch) -> Tensor:
        """Outputs (S, ..., C) on stacked weights, if the network can be run so."""
        if self.stacked is None:
            draws = list(self.draws())
            self.stacked = {n: torch.stack([draw[n] for draw in draws]) for n in draws[0]}
        try:
            return torch.func.vmap(lambda weights: self._outputs(batch, weights))(
                self.stacked
            )
        except RuntimeError:
            # A network that branches on its values; its own errors are raised again below.
            self.small = False
            return self.run_one_by_one(batch)

    def _outputs(self, batch: Batch, weights: dict[str, Tensor]) -> Tensor:
        # A copy: a network that writes to its inputs must find them as they were.
        return self.problem.outputs(tree_map(_copy, batch), weights)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
