"""Counts of a server in the text format of Prometheus, written by hand."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """Counts of values up to each bound, their number and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def write(self, name: str) -> list[str]:
        """List its lines; each bound counts all values up to it."""
        lines, below = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            shown = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'{name}_bucket{{le="{shown}"}} {below}')
        return [*lines, f"{name}_sum {self.total:.9g}", f"{name}_count {below}"]


class Metrics:
    """What a server counts; any thread may count.

    Args:
        about: What the server says of itself, by label.
        waiting: Tells how many rows wait.
    """

    def __init__(self, about: Mapping[str, str], waiting: Callable[[], int]) -> None:
        self._about, self._waiting = dict(about), waiting
        self._lock = Lock()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.counts: Counter[str] = Counter()
        # Requests that the end of the server left without an answer.
        self.cut_off = 0
        self.seconds, self.batches = Histogram(_SECONDS), Histogram(_ROWS)

    def count_request(self, route: str, status: int) -> None:
        """Count a request by its route and how it ended."""
        with self._lock:
            self.requests[route, status] += 1

    def count_answers(
        self, seconds: float, rows: int, *, abstained: int, strange: int
    ) -> None:
        """Count an answered request: how long it took, and what was said of its rows."""
        with self._lock:
            self.seconds.add(seconds)
            self.counts.update(rows=rows, abstained=abstained, strange=strange)

    def count_batch(self, rows: int) -> None:
        """Count rows that were computed together."""
        with self._lock:
            self.batches.add(rows)

    def write(self) -> str:
        """Write all of it."""
        waiting = self._waiting()
        with self._lock:
            requests, counts = sorted(self.requests.items()), dict(self.counts)
            seconds = self.seconds.write("smidgen_request_seconds")
            batches = self.batches.write("smidgen_batch_rows")
        about = ",".join(f'{name}="{_escape(text)}"' for name, text in self._about.items())
        lines = _describe("smidgen_info", "gauge", "What is served.")
        lines += [f"smidgen_info{{{about}}} 1"]
        lines += _describe(
            "smidgen_requests_total", "counter", "Requests by route and status."
        )
        lines += [
            f'smidgen_requests_total{{route="{_escape(route)}",status="{status}"}} {count}'
            for (route, status), count in requests
        ]
        for name, what in (
            ("rows", "Rows that were answered."),
            ("abstained", "Rows whose answer was to ask a person."),
            ("strange", "Rows that were unlike the training rows."),
        ):
            lines += _describe(f"smidgen_{name}_total", "counter", what)
            lines += [f"smidgen_{name}_total {counts.get(name, 0)}"]
        lines += _describe(
            "smidgen_request_seconds",
            "histogram",
            "Seconds from a request's arrival to its answers.",
        )
        lines += seconds
        lines += _describe(
            "smidgen_batch_rows", "histogram", "Rows that were computed together."
        )
        lines += batches
        lines += _describe(
            "smidgen_waiting_rows", "gauge", "Rows that wait to be computed."
        )
        lines += [f"smidgen_waiting_rows {waiting}"]
        return "\n".join(lines) + "\n"


def _describe(name: str, kind: str, what: str) -> list[str]:
    return [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
