"""Outputs of a network under several draws of its weights.

Layers below the lowest stochastic weight run once for each batch, not once for each
sample. A small network runs all samples at once instead, on stacked weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.problem import Problem, model_outputs
from smidgen.posterior.laplace import Posterior, Sampler
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.prefix_cache import PrefixCache
from smidgen.types import Batch

SAMPLES = 32
"""Samples of the weights when not told otherwise."""
# Networks up to this many weights run all samples at once: three to five times as fast on
# a CPU for an MLP of 3,000, and slower than one by one from about 70,000 on.
_SMALL = 2**14
# And inputs up to this many numbers over all samples: activations are as many times more.
_FEW = 2**20


def sampled_outputs(
    problem: Problem,
    posterior: Posterior,
    batches: Iterable[Batch],
    *,
    samples: int = SAMPLES,
    generator: torch.Generator | None = None,
    reuse: bool = True,
) -> Iterator[tuple[Batch, Tensor]]:
    """Compute the outputs of every batch under the same draws of the weights.

    Args:
        problem: The problem.
        posterior: Any posterior of its model.
        batches: Any iterable of batches, read once.
        samples: How many draws.
        generator: Source of the draws; a fixed seed if left out.
        reuse: Keep what lies below the stochastic weights for all samples of a batch. It
            is compared with a plain pass once, and given up if it differs.

    Yields:
        Each batch and its outputs, (samples, R, C), in fp64 on the CPU.

    Raises:
        ArgumentError: If there are fewer than two samples, or the model is another.
        DataError: If a batch holds no example.
    """
    if samples < 2:
        raise ArgumentError(f"samples must be 2 or more, got {samples}.")
    posterior.require(problem.model)
    # One seed for each sample: drawn anew for every batch, only one is ever in memory,
    # and a loader is read once.
    source = generator or torch.Generator().manual_seed(0)
    seeds = torch.randint(2**62, (samples,), generator=source).tolist()
    runs = _Runs(problem, posterior, seeds, reuse)
    for batch in batches:
        with preserve_model(problem.model), torch.no_grad():
            outputs = runs.at_once(batch) if runs.fit(batch) else runs.one_by_one(batch)
        if not outputs.numel():
            raise DataError("a batch holds no example. Leave empty batches out.")
        yield batch, outputs.flatten(1, -2).double().cpu()


class _Runs:
    """Runs batches under the same draws, one by one or all at once."""

    def __init__(
        self, problem: Problem, posterior: Posterior, seeds: list[int], reuse: bool
    ) -> None:
        self.problem, self.seeds = problem, seeds
        self.sampler: Sampler = posterior.sampler(problem.model)
        self.memo = PrefixCache(problem.model, posterior.subset.parts) if reuse else None
        self.trusted = False
        size = sum(each.numel() for each in problem.model.parameters())
        # A forward of the user's own may look at single values, or keep what it sees.
        self.small = size <= _SMALL and problem.forward is model_outputs
        self.stacked: dict[str, Tensor] | None = None

    def fit(self, batch: Batch) -> bool:
        """Whether a batch is small enough to run under all draws at once."""
        tensors = [each for each in tree_leaves(batch) if isinstance(each, Tensor)]
        count = len(self.seeds) * sum(each.numel() for each in tensors)
        return self.small and count <= _FEW

    def draws(self) -> Iterator[dict[str, Tensor]]:
        return self.sampler([torch.Generator().manual_seed(each) for each in self.seeds])

    def one_by_one(self, batch: Batch) -> Tensor:
        """Outputs (S, ..., C); what lies below the stochastic weights runs once."""
        if self.memo is not None:
            self.memo.forget()
        found = []
        for weights in self.draws():
            with self._passing():
                found.append(self._outputs(batch, weights))
            if len(found) == 2 and self.memo is not None and not self.trusted:
                found[1] = self._proved(self.memo, batch, weights, found[1])
        return torch.stack(found)

    def _proved(
        self, memo: PrefixCache, batch: Batch, weights: dict[str, Tensor], found: Tensor
    ) -> Tensor:
        """Compare a pass that reused something with a plain one; give up if they differ."""
        self.trusted = True
        if not memo.reused:
            self.memo = None
            return found
        plain = self._outputs(batch, weights)
        if not torch.equal(plain, found):
            self.memo = None
        return plain

    def at_once(self, batch: Batch) -> Tensor:
        """Outputs (S, ..., C) on stacked weights, if the network can be run so."""
        if self.stacked is None:
            drawn = list(self.draws())
            self.stacked = {n: torch.stack([each[n] for each in drawn]) for n in drawn[0]}
        try:
            return torch.func.vmap(lambda each: self._outputs(batch, each))(self.stacked)
        except RuntimeError:
            # A network that branches on its values; its own errors come up again below.
            self.small = False
            return self.one_by_one(batch)

    def _outputs(self, batch: Batch, weights: dict[str, Tensor]) -> Tensor:
        # A copy: a network that writes to its inputs must find them as they were.
        return self.problem.outputs(tree_map(_copied, batch), weights)

    def _passing(self) -> AbstractContextManager[None]:
        return nullcontext() if self.memo is None else self.memo.passing()


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
