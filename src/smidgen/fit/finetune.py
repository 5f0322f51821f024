"""Fine-tune all weights of a model, or a subset of them and nothing else.

All weights: the point estimate (MAP) that posteriors are fitted to, by AdamW on a copy. A
subset: BayesTune's second stage, AdamW over the difference to the pretrained values with
one number for each chosen weight (`SubsetAdamW`); the result is a `Delta`. Both are seeded,
warm up, decay linearly and stop early on validation data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import inf, nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.curvature.output_layers import check_last_layer, see_output_layers
from smidgen.errors import ArgumentError, StoreError, fill_settings, is_number, is_whole
from smidgen.fit.data_size import count_training_batches
from smidgen.fit.epochs import (
    Criterion,
    Epoch,
    require_finite_gradients,
    require_labelled,
    resolve_criterion,
    warm_up_then_fall,
)
from smidgen.fit.trained_weights import AllWeights, SubsetWeights
from smidgen.fit.training_run import TrainingRun
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.runtime.artifact import require_like
from smidgen.runtime.checkpoint import (
    of_prefix,
    pack_optimiser,
    unpack_optimiser,
    with_prefix,
)
from smidgen.runtime.guard import fingerprint, preserve_random_state
from smidgen.runtime.loader import ResumableLoader
from smidgen.runtime.memory import count_bytes
from smidgen.runtime.storage.offload import require_loaded
from smidgen.types import Batch
from smidgen.weights.delta import Delta
from smidgen.weights.head import Head, find_certain_head, find_head
from smidgen.weights.subset import Subset, Whole, check_subset


@dataclass(frozen=True)
class FinetuneSettings:
    """How to fine-tune.

    Args:
        head: New weights of a subset, trained and stored whole: a subset, names of modules,
            "none", or "last": the last affine layer, if the subset has all of it and it
            makes the outputs.
        epochs: The largest number of epochs.
        learning_rate: Peak rate, after a warm-up over a tenth of all steps; it falls
            linearly to zero. Default: 5e-5 for all weights, 1e-3 for a subset.
        weight_decay: For all weights, the decay of those with two or more axes (default
            0.01); for a subset, the pull towards the pretrained values (default 0).
        accumulate: Batches whose gradients make one step.
        patience: Stop after this many epochs without a gain.
        stop_on: What counts as a gain: higher "accuracy" (the default for classes; the
            NLL decides between equals) or lower "nll" (the default otherwise).

    Raises:
        ArgumentError: If a number is out of its range.
    """

    head: Head = "last"
    epochs: int = 5
    learning_rate: float | None = None
    weight_decay: float | None = None
    accumulate: int = 1
    patience: int = 2
    stop_on: Criterion | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "accumulate"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise ArgumentError(
                    f"{name} must be a whole number, 1 or more, got {value!r}. Try "
                    f"{getattr(type(self), name)}."
                )
        for name, least in (("learning_rate", "> 0"), ("weight_decay", "0 or more")):
            value = getattr(self, name)
            if value is None:
                continue
            good = is_number(value) and 0 <= value < inf and (value or least != "> 0")
            if not good:
                raise ArgumentError(
                    f"{name} must be a finite number {least}, got {value!r}. Leave it out "
                    "for the usual one."
                )

    def filled(self, *, all_weights: bool) -> tuple[float, float]:
        """Learning rate and weight decay, with defaults filled in."""
        rate, decay = (5e-5, 0.01) if all_weights else (1e-3, 0.0)
        return (
            rate if self.learning_rate is None else self.learning_rate,
            decay if self.weight_decay is None else self.weight_decay,
        )


@dataclass(frozen=True, eq=False)
class FinetuneResult:
    """A new model, the epochs, and the one whose weights it has; a subset's `delta`."""

    model: nn.Module
    delta: Delta | None
    history: tuple[Epoch, ...]
    best: Epoch


def finetune(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    subset: Subset | None = None,
    *,
    validation: Iterable[Batch] | None = None,
    settings: FinetuneSettings | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> FinetuneResult:
    """Fine-tune all weights or a subset on a copy of the model.

    Args:
        model: The pretrained model, or its `Problem`.
        batches: Training batches, read once per epoch; a loader with a length.
        subset: The weights to train; default: all that require gradients. With a subset,
            running statistics, such as those of batch norms, never change.
        validation: Held-out batches that decide when to stop. Without them all epochs run
            and the last one is kept.
        settings: How to fine-tune.
        seed: Seed of dropout; with a subset, also of the loader's generator, which is
            restored afterwards.
        checkpoint: A file, written after each epoch, to resume from if interrupted.
        progress: Show a progress bar.

    Returns:
        The model of the best epoch, in evaluation mode, and with a subset its delta. The
        head has no pretrained values, so it is stored whole, unless nothing else was tuned.

    Raises:
        DataError: If a loader yields nothing, or the loss is not finite.
    """  # noqa: DOC502
    settings = fill_settings(settings, FinetuneSettings)
    length = count_training_batches(batches)
    if subset is not None:
        check_subset(subset)
    problem = as_problem(model)
    require_loaded(problem.model, "fine-tuning")
    loader = ResumableLoader(batches)
    if subset is not None:
        subset = _with_head(problem.model, subset, settings.head)
    with _training(problem.model, loader, None if subset is None else seed):
        problem, first, _ = problem.settle(batches)
        problem.require_labels(first)
        if subset is not None:
            if subset.claims_last:
                check_last_layer(problem, first, subset)
            settings = replace(settings, head=_find_new(problem, first, settings.head))
        criterion = resolve_criterion(settings.stop_on, problem.likelihood)
        torch.manual_seed(seed)
        rates = settings.filled(all_weights=subset is None)
        weights: AllWeights | SubsetWeights = (
            AllWeights(problem, *rates)
            if subset is None
            else SubsetWeights(problem, subset, settings.head, *rates)
        )
        tuning = _Tuning(weights, settings, length)
        stop_on = None if validation is None else criterion
        # The weights now and at best, and Adam's two numbers for each.
        size = 4 * (count_bytes(problem.model) if subset is None else 4 * subset.size)
        run = TrainingRun(
            tuning, loader, lambda: tuning.describe(subset, stop_on, seed), checkpoint, size
        )
        run.resume()
        tuning.run(run, validation, criterion, progress)
        weights.assign(tuning.best_weights)
    assert tuning.best is not None
    tuned, delta = weights.result()
    return FinetuneResult(tuned.eval(), delta, tuple(tuning.history), tuning.best)


@contextmanager
def _training(
    model: nn.Module, loader: ResumableLoader, seed: int | None
) -> Iterator[None]:
    """Fork the random numbers; for a subset, seed the loader too."""
    seeded = nullcontext() if seed is None else loader.seeded(seed)
    with seeded, preserve_random_state(model, seeding=True), torch.enable_grad():
        yield


def _find_new(problem: SettledProblem, batch: Batch, head: Head) -> Head:
    """Name the parameters of the head; of "last" those that a pass shows to make outputs."""
    if head != "last":
        return head
    covered = see_output_layers(problem, batch)
    return tuple(find_certain_head(covered, problem.likelihood.outputs)) or "none"


def _with_head(model: nn.Module, subset: Subset, head: Head) -> Subset:
    """Add the head, if it was named, to the chosen weights."""
    parts = {} if head == "last" else find_head(model, head)
    if all(isinstance(subset.parts.get(name), Whole) for name in parts):
        return subset
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return subset | Subset({name: shapes[name] for name in parts}, parts)


class _Tuning:
    """Runs the epochs and keeps the best."""

    def __init__(
        self,
        weights: AllWeights | SubsetWeights,
        settings: FinetuneSettings,
        length: int,
    ) -> None:
        self.weights, self.settings, self.length = weights, settings, length
        # The last group of an epoch may be a short one.
        groups = -(-length // settings.accumulate)
        self.factor = warm_up_then_fall(settings.epochs * groups)
        self.rate = weights.optimiser.param_groups[0]["lr"]
        self.steps = 0
        self.history: list[Epoch] = []
        self.best: Epoch | None = None
        self.best_weights: dict[str, Tensor] = {}

    def describe(
        self, subset: Subset | None, stop_on: Criterion | None, seed: int
    ) -> dict[str, Any]:
        """What a checkpoint must match."""
        settings = self.settings
        return {
            "what": "fine-tuning",
            "model": fingerprint(self.weights.problem.model),
            "weights": None if subset is None else subset.digest(),
            "likelihood": repr(self.weights.problem.likelihood),
            "batches": self.length,
            "stop_on": stop_on,
            "epochs": settings.epochs,
            "learning_rate": self.rate,
            "weight_decay": self.weights.optimiser.param_groups[0]["weight_decay"],
            "accumulate": settings.accumulate,
            "patience": settings.patience,
            "seed": seed,
        }

    def run(
        self,
        run: TrainingRun,
        validation: Iterable[Batch] | None,
        criterion: Criterion,
        progress: bool,
    ) -> None:
        """Run the remaining epochs until patience runs out."""
        left = range(len(self.history) + 1, self.settings.epochs + 1)
        epochs = run.epochs(left, self.length, "fine-tuning", progress)
        for number, batches in epochs:
            if self.best and number - 1 - self.best.number >= self.settings.patience:
                break
            train_nll = self._train(batches)
            scores = (nan, None) if validation is None else self.weights.scores(validation)
            epoch = Epoch(number, train_nll, *scores)
            self.history.append(epoch)
            if validation is None or not self.best or epoch.gains(self.best, criterion):
                self.best, self.best_weights = epoch, self.weights.values()

    def _train(self, batches: Iterable[Batch]) -> float:
        """Train for one epoch; return the mean NLL of its labelled rows."""
        accumulate, optimiser = self.settings.accumulate, self.weights.optimiser
        total, seen = 0.0, 0
        for index, batch in enumerate(batches):
            share = min(accumulate, self.length - index + index % accumulate)
            with self.weights.problem.reading(batch, index + 1):
                loss, rows = self.weights.backward(batch, share)
                require_finite_gradients(self.weights.trained)
            total, seen = total + loss * rows, seen + rows
            if not (index + 1) % accumulate or index + 1 == self.length:
                for group in optimiser.param_groups:
                    group["lr"] = self.rate * self.factor(self.steps)
                self.weights.update()
                optimiser.zero_grad(set_to_none=True)
                self.steps += 1
        require_labelled(seen)
        return total / seen

    def state(self) -> dict[str, Tensor]:
        """All that the next epoch depends on."""
        assert self.best is not None
        rows = [epoch.to_row() for epoch in self.history]
        return {
            "history": torch.tensor(rows, dtype=torch.float64),
            "steps": torch.tensor(self.steps),
            "best": torch.tensor(self.best.number),
            **with_prefix("best", self.best_weights),
            **with_prefix("now", self.weights.values()),
            **with_prefix("optimiser", pack_optimiser(self.weights.optimiser)),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from an earlier state."""
        first = self.weights.values()
        unpack_optimiser(self.weights.optimiser, of_prefix("optimiser", state))
        now, best = of_prefix("now", state), of_prefix("best", state)
        for values in (now, best, self.weights.values()):
            for name, value in first.items():
                require_like(name, values[name], value)
        self.weights.assign(now)
        self.best_weights = best
        self.history = [Epoch.from_row(row) for row in state["history"].tolist()]
        number, self.steps = int(state["best"]), int(state["steps"])
        if not 1 <= number <= len(self.history) <= self.settings.epochs or self.steps < 0:
            raise StoreError(f"{len(self.history)} epochs cannot have {number} as the best")
        self.best = self.history[number - 1]
