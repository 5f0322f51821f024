"""The folder of a fine-tuned model: its files, and the states to resume a run from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from smidgen.errors import ArgumentError, StoreError
from smidgen.integrations.huggingface import refuse_taken_model
from smidgen.posterior.store import refuse_taken_posterior

_STATES = ("chain.safetensors", "tuning.safetensors")


@dataclass(frozen=True)
class TunedFolder:
    """The paths of a fine-tuned model, free or to be replaced; `open_folder` makes it."""

    folder: Path
    overwrite: bool = False
    checkpoint: Path | None = None  # another folder, for the states of a resumable run

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
    def chain_state(self) -> Path | None:
        """The file of the chain's state, if the run is resumable."""
        return self.checkpoint and self.checkpoint / _STATES[0]

    @property
    def tuning_state(self) -> Path | None:
        """The file of the fine-tune's state, if the run is resumable."""
        return self.checkpoint and self.checkpoint / _STATES[1]

    def remove_states(self) -> None:
        """Remove the states of a run that has finished."""
        for state in (self.chain_state, self.tuning_state):
            if state is not None:
                state.unlink(missing_ok=True)


def open_folder(
    folder: str | Path, *, overwrite: bool = False, checkpoint: str | Path | None = None
) -> TunedFolder:
    """Check that nothing would be overwritten, before any work is done."""
    folder = Path(folder)
    states = None if checkpoint is None else Path(checkpoint)
    if states is not None and states.resolve() == folder.resolve():
        raise ArgumentError(
            f"checkpoint must be another folder than the results', got {str(checkpoint)!r} "
            "for both. Choose another, and pass the same one again to resume."
        )
    # What an interrupted run left may be replaced when it is resumed.
    interrupted = states is not None and any((states / n).is_file() for n in _STATES)
    paths = TunedFolder(folder, overwrite, states)
    if interrupted and not paths.record.exists():
        paths = TunedFolder(folder, True, states)
    refuse_taken_model(paths.model, overwrite=paths.overwrite)
    refuse_taken_posterior(paths.posterior, overwrite=paths.overwrite)
    for path in (paths.delta, paths.record):
        if path.exists() and not paths.overwrite:
            raise StoreError(
                f"{path} exists already. Give another folder, or overwrite=True "
                "(--overwrite) to replace it."
            )
    return paths
