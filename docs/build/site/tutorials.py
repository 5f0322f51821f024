"""Tutorials: whatever lies in docs/tutorials, as pages in the order of their names.

A script in the percent format (`# %% [markdown]` and `# %%` between its parts) becomes a page
of text and code; so one file is read, run and tested.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from docs.build.site import ROOT

FOLDER = ROOT / "docs" / "tutorials"
_MARK = re.compile(r"^# %%(.*)$", re.MULTILINE)


def list_tutorials() -> list[Path]:
    """List the tutorials, pages and scripts, by the numbers or letters of their names."""
    files = [*FOLDER.glob("*.md"), *FOLDER.glob("*.py")]
    return sorted(f for f in files if f.stem not in ("index", "__init__"))


def name_page(tutorial: Path) -> str:
    """The address of a tutorial's page."""
    return f"tutorials/{tutorial.stem}.md"


def write_scripts() -> dict[str, str]:
    """Write the pages of tutorials that are scripts.

    Returns:
        Markdown by address.
    """
    scripts = [file for file in list_tutorials() if file.suffix == ".py"]
    return {
        name_page(file): convert_script(file.read_text(encoding="utf-8"))
        for file in scripts
    }


def convert_script(source: str) -> str:
    """Turn a script into Markdown.

    Args:
        source: Python, in the percent format or with a docstring at its head.

    Returns:
        Its text as text, its code as code.
    """
    head, *cells = _MARK.split(source)
    about = ast.get_docstring(ast.parse(source))
    parts = []
    if about:
        title, _, rest = about.partition("\n")
        parts.append(f"# {title.strip().rstrip('.').lstrip('# ')}\n\n{rest.strip()}")
        head = re.sub(r'^\s*r?("""|\'\'\').*?\1', "", head, count=1, flags=re.DOTALL)
    parts.append(_fence(head))
    for kind, cell in zip(cells[::2], cells[1::2], strict=True):
        parts.append(_uncomment(cell) if "[markdown]" in kind else _fence(cell))
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _fence(code: str) -> str:
    return f"```python\n{code.strip()}\n```" if code.strip() else ""


def _uncomment(cell: str) -> str:
    lines = cell.strip("\n").split("\n")
    return "\n".join(re.sub(r"^# ?", "", line) for line in lines).strip()
