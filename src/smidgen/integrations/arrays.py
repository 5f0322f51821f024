"""Tables of numbers and images as tensors: .npz, CSV, IDX and CIFAR-10 binaries.

Several files, or a folder with CIFAR-10's batches, are one set of examples.

Images are channels first with values in [0, 1]. Nothing here runs code from a file: an
.npz that holds objects is refused.
"""

from __future__ import annotations

import csv
import gzip
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError

_INPUTS = ("x", "inputs", "images", "data", "features")
_LABELS = ("y", "labels", "label", "targets", "target")
_MOST_CLASSES = 1 << 20
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)
_UNREADABLE_FILE = "{} cannot be read: {}. Check that the file is whole."
_CIFAR_PIXELS = 3 * 32 * 32
# Number types of an IDX file, by the third byte of its header.
_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


@dataclass(frozen=True, eq=False)
class Arrays:
    """Examples: inputs (N, features) or (N, channels, height, width), and classes (N,)."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | Tensor) -> Arrays:
        return Arrays(self.inputs[rows], self.labels[rows])

    @property
    def classes(self) -> int:
        """One more than the largest label."""
        return int(self.labels.max()) + 1

    def split(self, count: int, generator: torch.Generator) -> tuple[Arrays, Arrays]:
        """Divide at random: all but `count` examples, and those `count`."""
        if not 0 < count < len(self):
            raise ArgumentError(
                f"the held-out part must have 1 to {len(self) - 1} examples, got {count}."
            )
        order = torch.randperm(len(self), generator=generator)
        return self[order[count:]], self[order[:count]]


class ArrayBatches:
    """Batches of arrays held in memory, in a new order every time if shuffled."""

    def __init__(
        self, arrays: Arrays, size: int, *, shuffle: bool = False, seed: int = 0
    ) -> None:
        self.dataset = arrays
        self.size = size
        self.shuffle = shuffle
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.arange(len(self.dataset))
        if self.shuffle:
            order = torch.randperm(len(self.dataset), generator=self.generator)
        for rows in order.split(self.size):
            yield self.dataset.inputs[rows], self.dataset.labels[rows]


def read_arrays(path: str | Path, *, label: str | int = -1) -> Arrays:
    """Read examples from a file, whose name tells its format.

    Args:
        path: `.npz` with inputs (`x`, `images`, …) and labels (`y`, `labels`, …); an IDX
            file of images or its `.gz`, with the file of labels beside it; a CIFAR-10
            `.bin`, or the folder with all its `data_batch_*.bin`; or a `.csv` of numbers.
        label: The column of a CSV that holds the class: its name, or its number.

    Returns:
        The examples.

    Raises:
        DataError: If the file cannot be read as any of these.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("data_batch_*.bin"))
        if not files:
            raise DataError(
                f"the folder {path} must hold CIFAR-10's data_batch_*.bin. Give that folder, "
                "or files."
            )
        return join_arrays([read_arrays(file) for file in files], files)
    name = path.name.removesuffix(".gz")
    if not path.is_file():
        raise DataError(f"{path} must be a file that exists. Check the spelling.")
    try:
        if name.endswith(".npz"):
            arrays = _read_npz(path)
        elif name.endswith(".csv"):
            arrays = _read_csv(path, label)
        elif name.endswith(".bin"):
            arrays = _read_cifar(path)
        elif "-idx" in name or "ubyte" in name:
            arrays = _read_idx_pair(path)
        else:
            raise DataError(
                f"{path} must be .npz, .csv, .bin (CIFAR-10) or an IDX file of images "
                "(…-images-idx3-ubyte, .gz or not). Give one of these."
            )
    except DataError:
        raise
    except _UNREADABLE as error:
        raise DataError(_UNREADABLE_FILE.format(path, error)) from error
    _check(arrays, path)
    return arrays


def join_arrays(parts: Sequence[Arrays], names: Sequence[str | Path]) -> Arrays:
    """Join the examples of several files, whose names are for errors."""
    shape = parts[0].inputs.shape[1:]
    for arrays, name in zip(parts, names, strict=True):
        if arrays.inputs.shape[1:] != shape:
            raise DataError(
                f"{name} must hold examples of shape {tuple(shape)}, as {names[0]}, got "
                f"{tuple(arrays.inputs.shape[1:])}."
            )
    if len(parts) == 1:
        return parts[0]
    inputs = torch.cat([arrays.inputs for arrays in parts])
    return Arrays(inputs, torch.cat([arrays.labels for arrays in parts]))


def measure_moments(train: Arrays) -> tuple[Tensor, Tensor]:
    """Measure mean and standard deviation of each feature or channel, (features, 1, …)."""
    axes = [0, *range(2, train.inputs.dim())]
    mean = train.inputs.mean(axes, keepdim=True)[0]
    deviation = train.inputs.std(axes, keepdim=True)[0]
    # A constant feature stays as it is; so does every feature of a single example.
    return mean, torch.where(deviation > 0, deviation, torch.ones_like(deviation))


def standardise(train: Arrays, *others: Arrays) -> tuple[Arrays, ...]:
    """Standardise features or channels by the moments of the training data."""
    mean, deviation = measure_moments(train)
    return tuple(
        Arrays((arrays.inputs - mean) / deviation, arrays.labels)
        for arrays in (train, *others)
    )


def _read_npz(path: Path) -> Arrays:
    inputs, labels = load_npz(path)
    if labels is None:
        raise DataError(f"{path} must hold labels ({', '.join(_LABELS)}), got none.")
    return Arrays(as_pixels(inputs), _as_classes(labels, path))


def load_npz(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Load the inputs of an .npz, and its labels if it has them; objects are refused."""
    try:
        # Opened here: numpy leaves the file of a damaged archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = {name.lower(): name for name in archive.files}
            inputs = next((names[n] for n in _INPUTS if n in names), None)
            labels = next((names[n] for n in _LABELS if n in names), None)
            if inputs is None:
                raise DataError(
                    f"{path} must hold inputs ({', '.join(_INPUTS)}) and labels "
                    f"({', '.join(_LABELS)}), got {', '.join(archive.files)}."
                )
            return archive[inputs], None if labels is None else archive[labels]
    except DataError:
        raise
    except _UNREADABLE as error:
        raise DataError(_UNREADABLE_FILE.format(path, error)) from error


def _as_classes(labels: np.ndarray, path: Path) -> Tensor:
    whole = labels.astype(np.int64)
    wrong = labels[labels != whole]
    if wrong.size:
        raise DataError(f"the labels of {path} must be whole numbers, got {wrong[0]}.")
    return torch.from_numpy(whole)


def as_pixels(values: np.ndarray) -> Tensor:
    """Scale bytes to [0, 1], and put the channels of images first."""
    scaled = values.astype(np.float32)
    if values.dtype == np.uint8:
        scaled /= 255
    if scaled.ndim == 3:
        scaled = scaled[:, None]
    elif scaled.ndim == 4 and scaled.shape[-1] in (1, 3) and scaled.shape[1] not in (1, 3):
        scaled = scaled.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(scaled))


def _read_csv(path: Path, label: str | int) -> Arrays:
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row]
    if not rows:
        raise DataError(f"{path} must hold at least one row, got none.")
    header = None if all(map(_is_number, rows[0])) else rows.pop(0)
    if isinstance(label, str):
        if header is None or label not in header:
            raise DataError(
                f"{path} has no column {label!r}. Its columns: {', '.join(header or [])}."
            )
        label = header.index(label)
    for row in rows:
        words = [cell for cell in row if not _is_number(cell)]
        if words:
            raise DataError(
                f"{path} must hold numbers only, got {words[0]!r}. Write classes as 0, 1, "
                "2 and leave other columns out."
            )
    values = np.array(rows, dtype=np.float32)
    inputs = np.delete(values, label, axis=1)
    return Arrays(torch.from_numpy(inputs), _as_classes(values[:, label], path))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_cifar(path: Path) -> Arrays:
    raw = np.frombuffer(_read_bytes(path), np.uint8)
    if not raw.size or raw.size % (_CIFAR_PIXELS + 1):
        raise DataError(
            f"{path} must hold records of {_CIFAR_PIXELS + 1} bytes, got {raw.size} bytes."
        )
    records = raw.reshape(-1, _CIFAR_PIXELS + 1)
    images = records[:, 1:].reshape(-1, 3, 32, 32)
    return Arrays(as_pixels(images), torch.from_numpy(records[:, 0].astype(np.int64)))


def _read_idx_pair(path: Path) -> Arrays:
    partner = find_idx_labels(path)
    if partner is None:
        raise DataError(
            f"{path} must be named …-images-idx3-ubyte, with …-labels-idx1-ubyte beside it."
        )
    labels = read_idx(partner).astype(np.int64)
    return Arrays(as_pixels(read_idx(path)), torch.from_numpy(labels))


def find_idx_labels(path: Path) -> Path | None:
    """Find the IDX file of labels beside one of images, if it is there."""
    partner = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    return partner if partner != path and partner.exists() else None


def read_idx(path: Path) -> np.ndarray:
    """Read the array of an IDX file, .gz or not."""
    try:
        return _parse_idx(_read_bytes(path))
    except _UNREADABLE as error:
        raise DataError(_UNREADABLE_FILE.format(path, error)) from error


def _parse_idx(content: bytes) -> np.ndarray:
    dtype = np.dtype(_IDX_TYPES[content[2]])
    axes = content[3]
    head = 4 + 4 * axes
    shape = np.frombuffer(content[4:head], ">u4").astype(np.int64)
    return np.frombuffer(content[head:], dtype).reshape(shape)


def _read_bytes(path: Path) -> bytes:
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            return file.read()
    return path.read_bytes()


def _check(arrays: Arrays, path: Path) -> None:
    inputs, labels = tuple(arrays.inputs.shape), tuple(arrays.labels.shape)
    if labels != inputs[:1] or not len(arrays):
        raise DataError(
            f"{path} must hold one label for each example, got inputs of shape {inputs} and "
            f"labels of shape {labels}."
        )
    wrong = (arrays.labels < 0) | (arrays.labels >= _MOST_CLASSES)
    if wrong.any():
        raise DataError(
            f"the labels of {path} must be classes from 0 to {_MOST_CLASSES - 1:,}, got "
            f"{int(arrays.labels[wrong][0])} in {_name_row(wrong)}. Number the classes 0, 1, 2."
        )
    unknown = ~torch.isfinite(arrays.inputs)
    if unknown.any():
        raise DataError(
            f"the inputs of {path} must be finite numbers, got "
            f"{float(arrays.inputs[unknown][0])} in {_name_row(unknown.flatten(1).any(1))}. "
            "Leave such examples out, or fill in what is missing."
        )


def _name_row(wrong: Tensor) -> str:
    return f"example {int(wrong.nonzero()[0])}, counted from 0"
