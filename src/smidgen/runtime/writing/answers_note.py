"""The note of a language model that was fine-tuned on answers, beside its adapter."""

from __future__ import annotations

import os
from pathlib import Path

ANSWERS_NOTE = "answers.json"
"""What a folder has that was fine-tuned on answers."""


def find_answers_folder(name: str) -> Path | None:
    """Find a folder that was fine-tuned on answers, or return None."""
    folder = Path(name).expanduser()
    return folder if os.path.isfile(folder / ANSWERS_NOTE) else None
