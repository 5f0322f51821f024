"""What commands do with a ready folder: predict new rows, and score labelled ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from rich.table import Table
from typer import Context

from smidgen.cli.console import note as note_line
from smidgen.cli.console import out, show_record, write_json
from smidgen.cli.options.lists import split_words
from smidgen.cli.options.noted import NOTED_OPTIONS
from smidgen.errors import ArgumentError

if TYPE_CHECKING:
    from smidgen.integrations.reading.task_note import TaskNote
    from smidgen.runtime.record import Record
    from smidgen.workflows.predictor.predictor import Predictor
    from smidgen.workflows.run.dividing import TaskRows
    from smidgen.workflows.run.ready_folder import RunParts

_SHOWN, _WIDTH = 10, 28
_KINDS = {"text": "texts", "table": "a table", "images": "images"}
# Of language models and of posteriors that are drawn from: a ready folder has neither.
_IDLE = ("prompt", "choices", "choice", "chat", "gguf", "samples")


def require_ready(name: str) -> RunParts:
    """Find the ready folder that was typed where a model and a posterior may be."""
    from smidgen.workflows.predictor.loading import find_shared
    from smidgen.workflows.run.ready_folder import find_ready_folder

    parts = find_ready_folder(find_shared(Path(name), name="MODEL"))
    if parts is None:
        raise ArgumentError(
            f"MODEL must be a folder made by 'smidgen run' or 'smidgen pack' if POSTERIOR is "
            f"left out, got "
            f"{name!r}. Name the folder of the posterior after it."
        )
    return parts


def read_typed(context: Context) -> dict[str, Any]:
    """List what was typed of what training saw; None for what was not."""

    def find(name: str) -> Any:
        source = context.get_parameter_source(name) if name in context.params else None
        is_typed = source is not None and source.name != "DEFAULT"
        return context.params[name] if is_typed else None

    text = find("text")
    return {
        "columns": None if text is None else tuple(split_words([text])),
        "text_pair": find("text_pair"),
        "label": find("label"),
        "max_length": find("max_length"),
    }


def check_note(note: TaskNote, typed: Mapping[str, Any]) -> TaskNote:
    """Refuse what was typed and differs from what training saw."""
    from smidgen.integrations.reading.task_note import use_note

    return use_note(note, typed, options=NOTED_OPTIONS)


def load_ready(
    context: Context, parts: RunParts, device: str
) -> tuple[Predictor, TaskNote]:
    """Load a ready folder, and check against it what was typed."""
    from smidgen.integrations.reading.task_note import TaskNote
    from smidgen.workflows.run.ready_folder import load_predictor

    note = TaskNote.load(parts.folder)
    _refuse_idle_options(context, note)
    note = check_note(note, read_typed(context))
    return load_predictor(parts, device=device), note


def _refuse_idle_options(context: Context, note: TaskNote) -> None:
    """Refuse options that would do nothing: they are for models and posteriors by themselves."""
    idle = [*_IDLE, *(["batch_size"] if "test" in context.params else [])]
    idle += ["label"] if note.kind == "images" else []
    for name in idle:
        if name in context.params and _is_typed(context, name):
            raise ArgumentError(
                f"--{name.replace('_', '-')} must be left out for a folder of 'smidgen run' "
                f"with {_KINDS[note.kind]}, got {context.params[name]!r}. It would do nothing."
            )


def predict_ready(
    context: Context, parts: RunParts, data: Path, *, device: str, answers: Path | None
) -> None:
    """Predict new rows by a ready folder, and write its answers beside their columns."""
    from smidgen.integrations.reading.answers_file import add_columns, write_answers
    from smidgen.workflows.run.rows import read_noted_rows

    predictor, note = load_ready(context, parts, device)
    rows, columns = read_noted_rows(note, data, labelled=False)
    size = context.params["batch_size"] if _is_typed(context, "batch_size") else None
    found = predictor.answer(rows, batch_size=size, progress=True)
    added = found.to_columns()
    kept = {name: list(column) for name, column in columns.items()}
    _show_answers(kept, added)
    if not predictor.is_regression and predictor.rules.abstain is None:
        note_line("the folder has no rule to abstain, so every row has an answer")
    if answers is not None:
        write_answers(answers, add_columns(kept, added))
        out.print(f"wrote {answers}")
    json_file = context.params["json_file"]
    if json_file is not None:  # Every class of every row may be a lot.
        write_json(json_file, {"predictions": found.to_dicts()})


def evaluate_ready(
    context: Context, parts: RunParts, device: str, shifted: Mapping[str, Path]
) -> None:
    """Score a ready folder on labelled rows, and on shifted ones by name."""
    from smidgen.workflows.run.pipeline import score_rows_of
    from smidgen.workflows.run.rows import read_noted_rows

    predictor, note = load_ready(context, parts, device)
    test, page, name = (context.params[n] for n in ("test", "page", "name"))
    rows, _ = read_noted_rows(note, test, labelled=True)

    def read(path: Path) -> TaskRows:
        return read_noted_rows(note, path, labelled=False)[0]

    seen = find_seen_rows(note, rows, test, read)
    others = {key: read(path) for key, path in shifted.items()}
    config = {
        "title": f"{parts.folder} on {test.name}",
        "model": str(parts.folder),
        "test": str(test),
    }
    record = score_rows_of(predictor, rows, config=config, shifted=others, name=name)
    show_scores(record, seen, page, context.params["json_file"])


def find_seen_rows(
    note: TaskNote | None, rows: TaskRows, path: Path, read: Callable[[Path], TaskRows]
) -> str | None:
    """Find rows to be scored that trained the model or chose something; say so beforehand."""
    from smidgen.workflows.run.seen_rows import describe_seen_rows

    seen = None if note is None else describe_seen_rows(note, rows, path, read)
    if seen is not None:
        note_line(seen)
    return seen


def show_scores(
    record: Record, seen: str | None, page: Path | None, json_file: Path | None
) -> None:
    """Show a record of scores, and write its files, which also say what was seen before."""
    from smidgen.report import write

    if seen is not None:
        notes = [*record.results.get("notes", ()), seen]
        record = replace(record, results={**record.results, "notes": notes})
    show_record(record)
    if json_file is not None:
        out.print(f"\nwrote {record.save(json_file)}")
    if page is not None:
        out.print(f"wrote {write(record, page)}")


def _is_typed(context: Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _show_answers(columns: dict[str, list[Any]], added: dict[str, list[Any]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    first = next(iter(columns))
    for heading in added:
        table.add_column(heading, no_wrap=True)
    table.add_column(first, no_wrap=True, overflow="ellipsis")
    count = len(columns[first])
    for row in range(min(count, _SHOWN)):
        cells = [_show(column[row]) for column in added.values()]
        table.add_row(*cells, shorten(str(columns[first][row]), _WIDTH, placeholder="…"))
    out.show(table)
    if count > _SHOWN:
        out.print(f"… and {count - _SHOWN:,} more; --out FILE writes them all")


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else shorten(str(value), 30)
