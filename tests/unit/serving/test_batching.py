import asyncio
import threading
import time
from contextlib import contextmanager
from random import Random

import pytest

from smidgen.errors import DataError
from smidgen.serving.batching import Batcher
from smidgen.serving.refusals import Refusal
from smidgen.serving.settings import ServingSettings


@contextmanager
def working(compute, **settings):
    batcher = Batcher(compute, ServingSettings(**settings))
    batcher.start()
    try:
        yield batcher
    finally:
        batcher.stop()


class Squares:
    """Squares rows; keeps what it was called with, and can be held up."""

    def __init__(self, *, held=False):
        self.calls = []
        self.gate, self.entered = threading.Event(), threading.Event()
        if not held:
            self.gate.set()

    def __call__(self, rows):
        self.calls.append(list(rows))
        self.entered.set()
        assert self.gate.wait(10)
        if any(row == "bad" for row in rows):
            raise ValueError("a bad row")
        return [row * row for row in rows]


def together(batcher, requests):
    """Ask everything at once."""

    async def ask():
        asked = (batcher.answer(rows) for rows in requests)
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(ask())


def test_every_request_gets_its_own_rows_in_order_whatever_their_lengths():
    draw = Random(0)
    requests = [
        [draw.randrange(10**6) for _ in range(draw.randint(1, 40))] for _ in range(300)
    ]
    compute = Squares()
    with working(compute, max_batch=16, max_waiting=10**5) as batcher:
        answers = together(batcher, requests)
    assert answers == [[row * row for row in rows] for rows in requests]
    assert max(map(len, compute.calls)) == 16
    assert sum(map(len, compute.calls)) == sum(map(len, requests))


def test_rows_that_come_at_once_are_computed_together():
    compute = Squares()
    with working(compute, wait=200, max_batch=64) as batcher:
        assert together(batcher, [[1], [2, 3], [4]]) == [[1], [4, 9], [16]]
    assert compute.calls == [[1, 2, 3, 4]]


def test_a_full_batch_does_not_wait():
    with working(Squares(), wait=1000, max_batch=4, max_rows=4) as batcher:
        started = time.monotonic()
        together(batcher, [[1, 2], [3, 4]])
        assert time.monotonic() - started < 0.9


def test_a_row_waits_no_longer_than_was_said():
    with working(Squares(), wait=20) as batcher:
        started = time.monotonic()
        together(batcher, [[1]])
        assert 0.015 < time.monotonic() - started < 0.9


def test_rows_beyond_the_queue_are_refused_and_the_others_answered():
    compute = Squares(held=True)
    with working(compute, max_batch=2, max_waiting=4, max_rows=4, wait=0) as batcher:

        async def ask():
            first = asyncio.create_task(batcher.answer([1, 2]))
            assert await asyncio.to_thread(compute.entered.wait, 10)
            second = asyncio.create_task(batcher.answer([3, 4, 5]))
            await asyncio.sleep(0)
            assert batcher.waiting == 3
            with pytest.raises(Refusal, match="at most 4 rows may wait, and 3 do") as no:
                await batcher.answer([6, 7])
            assert (no.value.status, no.value.headers) == (503, {"Retry-After": "1"})
            third = asyncio.create_task(batcher.answer([6]))
            await asyncio.sleep(0)
            compute.gate.set()
            return await asyncio.gather(first, second, third)

        assert asyncio.run(ask()) == [[1, 4], [9, 16, 25], [36]]
        assert batcher.waiting == 0


def test_only_the_request_that_is_at_fault_fails():
    with working(Squares(), wait=200) as batcher:
        answers = together(batcher, [[2], ["bad", 3], [4]])
        assert answers[::2] == [[4], [16]]
        assert isinstance(answers[1], ValueError)
        assert together(batcher, [[5]]) == [[25]]


def test_the_rest_of_a_request_that_failed_is_not_computed():
    compute = Squares()
    with working(compute, wait=50, max_batch=2) as batcher:
        answers = together(batcher, [["bad", 1, 2, 3, 4, 5], [6]])
        assert isinstance(answers[0], ValueError)
        assert answers[1] == [36]
        assert batcher.waiting == 0
    assert sum(map(len, compute.calls)) <= 4


def test_answers_that_are_too_few_are_an_error_and_never_mixed_up():
    with working(lambda rows: rows[1:], wait=0) as batcher:
        (answer,) = together(batcher, [[1, 2]])
    assert isinstance(answer, RuntimeError)


def test_rows_of_a_client_that_left_are_not_computed():
    compute = Squares(held=True)
    with working(compute, wait=0, max_batch=1) as batcher:

        async def ask():
            first = asyncio.create_task(batcher.answer([1]))
            assert await asyncio.to_thread(compute.entered.wait, 10)
            left = asyncio.create_task(batcher.answer([2]))
            last = asyncio.create_task(batcher.answer([3]))
            await asyncio.sleep(0)
            left.cancel()
            await asyncio.sleep(0)
            compute.gate.set()
            return await asyncio.gather(first, last)

        assert asyncio.run(ask()) == [[1], [9]]
        assert batcher.waiting == 0
    assert compute.calls == [[1], [3]]


def test_it_finishes_what_waits_and_then_takes_no_more():
    compute = Squares(held=True)
    batcher = Batcher(compute, ServingSettings(max_batch=1, wait=0))
    assert not batcher.ready
    batcher.start()
    assert batcher.ready

    async def ask():
        asked = [asyncio.create_task(batcher.answer([row])) for row in range(5)]
        assert await asyncio.to_thread(compute.entered.wait, 10)
        stopping = asyncio.create_task(asyncio.to_thread(batcher.stop))
        while batcher.ready:
            await asyncio.sleep(0.01)
        with pytest.raises(Refusal, match="the server is stopping"):
            await batcher.answer([9])
        compute.gate.set()
        await stopping
        return await asyncio.gather(*asked)

    assert asyncio.run(ask()) == [[row * row] for row in range(5)]
    batcher.stop()


def test_many_threads_may_ask():
    found = {}
    with working(Squares(), max_waiting=10**5) as batcher:

        def ask(number):
            found[number] = together(batcher, [[number * 100 + i] for i in range(50)])

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number, answers in found.items():
        assert answers == [[(number * 100 + i) ** 2] for i in range(50)]


@pytest.mark.parametrize("place", [0, 6, 7, 11])
def test_an_error_about_a_row_names_its_place_in_the_request(place):
    def compute(rows):
        for number, row in enumerate(rows):
            if row == "bad":
                error = DataError(
                    f"got inf at row {number} (rows are counted from 0). Mend it."
                )
                error.batch = 1
                raise error
        return list(rows)

    rows = [0] * 12
    rows[place] = "bad"
    with working(compute, max_batch=7, wait=100) as batcher:
        answers = together(batcher, [[1, 2], rows, [3]])
    assert answers[0] == [1, 2]
    assert answers[2] == [3]
    assert str(answers[1]) == f"got inf at row {place + 1}. Mend it."
    assert answers[1].status == 422


def test_rows_that_are_at_fault_only_together_are_refused_without_a_number():
    def compute(rows):
        if len(rows) > 3:
            raise DataError("too many at once")
        return list(rows)

    with working(compute, wait=0) as batcher:
        (answer,) = together(batcher, [[1, 2, 3, 4]])
    assert (answer.status, str(answer)) == (422, "too many at once")


def test_rows_of_a_client_that_left_make_room_at_once():
    compute = Squares(held=True)
    with working(compute, max_batch=1, max_waiting=4, max_rows=4, wait=0) as batcher:

        async def ask():
            first = asyncio.create_task(batcher.answer([1]))
            assert await asyncio.to_thread(compute.entered.wait, 10)
            left = asyncio.create_task(batcher.answer([2, 3, 4, 5]))
            await asyncio.sleep(0)
            assert batcher.waiting == 4
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            assert batcher.waiting == 0
            last = asyncio.create_task(batcher.answer([6]))
            await asyncio.sleep(0)
            compute.gate.set()
            return await asyncio.gather(first, last)

        assert asyncio.run(ask()) == [[1], [36]]


def test_whoever_waits_for_its_end_may_stop_waiting():
    compute = Squares(held=True)
    batcher = Batcher(compute, ServingSettings(max_batch=1, wait=0))
    batcher.start()

    async def ask():
        asked = asyncio.create_task(batcher.answer([3]))
        assert await asyncio.to_thread(compute.entered.wait, 10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batcher.finish(), 0.1)
        assert not batcher.ready
        compute.gate.set()
        await batcher.finish()
        return await asked

    assert asyncio.run(ask()) == [9]
