"""`smidgen evaluate`: compare a posterior with the MAP and temperature scaling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

import smidgen
from smidgen.cli.options import noted, outputs
from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import refuse_missing, require_files_or_folders
from smidgen.cli.options.source import Source, reads_model
from smidgen.cli.run import ready
from smidgen.errors import ArgumentError
from smidgen.runtime.writing.rules_note import RULES_NOTE

if TYPE_CHECKING:
    from smidgen.cli.options.source import TextModel
    from smidgen.integrations.text import TextTable
    from smidgen.workflows.decisions.settings import CompareSettings

LabelledData = Annotated[
    Path,
    Option(
        callback=require_files_or_folders,
        help="Labelled test data, which are only scored.",
    ),
]
PosteriorName = Annotated[
    str | None,
    Option(help="Name of the posterior in the results; by default its method or selector."),
]


@reads_model
def evaluate(
    context: Context,
    source: Source,
    test: LabelledData,
    posterior: texts.PosteriorFolder = None,
    shift: Annotated[
        list[str] | None,
        Option(help="Other data, to detect as different: NAME=FILE; may be repeated."),
    ] = None,
    name: PosteriorName = None,
    text: noted.Text = None,
    text_pair: noted.Pair = None,
    label: noted.Label = None,
    page: Annotated[
        Path | None, Option("--report", help="Also write an HTML page.")
    ] = None,
    batch_size: texts.BatchSize = 16,
    max_length: noted.MaxLength = None,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Did it help? Compare a posterior with the model as it is and temperature scaling."""
    run = outputs.open_run(context, *outputs.files(report=page))
    items = [_split_item(item) for item in shift or []]
    if posterior is None:
        parts = ready.require_ready(source.model)
        ready.evaluate_ready(context, parts, source.device, dict(items))
        run.finish()
        return
    seen = noted.find_seen(source, text, text_pair, label, max_length)
    sizes = batch_size, seen.length
    network = source.load()
    loaded = smidgen.load(posterior, network.problem.model)
    table = network.read(test, seen.columns)
    texts_only = (*seen.columns[:2], None)

    def read(path: Path) -> TextTable:
        return network.read(path, texts_only)

    known = ready.find_seen_rows(seen.note, table, test, read)
    shifted = {}
    for key, path in items:
        shifted[key] = network.batch(read(path), *sizes)
    record = smidgen.compare(
        network.problem,
        loaded if name is None else {name: loaded},
        network.batch(table, *sizes),
        shifted=shifted,
        config={
            "title": f"{source.model} on {test.name}",
            "model": source.model,
            "test": str(test),
        },
        settings=_make_settings(posterior, table, network),
    )
    ready.show_scores(record, known, page, json_file)
    run.finish()


def _make_settings(
    posterior: Path, table: TextTable, network: TextModel
) -> CompareSettings:
    """Take the rules that were saved with the posterior, the texts and the class names."""
    from smidgen.decide import Rules
    from smidgen.workflows.decisions.settings import CompareSettings

    rules = Rules.load(posterior) if (posterior / RULES_NOTE).is_file() else None
    texts = table.join_pairs()
    return CompareSettings(rules=rules, texts=texts, class_names=network.names)


def _split_item(item: str) -> tuple[str, Path]:
    name, equals, path = item.partition("=")
    if not equals or not name or not path:
        raise ArgumentError(
            f"--shift must be NAME=FILE, got {item!r}. Try --shift news=news.tsv."
        )
    refuse_missing("--shift", Path(path))
    return name, Path(path)
