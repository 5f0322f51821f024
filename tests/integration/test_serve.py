"""`smidgen serve` as people start it: a process of its own, asked over the network."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from random import Random

import httpx
import numpy as np
import pytest
from bench.serving.load import ask_all

import smidgen
from smidgen.cli.app import main
from smidgen.cli.serve import command
from smidgen.runtime.progress import SWITCH
from smidgen.runtime.writing.claim import digest_path
from smidgen.serving.app import Served
from smidgen.serving.form import FormField, RowForm
from smidgen.serving.server import ServerEnd
from smidgen.serving.settings import ServingSettings
from tests.support.ready import WORDS, ready_images, ready_table, ready_texts

SECONDS = 120
# Rows of other requests change what a row is padded to and which kernels run, in fp32: the
# largest difference of a probability that was seen is smaller by an order.
CLOSE = 1e-5


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return ready_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return ready_table(tmp_path_factory.mktemp("table"), number=True)


def start(*words):
    command = [sys.executable, "-c", "from smidgen.cli import main; main()", "serve"]
    # What made the folders was told to be quiet, in this process.
    environment = {name: text for name, text in os.environ.items() if name != SWITCH}
    return subprocess.Popen(
        [*command, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"OMP_NUM_THREADS": "1"},
    )


@contextmanager
def serving(*words):
    """A server on a free port; yields its process and its address."""
    process = start(*words, "--port", 0)
    try:
        line = process.stdout.readline()
        assert line.startswith("ready: http://127.0.0.1:"), process.stderr.read()
        yield process, line.split()[1]
    finally:
        process.kill()
        process.communicate()


def end(process, sent=signal.SIGTERM):
    process.send_signal(sent)
    said, warned = process.communicate(timeout=SECONDS)
    return process.returncode, said, warned


def find_port(address):
    return int(address.rpartition(":")[2])


def test_a_thousand_requests_at_once_and_no_wrong_answer(texts):
    draw = Random(0)
    known = sorted(
        {
            (" ".join(draw.choices(WORDS, k=draw.randint(1, 6))), "a" * draw.randint(0, 1))
            for _ in range(90)
        }
    )
    predictor = smidgen.load(texts)
    alone = [
        predictor([{"title": title, "body": body}])[0].to_dict() for title, body in known
    ]
    picked = [draw.choices(range(len(known)), k=draw.randint(1, 5)) for _ in range(1000)]
    requests = [
        [dict(zip(("title", "body"), known[i], strict=True)) for i in numbers]
        for numbers in picked
    ]
    with serving(texts, "--max-batch", 32, "--quiet") as (process, address):
        load = ask_all(find_port(address), requests, clients=32)
        counts = httpx.get(f"{address}/metrics").text
        code, _, warned = end(process)
    assert code == 0
    assert "serve:" not in warned
    pairs = [
        (alone[i], answer)
        for numbers, answers in zip(picked, load.answers, strict=True)
        for i, answer in zip(numbers, answers, strict=True)
    ]
    assert f"smidgen_rows_total {len(pairs)}" in counts
    for expected, found in pairs:
        assert found.keys() == expected.keys()
        chances = expected["probabilities"]
        assert found["probabilities"] == pytest.approx(chances, abs=CLOSE)
        for name in ("answer", "set", "strange"):
            assert found[name] == expected[name]
    # They were computed together, and not one by one.
    batches = int(read_count(counts, "smidgen_batch_rows_count"))
    assert batches < len(requests)


def read_count(text, name):
    return next(line.split()[1] for line in text.splitlines() if line.startswith(name))


def test_numbers_over_http_are_those_of_predict(table):
    rows = [{"x": x, "town": town} for x in (-1, 0.5, None) for town in ("Ulm", "Rom")]
    alone = smidgen.load(table)(rows).to_dicts()
    with serving(table) as (process, address):
        found = httpx.post(f"{address}/predict", json={"rows": rows}).json()
        health = httpx.get(f"{address}/health").json()
        code, said, warned = end(process)
    for expected, answer in zip(alone, found["answers"], strict=True):
        assert answer == pytest.approx(expected, rel=1e-5)
    assert found["digest"] == health["digest"] == digest_path(table)
    assert (code, said) == (0, "")
    assert f"serve:  {table.name} · {digest_path(table)[:12]} · smidgen" in warned
    assert "stopped; all that was asked is answered" in warned
    assert "authentication" not in warned


def test_images_over_http(tmp_path):
    ready = ready_images(tmp_path)
    images = np.load(tmp_path / "images.npz")["images"][:6]
    predictor = smidgen.load(ready)
    alone = predictor(images.astype(np.float32) / 255).to_dicts()
    with serving(ready, "--quiet") as (process, address):
        rows = (images / 255).tolist()
        found = httpx.post(f"{address}/predict", json={"rows": rows}).json()["answers"]
        assert end(process)[0] == 0
    for expected, answer in zip(alone, found, strict=True):
        chances = expected["probabilities"]
        assert answer["probabilities"] == pytest.approx(chances, abs=CLOSE)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_finish(table, sent):
    rows = [{"x": number / 100, "town": "Ulm"} for number in range(200)]
    with serving(table, "--max-batch", 2, "--quiet") as (process, address):

        async def ask():
            async with httpx.AsyncClient(timeout=SECONDS) as client:
                url = f"{address}/predict"
                asked = [
                    asyncio.create_task(client.post(url, json={"rows": rows}))
                    for _ in range(4)
                ]
                while not await waits(client, address):
                    await asyncio.sleep(0.01)
                process.send_signal(sent)
                return await asyncio.gather(*asked)

        async def waits(client, address):
            text = (await client.get(f"{address}/metrics")).text
            return float(read_count(text, "smidgen_waiting_rows")) > 300

        found = asyncio.run(ask())
        assert process.wait(SECONDS) == 0
    assert [answer.status_code for answer in found] == [200] * 4
    assert all(len(answer.json()["answers"]) == 200 for answer in found)


def test_a_second_signal_ends_it_at_once(table):
    with serving(table, "--timeout", 60) as (process, address):
        lazy = socket.create_connection(("127.0.0.1", find_port(address)))
        lazy.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 9\r\n\r\n{"
        )
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        started = time.monotonic()
        code, _, warned = end(process, signal.SIGINT)
        assert time.monotonic() - started < 20
        lazy.close()
    assert code == 130
    assert "interrupted. What was being asked got no answer." in warned
    assert "Traceback" not in warned


_COMPUTING = """
import sys, time
import torch
from smidgen.cli.serve import command
from smidgen.serving.app import Served
from smidgen.serving.form import FormField, RowForm
from smidgen.serving.settings import ServingSettings

def compute(rows):
    a = torch.ones(200, 200, requires_grad=True)
    end = time.monotonic() + (60 if rows[0]["text"] == "long" else 0)
    while time.monotonic() < end:
        (a @ a).tanh().sum().backward()
    return [{"answer": "a"}]

form = RowForm("text", (FormField("text", "text", example="short"),), classes=("a",))
settings = ServingSettings(timeout=float(sys.argv[1]))
load = lambda: Served(compute, form, "folder", "0123", "0")
command._serve("127.0.0.1", 0, settings, load)
"""


def test_a_second_signal_while_torch_computes_ends_it_as_an_interrupted_program():
    process = subprocess.Popen(
        [sys.executable, "-c", _COMPUTING, "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    with process:
        address = process.stdout.readline().split()[1]
        body = b'{"row": "long"}'
        asking = socket.create_connection(("127.0.0.1", find_port(address)))
        asking.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        started = time.monotonic()
        code, _, warned = end(process)
        assert time.monotonic() - started < 10
        with asking:
            said = asking.recv(2**16).decode()
    assert code == 130
    assert "interrupted. What was being asked got no answer." in warned
    assert "all that was asked is answered" not in warned
    assert "terminate" not in warned
    assert said.startswith("HTTP/1.1 503 ")


@pytest.mark.parametrize(
    ("cut_off", "said"),
    [
        (0, "stopped; all that was asked is answered"),
        (1, "stopped; 1 request was not answered in time, and got 503."),
        (7, "stopped; 7 requests were not answered in time, and got 503."),
    ],
)
def test_the_last_line_says_whether_all_was_answered(capsys, monkeypatch, cut_off, said):
    monkeypatch.setenv(SWITCH, "1")
    ended = ServerEnd(forced=False, cut_off=cut_off)
    monkeypatch.setattr("smidgen.serving.server.run_server", lambda *_, **__: ended)
    form = RowForm("text", (FormField("text", "text", example="short"),), classes=("a",))
    served = Served(lambda rows: [{}], form, "folder", "0123", "0")
    command._serve("127.0.0.1", 0, ServingSettings(), lambda: served)
    warned = " ".join(capsys.readouterr().err.split())
    assert said in warned
    assert warned.count("stopped") == 1


def refuse(capsys, *words):
    with pytest.raises(SystemExit) as leaving:
        main(["serve", *map(str, words)])
    assert leaving.value.code == 1
    return " ".join(capsys.readouterr().err.split())


def test_a_taken_port_is_one_sentence(table, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refuse(capsys, table, "--port", port)
    assert said == (
        f"smidgen: --port must be a free one of 127.0.0.1, got {port} (address already in "
        "use). Stop what uses it, or pass --port 0 for any free one."
    )


def test_what_cannot_be_served_is_one_sentence(table, tmp_path, capsys):
    assert "FOLDER must be made by 'smidgen run'" in refuse(capsys, tmp_path)
    assert "--host must be an address" in refuse(capsys, table, "--host", "192.0.2.1")
    assert "--max-waiting must be" in refuse(capsys, table, "--max-waiting", 3)
    assert "--allow-origin must be" in refuse(capsys, table, "--allow-origin", "*")
    assert "--allow-host must be" in refuse(capsys, table, "--allow-host", "a:1")
    note = Path(table, "task.json")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "posterior").mkdir()
    values = json.loads(note.read_text(encoding="utf-8"))
    (damaged / "task.json").write_text(json.dumps({**values, "label": "other"}))
    assert "damaged or edited" in refuse(capsys, damaged, "--port", 0)


@pytest.mark.parametrize(("words", "status"), [((), 200), (("--allow-host", "b"), 421)])
def test_other_machines_may_ask_only_after_a_warning(table, words, status):
    process = start(table, "--host", "0.0.0.0", "--port", 0, *words)
    try:
        line = process.stdout.readline()
        assert line.startswith("ready: http://127.0.0.1:")
        url = f"{line.split()[1]}/health"
        assert httpx.get(url, headers={"Host": "a"}).status_code == status
        assert httpx.get(url, headers={"Host": "b"}).status_code == 200
        code, _, warned = end(process)
    finally:
        process.kill()
    assert code == 0
    assert "whoever reaches 0.0.0.0 may ask: there is no authentication" in warned
