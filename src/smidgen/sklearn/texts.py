"""`BayesTextClassifier`: a Hugging Face model on lists of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d
from torch import nn

from smidgen.errors import ArgumentError
from smidgen.integrations.reading.splitting import group_rows
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.integrations.text import TextTable
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.predictive import Predictive
from smidgen.outputs.problem import Problem
from smidgen.sklearn.estimators import (
    BayesClassifierBase,
    number_classes,
    refuse_fit_parameters,
)
from smidgen.sklearn.fitting import divide_rows_for_fit, fit_network
from smidgen.sklearn.text_rows import read_texts
from smidgen.types import Batch
from smidgen.workflows.bayesify.settings import BayesifySettings
from smidgen.workflows.run.task_model import TaskModel
from smidgen.workflows.run.text_base import (
    list_text_classes,
    load_text_base,
    load_text_model,
)


class BayesTextClassifier(BayesClassifierBase):
    """A text classifier with calibrated probabilities.

        classifier = BayesTextClassifier("my-model", random_state=0).fit(texts, labels)
        classifier.predict_proba(new_texts)

    Args:
        model: The folder or hub id of the model to fine-tune; by default MiniLM, if its
            package is installed.
        prefit: The model is a trained classifier. Then `fit` takes texts that did *not* train
            it, and labels that are named as its classes are.
        epochs: The largest number of epochs; by default 5.
        learning_rate: The peak learning rate; by default 5e-5.
        batch_size: Texts of a batch.
        max_length: Longer texts are cut to this many tokens.
        rule_fraction: The share of texts that chooses nothing and makes `rules_`, for
            `abstain` and `predict_set`.
        max_error: The largest error rate among the texts that are answered.
        coverage: How often a set must hold the true class.
        settings: What `smidgen.bayesify` tries.
        device: Where to compute: a device of torch, or "auto".
        random_state: Fixes everything random.
        verbose: Show progress bars.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        prefit: bool = False,
        epochs: int | None = None,
        learning_rate: float | None = None,
        batch_size: int = 16,
        max_length: int = 128,
        rule_fraction: float = 0.0,
        max_error: float = 0.05,
        coverage: float = 0.9,
        settings: BayesifySettings | None = None,
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.prefit = prefit
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_length = max_length
        self.rule_fraction = rule_fraction
        self.max_error = max_error
        self.coverage = coverage
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Fine-tune the model unless it is trained, and make it Bayesian as far as that pays.

        Of 80 texts or more some are held out: they say when to stop, and calibrate.

        Args:
            X: Texts: a list, an array or a column of them, or a data frame whose columns make
                one text a row.
            y: The class of each, (N,).
            **unsupported: Refused, so `sample_weight` too.

        Returns:
            The estimator.
        """
        refuse_fit_parameters(unsupported)
        texts, self.text_columns_ = read_texts(X)
        check_consistent_length(texts, y)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        plan = self.make_plan("text", self.batch_size)
        if self.prefit:
            task, self.classes_, numbers = self._take_trained(y)
        else:
            self.classes_, numbers = number_classes(y)
            task = self._load_base(plan.seed)
        table = TextTable(texts, labels=tuple(numbers.tolist()))
        parts = divide_rows_for_fit(
            len(table), group_rows(table.keys()), numbers.tolist(), self.rule_fraction, plan
        )

        def batch(rows: Sequence[int], shuffle: bool) -> Iterable[Batch]:
            some = table.take(rows)
            if not shuffle:
                # Texts of one length share a batch.
                some = some.take(some.by_length())
            return task.batch(some, size=self.batch_size, shuffle=shuffle, seed=plan.seed)

        self.keep_fitted(fit_network(task.problem, batch, parts, plan))
        self.tokenizer_, self.note_ = task.tokenizer, task.note
        self.keep_rules(self._make_task().problem, batch, parts)
        return self

    def predict_distribution(self, X: Any) -> Predictive:
        """Predict texts: probabilities with their uncertainty.

        Args:
            X: Texts, as `fit` takes them.

        Returns:
            What `smidgen.predict` returns.
        """
        check_is_fitted(self)
        texts, _ = read_texts(X, self.text_columns_)
        task, table = self._make_task(), TextTable(texts)
        order = table.by_length()
        batches = task.batch(table.take(order), size=self.batch_size)
        predictive = self.predict_batched(task.problem, batches)
        return predictive.take(torch.tensor(order).argsort())

    def __sklearn_tags__(self) -> Any:
        """Say that it takes texts, one a row."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def _load_base(self, seed: int) -> TaskModel:
        """Load the model to fine-tune, with a new head."""
        note = TaskNote("text", classes=tuple(map(str, self.classes_)))
        network, tokenizer, base = load_text_base(
            self.model, note, seed=seed, device=self.device
        )
        return self._pose(network, tokenizer, replace(note, base=base))

    def _take_trained(
        self, y: NDArray[Any]
    ) -> tuple[TaskModel, NDArray[Any], NDArray[np.int64]]:
        """Load a trained classifier, and number labels as it does."""
        if self.model is None:
            raise ArgumentError(
                "model must be a trained classifier's folder or id with prefit=True, got none. "
                "Name one."
            )
        network, tokenizer = load_text_model(self.model, device=self.device)
        names = list_text_classes(network)
        known = {str(label): label for label in np.unique(y).tolist()}
        if names is None or not known.keys() <= set(names):
            raise ArgumentError(
                f"y must have the classes of the model, {', '.join(names or ('a number',))}, "
                f"got {', '.join(sorted(known))}. Name classes as the model does."
            )
        if len(known) < len(names):
            missing = ", ".join(name for name in names if name not in known)
            raise ArgumentError(
                f"y must have a text of every class of the model, got none of {missing}. Add "
                "such texts."
            )
        classes = np.asarray([known[name] for name in names])
        place = {name: number for number, name in enumerate(names)}
        numbers = np.asarray([place[str(label)] for label in y.tolist()], dtype=np.int64)
        note = TaskNote("text", classes=names, base=self.model)
        return self._pose(network, tokenizer, note), classes, numbers

    def _pose(self, network: nn.Module, tokenizer: Any, note: TaskNote) -> TaskModel:
        length = min(self.max_length, tokenizer.model_max_length)
        count = len(note.classes or ())
        problem = Problem(network, Categorical(count))
        return TaskModel(problem, replace(note, max_length=length), tokenizer)

    def _make_task(self) -> TaskModel:
        """Pose the fitted network, which reads texts as in training."""
        problem = Problem(self.module_, self.posterior_.likelihood)
        return TaskModel(problem, self.note_, self.tokenizer_)
