"""What /openapi.json says of requests and answers, with the columns of what is served."""

from __future__ import annotations

from typing import Any

from smidgen.serving.form import RowForm
from smidgen.serving.settings import ServingSettings

_ABOUT = {
    "folder": {"type": "string", "description": "The folder that answers."},
    "digest": {"type": "string", "description": "Tells this content of it from any other."},
    "smidgen": {"type": "string", "description": "The version of smidgen."},
}
_ERROR = {
    "application/json": {
        "schema": {"type": "object", "properties": {"error": {"type": "string"}}}
    }
}
_REFUSALS = {
    400: "Not JSON, or not UTF-8.",
    408: "The body came too slowly.",
    413: "The body is too large, or its pictures have too many pixels together.",
    415: "Another type than application/json.",
    421: "The header Host names another server.",
    422: "A row cannot be used; the sentence says which, from 1.",
    500: "The server failed; the sentence has a number that its owner can look up.",
    503: "Too many rows wait, or the server stops; Retry-After says when to ask again.",
}


def describe_predict(form: RowForm, settings: ServingSettings) -> dict[str, Any]:
    """Describe what /predict takes and gives.

    Args:
        form: What a row is.
        settings: How many rows there may be.

    Returns:
        The operation's fields.
    """
    row = form.row_schema()
    several = {
        "type": "object",
        "required": ["rows"],
        "properties": {
            "rows": {
                "type": "array",
                "items": row,
                "minItems": 1,
                "maxItems": settings.max_rows,
            }
        },
    }
    one = {"type": "object", "required": ["row"], "properties": {"row": row}}
    given = {"anyOf": [several, one]}
    answers = {
        "type": "object",
        "properties": {
            "answers": {"type": "array", "items": _describe_answer(form)},
            **_ABOUT,
        },
    }
    refused = {
        str(status): {"description": what, "content": _ERROR}
        for status, what in _REFUSALS.items()
    }
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": given}},
        },
        "responses": {
            "200": {
                "description": "An answer for each row, in their order.",
                "content": {"application/json": {"schema": answers}},
            },
            **refused,
        },
    }


def describe_health() -> dict[str, Any]:
    """Describe what /health gives.

    Returns:
        The operation's fields.
    """
    schema = {"type": "object", "properties": {"ready": {"type": "boolean"}, **_ABOUT}}
    content = {"application/json": {"schema": schema}}
    return {
        "responses": {
            "200": {"description": "Rows are answered.", "content": content},
            "503": {"description": "The server stops.", "content": content},
        }
    }


def _describe_answer(form: RowForm) -> dict[str, Any]:
    number, flag = {"type": "number"}, {"type": "boolean"}
    if form.classes is None:
        said: dict[str, Any] = {"answer": number, "low": number, "high": number}
    else:
        name = {"type": "string", "enum": list(form.classes)}
        said = {
            "answer": name,
            "confidence": number,
            "probabilities": {"type": "object", "additionalProperties": number},
            "set": {"type": "array", "items": name},
        }
    return {
        "type": "object",
        "properties": {
            **said,
            "abstain": {**flag, "description": "Ask a person: the answer is too unsure."},
            "strange": {**flag, "description": "The row is unlike the training rows."},
        },
        "required": ["answer"],
    }
