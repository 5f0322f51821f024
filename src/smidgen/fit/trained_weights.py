"""What fine-tuning trains: all weights of a copy of the model, or a subset held beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.fit.epochs import backward, group_by_decay, validation_scores
from smidgen.fit.subset_adamw import SubsetAdamW
from smidgen.outputs.problem import SettledProblem
from smidgen.types import Batch
from smidgen.weights.delta import Delta, make_delta
from smidgen.weights.head import Head, find_head
from smidgen.weights.subset import Subset, Whole
from smidgen.weights.vector import SubsetVector


class AllWeights:
    """All weights of a copy of the model, under torch's AdamW."""

    def __init__(self, problem: SettledProblem, rate: float, decay: float) -> None:
        self.problem = replace(problem, model=deepcopy(problem.model).train())
        self.trained = [p for p in self.problem.model.parameters() if p.requires_grad]
        if not self.trained:
            raise ArgumentError("model must have weights with requires_grad, got none.")
        groups = group_by_decay(self.trained, decay)
        # Fused: on a CPU the plain step takes a fifth of the time of a small model's batch.
        self.optimiser = torch.optim.AdamW(groups, lr=rate, fused=True)

    def backward(self, batch: Batch, share: int) -> tuple[float, int]:
        """Back-propagate the mean NLL of a batch over its share; return it and its rows."""
        return backward(self.problem, batch, self.problem.training_outputs(batch), share)

    def update(self) -> None:
        """Take one step."""
        nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimiser.step()

    def scores(self, validation: Iterable[Batch]) -> tuple[float, float | None]:
        """Score held-out data: NLL and, for classes, accuracy."""
        return validation_scores(self.problem, validation)

    def values(self) -> dict[str, Tensor]:
        """Copy all that is trained, for `assign`."""
        return {name: tensor.detach().clone() for name, tensor in self._changing().items()}

    def assign(self, values: Mapping[str, Tensor]) -> None:
        """Put back what `values` copied."""
        with torch.no_grad():
            for name, tensor in self._changing().items():
                tensor.copy_(values[name])

    def _changing(self) -> dict[str, Tensor]:
        model = self.problem.model
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        return trained | dict(model.named_buffers())

    def result(self) -> tuple[nn.Module, None]:
        """The trained copy; it has no delta."""
        return self.problem.model, None


class SubsetWeights:
    """A subset of the weights, held beside the caller's model, under `SubsetAdamW`."""

    def __init__(
        self, problem: SettledProblem, subset: Subset, head: Head, rate: float, decay: float
    ) -> None:
        self.model, self.head = problem.model, head
        self.problem = problem.on_shadow(dropout=True)
        self.vector = SubsetVector(problem.model, subset)
        self.trained = list(self.vector.tensors.values())
        self.optimiser = SubsetAdamW(
            self.vector.tensors, subset, rate, weight_decay=decay, clip=1.0
        )

    def backward(self, batch: Batch, share: int) -> tuple[float, int]:
        """Back-propagate the mean NLL of a batch over its share; return it and its rows."""
        return self.problem.within(
            batch,
            self.vector.tensors,
            lambda outputs: backward(self.problem, batch, outputs, share),
        )

    def update(self) -> None:
        """Take one step."""
        self.optimiser.step()

    def scores(self, validation: Iterable[Batch]) -> tuple[float, float | None]:
        """Score held-out data: NLL and, for classes, accuracy."""
        return validation_scores(self.problem, validation, self.vector.tensors)

    def values(self) -> dict[str, Tensor]:
        """Copy all that is trained, for `assign`."""
        return {"difference": self.optimiser.difference.clone()}

    def assign(self, values: Mapping[str, Tensor]) -> None:
        """Put back what `values` copied."""
        self.optimiser.assign(values["difference"].to(self.optimiser.difference))

    def result(self) -> tuple[nn.Module, Delta]:
        """A copy of the model with the delta on it, and the delta."""
        copy = deepcopy(self.model)
        difference = self.optimiser.difference
        delta = make_delta(copy, self.vector.subset, difference, self._replaced())
        delta.apply(copy)
        return copy, delta

    def _replaced(self) -> dict[str, Tensor]:
        """The head's parameters that were tuned whole, unless nothing else was tuned."""
        new = find_head(self.problem.model, self.head)
        parts = self.vector.subset.parts
        names = [name for name in new if isinstance(parts.get(name), Whole)]
        whole = {name: self.vector.tensors[name] for name in names}
        return {} if len(whole) == len(parts) else whole
