"""Reports: from records, which are plain JSON, to a verdict, a table and a page."""

from smidgen.report.across_page import About, render_many, write_many
from smidgen.report.page import render, write
from smidgen.report.tables import score_rows
from smidgen.report.verdict import verdict

__all__ = [
    "About",
    "render",
    "render_many",
    "score_rows",
    "verdict",
    "write",
    "write_many",
]
