"""SSVI: train a Bayesian network that is sparse from the first step to the last.

Minimises −ELBO/N at a temperature, over the active weights only,

    L = (1/B) Σ_b −log p(y_b | x_b, θ) + T β_t KL(q ‖ p) / N,   θ ~ q,

β_t rising from 0 to 1 over the warm-up, and moves the active set as it goes
(`smidgen.sparse.rewire`). T = 1 is variational inference; less is a cold posterior
and is named so. The baselines are the same code: density 1 is dense mean-field VI, a
deterministic network is sparse training in the manner of RigL (Evci et al., 2020), both
at once are plain training.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import cycle, islice
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, SmidgenWarning, StoreError
from smidgen.fit.epochs import validation_scores
from smidgen.fit.preparation import training_length, training_size
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior.sparse import SparsePosterior
from smidgen.runtime.checkpoint import read_checkpoint, write_checkpoint
from smidgen.runtime.guard import disable_recomputing, preserve_model
from smidgen.runtime.loader import ResumableLoader, find_generators
from smidgen.runtime.progress import track
from smidgen.sparse.build import FirstWeights, make_sparse
from smidgen.sparse.grow import Loss
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.rewire import ActiveSetChange, Rewiring, Schedule
from smidgen.sparse.training import (
    SparseEpoch,
    SparseTraining,
    describe_network,
    pack_history,
    pack_training,
    restore_training,
    unpack_history,
)
from smidgen.types import Batch

_DENSITY = 0.1


def ssvi(
    model: nn.Module | Problem,
    train: Iterable[Batch],
    validation: Iterable[Batch] | None = None,
    *,
    density: float | None = None,
    start: FirstWeights | None = None,
    training: SparseTraining | None = None,
    num_data: int | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> SparsePosterior:
    """Train sparse Gaussian weights on a copy of a model.

    Args:
        model: A model, or its `Problem`: its layers are made sparse as `make_sparse`
            does by default. Or the network that `make_sparse` made, for other
            choices. It stays as it is.
        train: Training batches, read once per epoch; a loader with a length. Its
            generators are put back as they were.
        validation: Held-out batches, scored after every epoch and never used otherwise.
        density: Active share of the weights, 0.1 if left out; for a model that is not
            sparse yet.
        start: "random", also if left out, for a new model: a random active set, its
            weights scaled up. "magnitude" for a trained model: its largest weights as
            they are. For a model that is not sparse yet.
        training: How to train.
        num_data: What the KL term counts against, N: examples, or labelled tokens where
            every token has a label. Taken from the loader's `dataset` if left out.
        seed: Seed of all randomness: the active set of a model that is not sparse yet,
            noise, dropout and the order of batches.
        checkpoint: A file to write after every epoch and to resume from if it is there;
            the result is the same bit for bit. One of another run is refused.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        The posterior of the last epoch, with its history.

    Raises:
        DataError: If a loader yields nothing, or the loss is not finite.
    """  # noqa: DOC502
    training_length(train)
    place = _place(checkpoint)
    training = training or SparseTraining()
    given = as_problem(model)
    # Inside a caller's inference mode nothing made could be trained.
    with torch.inference_mode(False):
        network = _network(given.model, density, start, seed)
    problem = replace(given, model=network.model)
    batches = ResumableLoader(train)
    with batches.seeded(seed), preserve_model(network):
        problem, _, _ = problem.settle(train)
        count = training_size(problem, train, num_data)
    with (
        batches.seeded(seed),
        torch.random.fork_rng(),
        torch.enable_grad(),
        torch.inference_mode(False),
        disable_recomputing(network),
    ):
        torch.manual_seed(seed)
        # Not the stream that drew a first active set from the same seed.
        network.generator.manual_seed(int(torch.randint(2**62, ())))
        run = _Run(network, problem, training, train, count, seed)
        run.resume(place)
        for number in range(len(run.history) + 1, training.epochs + 1):
            label = f"training, epoch {number} of {training.epochs}"
            run.epoch(number, track(train, label, show=progress), validation)
            run.save(place)
    network.eval()
    return SparsePosterior(
        network=network,
        likelihood=problem.likelihood,
        num_data=count,
        history=tuple(run.history),
        changes=tuple(run.moves),
        state_bytes=network.state_bytes(run.optimiser),
        derived_bytes=network.derived_bytes,
    )


def _place(checkpoint: str | Path | None) -> Path | None:
    place = None if checkpoint is None else Path(checkpoint)
    if place is not None and place.is_dir():
        raise StoreError(
            f"checkpoint must be a file, got the folder {place}. Name a file in it."
        )
    return place


def _network(
    model: nn.Module, density: float | None, start: FirstWeights | None, seed: int
) -> SparseNetwork:
    """A sparse network of one's own: a copy, or made from a plain model."""
    if not isinstance(model, SparseNetwork):
        share = _DENSITY if density is None else density
        return make_sparse(model, density=share, start=start or "random", seed=seed)
    for name, value in (("density", density), ("start", start)):
        if value is not None:
            raise ArgumentError(
                f"{name} must be left out for a network that is sparse already, got "
                f"{value!r}. Give it to smidgen.make_sparse."
            )
    return deepcopy(model)


class _Run:
    """A training over several epochs that can stop after any and go on."""

    def __init__(
        self,
        network: SparseNetwork,
        problem: SettledProblem,
        training: SparseTraining,
        train: Iterable[Batch],
        num_data: int,
        seed: int,
    ) -> None:
        self.network, self.problem, self.training = network, problem, training
        self.steps = training.epochs * training_length(train)
        self.num_data, self.seed = num_data, seed
        self.generators = find_generators(train)
        self.optimiser = _optimiser(network, training)
        schedule = Schedule(self.steps, training.every, training.replaced, training.until)
        _mention_still(network, schedule)
        self.alternation = Rewiring(
            network, self.optimiser, schedule, removal=training.removal
        )
        self.history: list[SparseEpoch] = []
        self.moves: list[ActiveSetChange] = []
        # Before the first step: what is trained from here on is compared by it.
        self.about = {
            "method": "ssvi",
            **describe_network(network),
            **asdict(training),
            "steps": self.steps,
            "num_data": num_data,
            "seed": seed,
            "likelihood": repr(problem.likelihood),
        }

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
            # In the same order after every epoch, also of a resumed training.
            with (
                ResumableLoader(validation).seeded(self.seed),
                preserve_model(self.network),
            ):
                nll, accuracy = validation_scores(self.problem, validation)
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

    def _losses(self, batches: Sequence[Batch]) -> Iterator[Loss]:
        """As many passes as asked for; the batches come again until there are so many."""
        for batch in islice(cycle(batches), self.training.passes):

            def loss(batch: Batch = batch) -> Tensor:
                found = _loss(self.problem, batch)
                assert found is not None
                return found[0]

            yield loss

    def save(self, place: Path | None) -> None:
        """Write all that `resume` needs."""
        if place is None:
            return
        paths = {name: part.path for name, part in self.network.layers.items()}
        step = self.alternation.step
        course = pack_history(self.history, self.moves, paths=paths, step=step)
        state = pack_training(self.network, self.optimiser, self.generators)
        write_checkpoint(place, {**state, **course}, self.about)

    def resume(self, place: Path | None) -> None:
        """Go on where a checkpoint stopped, if there is one of this very training."""
        tensors = None if place is None else read_checkpoint(place, self.about)
        if tensors is None:
            return
        self.history, self.moves, notes = unpack_history(tensors)
        restore_training(
            tensors, notes["paths"], self.network, self.optimiser, self.generators
        )
        self.alternation.step = int(notes["step"])


def _mention_still(network: SparseNetwork, schedule: Schedule) -> None:
    """Warn where the active set was to move and never will."""
    wanted = schedule.fraction > 0 and schedule.until > 0 and network.count < network.total
    # The first of all moves comes after `every` steps.
    if wanted and not schedule.fraction_at(schedule.every) > 0:
        warnings.warn(
            f"the active set will never move: every={schedule.every}, and it stays after "
            f"{schedule.until * schedule.steps:g} of {schedule.steps} steps. Pass "
            f"SparseTraining(every={max(1, schedule.steps // 20)}).",
            SmidgenWarning,
            stacklevel=4,
        )


def _optimiser(network: SparseNetwork, training: SparseTraining) -> torch.optim.Optimizer:
    logs = [p.log_scales for p in network.layers.values() if p.log_scales is not None]
    own = {id(each) for each in logs}
    others = [p for p in network.parameters() if p.requires_grad and id(p) not in own]
    groups: list[dict[str, Any]] = [
        {"params": others, "weight_decay": training.weight_decay, "multiple": 1.0}
    ]
    if logs:
        rate = training.scale_rate
        groups.append({"params": logs, "weight_decay": 0.0, "multiple": rate})
    if training.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=training.learning_rate, momentum=0.9)
    return torch.optim.AdamW(groups, lr=training.learning_rate, fused=True)


def _loss(problem: SettledProblem, batch: Batch) -> tuple[Tensor, int] | None:
    """Mean NLL of a batch and its labelled rows; None without any."""
    return problem.mean_nll(batch, problem.training_outputs(batch))
