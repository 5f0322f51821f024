"""What stands around all routes: counts and headers of safety outside, failures inside."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from fastapi import Response

from smidgen.serving.hosts import require_known_host
from smidgen.serving.metrics import Metrics
from smidgen.serving.refusals import Refusal

_LOGGER = logging.getLogger("smidgen.serving")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_ENCODED = [
    (name.lower().encode("latin-1"), text.encode("latin-1"))
    for name, text in _HEADERS.items()
]


def make_json_response(
    status: int, content: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """Make a response of JSON as it is defined: a NaN is an error.

    Args:
        status: The HTTP status.
        content: What it says.
        headers: More headers.

    Returns:
        The response.
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Response(text, status, headers, media_type="application/json")


class OuterLayer:
    """Counts every request, adds the headers of safety, and refuses strange names of hosts.

    Args:
        app: What it stands around: all the rest.
        metrics: What counts.
        routes: The routes that are counted by their names.
        hosts: Names that are answered besides those of this machine alone; None for any.
    """

    def __init__(
        self,
        app: Any,
        metrics: Metrics,
        routes: Sequence[str],
        hosts: tuple[str, ...] | None,
    ) -> None:
        self._app, self._metrics = app, metrics
        self._routes, self._hosts = routes, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in self._routes else "other"

        async def send_safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._metrics.count_request(route, message["status"])
                told = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((n, v) for n, v in _ENCODED if n not in told),
                ]
            await send(message)

        if self._hosts is not None:
            try:
                require_known_host(_find_header(scope, b"host"), self._hosts)
            except Refusal as error:
                refused = make_json_response(error.status, {"error": str(error)})
                await refused(scope, receive, send_safely)
                return
        await self._app(scope, receive, send_safely)


class FailureLayer:
    """Turns a failure, and the end of the server, into a sentence.

    A client gets a number; what happened stands under it on the server's standard error.
    """

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_noted(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        async def say(status: int, text: str) -> None:
            if not begun:
                said = make_json_response(status, {"error": text})
                await said(scope, receive, send_noted)

        try:
            await self._app(scope, receive, send_noted)
        except asyncio.CancelledError:
            # Only the end of the server cancels a request.
            self._metrics.cut_off += 1
            await say(503, "the server stopped before it had an answer. Ask again later.")
            raise
        except Exception as error:
            number = token_hex(4)
            # Without a logger of the caller's, Python writes errors to standard error.
            _LOGGER.error("failure %s, %s:", number, scope["path"], exc_info=error)
            await say(
                500,
                f"the server failed (failure {number}). Tell its owner this number: the reason "
                "stands in what the server wrote.",
            )


def _find_header(scope: Any, name: bytes) -> str | None:
    found = (value for key, value in scope["headers"] if key == name)
    value = next(found, None)
    return None if value is None else value.decode("latin-1")
