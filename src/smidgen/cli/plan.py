"""`smidgen plan`: what a posterior would cost, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

import smidgen
from smidgen.cli.console import out, write_json
from smidgen.cli.options import methods, outputs
from smidgen.cli.options import select as selecting
from smidgen.cli.options import text as texts

if TYPE_CHECKING:
    from torch import nn

DescribedModel = Annotated[
    str, Argument(help="Folder of the model, its Hugging Face id, or a config.json.")
]


def plan(
    context: typer.Context,
    model: DescribedModel,
    select: selecting.SelectorName = "sparse-kfac",
    size: selecting.Size = None,
    percent: selecting.Percent = None,
    fraction: selecting.Fraction = None,
    count: selecting.Count = None,
    pattern: selecting.Patterns = None,
    method: methods.Method = "laplace",
    structure: selecting.Structure = None,
    isotropic_body: selecting.IsotropicBody = False,
    rank: methods.Rank = 20,
    steps: methods.Steps = 2000,
    labels: Annotated[
        int | None, Option(help="Number of classes; by default the model's.", min=1)
    ] = None,
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    examples: Annotated[
        int, Option(help="Number of training texts to estimate the time for.", min=1)
    ] = 1000,
    timed: Annotated[
        bool, Option("--time/--no-time", help="Time a batch, if the model has weights.")
    ] = True,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Estimate what a posterior would cost, and what would fit on this machine."""
    from smidgen.planning.settings import PlanSettings

    methods.refuse_unused(method, context)
    run = outputs.open_run(context)
    sizes = {"size": size, "percent": percent, "fraction": fraction, "count": count}
    selection = selecting.read_selection(select, sizes=sizes, patterns=pattern)
    network = _load(model, labels, timed)
    choice: dict[str, Any] = {"percent": selection.size}
    if select != "sparse-kfac":
        choice = {"subset": selection.choose_for_plan(network)}
    form = None
    if method == "laplace":
        form = selection.choose_structure(structure, isotropic_body)
    plan = smidgen.plan(
        network,
        **choice,
        method=method,
        structure=form,
        examples=examples,
        settings=PlanSettings(
            rank=rank,
            steps=steps,
            batch_size=batch_size,
            max_length=max_length,
            isotropic_body=isotropic_body,
        ),
    )
    out.print(str(plan), soft_wrap=True)
    write_json(json_file, plan.to_dict())
    run.finish()


def _load(model: str, labels: int | None, timed: bool) -> nn.Module:
    """Load the model, or its skeleton where weights are not there or not needed."""
    from smidgen.integrations.model_folder import find_config_file
    from smidgen.integrations.skeleton import has_head, has_weights, load_skeleton

    config = find_config_file(model)
    network = load_skeleton(config, labels=labels)
    # Of a hub's model only the config is fetched; its weights may be cached already.
    if timed and not Path(model).is_file() and has_weights(config.parent):
        from smidgen.integrations.huggingface import load_classifier

        head = None if has_head(network) else network.config.num_labels
        network, _ = load_classifier(config.parent, labels=labels or head)
    return network
