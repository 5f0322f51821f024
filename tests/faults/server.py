"""A fork server: torch and smidgen are imported once, then every run is a fork.

It reads one JSON request a line and answers each with one line. A run is killed by SIGKILL
after some seconds, or just before its n-th operation on files, so that the narrow moments
between two renames are met too.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from contextlib import suppress

import torch

torch.set_num_threads(1)

import matplotlib.figure  # noqa: E402, F401

from smidgen.cli import app, main  # noqa: E402, F401
from smidgen.integrations import arrays, huggingface, text  # noqa: E402, F401
from smidgen.report.one_record import page  # noqa: E402, F401
from smidgen.report.ramp import figures  # noqa: E402, F401
from smidgen.runtime.record import Record  # noqa: E402
from smidgen.workflows import bayestune, tuned_folder  # noqa: E402, F401
from tests.faults import python_works  # noqa: E402

# What makes, moves and removes files, and what makes them durable.
OPERATIONS = ("replace", "rename", "fsync", "unlink", "remove", "rmdir", "mkdir", "link")


class Counts:
    """Operations on files and steps of training so far, in memory that outlives the run."""

    def __init__(self, file):
        self.file = file

    def note(self, line):
        os.write(self.file, f"{line}\n".encode())


def watch(counts, kill_at):
    """Note every operation on files and every backward pass; kill before the n-th of them."""
    number = 0

    def watched(name):
        original = getattr(os, name)

        def operation(*arguments, **named):
            nonlocal number
            number += 1
            counts.note(f"file {name}")
            if number == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **named)

        return operation

    for name in OPERATIONS:
        setattr(os, name, watched(name))
    original = torch.Tensor.backward

    def backward(*arguments, **named):
        counts.note("step")
        return original(*arguments, **named)

    torch.Tensor.backward = backward


def run_child(request, notes):
    """Do the work in this process, and leave without returning."""
    code = 70
    try:
        os.chdir(request["folder"])
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        watch(Counts(notes), request.get("kill_at"))
        words = request["words"]
        if words[0] == "python":
            python_works.WORKS[words[1]]()
            code = 0
        else:
            main(words)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def children(pid):
    """List the processes that a process started, and those that these started."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            direct = [int(word) for word in file.read().split()]
    except OSError:
        return []
    return [pid for child in direct for pid in (child, *children(child))]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def end(pid, request):
    """Wait for the run, or kill it or one of its workers; return the workers that it had."""
    handle = os.pidfd_open(pid)
    after = request.get("kill_after")
    ended, _, _ = select.select([handle], [], [], after)
    workers = []
    if not ended:
        workers = children(pid)
        victim = pid
        if request.get("worker"):
            victim = next((w for w in workers if is_worker(w)), pid)
        os.kill(victim, signal.SIGKILL)
        select.select([handle], [], [])
    os.close(handle)
    return workers


def is_worker(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"spawn_main" in file.read()
    except OSError:
        return False


def serve_one(request):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    started = time.perf_counter()
    pid = os.fork()
    if not pid:
        os.close(reading)
        run_child(request, writing)
    os.close(writing)
    os.set_inheritable(reading, False)
    workers = end(pid, request)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - started
    patience = time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < patience:
        time.sleep(0.005)
    notes = b""
    while chunk := read_some(reading):
        notes += chunk
    os.close(reading)
    lines = notes.decode().splitlines()
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": seconds,
        "cpu": usage.ru_utime + usage.ru_stime,
        "operations": [line.split()[1] for line in lines if line.startswith("file")],
        "steps": lines.count("step"),
        "left_alive": [pid for pid in workers if alive(pid)],
    }


def read_some(file):
    try:
        return os.read(file, 65536)
    except BlockingIOError:
        return b""


def serve():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # What is computed once in a process is computed here, and not in every fork.
    huggingface.load_classifier(sys.argv[1])
    Record("warm", {}, {})
    with suppress(SystemExit):
        main(["--version"])
    gc.collect()
    gc.freeze()
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(serve_one(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
