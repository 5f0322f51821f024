"""A load generator: so many clients, each asks again as soon as it is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SECONDS = 3600.0


@dataclass(frozen=True)
class Load:
    """What came back: the answers of each request in their order, and the seconds of each."""

    answers: list[Any]
    seconds: list[float]
    elapsed: float


def ask_all(port: int, requests: Sequence[Sequence[Any]], *, clients: int) -> Load:
    """Ask a server of this machine everything, over connections that are kept.

    Args:
        port: Where it listens.
        requests: The rows of each request.
        clients: How many ask at once.

    Returns:
        The answers.
    """
    return asyncio.run(_ask_all(port, requests, clients))


async def _ask_all(port: int, requests: Sequence[Sequence[Any]], clients: int) -> Load:
    bodies = [json.dumps({"rows": list(rows)}).encode() for rows in requests]
    answers: list[Any] = [None] * len(bodies)
    seconds = [0.0] * len(bodies)
    numbers = iter(range(len(bodies)))

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            started = time.perf_counter()
            status, content = await _post(reader, writer, bodies[number])
            seconds[number] = time.perf_counter() - started
            if status != 200:
                raise SystemExit(f"request {number} got {status}: {content}")
            answers[number] = content["answers"]
        writer.close()
        await writer.wait_closed()

    started = time.perf_counter()
    async with asyncio.timeout(_SECONDS):
        await asyncio.gather(*(ask() for _ in range(clients)))
    return Load(answers, seconds, time.perf_counter() - started)


async def _post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> tuple[int, Any]:
    writer.write(
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status = int(head.split(" ", 2)[1])
    length = next(
        int(line.partition(":")[2])
        for line in head.split("\r\n")
        if line.startswith("content-length")
    )
    return status, json.loads(await reader.readexactly(length))
