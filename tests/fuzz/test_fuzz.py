"""No damaged file is believed: it is refused in one sentence, or says what it said before.

At least 10,000 seeded mutations over all kinds of artifact. `SMIDGEN_FUZZ_COUNTS` names a
file to which each chunk adds a line of its counts.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

import smidgen
from smidgen.errors import SmidgenError, StoreError
from tests.fuzz.artifacts import KINDS, MEMORY, RESUMED, meaning, said
from tests.fuzz.mutations import damage_bytes, damage_files, edit, forge, place_odd_file

CASES, CHUNKS, RESUMED_CASES = 1000, 2, 200
SECONDS = 5
GROWTH = 400 * 2**20
"""Bytes that a whole chunk may take at its peak."""
WAYS = {"bytes": damage_bytes, "files": damage_files, "edit": edit, "forge": forge}


class TooSlow(BaseException):
    """A case hangs."""


@contextmanager
def limited():
    """Give each case a few seconds, and the process not much more memory than it has."""

    def stop(*_):
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = pages * resource.getpagesize() + 2 * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown * 1024 < GROWTH


def check_refusal(error, path, way):
    """One sentence or two, with the file's name."""
    message = str(error)
    assert "\n" not in message, message
    assert len(message) < 900, message
    assert message.rstrip().endswith((".", "!")), message
    assert "allocate" not in message, message
    if way != "forge":
        assert isinstance(error, StoreError), repr(error)
        assert path.name in message or path.parent.name in message, message


def check_forged(kind, thing):
    """What was forged is valid, and says what its file says: saved again it is the same."""
    _, tensors = said(thing)
    for name, tensor in tensors.items():
        assert not tensor.is_floating_point() or bool(tensor.isfinite().all()), name
    if not isinstance(thing, smidgen.Posterior) or kind in RESUMED.values():
        return
    with TemporaryDirectory(dir=MEMORY) as place:
        again = kind.load(smidgen.save(thing, Path(place) / "saved"))
    assert meaning(again) == meaning(thing)


def run_case(kind, way, draw, counts):
    files = kind.files()
    odd = way == "files" and draw.random() < 0.3
    if not odd:
        files = WAYS[way](kind, files, draw)
    with TemporaryDirectory(dir=MEMORY) as place:
        path = kind.write(Path(place), files)
        if odd:
            place_odd_file(kind, path, draw)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            thing = kind.load(path)
        except SmidgenError as error:
            check_refusal(error, path, way)
            counts[way, "refused"] += 1
            return
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        gone = not (Path(place) / kind.header).is_file()
    if thing is None or (thing == [] and way != "forge"):
        # No checkpoint, failure or points, if the file itself is gone.
        assert gone
        counts[way, "missing"] += 1
    elif way == "forge":
        check_forged(kind, thing)
        counts[way, "valid"] += 1
    else:
        assert meaning(thing) == kind.original()
        counts[way, "unchanged"] += 1


def run_chunk(name, kind, cases, chunk):
    counts = Counter()
    kind.original()
    with limited(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in range(chunk, cases, CHUNKS):
            seed = f"{name} {case}"
            draw = random.Random(seed)
            way = draw.choice(["bytes", "bytes", "files", "edit", "forge", "forge"])
            try:
                run_case(kind, way, draw, counts)
            except (Exception, TooSlow) as error:
                raise AssertionError(f"case {seed!r} ({way}): {error!r}") from error
    if path := os.environ.get("SMIDGEN_FUZZ_COUNTS"):
        found = {f"{way} {what}": count for (way, what), count in sorted(counts.items())}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": name, **found}) + "\n")
    # Bytes flipped at random are almost never without effect on a digest.
    assert counts["bytes", "refused"] > counts["bytes", "unchanged"]
    assert counts["edit", "refused"] > 0


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", KINDS)
def test_no_damage_changes_what_an_artifact_says(name, chunk):
    run_chunk(name, KINDS[name], CASES, chunk)


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", RESUMED)
def test_no_damaged_checkpoint_changes_a_result(name, chunk):
    RESUMED[name].original()
    state = torch.get_rng_state()
    run_chunk(name, RESUMED[name], RESUMED_CASES, chunk)
    assert torch.equal(torch.get_rng_state(), state)


def test_there_are_ten_thousand():
    assert CASES * len(KINDS) + RESUMED_CASES * len(RESUMED) >= 10_000
