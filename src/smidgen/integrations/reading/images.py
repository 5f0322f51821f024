"""Images with their classes: IDX, .npz, CIFAR-10 binaries, or a folder for each class.

Images are channels first with values in [0, 1]. Folders of images need Pillow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smidgen.errors import DataError, reason
from smidgen.integrations.arrays import (
    as_pixels,
    find_idx_labels,
    load_npz,
    read_arrays,
    read_idx,
)
from smidgen.integrations.labels import Labels
from smidgen.types import Shape

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_SENT = ("PNG", "JPEG", "WEBP")
MOST_PIXELS = 40_000_000
"""Pixels that somebody may send: of one picture, or of several that come together."""
_LARGEST_SIDE = 32
"""Larger pictures of a folder are scaled to squares of this size."""
_WIDE = 100.0
"""A span of floats that is wider was not scaled to about one."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (N, channels, height, width); their class numbers and file names where known."""

    inputs: Tensor
    labels: Labels | None = None
    label_names: tuple[str, ...] | None = None
    files: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def shape(self) -> Shape:
        """Channels, height and width."""
        return tuple(self.inputs.shape[1:])

    def take(self, rows: Sequence[int]) -> ImageSet:
        """Take some images, in this order."""
        return ImageSet(
            self.inputs[torch.as_tensor(list(rows), dtype=torch.long)],
            None if self.labels is None else tuple(self.labels[row] for row in rows),
            self.label_names,
            None if self.files is None else tuple(self.files[row] for row in rows),
        )

    def keys(self) -> list[tuple[Hashable, ...]]:
        """List what makes each image the same as another: all of its pixels."""
        return [(sha256(image.numpy().tobytes()).digest(),) for image in self.inputs]


def read_image_set(path: Path, *, shape: Shape | None = None) -> tuple[ImageSet, list[Any]]:
    """Read images, and their labels as they stand, an empty list if there are none.

    Args:
        path: An IDX file of images (.gz or not; its labels beside it), an .npz, a CIFAR-10
            .bin, or a folder with a folder of pictures for each class. Pictures to predict
            may stand in one folder, or be a single file.
        shape: The shape that a trained model takes; pictures of a folder are scaled to it,
            other images must have it.

    Returns:
        The images without labels, and the labels.

    Raises:
        DataError: If nothing can be read there, or images have another shape.
    """
    if not path.exists():
        raise DataError(f"{path} must be a file or folder that exists. Check its name.")
    if path.is_dir() and not any(path.glob("data_batch_*.bin")):
        images, labels = _read_folder(path, shape)
    elif path.suffix.lower() in _PICTURES:
        images, labels = _read_pictures([path], path.parent, shape), []
    else:
        images, labels = _read_file(path)
    if not len(images):
        raise DataError(f"{path} must hold at least one image, got none. Add some.")
    if images.inputs.dim() != 4:
        raise DataError(
            f"{path} must hold images (number, height, width), got shape "
            f"{tuple(images.inputs.shape)}. Pass --table if it is a table."
        )
    if shape is not None:
        check_images(images, shape, None, path)
    return images, labels


def check_images(
    images: ImageSet, shape: Shape, span: tuple[float, float] | None, where: Path | str
) -> None:
    """Refuse images of another shape, or on another scale, than those of training.

    Args:
        images: New images.
        shape: The shape in training.
        span: The smallest and the largest value in training; None checks the shape alone.
        where: Where the images came from.

    Raises:
        DataError: If they differ.
    """
    if images.shape != tuple(shape):
        raise DataError(
            f"{where} must hold images of shape {tuple(shape)}, as in training, got "
            f"{images.shape}. Scale them first."
        )
    if span is not None:
        refuse_other_scale(images, span, where)


def count_pixels(data: bytes, name: str) -> int:
    """Count the pixels of a picture that somebody sent, without decoding any.

    Args:
        data: The bytes of its file.
        name: What it is called in errors.

    Returns:
        How many it has.

    Raises:
        DataError: If it is no picture, or one of very many pixels.
    """
    with _open_picture(name, data, _SENT) as picture:
        return _require_few_pixels(picture, name)


def decode_picture(data: bytes, shape: Shape, name: str) -> Tensor:
    """Decode a picture that somebody sent: PNG, JPEG or WebP.

    Args:
        data: The bytes of its file.
        shape: The shape that a trained model takes; the picture is scaled to it.
        name: What it is called in errors.

    Returns:
        The pixels, of that shape, in [0, 1].

    Raises:
        DataError: If it is no picture, or one of very many pixels.
    """
    with _open_picture(name, data, _SENT) as picture:
        # Before any pixel is decoded: a small file may hold a very large picture.
        _require_few_pixels(picture, name)
        return as_pixels(as_picture_bytes(picture, shape)[None])[0]


def _require_few_pixels(picture: Any, name: str) -> int:
    pixels = int(picture.width * picture.height)
    if pixels > MOST_PIXELS:
        raise DataError(
            f"{name} must be a picture of at most {MOST_PIXELS // 10**6} million pixels, "
            f"got {picture.width} × {picture.height}. Make it smaller."
        )
    return pixels


def join_images(parts: Sequence[ImageSet]) -> ImageSet:
    """Join images of one shape."""
    files = [part.files for part in parts if part.files is not None]
    joined = tuple(name for names in files for name in names)
    return ImageSet(
        torch.cat([part.inputs for part in parts]),
        files=joined if len(files) == len(parts) else None,
    )


def find_span(images: ImageSet) -> tuple[float, float]:
    """Find the smallest and the largest value of images."""
    return float(images.inputs.min()), float(images.inputs.max())


def refuse_other_scale(
    images: ImageSet, span: tuple[float, float], path: Path | str
) -> None:
    """Refuse images whose values are on another scale than those of training.

    Args:
        images: New images.
        span: The smallest and the largest value in training.
        path: Where the images came from.

    Raises:
        DataError: If values are far outside the span, or all in a small corner of a wide one.
    """
    low, high = find_span(images)
    width = span[1] - span[0]
    is_outside = low < span[0] - width or high > span[1] + width
    # Bytes are read as [0, 1], where a dark picture has small values of its own right.
    is_corner = width > _WIDE and 0 < high - low < width / _WIDE
    if width and (is_outside or is_corner):
        raise DataError(
            f"{path} must hold images with values on the scale of training, {span[0]:g} to "
            f"{span[1]:g}, got {low:g} to {high:g}. Scale them alike."
        )


def _read_file(path: Path) -> tuple[ImageSet, list[Any]]:
    name = path.name.removesuffix(".gz")
    if name.endswith(".npz"):
        inputs, labels = load_npz(path)
        return ImageSet(as_pixels(inputs)), [] if labels is None else labels.tolist()
    if "-idx" in name or "ubyte" in name:
        partner = find_idx_labels(path)
        listed = [] if partner is None else read_idx(partner).tolist()
        return ImageSet(as_pixels(read_idx(path))), listed
    arrays = read_arrays(path)
    return ImageSet(arrays.inputs), arrays.labels.tolist()


def _read_folder(folder: Path, shape: Shape | None) -> tuple[ImageSet, list[Any]]:
    """Read the pictures under a folder; a class is the name of the folder they are in."""
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in _PICTURES and path.is_file()
    )
    if not paths:
        raise DataError(
            f"the folder {folder} must hold a folder of pictures for each class "
            f"({', '.join(_PICTURES[:4])}, …), got none. Add them, or give a file."
        )
    # Pictures that stand in the folder itself have no class.
    classes = [path.relative_to(folder).parts[0] for path in paths]
    labelled = all(path.parent != folder for path in paths)
    return _read_pictures(paths, folder, shape), classes if labelled else []


def _read_pictures(paths: Sequence[Path], folder: Path, shape: Shape | None) -> ImageSet:
    names = tuple(path.relative_to(folder).as_posix() for path in paths)
    return read_pictures(paths, shape, names)


def read_pictures(
    paths: Sequence[Path], shape: Shape | None, names: tuple[str, ...]
) -> ImageSet:
    """Read the files of pictures, scaled to one shape.

    Args:
        paths: The files.
        shape: The shape to scale them to; None for theirs if it is one and small.
        names: What each is called.

    Returns:
        The images.

    Raises:
        DataError: If one cannot be read, or Pillow is not installed.
    """
    if find_spec("PIL") is None:
        raise DataError(
            f"{paths[0]} is a picture, which needs the package Pillow, and it is not "
            "installed. Install pillow, or write the images into an .npz (images, labels)."
        )
    if shape is None:
        shape = _find_shape(paths)
    arrays = [_read_picture(path, shape) for path in paths]
    return ImageSet(as_pixels(np.stack(arrays)), files=names)


def _find_shape(paths: Sequence[Path]) -> Shape:
    """Find the shape for all pictures: theirs if it is one and small, else 32 × 32."""
    sizes, modes = set(), set()
    for path in paths:
        with _open_picture(path) as picture:
            sizes.add(picture.size)
            modes.add(picture.mode)
    channels = 1 if modes <= {"1", "L", "I", "I;16"} else 3
    width, height = sizes.pop() if len(sizes) == 1 else (_LARGEST_SIDE + 1,) * 2
    if max(width, height) > _LARGEST_SIDE:
        width = height = _LARGEST_SIDE
    return channels, height, width


@contextmanager
def _open_picture(
    path: Path | str, data: bytes | None = None, formats: Sequence[str] | None = None
) -> Iterator[Any]:
    pillow = import_module("PIL.Image")
    # Pixels are decoded when they are asked for, so what is damaged also shows inside.
    try:
        with pillow.open(
            path if data is None else BytesIO(data), formats=formats
        ) as picture:
            yield picture
    except DataError:
        raise
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        # Of bytes Pillow says nothing but where in memory they are.
        said = reason(error) if data is None else "something else"
        raise DataError(
            f"{path} must be a picture that Pillow can read, got {said}. Remove it."
        ) from error


def _read_picture(path: Path, shape: Shape) -> np.ndarray:
    with _open_picture(path) as picture:
        return as_picture_bytes(picture, shape)


def as_picture_bytes(picture: Any, shape: Shape) -> np.ndarray:
    """Turn a picture of Pillow into bytes, (height, width) or (height, width, 3), scaled."""
    channels, height, width = shape
    plain = picture.convert("L" if channels == 1 else "RGB")
    if plain.size != (width, height):
        plain = plain.resize((width, height))
    return np.asarray(plain, dtype=np.uint8)
