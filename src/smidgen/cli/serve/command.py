"""`smidgen serve`: a folder that `smidgen run` made, as a small HTTP service."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from typer import Argument, Option

import smidgen
from smidgen.cli.console import INTERRUPTED, err, note, out, refuse
from smidgen.cli.options import text as texts
from smidgen.errors import ArgumentError, ResourceError, how_to_install
from smidgen.runtime.progress import SWITCH

if TYPE_CHECKING:
    from smidgen.serving.app import Served
    from smidgen.serving.settings import ServingSettings
    from smidgen.workflows.run.ready_folder import RunParts

_LIMITS = "Limits"
Folder = Annotated[
    str, Argument(help="A folder that 'smidgen run' or 'smidgen pack' made.")
]
Host = Annotated[str, Option(help="The address to listen on; 0.0.0.0 is all of them.")]
Port = Annotated[int, Option(min=0, max=65535, help="The port; 0 takes a free one.")]
Wait = Annotated[
    float, Option(help="Milliseconds that a row waits for others, if nothing runs.")
]
MaxBatch = Annotated[int, Option(help="Rows that are computed together.")]
MaxWaiting = Annotated[
    int,
    Option(help="Rows that may wait; beyond, 503 says when.", rich_help_panel=_LIMITS),
]
MaxRows = Annotated[int, Option(help="Rows of one request.", rich_help_panel=_LIMITS)]
MaxBytes = Annotated[
    int, Option(help="Bytes of the body of one request.", rich_help_panel=_LIMITS)
]
MaxCharacters = Annotated[
    int, Option(help="Characters of one text.", rich_help_panel=_LIMITS)
]
Timeout = Annotated[
    float,
    Option(help="Seconds that a client has to send its request.", rich_help_panel=_LIMITS),
]
Threads = Annotated[
    int | None,
    Option(min=1, help="Threads that compute; by default as many as torch takes."),
]
Origins = Annotated[
    list[str] | None,
    Option(
        "--allow-origin",
        help="A web page's address that may ask, such as https://example.org; repeat it.",
    ),
]
Hosts = Annotated[
    list[str] | None,
    Option(
        "--allow-host",
        help="A name by which it may be asked, such as box.local; repeat it.",
    ),
]


def serve(
    folder: Folder,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    wait: Wait = 2.0,
    max_batch: MaxBatch = 64,
    threads: Threads = None,
    device: texts.Device = "auto",
    allow_origin: Origins = None,
    allow_host: Hosts = None,
    max_waiting: MaxWaiting = 1024,
    max_rows: MaxRows = 256,
    max_bytes: MaxBytes = 8 * 2**20,
    max_characters: MaxCharacters = 20_000,
    timeout: Timeout = 30.0,
) -> None:
    """Answer rows over HTTP, on this machine, with a page to try them on."""
    _require_packages()
    from smidgen.serving.hosts import is_local
    from smidgen.serving.settings import ServingSettings
    from smidgen.workflows.predictor.loading import require_there
    from smidgen.workflows.run.ready_folder import find_ready_folder

    settings = ServingSettings(
        max_batch=max_batch,
        wait=wait,
        max_waiting=max_waiting,
        max_rows=max_rows,
        max_bytes=max_bytes,
        max_characters=max_characters,
        timeout=timeout,
        allow_origin=tuple(allow_origin or ()),
        # By which names others reach this machine, nobody knows but who opens it to them.
        allow_host=tuple(allow_host or ()) if allow_host or is_local(host) else None,
    )
    parts = find_ready_folder(folder)
    if parts is None:
        require_there(Path(folder), "FOLDER")
        raise ArgumentError(
            f"FOLDER must be made by 'smidgen run' or 'smidgen pack', got {folder!r}. Make "
            "one, or check its name."
        )
    _serve(host, port, settings, lambda: _load(parts, device, threads))


def _require_packages() -> None:
    for package in ("fastapi", "uvicorn"):
        if find_spec(package) is None:
            raise ResourceError(
                f"the package {package!r} must be installed to serve, got none. "
                f"{how_to_install('serve')}."
            )


def _serve(
    host: str, port: int, settings: ServingSettings, load: Callable[[], Served]
) -> None:
    from smidgen.serving.app import make_app
    from smidgen.serving.checking import check_rows
    from smidgen.serving.hosts import is_local
    from smidgen.serving.server import find_address, open_socket, run_server

    # Before the model is loaded: a port that is taken is known at once.
    opened = open_socket(host, port)
    try:
        served = load()
        # The first row takes longest: it is one that nobody waits for.
        served.compute(check_rows(served.form, [served.form.example()], settings))
        _say(f"{served.folder} · {served.digest[:12]} · smidgen {served.version}")
        if not is_local(host):
            note(
                f"whoever reaches {host} may ask: there is no authentication and no "
                "encryption. Put a proxy before it that has both."
            )

        def tell() -> None:
            out.say("ready:", find_address(opened), "green")

        end = run_server(make_app(served, settings), opened, settings, on_ready=tell)
    finally:
        opened.close()
    if end.forced:
        _leave("What was being asked got no answer.")
    if end.cut_off:
        many = "1 request was" if end.cut_off == 1 else f"{end.cut_off:,} requests were"
        note(f"stopped; {many} not answered in time, and got 503.")
    else:
        _say("stopped; all that was asked is answered")


def _leave(message: str) -> NoReturn:
    """End the process as an interrupted one, whatever its threads are doing."""
    refuse(f"interrupted. {message}")
    sys.stdout.flush()
    sys.stderr.flush()
    # The thread that computes may be inside torch, where Python's own end would abort it.
    os._exit(INTERRUPTED)


def _load(parts: RunParts, device: str, threads: int | None) -> Served:
    """Load a folder to be served."""
    import torch

    from smidgen.runtime.writing.claim import digest_path
    from smidgen.serving.app import Served
    from smidgen.serving.form import make_form
    from smidgen.workflows.run.ready_folder import load_predictor

    if threads is not None:
        torch.set_num_threads(threads)
    predictor = load_predictor(parts, device=device)

    def compute(rows: Any) -> list[dict[str, Any]]:
        return predictor(rows).to_dicts()

    return Served(
        compute,
        make_form(predictor.note),
        folder=Path(os.path.abspath(parts.folder)).name,
        digest=digest_path(parts.folder),
        version=smidgen.__version__,
        rules=[str(rule) for rule in predictor.rules.by_name().values()],
    )


def _say(line: str) -> None:
    if os.environ.get(SWITCH) != "0":
        err.say("serve:", line, "dim")
