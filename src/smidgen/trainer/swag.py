"""A callback for Hugging Face's `Trainer`: SWAG's statistics during a plain fine-tune."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerState, TrainingArguments

from smidgen.errors import ArgumentError, warn
from smidgen.outputs.likelihood import Likelihood
from smidgen.posterior.swag import CovarianceKind, SwagCollector, SwagPosterior
from smidgen.weights.subset import Subset


class SwagCallback(TrainerCallback):  # type: ignore[misc]
    """Takes a snapshot of the chosen weights every few optimiser steps.

        callback = SwagCallback(subset, start=500, every=5)
        Trainer(model, ..., callbacks=[callback]).train()
        posterior = callback.posterior(smidgen.Categorical(2))

    Args:
        subset: The weights to be stochastic.
        start: Optimiser steps before the first snapshot; a constant learning rate from
            there on is what SWAG's theory assumes.
        every: Steps between snapshots.
        rank: Deviations kept, K.
        covariance: "low-rank", "diagonal" or "none".

    Raises:
        ArgumentError: If `every` is less than 1 or `start` less than 0.
    """

    def __init__(
        self,
        subset: Subset,
        *,
        start: int = 0,
        every: int = 5,
        rank: int = 20,
        covariance: CovarianceKind = "low-rank",
    ) -> None:
        if every < 1 or start < 0:
            raise ArgumentError(
                f"every must be 1 or more and start 0 or more, got {every} and {start}."
            )
        self.subset, self.start, self.every = subset, start, every
        self.rank, self.covariance = rank, covariance
        self.collector: SwagCollector | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any
    ) -> None:
        """Start afresh, even if the callback was used before."""
        self.collector = None
        if state.global_step > self.start:
            warn(
                f"training resumes at step {state.global_step}: snapshots between step "
                f"{self.start} and there are not in the posterior."
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any
    ) -> None:
        """Take a snapshot if it is time."""
        model: nn.Module = kwargs["model"]
        if self.collector is None:
            self.collector = SwagCollector(
                model, self.subset, rank=self.rank, covariance=self.covariance
            )
        steps = state.global_step - self.start
        if steps > 0 and steps % self.every == 0:
            self.collector.collect()

    def posterior(self, likelihood: Likelihood, *, num_data: int = 0) -> SwagPosterior:
        """Make the posterior of the model as it is after training.

        Args:
            likelihood: What the model's outputs mean.
            num_data: How many examples it was trained on, for the record.

        Returns:
            The posterior.

        Raises:
            ArgumentError: If the trainer has not run.
        """
        if self.collector is None:
            raise ArgumentError(
                "the trainer has taken no step yet. Call trainer.train() first."
            )
        return self.collector.posterior(likelihood, num_data=num_data)
