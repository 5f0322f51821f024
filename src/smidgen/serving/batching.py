"""`Batcher`: rows of concurrent requests are computed together, in one thread.

A row waits a few milliseconds for others when nothing is being computed; while something is,
rows gather by themselves. Requests are taken in the order of their arrival, a long one in
parts, and each gets the answers of its own rows, in their order.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

from smidgen.errors import DataError
from smidgen.serving.refusals import Refusal
from smidgen.serving.settings import ServingSettings

Compute = Callable[[Sequence[Any]], Sequence[Any]]
"""Answers rows, in their order."""
_AGAIN = {"Retry-After": "1"}
_LOOK = 0.02
# How a message names the only row there is.
_ROW = re.compile(r"\brow [01]\b")


@dataclass(eq=False)
class _Job:
    """The rows of a request, and the answers so far."""

    rows: Sequence[Any]
    future: asyncio.Future[list[Any]]
    came: float = field(default_factory=time.monotonic)
    taken: int = 0
    answers: list[Any] = field(default_factory=list)
    error: Exception | None = None

    @property
    def left(self) -> int:
        """Rows that nobody has taken yet."""
        return len(self.rows) - self.taken


_Piece = tuple[_Job, int, Sequence[Any]]
"""A request, the place of its first row here, from 0, and the rows."""


class Batcher:
    """Groups the rows of requests and computes them in a thread of its own.

    Args:
        compute: Answers rows; it is called by one thread only.
        settings: How many rows at once, and how many may wait.
        count_batch: Is told how many rows were computed together.
    """

    def __init__(
        self,
        compute: Compute,
        settings: ServingSettings,
        count_batch: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self._compute, self._settings = compute, settings
        self._count_batch = count_batch
        self._jobs: deque[_Job] = deque()
        self._waiting = 0
        self._stopping = False
        self._changed = Condition()
        self._thread = Thread(target=self._work, name="smidgen-serve", daemon=True)

    @property
    def waiting(self) -> int:
        """How many rows wait to be computed."""
        return self._waiting

    @property
    def ready(self) -> bool:
        """Whether rows are taken."""
        return self._thread.is_alive() and not self._stopping

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more rows, finish those that wait, and end the thread."""
        self._close()
        if self._thread.is_alive():
            self._thread.join()

    async def finish(self) -> None:
        """Stop without holding up the event loop; whoever cancels it waits for no thread."""
        self._close()
        while self._thread.is_alive():
            await asyncio.sleep(_LOOK)

    def _close(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()

    async def answer(self, rows: Sequence[Any]) -> list[Any]:
        """Answer the rows of one request, in their order.

        Args:
            rows: What `compute` takes, at least one.

        Returns:
            An answer for each row.

        Raises:
            Refusal: If too many rows wait already, a row cannot be answered (it says which,
                from 1), or the server stops.
            CancelledError: If nobody waits for the answers any more.
        """
        job = _Job(rows, asyncio.get_running_loop().create_future())
        self._put(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._drop(job)
            raise

    def _drop(self, job: _Job) -> None:
        """Take the rows of a request that still wait out of the queue."""
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
                self._waiting -= job.left

    def _put(self, job: _Job) -> None:
        most = self._settings.max_waiting
        with self._changed:
            if not self.ready:
                raise Refusal(503, "the server is stopping. Ask again later.", _AGAIN)
            if self._waiting + len(job.rows) > most:
                raise Refusal(
                    503,
                    f"at most {most:,} rows may wait, and {self._waiting:,} do already. Ask "
                    "again in a second.",
                    _AGAIN,
                )
            self._jobs.append(job)
            self._waiting += len(job.rows)
            # Woken for the first row and for a full batch; those between are found then.
            if len(self._jobs) == 1 or self._waiting >= self._settings.max_batch:
                self._changed.notify()

    def _work(self) -> None:
        while (pieces := self._take()) is not None:
            if not pieces:
                continue  # Only of requests that nobody waits for any more.
            rows = [row for _, _, part in pieces for row in part]
            self._count_batch(len(rows))
            try:
                answers = self._call(rows)
            except Exception as error:
                self._compute_apart(pieces, error)
            else:
                start = 0
                for job, _, part in pieces:
                    job.answers += answers[start : start + len(part)]
                    start += len(part)
            _deliver([job for job, _, _ in pieces])

    def _take(self) -> list[_Piece] | None:
        """Wait for rows and take as many as are computed at once; None at the very end."""
        most = self._settings.max_batch
        with self._changed:
            while not self._jobs:
                if self._stopping:
                    return None
                self._changed.wait()
            end = self._jobs[0].came + self._settings.wait / 1000
            while self._waiting < most and not self._stopping:
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            pieces: list[_Piece] = []
            room = most
            while self._jobs and room:
                job = self._jobs[0]
                if job.error is not None:
                    self._waiting -= job.left
                    self._jobs.popleft()
                    continue
                part = job.rows[job.taken : job.taken + room]
                pieces.append((job, job.taken, part))
                job.taken += len(part)
                room -= len(part)
                self._waiting -= len(part)
                if not job.left:
                    self._jobs.popleft()
        return pieces

    def _call(self, rows: Sequence[Any]) -> list[Any]:
        answers = list(self._compute(rows))
        if len(answers) != len(rows):
            raise RuntimeError(f"{len(rows)} rows got {len(answers)} answers")
        return answers

    def _compute_apart(self, pieces: Sequence[_Piece], error: Exception) -> None:
        """Compute the parts one by one, so that only the request that is at fault fails."""
        for job, first, part in pieces:
            try:
                if len(pieces) == 1:
                    raise error
                job.answers += self._call(part)
            except DataError as own:
                job.error = self._find_row(first, part, own)
            except Exception as own:
                job.error = own

    def _find_row(self, first: int, part: Sequence[Any], error: DataError) -> Exception:
        """Find the row that an error is about, by computing halves."""
        # What computes numbers the rows of what it was handed, and some of it from 0.
        while len(part) > 1:
            half = len(part) // 2
            found = self._try(part[:half])
            part, rest = part[:half], part[half:]
            if found is None:
                first, part = first + half, rest
                found = self._try(part)
            if found is None:  # Only together.
                break
            if not isinstance(found, DataError):
                return found
            error = found
        else:
            return Refusal(422, _name_row(error, first + 1))
        error.batch = None
        return Refusal(422, str(error))

    def _try(self, rows: Sequence[Any]) -> Exception | None:
        try:
            self._call(rows)
        except Exception as error:
            return error
        return None


def _name_row(error: DataError, number: int) -> str:
    """Say an error about a row that was computed alone, with its number in the request."""
    error.batch = None
    said = str(error).replace(" (rows are counted from 0)", "")
    named, times = _ROW.subn(f"row {number}", said)
    return named if times else f"row {number} cannot be answered: {said}"


def _deliver(jobs: Sequence[_Job]) -> None:
    """Hand over what is finished, with one call for each event loop."""
    done = [job for job in jobs if job.error or len(job.answers) == len(job.rows)]
    for loop in {job.future.get_loop() for job in done}:
        mine = [job for job in done if job.future.get_loop() is loop]
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.answers)
