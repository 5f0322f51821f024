"""What all estimators share: the seed, the rows of each part, and what predictions say."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import nn

from smidgen.decide import Rules
from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.reading.task_note import TaskKind
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.links import Link
from smidgen.outputs.predictive import CategoricalPredictive, Predictive
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.prediction.predict import predict_batches
from smidgen.sklearn.fitting import FitPlan, FittedNetwork, MakeBatches, RowParts
from smidgen.types import Batch
from smidgen.workflows.rules import make_rules

PREDICTED_ROWS = 256
"""Rows of a batch of those that are predicted."""
_SEEDS = 2**31 - 1


class BayesEstimator(BaseEstimator):  # type: ignore[misc]
    """A network and its posterior as an estimator."""

    module_: nn.Module
    posterior_: Posterior
    n_iter_: int

    def make_plan(self, kind: TaskKind, batch_size: int) -> FitPlan:
        """Gather the parameters that say how to fit; the seed is drawn as others draw it."""
        return FitPlan(
            kind,
            batch_size,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            trained=self.prefit,
            settings=self.settings,
            seed=int(check_random_state(self.random_state).randint(_SEEDS)),
            progress=self.verbose,
        )

    def predict_batched(self, problem: Problem, batches: Iterable[Batch]) -> Predictive:
        """Predict batches; of classes with the probabilities of all, however many there are."""
        posterior = self.posterior_
        classes = isinstance(posterior.likelihood, Categorical)
        link = Link(keep="all") if posterior.linearised and classes else "auto"
        return predict_batches(posterior, problem, batches, link=link, progress=False)

    def keep_fitted(self, fitted: FittedNetwork) -> None:
        """Keep what a fit made."""
        self.module_, self.posterior_ = fitted.module, fitted.posterior
        self.n_iter_ = fitted.epochs

    @abstractmethod
    def predict_distribution(self, X: Any) -> Predictive:
        """Predict rows: probabilities or mean and variance, with their uncertainty."""


class BayesClassifierBase(ClassifierMixin, BayesEstimator):  # type: ignore[misc]
    """A classifier whose probabilities, sets and silences come from a posterior."""

    classes_: NDArray[Any]
    rules_: Rules

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the likeliest class of each row.

        Args:
            X: The rows.

        Returns:
            The classes, (N,).
        """
        check_is_fitted(self)
        return self.classes_[self._predict_classes(X).predicted.numpy()]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict the probability of each class.

        Args:
            X: The rows.

        Returns:
            The probabilities, (N, C), in the order of `classes_`.
        """
        check_is_fitted(self)
        probs = self._predict_classes(X).probs.double()
        # fp32 probabilities of a text model sum to one but for its rounding.
        return (probs / probs.sum(1, keepdim=True)).numpy()

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict the log-probability of each class.

        Args:
            X: The rows.

        Returns:
            The log-probabilities, (N, C), in the order of `classes_`.
        """
        check_is_fitted(self)
        logs = self._predict_classes(X).log_probs.double()
        return logs.log_softmax(1).numpy()

    def abstain(self, X: Any) -> NDArray[np.bool_]:
        """Say of which rows the answer should be "I don't know".

        Of the others at most `max_error` are wrong, as `rules_.abstain` promises of rows like
        those that made it.

        Args:
            X: The rows.

        Returns:
            True where a row should not be answered, (N,).

        Raises:
            ArgumentError: If no rule was made.
        """
        rule = self._require_rules().abstain
        if rule is None:
            raise self._refuse_missing("to abstain")
        return ~rule.apply(self._predict_classes(X)).numpy()

    def predict_set(self, X: Any) -> NDArray[np.bool_]:
        """Predict a set of classes that holds the true one as often as `coverage` says.

        Args:
            X: The rows.

        Returns:
            True for each class in the set of a row, (N, C), in the order of `classes_`.

        Raises:
            ArgumentError: If no rule was made.
        """
        rule = self._require_rules().sets
        if rule is None:
            raise self._refuse_missing("for sets")
        return rule.apply(self._predict_classes(X)).numpy()

    def keep_rules(self, problem: Problem, batch: MakeBatches, parts: RowParts) -> None:
        """Make rules from the rows that chose nothing else, if there are any."""
        if "decision" in parts:
            self.rules_ = make_rules(
                self.posterior_,
                problem,
                batch(parts["decision"], False),
                max_error=self.max_error,
                coverage=self.coverage,
                progress=False,
            )
        elif hasattr(self, "rules_"):
            del self.rules_

    def _predict_classes(self, X: Any) -> CategoricalPredictive:
        predictive = self.predict_distribution(X)
        assert isinstance(predictive, CategoricalPredictive)
        return predictive

    def _require_rules(self) -> Rules:
        check_is_fitted(self)
        return getattr(self, "rules_", Rules())

    def _refuse_missing(self, purpose: str) -> ArgumentError:
        return ArgumentError(
            f"rule_fraction must leave enough rows for a rule {purpose}, got "
            f"{self.rule_fraction} and no such rule. Fit again with rule_fraction=0.2, or on "
            "more rows."
        )


def refuse_fit_parameters(given: dict[str, Any]) -> None:
    """Refuse weights of rows, and anything else that a fit would have to leave unused."""
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(
                f"{name} must be left out, got {type(value).__name__}. Training, calibration "
                "and rules count every row once; repeat rows that shall count for more."
            )


def number_classes(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Number the classes in sorted order.

    Args:
        y: The class of each row, (N,).

    Returns:
        The classes, and the number of each row's class.

    Raises:
        DataError: If there is one class alone.
    """
    classes, numbers = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise DataError(
            f"y must have 2 classes or more, got one class, {classes[0]!r}. Add rows of "
            "another."
        )
    return classes, numbers.astype(np.int64)
