"""The folder of a fine-tuned model: its files, and the states to resume a run from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from smidgen.errors import ArgumentError
from smidgen.integrations.huggingface import refuse_taken_model
from smidgen.posterior.store import refuse_taken_posterior
from smidgen.runtime.writing.output import Output
from smidgen.runtime.writing.writable import require_writable

_STATES = ("chain.safetensors", "tuning.safetensors", "posterior.safetensors")


@dataclass(frozen=True)
class TunedFolder:
    """The paths of a fine-tuned model, free or to be replaced; `open_folder` makes it."""

    folder: Path
    overwrite: bool = False
    checkpoint: Path | None = None  # another folder, for the states of a resumable run
    option: str = "folder"  # what names the folder, for errors
    keep_states: bool = False  # whoever made the folder removes them

    def __post_init__(self) -> None:
        if self.checkpoint and self.checkpoint.resolve() == self.folder.resolve():
            raise ArgumentError(
                "checkpoint must be another folder than the results', got "
                f"{str(self.checkpoint)!r} for both. Choose another, and pass the same one "
                "again to resume."
            )

    @property
    def delta(self) -> Path:
        """The file of the delta."""
        return self.folder / "delta.safetensors"

    @property
    def model(self) -> Path:
        """The folder of the fine-tuned model."""
        return self.folder / "model"

    @property
    def posterior(self) -> Path:
        """The folder of the posterior."""
        return self.folder / "posterior"

    @property
    def record(self) -> Path:
        """The file of the record. It is written last: where it exists, a run has finished."""
        return self.folder / "record.json"

    @property
    def page(self) -> Path:
        """The file of the page, which `smidgen bayestune` writes."""
        return self.folder / "report.html"

    @property
    def chain_state(self) -> Path | None:
        """The file of the chain's state, if the run is resumable."""
        return self.checkpoint and self.checkpoint / _STATES[0]

    @property
    def tuning_state(self) -> Path | None:
        """The file of the fine-tune's state, if the run is resumable."""
        return self.checkpoint and self.checkpoint / _STATES[1]

    @property
    def posterior_state(self) -> Path | None:
        """The file of the state of a posterior that is trained."""
        return self.checkpoint and self.checkpoint / _STATES[2]

    @property
    def states(self) -> tuple[Path, ...]:
        """The files of all states."""
        return tuple(self.checkpoint / name for name in _STATES) if self.checkpoint else ()

    def list_outputs(self, *, posterior: bool = True, page: bool = False) -> list[Output]:
        """List what a run writes, the folder first; `posterior` says whether it fits one."""
        files = [self.delta, self.record, *([self.page] if page else [])]
        return [
            Output(self.option, self.folder, _refuse_nothing, folder=True),
            Output(self.option, self.model, refuse_taken_model, folder=True),
            Output(
                self.option,
                self.posterior,
                refuse_taken_posterior,
                folder=True,
                expected=posterior,
            ),
            *(Output(self.option, path) for path in files),
        ]

    def remove_states(self) -> None:
        """Remove the states of a run that has finished."""
        for state in self.states:
            state.unlink(missing_ok=True)


def open_folder(
    folder: str | Path, *, overwrite: bool = False, checkpoint: str | Path | None = None
) -> TunedFolder:
    """Check that all can be written and nothing would be overwritten, before any work."""
    states = None if checkpoint is None else Path(checkpoint)
    paths = TunedFolder(Path(folder), overwrite, states)
    # What an interrupted run left may be replaced when it is resumed.
    interrupted = any(path.is_file() for path in paths.states)
    if interrupted and not paths.record.exists():
        paths = replace(paths, overwrite=True)
    if states is not None:
        require_writable(states, "checkpoint", folder=True)
    for output in paths.list_outputs():
        require_writable(output.path, output.option, folder=output.folder)
        output.refuse(output.path, overwrite=paths.overwrite)
    return paths


def _refuse_nothing(path: Path, *, overwrite: bool) -> None:
    """Take any folder: what it holds is checked one by one."""
