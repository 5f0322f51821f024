"""`smidgen study`: experiments of many runs, as files; killed, they go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from smidgen.cli.console import Interrupted, Steps, note, out, refuse_taken_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smidgen.runtime.record import Record
    from smidgen_studies.engine.cell import Cell
    from smidgen_studies.engine.ledger import Ledger, State
    from smidgen_studies.engine.study import Resources, Study
    from smidgen_studies.engine.workers.base import Engine

app = typer.Typer(
    help="Run the papers' experiments, or your own: list, show, run, status, report.",
    no_args_is_help=True,
    add_completion=False,
)
Name = Annotated[str, typer.Argument(help="A study of 'smidgen study list', or a file.")]
Data = Annotated[
    Path | None, typer.Option("--data", help="The folder that holds the data's files.")
]
Folder = Annotated[
    Path | None,
    typer.Option("--out", help="Where records go; runs/NAME-PROFILE if left out."),
]
Profile = Annotated[
    str | None, typer.Option(help="small or full, or what the study has; its first.")
]
Where = Annotated[
    Literal["local", "ray"], typer.Option("--engine", help="Where cells are done.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Cells at once; what the machine holds.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of each worker.")]
Device = Annotated[
    str | None,
    typer.Option(help="Of text models: cpu, cuda, mps; the study's, auto if left out."),
]
Address = Annotated[
    str | None, typer.Option(help="Of a Ray cluster; one on this machine if left out.")
]
_MOST_SHOWN = 5


@app.command("list", epilog="Example: [bold]smidgen study list[/bold]")
def list_studies() -> None:
    """List the studies that come with smidgen, and their profiles."""
    from smidgen_studies.engine.study import profiles_of, read_study, shipped

    for name in shipped():
        study = read_study(name)
        out.print(f"[bold]{name}[/bold]  {escape(study.title)}")
        for profile, about in profiles_of(name).items():
            count = len(read_study(name, profile).cells)
            out.print(f"    --profile {profile}: {count} cells. {escape(about)}")


@app.command(epilog="Example: [bold]smidgen study show glue-table2 > mine.toml[/bold]")
def show(name: Name) -> None:
    """Print a study's file as it stands, to be changed and run as one's own."""
    from smidgen_studies.engine.study import text_of

    # Neither wrapped nor coloured: what is printed is the file.
    typer.echo(text_of(name), nl=False)


@app.command(epilog="Example: [bold]smidgen study run uci --data data/uci[/bold]")
def run(
    name: Name,
    data: Data = None,
    folder: Folder = None,
    profile: Profile = None,
    engine: Where = "local",
    workers: Workers = None,
    threads: Threads = None,
    device: Device = None,
    address: Address = None,
) -> None:
    """Do every cell that is missing; run it again to go on after a stop."""
    from smidgen_studies.engine import run as running

    say = Steps()
    study, ledger = _opened(name, profile, folder)
    missing = _checked(study, ledger, data)
    said = study.resources
    said = replace(said, threads=threads or said.threads, device=device or said.device)
    needed = running.resources_for(missing, said)
    work = (
        _engine(engine, ledger, data, needed, workers=workers, address=address)
        if missing
        else None
    )
    left = len(missing)
    cells = "1 cell" if left == 1 else f"{left} cells"
    say(f"{study.title}: {cells} to do, records in {ledger.folder}")

    def tell(cell: Cell, error: str) -> None:
        nonlocal left
        left -= 1
        if error:
            note(f"{_called(cell)} failed: {error}")
        else:
            say(f"{_called(cell)}: done, {left} left")

    try:
        finished = running.run_study(study, ledger, work, tell=tell) if work else None
    except KeyboardInterrupt:
        raise Interrupted(_going_on(study, ledger)) from None
    _show(study, ledger)
    if finished and finished.failed:
        raise typer.Exit(1)


@app.command(epilog="Example: [bold]smidgen study status uci[/bold]")
def status(name: Name, folder: Folder = None, profile: Profile = None) -> None:
    """Tell which cells are done, running, failed or left."""
    study, ledger = _opened(name, profile, folder)
    state = _show(study, ledger)
    if not (state.done or state.running or state.failed):
        note(_without_records(name, study, ledger))


@app.command(
    epilog="Example: "
    "[bold]smidgen study report uci --out results/uci --page uci.html[/bold]"
)
def report(
    name: Name,
    folder: Folder = None,
    profile: Profile = None,
    page: Annotated[
        Path | None, typer.Option(help="The page; report.html beside the records.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write what was found to this file.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that were named.")
    ] = False,
) -> None:
    """Turn the records that are there into one HTML page, at any time."""
    from smidgen.cli.report import show_many
    from smidgen.errors import ArgumentError
    from smidgen.report import About
    from smidgen_studies.engine.ledger import state_of
    from smidgen_studies.statistics import outcomes_of, verdicts

    # The page beside the records is the study's own, and made anew as it goes on.
    refuse_taken_files(page, json_file, overwrite=overwrite)
    study, ledger = _opened(name, profile, folder)
    done = state_of(study.cells, ledger).done
    if not done:
        raise ArgumentError(_without_records(name, study, ledger))
    records = [ledger.record(cell) for cell in done]
    _check_baseline(study, records)
    left = len(study.cells) - len(done)
    if left:
        note(f"{left} of {len(study.cells)} cells are not done in {ledger.folder}.")
    found = tuple(verdicts(outcomes_of(records)))
    about = About(
        title=study.title,
        about=study.about,
        size=study.size,
        missing=left,
        baseline=study.baseline,
        test_to_train=study.test_to_train,
        paper=study.paper,
        found=found,
    )
    show_many(records, page or ledger.folder / "report.html", json_file, about)


def _opened(name: str, profile: str | None, folder: Path | None) -> tuple[Study, Ledger]:
    from smidgen_studies.engine.ledger import Ledger
    from smidgen_studies.engine.study import read_study

    study = read_study(name, profile)
    return study, Ledger(folder or Path("runs") / f"{study.name}-{study.profile}")


def _check_baseline(study: Study, records: Sequence[Record]) -> None:
    """Refuse a baseline that no cell has; say if the cells that have it are not done."""
    from smidgen.report import fields
    from smidgen_studies.engine.run import refuse_strange_baseline

    found = {m["name"] for each in records for m in fields.list_methods(each)}
    if study.baseline and found and study.baseline not in found:
        refuse_strange_baseline(study)
        note(f"the baseline {study.baseline!r} is in no record yet: another stands for it.")


def _checked(study: Study, ledger: Ledger, data: Path | None) -> list[Cell]:
    """The cells to do, if they can be done: nothing is made, and nothing begun."""
    from smidgen.errors import ArgumentError
    from smidgen_studies.engine import run as running
    from smidgen_studies.engine.data_files import refuse_changed, require_files

    if data is not None and not data.is_dir():
        raise ArgumentError(f"--data must be a folder that exists, got {str(data)!r}.")
    ledger.check()
    refuse_changed(study.cells, ledger, data)
    running.refuse_other_defaults(study, ledger)
    missing = running.missing_cells(study, ledger)
    running.check_all(missing)
    running.refuse_strange_baseline(study)
    require_files(missing, data)
    return missing


def _without_records(name: str, study: Study, ledger: Ledger) -> str:
    """Where records were looked for in vain, and what to do next."""
    # A clone of the repository has records of most of the shipped studies.
    kept = replace(ledger, folder=Path("results") / study.name)
    there = any(map(kept.is_done, study.cells))
    where = f"{kept.folder}, which has some" if there else "FOLDER with those you have"
    return (
        f"there are no records of {study.name!r}, profile {study.profile}, in "
        f"{ledger.folder}. Pass --out {where}, or make them: smidgen study run {name} "
        f"--profile {study.profile} --data FOLDER."
    )


def _engine(
    engine: str,
    ledger: Ledger,
    data: Path | None,
    needed: Resources,
    *,
    workers: int | None,
    address: str | None,
) -> Engine:
    from smidgen.errors import ArgumentError, how_to_install
    from smidgen_studies.engine.workers.base import Place

    place = Place(ledger.folder.resolve(), data.resolve() if data else None)
    if engine == "ray":
        from importlib.util import find_spec

        if find_spec("ray") is None:
            raise ArgumentError(
                "--engine ray needs Ray, which is not there. Install it with "
                f"{how_to_install('ray')}, or take --engine local."
            )
        from smidgen_studies.engine.workers.ray_cluster import RayEngine

        return RayEngine(place, needed, workers, address=address)
    if address is not None:
        raise ArgumentError("--address is for --engine ray. Leave it out.")
    from smidgen_studies.engine.workers.local import LocalEngine

    return LocalEngine(place, needed, workers)


def _show(study: Study, ledger: Ledger) -> State:
    from smidgen_studies.engine.ledger import state_of

    state = state_of(study.cells, ledger)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("", "done", "running", "failed", "left"):
        table.add_column(heading, justify="left" if not heading else "right")
    parts = (state.done, state.running, state.failed, state.left)
    for name in dict.fromkeys(str(cell.data["name"]) for cell in study.cells):
        own = [sum(cell.data["name"] == name for cell in part) for part in parts]
        table.add_row(escape(name), *map(str, own))
    table.add_row("all", *(str(len(part)) for part in parts), style="bold")
    out.print(table)
    reasons: dict[str, list[Cell]] = {}
    for cell in state.failed:
        why = str((ledger.failure(cell) or {}).get("error", ""))
        reasons.setdefault(why, []).append(cell)
    for why, cells in list(reasons.items())[:_MOST_SHOWN]:
        count = "1 cell" if len(cells) == 1 else f"{len(cells)} cells, the first"
        note(f"{count} {_called(cells[0])}, failed: {why}")
    if reasons:
        hidden = len(reasons) - _MOST_SHOWN
        more = f"{hidden} other reasons and all " if hidden > 0 else ""
        note(f"{more}tracebacks are in {ledger.folder / 'failed'}.")
    return state


def _going_on(study: Study, ledger: Ledger) -> str:
    """What a study that was interrupted has, and how it goes on."""
    done = sum(map(ledger.is_done, study.cells))
    return (
        f"{done} of {len(study.cells)} cells done, records in {ledger.folder}; the same "
        "command goes on with the others."
    )


def _called(cell: Cell) -> str:
    return f"{cell.data['name']}, seed {cell.seed}, {cell.name}"
