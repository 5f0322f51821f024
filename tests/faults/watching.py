"""Count a process's operations on files, and kill it, or its parent, before the n-th."""

from __future__ import annotations

import json
import os
import signal

# What makes, moves and removes files, and what makes them durable.
OPERATIONS = ("replace", "rename", "fsync", "unlink", "remove", "rmdir", "mkdir", "link")
SWITCH = "SMIDGEN_TEST_KILL"
"""The environment variable that arms the workers of a study."""
_ARMED = []


def watch(note, kill):
    """Call `note` with the name of every operation, and `kill` with its number first."""
    number = 0

    def watched(name, original):
        def operation(*arguments, **named):
            nonlocal number
            number += 1
            note(name)
            kill(number)
            return original(*arguments, **named)

        return operation

    for name in OPERATIONS:
        setattr(os, name, watched(name, getattr(os, name)))


def kill_once(number, token, pid):
    """Kill a process if nobody has yet: the token is a file that is taken away."""

    def kill(now):
        if now == number and os.path.exists(token):
            unlink_quietly(token)
            os.kill(pid, signal.SIGKILL)

    return kill


# Not the one that is watched.
unlink_quietly = os.unlink


def arm_worker():
    """Watch this worker of a study, once, as the environment says."""
    told = json.loads(os.environ.get(SWITCH, "null"))
    if told is None or _ARMED:
        return
    _ARMED.append(True)
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pid = os.getpid() if told["worker"] else os.getppid()
    watch(lambda name: os.write(log, b"."), kill_once(told["number"], told["token"], pid))
