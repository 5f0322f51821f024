"""What a client meets on the wire: slow ones, wrong ones, and the end of a server."""

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from smidgen.errors import ArgumentError
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.serving.app import Served, make_app
from smidgen.serving.form import make_form
from smidgen.serving.server import find_address, make_server, open_socket
from smidgen.serving.settings import ServingSettings

NOTE = TaskNote("text", ("sentence",), label="length")


def count_letters(rows):
    return [{"answer": float(len(row["sentence"]))} for row in rows]


@contextmanager
def serving(compute=count_letters, **settings):
    """A server in a thread; yields it and its port."""
    limits = ServingSettings(**settings)
    served = Served(compute, make_form(NOTE), "lengths", "0123", "0")
    opened = open_socket("127.0.0.1", 0)
    ready = threading.Event()
    server = make_server(make_app(served, limits), limits, on_ready=ready.set)
    thread = threading.Thread(target=server.run, args=([opened],))
    thread.start()
    try:
        assert ready.wait(30)
        yield server, opened.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def read_all(connection):
    """All that the other side sends until it closes."""
    parts = []
    while part := connection.recv(2**16):
        parts.append(part)
    return b"".join(parts).decode()


def read_answer(connection):
    """One answer, on a connection that stays open."""
    said = b""
    while not said.endswith(b"}"):
        said += connection.recv(2**16)
    return said.decode()


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.settimeout(20)
    return connection


def post(body, *lines):
    head = [
        "POST /predict HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        *lines,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


BODY = json.dumps({"row": "four"}).encode()
LENGTH = f"Content-Length: {len(BODY)}"


def test_clients_that_are_too_slow_are_told_so_and_others_are_answered():
    with serving(timeout=0.5) as (_, port):
        silent, halting, lazy = (connect(port) for _ in range(3))
        halting.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n")
        lazy.sendall(post(BODY[:-1], LENGTH))
        with connect(port) as quick:
            quick.sendall(post(BODY, LENGTH, "Connection: close"))
            assert '"answer":4.0' in read_all(quick)
        for slow, message in (
            (silent, "the request must begin within 0.5 seconds"),
            (halting, "the request must begin within 0.5 seconds"),
            (lazy, "the body must arrive within 0.5 seconds, got 14 bytes"),
        ):
            with slow:
                said = read_all(slow)
            assert said.startswith("HTTP/1.1 408 ")
            assert message in said


def test_the_head_of_a_later_request_has_its_time_too():
    with serving(timeout=0.5) as (_, port), connect(port) as connection:
        connection.sendall(post(BODY, LENGTH))
        assert '"answer":4.0' in read_answer(connection)
        connection.sendall(b"GET / HT")
        assert read_all(connection).startswith("HTTP/1.1 408 ")


def test_a_kept_connection_may_be_quiet_between_requests():
    with serving(timeout=0.3) as (_, port), connect(port) as connection:
        for _ in range(2):
            connection.sendall(post(BODY, LENGTH))
            assert '"answer":4.0' in read_answer(connection)
            time.sleep(0.6)
        connection.sendall(post(BODY, LENGTH, "Connection: close"))
        assert '"answer":4.0' in read_all(connection)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 as if it were TLS\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        post(b"", "Content-Length: four"),
        post(b"zz\r\n", "Transfer-Encoding: chunked"),
    ],
)
def test_what_is_no_http_is_refused_and_the_server_goes_on(sent):
    with serving() as (_, port):
        with connect(port) as connection:
            connection.sendall(sent)
            said = read_all(connection)
        assert said.startswith("HTTP/1.1 400 ")
        assert '"error": "the request must be HTTP, got something else."' in said
        with connect(port) as connection:
            connection.sendall(post(BODY, LENGTH, "Connection: close"))
            assert "200 OK" in read_all(connection)


def test_a_body_that_is_too_large_is_refused_before_it_is_sent():
    with serving(max_bytes=1000) as (_, port), connect(port) as connection:
        connection.sendall(post(b"", "Content-Length: 2000", "Expect: 100-continue"))
        assert read_all(connection).startswith("HTTP/1.1 413 ")


def test_a_client_that_sends_too_much_still_hears_why():
    with serving(max_bytes=1000) as (_, port), connect(port) as connection:
        connection.sendall(post(b"a" * 7000, "Content-Length: 7000"))
        said = read_all(connection)
    assert said.startswith("HTTP/1.1 413 ")
    assert "at most 1,000 bytes" in said


def test_clients_that_leave_in_the_middle_do_no_harm():
    with serving() as (server, port):
        for _ in range(20):
            with connect(port) as connection:
                connection.sendall(post(BODY[:5], LENGTH))
        with connect(port) as connection:
            connection.sendall(post(BODY, LENGTH, "Connection: close"))
            assert "200 OK" in read_all(connection)
        deadline = time.monotonic() + 10
        while server.server_state.connections and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not server.server_state.connections


def test_requests_that_are_running_are_finished_before_the_end():
    entered, gate = threading.Event(), threading.Event()

    def compute(rows):
        entered.set()
        assert gate.wait(20)
        return count_letters(rows)

    with serving(compute) as (server, port):
        idle = connect(port)
        with connect(port) as connection:
            connection.sendall(post(BODY, LENGTH))
            assert entered.wait(20)
            server.should_exit = True
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                try:
                    connect(port).close()
                except ConnectionRefusedError:
                    break
                time.sleep(0.05)
            else:
                pytest.fail("it still takes connections")
            gate.set()
            said = read_all(connection)
        assert '"answer":4.0' in said
        with idle:
            assert read_all(idle) == ""
    assert not server.server_state.tasks


def test_rows_beyond_the_queue_are_told_when_to_come_again():
    entered, gate = threading.Event(), threading.Event()

    def compute(rows):
        entered.set()
        assert gate.wait(20)
        return count_letters(rows)

    limits = {"max_batch": 1, "max_waiting": 2, "max_rows": 2}
    with serving(compute, **limits) as (_, port):
        busy = [connect(port) for _ in range(2)]
        two = json.dumps({"rows": ["a", "b"]}).encode()
        busy[0].sendall(post(BODY, LENGTH, "Connection: close"))
        assert entered.wait(20)
        lines = (f"Content-Length: {len(two)}", "Connection: close")
        busy[1].sendall(post(two, *lines))
        while "smidgen_waiting_rows 2" not in get(port, "/metrics"):
            time.sleep(0.02)
        with connect(port) as connection:
            connection.sendall(post(BODY, LENGTH, "Connection: close"))
            said = read_all(connection)
        assert said.startswith("HTTP/1.1 503 ")
        assert "retry-after: 1" in said.lower()
        assert "at most 2 rows may wait, and 2 do already" in said
        gate.set()
        assert ["200 OK" in read_all(connection) for connection in busy] == [True, True]
        for connection in busy:
            connection.close()


def get(port, path):
    with connect(port) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        return read_all(connection)


def test_the_event_loop_answers_while_rows_are_computed():
    entered, gate = threading.Event(), threading.Event()

    def compute(rows):
        entered.set()
        assert gate.wait(20)
        return count_letters(rows)

    with serving(compute) as (_, port), connect(port) as connection:
        connection.sendall(post(BODY, LENGTH, "Connection: close"))
        assert entered.wait(20)
        assert '"ready":true' in get(port, "/health")
        gate.set()
        assert '"answer":4.0' in read_all(connection)


def test_a_taken_port_and_a_wrong_host_are_refused():
    with open_socket("127.0.0.1", 0) as opened:
        port = opened.getsockname()[1]
        assert find_address(opened) == f"http://127.0.0.1:{port}"
        with pytest.raises(ArgumentError, match=rf"port must be a free one .* {port} \("):
            open_socket("127.0.0.1", port)
    with pytest.raises(ArgumentError, match="host must be an address of this machine"):
        open_socket("no such host.invalid", 0)
    with pytest.raises(ArgumentError, match="host must be an address of this machine"):
        open_socket("192.0.2.1", 0)


class Held:
    """Counts letters when it is let go; keeps what it was called with."""

    def __init__(self):
        self.entered, self.gate, self.seen = threading.Event(), threading.Event(), []

    def __call__(self, rows):
        self.seen += [row["sentence"] for row in rows]
        self.entered.set()
        assert self.gate.wait(20)
        return count_letters(rows)


def test_rows_of_a_client_that_left_are_not_computed():
    compute = Held()
    with serving(compute, max_batch=1, wait=0) as (_, port):
        first = connect(port)
        first.sendall(post(BODY, LENGTH))
        assert compute.entered.wait(20)
        for number in range(5):
            gone = json.dumps({"row": f"gone {number}"}).encode()
            with connect(port) as connection:
                connection.sendall(post(gone, f"Content-Length: {len(gone)}"))
                while "smidgen_waiting_rows 1" not in get(port, "/metrics"):
                    time.sleep(0.02)
            while "smidgen_waiting_rows 0" not in get(port, "/metrics"):
                time.sleep(0.02)
        compute.gate.set()
        with first:
            assert '"answer":4.0' in read_answer(first)
        assert 'route="/predict",status="499"} 5' in get(port, "/metrics")
    assert compute.seen == ["four"]


def test_what_is_not_finished_in_time_is_told_so_and_counted():
    compute = Held()
    with serving(compute) as (server, port), connect(port) as connection:
        server.config.timeout_graceful_shutdown = 0.3
        connection.sendall(post(BODY, LENGTH))
        assert compute.entered.wait(20)
        server.handle_exit(2, None)
        said = read_all(connection)
        compute.gate.set()
    assert said.startswith("HTTP/1.1 503 ")
    assert '"error":"the server stopped before it had an answer. Ask again later."' in said
    assert server.config.app.state.metrics.cut_off == 1
    assert not server.force_exit


@pytest.mark.parametrize("grace", [30, 0.1])
def test_a_second_signal_waits_for_no_batch(grace):
    compute = Held()
    limits = ServingSettings()
    app = make_app(Served(compute, make_form(NOTE), "lengths", "0123", "0"), limits)
    opened, ends = open_socket("127.0.0.1", 0), []

    def run(server):
        server.run([opened])
        ends.append(time.monotonic())

    ready = threading.Event()
    server = make_server(app, limits, on_ready=ready.set)
    server.config.timeout_graceful_shutdown = grace
    thread = threading.Thread(target=run, args=(server,))
    thread.start()
    assert ready.wait(30)
    with connect(opened.getsockname()[1]) as connection:
        connection.sendall(post(BODY, LENGTH))
        assert compute.entered.wait(20)
        server.handle_exit(2, None)
        time.sleep(0.6)
        assert thread.is_alive()
        server.handle_exit(2, None)
        thread.join(3)
        assert not thread.is_alive()
        said = read_all(connection)
    compute.gate.set()
    assert said.startswith("HTTP/1.1 503 ")
    assert server.force_exit
    assert app.state.metrics.cut_off == 1


def test_uvicorn_has_what_is_overridden():
    # Of another version: look at what these do there before pyproject.toml lets it in.
    for name in ("startup", "shutdown", "handle_exit"):
        assert callable(getattr(uvicorn.Server, name))
    for name in (
        "connection_made",
        "data_received",
        "connection_lost",
        "send_400_response",
    ):
        assert name in vars(H11Protocol)
    config = uvicorn.Config(len, interface="asgi3", log_config=None)
    config.load()
    assert vars(uvicorn.Server(config)).keys() >= {
        *("config", "server_state", "started", "should_exit", "force_exit")
    }
    with asyncio.Runner() as runner:
        protocol = H11Protocol(config, ServerState(), {}, runner.get_loop())
    assert vars(protocol).keys() >= {"loop", "conn", "transport", "cycle"}
