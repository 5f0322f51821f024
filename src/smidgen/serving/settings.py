"""The limits of a server: what it takes, how long it waits, and how much at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from ipaddress import ip_address

from smidgen.errors import ArgumentError, is_number, is_whole

_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]+)?", re.IGNORECASE)

_NAME = re.compile(r"[a-z0-9_.-]+", re.IGNORECASE)


@dataclass(frozen=True)
class ServingSettings:
    """What a server takes and how it groups it.

    Args:
        max_batch: Rows that are computed together.
        wait: Milliseconds that a row waits for others when nothing is being computed.
        max_waiting: Rows that may wait; requests beyond are told to come again.
        max_rows: Rows of one request.
        max_bytes: Bytes of the body of one request.
        max_characters: Characters of one text or category.
        timeout: Seconds that a client has to send its request.
        allow_origin: Web pages of other addresses that may ask, such as "https://example.org".
        allow_host: Names by which it may be asked besides those of this machine alone, such as
            "box.local"; None for any name.

    Raises:
        ArgumentError: If a number is out of range, or a whole request could never wait.
    """

    max_batch: int = 64
    wait: float = 2.0
    max_waiting: int = 1024
    max_rows: int = 256
    max_bytes: int = 8 * 2**20
    max_characters: int = 20_000
    timeout: float = 30.0
    allow_origin: tuple[str, ...] = ()
    allow_host: tuple[str, ...] | None = ()

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name.startswith("max_") and not (is_whole(value) and value >= 1):
                raise ArgumentError(
                    f"{entry.name} must be a whole number of 1 or more, got {value!r}. Give "
                    "a larger one."
                )
        if not (is_number(self.wait) and 0 <= self.wait <= 1000):
            raise ArgumentError(
                f"wait must be from 0 to 1000 milliseconds, got {self.wait!r}. A few are "
                "enough."
            )
        if not (is_number(self.timeout) and 0 < self.timeout <= 3600):
            raise ArgumentError(
                f"timeout must be above 0 and at most 3600 seconds, got {self.timeout!r}. "
                "Thirty are usual."
            )
        for origin in self.allow_origin:
            if not _ORIGIN.fullmatch(origin):
                raise ArgumentError(
                    "allow_origin must be addresses such as https://example.org, without a path "
                    f"and without stars, got {origin!r}. Name each page's own."
                )
        for host in self.allow_host or ():
            if not _NAME.fullmatch(host) and not _is_address(host.strip("[]")):
                raise ArgumentError(
                    "allow_host must be names or addresses such as box.local, without a port "
                    f"and without stars, got {host!r}. Any port is meant."
                )
        if self.max_waiting < self.max_rows:
            raise ArgumentError(
                f"max_waiting must be max_rows ({self.max_rows}) or more, got "
                f"{self.max_waiting}. A whole request must be able to wait: raise it, or "
                "lower max_rows."
            )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
