"""What a run writes: each output apart from the others, and from what the run reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from smidgen.errors import StoreError

RefuseTaken = Callable[..., None]
"""Called with a path and `overwrite=`: refuses what may not be replaced there."""
_CONFIG = "config.json"


def refuse_taken_file(path: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file that exists, unless that is allowed."""
    if os.path.lexists(path) and not overwrite:
        raise StoreError(
            f"{path} exists already. Give another file, or --overwrite to replace it."
        )


@dataclass(frozen=True)
class Output:
    """A file or a folder that a run writes, and the option that names it.

    What is not `expected` this run will not write, and may not be in the way either.
    """

    option: str
    path: Path
    refuse: RefuseTaken = refuse_taken_file
    folder: bool = False
    expected: bool = True


@dataclass(frozen=True)
class Input:
    """A file or a folder that a run reads, and the option that names it."""

    option: str
    path: Path


def refuse_overlaps(outputs: Sequence[Output], inputs: Sequence[Input]) -> None:
    """Refuse outputs that would replace one another, or what the run reads.

    Args:
        outputs: What is written. A folder with outputs of its own option inside is written
            file by file, so that others may be there too; any other is replaced as a whole.
        inputs: What is read. The folder of a model or a posterior is nobody else's.

    Raises:
        StoreError: If two paths are the same, or one is inside what belongs together. The
            message names both options.
    """  # noqa: DOC501, DOC502
    units = {output: _is_unit(output, outputs) for output in outputs}
    kept = {each: os.path.isfile(each.path / _CONFIG) for each in inputs}
    for one, two in combinations(outputs, 2):
        if one.option != two.option and _collide(one, two, units[one], units[two]):
            raise _explain(one, two, "another output")
    for output, read in product(outputs, inputs):
        if _collide(output, read, units[output], kept[read]):
            raise _explain(output, read, "what is read")


def list_files(outputs: Sequence[Output]) -> list[str]:
    """List the files that were written, also those in folders that are a whole."""
    found = set()
    for output in outputs:
        if not output.folder:
            found.add(output.path)
        elif _is_unit(output, outputs):
            found |= {path for path in output.path.rglob("*") if path.is_file()}
    return sorted(str(path) for path in found if path.is_file())


def _is_unit(output: Output, outputs: Sequence[Output]) -> bool:
    """Whether it is replaced as a whole; a file always is."""
    return not any(
        other.option == output.option and output.path in other.path.parents
        for other in outputs
    )


def _collide(one: Output | Input, two: Output | Input, *units: bool) -> bool:
    first, second = (Path(os.path.realpath(each.path)) for each in (one, two))
    return (
        first == second
        or (units[0] and first in second.parents)
        or (units[1] and second in first.parents)
    )


def _explain(output: Output, other: Output | Input, what: str) -> StoreError:
    return StoreError(
        f"{output.option} must be apart from {what}, got {str(output.path)!r} with "
        f"{other.option} {str(other.path)!r}. Give another path."
    )
