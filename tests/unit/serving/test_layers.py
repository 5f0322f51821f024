"""What stands around the routes, around an application that fails in every way."""

import asyncio
import json

import pytest

from smidgen.serving.layers import FailureLayer, OuterLayer, make_json_response
from smidgen.serving.metrics import Metrics

SCOPE = {"type": "http", "path": "/a", "headers": [(b"host", b"localhost")]}


def ask(layer, scope=SCOPE):
    """Ask a layer; returns its messages."""
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(layer(scope, None, send))
    return sent


def make_metrics():
    return Metrics({}, lambda: 0)


async def fail(scope, receive, send):
    raise RuntimeError("a secret path")


async def fail_late(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError("a secret path")


async def end(scope, receive, send):
    raise asyncio.CancelledError


def test_a_failure_is_a_number_for_the_client_and_a_reason_in_the_log(caplog):
    first, body = ask(FailureLayer(fail, make_metrics()))
    said = json.loads(body["body"])["error"]
    assert first["status"] == 500
    assert "secret" not in said
    assert said.partition("(failure ")[2][:8] in caplog.text
    assert "RuntimeError: a secret path" in caplog.text


def test_a_failure_after_the_answer_began_is_logged_alone(caplog):
    (first,) = ask(FailureLayer(fail_late, make_metrics()))
    assert first["status"] == 200
    assert "a secret path" in caplog.text


def test_the_end_of_the_server_is_said_and_counted():
    metrics, sent = make_metrics(), []

    async def send(message):
        sent.append(message)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(FailureLayer(end, metrics)(SCOPE, None, send))
    assert [message.get("status") for message in sent] == [503, None]
    assert metrics.cut_off == 1


def test_every_answer_is_counted_and_has_headers_once():
    async def answer(scope, receive, send):
        said = make_json_response(200, {}, {"Cache-Control": "max-age=9"})
        await said(scope, receive, send)

    metrics = make_metrics()
    first, _ = ask(OuterLayer(answer, metrics, ("/a",), None))
    names = [name for name, _ in first["headers"]]
    assert names.count(b"cache-control") == 1
    assert b"x-content-type-options" in names
    ask(OuterLayer(answer, metrics, ("/b",), ()))
    strange = {**SCOPE, "headers": [(b"host", b"evil.example")]}
    assert ask(OuterLayer(fail, metrics, ("/a",), ()), strange)[0]["status"] == 421
    assert metrics.requests == {("/a", 200): 1, ("other", 200): 1, ("/a", 421): 1}


@pytest.mark.parametrize("make", [FailureLayer, lambda *of: OuterLayer(*of, (), ())])
def test_what_is_no_request_passes(make):
    async def pass_on(scope, receive, send):
        await send({"type": scope["type"]})

    layer = make(pass_on, make_metrics())
    assert ask(layer, {"type": "lifespan"}) == [{"type": "lifespan"}]
