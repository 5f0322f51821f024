"""`smidgen report`: turn records into one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from smidgen.cli.console import out, show_record, write_json
from smidgen.cli.options import outputs
from smidgen.cli.options import text as texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smidgen.report import About
    from smidgen.runtime.record import Record


def report(
    context: Context,
    records: Annotated[
        list[Path],
        Argument(
            help="Records, files of packed records, or folders of either.",
            metavar="RECORD...",
        ),
    ],
    page: Annotated[Path, Option("--out", help="The HTML file.")] = Path("report.html"),
    json_file: Annotated[
        Path | None, Option("--json", help="Write the verdict to this file.")
    ] = None,
    overwrite: texts.Overwrite = False,
) -> None:
    """Turn a record, or several side by side, into one HTML page that needs no network."""
    from smidgen.report import verdict, write

    run = outputs.open_run(context, *outputs.files(out=page))
    loaded = _read(records)
    if len(loaded) > 1:
        show_many(loaded, page, json_file)
    else:
        write(loaded[0], page)
        show_record(loaded[0])
        out.print(f"\nwrote {page}")
        write_json(json_file, {"page": str(page), "verdict": verdict(loaded[0])})
    run.finish()


def show_many(
    records: Sequence[Record],
    page: Path,
    json_file: Path | None = None,
    about: About | None = None,
) -> None:
    """Write the page of several records and print what they say."""
    from smidgen.report import About, write_many
    from smidgen.report.many_records.aggregate import gather
    from smidgen.report.many_records.findings import findings
    from smidgen.report.many_records.page import choose_baseline

    write_many(records, page, about)
    about = about or About()
    table = gather(records, about.test_to_train)
    lines = list(about.found) or findings(table, choose_baseline(table, about.baseline))
    for line in lines:
        out.print(f"• {line}")
    out.print(f"\nwrote {page}")
    write_json(json_file, {"page": str(page), "findings": lines})


def _read(paths: Sequence[Path]) -> list[Record]:
    """Read the records of files and folders; of a study's folder those in `records` too."""
    from smidgen.errors import ArgumentError
    from smidgen.runtime.packed_records import SUFFIX, is_packed, unpack_records
    from smidgen.runtime.record import Record

    records: list[Record] = []
    for path in paths:
        files = [path]
        if path.is_dir():
            folder = path / "records" if (path / "records").is_dir() else path
            files = [*sorted(folder.glob("*.json")), *sorted(path.glob(f"*{SUFFIX}"))]
        if not files:
            raise ArgumentError(
                f"{path} must contain records (*.json, *{SUFFIX}), got none."
            )
        for file in files:
            records += (
                unpack_records(file).values() if is_packed(file) else [Record.load(file)]
            )
    return records
