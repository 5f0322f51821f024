"""Reports: from records, which are plain JSON, to a verdict, a table and a page.

What is exported is imported on first use: pages need matplotlib and jinja2 (the extra
`report`), while `smidgen.report.names` needs neither.
"""

from typing import TYPE_CHECKING

from smidgen.runtime.importing.first_use import import_on_first_use

if TYPE_CHECKING:
    from smidgen.report.many_records.page import About, render_many, write_many
    from smidgen.report.one_record.page import render, write
    from smidgen.report.one_record.tables import score_rows
    from smidgen.report.one_record.verdict import verdict
else:
    __getattr__, __dir__ = import_on_first_use(__name__)

__all__ = ["About", "render", "render_many", "score_rows", "verdict", "write", "write_many"]
