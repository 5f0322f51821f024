"""The note of a base: which model a folder's model was made of. Read without transformers."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from smidgen.errors import StoreError
from smidgen.integrations.sharing.hub import HUB_NAME
from smidgen.runtime.artifact import (
    read_sealed_json,
    reading,
    require_schema,
    write_sealed_json,
)
from smidgen.runtime.reading import hash_file, make_from_json

BASE_NOTE = "base.json"
"""The file of the note, in the folder of a model."""
SAVE_AGAIN = "Save the predictor again."
"""What to do about a damaged folder."""
COMMIT = re.compile(r"[0-9a-f]{40}")
"""How a commit on the Hub is written."""
_SCHEMA = 1


@dataclass(frozen=True)
class NamedBase:
    """A model that is elsewhere.

    Args:
        name: Its name on the Hub, or its folder on this machine.
        revision: Its commit; None for a folder.
        fingerprint: A hash of its weights, but for `new`.
        labels: How many outputs it is opened with.
        new: The weights that it lacks, as a head.
    """

    name: str
    revision: str | None
    fingerprint: str
    labels: int
    new: tuple[str, ...]


def write_base_note(base: NamedBase, folder: Path) -> Path:
    """Write which base a model is on, with the digests of all files that are in a folder.

    Args:
        base: The base.
        folder: The folder of the model.

    Returns:
        The file.
    """
    files = {
        path.relative_to(folder).as_posix(): hash_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    header = {"schema": _SCHEMA, "base": asdict(base), "files": files}
    return write_sealed_json(folder / BASE_NOTE, header)


def read_base_note(folder: Path) -> tuple[NamedBase, dict[str, str]]:
    """Read which base a model is on, and the digests of the files beside it.

    Args:
        folder: The folder of the model.

    Returns:
        The base, and the digest of each file by its path.

    Raises:
        StoreError: If the note is damaged.
    """
    path = folder / BASE_NOTE
    header = read_sealed_json(path, what="note of a base", advice=SAVE_AGAIN)
    require_schema(path, header.get("schema"), _SCHEMA, "base")
    with reading(path, "note of a base", SAVE_AGAIN):
        files = {str(name): str(digest) for name, digest in header["files"].items()}
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            raise StoreError("it names a file outside of its folder")
        return make_from_json(NamedBase, header["base"]), files


def require_hub_base(folder: Path) -> None:
    """Refuse a model on a base that others cannot get, or that is theirs to name.

    Args:
        folder: The folder of a model that is shared; it may have no base.

    Raises:
        StoreError: If its base is no model on the Hub with its commit.
    """
    if not (folder / BASE_NOTE).is_file():
        return
    base, _ = read_base_note(folder)
    if not HUB_NAME.fullmatch(base.name) or not COMMIT.fullmatch(base.revision or ""):
        raise StoreError(
            f"{folder} cannot be shared: its base must be a model on the Hub with its commit, "
            f"got {base.name[:80]!r} at {str(base.revision)[:80]!r}. Save the predictor again "
            "with base='user/model' and revision=..., or without a base."
        )


def refuse_network_folder(base: NamedBase) -> None:
    """Refuse a base that is a folder of another machine, before the system is asked for it."""
    if base.name.replace("\\", "/").startswith("//"):
        raise StoreError(
            f"its base is a folder of another machine, {base.name[:80]!r}, which is not opened "
            "unasked. If you trust it, pass base= with that folder."
        )
