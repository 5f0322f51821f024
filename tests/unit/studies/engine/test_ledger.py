"""A cell's lock: held by one process at a time, and released however that one ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from smidgen_studies.engine.cell import Cell
from smidgen_studies.engine.ledger import Ledger

HOLD = """
import sys
from pathlib import Path
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def cell():
    return Cell("base", "constant", {"name": "some data"}, 0, {})


@pytest.fixture
def held(tmp_path, cell):
    """A ledger, and another process that holds a cell's lock."""
    ledger = Ledger(tmp_path / "Prüfung 1")
    path = ledger._lock_path(cell)
    path.parent.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline().strip() == b"held"
    yield ledger, process
    process.kill()
    process.communicate()


def test_nothing_is_running_where_nothing_was_locked(tmp_path, cell):
    ledger = Ledger(tmp_path)
    assert not ledger.is_running(cell)
    assert not list(tmp_path.iterdir())


def test_a_cell_is_running_while_its_lock_is_held_also_by_us(tmp_path, cell):
    ledger = Ledger(tmp_path)
    for _ in range(2):
        with ledger.lock(cell):
            assert ledger.is_running(cell)
            assert Ledger(tmp_path).is_running(cell)
        assert not ledger.is_running(cell)


def test_a_lock_goes_with_the_process_that_held_it(held, cell):
    ledger, process = held
    assert ledger.is_running(cell)
    assert ledger.is_running(cell)  # Asking does not take it away.
    process.kill()
    process.wait()
    assert not ledger.is_running(cell)
    with ledger.lock(cell):
        pass


def test_who_asks_for_a_held_lock_waits_for_it(held, cell):
    ledger, process = held
    got = threading.Event()

    def take():
        with ledger.lock(cell):
            got.set()

    waiting = threading.Thread(target=take)
    waiting.start()
    time.sleep(0.3)
    assert not got.is_set()
    process.communicate(b"")
    assert got.wait(10)
    waiting.join()
    assert not ledger.is_running(cell)


def test_an_error_inside_releases_the_lock(tmp_path, cell):
    ledger = Ledger(tmp_path)
    with pytest.raises(ZeroDivisionError), ledger.lock(cell):
        raise ZeroDivisionError
    assert not ledger.is_running(cell)
