"""`smidgen report`: a record as one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smidgen.cli.console import check_free, out, show_record, write_json


def report(
    record: Annotated[Path, typer.Argument(help="A record.json.")],
    page: Annotated[Path, typer.Option("--out", help="The page.")] = Path("report.html"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the verdict to this file.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is there.")
    ] = False,
) -> None:
    """Turn a record into one HTML page that needs no network."""
    from smidgen.record import Record
    from smidgen.report import verdict, write

    check_free(overwrite, page, json_file)
    found = Record.load(record)
    write(found, page)
    show_record(found)
    out.print(f"\nwrote {page}")
    write_json(json_file, {"page": str(page), "verdict": verdict(found)})
