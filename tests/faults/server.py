"""A fork server: torch and smidgen are imported once, then every run is a fork.

It reads one JSON request a line and answers each with one line. A run is killed by SIGKILL
after some seconds, or just before its n-th operation on files, so that the narrow moments
between two renames are met too.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import select
import signal
import sys
import time
import traceback
from contextlib import redirect_stdout, suppress

from tests.faults.watching import watch

# A study's workers import this file too, so it imports little by itself.
_IMPORTS = (
    "matplotlib.figure",
    "scipy.interpolate",
    *(f"smidgen.cli.{name}" for name in ("bayestune", "finetune", "fit", "ramp")),
    "smidgen.cli.run.command",
    "smidgen.cli.train_sparse",
    "smidgen_studies.cli",
    "smidgen.integrations.arrays",
    "smidgen.integrations.huggingface",
    "smidgen.report.one_record.page",
    "smidgen.report.ramp.figures",
    "smidgen.runtime.record",
    "smidgen.workflows.bayestune",
    "smidgen.workflows.run.pipeline",
    "tests.faults.python_works",
)


def load(name):
    return importlib.import_module(name)


def warm_up(model):
    """Do once what every fork would do again: imports, and what a process keeps."""
    load("torch").set_num_threads(1)
    for name in _IMPORTS:
        load(name)
    load("smidgen.integrations.huggingface").load_classifier(model)
    load("smidgen.runtime.record").Record("warm", {}, {})
    with suppress(SystemExit), redirect_stdout(io.StringIO()):
        load("smidgen.cli").main(["--version"])
    gc.collect()
    gc.freeze()


def run_child(request, notes):
    """Do the work in this process, and leave without returning."""
    code = 70
    try:
        os.chdir(request["folder"])
        os.environ.update(request.get("environment", {}))
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        watch_child(notes, request.get("kill_at"))
        words = request["words"]
        if words[0] == "python":
            load("tests.faults.python_works").WORKS[words[1]]()
            code = 0
        else:
            load("smidgen.cli").main(words)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def watch_child(notes, kill_at):
    """Note every operation on files and every step of training in a pipe."""

    def note(line):
        os.write(notes, f"{line}\n".encode())

    def kill(number):
        if number == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    watch(lambda name: note(f"file {name}"), kill)
    torch = load("torch")
    original = torch.Tensor.backward

    def backward(*arguments, **named):
        note("step")
        return original(*arguments, **named)

    torch.Tensor.backward = backward


def children(pid):
    """List the processes that a process started, and those that these started."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            direct = [int(word) for word in file.read().split()]
    except OSError:
        return []
    return [pid for child in direct for pid in (child, *children(child))]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def wait_or_kill(pid, after):
    """Wait for the run, or kill it; return the processes that it had started."""
    handle, started, workers = os.pidfd_open(pid), time.monotonic(), set()
    while True:
        left = 0.1 if after is None else max(0, after - (time.monotonic() - started))
        ended, _, _ = select.select([handle], [], [], min(left, 0.1))
        if ended:
            break
        workers |= set(children(pid))
        if after is not None and time.monotonic() - started >= after:
            os.kill(pid, signal.SIGKILL)
            after = None
    os.close(handle)
    return workers


def serve_one(request):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    started = time.perf_counter()
    pid = os.fork()
    if not pid:
        os.close(reading)
        run_child(request, writing)
    os.close(writing)
    workers = wait_or_kill(pid, request.get("kill_after"))
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
        "operations": sum(line.startswith("file") for line in lines),
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
    warm_up(sys.argv[1])
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(serve_one(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
