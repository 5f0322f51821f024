"""`smidgen verify`: check smidgen against a slow, exact computation on this model."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

import smidgen
from smidgen.cli.console import out, write_json
from smidgen.cli.options import noted, outputs
from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import require_files
from smidgen.cli.options.source import Source


def verify(
    context: typer.Context,
    model: texts.Model,
    data: Annotated[
        Path, Option(callback=require_files, help="Texts; only the first few are used.")
    ],
    text: noted.Text = None,
    text_pair: noted.Pair = None,
    label: Annotated[
        str | None, Option("--label", help="Column of the label; needed for regression.")
    ] = None,
    batches: Annotated[int, Option(help="Number of batches to compare.", min=1)] = 2,
    batch_size: texts.BatchSize = 4,
    max_length: Annotated[
        int | None,
        Option(min=3, help="Longer texts are cut to this many tokens; else 64."),
    ] = None,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Check a few weights of every layer against a slow, exact computation."""
    from smidgen.integrations.text_length import TextLength

    run = outputs.open_run(context)
    seen = noted.find_seen(Source(model), text, text_pair, label, None)
    network, tokenizer = texts.load_model(model)
    names = None if label is None else texts.find_label_names(network)
    table = texts.read_table(data, *seen.columns[:2], label, names)
    loader = texts.make_batches(table, tokenizer, batch_size, TextLength(max_length, 64))
    verification = smidgen.verify(network, islice(loader, batches))
    out.print(str(verification), soft_wrap=True)
    write_json(json_file, verification.to_dict())
    run.finish()
    if not verification.agrees:
        raise typer.Exit(1)
