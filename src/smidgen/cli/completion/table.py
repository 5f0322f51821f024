"""Every option of every command, as the shell completes it, in `commands.json`.

Many commands import torch, which takes seconds; nobody waits so long for a key press. So while
a shell asks, commands are made from this list. `python -m docs.build.completion` (and with it
`make format`) writes it anew from the commands, and a test compares the two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

TABLE = Path(__file__).with_name("commands.json")
_ASKED = "_SMIDGEN_COMPLETE"
_LONGEST_HELP = 80


def is_completing() -> bool:
    """Tell whether a shell asks what could come next."""
    return _ASKED in os.environ


def describe_command(command: Any) -> list[dict[str, Any]]:
    """List the arguments and options of a command."""
    with typer.Context(command) as context:
        return [
            _describe_parameter(each, context)
            for each in command.params
            if not getattr(each, "hidden", False) and each.name != "help"
        ]


def _describe_parameter(parameter: Any, context: Any) -> dict[str, Any]:
    option = parameter.param_type_name == "option"
    names = list(parameter.opts) if option else []
    if option and parameter.secondary_opts:
        names = [f"{'/'.join([names[0], *parameter.secondary_opts])}"]
    values = [
        item.value for item in parameter.shell_complete(context, "") if item.type == "plain"
    ]
    about: dict[str, Any] = {"name": parameter.name, "help": _shorten(parameter.help or "")}
    if option:
        about["options"] = names
        about["flag"] = bool(parameter.is_flag)
    if values:
        about["values"] = values
    if parameter.multiple if option else parameter.nargs != 1:
        about["many"] = True
    return about


def make_light_command(name: str) -> Any:
    """Make a command that has the options of another, and does nothing."""

    def command(**_: Any) -> None:
        raise AssertionError("it is there to be completed, not to be run")

    entries = [_make_parameter(about) for about in _read_table()[name]]
    parameters = [Parameter(n, Parameter.KEYWORD_ONLY, **how) for n, how in entries]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    shelf = typer.Typer(add_completion=False)
    shelf.command(name)(command)
    shelf.callback()(lambda: None)
    return typer.main.get_group(shelf).commands[name]


@cache
def _read_table() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def _make_parameter(about: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    values = about.get("values")
    how: dict[str, Any] = {"help": about["help"]}
    if values:
        how["autocompletion"] = offer(values)
    kind: Any = list[str] if about.get("many") else str
    if "options" not in about:
        entry: Any = typer.Argument(**how)
    else:
        entry = typer.Option(*about["options"], **how)
    flag = about.get("flag", False)
    annotated: Any = Annotated[bool if flag else kind | None, entry]
    return about["name"], {"annotation": annotated, "default": False if flag else None}


def offer(values: Sequence[str] | Mapping[str, Any]) -> Callable[[str], list[str]]:
    """Make the completion of an option that takes some of several names, joined by commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, word = incomplete.rpartition(",")
        return [before + comma + each for each in values if each.startswith(word)]

    return complete


def _shorten(text: str) -> str:
    """Keep the first sentence of a help text, or its beginning: a shell has one line for it."""
    first = " ".join(text.split()).partition(". ")[0]
    return first if len(first) <= _LONGEST_HELP else first[: _LONGEST_HELP - 1] + "…"
