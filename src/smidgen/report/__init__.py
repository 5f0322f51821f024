"""Reports: from records, which are plain JSON, to a verdict, a table and a page.

What is exported is imported on first use: pages need matplotlib and jinja2 (the extra
`report`), while `smidgen.report.names` needs neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smidgen.report.many_records.page import About, render_many, write_many
    from smidgen.report.one_record.page import render, write
    from smidgen.report.one_record.tables import score_rows
    from smidgen.report.one_record.verdict import verdict

__all__ = ["About", "render", "render_many", "score_rows", "verdict", "write", "write_many"]

_MODULES = {
    "About": "many_records.page",
    "render": "one_record.page",
    "render_many": "many_records.page",
    "score_rows": "one_record.tables",
    "verdict": "one_record.verdict",
    "write": "one_record.page",
    "write_many": "many_records.page",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
