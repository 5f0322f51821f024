"""The program `smidgen`: errors are one sentence, with a traceback only on request."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import typer

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
    with warnings.catch_warnings():
        warnings.simplefilter("default", SmidgenWarning)
        warnings.showwarning = _show_warning
        try:
            typer.main.get_command(app).main(args=words, prog_name="smidgen")
        except SystemExit as leaving:
            # typer handles help, wrong usage and Ctrl-C itself, and exits.
            if leaving.code == _INTERRUPTED:
                refuse(
                    "interrupted. No file is half-written; if there is a checkpoint, the "
                    "same command resumes from it."
                )
            return int(leaving.code or 0)
        except Interrupted as stop:
            refuse(f"interrupted. {stop}")
            return _INTERRUPTED
        except SmidgenError as error:
            if debug:
                raise
            refuse(str(error))
            return 1
        except Exception as error:
            if debug:
                raise
            refuse(f"{type(error).__name__}: {error}. Run again with --debug to see where.")
            return 1
    return 0


def _show_warning(
    message: Warning | str, category: type[Warning], *_: Any, **__: Any
) -> None:
    if issubclass(category, SmidgenWarning):
        note(str(message))
