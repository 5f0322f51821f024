"""`smidgen evaluate`: did it help?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import smidgen
from smidgen.cli.console import check_free, out, show_record
from smidgen.cli.texts import (
    BatchSize,
    Json,
    Label,
    MaxLength,
    Model,
    Overwrite,
    Pair,
    PosteriorFolder,
    Text,
    batches_of,
    label_names,
    load_model,
    read_table,
)
from smidgen.errors import ArgumentError


def evaluate(
    model: Model,
    posterior: PosteriorFolder,
    test: Annotated[Path, typer.Option(help="Labelled test data; they only report.")],
    shift: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE of shifted data; may be repeated.")
    ] = None,
    text: Text = "text",
    text_pair: Pair = None,
    label: Label = "label",
    page: Annotated[
        Path | None, typer.Option("--report", help="Also write the report page.")
    ] = None,
    batch_size: BatchSize = 16,
    max_length: MaxLength = 128,
    overwrite: Overwrite = False,
    json_file: Json = None,
) -> None:
    """Say whether it helped: the posterior beside the MAP and temperature scaling."""
    from smidgen.study.evaluation import evaluate_posterior

    check_free(overwrite, json_file, page)
    network, tokenizer = load_model(model)
    loaded = smidgen.load(posterior, network)
    table = read_table(test, text, text_pair, label, label_names(network))
    shifted = {}
    for item in shift or []:
        name, path = _named_file(item)
        others = read_table(path, text, text_pair, None)
        shifted[name] = batches_of(others, tokenizer, batch_size, max_length)
    record = evaluate_posterior(
        loaded,
        network,
        batches_of(table, tokenizer, batch_size, max_length),
        shifted=shifted,
        config={"title": f"{model} on {test.name}", "model": model, "test": str(test)},
    )
    show_record(record)
    if json_file is not None:
        record.save(json_file)
        out.print(f"\nwrote {json_file}")
    if page is not None:
        from smidgen.report import write

        out.print(f"wrote {write(record, page)}")


def _named_file(item: str) -> tuple[str, Path]:
    name, equals, path = item.partition("=")
    if not equals or not name or not path:
        raise ArgumentError(f"--shift must be NAME=FILE, got {item!r}.")
    return name, Path(path)
