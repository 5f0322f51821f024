"""Reports: from a record, which is plain JSON, to a verdict, a table and a page."""

from smidgen.report.page import render, write
from smidgen.report.tables import score_rows
from smidgen.report.verdict import verdict

__all__ = ["render", "score_rows", "verdict", "write"]
