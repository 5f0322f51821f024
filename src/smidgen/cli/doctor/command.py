"""`smidgen doctor`: is everything here that smidgen needs, and what brings the rest?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text
from typer import Option

import smidgen
from smidgen.cli.console import out, write_json
from smidgen.cli.doctor.findings import Finding, look_around

_STYLES = {"ok": "", "note": "yellow", "broken": "bold red"}
_SCREEN = "-"


def doctor(
    json_file: Annotated[
        Path | None,
        Option("--json", help="Also write all findings to this file; - prints them alone."),
    ] = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace an existing --json file.")
    ] = False,
) -> None:
    """Check the installation and the machine; name the command that brings what is missing."""
    alone = str(json_file) == _SCREEN
    if json_file is not None and not alone:
        from smidgen.runtime.writing.output import refuse_taken_file

        refuse_taken_file(json_file, overwrite=overwrite)
    found = look_around()
    broken = [finding for finding in found if finding.state == "broken"]
    content = {
        "smidgen": smidgen.__version__,
        "healthy": not broken,
        "findings": [asdict(finding) for finding in found],
    }
    if alone:
        typer.echo(json.dumps(content, indent=1))
    else:
        _show(found, broken)
        write_json(json_file, content)
    if broken:
        raise typer.Exit(1)


def _show(found: list[Finding], broken: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    area = ""
    for finding in found:
        heading = "" if finding.area == area else finding.area
        area = finding.area
        value = finding.value
        if finding.remedy:
            value += f"\n→ {finding.remedy}"
        table.add_row(
            Text(heading, "dim"), finding.name, Text(value, _STYLES[finding.state])
        )
    out.print(table)
    names = ", ".join(finding.name for finding in broken)
    verdict = f"Broken: {names}." if broken else "Everything that smidgen needs is here."
    out.print(Text(f"\n{verdict}", "bold red" if broken else "bold"))
