"""A callback for Hugging Face's `Trainer`: a calibrated posterior at the end of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from smidgen.errors import ArgumentError
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.store import refuse_taken_posterior, save
from smidgen.types import Batch
from smidgen.workflows.bayesify.one_call import bayesify
from smidgen.workflows.bayesify.settings import BayesifySettings

FOLDER = "posterior"
"""The folder of the posterior, in the output folder of the training."""


class BayesCallback(TrainerCallback):  # type: ignore[misc]
    """Makes the trained model Bayesian as far as that pays, and saves the posterior.

        callback = BayesCallback()
        Trainer(model, arguments, train_dataset=train, eval_dataset=rows_that_choose,
                callbacks=[callback]).train()
        callback.posterior  # also in arguments.output_dir / "posterior"

    At the end of training (after `load_best_model_at_end` has loaded the best model) the
    training rows measure the curvature, and the eval rows choose and calibrate: compare on
    others. Both are read in their order, every row once, with the trainer's collator.

    Args:
        train: Batches of training rows; by default those of the trainer's data set.
        validation: Batches of rows that choose; by default those of the trainer's eval data
            sets. Needed where the trainer evaluates nothing.
        problem: Makes the problem of the model, where its batches or outputs need one:
            `make_causal_problem`, for example.
        settings: What `smidgen.bayesify` tries.
        seed: Of the folds that the eval rows are scored in.
        progress: Show progress bars.
        say: Takes a sentence on what chose, what was kept and where it is.
    """

    def __init__(
        self,
        *,
        train: Iterable[Batch] | None = None,
        validation: Iterable[Batch] | None = None,
        problem: Callable[[nn.Module], Problem] = Problem,
        settings: BayesifySettings | None = None,
        seed: int = 0,
        progress: bool = True,
        say: Callable[[str], None] = print,
    ) -> None:
        self.train, self.validation, self.problem = train, validation, problem
        self.settings, self.seed, self.progress, self.say = settings, seed, progress, say
        self.posterior: Posterior | None = None
        self._evaluated: dict[str, DataLoader[Any]] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any
    ) -> None:
        """Refuse, before any training, what could not be done after it.

        Args:
            args: The trainer's arguments.
            state: Not used.
            control: Not used.
            **kwargs: Of them the loader of training rows.

        Raises:
            ArgumentError: If there are several processes, no rows to choose with, or
                training rows without a number.
        """
        self.posterior, self._evaluated = None, {}
        if args.world_size > 1:
            raise ArgumentError(
                f"the trainer must run in one process for BayesCallback, got {args.world_size}. "
                "Take the callback out, and call smidgen.bayesify on the saved model."
            )
        if self.validation is None and args.eval_strategy == IntervalStrategy.NO:
            raise ArgumentError(
                "eval_strategy must be 'epoch' or 'steps', so that eval rows can choose, got "
                "'no'. Set it, or pass BayesCallback(validation=...)."
            )
        loader = kwargs["train_dataloader"]
        if self.train is None and not isinstance(loader.dataset, Sized):
            raise ArgumentError(
                f"train must be given for a training set without a length, got "
                f"{type(loader.dataset).__name__}. Pass BayesCallback(train=...) with batches "
                "of some thousand training rows."
            )
        # Not after hours of training.
        refuse_taken_posterior(Path(args.output_dir) / FOLDER, overwrite=True)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any
    ) -> None:
        """Note which rows the trainer evaluates."""
        # The trainer makes the same rows a new data set each time, so they are told apart by
        # the names of their metrics: eval_runtime, or eval_NAME_runtime of several sets.
        for name in kwargs["metrics"]:
            if name.endswith("_runtime"):
                self._evaluated[name] = kwargs["eval_dataloader"]

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any
    ) -> None:
        """Fit, calibrate and save.

        Args:
            args: The trainer's arguments.
            state: Says whether a best model was loaded.
            control: Not used.
            **kwargs: Of them the model and the loader of training rows.

        Raises:
            ArgumentError: If the trainer evaluated no rows.
        """
        if self.validation is None and not self._evaluated:
            raise ArgumentError(
                f"eval rows must be evaluated once while training, got none in "
                f"{state.global_step} steps. Lower eval_delay or eval_steps, or pass "
                "BayesCallback(validation=...)."
            )
        train = self.train
        if train is None:
            train = _read_in_order(
                [kwargs["train_dataloader"]], args.per_device_train_batch_size
            )
        validation = self.validation
        if validation is None:
            validation = _read_in_order(
                [*self._evaluated.values()], args.per_device_eval_batch_size
            )
        self.posterior = bayesify(
            self.problem(kwargs["model"]),
            train,
            validation,
            settings=self.settings,
            seed=self.seed,
            progress=self.progress,
        )
        folder = save(self.posterior, Path(args.output_dir) / FOLDER, overwrite=True)
        self.say(self._describe(args, state, folder))

    def _describe(self, args: TrainingArguments, state: TrainerState, folder: Path) -> str:
        """Say what chose, what was kept, and where it is."""
        assert self.posterior is not None
        assert self.posterior.choice is not None
        rows = "the rows of validation" if self.validation is not None else "the eval rows"
        also = ""
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            also = ", as eval rows chose the best checkpoint"
        return (
            f"{rows.capitalize()} chose the posterior{also}: compare on others. "
            f"{self.posterior.choice.verdict()} It is in {folder}."
        )


def _read_in_order(loaders: list[DataLoader[Any]], size: int) -> DataLoader[Any]:
    """Read the rows of loaders one after another: unshuffled, none left out."""
    datasets = [loader.dataset for loader in loaders]
    return DataLoader(
        datasets[0] if len(datasets) == 1 else ConcatDataset(datasets),
        batch_size=size,
        collate_fn=loaders[0].collate_fn,
        # Without one of its own it would draw from the global generator.
        generator=torch.Generator(),
    )
