"""`smidgen finetune`: train the point estimate that everything else starts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from smidgen.cli.console import Steps, out, write_json
from smidgen.cli.options import noted, outputs
from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import require_files
from smidgen.cli.options.source import PANEL, Source, TextModel, reads_model
from smidgen.errors import ArgumentError
from smidgen.fit.epochs import Criterion, Epoch
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.runtime.memory import count_bytes
from smidgen.runtime.writing.writable import require_space

if TYPE_CHECKING:
    from smidgen.integrations.text import TextTable
    from smidgen.integrations.text_length import TextLength

# Peak learning rates of all weights, and of an adapter.
_RATES = (5e-5, 2e-4)


HeldOutToStop = Annotated[
    Path | None,
    Option(
        callback=require_files,
        help="Held-out data, to decide when to stop. Without it a tenth of --train is held out: "
        "half of that to stop, and half for 'smidgen fit' to calibrate on.",
    ),
]


@reads_model
def finetune(
    context: Context,
    source: Source,
    train: texts.Train,
    folder: Annotated[Path, Option("--out", help="Folder for the model.")],
    val: HeldOutToStop = None,
    text: texts.Text = "text",
    text_pair: texts.Pair = None,
    label: texts.Label = "label",
    epochs: texts.Epochs = 5,
    learning_rate: Annotated[
        float | None,
        Option("--lr", help="Peak learning rate; by default 5e-5, of an adapter 2e-4."),
    ] = None,
    patience: texts.Patience = 2,
    stop_on: Annotated[Criterion, Option(help="Score to stop by.")] = "accuracy",
    lora_rank: Annotated[
        int, Option(min=1, help="Rank of the LoRA adapter.", rich_help_panel=PANEL)
    ] = 8,
    batch_size: texts.BatchSize = 16,
    max_length: Annotated[
        int | None,
        Option(min=3, help="Longer texts are cut to this many tokens; else 128."),
    ] = None,
    seed: texts.Seed = 0,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Fine-tune all weights of a text classifier, or an adapter of a language model."""
    from smidgen import fit
    from smidgen.integrations.text_length import TextLength

    sizes = batch_size, TextLength(max_length)
    rows = _Rows((train, val), (text, text_pair, label), sizes, seed)
    say = Steps()
    prepare = _prepare_adapter(lora_rank) if source.is_asked else _prepare_classifier
    run = outputs.open_run(context, outputs.folder(folder, _find_rule(source)))
    start = prepare(source, rows, say)
    require_space(folder, "--out", start.bytes)
    say(f"Fine-tuning on {len(start.tables[0]):,} texts")
    settings = fit.FinetuneSettings(
        epochs=epochs,
        learning_rate=_RATES[source.is_asked] if learning_rate is None else learning_rate,
        patience=patience,
        stop_on=stop_on,
    )
    result = fit.finetune(
        start.network.problem,
        rows.batch(start, 0),
        validation=rows.batch(start, 1),
        seed=seed,
        checkpoint=run.place("training"),
        settings=settings,
    )
    show_history(result.history, result.best)
    start.save(result.model, folder, overwrite=run.overwrite, note=start.note)
    say(f"Saved the {'adapter' if source.is_asked else 'model'} to {folder}")
    history = [asdict(epoch) for epoch in result.history]
    best = asdict(result.best)
    write_json(json_file, {"model": str(folder), "best": best, "history": history})
    run.finish()


@dataclass(frozen=True, eq=False)
class _Start:
    """What is tuned, on which tables, how it is saved with its note, and about how large it is."""

    network: TextModel
    tables: tuple[TextTable, TextTable]
    note: TaskNote
    save: Callable[..., Any]
    bytes: int


@dataclass(frozen=True)
class _Rows:
    """Where the texts are: files to train and to stop by, their columns, the batches."""

    files: tuple[Path, Path | None]
    columns: tuple[str, str | None, str]
    sizes: tuple[int, TextLength]
    seed: int

    def divide(
        self,
        note: TaskNote,
        table: TextTable,
        read: Callable[[Path], TextTable],
        say: Steps,
    ) -> tuple[tuple[TextTable, TextTable], TaskNote]:
        """Take what to train on and what to stop by, and note what training sees."""
        whole = replace(note, label=self.columns[2])
        tables, whole = noted.divide_texts(whole, self.files, table, read, seed=self.seed)
        if self.files[1] is None:
            held_out = len(table) - len(tables[0])
            say(
                f"Held {held_out:,} of {len(table):,} rows out by seed {self.seed}: "
                f"{len(tables[1]):,} to stop, the others for 'smidgen fit' to calibrate on"
            )
        return tables, whole

    def settle(self, note: TaskNote, tokenizer: Any, say: Steps) -> TaskNote:
        """Note how many tokens the model reads of a text, and say it if they are few."""
        length = self.sizes[1].fit(tokenizer)
        cut = self.sizes[1].describe_cut(length)
        if cut is not None:
            say(cut[0].upper() + cut[1:])
        return replace(note, max_length=length)

    def batch(self, start: _Start, number: int) -> Any:
        """Batch one of the tables; the first is trained on, and shuffled."""
        return start.network.batch(
            start.tables[number], *self.sizes, shuffle=number == 0, seed=self.seed
        )


def _find_rule(source: Source) -> Any:
    """Find what refuses a folder that is taken."""
    if source.is_asked:
        from smidgen.integrations.answers.folder import refuse_taken_answers

        return refuse_taken_answers
    from smidgen.integrations.huggingface import refuse_taken_model

    return refuse_taken_model


def _prepare_classifier(source: Source, rows: _Rows, say: Steps) -> _Start:
    from smidgen.integrations import huggingface

    table = texts.read_table(rows.files[0], *rows.columns)
    classes = count_classes(table, rows.files[0])
    note = TaskNote(
        "text",
        rows.columns[:1],
        text_pair=rows.columns[1],
        classes=table.label_names or tuple(map(str, range(classes))),
        base=source.model,
    )
    tables, note = rows.divide(
        note,
        table,
        lambda path: texts.read_table(path, *rows.columns, table.label_names),
        say,
    )
    say(f"Loading {source.model} with {classes} classes")
    network, tokenizer = huggingface.load_classifier(
        source.model, labels=classes, seed=rows.seed, device=source.device
    )
    huggingface.name_classes(network, table.label_names)
    note = rows.settle(note, tokenizer, say)

    def save(model: Any, folder: Path, **how: Any) -> None:
        huggingface.save_model(model, tokenizer, folder, **how)

    loaded = TextModel.of_classifier(network, tokenizer)
    return _Start(loaded, tables, note, save, count_bytes(network))


def _prepare_adapter(rank: int) -> Callable[[Source, _Rows, Steps], _Start]:
    def prepare(source: Source, rows: _Rows, say: Steps) -> _Start:
        say(f"Loading {source.model}")
        asked = source.load_language_model().with_adapter(rank=rank, seed=rows.seed)
        loaded = TextModel.of_language_model(asked)

        def read(path: Path) -> TextTable:
            return loaded.read(path, rows.columns)

        note = TaskNote("text", classes=loaded.classes, base=source.model)
        note = rows.settle(note, loaded.tokenizer, say)
        tables, note = rows.divide(note, read(rows.files[0]), read, say)
        trained = [p for p in asked.model.parameters() if p.requires_grad]
        size = sum(p.numel() * p.element_size() for p in trained)
        return _Start(loaded, tables, note, asked.save, size)

    return prepare


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
