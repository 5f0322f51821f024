"""The program `smidgen`: errors are one sentence, with a traceback only on request."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import typer
from typer import BadParameter

import smidgen
from smidgen.cli import (
    bayestune,
    demo,
    evaluate,
    finetune,
    fit,
    plan,
    predict,
    ramp,
    report,
    train_sparse,
    verify,
)
from smidgen.cli.console import Interrupted, note, out, refuse
from smidgen.errors import SmidgenError, SmidgenWarning
from smidgen.runtime.progress import SWITCH

# What typer returns when the user pressed Ctrl-C.
_INTERRUPTED = 130
_WRONG_USAGE = 2
# typer holds its own copy of click, and exports only a few of its errors.
_WrongUsage: Any = BadParameter.__mro__[1]

app = typer.Typer(
    name="smidgen",
    help="A smidgen of Bayes: calibrated uncertainty from a small subset of weights.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
_DATA = "--train train.tsv --val dev.tsv --text sentence"
_COMMANDS: dict[Callable[..., None], str] = {
    demo.demo: "smidgen demo --quick",
    finetune.finetune: f"smidgen finetune MODEL {_DATA} --out finetuned",
    bayestune.bayestune: (f"smidgen bayestune MODEL {_DATA} --fraction 0.005 --out tuned"),
    plan.plan: "smidgen plan MODEL --percent 10",
    verify.verify: "smidgen verify finetuned --data dev.tsv --text sentence",
    fit.fit: f"smidgen fit finetuned {_DATA} --percent 10 --out posterior",
    predict.predict: "smidgen predict finetuned posterior --data new.tsv --text sentence",
    evaluate.evaluate: "smidgen evaluate finetuned posterior --test test.tsv --text sentence",
    ramp.ramp: f"smidgen ramp finetuned {_DATA} --test test.tsv --out runs/ramp",
    train_sparse.train_sparse: (
        "smidgen train-sparse --train train-images-idx3-ubyte.gz --density 0.1 --out sparse"
    ),
    report.report: "smidgen report runs/demo/record.json --out report.html",
}
for _command, _example in _COMMANDS.items():
    app.command(epilog=f"Example: [bold]{_example}[/bold]")(_command)
for _entry in entry_points(group="smidgen.commands"):
    app.add_typer(_entry.load(), name=_entry.name)


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
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if "--quiet" in typed:
        os.environ[SWITCH] = "0"
    words = [word for word in typed if word not in ("--debug", "--quiet")]
    raise SystemExit(_run(words, debug="--debug" in typed))


def _run(words: list[str], *, debug: bool) -> int:
    for word in words:
        if not _is_utf8(word):
            refuse(
                f"names and values must be UTF-8, got {word!r}. Rename the file or folder."
            )
            return _WRONG_USAGE
    with warnings.catch_warnings():
        warnings.simplefilter("default", SmidgenWarning)
        warnings.showwarning = _show_warning
        try:
            command = typer.main.get_command(app)
            code = command.main(args=words, prog_name="smidgen", standalone_mode=False)
            if code == _INTERRUPTED:
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
            return _INTERRUPTED
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


def _find_command(words: list[str]) -> Any:
    """Find the command that was typed, or None."""
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})
    return commands.get(next(iter(words), ""))


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
    return f"{message[:1].lower()}{message[1:]}. Try '{path} --help'."


def _show_warning(
    message: Warning | str, category: type[Warning], *_: Any, **__: Any
) -> None:
    if issubclass(category, SmidgenWarning):
        note(str(message))
