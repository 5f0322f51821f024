"""How long Python takes before it can do anything: imports and --help, in new processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.measuring import ROOT, interleaved
from smidgen.runtime.record import Record

ROUNDS, TARGET = 9, 0.3
COMMANDS: dict[str, Sequence[str]] = {
    "python": ("-c", "pass"),
    "import torch": ("-c", "import torch"),
    "import smidgen": ("-c", "import smidgen"),
    "smidgen --help": ("-c", "from smidgen.cli import main; main()", "--help"),
}


def run() -> Record:
    """Measure all commands turn by turn and return the record."""
    sides = {name: lambda parts=parts: _start(parts) for name, parts in COMMANDS.items()}
    times = interleaved(sides, rounds=ROUNDS)
    results = {name: round(median(found), 3) for name, found in times.items()}
    config = {
        "seconds": f"wall clock, median of {ROUNDS} rounds, files cached by the system",
        "rounds": ROUNDS,
        "targets": {"import smidgen": TARGET, "smidgen --help": TARGET},
    }
    return Record("bench", config, results)


def _start(arguments: Sequence[str]) -> None:
    # In the sources' folder, with the interpreter's own path: as an installed package.
    subprocess.run(
        [sys.executable, *arguments], cwd=Path(ROOT), capture_output=True, check=True
    )
