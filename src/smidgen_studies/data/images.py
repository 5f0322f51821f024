"""The images of a cell: its seed's split, test images, and images of another kind.

Validation images are drawn from the training file by the seed; test images are the same
for all seeds. All are standardised by the training images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch

from smidgen.errors import DataError
from smidgen.integrations.arrays import ArrayBatches, Arrays, read_arrays, standardise
from smidgen_studies.engine.cell import Job, locate
from smidgen_studies.engine.settings import Count

_SCORED_AT_ONCE = 1000


@dataclass(frozen=True)
class ImageData:
    """What a study's file says of one data set.

    `outside` are files of other kinds of images, by name. Without `train_size` and
    `test_size`, which limits `outside` too, all images are used.
    """

    name: str
    train: str
    test: str
    outside: Mapping[str, str] = field(default_factory=dict)
    validation_size: Count = 10_000
    train_size: Count | None = None
    test_size: Count | None = None


@dataclass(frozen=True, eq=False)
class Images:
    """The examples of one seed."""

    train: Arrays
    validation: Arrays
    test: Arrays
    outside: Mapping[str, Arrays]

    @property
    def sizes(self) -> dict[str, int]:
        """How many images each set has."""
        return {name: len(getattr(self, name)) for name in ("train", "validation", "test")}

    def shuffled(self, size: int, seed: int, count: int | None = None) -> ArrayBatches:
        """Make training batches of the first `count` images, by default all, in random order."""
        if count is not None and not 0 < count <= len(self.train):
            raise DataError(
                f"images must be 1 to {len(self.train)}, got {count}. Lower it."
            )
        return ArrayBatches(self.train[:count], size, shuffle=True, seed=seed)


def read_images(job: Job) -> Images:
    """Read the images of a job and draw its validation images by its seed."""
    return _read(job.root, json.dumps(vars(job.data)), job.seed)


def scoring_batches(arrays: Arrays) -> ArrayBatches:
    """Make batches to predict, in order."""
    return ArrayBatches(arrays, _SCORED_AT_ONCE)


# Reading and standardising takes seconds, and cells of a seed follow each other.
@lru_cache(maxsize=1)
def _read(root: Path | None, description: str, seed: int) -> Images:
    data = ImageData(**json.loads(description))
    generator = torch.Generator().manual_seed(seed)
    train, held = _file(root, data, data.train).split(data.validation_size, generator)
    size = len(train) if data.train_size is None else data.train_size
    if not 0 < size <= len(train):
        raise DataError(
            f"train_size of {data.name!r} must be 1 to {len(train)}, got {size}. Lower it."
        )
    others = [
        _file(root, data, path)[: data.test_size]
        for path in (data.test, *data.outside.values())
    ]
    train, held, test, *outside = standardise(train[:size], held, *others)
    return Images(train, held, test, dict(zip(data.outside, outside, strict=True)))


def _file(root: Path | None, data: ImageData, name: str) -> Arrays:
    path = locate(name, root, data.name)
    if not path.is_file():
        raise DataError(f"{path} is not there. Check --data, the folder it is under.")
    return read_arrays(path)
