"""`smidgen predict`: calibrated probabilities and an uncertainty for each text."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

from rich.table import Table
from typer import Context, Option

import smidgen
from smidgen.cli.console import out, write_json
from smidgen.cli.options import noted, outputs
from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import require_files_or_folders
from smidgen.cli.options.source import Source, reads_model
from smidgen.cli.run import ready
from smidgen.errors import ArgumentError

_SHOWN, _TEXT_WIDTH = 10, 36

NewData = Annotated[
    Path,
    Option(
        callback=require_files_or_folders, help="Rows to predict; labels are not needed."
    ),
]
AnswersFile = Annotated[
    Path | None,
    Option(
        "--out", help="Write the rows with their answers: CSV, TSV or JSONL by its name."
    ),
]
Samples = Annotated[
    int | None,
    Option(
        min=2,
        help="Weight samples to predict with; by default as many as at calibration.",
    ),
]


@reads_model
def predict(
    context: Context,
    source: Source,
    data: NewData,
    posterior: texts.PosteriorFolder = None,
    answers: AnswersFile = None,
    text: noted.Text = None,
    text_pair: noted.Pair = None,
    batch_size: texts.BatchSize = 16,
    max_length: noted.MaxLength = None,
    samples: Samples = None,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Predict new rows: answers, how certain they are, and when to ask a person."""
    from smidgen.integrations.reading import answers_file

    if answers is not None:
        answers_file.check_answers_file(answers, "--out")
    run = outputs.open_run(context, *outputs.files(out=answers))
    if posterior is None:
        parts = ready.require_ready(source.model)
        ready.predict_ready(context, parts, data, device=source.device, answers=answers)
        run.finish()
        return
    seen = noted.find_seen(source, text, text_pair, None, max_length)
    network = source.load()
    loaded = smidgen.load(posterior, network.problem.model)
    if not isinstance(loaded.likelihood, smidgen.Categorical):
        raise ArgumentError(
            f"the posterior must be of a classifier, got {loaded.likelihood.kind!r}. Use "
            "smidgen.predict from Python."
        )
    if samples is not None and loaded.linearised:
        raise ArgumentError(
            f"--samples is for a posterior that predicts by draws, got {samples} with one "
            f"of {loaded.method}, which is linearised. Leave it out."
        )
    table = network.read(data, (*seen.columns[:2], None))
    loader = network.batch(table, batch_size, seen.length)
    predictive = smidgen.predict_batches(loaded, network.problem, loader, samples=samples)
    columns = predictive.to_dict()
    rows = [
        {"text": words, "label": network.classes[int(columns["predicted"][i])]}  # type: ignore[call-overload]
        | {key: values[i] for key, values in columns.items()}
        for i, words in enumerate(table.texts)
    ]
    _show_predictions(rows)
    if answers is not None:
        added = {
            "answer": [row["label"] for row in rows],
            "confidence": columns["confidence"],
        }
        read = network.read_all(data, seen.columns[0])
        kept = {name: list(column) for name, column in read.items()}
        joined = answers_file.add_columns(kept, added)
        out.print(f"wrote {answers_file.write_answers(answers, joined)}")
    write_json(json_file, {"predictions": rows})
    run.finish()


def _show_predictions(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("label", "confidence", "entropy", "from weights"):
        table.add_column(heading, no_wrap=True)
    table.add_column("text", no_wrap=True, overflow="ellipsis")
    for row in rows[:_SHOWN]:
        numbers = (row[key] for key in ("confidence", "entropy", "mutual_information"))
        text = shorten(row["text"], _TEXT_WIDTH, placeholder="…")
        table.add_row(row["label"], *(f"{number:.3f}" for number in numbers), text)
    out.show(table)
    if len(rows) > _SHOWN:
        out.print(f"… and {len(rows) - _SHOWN:,} more; --json FILE writes them all")
