"""A training that can be interrupted and resumes bit for bit, whatever it trains.

It reads the batches, shows progress, and keeps the checkpoint: the state of the loader and
of torch's random numbers beside the state of what is trained. The method takes the steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError, StoreError, reason
from smidgen.runtime.artifact import MALFORMED
from smidgen.runtime.checkpoint import (
    of_prefix,
    read_checkpoint,
    with_prefix,
    write_checkpoint,
)
from smidgen.runtime.files import sweep
from smidgen.runtime.loader import ResumableLoader
from smidgen.runtime.progress import track
from smidgen.runtime.writing.writable import require_writable
from smidgen.types import Batch

# Checkpoints with another number are refused: they hold other tensors.
_FORMAT = 2
# Slow steps are saved more often than `save_every` says: at most half a minute is lost.
_SECONDS = 30.0


class Learner(Protocol):
    """What a run trains."""

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the state of an interrupted run."""


class TrainingRun:
    """A training over epochs or steps.

    `describe` says what is trained, in JSON values: a checkpoint of another training is
    refused. `checkpoint` is the file to save to and to resume from; None for neither. `size`
    is about how many bytes it will have.
    """

    def __init__(
        self,
        learner: Learner,
        batches: ResumableLoader,
        describe: Callable[[], Mapping[str, Any]],
        checkpoint: str | Path | None,
        size: int = 0,
    ) -> None:
        self.learner, self.batches = learner, batches
        self.path = None if checkpoint is None else Path(checkpoint)
        self._due = monotonic() + _SECONDS
        if self.path is None:
            return
        self.description = {"checkpoint format": _FORMAT, **describe()}
        # A new one is written whole beside the last.
        times = 1 if os.path.exists(self.path) else 2
        require_writable(self.path, "checkpoint", size=times * size)
        sweep(self.path)

    def resume(self) -> None:
        """Continue from the checkpoint if there is one; refuse one that does not fit."""
        tensors = (
            None if self.path is None else read_checkpoint(self.path, self.description)
        )
        if tensors is None:
            return
        try:
            parts = [of_prefix(part, tensors) for part in ("learner", "loader", "random")]
            if len(tensors) > sum(map(len, parts)):
                raise StoreError("it holds what no training wrote")
            self.learner.restore(parts[0])
            self.batches.resume(parts[1])
            torch.set_rng_state(parts[2].pop("cpu"))
            for index, state in parts[2].items():
                torch.cuda.set_rng_state(state, int(index))
        except DataError:
            raise  # The loader is another one.
        except MALFORMED as error:
            raise StoreError(
                f"checkpoint {self.path} does not fit this training ({reason(error)}). "
                "Delete it to start anew."
            ) from error

    def save(self) -> None:
        """Write all that `resume` needs."""
        if self.path is None:
            return
        random = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            states = enumerate(torch.cuda.get_rng_state_all())
            random |= {str(index): state for index, state in states}
        tensors = {
            **with_prefix("learner", self.learner.state()),
            **with_prefix("loader", self.batches.state()),
            **with_prefix("random", random),
        }
        write_checkpoint(self.path, tensors, self.description)
        self._due = monotonic() + _SECONDS

    def steps(
        self, left: range, label: str | Callable[[], str], save_every: int, progress: bool
    ) -> Iterator[tuple[int, Batch]]:
        """Yield a batch for each remaining step (from 0); save every so many of them."""
        for step in track(left, label, show=progress):
            yield step, next(self.batches)
            if (step + 1) % save_every == 0 or monotonic() > self._due:
                self.save()

    def epochs(
        self, left: range, length: int, activity: str, progress: bool
    ) -> Iterator[tuple[int, Iterator[Batch]]]:
        """Yield the `length` batches of each remaining epoch (from 1); save after each."""
        for number in left:
            label = f"{activity}, epoch {number} of {left.stop - 1}"
            batches = islice(self.batches, length)
            yield number, track(batches, label, total=length, show=progress)
            self.batches.finish_epoch()
            self.save()


def check_save_every(checkpoint_every: int) -> None:
    """Refuse an interval between checkpoints below one step."""
    if checkpoint_every < 1:
        raise ArgumentError(f"checkpoint_every must be 1 or more, got {checkpoint_every}.")
