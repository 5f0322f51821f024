"""A loader that is read again and again, and can be resumed at the same batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from smidgen.errors import DataError, StoreError
from smidgen.types import Batch


class ResumableLoader:
    """The batches of a loader that can be read again, epoch after epoch, without end.

    An interrupted run continues with the batch that came next: the random state at the
    start of the epoch is remembered, the loader is started again from it, and the batches
    that were read are skipped. A loader without a generator draws its order from torch's
    global one, so use this within `torch.random.fork_rng`.
    """

    def __init__(self, loader: Iterable[Batch]) -> None:
        self.loader = loader
        self.epoch = 0
        self.position = 0
        self._iterator: Iterator[Batch] | None = None
        self._start: dict[str, Tensor] = {}

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._start = {"global": torch.get_rng_state(), **self._generator_states()}
            self._iterator = iter(self.loader)
        batch = next(self._iterator, _END)
        if batch is _END:
            if not self.position:
                advice = "Check the dataset's length and drop_last."
                if self.epoch:
                    advice = "Pass a loader that can be read again, not an iterator."
                raise DataError(f"the training loader yielded no batch. {advice}")
            self.epoch, self.position, self._iterator = self.epoch + 1, 0, None
            return next(self)
        self.position += 1
        return batch

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Draw the order of batches from a seed; the loader's generators are restored."""
        generators, before = find_generators(self.loader), self._generator_states()
        try:
            for generator in generators.values():
                generator.manual_seed(seed)
            yield
        finally:
            for path, generator in generators.items():
                generator.set_state(before[path])

    def finish_epoch(self) -> None:
        """End the epoch here, so that resuming after it reads none of it again."""
        # The loader has to see its own end: samplers may draw once more there.
        for _ in self._iterator or ():
            pass
        self.epoch, self.position = self.epoch + 1, 0
        self._iterator, self._start = None, {}

    def state(self) -> dict[str, Tensor]:
        """What `resume` needs: epoch, position, and the random states of its start."""
        place = torch.tensor([self.epoch, self.position])
        return {"place": place, **(self._start or self._generator_states())}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Go on where another left off; torch's global random state stays as it is."""
        self.epoch, position = state["place"].tolist()
        if self.epoch < 0 or position < 0:
            raise StoreError(f"the loader cannot be at batch {position}")
        start = {name: value for name, value in state.items() if name != "place"}
        for name, generator in find_generators(self.loader).items():
            if name in start:
                generator.set_state(start[name])
        if "global" not in start:
            return
        now = torch.get_rng_state()
        torch.set_rng_state(start["global"])
        self._start = start
        self._iterator = iter(self.loader)
        for self.position in range(1, position + 1):
            if next(self._iterator, _END) is _END:
                raise DataError(
                    f"the training loader has {self.position - 1} batches, fewer than the "
                    f"{position} its interrupted run had read. Resume with the same loader."
                )
        torch.set_rng_state(now)

    def _generator_states(self) -> dict[str, Tensor]:
        generators = find_generators(self.loader)
        return {path: generator.get_state() for path, generator in generators.items()}


_END: Any = object()
_GENERATOR_PATHS = (
    "generator",
    "sampler.generator",
    "batch_sampler.generator",
    "batch_sampler.sampler.generator",
)


def find_generators(loader: Iterable[Batch]) -> dict[str, torch.Generator]:
    """Find the random generators that a torch loader draws from, each once."""
    generators: dict[str, torch.Generator] = {}
    for path in _GENERATOR_PATHS:
        value: Any = loader
        for attribute in path.split("."):
            value = getattr(value, attribute, None)
        if isinstance(value, torch.Generator) and value not in generators.values():
            generators[path] = value
    return generators
