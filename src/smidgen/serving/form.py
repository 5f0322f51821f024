"""`RowForm`: what a row is, for people who fill one in, and for JSON that is to be checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from smidgen.integrations.reading.scaling import CategoryColumn, NumberColumn
from smidgen.integrations.reading.task_note import TaskKind, TaskNote
from smidgen.types import Shape

_SHOWN_VALUES = 100


@dataclass(frozen=True)
class FormField:
    """A column: what stands in it, values it had in training, and one to begin with.

    `may_lack` says whether a value may be missing, `range` how large a number may be.
    """

    name: str
    kind: Literal["text", "number", "category"]
    values: tuple[str, ...] = ()
    example: str | float | None = None
    may_lack: bool = True
    range: tuple[float, float] | None = None


@dataclass(frozen=True)
class RowForm:
    """What a row is.

    Args:
        kind: Texts, cells of a table, or an image.
        fields: The columns; none for images.
        pair: The column of the second text, which is among the fields too.
        label: The column that is predicted.
        classes: The names of the classes; None for a number.
        shape: The shape of an image.
        span: The smallest and the largest value of images in training.
    """

    kind: TaskKind
    fields: tuple[FormField, ...] = ()
    pair: str | None = None
    label: str | None = None
    classes: tuple[str, ...] | None = None
    shape: Shape | None = None
    span: tuple[float, float] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, without that of the second text."""
        return tuple(field.name for field in self.fields if field.name != self.pair)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(field.name for field in self.fields)

    def example(self) -> Any:
        """Make a row to begin with, as a request would hold it."""
        if self.kind == "images":
            channels, height, width = self.shape or (1, 1, 1)
            low = 0.0 if self.span is None else self.span[0]
            return [[[low] * width] * height] * channels
        return {field.name: field.example for field in self.fields}

    def row_schema(self) -> dict[str, Any]:
        """Describe a row as a JSON schema."""
        if self.kind == "images":
            return {
                "anyOf": [
                    {
                        "type": "string",
                        "description": "A PNG, JPEG or WebP file in base64, or a data: "
                        "address of one.",
                    },
                    {
                        "type": "array",
                        "description": "Pixels (channels, height, width) of shape "
                        f"{self.shape}, on the scale of training.",
                        "items": {},
                    },
                ]
            }
        kinds: Mapping[str, list[str]] = {
            "text": ["string", "null"],
            "number": ["number", "string", "null"],
            "category": ["string", "number", "boolean", "null"],
        }
        columns = {
            "type": "object",
            "properties": {
                field.name: {"type": kinds[field.kind]} for field in self.fields
            },
            "required": list(self.names),
            "additionalProperties": False,
            "example": self.example(),
        }
        if self.kind == "table":
            return columns
        pair = {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 2,
            "maxItems": 2,
        }
        return {"anyOf": [{"type": "string"} if self.pair is None else pair, columns]}

    def to_json(self) -> dict[str, Any]:
        """List what the form says as JSON values."""
        return asdict(self)


def make_form(note: TaskNote) -> RowForm:
    """Make the form of what training saw.

    Args:
        note: What training saw.

    Returns:
        The form.
    """
    about: dict[str, Any] = {
        "kind": note.kind,
        "label": note.label,
        "classes": note.classes,
        "shape": note.shape,
        "span": note.span,
    }
    if note.kind == "table":
        scaled = () if note.scaling is None else note.scaling.columns
        known = {column.name: column for column in scaled}
        fields = [_describe_column(name, known.get(name)) for name in note.columns]
        return RowForm(fields=tuple(fields), **about)
    names: Sequence[str] = note.columns
    if note.text_pair is not None:
        names = [*names, note.text_pair]
    fields = [FormField(name, "text", example="an example") for name in names]
    return RowForm(fields=tuple(fields), pair=note.text_pair, **about)


def _describe_column(name: str, column: NumberColumn | CategoryColumn | None) -> FormField:
    if isinstance(column, NumberColumn):
        # What fills gaps is usual; a model that was described by hand may have none.
        usual = column.mean if column.median is None else column.median
        example = float(f"{usual:.6g}")
        return FormField(
            name,
            "number",
            example=example,
            may_lack=column.median is not None,
            range=column.range,
        )
    # A column without a single value in training says nothing, whatever stands in it.
    values = () if column is None else column.values[:_SHOWN_VALUES]
    return FormField(name, "category", values, example=next(iter(values), None))
