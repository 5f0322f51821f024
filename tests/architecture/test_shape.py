"""The shape of the code is tested like its function."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import smidgen

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILE_LINES, FUNCTION_LINES = 400, 60


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_short(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= FILE_LINES
    long = {
        node.name: size(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and size(node) > FUNCTION_LINES
    }
    assert not long


def size(node) -> int:
    """Lines of a function without its docstring."""
    lines = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= first.end_lineno - first.lineno + 1
    return lines


def test_no_file_has_a_name_that_says_nothing():
    assert not {p.stem for p in SOURCES} & {"utils", "util", "helpers", "misc", "common"}


def test_no_pickle_anywhere():
    words = ("pickle", "torch.load", "weights_only", "joblib")
    found = [
        f"{p.name}: {word}"
        for p in SOURCES
        for word in words
        if re.search(rf"\b{re.escape(word)}\b", _code_without_docstrings(p))
    ]
    assert not found


def _code_without_docstrings(path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return "\n".join(
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Attribute, ast.Name))
    )


def test_the_public_names_exist_and_are_listed():
    assert sorted(smidgen.__all__) == list(smidgen.__all__)
    for name in smidgen.__all__:
        assert getattr(smidgen, name) is not None


def test_importing_the_core_is_light():
    heavy = ["transformers", "datasets", "matplotlib", "typer", "rich", "jinja2", "sklearn"]
    code = f"import sys, smidgen; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
