"""What a command writes: checked before its work, and its own until it is all written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from smidgen.cli.console import out
from smidgen.runtime.writing.answers_note import ANSWERS_NOTE
from smidgen.runtime.writing.output import Input, Output, RefuseTaken

if TYPE_CHECKING:
    from smidgen.runtime.writing.claim import Claim

# These do not shape what is written.
_APART = ("overwrite",)
_MODELS = ("model", "--model", "--trained")


def open_run(
    context: typer.Context, *outputs: Output, states: Iterable[Output] = ()
) -> Claim:
    """Check all outputs of a command, and claim them until `finish` is called.

    Args:
        context: The command, as typer has read it.
        outputs: What it writes besides `--json`, the folder of `--out` first.
        states: Checkpoints that the user keeps elsewhere.

    Returns:
        The claim.

    Raises:
        typer.Exit: If this very command has written everything already.
    """
    from smidgen.runtime.writing.claim import Claim

    written, kept = (*outputs, *files(json=context.params["json_file"])), tuple(states)
    inputs = _list_inputs(context, {output.option for output in written + kept})
    about = {
        "command": context.command_path.split(" ", 1)[-1],
        "options": {
            name: _plain(context.params.get(key)) for name, key in _name_options(context)
        },
        "inputs": {f"{each.option} {each.path}": _digest(each.path) for each in inputs},
    }
    overwrite = context.params["overwrite"]
    claim = Claim(about, written, kept, inputs=inputs, overwrite=overwrite)
    if claim.finished:
        out.print(
            f"{written[0].path} is done already: this very command made it. Pass "
            "--overwrite to make it anew.",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit
    if claim.resumed:
        out.print("Going on with the same command, which was interrupted.")
    context.with_resource(claim)
    return claim


def files(**paths: Path | None) -> tuple[Output, ...]:
    """List the files that options name, by the options' names; None is left out."""
    return tuple(
        Output(f"--{option}", path) for option, path in paths.items() if path is not None
    )


def folder(path: Path, refuse: RefuseTaken | None = None) -> Output:
    """Make the output of `--out FOLDER`; without a rule its files are checked one by one."""
    return Output("--out", path, refuse or _refuse_nothing, folder=True)


def inside(folder: Path, *names: str) -> tuple[Output, ...]:
    """List files that are written into the folder of `--out`."""
    return tuple(Output("--out", folder / name) for name in names)


def _refuse_nothing(path: Path, *, overwrite: bool) -> None:
    pass


def _name_options(context: typer.Context) -> list[tuple[str, str]]:
    """List the command's options and arguments: the name that users know, and its key."""
    return [
        (each.opts[0] if each.opts[0].startswith("-") else each.name, each.name)
        for each in context.command.params
        if each.name is not None and each.name not in _APART
    ]


def _list_inputs(context: typer.Context, written: set[str]) -> list[Input]:
    """List the files and folders that the command reads."""
    found: list[Input] = []
    for name, key in _name_options(context):
        value = context.params.get(key)
        for item in value if isinstance(value, list | tuple) else [value]:
            # A model is a folder, or its name on a hub; other words are no paths.
            is_model = name in _MODELS and isinstance(item, str) and _is_model(item)
            path = Path(str(item)) if is_model else item
            if name not in written and isinstance(path, Path):
                found.append(Input(name, path))
                found += [Input(name, labels) for labels in _find_labels(path)]
    return found


def _find_labels(path: Path) -> list[Path]:
    """Find the file of labels that is read with an IDX file of images."""
    if "images-idx3" not in path.name:
        return []
    from smidgen.integrations.arrays import find_idx_labels

    partner = find_idx_labels(path)
    return [] if partner is None else [partner]


def _is_model(name: str) -> bool:
    """Whether it is the folder of a model or an adapter, not a hub's name or another folder."""
    try:
        return any((Path(name) / file).is_file() for file in ("config.json", ANSWERS_NOTE))
    except (OSError, ValueError):
        return False


def _plain(value: Any) -> Any:
    """Turn an option's value into what JSON can hold."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _digest(path: Path) -> str | None:
    """Hash an input; what cannot be read is refused where it is read."""
    from smidgen.runtime.writing.claim import digest_path

    try:
        return digest_path(path) if path.exists() else None
    except (OSError, ValueError):
        return None
