"""Long work that is killed, and started again with the same words, ends as if undisturbed.

Every kind of long work is killed at random moments, again and again until it is done. What
it leaves then is compared with what the undisturbed work leaves: the same files, the same
numbers bit for bit, nothing else. All moments come from seeds.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.works import KILLED, WORKS, Server, choose_kill, read_results

# Kills of each kind of work; they are divided into items, for two processes to share.
KILLS = {**dict.fromkeys(WORKS, 16), "study": 8, "bayestune swag": 8, "run": 8}
ITEMS = [(work, item) for work, kills in KILLS.items() for item in range(kills // 2)]
# Moments late in these works, when their training has been saved to the end.
TRAINED = ("finetune", "fit swag", "bayestune", "train-sparse", "run")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("faults"))
    yield server
    server.close()


def test_there_are_enough_kills():
    assert sum(2 * kills for kills in Counter(work for work, _ in ITEMS).values()) >= 200


@pytest.mark.parametrize(("work", "item"), ITEMS, ids=lambda value: str(value))
def test_killed_work_ends_as_the_undisturbed(server, work, item):
    generator = random.Random(f"{work} {item}")
    expected, usual = server.reference(work)
    kills = 0
    while kills < 2:
        folder, moments = server.new_folder(), []
        while True:
            kill = choose_kill(generator, usual) if kills < 2 else {}
            moments.append(kill)
            ended = server.run(work, folder, **kill)
            kills += ended["killed"]
            if ended["code"] == 0:
                break
            path = Path(f"{folder}.log")
            # It may have been killed before its first word.
            log = path.read_text(encoding="utf-8") if path.exists() else ""
            assert ended["code"] == KILLED, f"{work} after {moments}: {log}"
        compare(read_results(folder), expected, f"{work} after {moments}")


@pytest.mark.parametrize("late", [1, 2, 4, 7, 11])
@pytest.mark.parametrize("work", TRAINED)
def test_a_late_kill_repeats_no_training(server, work, late):
    """Also between the last output and the end, and between several outputs (R8)."""
    expected, usual = server.reference(work)
    folder = server.new_folder()
    first = server.run(work, folder, kill_at=usual["operations"] + 1 - late)
    assert first["code"] == KILLED
    assert first["steps"] == usual["steps"]
    ended = server.run(work, folder)
    assert ended["code"] == 0, Path(f"{folder}.log").read_text(encoding="utf-8")
    assert ended["steps"] == 0
    compare(read_results(folder), expected, f"{work}, {late} before its end")


@pytest.mark.parametrize("work", TRAINED)
def test_the_same_command_again_is_done_already(server, work):
    expected, usual = server.reference(work)
    folder = server.new_folder()
    assert server.run(work, folder)["code"] == 0
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = server.run(work, folder)
    assert (again["code"], again["steps"]) == (0, 0)
    assert "is done already" in Path(f"{folder}.log").read_text(encoding="utf-8")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def compare(made, expected, what):
    """The same files with the same content, and no others."""
    assert made.keys() == expected.keys(), what
    for name, content in expected.items():
        assert made[name] == content, f"{what}: {name} differs"
