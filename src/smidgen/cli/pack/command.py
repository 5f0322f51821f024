"""`smidgen pack`: join the folder of a model and that of its posterior into a ready one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from smidgen.cli.console import out, write_json
from smidgen.cli.options import noted, outputs
from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import require_files, split_words

if TYPE_CHECKING:
    from smidgen.workflows.predictor.predictor import Predictor

Posterior = Annotated[
    Path, Argument(help="Folder of its posterior, as 'smidgen fit' saves it.")
]
Out = Annotated[Path, Option("--out", help="Folder for all of it.")]
Base = Annotated[
    str | None,
    Option(
        "--base",
        help="The model on the Hub that MODEL was made of: only what differs is stored. By "
        "default MODEL itself if it is one of the Hub's.",
    ),
]
Revision = Annotated[
    str | None,
    Option(
        "--revision",
        help="Commit, tag or branch of the base, or of MODEL where that is its own.",
    ),
]
BaseFolder = Annotated[
    Path | None,
    Option("--base-folder", help="A folder with the base, in place of the Hub's."),
]
Delta = Annotated[
    Path | None,
    Option(
        "--delta",
        callback=require_files,
        help="What 'smidgen bayestune' added to the base.",
    ),
]
Record = Annotated[
    Path | None,
    Option(
        "--record",
        callback=require_files,
        help="What was measured, from 'smidgen evaluate --json'.",
    ),
]


def pack(
    context: Context,
    model: texts.Model,
    posterior: Posterior,
    folder: Out,
    text: noted.Text = None,
    text_pair: noted.Pair = None,
    label: noted.Label = None,
    max_length: noted.MaxLength = None,
    base: Base = None,
    revision: Revision = None,
    base_folder: BaseFolder = None,
    delta: Delta = None,
    record: Record = None,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Join a model and its posterior into one folder, to use, to serve and to share."""
    from smidgen.runtime.record import Record
    from smidgen.weights.delta import Delta
    from smidgen.workflows.predictor.packing import join_folders
    from smidgen.workflows.predictor.saving import save_predictor
    from smidgen.workflows.run.ready_folder import refuse_taken_ready

    claim = outputs.open_run(context, outputs.folder(folder, refuse_taken_ready))
    typed = {
        "columns": None if text is None else tuple(split_words([text])),
        "text_pair": text_pair,
        "label": label,
        "max_length": max_length,
    }
    # Where no other base is named, a model of the Hub is its own.
    is_own_base = base is None and not Path(model).expanduser().is_dir()
    predictor = join_folders(
        model,
        posterior,
        typed,
        options=noted.NOTED_OPTIONS,
        revision=revision if is_own_base else None,
    )
    if is_own_base:
        base = model
    save_predictor(
        predictor,
        folder,
        base=base,
        revision=revision,
        base_folder=base_folder,
        delta=None if delta is None else Delta.load(delta),
        record=None if record is None else Record.load(record),
        overwrite=claim.overwrite,
    )
    out.print(f"Ready: {folder}, {predictor!r}", markup=False)
    _describe_rules(predictor, posterior)
    out.print(f"New rows: smidgen predict {folder} --data NEW --out answers.csv")
    write_json(json_file, {"folder": str(folder), "base": base})
    claim.finish()


def _describe_rules(predictor: Predictor, posterior: Path) -> None:
    """Say that there are no rules, and how they get in."""
    if not predictor.rules.by_name():
        out.print(
            f"No rules: there are none in {posterior}, so it answers every row, without sets. Make "
            "them in Python with rules = smidgen.make_rules(posterior, model, rows) from "
            "labelled rows that chose nothing else, write them with "
            f"rules.save({str(posterior)!r}), and pack again.",
            markup=False,
        )
