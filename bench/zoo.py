"""The zoo: what the whole path finds of every architecture, by its test.

The record is of a suite that passed: one failure, and there is none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from smidgen.runtime.record import Record

ROOT = Path(__file__).parents[1]
SUITE, PROCESSES = "tests/zoo", 2


def run() -> Record:
    """Run the suite on two processes of one thread, and read what it found."""
    with TemporaryDirectory() as place:
        told, found = Path(place) / "junit.xml", Path(place) / "zoo.jsonl"
        words = ["-m", "pytest", "-n", str(PROCESSES), "-q", SUITE, f"--junitxml={told}"]
        environment = os.environ | {"SMIDGEN_ZOO": str(found), "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=environment, check=False
        )
        if ended.returncode:
            raise SystemExit(f"{SUITE} must pass before it is recorded.")
        seconds = float(ElementTree.parse(told).getroot()[0].attrib["time"])
        lines = found.read_text(encoding="utf-8").splitlines()
    # In the order of the table, not in that of two processes.
    rows = sorted(map(json.loads, lines), key=lambda row: row["number"])
    config = {
        "suite": SUITE,
        "processes": PROCESSES,
        "percent": rows[0]["percent"],
        "peft": version("peft"),
    }
    found_by_title = {row["title"]: row["found"] for row in rows}
    results = {"architectures": found_by_title, "seconds": seconds}
    return Record("zoo", config, results, seed=0)
