"""`Refusal`: a request that gets no answers, with the HTTP status and one sentence why."""

from __future__ import annotations

from collections.abc import Mapping

from smidgen.errors import SmidgenError


class Refusal(SmidgenError):
    """A request that is refused.

    Args:
        status: The HTTP status.
        message: What is wrong, and what to do.
        headers: Headers of the response, such as Retry-After.
    """

    def __init__(
        self, status: int, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
