"""SSVI: train a Bayesian network that is sparse from the first step to the last.

Minimises −ELBO/N at a temperature, over the active weights only,

    L = (1/B) Σ_b −log p(y_b | x_b, θ) + T β_t KL(q ‖ p) / N,   θ ~ q,

β_t rising from 0 to 1 over the warm-up, and moves the active set as it goes
(`smidgen.sparse.alternation`). T = 1 is variational inference; less is a cold posterior
and is named so. The baselines are the same code: density 1 is dense mean-field VI, a
deterministic network is sparse training in the manner of RigL (Evci et al., 2020), both
at once are plain training.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from math import cos, pi
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from smidgen.endless import generators_of
from smidgen.errors import ArgumentError, DataError, StoreError
from smidgen.fit.preparation import training_size
from smidgen.guard import untouched
from smidgen.likelihood import Categorical, Likelihood
from smidgen.problem import Problem, as_problem
from smidgen.progress import track
from smidgen.sparse.addition import Loss
from smidgen.sparse.alternation import Alternation, Move, Schedule
from smidgen.sparse.checkpoint import (
    has_checkpoint,
    read_notes,
    restore_checkpoint,
    save_checkpoint,
)
from smidgen.sparse.making import sparse_bayesian
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.removal import Removal
from smidgen.types import Batch


@dataclass(frozen=True)
class SparseTraining:
    """How to train; the defaults are plain variational inference at temperature 1.

    Args:
        epochs: Passes over the training data.
        learning_rate: First rate; it falls to zero as a cosine. Few weights are larger
            weights, so a sparse network wants a higher one than a dense one.
        scale_rate: Rate of the log-scales, as a multiple of it.
        optimiser: "adam", or "sgd" with momentum 0.9.
        temperature: T, what the KL term is multiplied with.
        warm_up: Share of the steps over which the KL term grows from nothing.
        weight_decay: Decay of means and all else but log-scales: a second prior, off
            unless asked for.
        removal: The score that decides which weights go.
        every: Steps between moves of the active set.
        replaced: Share of the active weights that the first moves replace.
        until: Share of the steps after which the active set stays.
        passes: Batches, each under noise of its own, that the gradients of inactive
            weights are averaged over.

    Raises:
        ArgumentError: If one is outside what it may be.
    """

    epochs: int = 20
    learning_rate: float = 3e-3
    scale_rate: float = 1.0
    optimiser: Literal["adam", "sgd"] = "adam"
    temperature: float = 1.0
    warm_up: float = 0.25
    weight_decay: float = 0.0
    removal: Removal = "snr"
    every: int = 100
    replaced: float = 0.3
    until: float = 0.75
    passes: int = 4

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.passes < 1:
            raise ArgumentError(
                f"epochs and passes must be 1 or more, got {self.epochs} and {self.passes}."
            )
        if not self.learning_rate > 0 or not self.scale_rate >= 0:
            raise ArgumentError(
                f"learning_rate must be > 0 and scale_rate >= 0, got {self.learning_rate} "
                f"and {self.scale_rate}."
            )
        if not self.temperature >= 0 or not 0 <= self.warm_up <= 1:
            raise ArgumentError(
                f"temperature must be >= 0 and warm_up in [0, 1], got {self.temperature} "
                f"and {self.warm_up}."
            )
        if self.optimiser not in ("adam", "sgd"):
            raise ArgumentError(
                f"optimiser must be 'adam' or 'sgd', got {self.optimiser!r}."
            )


@dataclass(frozen=True)
class SparseEpoch:
    """What one epoch came to; validation is of the means, where there is any.

    `connectivity` is the share of active weights at each input of each map.
    """

    number: int
    train_nll: float
    kl: float
    nll: float | None
    accuracy: float | None
    seconds: float
    connectivity: Mapping[str, Sequence[float]] = field(repr=False)


@dataclass(frozen=True, eq=False)
class SparseFit:
    """A trained network, what its outputs mean, and how it came about."""

    network: SparseNetwork
    likelihood: Likelihood
    history: tuple[SparseEpoch, ...]
    moves: tuple[Move, ...] = field(repr=False)
    state_bytes: int


def ssvi(
    model: nn.Module | Problem,
    train: Iterable[Batch],
    validation: Iterable[Batch] | None = None,
    *,
    density: float = 0.1,
    training: SparseTraining | None = None,
    num_data: int | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> SparseFit:
    """Train sparse Gaussian weights on a copy of a model.

    Args:
        model: A new or a trained model, or its `Problem`: its maps are made sparse as
            `sparse_bayesian` does by default. Or the network that `sparse_bayesian`
            made, for other choices. It stays as it is.
        train: Training batches, read once per epoch; a loader with a length.
        validation: Held-out batches, scored after every epoch and never used otherwise.
        density: Active share of the weights, if a plain model is given.
        training: How to train.
        num_data: Training examples, N; the length of the loader's `dataset` if left out.
        seed: Seed of the active set, the noise and dropout; the order of batches is the
            loader's.
        checkpoint: A folder to write after every epoch and to resume from if it is
            there; the result is the same bit for bit.
        progress: Draw a progress bar on a terminal.

    Returns:
        The network of the last epoch, in evaluation mode, and its history.

    Raises:
        DataError: If a loader yields nothing, or the loss is not finite.
    """
    if not isinstance(train, Sized) or not len(train):
        raise DataError("the training loader must have a length of 1 or more batches.")
    training = training or SparseTraining()
    given = as_problem(model)
    if isinstance(given.model, SparseNetwork):
        network = deepcopy(given.model)
    else:
        network = sparse_bayesian(given.model, density=density, seed=seed)
    problem = replace(given, model=network.model)
    with untouched(network):
        problem, _, _ = problem.settled(train)
    count = training_size(problem, train, num_data)
    with torch.random.fork_rng(), torch.enable_grad(), torch.inference_mode(False):
        torch.manual_seed(seed)
        run = _Run(network, problem, training, len(train), count)
        place = None if checkpoint is None else Path(checkpoint)
        generators = generators_of(train)
        if place is not None and has_checkpoint(place):
            run.resume(place, generators)
        for number in range(len(run.history) + 1, training.epochs + 1):
            label = f"training, epoch {number} of {training.epochs}"
            run.epoch(number, track(train, label, show=progress), validation)
            if place is not None:
                notes = run.notes()
                save_checkpoint(place, network, run.optimiser, generators, notes)
    network.eval()
    assert problem.likelihood is not None
    held = network.state_bytes(run.optimiser)
    return SparseFit(
        network, problem.likelihood, tuple(run.history), tuple(run.moves), held
    )


class _Run:
    """A training over several epochs that can stop after any and go on."""

    def __init__(
        self,
        network: SparseNetwork,
        problem: Problem,
        training: SparseTraining,
        batches: int,
        num_data: int,
    ) -> None:
        self.network, self.problem, self.training = network, problem, training
        self.steps = training.epochs * batches
        self.num_data = num_data
        self.optimiser = _optimiser(network, training)
        schedule = Schedule(self.steps, training.every, training.replaced, training.until)
        self.alternation = Alternation(
            network, self.optimiser, schedule, removal=training.removal
        )
        self.history: list[SparseEpoch] = []
        self.moves: list[Move] = []

    def epoch(
        self, number: int, batches: Iterable[Batch], validation: Iterable[Batch] | None
    ) -> None:
        """Train on all batches once, and score the means on held-out data."""
        started = time.perf_counter()
        self.network.train()
        # Only of this epoch, so that a resumed training sees the same batches.
        recent: deque[Batch] = deque(maxlen=self.training.passes)
        total, seen = 0.0, 0
        for batch in batches:
            loss, rows = self._step(batch)
            if rows:
                recent.append(batch)
            total, seen = total + loss * rows, seen + rows
            move = self.alternation.advance(lambda: self._losses(recent))
            if move is not None:
                self.moves.append(move)
        seconds = time.perf_counter() - started
        kl = float(self.network.kl().detach()) if self.network.stochastic else 0.0
        nll = accuracy = None
        if validation is not None:
            nll, accuracy = _scored(self.network, self.problem, validation)
        epoch = SparseEpoch(
            number,
            total / max(seen, 1),
            kl,
            nll,
            accuracy,
            seconds,
            self.network.connectivity(),
        )
        self.history.append(epoch)

    def _step(self, batch: Batch) -> tuple[float, int]:
        step, training = self.alternation.step, self.training
        factor = (1 + cos(pi * step / self.steps)) / 2
        for group in self.optimiser.param_groups:
            group["lr"] = training.learning_rate * factor * group["multiple"]
        found = _loss(self.problem, batch)
        if found is None:
            return 0.0, 0
        loss, rows = found
        objective = loss
        if self.network.stochastic and training.temperature > 0:
            warm = min(1.0, (step + 1) / max(1.0, training.warm_up * self.steps))
            weight = training.temperature * warm / self.num_data
            objective = loss + weight * self.network.kl()
        self.optimiser.zero_grad(set_to_none=True)
        objective.backward()
        self.optimiser.step()
        return float(loss.detach()), rows

    def _losses(self, batches: Iterable[Batch]) -> Iterator[Loss]:
        for batch in batches:

            def loss(batch: Batch = batch) -> Tensor:
                found = _loss(self.problem, batch)
                assert found is not None
                return found[0]

            yield loss

    def notes(self) -> dict[str, Any]:
        """What a resumed training must know besides tensors."""
        return {
            "step": self.alternation.step,
            "settings": self._settings(),
            "history": [asdict(epoch) for epoch in self.history],
            "moves": [asdict(move) for move in self.moves],
        }

    def resume(self, folder: Path, generators: Mapping[str, torch.Generator]) -> None:
        """Go on where a checkpoint stopped.

        Args:
            folder: The checkpoint.
            generators: The loader's own source of randomness, if it has one.

        Raises:
            StoreError: If it is of another training.
        """
        notes = read_notes(folder)
        if notes["settings"] != self._settings():
            raise StoreError(
                f"{folder} was written by a training with other settings: "
                f"{notes['settings']}. Give the same, or another folder."
            )
        restore_checkpoint(folder, self.network, self.optimiser, generators)
        self.alternation.step = int(notes["step"])
        self.history = [SparseEpoch(**epoch) for epoch in notes["history"]]
        self.moves = [Move(**move) for move in notes["moves"]]

    def _settings(self) -> dict[str, Any]:
        counted = {"steps": self.steps, "num_data": self.num_data}
        return {**asdict(self.training), **counted}


def _optimiser(network: SparseNetwork, training: SparseTraining) -> torch.optim.Optimizer:
    logs = [p for n, p in network.named_parameters() if n.endswith("log_scales")]
    others = [p for n, p in network.named_parameters() if not n.endswith("log_scales")]
    groups: list[dict[str, Any]] = [
        {"params": others, "weight_decay": training.weight_decay, "multiple": 1.0}
    ]
    if logs:
        rate = training.scale_rate
        groups.append({"params": logs, "weight_decay": 0.0, "multiple": rate})
    if training.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=training.learning_rate, momentum=0.9)
    return torch.optim.AdamW(groups, lr=training.learning_rate, fused=True)


def _loss(problem: Problem, batch: Batch) -> tuple[Tensor, int] | None:
    """Mean NLL of a batch and its labelled rows; None without any."""
    return problem.mean_nll(batch, problem.training_outputs(batch))


def _scored(
    network: SparseNetwork, problem: Problem, batches: Iterable[Batch]
) -> tuple[float, float | None]:
    """Mean NLL and accuracy of the means."""
    assert problem.likelihood is not None
    nll, hits, seen = 0.0, 0.0, 0
    with untouched(network), torch.no_grad():
        for batch in batches:
            outputs = problem.outputs(batch).flatten(0, -2)
            targets, kept = problem.read(batch, outputs)
            if targets is None:
                raise DataError("validation needs labels, and a batch has none.")
            outputs, targets = outputs[kept], targets[kept]
            nll -= float(problem.likelihood.log_prob(outputs, targets).double().sum())
            if isinstance(problem.likelihood, Categorical):
                hits += float((outputs.argmax(-1) == targets).sum())
            seen += len(targets)
    if not seen:
        raise DataError("the validation loader yielded no labelled example.")
    classes = isinstance(problem.likelihood, Categorical)
    return nll / seen, hits / seen if classes else None
