"""A server on a socket of its own, which ends when it is told to, after what is running."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from smidgen.errors import ArgumentError, system_reason
from smidgen.serving.settings import ServingSettings

_CONNECTIONS = 512
_KEPT_SECONDS = 75
_LOOK = 0.05


@dataclass(frozen=True)
class ServerEnd:
    """How a server ended.

    Args:
        forced: A second signal ended it at once.
        cut_off: How many requests got 503 in the place of an answer.
    """

    forced: bool
    cut_off: int


def open_socket(host: str, port: int) -> socket.socket:
    """Open the socket that a server listens on.

    Args:
        host: A name or an address of this machine.
        port: The port; 0 takes a free one.

    Returns:
        The socket, bound.

    Raises:
        ArgumentError: If the address is not here, or the port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        _refuse_host(host, error)
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            # A port that an ended server left is free at once.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen()
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRNOTAVAIL:
            _refuse_host(host, error)
        raise ArgumentError(
            f"port must be a free one of {host}, got {port} ({system_reason(error)}). Stop "
            "what uses it, or pass --port 0 for any free one."
        ) from error
    return opened


def _refuse_host(host: str, error: OSError | UnicodeError) -> NoReturn:
    said = system_reason(error) if isinstance(error, OSError) else "no name"
    raise ArgumentError(
        f"host must be an address of this machine, got {host!r} ({said}). Use 127.0.0.1, or "
        "0.0.0.0 for all of its addresses."
    ) from error


def find_address(opened: socket.socket) -> str:
    """Write the address of a bound socket as a browser takes it."""
    host, port = opened.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(
    app: FastAPI,
    opened: socket.socket,
    settings: ServingSettings,
    *,
    on_ready: Callable[[], None] = lambda: None,
) -> ServerEnd:
    """Serve until SIGTERM or SIGINT, then finish what is running.

    Args:
        app: The application.
        opened: The socket to listen on; it is closed at the end.
        settings: How long a client has to send its request.
        on_ready: Called when requests are taken.

    Returns:
        How it ended.
    """
    server = make_server(app, settings, on_ready=on_ready)
    server.run([opened])
    return ServerEnd(server.force_exit, app.state.metrics.cut_off)


def make_server(
    app: FastAPI, settings: ServingSettings, *, on_ready: Callable[[], None]
) -> uvicorn.Server:
    """Make a server that is not running yet.

    Args:
        app: The application.
        settings: How long a client has to send its request.
        on_ready: Called when requests are taken.

    Returns:
        The server; its `run` takes the socket, and `should_exit` ends it.
    """
    config = uvicorn.Config(
        app,
        http=_make_protocol(settings.timeout),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_KEPT_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.timeout) + 5,
    )
    return _Server(config, on_ready)


class _Server(uvicorn.Server):
    """A server that says when it is ready, and whose end by a signal is an end like another."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # A second signal may come while it waits for what looks at no flag.
        ending = asyncio.ensure_future(super().shutdown(sockets))
        while not ending.done() and not self.force_exit:
            await asyncio.wait((ending,), timeout=_LOOK)
        if ending.done():
            ending.result()
        else:
            ending.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The first asks to finish, the second to stop at once. None is raised again.
        self.force_exit = self.should_exit
        self.should_exit = True


def _make_protocol(seconds: float) -> type[asyncio.Protocol]:
    """Make a protocol that gives a client so many seconds for the head of a request."""

    class TimedProtocol(H11Protocol):
        """Closes a connection whose head does not come; the body has a limit of its own."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._timer = self.loop.call_later(seconds, self._refuse_slow)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            waits = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
            if not waits:
                self._stop_timer()
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self._refuse_slow)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def send_400_response(self, msg: str) -> None:
            self._refuse("400 Bad Request", "the request must be HTTP, got something else.")

        def _refuse_slow(self) -> None:
            self._timer = None
            said = f"the request must begin within {seconds:g} seconds. Send it faster."
            self._refuse("408 Request Timeout", said)

        def _refuse(self, status: str, said: str) -> None:
            if self.transport.is_closing():
                return
            body = json.dumps({"error": said}).encode("ascii")
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
                "X-Content-Type-Options: nosniff\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
            self.transport.close()

    return TimedProtocol
