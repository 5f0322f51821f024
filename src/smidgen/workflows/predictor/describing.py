"""What a predictor of a model of one's own must know: columns, classes, lengths, shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from smidgen.errors import ArgumentError, is_number, is_whole
from smidgen.integrations.arrays import as_pixels
from smidgen.integrations.reading.images import ImageSet, find_span
from smidgen.integrations.reading.scaling import NumberColumn, Scaling
from smidgen.integrations.reading.task_note import TaskNote

_LABEL = "answer"


def describe_texts(
    *,
    classes: Sequence[str] | None,
    columns: Sequence[str] = ("text",),
    text_pair: str | None = None,
    max_length: int = 128,
    label: str = _LABEL,
) -> TaskNote:
    """Describe a task of texts.

    Args:
        classes: The names of the classes, by class number; None for a regression.
        columns: The columns of the text; several are joined by " . ".
        text_pair: The column of the second text, for a model of pairs.
        max_length: Longer texts are cut to this many tokens, as in training.
        label: What is predicted.

    Returns:
        The description, for `smidgen.make_predictor`.

    Raises:
        ArgumentError: If names are missing or twice there, or max_length is no count.
    """  # noqa: DOC502
    names = _check_columns((*columns,) if not isinstance(columns, str) else (columns,))
    _check_columns((*names, text_pair) if text_pair is not None else names)
    if not is_whole(max_length) or max_length < 1:
        raise ArgumentError(
            f"max_length must be a number of tokens from 1, got {max_length!r}. Try 128."
        )
    return TaskNote(
        "text",
        names,
        text_pair=text_pair,
        label=label,
        classes=_check_classes(classes),
        max_length=max_length,
        target=(0.0, 1.0) if classes is None else None,
    )


def describe_table(
    columns: Sequence[str] | Mapping[str, tuple[float, float]],
    *,
    classes: Sequence[str] | None,
    label: str = _LABEL,
) -> TaskNote:
    """Describe a task of numbers in columns.

    Args:
        columns: The columns in the order of the model's inputs. Of a dict, each with the
            mean and the standard deviation by which raw numbers are standardised, if the
            model was trained on standardised ones.
        classes: The names of the classes, by class number; None for a regression.
        label: What is predicted.

    Returns:
        The description, for `smidgen.make_predictor`. Every row must have every number.

    Raises:
        ArgumentError: If names are missing or twice there, or a moment is no number.
    """
    names = _check_columns(tuple(columns))
    moments = dict(columns) if isinstance(columns, Mapping) else {}
    scaled = []
    for name in names:
        moment = moments.get(name, (0.0, 1.0))
        if len(moment) != 2 or not all(map(is_number, moment)) or not moment[1] > 0:
            raise ArgumentError(
                f"columns must have a mean and a standard deviation above 0, got {moment!r} "
                f"for {name!r}. Give two numbers, or only the names."
            )
        scaled.append(NumberColumn(name, float(moment[0]), float(moment[1]), None, False))
    return TaskNote(
        "table",
        names,
        label=label,
        classes=_check_classes(classes),
        scaling=Scaling(tuple(scaled)),
        target=(0.0, 1.0) if classes is None else None,
    )


def describe_images(
    images: np.ndarray | Tensor, *, classes: Sequence[str], label: str = _LABEL
) -> TaskNote:
    """Describe a task of images, by some that the model was trained on.

    Args:
        images: An array (number, height, width[, channels]) or channels first: bytes, which
            are scaled to [0, 1], or numbers as the model takes them. New images must have
            their shape and scale.
        classes: The names of the classes, by class number.
        label: What is predicted.

    Returns:
        The description, for `smidgen.make_predictor`.

    Raises:
        ArgumentError: If these are no images, or names of classes are twice there.
    """
    array: Any = images.detach().cpu().numpy() if isinstance(images, Tensor) else images
    pixels = as_pixels(np.asarray(array))
    if pixels.ndim != 4 or not len(pixels):
        raise ArgumentError(
            f"images must be (number, height, width[, channels]), got shape "
            f"{tuple(np.shape(array))}. Give some of the training images."
        )
    found = ImageSet(pixels)
    named = _check_classes(classes)
    return TaskNote(
        "images", label=label, classes=named, shape=found.shape, span=find_span(found)
    )


def _check_columns(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ArgumentError(
            f"columns must be names, at least one, got {names!r}. Name the columns."
        )
    if len(set(names)) < len(names):
        raise ArgumentError(
            f"columns must have different names, got {', '.join(names)}. Rename one."
        )
    return names


def _check_classes(classes: Sequence[str] | None) -> tuple[str, ...] | None:
    if classes is None:
        return None
    names = () if isinstance(classes, str) else tuple(classes)
    wrong = len(names) < 2 or len(set(names)) < len(names)
    if wrong or not all(isinstance(name, str) and name.strip() for name in names):
        raise ArgumentError(
            "classes must be the names of two classes or more, all different, got "
            f"{classes!r}. Name each once, in the order of the class numbers."
        )
    return names
