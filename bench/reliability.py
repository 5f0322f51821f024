"""The suites that hold what `docs/reliability.md` promises: what they counted, and how long.

The record is of suites that passed: one failure, and there is none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from smidgen.runtime.record import Record

ROOT = Path(__file__).parents[1]
SUITES = {
    "damaged files": "tests/fuzz",
    "killed work": "tests/faults",
    "killed saves": "tests/unit/runtime/test_files.py",
    "threads": "tests/integration/test_threads.py",
    "data that are wrong": "tests/conformance/test_wrong_data.py",
    "wrong calls in Python": "tests/integration/test_wrong_calls.py",
    "wrong commands": "tests/integration/test_wrong_commands.py",
    "outputs that cannot be written": "tests/integration/test_cli_outputs.py",
    "saved and loaded, bit for bit": "tests/conformance/test_saved_bits.py",
}


def run() -> Record:
    """Run every suite on two processes, and read its counts."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        results: dict[str, Any] = {
            name: _run_suite(suite, folder) for name, suite in SUITES.items()
        }
        results["mutations"] = _count_mutations(folder / "fuzz.jsonl")
    return Record("reliability", {"suites": SUITES, "processes": 2}, results)


def _run_suite(suite: str, folder: Path) -> dict[str, float]:
    told = folder / "junit.xml"
    words = ["-m", "pytest", "-n", "2", "-q", suite, f"--junitxml={told}"]
    environment = os.environ | {"SMIDGEN_FUZZ_COUNTS": str(folder / "fuzz.jsonl")}
    ended = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=False)
    if ended.returncode:
        raise SystemExit(f"{suite} must pass before it is recorded.")
    found = ElementTree.parse(told).getroot()[0].attrib
    skipped = int(found["skipped"])
    tests = int(found["tests"]) - skipped
    return {"passed": tests, "skipped": skipped, "seconds": float(found["time"])}


def _count_mutations(path: Path) -> dict[str, int]:
    """Add up what became of all damaged files."""
    counts: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        told.pop("kind")
        for way, count in told.items():
            counts[way] += count
    return dict(sorted(counts.items()))
