"""A predictor of two folders: that of a model, and that of its posterior."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smidgen.decide import Rules
from smidgen.errors import ArgumentError
from smidgen.integrations.reading.task_note import TaskNote, find_note, use_note
from smidgen.integrations.text_length import TextLength
from smidgen.posterior.store import load_saved
from smidgen.runtime.writing.answers_note import find_answers_folder
from smidgen.runtime.writing.rules_note import RULES_NOTE
from smidgen.workflows.predictor.describing import describe_texts
from smidgen.workflows.predictor.making import make_predictor
from smidgen.workflows.predictor.predictor import Predictor
from smidgen.workflows.run.task_model import load_task_model
from smidgen.workflows.run.text_base import list_text_classes, load_text_model

_LONGEST = 128


def join_folders(
    model: str,
    posterior: Path,
    typed: Mapping[str, Any],
    *,
    options: Mapping[str, str],
    revision: str | None = None,
) -> Predictor:
    """Load a model, its posterior beside it, and the rules that are there.

    Args:
        model: The folder of the model, or a text classifier's name on the Hub.
        posterior: The folder of the posterior.
        typed: What was typed of the columns and the length of texts; None for what was not.
        options: What types each, for errors.
        revision: Which version of a model on the Hub; main by default.

    Returns:
        The predictor.

    Raises:
        ArgumentError: If what was typed differs from what training saw.
    """
    if find_answers_folder(model) is not None:
        raise ArgumentError(
            f"MODEL must be a classifier, got the adapter of a language model in {model!r}. "
            "Use it with 'smidgen predict MODEL POSTERIOR'."
        )
    note = find_note(model)
    if note is None:
        network, tokenizer = load_text_model(model, device="cpu", revision=revision)
        note = _describe(network, tokenizer, typed)
        likened: Any = network
    else:
        note = use_note(note, typed, options=options)
        task = load_task_model(Path(model).expanduser(), note)
        likened, tokenizer = task.problem, task.tokenizer
    found = load_saved(posterior, likened)
    has_rules = os.path.isfile(posterior / RULES_NOTE)
    return make_predictor(
        found,
        likened,
        note,
        rules=Rules.load(posterior) if has_rules else None,
        tokenizer=tokenizer,
    )


def _describe(network: Any, tokenizer: Any, typed: Mapping[str, Any]) -> TaskNote:
    """Describe the task of a text classifier that no note tells of."""
    length = TextLength(typed.get("max_length"), _LONGEST).fit(tokenizer)
    chosen = {name: value for name, value in typed.items() if value is not None}
    chosen["max_length"] = length
    note = describe_texts(classes=list_text_classes(network), **chosen)
    return replace(note, label=typed.get("label") or "label")
