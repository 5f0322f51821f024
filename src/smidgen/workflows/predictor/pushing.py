"""`push_to_hub`: a ready folder, a posterior, a delta or a subset to the Hugging Face Hub."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from smidgen.decide import Rules
from smidgen.errors import ArgumentError, StoreError, as_path
from smidgen.integrations.reading.task_note import TASK_NOTE, TaskNote
from smidgen.integrations.sharing.base_note import require_hub_base
from smidgen.integrations.sharing.hub import (
    HUB_NAME,
    SINGLE_FILES,
    check_hub_name,
    is_shared_file,
    is_shared_folder,
    push_folder,
)
from smidgen.runtime.artifact import dump_json, find_keys
from smidgen.workflows.run.ready_folder import CARD, RunParts

_WITH_ROWS = ("record.json", "report.html")
_LOADED = re.compile(r'smidgen\.load\("[^"]*"')
_TYPED = re.compile(r"^smidgen (predict|evaluate) .+ (--data|--test) ", re.MULTILINE)


def push_to_hub(
    folder: str | Path,
    name: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    base: str | None = None,
    report: bool = False,
    overwrite: bool = False,
) -> str:
    """Put what smidgen saved into a repository on the Hugging Face Hub.

    Args:
        folder: A ready folder, the folder of a posterior, or the file of a delta or a subset.
        name: The repository, "user/name"; it is made if it is missing. Log in first with
            `hf auth login`, or set HF_TOKEN.
        private: Whether a new repository is private; by default as the account says.
        revision: The branch to write to, made if it is missing; the main one by default.
        commit_message: What the commit says.
        base: The model on the Hub that a posterior, a delta or a subset belongs to, for the
            card.
        report: Put the record and the page there too. They show rows of the test data, so by
            default they stay here; the card has their numbers.
        overwrite: Write into a repository that holds other files, and nothing of smidgen's,
            in place of those of the same names.

    Returns:
        The address of the commit.

    Raises:
        ArgumentError: If the name is none, or the Hub refuses.
        StoreError: If there is nothing of smidgen's, it would open nowhere else, or the
            repository holds other files.
    """
    path = as_path("folder", folder)
    check_hub_name(name)
    if base is not None:
        check_hub_name(base)
    with tempfile.TemporaryDirectory() as place:
        stage = Path(place)
        if os.path.isfile(path):
            _stage_file(path, stage)
        else:
            _stage_folder(path, stage, report=report)
        if (stage / TASK_NOTE).exists():
            _settle_ready(stage)
        _settle_card(stage, name, base)
        message = commit_message or f"Upload {path.name} with smidgen"
        return push_folder(
            stage,
            name,
            private=private,
            revision=revision,
            message=message,
            overwrite=overwrite,
        )


def _stage_file(path: Path, stage: Path) -> None:
    named = next(
        (file for key, file in SINGLE_FILES.items() if key in find_keys(path)), None
    )
    if named is None:
        raise StoreError(
            f"{path} must be the file of a delta or a subset, or a folder that smidgen made. "
            "Give one."
        )
    _link(path, stage / named)


def _link(path: Path, staged: Path) -> None:
    """Put a file into another folder; only where links are not possible is it copied."""
    try:
        os.link(path.resolve(), staged)
    except OSError:
        shutil.copyfile(path, staged)


def _stage_folder(folder: Path, stage: Path, *, report: bool) -> None:
    """Link what is shared of a folder into another, so that large files are not copied."""
    if not is_shared_folder(folder):
        raise StoreError(
            f"{folder} must be a folder with a posterior that smidgen saved. Make one with "
            "'smidgen run', 'smidgen pack' or smidgen.save_predictor."
        )
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or not is_shared_file(name):
            continue
        if not path.resolve().is_relative_to(folder.resolve()):
            raise StoreError(
                f"{path} is a link that leaves its folder. Put the file there."
            )
        if name in _WITH_ROWS and not report:
            continue
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        _link(path, stage / name)


def _settle_ready(stage: Path) -> None:
    """Check that a folder opens elsewhere; take the names of this machine's folders off it."""
    parts = RunParts(stage)
    note = TaskNote.load(stage)
    if parts.rules.exists():
        Rules.load(parts.posterior)
    require_hub_base(parts.model)
    files = tuple(replace(file, path=Path(file.path).name) for file in note.files)
    name = note.base
    if name is not None and not HUB_NAME.fullmatch(name):
        name = Path(name).name
    (stage / TASK_NOTE).unlink()
    replace(note, files=files, base=name).save(stage)


def _settle_card(stage: Path, name: str, base: str | None) -> None:
    """Have the card say how the repository is loaded, and name the base."""
    path = stage / CARD
    called = f"```python\nsmidgen.load({dump_json(name)})\n```\n"
    text = path.read_text(encoding="utf-8") if path.exists() else f"# {name}\n\n{called}"
    if not text.startswith("---\n"):
        text = f'---\nlibrary_name: smidgen\ntags: ["smidgen"]\n---\n\n{text}'
    if base is not None:
        if (stage / TASK_NOTE).exists():
            raise ArgumentError(
                f"base must be left out for a ready folder, got {base!r}: it names its own. "
                "Leave it out."
            )
        text = text.replace("---\n", f"---\nbase_model: {dump_json(base)}\n", 1)
    text = _LOADED.sub(lambda _: f"smidgen.load({dump_json(name)}", text)
    text = _TYPED.sub(rf"smidgen \1 {name} \2 ", text)
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
