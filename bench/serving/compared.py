"""How many requests a second: a last-layer posterior beside the plain model, same server.

Every side is a process of its own that computes with one thread, on loopback; the clients
are in this one. A round asks every side the same requests, one side after the other, so that
all meet the same moods of a machine that does other work too; ratios are medians over
rounds, of seconds on the clock and of seconds that the server's process computed. Then many
more requests of several rows, in random order from many clients: every answer is held
against that of the predictor called with the row alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from bench.measuring import ROOT, median_ratio
from bench.models.sentiment_minilm import load_finetuned_minilm
from bench.serving.load import Load, ask_all
from bench.serving.sides import (
    BARE,
    PLAIN,
    POSTERIOR,
    load_side,
    read_sentences,
    save_sides,
)
from smidgen.runtime.record import Record
from smidgen.serving.settings import ServingSettings

ROUNDS, WARM, REQUESTS, CLIENTS = 7, 1, 200, 32
CHECKED, CHECKING_CLIENTS, MOST_ROWS = 10_000, 64, 2
TARGET = 0.8


def run() -> Record:
    """Measure, check, and return the record."""
    sentences = read_sentences()
    with TemporaryDirectory() as place:
        folder = Path(place)
        save_sides(load_finetuned_minilm(), folder)
        predictor = load_side(POSTERIOR, folder)
        alone = {text: predictor([text])[0].to_dict() for text in sentences}
        with (
            _serving(POSTERIOR, folder) as posterior,
            _serving(PLAIN, folder) as plain,
            _serving(BARE, folder) as bare,
        ):
            sides = {POSTERIOR: posterior, PLAIN: plain, BARE: bare}
            results: dict[str, Any] = _measure(sides, sentences)
            results["answers"] = _check(posterior.port, sentences, alone)
    settings = ServingSettings()
    config = {
        "model": "all-MiniLM-L6-v2, fine-tuned on the demo's sentences, two classes",
        "requests a round": REQUESTS,
        "rows a request": 1,
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "warm rounds": WARM,
        "threads that compute": 1,
        "rows computed together": settings.max_batch,
        "wait, ms": settings.wait,
        "checked": {
            "requests": CHECKED,
            "clients": CHECKING_CLIENTS,
            "rows a request": [1, MOST_ROWS],
        },
        PLAIN: "the trained weights with certainty, same path, temperature and rules too",
        BARE: "tokenizer, model, softmax; no temperature, no rules, none of our code",
        "machine": "two cores, shared with other work: only ratios of a round compare",
        "targets": {f"{POSTERIOR} / {PLAIN}": TARGET},
    }
    return Record("bench", config, results, seed=0)


@dataclass(frozen=True)
class _Side:
    """A server: where it listens, and its process."""

    port: int
    process: int

    def read_processor(self) -> float:
        """Read how many seconds the process has computed; needs Linux."""
        told = Path(f"/proc/{self.process}/stat").read_text(encoding="ascii")
        # The second field is a name, which may hold anything but ends with the last bracket.
        fields = told.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _serving(name: str, folder: Path) -> Iterator[_Side]:
    """Serve a side in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.serving.sides"]
    process = subprocess.Popen(
        [*command, name, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the side {name!r} did not start")
        yield _Side(json.loads(line)["port"], process.pid)
    finally:
        process.terminate()
        process.wait(60)


def _measure(sides: Mapping[str, _Side], sentences: Sequence[str]) -> dict[str, Any]:
    draw = Random(0)
    loads: dict[str, list[Load]] = {name: [] for name in sides}
    computed: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(WARM + ROUNDS):
        requests = [[draw.choice(sentences)] for _ in range(REQUESTS)]
        # Each is the first of a round in its turn.
        names = [*sides][number % len(sides) :] + [*sides][: number % len(sides)]
        for name in names:
            before = sides[name].read_processor()
            loads[name].append(ask_all(sides[name].port, requests, clients=CLIENTS))
            computed[name].append(sides[name].read_processor() - before)
    kept = {name: each[WARM:] for name, each in loads.items()}
    clock = {name: [load.elapsed for load in each] for name, each in kept.items()}
    processor = {name: each[WARM:] for name, each in computed.items()}
    found: dict[str, Any] = {
        name: {
            "requests a second": round(REQUESTS / median(clock[name]), 1),
            "median, ms": _in_ms(median(s for load in each for s in load.seconds)),
            "95th percentile, ms": _in_ms(
                quantiles([s for load in each for s in load.seconds], n=20)[-1]
            ),
            "computing, ms a request": _in_ms(median(processor[name]) / REQUESTS),
        }
        for name, each in kept.items()
    }
    for ours, other in ((POSTERIOR, PLAIN), (POSTERIOR, BARE), (PLAIN, BARE)):
        # Of throughputs: the other's seconds over ours.
        found[f"{ours} / {other}"] = {
            "by the clock": median_ratio(clock[other], clock[ours]),
            "by what was computed": median_ratio(processor[other], processor[ours]),
        }
    return found


def _check(
    port: int, sentences: Sequence[str], alone: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    draw = Random(1)
    requests = [
        [draw.choice(sentences) for _ in range(draw.randint(1, MOST_ROWS))]
        for _ in range(CHECKED)
    ]
    load = ask_all(port, requests, clients=CHECKING_CLIENTS)
    rows = [
        (alone[text], answer)
        for texts, answers in zip(requests, load.answers, strict=True)
        for text, answer in zip(texts, answers, strict=True)
    ]
    flags = ("answer", "set", "abstain", "strange")
    others = sum(a.get(n) != b.get(n) for a, b in rows for n in flags)
    furthest = max(
        abs(p - b["probabilities"][name])
        for a, b in rows
        for name, p in a["probabilities"].items()
    )
    return {
        "requests": len(requests),
        "rows": len(rows),
        "other answers, sets or flags": others,
        "largest difference of a probability": float(f"{furthest:.2g}"),
        "requests a second": round(len(requests) / load.elapsed, 1),
        "rows a second": round(len(rows) / load.elapsed, 1),
    }


def _in_ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
