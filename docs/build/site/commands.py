"""The page of every command and option, written from the program's own help."""

from __future__ import annotations

import html
import re
from typing import Any

import typer

from smidgen.cli.app import app

_MARKUP = re.compile(r"\[/?(?:bold|italic|dim)\]")
_BY_ITSELF = "Options"


def list_commands() -> dict[str, Any]:
    """List the commands as they are typed, those of groups (`study run`) too."""
    program = typer.main.get_command(app)
    return _spread(program, program.make_context("smidgen", [], resilient_parsing=True))


def _spread(group: Any, context: Any) -> dict[str, Any]:
    commands: dict[str, Any] = {}
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        if hasattr(command, "commands"):
            inner = command.make_context(name, [], parent=context, resilient_parsing=True)
            words = _spread(command, inner)
            commands |= {f"{name} {word}": each for word, each in words.items()}
        else:
            commands[name] = command
    return commands


def write_commands() -> str:
    """Write the page: a section for each command, its options as a list of definitions."""
    commands = list_commands()
    rows = [
        f"| [`smidgen {name}`](#{_anchor(name)}) | {_plain(command.help)} |"
        for name, command in commands.items()
    ]
    parts = [
        "# Every command and option",
        "Written from `smidgen COMMAND --help`. What commands have in common, such as how data "
        "are read and what happens after a kill, is on the page [command line]"
        "(command-line.md).",
        "\n".join(["| command | what it does |", "|---|---|", *rows]),
    ]
    parts += [_write_command(name, command) for name, command in commands.items()]
    return "\n\n".join(parts) + "\n"


def _write_command(name: str, command: Any) -> str:
    context = command.make_context(f"smidgen {name}", [], resilient_parsing=True)
    parts = [f"## smidgen {name} {{ #{_anchor(name)} }}", _plain(command.help)]
    example = _MARKUP.sub("", command.epilog or "").removeprefix("Example: ")
    usage = " ".join([f"smidgen {name}", *_list_arguments(command), "[OPTIONS]"])
    parts.append(f"```text\n{usage}\n```")
    if example:
        parts.append(f"```bash\n{example}\n```")
    panels: dict[str, list[str]] = {}
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            title = getattr(parameter, "rich_help_panel", None) or _BY_ITSELF
            panels.setdefault(title, []).append(_define(*record))
    for title, definitions in panels.items():
        if title != _BY_ITSELF:
            parts.append(f"**{_plain(title)}**")
        parts.append("\n\n".join(definitions))
    return "\n\n".join(parts)


def _list_arguments(command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    return [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments]


def _define(words: str, about: str) -> str:
    """A definition: an option in code, and what it does."""
    sentence = _plain(about)
    required = "  [required]" in sentence or sentence.endswith("[required]")
    sentence = sentence.replace("[required]", "").strip()
    shown = f"`{words}`" + (" (required)" if required else "")
    return f"{shown}\n:   {sentence}"


def _plain(words: str | None) -> str:
    """Text without the terminal's markup, which Markdown and HTML take as it stands."""
    sentence = _MARKUP.sub("", words or "").replace("\\[", "[").replace("\n", " ")
    sentence = re.sub(r"(--[a-z][a-z-]*)", r"`\1`", html.escape(sentence, quote=False))
    return re.sub(r"  \[([^\]]*)\]$", r" (\1)", sentence.replace("\\n", "`\\n`"))


def _anchor(name: str) -> str:
    return "smidgen-" + name.replace(" ", "-")
