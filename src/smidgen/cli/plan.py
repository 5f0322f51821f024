"""`smidgen plan`: what a posterior would cost, before any work."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.markup import escape

import smidgen
from smidgen.cli import swag, texts
from smidgen.cli.choosing import Structure
from smidgen.cli.console import check_free, out, write_json

Selection = Literal["sparse-kfac", "last-layer"]


def plan(
    model: Annotated[
        str, typer.Argument(help="A model folder, or a config.json without weights.")
    ],
    select: Annotated[Selection, typer.Option(help="Which weights.")] = "sparse-kfac",
    percent: Annotated[float, typer.Option(help="Percent of rows and of columns.")] = 10,
    method: swag.Method = "laplace",
    structure: Annotated[
        Structure, typer.Option(help="How the curvature is kept.")
    ] = "kron",
    rank: swag.Rank = 20,
    steps: swag.Steps = 2000,
    labels: Annotated[
        int | None, typer.Option(help="Classes; the model's own if left out.", min=1)
    ] = None,
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    examples: Annotated[
        int, typer.Option(help="Training texts to estimate the time for.", min=1)
    ] = 1000,
    timed: Annotated[
        bool, typer.Option("--time/--no-time", help="Time a batch if weights are there.")
    ] = True,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Say what a posterior would cost, and what would fit on this machine."""
    from smidgen.integrations.skeleton import has_head, has_weights, load_skeleton

    check_free(overwrite, json_file)
    network = load_skeleton(model, labels=labels)
    if timed and has_weights(model):
        from smidgen.integrations.huggingface import load_classifier

        head = None if has_head(network) else network.config.num_labels
        network, _ = load_classifier(model, labels=labels or head)
    found = smidgen.plan(
        network,
        subset=smidgen.select.last_layer(network) if select == "last-layer" else None,
        percent=percent,
        method=method,
        structure=structure,
        rank=rank,
        steps=steps,
        batch_size=batch_size,
        max_length=max_length,
        examples=examples,
    )
    out.print(escape(str(found)), soft_wrap=True)
    write_json(json_file, found.to_dict())
