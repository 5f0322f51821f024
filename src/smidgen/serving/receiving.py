"""The body of a request, read within its limits; and whether its client still waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from smidgen.serving.refusals import Refusal
from smidgen.serving.settings import ServingSettings

_Result = TypeVar("_Result")
_JSON = "application/json"
_LEFT = 499
"""No status of HTTP's, but the usual one for this in what servers count."""
# Bodies are read to their end, and forgotten, up to so many times the limit.
_DRAINED = 8


async def read_body(request: Request, settings: ServingSettings) -> bytes:
    """Read the body of a request.

    Args:
        request: The request.
        settings: How many bytes it may have, and how long it may take.

    Returns:
        The body.

    Raises:
        Refusal: If it is no JSON by its name, too large, too slow or not whole.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page of another origin could send any other type without asking first.
    if kind != _JSON:
        raise Refusal(
            415,
            f"Content-Type must be {_JSON}, got {kind or 'none'}. Send the header "
            f"'Content-Type: {_JSON}'.",
        )
    told = request.headers.get("content-length", "")
    size = int(told) if told.isdecimal() else 0
    expects = "expect" in request.headers
    most = settings.max_bytes
    _require_size(size, most, most * (1 if expects else _DRAINED))
    parts, size = [], 0
    try:
        async with asyncio.timeout(settings.timeout):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    parts.append(part)
                # Read to its end, within reason: many clients listen only then.
                elif size > most * _DRAINED:
                    break
    except TimeoutError as error:
        raise Refusal(
            408,
            f"the body must arrive within {settings.timeout:g} seconds, got {size:,} bytes "
            "of it. Send it faster.",
            {"Connection": "close"},
        ) from error
    except ClientDisconnect as error:
        raise Refusal(400, "the body must be whole, got a part. Send it again.") from error
    _require_size(size, most, most)
    return b"".join(parts)


async def await_while_connected(
    request: Request, work: Coroutine[Any, Any, _Result]
) -> _Result:
    """Await work for a request, as long as its client waits too.

    Args:
        request: The request; its body was read.
        work: What to do; it is cancelled when the client leaves.

    Returns:
        What the work returns.

    Raises:
        Refusal: If the client left. It hears nothing of that; it is counted.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_for_end(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Refusal(_LEFT, "the client must wait for its answer, and it left.")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _wait_for_end(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _require_size(size: int, most: int, limit: int) -> None:
    if size > limit:
        raise Refusal(
            413,
            f"the body must have at most {most:,} bytes, got more. Send fewer rows at once.",
            {"Connection": "close"},
        )
