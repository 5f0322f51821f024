"""What a command writes: checked before its work, and its own until it is all written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from smidgen.cli.console import out
from smidgen.runtime.writing.claim import Claim, Output, RefuseTaken, digest_path

# These do not shape what is written.
_APART = ("overwrite",)


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
    written, kept = (*outputs, *files(json=context.params["json_file"])), tuple(states)
    about = _describe(context, written + kept)
    claim = Claim(about, written, kept, overwrite=context.params["overwrite"])
    if claim.finished:
        out.print(
            f"{written[0].path} is done already: this very command made it. Pass "
            "--overwrite to make it anew.",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit
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


def _describe(context: typer.Context, outputs: tuple[Output, ...]) -> dict[str, Any]:
    """Describe the command: its name, its options and what its input files hold."""
    options: dict[str, Any] = {}
    inputs: dict[str, str | None] = {}
    written = {output.option for output in outputs}
    for parameter in context.command.params:
        if parameter.name is None or parameter.name in _APART:
            continue
        name = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.name
        value = context.params.get(parameter.name)
        options[name] = _plain(value)
        if name not in written:
            # A model is a folder, or its name on a hub; other words are no paths.
            for path in _paths(value, words=parameter.name == "model"):
                inputs[f"{name} {path}"] = _digest(path)
    return {
        "command": context.command_path.split(" ", 1)[-1],
        "options": options,
        "inputs": inputs,
    }


def _plain(value: Any) -> Any:
    """Turn an option's value into what JSON can hold."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _paths(value: Any, *, words: bool) -> list[Path]:
    """List the files and folders that an option names."""
    items = value if isinstance(value, list | tuple) else [value]
    kinds = (str, Path) if words else (Path,)
    return [Path(item) for item in items if isinstance(item, kinds)]


def _digest(path: Path) -> str | None:
    """Hash an input; what cannot be read is refused where it is read."""
    try:
        return digest_path(path) if path.exists() else None
    except (OSError, ValueError):
        return None
