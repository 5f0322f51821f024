"""Reports: from records, which are plain JSON, to a verdict, a table and a page."""

from smidgen.report.many_records.page import About, render_many, write_many
from smidgen.report.one_record.page import render, write
from smidgen.report.one_record.tables import score_rows
from smidgen.report.one_record.verdict import verdict

__all__ = [
    "About",
    "render",
    "render_many",
    "score_rows",
    "verdict",
    "write",
    "write_many",
]
