"""The page of every study with records in `results/`: `python -m docs.build.pages`."""

from __future__ import annotations

from pathlib import Path

from docs.build.committed import RESULTS, ROOT, list_committed

from smidgen.cli.app import app

FOLDER = ROOT / "build" / "pages"


def write_page(study: str, page: Path) -> None:
    """Write a study's page from its committed records, as a user would."""
    words = ["study", "report", study, "--out", str(RESULTS), "--page", str(page)]
    app([*words, "--overwrite"], standalone_mode=False)


if __name__ == "__main__":
    for study in list_committed():
        write_page(study, FOLDER / f"{study}.html")
