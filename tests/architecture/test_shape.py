"""The shape of the code is tested like its function."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

import smidgen
from tests.architecture.covered_elsewhere import COVERED_ELSEWHERE

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FOLDERS = sorted({path.parent for path in SOURCES})
FILE_LINES, FUNCTION_LINES, FOLDER_FILES, LAYERS, ARGUMENTS = 400, 60, 14, 8, 8
# Every kind of cell has these, as the engine asks: they are a protocol, not a repetition.
KIND_PROTOCOL = {"Settings", "Data", "run", "ON_PROCESSOR"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_short(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= FILE_LINES
    long = {
        node.name: lines_of(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and lines_of(node) > FUNCTION_LINES
    }
    assert not long


def lines_of(node) -> int:
    """Lines of a function without its docstring."""
    lines = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= first.end_lineno - first.lineno + 1
    return lines


def test_only_four_files_stand_loose_at_the_root():
    loose = {path.name for path in (ROOT / "src" / "smidgen").glob("*.py")}
    assert loose == {"__init__.py", "__main__.py", "errors.py", "types.py"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_has_few_files(folder):
    assert len(list(folder.glob("*.py"))) <= FOLDER_FILES


def test_there_are_eight_layers_and_every_room_is_in_one():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    assert len(contract["layers"]) <= LAYERS
    assert contract["exhaustive"]


def test_no_file_has_a_name_that_says_nothing():
    empty = {"utils", "util", "helpers", "misc", "common", "preparation", "base_utils"}
    assert not {p.stem for p in SOURCES} & empty


def test_no_public_name_is_defined_twice():
    places = defaultdict(set)
    for path in SOURCES:
        for name in public_names(path):
            places[name].add(path.relative_to(ROOT / "src").as_posix())
    twice = {name: sorted(files) for name, files in places.items() if len(files) > 1}
    assert not twice


def public_names(path) -> set[str]:
    """Names that a module defines for others; commands are named after what they run."""
    parts = path.relative_to(ROOT / "src").parts
    if "cli" in parts or path.name == "cli.py":
        return set()
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    if "kinds" in parts:
        names -= KIND_PROTOCOL
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("room", ["", "fit", "select", "decide", "evaluate"])
def test_public_functions_take_few_arguments(room):
    module = getattr(smidgen, room) if room else smidgen
    many = {
        name: len(inspect.signature(function).parameters)
        for name in module.__all__
        if inspect.isfunction(function := getattr(module, name))
        and len(inspect.signature(function).parameters) > ARGUMENTS
    }
    assert not many


def test_every_module_has_its_test_file():
    missing = [
        module
        for path in SOURCES
        if path.name != "__init__.py"
        and not find_test_file(path).is_file()
        and (module := path.relative_to(ROOT / "src").as_posix()) not in COVERED_ELSEWHERE
    ]
    assert not missing


def test_what_is_covered_elsewhere_is_there_and_has_no_file_of_its_own():
    for module, covering in COVERED_ELSEWHERE.items():
        path = ROOT / "src" / module
        assert path.is_file(), f"{module} is gone: take it off the list"
        assert not find_test_file(path).is_file(), f"{module} has its own test file now"
        assert (ROOT / "tests" / covering).is_file(), f"{covering} is gone"


def find_test_file(path) -> Path:
    """Where the tests of a module stand: tests/unit mirrors src."""
    parts = path.relative_to(ROOT / "src").parts
    rooms = parts[1:-1] if parts[0] == "smidgen" else ("studies", *parts[1:-1])
    return ROOT / "tests" / "unit" / Path(*rooms) / f"test_{path.stem}.py"


def test_no_pickle_anywhere():
    words = ("pickle", "torch.load", "weights_only", "joblib")
    uses = [
        f"{p.name}: {word}"
        for p in SOURCES
        for word in words
        if re.search(rf"\b{re.escape(word)}\b", code_without_docstrings(p))
    ]
    assert not uses


def code_without_docstrings(path) -> str:
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


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_asks_for_public_names_while_it_is_imported(path):
    """They are imported on first use, one thread at a time: a file in the middle of its own
    import could wait for a thread that waits for it."""
    if not path.is_relative_to(ROOT / "src" / "smidgen"):
        return
    lazy = {"smidgen": smidgen.__all__, "smidgen.report": smidgen.report.__all__}
    assert not [
        name.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if name.name in lazy.get(node.module or "", ())
    ]


def test_importing_the_core_is_light():
    heavy = [
        "torch",
        "numpy",
        "scipy",
        "transformers",
        "datasets",
        "matplotlib",
        "typer",
        "rich",
        "jinja2",
        "sklearn",
        "smidgen_studies",
    ]
    code = f"import sys, smidgen; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
