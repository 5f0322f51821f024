"""The page of every study with records in `results/`: `python -m docs.build.pages`."""

from __future__ import annotations

from pathlib import Path

from docs.build.committed import RESULTS, ROOT, list_committed

from smidgen_studies.cli import report

FOLDER = ROOT / "build" / "pages"


def write_page(study: str, page: Path) -> None:
    """Write a study's page from its committed records, as a user would."""
    report(study, folder=RESULTS, page=page, overwrite=True)


if __name__ == "__main__":
    for study in list_committed():
        write_page(study, FOLDER / f"{study}.html")
