"""How many requests a second: a last-layer posterior beside the plain model, same server.

Every side is a process of its own that computes with one thread, on loopback; the clients
are in this one. A round asks every side the same requests, one side after the other, so that
all meet the same moods of a machine that does other work too; ratios are medians over
rounds. Then many more requests of several rows, in random order from many clients: every
answer is held against that of the predictor called with the row alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

ROUNDS, WARM, REQUESTS, CLIENTS = 3, 1, 200, 32
CHECKED, CHECKING_CLIENTS, MOST_ROWS = 500, 64, 3
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
            ports = {POSTERIOR: posterior, PLAIN: plain, BARE: bare}
            results: dict[str, Any] = _measure(ports, sentences)
            results["answers"] = _check(posterior, sentences, alone)
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


@contextmanager
def _serving(name: str, folder: Path) -> Iterator[int]:
    """Serve a side in a process of its own; yields its port."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.serving.sides"]
    process = subprocess.Popen(
        [*command, name, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the side {name!r} did not start")
        yield json.loads(line)["port"]
    finally:
        process.terminate()
        process.wait(60)


def _measure(ports: Mapping[str, int], sentences: Sequence[str]) -> dict[str, Any]:
    draw = Random(0)
    loads: dict[str, list[Load]] = {name: [] for name in ports}
    for _ in range(WARM + ROUNDS):
        requests = [[draw.choice(sentences)] for _ in range(REQUESTS)]
        for name, port in ports.items():
            loads[name].append(ask_all(port, requests, clients=CLIENTS))
    kept = {name: each[WARM:] for name, each in loads.items()}
    seconds = {name: [load.elapsed for load in each] for name, each in kept.items()}
    found: dict[str, Any] = {
        name: {
            "requests a second": round(REQUESTS / median(seconds[name]), 1),
            "median, ms": _in_ms(median(s for load in each for s in load.seconds)),
            "95th percentile, ms": _in_ms(
                quantiles([s for load in each for s in load.seconds], n=20)[-1]
            ),
        }
        for name, each in kept.items()
    }
    # Of throughputs: the other's seconds over ours.
    for other in (PLAIN, BARE):
        ratio = median_ratio(seconds[other], seconds[POSTERIOR])
        found[f"{POSTERIOR} / {other}"] = ratio
    found[f"{PLAIN} / {BARE}"] = median_ratio(seconds[BARE], seconds[PLAIN])
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
