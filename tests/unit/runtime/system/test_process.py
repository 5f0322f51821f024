"""Process numbers, cores and the host, also where /proc and fork are not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from smidgen.runtime.system import process
from smidgen.runtime.system.process import count_cores, identify_host, is_running
from tests.support.other_system import pretend_windows


@pytest.fixture
def ended():
    """The number of a process that is over."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_running_processes_are_told_from_those_that_ended(ended):
    assert is_running(os.getpid()) is True
    assert is_running(ended) is False
    assert is_running(2**70) is False


def test_on_windows_nobody_is_sent_a_signal(monkeypatch, ended):
    pytest.importorskip("psutil")
    pretend_windows(monkeypatch)
    assert is_running(os.getpid()) is True
    assert is_running(ended) is False


def test_on_windows_without_psutil_it_cannot_be_told(monkeypatch, ended):
    pretend_windows(monkeypatch)
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert is_running(os.getpid()) is None
    assert is_running(ended) is None


def test_cores_are_those_this_process_may_use(monkeypatch):
    assert count_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert count_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_cores() == 1


def test_a_host_has_a_short_name_of_letters_that_stays(monkeypatch):
    here = identify_host()
    assert len(here) == 8
    assert here == identify_host()
    pretend_windows(monkeypatch)
    elsewhere = identify_host()
    assert len(elsewhere) == 8
    identify_host.cache_clear()
    monkeypatch.setattr(process.platform, "node", lambda: "another")
    assert identify_host() not in (here, elsewhere)
    monkeypatch.undo()
    identify_host.cache_clear()
    assert identify_host() == here


if sys.platform == "win32":
    pytestmark = pytest.mark.skip("Windows is pretended here, on another system")
