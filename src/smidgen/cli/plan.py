"""`smidgen plan`: what a posterior would cost, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import smidgen
from smidgen.cli.console import out, refuse_taken_files, write_json
from smidgen.cli.options import select as choosing
from smidgen.cli.options import swag
from smidgen.cli.options import text as texts

Described = Annotated[
    str, typer.Argument(help="A model folder, a hub id, or a config.json without weights.")
]


def plan(
    context: typer.Context,
    model: Described,
    select: choosing.SelectorName = "sparse-kfac",
    size: choosing.Size = None,
    percent: choosing.Percent = None,
    fraction: choosing.Fraction = None,
    count: choosing.Count = None,
    pattern: choosing.Patterns = None,
    method: swag.Method = "laplace",
    structure: choosing.GivenStructure = None,
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
    from smidgen.integrations.model_folder import find_config_file
    from smidgen.integrations.skeleton import has_head, has_weights, load_skeleton
    from smidgen.planning.plan import PlanSettings

    swag.refuse_unused(method, context)
    refuse_taken_files(json_file, overwrite=overwrite)
    sizes = {"size": size, "percent": percent, "fraction": fraction, "count": count}
    wanted = choosing.wanted(select, sizes=sizes, patterns=pattern, seed=0)
    config = find_config_file(model)
    network = load_skeleton(config, labels=labels)
    # Of a hub's model the config alone is fetched; weights may be there from before.
    if timed and not Path(model).is_file() and has_weights(config.parent):
        from smidgen.integrations.huggingface import load_classifier

        head = None if has_head(network) else network.config.num_labels
        network, _ = load_classifier(config.parent, labels=labels or head)
    known: dict[str, Any] = {"percent": wanted.size}
    if select != "sparse-kfac":
        known = {"subset": wanted.planned(network)}
    found = smidgen.plan(
        network,
        **known,
        method=method,
        structure=wanted.structure(structure) if method == "laplace" else None,
        examples=examples,
        settings=PlanSettings(
            rank=rank, steps=steps, batch_size=batch_size, max_length=max_length
        ),
    )
    out.print(escape(str(found)), soft_wrap=True)
    write_json(json_file, found.to_dict())
