"""SSVI: train a Bayesian network that is sparse from the first step to the last.

Minimises −ELBO/N at a temperature, over the active weights only,

    L = (1/B) Σ_b −log p(y_b | x_b, θ) + T β_t KL(q ‖ p) / N,   θ ~ q,

β_t rising from 0 to 1 over the warm-up, and moves the active set as it goes
(`smidgen.sparse.rewire`). T = 1 is variational inference; less is a cold posterior. The
noise of a regression is at every step the one that maximises the ELBO: the mean squared
residual under recent draws. The baselines are the same code: density 1 is dense mean-field
VI, a deterministic network is sparse training in the manner of RigL (Evci et al., 2020),
both at once are plain training.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import cycle, islice
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.curvature.output_layers import check_last_layer
from smidgen.errors import ArgumentError, fill_settings, warn
from smidgen.fit.data_size import count_training_batches, count_training_data
from smidgen.fit.epochs import (
    require_finite_gradients,
    require_labelled,
    validation_scores,
)
from smidgen.fit.training_run import TrainingRun
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.outputs.residuals import RunningNoise
from smidgen.posterior.sparse import SparsePosterior
from smidgen.runtime.checkpoint import of_prefix, with_prefix
from smidgen.runtime.guard import disable_recomputing, preserve_random_state
from smidgen.runtime.loader import ResumableLoader
from smidgen.sparse.build import make_sparse
from smidgen.sparse.grow import Loss
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.rewire import ActiveSetChange, Rewiring, Schedule
from smidgen.sparse.training import (
    SparseEpoch,
    SsviSettings,
    describe_network,
    pack_history,
    pack_training,
    restore_training,
    unpack_history,
)
from smidgen.types import Batch
from smidgen.weights.subset import Subset, check_subset


def ssvi(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    subset: Subset | None = None,
    *,
    validation: Iterable[Batch] | None = None,
    settings: SsviSettings | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> SparsePosterior:
    """Train sparse Gaussian weights on a copy of a model.

    Args:
        model: A model, or its `Problem`, made sparse with the defaults of `make_sparse`,
            or a network that `make_sparse` made. It is not changed.
        batches: Training batches, read once per epoch; a loader with a length. Its
            generators are restored afterwards.
        subset: The active set to start from, in place of a density; for a model that is
            not sparse yet.
        validation: Held-out batches, scored after every epoch and never used otherwise.
        settings: How to train.
        seed: Seed of all randomness: a new active set, noise, dropout, order of batches.
        checkpoint: A file, written after each epoch, to resume from bit for bit. That of
            another run is refused.
        progress: Show a progress bar.

    Returns:
        The posterior of the last epoch, its network in evaluation mode. A regression's
        noise is fitted along the way, whatever the likelihood came with; for each output
        if the likelihood has relative noises.

    Raises:
        DataError: If a loader yields nothing, or the loss is not finite.
    """  # noqa: DOC502
    settings = fill_settings(settings, SsviSettings)
    length = count_training_batches(batches)
    if subset is not None:
        check_subset(subset)
    dense = as_problem(model)
    # Inside a caller's inference mode nothing made could be trained.
    with torch.inference_mode(False):
        network = _make_network(dense.model, subset, settings, seed)
    problem = replace(dense, model=network.model)
    loader = ResumableLoader(batches)
    with loader.seeded(seed), preserve_random_state(network):
        problem, first, _ = problem.settle(batches)
        problem.require_labels(first)
        if subset is not None and subset.claims_last:
            check_last_layer(dense, first, subset)
        num_data = count_training_data(problem, batches, settings.num_data)
    with (
        loader.seeded(seed),
        preserve_random_state(network, seeding=True),
        torch.enable_grad(),
        disable_recomputing(network),
    ):
        torch.manual_seed(seed)
        # Not the stream that drew a first active set from the same seed.
        network.generator.manual_seed(int(torch.randint(2**62, ())))
        training = _Training(network, problem, settings, length, num_data)
        # Beside its state Adam keeps two numbers for each value.
        size = 3 * network.state_bytes()
        run = TrainingRun(
            training, loader, lambda: training.describe(seed), checkpoint, size
        )
        run.resume()
        left = range(len(training.history) + 1, settings.epochs + 1)
        for number, epoch in run.epochs(left, length, "training", progress):
            training.train(number, epoch, validation, seed)
    network.eval()
    return SparsePosterior(
        network=network,
        likelihood=training.problem.likelihood,
        num_data=num_data,
        history=tuple(training.history),
        changes=tuple(training.changes),
        state_bytes=network.state_bytes(training.optimiser),
        derived_bytes=network.derived_bytes,
    )


def _make_network(
    model: nn.Module, subset: Subset | None, settings: SsviSettings, seed: int
) -> SparseNetwork:
    """Copy a sparse network, or make one from a plain model."""
    if not isinstance(model, SparseNetwork):
        density, start = settings.density, settings.start
        return make_sparse(model, subset, density=density, start=start, seed=seed)
    choices = {"density": settings.density, "start": settings.start, "subset": subset}
    for name, value in choices.items():
        if value is not None:
            raise ArgumentError(
                f"{name} must be left out for a network that is sparse already, got "
                f"{value!r}. Give it to smidgen.make_sparse."
            )
    return deepcopy(model)


class _Training:
    """The steps of SSVI and the history of its epochs."""

    def __init__(
        self,
        network: SparseNetwork,
        problem: SettledProblem,
        settings: SsviSettings,
        length: int,
        num_data: int,
    ) -> None:
        self.network, self.problem, self.settings = network, problem, settings
        self.steps = settings.epochs * length
        self.num_data = num_data
        self.optimiser = _make_optimiser(network, settings)
        schedule = Schedule(self.steps, settings.every, settings.replaced, settings.until)
        _warn_if_fixed(network, schedule)
        self.rewiring = Rewiring(
            network, self.optimiser, schedule, removal=settings.removal
        )
        self.history: list[SparseEpoch] = []
        self.changes: list[ActiveSetChange] = []
        self.noise: RunningNoise | None = None
        if isinstance(problem.likelihood, Gaussian):
            # Over an epoch: every example has had its say.
            self.noise = RunningNoise(problem.likelihood, length)

    def describe(self, seed: int) -> dict[str, Any]:
        """What a checkpoint must match; call before the first step."""
        settings = asdict(self.settings)
        # The network says what became of these.
        del settings["density"], settings["start"]
        return {
            "method": "ssvi",
            **describe_network(self.network),
            **settings,
            "steps": self.steps,
            "num_data": self.num_data,
            "seed": seed,
            "likelihood": repr(self.problem.likelihood),
        }

    def train(
        self,
        number: int,
        batches: Iterable[Batch],
        validation: Iterable[Batch] | None,
        seed: int,
    ) -> None:
        """Train for one epoch, and score the means on validation data."""
        started = time.perf_counter()
        self.network.train()
        # Only of this epoch, so that a resumed training sees the same batches.
        recent: deque[Batch] = deque(maxlen=self.settings.passes)
        total, seen = 0.0, 0
        for index, batch in enumerate(batches, 1):
            with self.problem.reading(batch, index):
                loss, rows = self._step(batch)
            if rows:
                recent.append(batch)
            total, seen = total + loss * rows, seen + rows
            change = self.rewiring.advance(lambda: self._losses(recent))
            if change is not None:
                self.changes.append(change)
        require_labelled(seen)
        seconds = time.perf_counter() - started
        kl = float(self.network.kl().detach()) if self.network.stochastic else 0.0
        nll = accuracy = None
        if validation is not None:
            # In the same order after every epoch, also of a resumed training.
            with ResumableLoader(validation).seeded(seed):
                nll, accuracy = validation_scores(self.problem, validation)
        connectivity = self.network.connectivity()
        train_nll = total / seen
        self.history.append(
            SparseEpoch(number, train_nll, kl, nll, accuracy, seconds, connectivity)
        )

    def _step(self, batch: Batch) -> tuple[float, int]:
        step, settings = self.rewiring.step, self.settings
        factor = (1 + cos(pi * step / self.steps)) / 2
        for group in self.optimiser.param_groups:
            group["lr"] = settings.learning_rate * factor * group["multiple"]
        outputs = self.problem.training_outputs(batch)
        self._fit_noise(batch, outputs.detach())
        loss_and_rows = self.problem.mean_nll(batch, outputs)
        if loss_and_rows is None:
            return 0.0, 0
        loss, rows = loss_and_rows
        objective = loss
        if self.network.stochastic and settings.temperature > 0:
            warm = min(1.0, (step + 1) / max(1.0, settings.warm_up * self.steps))
            weight = settings.temperature * warm / self.num_data
            objective = loss + weight * self.network.kl()
        self.optimiser.zero_grad(set_to_none=True)
        objective.backward()
        require_finite_gradients(self.network.parameters())
        self.optimiser.step()
        return float(loss.detach()), rows

    def _fit_noise(self, batch: Batch, outputs: Tensor) -> None:
        """Take a regression's noise from the residuals, those of this batch among them."""
        # Of outputs that are not finite the loss says so.
        if self.noise is None or not bool(torch.isfinite(outputs).all()):
            return
        targets, labelled = self.problem.read(batch, outputs)
        if targets is not None and bool(labelled.any()):
            likelihood = self.noise.add(outputs[labelled], targets[labelled])
            self.problem = replace(self.problem, likelihood=likelihood)

    def _loss(self, batch: Batch) -> tuple[Tensor, int] | None:
        """Mean NLL of a batch and its labelled rows; None without any."""
        return self.problem.mean_nll(batch, self.problem.training_outputs(batch))

    def _losses(self, batches: Sequence[Batch]) -> Iterator[Loss]:
        """Yield as many losses as `passes`, cycling through the batches."""
        for batch in islice(cycle(batches), self.settings.passes):

            def loss(batch: Batch = batch) -> Tensor:
                loss_and_rows = self._loss(batch)
                assert loss_and_rows is not None
                return loss_and_rows[0]

            yield loss

    def state(self) -> dict[str, Tensor]:
        """All that the next epoch depends on."""
        paths = {name: layer.path for name, layer in self.network.layers.items()}
        step = self.rewiring.step
        noise = {} if self.noise is None else self.noise.state()
        return {
            **with_prefix("noise", noise),
            **pack_training(self.network, self.optimiser),
            **pack_history(self.history, self.changes, paths=paths, step=step),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from an earlier state."""
        self.history, self.changes, notes = unpack_history(state)
        restore_training(state, notes["paths"], self.network, self.optimiser)
        self.rewiring.step = int(notes["step"])
        if self.noise is not None:
            likelihood = self.noise.restore(of_prefix("noise", state))
            self.problem = replace(self.problem, likelihood=likelihood)


def _warn_if_fixed(network: SparseNetwork, schedule: Schedule) -> None:
    """Warn if the settings ask for an active set that moves and it never will."""
    movable = schedule.fraction > 0 and schedule.until > 0 and network.count < network.total
    # The first move comes after `every` steps.
    if movable and not schedule.fraction_at(schedule.every) > 0:
        warn(
            f"the active set will never move: every={schedule.every}, and it stays after "
            f"{schedule.until * schedule.steps:g} of {schedule.steps} steps. Pass "
            f"SsviSettings(every={max(1, schedule.steps // 20)})."
        )


def _make_optimiser(
    network: SparseNetwork, settings: SsviSettings
) -> torch.optim.Optimizer:
    scales = [p.log_scales for p in network.layers.values() if p.log_scales is not None]
    ids = {id(scale) for scale in scales}
    others = [p for p in network.parameters() if p.requires_grad and id(p) not in ids]
    groups: list[dict[str, Any]] = [
        {"params": others, "weight_decay": settings.weight_decay, "multiple": 1.0}
    ]
    if scales:
        multiple = settings.scale_rate
        groups.append({"params": scales, "weight_decay": 0.0, "multiple": multiple})
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=0.9)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
