"""The committed page of every study, anew from its records: `python -m studies.pages`."""

from __future__ import annotations

from pathlib import Path

from smidgen_studies.cli import report
from smidgen_studies.engine.study import shipped
from studies.committed import ROOT

RESULTS = ROOT / "results"


def committed() -> list[str]:
    """List the studies whose records are committed."""
    return [name for name in shipped() if (RESULTS / name / "records").is_dir()]


def write(study: str, page: Path) -> None:
    """Write a study's page from its committed records, as a user would."""
    report(study, folder=RESULTS / study, page=page, overwrite=True)


if __name__ == "__main__":
    for each in committed():
        write(each, RESULTS / each / "report.html")
