"""Starting is quick: what is not needed yet is not imported yet."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import smidgen
from smidgen.cli import app

HEAVY = ("torch", "transformers", "scipy", "numpy", "safetensors", "matplotlib")
SOURCE = Path(smidgen.__file__).parent
# Seconds of a processor; starting takes 0.02 and 0.1 of them, and importing torch alone 0.8.
MOST_SECONDS = 0.6


def start(code):
    """Run code in a process of its own; find what it imported, its seconds, and its output."""
    code = f"""
import json, sys, time
try:
    {code}
except SystemExit as leaving:
    assert not leaving.code, leaving.code
finally:
    used = [sorted(name for name in sys.modules), time.process_time()]
    print("\\n" + json.dumps(used))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    printed, _, last = done.stdout.rstrip("\n").rpartition("\n")
    modules, seconds = json.loads(last)
    return set(modules), seconds, printed


def command(*words):
    return start(f"from smidgen.cli import main; main({list(words)!r})")


def test_importing_smidgen_is_quick():
    modules, _, _ = start("import smidgen; smidgen.__version__; smidgen.SmidgenError")
    assert not modules & {*HEAVY, "typer", "rich"}
    assert min(start("import smidgen")[1] for _ in range(3)) < MOST_SECONDS


def test_python_can_run_the_package():
    told = subprocess.run(
        [sys.executable, "-m", "smidgen", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == smidgen.__version__


def test_help_is_quick_and_complete():
    modules, _, printed = command("--help")
    assert not modules & {*HEAVY, "pydantic"}
    assert not modules & {f"smidgen.cli.{name}" for name in ("demo", "fit", "report")}
    words = " ".join(printed.replace("│", " ").split())
    for name, row in app._COMMANDS.items():
        assert f"{name} {row.help}" in words
    # A command of another package says itself what it does.
    assert "study Run the papers' experiments, or your own" in words
    assert min(command("--help")[1] for _ in range(3)) < MOST_SECONDS


def test_the_version_is_told_without_commands():
    modules, _, printed = command("--version")
    assert printed.strip() == smidgen.__version__
    assert not modules & {*HEAVY, "pydantic", "smidgen_studies"}


@pytest.mark.parametrize(
    "name", ["demo", "evaluate", "predict", "report", "study", "verify"]
)
def test_help_of_a_command_without_lists_of_methods_needs_no_torch(name):
    modules, _, printed = command(name, "--help")
    assert f"Usage: smidgen {name}" in printed
    assert not modules & set(HEAVY)


def test_a_command_imports_no_other_packages_commands():
    modules, _, _ = command("report", "--help")
    assert "smidgen_studies" not in modules


def test_the_list_says_what_the_commands_say():
    for name, row in app._COMMANDS.items():
        function = name.replace("-", "_")
        found = getattr(import_module(f"smidgen.cli.{function}"), function)
        assert inspect.getdoc(found) == row.help
        assert row.example.startswith(f"smidgen {name} ")


@pytest.mark.parametrize("package", ["", "report"])
def test_every_public_name_has_one_import(package):
    tree = ast.parse((SOURCE / package / "__init__.py").read_text(encoding="utf-8"))
    imported = [
        name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        for line in node.body
        for name in line.names
    ]
    module = getattr(smidgen, package) if package else smidgen
    assert sorted(imported) == sorted(module.__all__)
    # A file of the same name would take the name's place as soon as it is imported.
    files = {path.stem for path in (SOURCE / package).iterdir()}
    assert files & set(imported) <= {"decide", "evaluate", "fit", "select"}


def test_the_names_are_what_they_were():
    assert smidgen.predict.__module__ == "smidgen.prediction.predict"
    assert smidgen.fit.laplace.__module__ == "smidgen.fit.laplace"
    assert smidgen.evaluate.brier.__module__ == "smidgen.evaluate.scores"
    assert inspect.ismodule(smidgen.select)
    assert smidgen.plan.__module__ == "smidgen.planning.plan"
    assert set(smidgen.__all__) <= set(dir(smidgen))
    with pytest.raises(AttributeError, match="module 'smidgen' has no attribute 'nosuch'"):
        smidgen.nosuch  # noqa: B018


def test_a_star_brings_all_names_and_help_shows_them():
    start("exec('from smidgen import *', names := {}); import smidgen; "
          "assert set(smidgen.__all__) <= set(names)")  # fmt: skip
    _, _, printed = start("import smidgen; help(smidgen)")
    for name in ("class Predictive", "predict(", "calibrate(", "merge_deltas("):
        assert name in printed


def test_threads_may_ask_for_the_first_names_at_once():
    code = """
import smidgen
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
start = Barrier(len(smidgen.__all__))
def ask(name):
    start.wait()
    return getattr(smidgen, name)
with ThreadPoolExecutor(len(smidgen.__all__)) as threads:
    found = dict(zip(smidgen.__all__, threads.map(ask, smidgen.__all__)))
assert all(found[name] is getattr(smidgen, name) for name in found)
"""
    start(f"exec({code!r})")


def test_values_pass_through_other_processes():
    subset = smidgen.Subset
    assert pickle.loads(pickle.dumps(subset)) is subset
    modules, _, _ = start(f"import pickle; pickle.loads({pickle.dumps(subset)!r})")
    assert "smidgen.weights.subset" in modules
