"""`smidgen finetune`: train the point estimate that everything else starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from smidgen.cli.console import Steps, out, write_json
from smidgen.cli.options import outputs
from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import require_files
from smidgen.errors import ArgumentError
from smidgen.fit.epochs import Criterion, Epoch
from smidgen.runtime.memory import count_bytes
from smidgen.runtime.writing.writable import require_space

if TYPE_CHECKING:
    from smidgen.integrations.text import TextTable


def finetune(
    context: Context,
    model: texts.Model,
    train: texts.Train,
    val: Annotated[
        Path, Option(callback=require_files, help="Held-out data, to decide when to stop.")
    ],
    folder: Annotated[Path, Option("--out", help="Folder for the model.")],
    text: texts.Text = "text",
    text_pair: texts.Pair = None,
    label: texts.Label = "label",
    epochs: texts.Epochs = 5,
    learning_rate: texts.LearningRate = 5e-5,
    patience: texts.Patience = 2,
    stop_on: Annotated[Criterion, Option(help="Score to stop by.")] = "accuracy",
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    seed: texts.Seed = 0,
    device: texts.Device = "auto",
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Fine-tune all weights of a text classifier: the model everything else starts from."""
    from smidgen import fit
    from smidgen.integrations import huggingface

    run = outputs.open_run(context, outputs.folder(folder, huggingface.refuse_taken_model))
    say = Steps()
    table = texts.read_table(train, text, text_pair, label)
    held_out = texts.read_table(val, text, text_pair, label, table.label_names)
    classes = count_classes(table, train)
    say(f"Loading {model} with {classes} classes")
    network, tokenizer = huggingface.load_classifier(
        model, labels=classes, seed=seed, device=device
    )
    huggingface.name_classes(network, table.label_names)
    require_space(folder, "--out", count_bytes(network))
    loaders = [
        texts.make_batches(
            rows, tokenizer, batch_size, max_length, shuffle=rows is table, seed=seed
        )
        for rows in (table, held_out)
    ]
    say(f"Fine-tuning on {len(table):,} texts")
    result = fit.finetune(
        network,
        loaders[0],
        validation=loaders[1],
        seed=seed,
        checkpoint=run.place("training"),
        settings=fit.FinetuneSettings(
            epochs=epochs, learning_rate=learning_rate, patience=patience, stop_on=stop_on
        ),
    )
    show_history(result.history, result.best)
    huggingface.save_model(result.model, tokenizer, folder, overwrite=run.overwrite)
    say(f"Saved the model to {folder}")
    history = [asdict(epoch) for epoch in result.history]
    best = asdict(result.best)
    write_json(json_file, {"model": str(folder), "best": best, "history": history})
    run.finish()


def show_history(history: Sequence[Epoch], best: Epoch) -> None:
    """Print the scores of each epoch; a regression has no accuracy."""
    for epoch in history:
        mark = "  ← kept" if epoch == best else ""
        hits = "" if epoch.accuracy is None else f", accuracy {epoch.accuracy:.1%}"
        out.print(
            f"  epoch {epoch.number}: training NLL {epoch.train_nll:.4f}, validation NLL "
            f"{epoch.nll:.4f}{hits}{mark}"
        )


def count_classes(table: TextTable, path: Path) -> int:
    """Count the classes of a table; refuse numbers, and a single class."""
    if table.is_regression:
        raise ArgumentError(
            f"--label must name a column of classes, got decimal numbers in {path}. "
            "Use 'smidgen bayestune', which can do regression."
        )
    classes = table.classes(f"--label of {path}")
    if classes < 2:
        raise ArgumentError(
            f"{path} must have 2 classes or more, got 1. Add texts of another."
        )
    return classes
