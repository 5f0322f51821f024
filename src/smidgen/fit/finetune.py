"""The MAP: a plain, seeded fine-tune with early stopping on validation data."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import nn

from smidgen.errors import ArgumentError
from smidgen.fit.epochs import (
    Criterion,
    Epoch,
    resolve_criterion,
    validation_scores,
    warm_up_then_fall,
)
from smidgen.fit.preparation import training_length
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.progress import track
from smidgen.types import Batch


@dataclass(frozen=True, eq=False)
class FinetuneResult:
    """A new model, the history of its making and the epoch whose weights it has."""

    model: nn.Module
    history: tuple[Epoch, ...]
    best: Epoch


def finetune(
    model: nn.Module | Problem,
    train: Iterable[Batch],
    validation: Iterable[Batch],
    *,
    epochs: int = 5,
    learning_rate: float = 5e-5,
    weight_decay: float = 0.01,
    patience: int = 2,
    stop_on: Criterion | None = None,
    seed: int = 0,
    progress: bool = True,
) -> FinetuneResult:
    """Fine-tune a copy of a model with AdamW; the caller's model stays as it is.

    Args:
        model: The pretrained model, or its `Problem`.
        train: Training batches, read once per epoch; a loader with a length.
        validation: Held-out batches that decide when to stop.
        epochs: Most epochs to run.
        learning_rate: Peak rate, after a warm-up over a tenth of all steps; it falls
            linearly to zero.
        weight_decay: Decay of all weights of two axes or more.
        patience: Stop after this many epochs without gain.
        stop_on: What a gain is: higher "accuracy" (the default for classes) or lower
            "nll" (for all else).
        seed: Seed of dropout; the order of batches is the loader's.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        The model of the best epoch, in evaluation mode.

    Raises:
        ArgumentError: If an argument is outside what it may be.
        DataError: If a loader yields nothing, or the loss is not finite.
    """  # noqa: DOC502
    if epochs < 1 or patience < 1 or not learning_rate > 0:
        raise ArgumentError(
            f"epochs and patience must be 1 or more and learning_rate > 0, got {epochs}, "
            f"{patience} and {learning_rate}."
        )
    steps = epochs * training_length(train)
    given = as_problem(model)
    with preserve_model(given.model):
        settled, _, _ = given.settle(train)
    stop_on = resolve_criterion(stop_on, settled.likelihood)
    copy = replace(settled, model=deepcopy(given.model))
    run = _Run(copy, learning_rate, weight_decay, steps)
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        history, weights = [], {}
        best: Epoch | None = None
        for number in range(1, epochs + 1):
            label = f"fine-tuning, epoch {number} of {epochs}"
            train_nll = run.epoch(track(train, label, show=progress))
            nll, accuracy = validation_scores(copy, validation)
            epoch = Epoch(number, train_nll, nll, accuracy)
            history.append(epoch)
            if best is None or epoch.gains(best, stop_on):
                best = epoch
                weights = {k: v.clone() for k, v in copy.model.state_dict().items()}
            elif number - best.number >= patience:
                break
    assert best is not None
    copy.model.load_state_dict(weights)
    copy.model.eval()
    return FinetuneResult(copy.model, tuple(history), best)


class _Run:
    """AdamW with warm-up, linear decay and clipping, over several epochs."""

    def __init__(
        self, problem: SettledProblem, rate: float, decay: float, steps: int
    ) -> None:
        self.problem = problem
        trained = [p for p in problem.model.parameters() if p.requires_grad]
        if not trained:
            raise ArgumentError("model must have weights with requires_grad, got none.")
        groups = [
            {"params": [p for p in trained if p.dim() > 1], "weight_decay": decay},
            {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
        ]
        # Fused: on a CPU the plain step takes a fifth of the time of a small model's batch.
        self.optimiser = torch.optim.AdamW(groups, lr=rate, fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimiser, warm_up_then_fall(steps)
        )
        self.trained = trained

    def epoch(self, batches: Iterable[Batch]) -> float:
        self.problem.model.train()
        total, seen = 0.0, 0
        for batch in batches:
            outputs = self.problem.training_outputs(batch)
            found = self.problem.mean_nll(batch, outputs)
            if found is None:
                continue
            loss, rows = found
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.trained, 1.0)
            self.optimiser.step()
            self.schedule.step()
            total += float(loss.detach()) * rows
            seen += rows
        return total / max(seen, 1)
