"""`smidgen study`: experiments of many runs, as files; a killed one continues."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.padding import Padding
from rich.table import Table

from smidgen.cli.console import Interrupted, Steps, note, out
from smidgen.cli.options import outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smidgen.runtime.record import Record
    from smidgen_studies.engine.cell import Cell
    from smidgen_studies.engine.ledger import Ledger, State
    from smidgen_studies.engine.study import Resources, Study
    from smidgen_studies.engine.workers.base import Engine

_SHIPPED = resources.files("smidgen_studies") / "shipped"

app = typer.Typer(
    help="Run the papers' experiments, or your own: list, show, run, status, report.",
    no_args_is_help=True,
    add_completion=False,
)


def _offer_studies(incomplete: str) -> list[str]:
    """List the studies a shell may complete, without importing what reads them."""
    names = sorted(file.name.removesuffix(".toml") for file in _SHIPPED.iterdir())
    return [name for name in names if name.startswith(incomplete)]


def _offer_profiles(incomplete: str) -> list[str]:
    """List the profiles of the study that was typed before, if its file can be read."""
    # What is typed is not parsed yet where a value is still missing.
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    for name in typed.split():
        shipped = _SHIPPED / f"{name}.toml"
        try:
            text = (shipped if shipped.is_file() else Path(name)).read_text("utf-8")
            profiles = tomllib.loads(text).get("profiles", {})
        except (OSError, ValueError):
            continue
        return [profile for profile in profiles if profile.startswith(incomplete)]
    return []


Name = Annotated[
    str,
    typer.Argument(
        autocompletion=_offer_studies,
        help="A name from 'smidgen study list', or a TOML file.",
    ),
]
Data = Annotated[
    Path | None, typer.Option("--data", help="The folder that holds the data files.")
]
Folder = Annotated[
    Path | None,
    typer.Option("--out", help="The folder of the records. Default: runs/NAME-PROFILE."),
]
Profile = Annotated[
    str | None,
    typer.Option(
        autocompletion=_offer_profiles,
        help="A profile of the study: small, full, ... Default: its first.",
    ),
]
EngineName = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="Run cells on this machine or on a Ray cluster."),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Cells at once. Default: as many as cores and memory allow."),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of each worker. Default: the study's.")
]
Device = Annotated[
    str | None,
    typer.Option(help="Device of text models: auto, cpu, cuda, mps. Default: the study's."),
]
Address = Annotated[
    str | None,
    typer.Option(help="Address of a Ray cluster. Default: start one on this machine."),
]
_MOST_SHOWN = 5


@app.command("list", epilog="Example: [bold]smidgen study list[/bold]")
def list_studies() -> None:
    """List the studies that come with smidgen, and their profiles."""
    from smidgen_studies.engine.study import list_profiles, read_study, shipped_studies

    for name in shipped_studies():
        study = read_study(name)
        out.say(f"{name} ", study.title, "bold")
        for profile, about in list_profiles(name).items():
            count = len(read_study(name, profile).cells)
            line = f"--profile {profile}: {count} cells. {about}"
            out.print(Padding(line, (0, 0, 0, 4), expand=False))


@app.command(epilog="Example: [bold]smidgen study show glue-table2 > mine.toml[/bold]")
def show(name: Name) -> None:
    """Print the file of a study, as a start for your own."""
    from smidgen_studies.engine.study import study_text

    # Neither wrapped nor coloured, and in UTF-8 wherever it goes: what is printed is the file.
    typer.echo(study_text(name).encode("utf-8"), nl=False)


@app.command(epilog="Example: [bold]smidgen study run uci --data data/uci[/bold]")
def run(
    name: Name,
    data: Data = None,
    folder: Folder = None,
    profile: Profile = None,
    engine: EngineName = "local",
    workers: Workers = None,
    threads: Threads = None,
    device: Device = None,
    address: Address = None,
) -> None:
    """Do all missing cells of a study; run it again to continue after a stop."""
    from smidgen.errors import ArgumentError
    from smidgen_studies.engine import run as running

    say = Steps()
    study, ledger = _open(name, profile, folder)
    if data is not None and not data.is_dir():
        raise ArgumentError(f"--data must be a folder that exists, got {str(data)!r}.")
    missing = running.check_study(study, ledger, data)
    asked = study.resources
    asked = replace(asked, threads=threads or asked.threads, device=device or asked.device)
    failed: Sequence[Cell] = ()
    left = len(missing)
    cells = "1 cell" if left == 1 else f"{left} cells"

    def report_end(cell: Cell, error: str) -> None:
        nonlocal left
        left -= 1
        if error:
            note(f"{cell.title} failed: {error}")
        else:
            say(f"{cell.title}: done, {left} left")

    if missing:
        resources = running.resources_for(missing, asked)
        work = _engine(engine, ledger, data, resources, workers=workers, address=address)
        say(f"{study.title}: {cells} to do, records in {ledger.folder}")
        try:
            failed = running.run_cells(missing, ledger, work, on_end=report_end).failed
        except KeyboardInterrupt:
            done = sum(map(ledger.is_done, study.cells))
            raise Interrupted(
                f"{done} of {len(study.cells)} cells done, records in {ledger.folder}; the "
                "same command continues with the others."
            ) from None
    running.pack_if_done(study, ledger)
    _show_state(study, ledger)
    if failed:
        raise typer.Exit(1)


@app.command(epilog="Example: [bold]smidgen study status uci[/bold]")
def status(name: Name, folder: Folder = None, profile: Profile = None) -> None:
    """Show how many cells are done, running, failed or left."""
    study, ledger = _open(name, profile, folder)
    state = _show_state(study, ledger)
    if not (state.done or state.running or state.failed):
        note(_no_records(name, study, ledger))
    _note_stale([ledger.record(cell) for cell in state.done])


def _note_stale(records: Sequence[Record]) -> None:
    from smidgen_studies.engine.protocol import describe_stale

    if sentence := describe_stale(records):
        note(sentence)


@app.command(
    epilog="Example: [bold]smidgen study report uci --out results --page uci.html[/bold]"
)
def report(
    context: typer.Context,
    name: Name,
    folder: Folder = None,
    profile: Profile = None,
    page: Annotated[
        Path | None, typer.Option(help="The page. Default: NAME.html beside the records.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the findings to this file.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that exist already.")
    ] = False,
) -> None:
    """Turn the records made so far into one HTML page."""
    from smidgen.cli.report import show_many
    from smidgen.errors import ArgumentError
    from smidgen.report import About
    from smidgen_studies.engine.ledger import read_state
    from smidgen_studies.statistics import collect_outcomes, describe_verdicts

    # The page beside the records belongs to the study, and is written anew each time.
    claim = outputs.open_run(context, *outputs.files(page=page))
    study, ledger = _open(name, profile, folder)
    done = read_state(study.cells, ledger).done
    if not done:
        raise ArgumentError(_no_records(name, study, ledger))
    records = [ledger.record(cell) for cell in done]
    _check_baseline(study, records)
    _note_stale(records)
    left = len(study.cells) - len(done)
    if left:
        note(f"{left} of {len(study.cells)} cells are not done in {ledger.folder}.")
    verdicts: Sequence[str] = ()
    if study.pairwise:
        verdicts = describe_verdicts(collect_outcomes(records), study.pairwise)
    about = About(
        title=study.title,
        about=study.about,
        size=study.size,
        missing=left,
        baseline=study.baseline,
        test_to_train=study.test_to_train,
        paper=study.paper,
        found=tuple(verdicts),
    )
    show_many(records, page or ledger.folder / f"{study.name}.html", json_file, about)
    claim.finish()


def _open(name: str, profile: str | None, folder: Path | None) -> tuple[Study, Ledger]:
    from smidgen_studies.engine.ledger import Ledger
    from smidgen_studies.engine.study import read_study

    study = read_study(name, profile)
    return study, Ledger(folder or Path("runs") / f"{study.name}-{study.profile}")


def _check_baseline(study: Study, records: Sequence[Record]) -> None:
    """Refuse a baseline that no cell has; say so if the cells that have it are not done."""
    from smidgen.report import fields
    from smidgen_studies.engine.run import refuse_unknown_baseline

    methods = {
        method["name"] for record in records for method in fields.list_methods(record)
    }
    if study.baseline and methods and study.baseline not in methods:
        refuse_unknown_baseline(study)
        note(
            f"the baseline {study.baseline!r} is in no record yet: another method takes its "
            "place."
        )


def _no_records(name: str, study: Study, ledger: Ledger) -> str:
    """Where no records were found, and what to do next."""
    return (
        f"there are no records of {study.name!r}, profile {study.profile}, in "
        f"{ledger.folder}. Pass --out FOLDER with the folder that has them, or make them: "
        f"smidgen study run {name} --profile {study.profile} --data FOLDER."
    )


def _engine(
    engine: str,
    ledger: Ledger,
    data: Path | None,
    resources: Resources,
    *,
    workers: int | None,
    address: str | None,
) -> Engine:
    from smidgen.errors import ArgumentError, how_to_install
    from smidgen_studies.engine.workers.base import Workspace

    workspace = Workspace(ledger.folder.resolve(), data.resolve() if data else None)
    if engine == "ray":
        from importlib.util import find_spec

        if find_spec("ray") is None:
            raise ArgumentError(
                "--engine ray needs Ray, which is not installed. Install it with "
                f"{how_to_install('ray')}, or pass --engine local."
            )
        from smidgen_studies.engine.workers.ray_cluster import RayEngine

        return RayEngine(workspace, resources, workers, address=address)
    if address is not None:
        raise ArgumentError("--address is for --engine ray. Leave it out.")
    from smidgen_studies.engine.workers.local import LocalEngine

    return LocalEngine(workspace, resources, workers)


def _show_state(study: Study, ledger: Ledger) -> State:
    """Print what has become of the cells, and why some of them failed."""
    from smidgen_studies.engine.ledger import read_state

    state = read_state(study.cells, ledger)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("", "done", "running", "failed", "left"):
        table.add_column(heading, justify="left" if not heading else "right")
    parts = (state.done, state.running, state.failed, state.left)
    for name in dict.fromkeys(str(cell.data["name"]) for cell in study.cells):
        counts = [sum(cell.data["name"] == name for cell in part) for part in parts]
        table.add_row(name, *map(str, counts))
    table.add_row("all", *(str(len(part)) for part in parts), style="bold")
    out.show(table)
    reasons: dict[str, list[Cell]] = {}
    for cell in state.failed:
        reason = str((ledger.failure(cell) or {}).get("error", ""))
        reasons.setdefault(reason, []).append(cell)
    for reason, cells in list(reasons.items())[:_MOST_SHOWN]:
        count = "1 cell" if len(cells) == 1 else f"{len(cells)} cells, the first"
        note(f"{count} {cells[0].title}, failed: {reason}")
    if reasons:
        hidden = len(reasons) - _MOST_SHOWN
        more = f"{hidden} other reasons and all " if hidden > 0 else ""
        note(f"{more}tracebacks are in {ledger.folder / 'failed'}.")
    return state
