"""BayesTune's second stage: fine-tune the chosen weights and nothing else.

AdamW over the difference to the pretrained values, one number for each chosen weight
(`SubsetAdamW`), with warm-up, linear decay and early stopping. The result is a `Delta`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.fit.epochs import (
    Criterion,
    Epoch,
    resolve_criterion,
    validation_scores,
    warm_up_then_fall,
)
from smidgen.fit.preparation import training_length
from smidgen.fit.subset_adamw import SubsetAdamW
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.runtime.checkpoint import read_checkpoint, write_checkpoint
from smidgen.runtime.fingerprint import fingerprint
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.loader import ResumableLoader
from smidgen.runtime.progress import track
from smidgen.types import Batch
from smidgen.weights.delta import Delta, make_delta
from smidgen.weights.head import Head, find_certain_head, find_head
from smidgen.weights.subset import Subset, Whole
from smidgen.weights.vector import SubsetVector


@dataclass(frozen=True, eq=False)
class SparseFinetuneResult:
    """A new model, what changed in it, and the history of its making."""

    model: nn.Module
    delta: Delta
    history: tuple[Epoch, ...]
    best: Epoch


def sparse_finetune(
    model: nn.Module | Problem,
    train: Iterable[Batch],
    subset: Subset,
    validation: Iterable[Batch] | None = None,
    *,
    head: Head = "last",
    epochs: int = 5,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.0,
    accumulate: int = 1,
    patience: int = 2,
    stop_on: Criterion | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> SparseFinetuneResult:
    """Fine-tune a subset of the weights; the caller's model stays as it is.

    Dropout is on while tuning; running statistics, of batch norms say, never change.

    Args:
        model: The pretrained model, or its `Problem`.
        train: Training batches, read once per epoch; a loader with a length.
        subset: The weights that move.
        validation: Held-out batches that decide when to stop. With None all epochs are
            run and the last is kept.
        head: New weights: a subset, or names of modules, all of which move and are given
            whole, "none", or "last": the last affine layer, if `subset` has all of it and
            it makes the outputs.
        epochs: Most epochs to run.
        learning_rate: Peak rate, after a warm-up over a tenth of all steps; it falls
            linearly to zero.
        weight_decay: Pull towards the pretrained values; none by default.
        accumulate: Batches whose gradients make one step.
        patience: Stop after this many epochs without gain.
        stop_on: What a gain is: higher "accuracy" (the default for classes) or lower
            "nll" (for all else).
        seed: Seed of dropout, and of the order of batches where the loader has a
            generator of its own; that is put back.
        checkpoint: A file, written after each epoch, to go on from if interrupted.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        The model of the best epoch, and its delta: the head is given whole, since it
        has no pretrained values, unless nothing else was tuned.

    Raises:
        ArgumentError: If an argument is outside what it may be.
        DataError: If a loader yields nothing, or the loss is not finite.
    """  # noqa: DOC502
    if min(epochs, patience, accumulate) < 1:
        raise ArgumentError(
            "epochs, patience and accumulate must be 1 or more, got "
            f"{epochs}, {patience} and {accumulate}."
        )
    length = training_length(train)
    given = as_problem(model)
    subset = _with_head(given.model, subset, head)
    batches = ResumableLoader(train)
    with (
        batches.seeded(seed),
        preserve_model(given.model, dropout=True),
        torch.enable_grad(),
    ):
        with preserve_model(given.model):
            settled, _, _ = given.settle(train)
        rule = resolve_criterion(stop_on, settled.likelihood)
        about = {
            "what": "sparse fine-tuning",
            "model": fingerprint(given.model),
            "weights": subset.digest(),
            "batches": length,
            "stop_on": rule if validation is not None else None,
            "numbers": [epochs, learning_rate, weight_decay, accumulate, patience, seed],
        }
        torch.manual_seed(seed)
        tuned = SubsetVector(given.model, subset)
        optimiser = SubsetAdamW(
            tuned.tensors, subset, learning_rate, weight_decay=weight_decay, clip=1.0
        )
        steps = epochs * -(-length // accumulate)
        run = _Run(settled, tuned.tensors, optimiser, accumulate, steps)
        run.epochs(batches, validation, epochs, patience, rule, checkpoint, about, progress)
        optimiser.assign(run.kept)
    best = run.best
    assert best is not None
    replaced = _replaced(settled, tuned, head)
    delta = make_delta(given.model, subset, run.kept, replaced)
    copy = deepcopy(given.model)
    delta.apply(copy)
    copy.eval()
    return SparseFinetuneResult(copy, delta, tuple(run.history), best)


def _with_head(model: nn.Module, subset: Subset, head: Head) -> Subset:
    """What moves: the chosen weights, and the head where it was told which it is."""
    parts = {} if head == "last" else find_head(model, head)
    if all(isinstance(subset.parts.get(name), Whole) for name in parts):
        return subset
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return subset | Subset({name: shapes[name] for name in parts}, parts)


def _replaced(
    problem: SettledProblem, tuned: SubsetVector, head: Head
) -> dict[str, Tensor]:
    """The parameters of the head that were tuned whole, unless they are all."""
    if head == "last":
        new = find_certain_head(problem.model, problem.likelihood.outputs)
    else:
        new = find_head(problem.model, head)
    parts = tuned.subset.parts
    names = [name for name in new if isinstance(parts.get(name), Whole)]
    return {} if len(names) == len(parts) else {n: tuned.tensors[n] for n in names}


class _Run:
    """Epochs of steps over the chosen weights."""

    def __init__(
        self,
        problem: SettledProblem,
        tensors: Mapping[str, Tensor],
        optimiser: SubsetAdamW,
        accumulate: int,
        steps: int,
    ) -> None:
        self.problem, self.tensors, self.optimiser = problem, tensors, optimiser
        self.accumulate = accumulate
        self.factor = warm_up_then_fall(steps)
        self.rate = optimiser.param_groups[0]["lr"]
        self.steps = 0
        self.history: list[Epoch] = []
        self.best: Epoch | None = None
        self.kept = torch.zeros_like(optimiser.difference)

    def epochs(
        self,
        batches: ResumableLoader,
        validation: Iterable[Batch] | None,
        epochs: int,
        patience: int,
        rule: Criterion,
        checkpoint: str | Path | None,
        about: Mapping[str, Any],
        progress: bool,
    ) -> None:
        """Run what is left of the epochs."""
        length = training_length(batches.loader)
        if checkpoint is not None:
            self._resume(read_checkpoint(checkpoint, about), batches)
        for number in range(len(self.history) + 1, epochs + 1):
            if self.best is not None and number - 1 - self.best.number >= patience:
                break
            label = f"tuning, epoch {number} of {epochs}"
            shown = track(range(length), label, show=progress)
            nll = self._epoch(batches, shown, length)
            scores = (
                (nan, None)
                if validation is None
                else validation_scores(self.problem, validation, self.tensors)
            )
            epoch = Epoch(number, nll, *scores)
            self.history.append(epoch)
            if validation is None or self.best is None or epoch.gains(self.best, rule):
                self.best, self.kept = epoch, self.optimiser.difference.clone()
            if checkpoint is not None:
                write_checkpoint(checkpoint, self._state(batches), about)

    def _epoch(self, batches: ResumableLoader, shown: Iterable[int], length: int) -> float:
        total, seen = 0.0, 0
        for index in shown:
            # The last group of an epoch may be a short one.
            start = index - index % self.accumulate
            share = min(self.accumulate, length - start)
            loss, rows = self._backward(next(batches), share)
            total += loss * rows
            seen += rows
            if not (index + 1) % self.accumulate or index + 1 == length:
                self.optimiser.param_groups[0]["lr"] = self.rate * self.factor(self.steps)
                self.optimiser.step()
                self.optimiser.zero_grad(set_to_none=True)
                self.steps += 1
        return total / max(seen, 1)

    def _backward(self, batch: Batch, share: int) -> tuple[float, int]:
        """Add a batch's share of the gradients; its loss and rows."""
        return self.problem.within(
            batch, self.tensors, lambda outputs: self._of(batch, outputs, share)
        )

    def _of(self, batch: Batch, outputs: Tensor, share: int) -> tuple[float, int]:
        found = self.problem.mean_nll(batch, outputs)
        if found is None:
            return 0.0, 0
        loss, rows = found
        (loss / share).backward()
        return float(loss.detach()), rows

    def _state(self, batches: ResumableLoader) -> dict[str, Tensor]:
        assert self.best is not None
        rows = [each.to_row() for each in self.history]
        state = next(iter(self.optimiser.state.values()))
        return {
            "history": torch.tensor(rows, dtype=torch.float64),
            "steps": torch.tensor(self.steps),
            "kept": self.kept,
            "best": torch.tensor(self.best.number),
            "random": torch.get_rng_state(),
            **{f"optimiser/{name}": each for name, each in state.items()},
            **{f"loader/{name}": each for name, each in batches.state().items()},
        }

    def _resume(self, state: Mapping[str, Tensor] | None, batches: ResumableLoader) -> None:
        if state is None:
            return
        own = next(iter(self.optimiser.state.values()))
        for name, tensor in own.items():
            tensor.copy_(state[f"optimiser/{name}"])
        self.optimiser.assign(own["difference"].clone())
        start = "loader/"
        parts = {n[len(start) :]: t for n, t in state.items() if n.startswith(start)}
        batches.resume(parts)
        self.history = [Epoch.from_row(row) for row in state["history"].tolist()]
        self.best = self.history[int(state["best"]) - 1]
        self.kept, self.steps = state["kept"].to(self.kept), int(state["steps"])
        torch.set_rng_state(state["random"])
