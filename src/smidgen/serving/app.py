"""`make_app`: the routes of a server, and what it says where it refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException

from smidgen.serving.batching import Batcher, Compute
from smidgen.serving.checking import check_rows, find_sent_rows, parse_body
from smidgen.serving.form import RowForm
from smidgen.serving.layers import FailureLayer, OuterLayer, make_json_response
from smidgen.serving.metrics import CONTENT_TYPE, Metrics
from smidgen.serving.openapi import describe_health, describe_predict
from smidgen.serving.page import Page
from smidgen.serving.receiving import await_while_connected, read_body
from smidgen.serving.refusals import Refusal
from smidgen.serving.settings import ServingSettings

_ROUTES = ("/", "/predict", "/health", "/metrics", "/openapi.json")
# What takes longer than a fraction of a millisecond is read beside the event loop.
_MUCH = 1 << 16
_READERS = 2


@dataclass(frozen=True)
class Served:
    """What is served, and what the server says of it.

    Args:
        compute: Answers rows, each with a mapping that JSON can hold.
        form: What a row is.
        folder: The name of the folder that answers.
        digest: What tells this content of the folder from any other.
        version: The version of smidgen.
        rules: A sentence for each rule that the answers follow.
    """

    compute: Compute
    form: RowForm
    folder: str
    digest: str
    version: str
    rules: Sequence[str] = field(default=())

    @property
    def about(self) -> dict[str, str]:
        """What is said beside all answers."""
        return {"folder": self.folder, "digest": self.digest, "smidgen": self.version}


def make_app(served: Served, settings: ServingSettings | None = None) -> FastAPI:
    """Make the application of a server.

    Args:
        served: What answers.
        settings: Its limits.

    Returns:
        The application. Its `state.metrics` counts, and `state.batcher` computes.
    """
    settings = settings or ServingSettings()
    # Made one after the other: what counts must tell what waits.
    batcher = Batcher(served.compute, settings, lambda rows: metrics.count_batch(rows))
    metrics = Metrics(served.about, lambda: batcher.waiting)
    # Pictures and long bodies are read beside the event loop, and never many at once.
    readers = ThreadPoolExecutor(_READERS, thread_name_prefix="smidgen-read")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.finish()
        readers.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title=f"smidgen: {served.folder}",
        version=served.version,
        description="Answers that know when they are unsure.",
        lifespan=lifespan,
        # Their pages would be fetched from elsewhere; /openapi.json is here.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.metrics, app.state.batcher = metrics, batcher
    _add_routes(app, served, settings, readers)
    app.add_exception_handler(Refusal, _refuse)
    app.add_exception_handler(HTTPException, _refuse_route)
    # What is added last stands outside.
    app.add_middleware(FailureLayer, metrics=metrics)
    if settings.allow_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allow_origin),
            allow_methods=["GET", "POST"],
            allow_headers=["Content-Type"],
        )
    app.add_middleware(
        OuterLayer, metrics=metrics, routes=_ROUTES, hosts=settings.allow_host
    )
    return app


def _add_routes(
    app: FastAPI, served: Served, settings: ServingSettings, readers: Executor
) -> None:
    batcher: Batcher = app.state.batcher
    metrics: Metrics = app.state.metrics
    page = Page(served.form, served.about, served.rules)

    @app.post("/predict", openapi_extra=describe_predict(served.form, settings))
    async def predict(request: Request) -> Response:
        """Answer rows, in their order."""
        started = time.perf_counter()
        body = await read_body(request, settings)

        def read() -> list[Any]:
            return check_rows(
                served.form, find_sent_rows(parse_body(body), settings), settings
            )

        async def answer() -> list[Any]:
            is_short = len(body) < _MUCH and served.form.kind != "images"
            loop = asyncio.get_running_loop()
            rows = read() if is_short else await loop.run_in_executor(readers, read)
            return await batcher.answer(rows)

        answers = await await_while_connected(request, answer())
        metrics.count_answers(
            time.perf_counter() - started,
            len(answers),
            abstained=sum(bool(answer.get("abstain")) for answer in answers),
            strange=sum(bool(answer.get("strange")) for answer in answers),
        )
        return make_json_response(200, {"answers": answers, **served.about})

    @app.head("/health", include_in_schema=False)
    @app.get("/health", openapi_extra=describe_health())
    async def health() -> Response:
        """Tell whether rows are answered, and by what."""
        ready = batcher.ready
        return make_json_response(200 if ready else 503, {"ready": ready, **served.about})

    @app.get("/metrics", response_class=Response)
    async def count() -> Response:
        """Write all counts for Prometheus."""
        return Response(metrics.write(), media_type=CONTENT_TYPE)

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def show() -> Response:
        """Show a page to try rows on."""
        return Response(page.text, media_type="text/html", headers=page.headers)


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return make_json_response(error.status, {"error": str(error)}, error.headers)


async def _refuse_route(request: Request, error: Exception) -> Response:
    """Refuse what is no route, or a method that a route has not."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:80]
    message = {
        404: f"the address must be one of {', '.join(_ROUTES)}, got {path!r}. Ask one of them.",
        405: f"{path} is not asked by {request.method}. Use one of the methods in 'Allow'.",
    }.get(error.status_code, str(error.detail))
    return make_json_response(error.status_code, {"error": message}, error.headers)
