"""The program `smidgen`: errors are one sentence, with a traceback only on request."""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

import typer
from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

import smidgen
from smidgen.cli.completion.table import is_completing, make_light_command
from smidgen.cli.console import (
    INTERRUPTED,
    Interrupted,
    note,
    out,
    refuse,
    spell_what_is_missing,
)
from smidgen.errors import SmidgenError, SmidgenWarning
from smidgen.runtime.progress import SWITCH

_WRONG_USAGE = 2
# typer holds its own copy of click, and exports only a few of its errors.
_WrongUsage: Any = BadParameter.__mro__[1]

_DATA = "--train train.tsv --val dev.tsv --text sentence"


class _Row(NamedTuple):
    """What is said of a command without importing it."""

    help: str
    example: str


# The command "x-y" is the function `x_y` of `smidgen.cli.x_y`.
_COMMANDS = {
    "run": _Row(
        "From a file of texts, numbers or images to a predictor that knows when it is unsure.",
        "smidgen run news.csv --label topic --text title,text --out news",
    ),
    "demo": _Row(
        "Calibrate a real transformer with about one percent of its weights stochastic.",
        "smidgen demo --quick",
    ),
    "finetune": _Row(
        "Fine-tune all weights of a text classifier, or an adapter of a language model.",
        "smidgen finetune MODEL --train train.tsv --text sentence --out finetuned",
    ),
    "bayestune": _Row(
        "Fine-tune only the weights worth it, save a small delta, and fit a posterior.",
        f"smidgen bayestune MODEL {_DATA} --fraction 0.005 --out tuned",
    ),
    "plan": _Row(
        "Estimate what a posterior would cost, and what would fit on this machine.",
        "smidgen plan MODEL --percent 10",
    ),
    "verify": _Row(
        "Check a few weights of every layer against a slow, exact computation.",
        "smidgen verify finetuned --data dev.tsv --text sentence",
    ),
    "fit": _Row(
        "Make a trained model Bayesian: try the cheap things first, and keep what pays.",
        "smidgen fit finetuned --train train.tsv --out posterior",
    ),
    "pack": _Row(
        "Join a model and its posterior into one folder, to use, to serve and to share.",
        "smidgen pack finetuned posterior --out ready",
    ),
    "push": _Row(
        "Put a ready folder, a posterior or a delta into a repository on the Hub.",
        "smidgen push ready user/name --private",
    ),
    "predict": _Row(
        "Predict new rows: answers, how certain they are, and when to ask a person.",
        "smidgen predict news --data new.csv --out answers.csv",
    ),
    "evaluate": _Row(
        "Did it help? Compare a posterior with the model as it is and temperature scaling.",
        "smidgen evaluate finetuned posterior --test test.tsv",
    ),
    "serve": _Row(
        "Answer rows over HTTP, on this machine, with a page to try them on.",
        "smidgen serve news --port 8000",
    ),
    "ramp": _Row(
        "Find out which weights, and how many, are worth making stochastic.",
        f"smidgen ramp finetuned {_DATA} --test test.tsv --out runs/ramp",
    ),
    "train-sparse": _Row(
        "Train a sparse Bayesian network on numbers or images.",
        "smidgen train-sparse --train train-images-idx3-ubyte.gz --density 0.1 --out sparse",
    ),
    "doctor": _Row(
        "Check the installation and the machine; name the command that brings what is missing.",
        "smidgen doctor --json machine.json",
    ),
    "report": _Row(
        "Turn a record, or several side by side, into one HTML page that needs no network.",
        "smidgen report runs/demo/record.json --out report.html",
    ),
}


class _Commands(TyperGroup):
    """Commands that are imported when they are typed, not when they are listed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, row in _COMMANDS.items():
            self.add_command(TyperCommand(name, help=row.help))
        for name in _find_plugins():
            self.add_command(TyperCommand(name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that was typed, and import it."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and _load_command(name), rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the commands; those of other packages say themselves what they do."""
        for name in _find_plugins():
            self.add_command(_load_command(name))
        super().format_help(ctx, formatter)


def _make_app(*, add_completion: bool = False, **settings: Any) -> typer.Typer:
    return typer.Typer(
        add_completion=add_completion,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        **settings,
    )


@cache
def _find_plugins() -> dict[str, EntryPoint]:
    """Find the commands that other packages bring, by name."""
    return {entry.name: entry for entry in entry_points(group="smidgen.commands")}


def _load_command(name: str) -> Any:
    """Import a command, with its options; a shell that asks for them gets a list of them."""
    if is_completing() and name in _COMMANDS:
        return make_light_command(name)
    shelf = _make_app()
    if name in _find_plugins():
        shelf.add_typer(_find_plugins()[name].load(), name=name)
    else:
        function = name.replace("-", "_")
        command = getattr(import_module(f"smidgen.cli.{function}"), function)
        example = f"Example: [bold]{_COMMANDS[name].example}[/bold]"
        shelf.command(name, epilog=example)(command)
    return typer.main.get_group(shelf).commands[name]


app = _make_app(
    cls=_Commands,
    name="smidgen",
    help="A smidgen of Bayes: calibrated uncertainty from a small subset of weights.",
    no_args_is_help=True,
    add_completion=True,
)


def _show_version(requested: bool) -> None:
    if requested:
        out.print(smidgen.__version__)
        raise typer.Exit


@app.callback()
def _root(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    quiet: bool = typer.Option(False, "--quiet", help="Draw no progress bars."),
    version: bool = typer.Option(
        False, "--version", help="Show the version.", is_eager=True, callback=_show_version
    ),
) -> None:
    """--debug and --quiet may come anywhere in the command."""


def main(arguments: list[str] | None = None) -> None:
    """Run the program and exit: 0 done, 1 refused, 2 wrong usage, 130 interrupted."""
    spell_what_is_missing()
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if "--quiet" in typed:
        os.environ[SWITCH] = "0"
    words = [word for word in typed if word not in ("--debug", "--quiet")]
    raise SystemExit(_run(words, debug="--debug" in typed))


def _run(words: list[str], *, debug: bool) -> int:
    for word in words:
        if not _is_utf8(word):
            refuse(_explain_encoding(word))
            return _WRONG_USAGE
    with warnings.catch_warnings():
        warnings.simplefilter("default", SmidgenWarning)
        warnings.showwarning = _show_warning
        try:
            command = typer.main.get_command(app)
            code = command.main(args=words, prog_name="smidgen", standalone_mode=False)
            if code == INTERRUPTED:
                refuse(
                    "interrupted. No file is half-written; if there is a checkpoint, the "
                    "same command resumes from it."
                )
            return int(code or 0)
        except _WrongUsage as error:
            # A command that needs another word, and got none, has shown its help.
            if type(error).__name__ != "NoArgsIsHelpError":
                refuse(_explain(error, words))
            return _WRONG_USAGE
        except Interrupted as stop:
            refuse(f"interrupted. {stop}")
            return INTERRUPTED
        except SmidgenError as error:
            if debug:
                raise
            refuse(_name_option(str(error), words))
            return 1
        except Exception as error:
            if debug:
                raise
            refuse(f"{type(error).__name__}: {error}. Run again with --debug to see where.")
            return 1


def _is_utf8(word: str) -> bool:
    """Whether a word of the command line is text; other bytes came as halves of characters."""
    return not any("\ud800" <= letter <= "\udfff" for letter in word)


def _explain_encoding(word: str) -> str:
    """Say whether a word itself is no UTF-8, or is only read so by this shell's locale."""
    try:
        meant = os.fsencode(word).decode("utf-8")
    except UnicodeError:
        return f"names and values must be UTF-8, got {word!r}. Rename the file or folder."
    return (
        f"the encoding of names must be utf-8 for {meant!r}, got "
        f"{sys.getfilesystemencoding()}. Set PYTHONUTF8=1, or LC_ALL to a UTF-8 locale."
    )


def _find_command(words: list[str]) -> Any:
    """Find the command that was typed, or None."""
    name = next(iter(words), "")
    return _load_command(name) if name in {*_COMMANDS, *_find_plugins()} else None


def _name_option(message: str, words: list[str]) -> str:
    """Where a message begins with an argument's name in Python, put the option's."""
    for parameter in getattr(_find_command(words), "params", ()):
        option = max(parameter.opts, key=len)
        if option.startswith("--") and message.startswith(f"{parameter.name} must "):
            return option + message.removeprefix(parameter.name)
    return message


def _explain(error: Any, words: list[str]) -> str:
    """Say what is wrong with a command line, and where its options are listed."""
    path = f"smidgen {words[0]}" if _find_command(words) else "smidgen"
    path = error.ctx.command_path if error.ctx else path
    message = error.format_message().strip().rstrip(".")
    found: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if found:
        # pydantic's "Input should be a valid number, unable to…", in our words.
        allowed = found[0]["msg"].removeprefix("Value error, ").rstrip(".")
        allowed = allowed.removeprefix("Input should be ").partition(", unable")[0]
        _, listed, choices = allowed.partition(" is not one of ")
        option = max(error.param.opts, key=len)
        allowed = f"one of {choices}" if listed else allowed
        message = f"{option} must be {allowed}, got {str(found[0]['input'])!r}"
    end = "" if message.endswith(("?", "!")) else "."
    return f"{message[:1].lower()}{message[1:]}{end} Try '{path} --help'."


def _show_warning(
    message: Warning | str, category: type[Warning], *_: Any, **__: Any
) -> None:
    if issubclass(category, SmidgenWarning):
        note(str(message))
