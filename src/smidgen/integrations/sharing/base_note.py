"""The note of a base: which model a folder's model was made of. Read without transformers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from smidgen.errors import StoreError
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
