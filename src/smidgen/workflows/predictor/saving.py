"""`save_predictor`: a predictor into a ready folder, whole or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smidgen import report
from smidgen.errors import ArgumentError, SmidgenError, StoreError, as_path, require_kind
from smidgen.integrations.model_folder import CONFIG
from smidgen.integrations.plain_model import save_plain_model
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.integrations.sharing.layer_stack import describe_stack
from smidgen.integrations.text import TextTable
from smidgen.outputs.batches import model_outputs
from smidgen.posterior.store import save
from smidgen.prediction.point import point_outputs
from smidgen.runtime.files import new_folder
from smidgen.runtime.guard import fingerprint
from smidgen.runtime.record import Record
from smidgen.weights.delta import Delta
from smidgen.workflows.predictor.card import write_card
from smidgen.workflows.predictor.predictor import Predictor
from smidgen.workflows.run.ready_folder import CARD, RunParts, refuse_taken_ready
from smidgen.workflows.run.task_model import TaskModel, load_task_model
from smidgen.workflows.run.text_base import save_text_model

_PROBED = ("the same again", "a text of some more words, 12 of them", "a b c d")
_SAME = 0.01
"""How far outputs may be off, relative to them: another device, or half precision."""


def save_predictor(
    predictor: Predictor,
    folder: str | Path,
    *,
    base: str | None = None,
    revision: str | None = None,
    base_folder: str | Path | None = None,
    delta: Delta | None = None,
    record: Record | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a predictor to one folder, for `smidgen.load`, `smidgen predict` and the Hub.

    Args:
        predictor: What to save. Its network must be a text model of transformers, or an
            `nn.Sequential` of torch's own layers: nothing is pickled.
        folder: Where to write it. Nothing may be there yet, unless `overwrite` is set.
        base: The text model that this one was made of, on the Hub or in a folder. Then only
            what it has beyond that is stored: an adapter of PEFT, a delta, a new head. By
            default an adapter's own base, and none for other models.
        revision: Which version of the base; stored as its commit.
        base_folder: A folder with the base, if it shall not be taken from the Hub.
        delta: What `smidgen bayestune` added to the base.
        record: What was measured on test rows, for the card and the page.
        overwrite: Replace a ready folder.

    Returns:
        The folder.

    Raises:
        ArgumentError: If the model cannot be stored.
        StoreError: If the folder is taken, or would not open as what was saved.
    """
    require_kind("predictor", predictor, Predictor, "Make it with smidgen.make_predictor")
    folder = as_path("folder", folder)
    task, problem = predictor.task, predictor.task.problem
    if problem.forward is not model_outputs:
        raise ArgumentError(
            "model must read batches as smidgen does, got a Problem with a forward of its "
            "own, which no file can hold. Put it into the model's own forward."
        )
    refuse_taken_ready(folder, overwrite=overwrite)
    network: Any = problem.model
    adapter_base = _find_adapter_base(network)
    base, revision = (base, revision) if base is not None else adapter_base
    note = task.note if base is None else replace(task.note, base=base)
    with new_folder(folder, overwrite=overwrite) as work:
        parts = RunParts(work)
        if note.kind != "text":
            save_plain_model(network, describe_stack(network), parts.model)
        elif base is None:
            save_text_model(task.tokenizer)(network, parts.model)
            _name_classes(parts.model / CONFIG, note.classes)
        else:
            noted = _import_based_model().save_based_model(
                network,
                task.tokenizer,
                parts.model,
                name=base,
                revision=revision,
                base=base_folder,
                delta=delta,
            )
            revision = noted.revision
        save(predictor.posterior, parts.posterior)
        if predictor.rules.by_name():
            predictor.rules.save(parts.posterior)
        note.save(work)
        if record is not None:
            record.save(parts.record)
            report.write(record, parts.page)
        card = write_card(str(folder), note, predictor.rules, record, revision=revision)
        (work / CARD).write_text(card, encoding="utf-8")
        _require_same(parts, predictor, note, base_folder)
        # Somebody may have written there meanwhile.
        refuse_taken_ready(folder, overwrite=overwrite)
    return folder


def _name_classes(config: Path, classes: tuple[str, ...] | None) -> None:
    """Write the names of the classes into a stored config; the model's own stays as it is."""
    if classes is None:
        return
    values = json.loads(config.read_text(encoding="utf-8"))
    values["id2label"] = {str(number): name for number, name in enumerate(classes)}
    values["label2id"] = {name: number for number, name in enumerate(classes)}
    config.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _find_adapter_base(network: nn.Module) -> tuple[str | None, str | None]:
    """Find which base an adapter says it is of, and its revision."""
    configs = getattr(network, "peft_config", None)
    if not isinstance(configs, dict) or not configs:
        return None, None
    config = next(iter(configs.values()))
    name = getattr(config, "base_model_name_or_path", None)
    if not name:
        raise ArgumentError(
            "base must be given for an adapter that names none. Pass base='user/model', or "
            "its folder."
        )
    return str(name), getattr(config, "revision", None)


def _import_based_model() -> Any:
    # Imported when there is a text model on a base: PEFT takes long, and may not be there.
    return import_module("smidgen.integrations.sharing.based_model")


def _require_same(
    parts: RunParts, predictor: Predictor, note: TaskNote, base: str | Path | None
) -> None:
    """Open what was written, and refuse it if its weights or its outputs are others."""
    task = predictor.task
    opened = load_task_model(parts.model, note, base=base)
    if fingerprint(opened.problem.model) != fingerprint(task.problem.model):
        raise StoreError(
            "the model must have the same weights when it is opened again, and has others: "
            "transformers ties or converts some. Save it with save_pretrained, open that, and "
            "fit its posterior anew."
        )
    try:
        before = _find_probe_outputs(task)
    except SmidgenError:
        return  # It takes other rows than its task says.
    after = _find_probe_outputs(opened)
    if before.shape != after.shape or (before - after).norm() > _SAME * before.norm():
        raise StoreError(
            "the model must give the same outputs when it is opened again, and gives others "
            f"of the same weights: {type(task.problem.model).__name__} computes more than its "
            "files say. Share its posterior alone: smidgen.save it, and smidgen.load it beside "
            "the model."
        )


def _find_probe_outputs(task: TaskModel) -> Tensor:
    """Compute a model's outputs of a few made-up rows of its kind, (N, C)."""
    note, draw = task.note, torch.Generator().manual_seed(0)
    rows: Any = None
    if note.kind == "text":
        pairs = None if note.text_pair is None else _PROBED[::-1]
        rows = task.batch(TextTable(_PROBED, pairs))
    elif note.shape is not None:
        low, high = note.span or (0.0, 1.0)
        shape = (len(_PROBED), *note.shape)
        rows = [low + (high - low) * torch.rand(shape, generator=draw)]
    elif note.scaling is not None:
        rows = [torch.randn(len(_PROBED), note.scaling.width, generator=draw)]
    return point_outputs(task.problem, rows, progress=False)[0]
