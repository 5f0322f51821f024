"""Outputs of a network under several draws of its weights.

Layers below the lowest stochastic weight run once for each batch, not once for each
sample. A small network runs all samples at once instead, on stacked weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError
from smidgen.guard import untouched
from smidgen.memo import Memo
from smidgen.posterior import Sampler, WeightPosterior
from smidgen.problem import Problem, model_outputs
from smidgen.types import Batch

SAMPLES = 32
"""Samples of the weights when not told otherwise."""
# Networks up to this many weights run all samples at once: three to five times as fast on
# a CPU at 3,000 weights, and slower than one by one from about 70,000 on.
_SMALL = 2**14


def sampled_outputs(
    problem: Problem,
    posterior: WeightPosterior,
    batches: Iterable[Batch],
    *,
    samples: int = SAMPLES,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Compute the outputs of every batch under the same draws of the weights.

    Args:
        problem: The problem.
        posterior: Any posterior of its model.
        batches: Any iterable of batches, read once.
        samples: How many draws.
        generator: Source of the draws; a fixed seed if left out.

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
    run = _Runs(problem, posterior, seeds)
    for batch in batches:
        with untouched(problem.model), torch.no_grad():
            outputs = run.one_by_one(batch) if run.stacked is None else run.at_once(batch)
        if not outputs.numel():
            raise DataError("a batch holds no example. Leave empty batches out.")
        yield batch, outputs.flatten(1, -2).double().cpu()


class _Runs:
    """Runs batches under the same draws, one by one or all at once."""

    def __init__(
        self, problem: Problem, posterior: WeightPosterior, seeds: list[int]
    ) -> None:
        self.problem, self.seeds = problem, seeds
        self.sampler: Sampler = posterior.sampler(problem.model)
        self.memo = Memo(problem.model, posterior.subset.parts)
        self.stacked: dict[str, Tensor] | None = None
        size = sum(each.numel() for each in problem.model.parameters())
        # A forward of the user's own may look at single values, or keep what it sees.
        if size <= _SMALL and problem.forward is model_outputs:
            drawn = list(self.draws())
            self.stacked = {n: torch.stack([each[n] for each in drawn]) for n in drawn[0]}

    def draws(self) -> Iterator[dict[str, Tensor]]:
        for seed in self.seeds:
            yield self.sampler(torch.Generator().manual_seed(seed))

    def one_by_one(self, batch: Batch) -> Tensor:
        """Outputs (S, ..., C); what lies below the stochastic weights runs once."""
        self.memo.forget()
        found = []
        for weights in self.draws():
            with self.memo.passing():
                found.append(self.problem.outputs(batch, weights))
        return torch.stack(found)

    def at_once(self, batch: Batch) -> Tensor:
        """Outputs (S, ..., C) on stacked weights, if the network can be run so."""
        assert self.stacked is not None
        try:
            return torch.func.vmap(lambda each: self.problem.outputs(batch, each))(
                self.stacked
            )
        except RuntimeError:
            # A network that branches on its values; its own errors come up again below.
            self.stacked = None
            return self.one_by_one(batch)
