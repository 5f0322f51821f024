"""From the body of a request to rows: whatever is wrong with it is said in one sentence."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from smidgen.errors import DataError
from smidgen.integrations.reading.given_cells import name_cells, require_texts
from smidgen.integrations.reading.images import (
    MOST_PIXELS,
    ImageSet,
    count_pixels,
    decode_picture,
    refuse_other_scale,
)
from smidgen.integrations.reading.tables import read_cell
from smidgen.serving.form import FormField, RowForm
from smidgen.serving.refusals import Refusal
from smidgen.serving.settings import ServingSettings

_SHOWN = 60
_BODY = 'Send {"rows": [...]} or {"row": ...}.'


def parse_body(body: bytes) -> Any:
    """Parse JSON as it is defined: UTF-8, and no NaN.

    Args:
        body: What was sent.

    Returns:
        The value.

    Raises:
        Refusal: If it is anything else.
    """
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise Refusal(
            400,
            f"the body must be UTF-8, got byte 0x{error.object[error.start]:02x} at "
            f"{error.start}. Encode it as UTF-8.",
        ) from error
    except RecursionError as error:
        raise Refusal(
            400, f"the body must be nested a few levels deep, got very many. {_BODY}"
        ) from error
    except json.JSONDecodeError as error:
        raise Refusal(
            400,
            f"the body must be JSON, got something else at character {error.pos} "
            f"({error.msg}). {_BODY}",
        ) from error
    except ValueError as error:
        # A number of thousands of digits.
        raise Refusal(
            400, f"the body must hold usual numbers, got another. {_BODY}"
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise Refusal(
        422, f"numbers must be finite, got {name}. Write null where a value is missing."
    )


def find_sent_rows(content: Any, settings: ServingSettings) -> list[Any]:
    """Find the rows of a request.

    Args:
        content: What its body holds.
        settings: How many there may be.

    Returns:
        The rows as they were sent, at least one.

    Raises:
        Refusal: If there is none, or too many.
    """
    if not isinstance(content, dict):
        raise Refusal(422, f"the body must be an object, got {_show(content)}. {_BODY}")
    for name in content:
        if name not in ("row", "rows"):
            raise Refusal(
                422, f"the body must have the field 'rows', got {_show(name)}. {_BODY}"
            )
    if len(content) != 1:
        found = "both 'row' and 'rows'" if content else "no field"
        raise Refusal(422, f"the body must have the field 'rows', got {found}. {_BODY}")
    if "row" in content:
        return [content["row"]]
    rows = content["rows"]
    if not isinstance(rows, list):
        raise Refusal(422, f"'rows' must be a list, got {_show(rows)}. {_BODY}")
    if not rows:
        raise Refusal(422, "'rows' must hold at least one row, got none. Add one.")
    if len(rows) > settings.max_rows:
        raise Refusal(
            422,
            f"'rows' must hold at most {settings.max_rows:,} rows, got {len(rows):,}. Send "
            "them in several requests.",
        )
    return rows


def check_rows(form: RowForm, rows: Sequence[Any], settings: ServingSettings) -> list[Any]:
    """Turn rows as they were sent into rows as they are computed.

    Args:
        form: What a row is.
        rows: The rows of a request.
        settings: How long a text may be.

    Returns:
        Texts or cells by column; or pixels (channels, height, width).

    Raises:
        Refusal: If a row cannot be used; it says which, from 1.
    """
    pictures = _find_pictures(rows) if form.kind == "images" else {}
    checked: list[Any] = []
    for number, row in enumerate(rows, 1):
        where = f"row {number}"
        try:
            if form.kind == "images":
                picture = pictures.get(number)
                checked.append(_read_image(form, row, picture, where))
            else:
                cells = _name_cells(form, row, where)
                for column in form.fields:
                    _check_cell(column, cells[column.name], where, settings)
                if form.kind == "text":
                    require_texts(cells, form.columns, form.pair, where)
                checked.append(cells)
        except DataError as error:
            raise Refusal(422, str(error)) from error
    return checked


def _name_cells(form: RowForm, row: Any, where: str) -> Mapping[str, Any]:
    """Give each cell of a row the name of its column; numbers without names are refused."""
    names = form.names
    if not isinstance(row, (str, list, dict) if form.kind == "text" else dict):
        plain = "a text or " if form.kind == "text" else ""
        raise DataError(
            f"{where} must be {plain}an object with a value for each column "
            f"({', '.join(names)}), got {_show(row)}. Write it so."
        )
    cells = name_cells(row, names, where)
    for name in cells:
        if name not in names:
            raise DataError(
                f"{where} must have no columns but {', '.join(names)}, got {_show(name)}. "
                "Leave it out."
            )
    return cells


def _check_cell(
    column: FormField, value: Any, where: str, settings: ServingSettings
) -> None:
    if isinstance(value, str):
        if len(value) > settings.max_characters:
            raise DataError(
                f"{where} must have at most {settings.max_characters:,} characters in "
                f"{column.name!r}, got {len(value):,}. Shorten it."
            )
        if not _is_text(value):
            raise DataError(
                f"{where} must have texts of whole characters, got half of one in "
                f"{column.name!r}. Encode it as UTF-8."
            )
    if column.kind == "text":
        return
    try:
        cell = read_cell(value)
    except ValueError:
        cell, allowed = value, False
    else:
        allowed = not (column.kind == "number" and isinstance(cell, str))
        allowed = allowed or isinstance(value, bool)
        allowed = allowed and (cell is not None or column.may_lack)
    if not allowed:
        kind = "a finite number" if column.kind == "number" else "a text or a number"
        raise DataError(
            f"{where} must have {kind} in {column.name!r}, as in training, got "
            f"{_show(value)}. "
            + ("Write null where it is missing." if column.may_lack else "Fill it in.")
        )
    if isinstance(cell, float) and column.range is not None:
        low, high = column.range
        if not low <= cell <= high:
            raise DataError(
                f"{where} must have a number from {low:.3g} to {high:.3g} in "
                f"{column.name!r}, which fp32 can hold, got {_show(value)}. Mend it."
            )


def _find_pictures(rows: Sequence[Any]) -> dict[int, bytes]:
    """Find the files of pictures by the number of their row; none is decoded yet."""
    pictures, pixels = {}, 0
    for number, row in enumerate(rows, 1):
        if not isinstance(row, str):
            continue
        try:
            pictures[number] = _decode(row, f"row {number}")
            pixels += count_pixels(pictures[number], f"row {number}")
        except DataError as error:
            raise Refusal(422, str(error)) from error
        # A file of some kilobytes may take a second to decode.
        if pixels > MOST_PIXELS:
            raise Refusal(
                413,
                f"the pictures must have at most {MOST_PIXELS // 10**6} million pixels "
                f"together, got more up to row {number}. Make them smaller, or send fewer at "
                "once.",
            )
    return pictures


def _read_image(form: RowForm, row: Any, picture: bytes | None, where: str) -> np.ndarray:
    """Read a picture or pixels, (channels, height, width)."""
    shape = form.shape or ()
    if picture is not None:
        return decode_picture(picture, shape, where).numpy()
    # Of one channel, a list of rows is enough.
    if shape[:1] == (1,) and isinstance(row, list) and len(row) == shape[1] != 1:
        row = [row]
    if not _has_shape(row, shape):
        raise DataError(
            f"{where} must be a picture in base64, or numbers of shape "
            f"{' × '.join(map(str, shape))}, got {_show(row)}. Send a PNG."
        )
    try:
        pixels = np.asarray(row, dtype=np.float32)
    except OverflowError:
        pixels = np.full(shape, np.inf)
    if not np.isfinite(pixels).all():
        raise DataError(f"{where} must be finite numbers, got others. Scale them first.")
    if form.span is not None:
        image = ImageSet(torch.from_numpy(pixels)[None])
        refuse_other_scale(image, form.span, Path(where))
    return pixels


def _decode(text: str, where: str) -> bytes:
    head, comma, rest = text[:100].partition(",")
    if comma and head.startswith("data:"):
        text = text[len(head) + 1 :]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(
            f"{where} must be a picture in base64, got another text. Encode the file."
        ) from error


def _has_shape(value: Any, shape: Sequence[int]) -> bool:
    if not shape:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return (
        isinstance(value, list)
        and len(value) == shape[0]
        and all(_has_shape(part, shape[1:]) for part in value)
    )


def _is_text(value: str) -> bool:
    # JSON may hold halves of characters, which nothing can encode.
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _show(value: Any) -> str:
    """Show a value briefly, whatever it is."""
    if isinstance(value, str):
        return ascii(value[:_SHOWN]) if not _is_text(value) else repr(value[:_SHOWN])
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**15:
        return "a very large number"
    return json.dumps(value)
