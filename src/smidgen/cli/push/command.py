"""`smidgen push`: put a folder into a repository on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from smidgen.cli.console import out, write_json
from smidgen.cli.options import text as texts

Folder = Annotated[
    Path,
    Argument(
        help="A ready folder, the folder of a posterior, or the file of a delta or a subset."
    ),
]
Name = Annotated[str, Argument(metavar="USER/NAME", help="The repository on the Hub.")]
Private = Annotated[
    bool | None,
    Option("--private/--public", help="Who sees a new one; else as your account says."),
]
Revision = Annotated[
    str | None, Option("--revision", help="Branch to write to; made if it is missing.")
]
Message = Annotated[str | None, Option("--message", help="What the commit says.")]
Base = Annotated[
    str | None,
    Option("--base", help="Model on the Hub that a posterior or a delta belongs to."),
]
Report = Annotated[
    bool,
    Option(
        "--report", help="Also put the record and the page there, which show test rows."
    ),
]
Overwrite = Annotated[
    bool,
    Option(
        "--overwrite",
        help="Write into a repository that holds other files, in place of those of the same "
        "names.",
    ),
]


def push(
    folder: Folder,
    name: Name,
    private: Private = None,
    revision: Revision = None,
    message: Message = None,
    base: Base = None,
    report: Report = False,
    overwrite: Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Put a ready folder, a posterior or a delta into a repository on the Hub."""
    from smidgen.workflows.predictor.pushing import push_to_hub

    address = push_to_hub(
        folder,
        name,
        private=private,
        revision=revision,
        commit_message=message,
        base=base,
        report=report,
        overwrite=overwrite,
    )
    out.print(f"Pushed to {address}", markup=False, soft_wrap=True)
    out.print(f'Load it: smidgen.load("{name}")', markup=False)
    write_json(json_file, {"name": name, "commit": address})
