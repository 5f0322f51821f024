"""`BayesClassifier` and `BayesRegressor`: a PyTorch module on tables of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from smidgen.decide import intervals
from smidgen.decide.calibration_rows import require_open_fraction
from smidgen.integrations.arrays import ArrayBatches, Arrays
from smidgen.integrations.devices import find_device
from smidgen.outputs.likelihood import Categorical, Gaussian, Likelihood
from smidgen.outputs.predictive import GaussianPredictive, Predictive
from smidgen.outputs.problem import Problem
from smidgen.sklearn.estimators import (
    PREDICTED_ROWS,
    BayesClassifierBase,
    BayesEstimator,
    number_classes,
    refuse_fit_parameters,
)
from smidgen.sklearn.fitting import (
    FitPlan,
    MakeBatches,
    RowParts,
    divide_rows_for_fit,
    fit_network,
)
from smidgen.sklearn.modules import (
    ModuleSource,
    as_inputs,
    group_equal_rows,
    make_module,
    require_outputs,
)
from smidgen.workflows.bayesify.settings import BayesifySettings
from smidgen.workflows.run.training import HIDDEN


class _TableEstimator(BayesEstimator):
    """A module on tables of numbers."""

    n_features_in_: int

    def fit_table(
        self,
        X: NDArray[np.float64],
        targets: Tensor,
        likelihood: Likelihood,
        classes: Sequence[int] | None = None,
    ) -> tuple[Problem, MakeBatches, RowParts]:
        """Fit the module; return its problem, what makes batches of rows, and the parts."""
        plan: FitPlan = self.make_plan("table", self.batch_size)
        parts = divide_rows_for_fit(
            len(X), group_equal_rows(X), classes, self.rule_fraction, plan
        )
        module = make_module(
            self.module,
            torch.tensor(X)[torch.tensor(parts["train"])],
            likelihood.outputs,
            hidden=self.hidden,
            seed=plan.seed,
            trained=plan.trained,
        ).to(find_device(self.device))
        problem = Problem(module).with_likelihood(likelihood)
        data = Arrays(as_inputs(problem, X), targets)
        require_outputs(problem, data.inputs[:2])

        def batch(rows: Sequence[int], shuffle: bool) -> ArrayBatches:
            some = data[torch.tensor(rows)]
            return ArrayBatches(some, self.batch_size, shuffle=shuffle, seed=plan.seed)

        self.keep_fitted(fit_network(problem, batch, parts, plan))
        return Problem(self.module_, likelihood), batch, parts

    def predict_distribution(self, X: Any) -> Predictive:
        """Predict rows: probabilities, or mean and variance, with their uncertainty.

        Args:
            X: The rows, (N, F).

        Returns:
            What `smidgen.predict` returns; of a regression in standardised units.
        """
        check_is_fitted(self)
        checked = validate_data(self, X, dtype=np.float64, reset=False)
        problem = Problem(self.module_, self.posterior_.likelihood)
        return self.predict_batched(
            problem, as_inputs(problem, checked).split(PREDICTED_ROWS)
        )


class BayesClassifier(BayesClassifierBase, _TableEstimator):
    """A classifier around a PyTorch module, with calibrated probabilities.

        classifier = BayesClassifier(random_state=0).fit(X, y)
        classifier.predict_proba(X_new)

    Args:
        module: A `torch.nn.Module` with an output for each class, of which a copy is trained;
            a function of the numbers of features and of classes that makes one; or None for
            an MLP that standardises its inputs.
        prefit: The module is trained already. Then `fit` takes rows that did *not* train it.
        hidden: The hidden units of the MLP.
        epochs: The largest number of epochs; by default what suits the number of rows.
        learning_rate: The peak learning rate.
        batch_size: Rows of a batch.
        rule_fraction: The share of rows that chooses nothing and makes `rules_`, for
            `abstain` and `predict_set`.
        max_error: The largest error rate among the rows that are answered.
        coverage: How often a set must hold the true class.
        settings: What `smidgen.bayesify` tries.
        device: Where to compute: a device of torch, or "auto".
        random_state: Fixes everything random.
        verbose: Show progress bars.
    """

    def __init__(
        self,
        module: ModuleSource = None,
        *,
        prefit: bool = False,
        hidden: tuple[int, ...] = HIDDEN,
        epochs: int | None = None,
        learning_rate: float | None = None,
        batch_size: int = 64,
        rule_fraction: float = 0.0,
        max_error: float = 0.05,
        coverage: float = 0.9,
        settings: BayesifySettings | None = None,
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.module = module
        self.prefit = prefit
        self.hidden = hidden
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.rule_fraction = rule_fraction
        self.max_error = max_error
        self.coverage = coverage
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Train the module unless it is trained, and make it Bayesian as far as that pays.

        Of 80 rows or more some are held out: they say when to stop, and calibrate.

        Args:
            X: Rows of numbers, (N, F).
            y: The class of each, (N,), of any kind that can be sorted. Of a module that is
                trained, output number k is the k-th of them in that order.
            **unsupported: Refused, so `sample_weight` too.

        Returns:
            The estimator.
        """
        refuse_fit_parameters(unsupported)
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, numbers = number_classes(column_or_1d(y, warn=True))
        targets = torch.tensor(numbers)
        made = self.fit_table(
            X, targets, Categorical(len(self.classes_)), classes=numbers.tolist()
        )
        self.keep_rules(*made)
        return self


class BayesRegressor(RegressorMixin, _TableEstimator):  # type: ignore[misc]
    """A regressor around a PyTorch module, with a calibrated variance.

        regressor = BayesRegressor(random_state=0).fit(X, y)
        mean, std = regressor.predict(X_new, return_std=True)

    Args:
        module: A `torch.nn.Module` with one output, of which a copy is trained; a function of
            the numbers of features and of outputs that makes one; or None for an MLP that
            standardises its inputs. It is trained on standardised targets.
        prefit: The module is trained already, on targets as they are. Then `fit` takes rows
            that did *not* train it.
        hidden: The hidden units of the MLP.
        epochs: The largest number of epochs; by default what suits the number of rows.
        learning_rate: The peak learning rate.
        batch_size: Rows of a batch.
        rule_fraction: The share of rows that chooses nothing; with them `predict_interval`
            has the coverage that is asked for on new rows like these.
        settings: What `smidgen.bayesify` tries.
        device: Where to compute: a device of torch, or "auto".
        random_state: Fixes everything random.
        verbose: Show progress bars.
    """

    def __init__(
        self,
        module: ModuleSource = None,
        *,
        prefit: bool = False,
        hidden: tuple[int, ...] = HIDDEN,
        epochs: int | None = None,
        learning_rate: float | None = None,
        batch_size: int = 64,
        rule_fraction: float = 0.0,
        settings: BayesifySettings | None = None,
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.module = module
        self.prefit = prefit
        self.hidden = hidden
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.rule_fraction = rule_fraction
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Train the module unless it is trained, and make it Bayesian as far as that pays.

        Of 80 rows or more some are held out: they say when to stop, and calibrate.

        Args:
            X: Rows of numbers, (N, F).
            y: The number of each, (N,).
            **unsupported: Refused, so `sample_weight` too.

        Returns:
            The estimator.
        """
        refuse_fit_parameters(unsupported)
        X, y = validate_data(
            self, X, y, dtype=np.float64, ensure_min_samples=2, y_numeric=True
        )
        y = column_or_1d(y, warn=True).astype(np.float64)
        self.target_mean_, self.target_scale_ = 0.0, 1.0
        if not self.prefit:
            self.target_mean_, self.target_scale_ = float(y.mean()), float(y.std()) or 1.0
        targets = torch.tensor((y - self.target_mean_) / self.target_scale_)[:, None]
        problem, batch, parts = self.fit_table(X, targets, Gaussian(1))
        # What `predict_interval` makes its intervals from, at any coverage.
        self.rule_rows_: tuple[Predictive, Tensor] | None = None
        if "decision" in parts:
            rows = parts["decision"]
            predictive = self.predict_batched(problem, batch(rows, False))
            self.rule_rows_ = predictive, targets[torch.tensor(rows)]
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the mean of each row's number.

        Args:
            X: The rows, (N, F).
            return_std: Return the standard deviation of a new observation as well.

        Returns:
            The means, (N,); or means and standard deviations.
        """
        gaussian = self._predict_gaussian(X)
        mean = self._unscale(gaussian.mean)
        if not return_std:
            return mean
        return mean, gaussian.total_variance.double().sqrt()[:, 0].numpy() * (
            self.target_scale_
        )

    def predict_interval(
        self, X: Any, coverage: float = 0.95
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict an interval that holds the number of a row as often as `coverage` says.

        With `rule_fraction` above 0 that holds for new rows like those fitted, whatever the
        noise (split conformal); without, as far as the calibrated normal distribution does.

        Args:
            X: The rows, (N, F).
            coverage: How often an interval must hold the number, in (0, 1).

        Returns:
            The lower and the upper ends, (N,) each.
        """
        require_open_fraction("coverage", coverage, 0.95)
        gaussian = self._predict_gaussian(X)
        if self.rule_rows_ is not None:
            rule = intervals(*self.rule_rows_, coverage=coverage)
            low, high = rule.apply(gaussian)
        else:
            low, high = gaussian.central_interval(coverage)
        return self._unscale(low), self._unscale(high)

    def _predict_gaussian(self, X: Any) -> GaussianPredictive:
        predictive = self.predict_distribution(X)
        assert isinstance(predictive, GaussianPredictive)
        return predictive

    def _unscale(self, values: Tensor) -> NDArray[np.float64]:
        """Turn standardised numbers (N, 1) into those of y, (N,)."""
        numbers = values.double()[:, 0].numpy()
        return numbers * self.target_scale_ + self.target_mean_
