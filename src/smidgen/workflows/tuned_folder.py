"""Where a tuned model goes: its files, and the states an interrupted run goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from smidgen.errors import ArgumentError, StoreError
from smidgen.integrations.huggingface import refuse_taken_model
from smidgen.posterior.store import refuse_taken_posterior

_STATES = ("chain.safetensors", "tuning.safetensors")


@dataclass(frozen=True)
class TunedFolder:
    """The places of a tuned model, free or to be replaced; `open_folder` makes it.

    Args:
        folder: Where all goes.
        overwrite: Whether what is there may be replaced.
        checkpoint: Another folder, of the states, if there shall be any.
    """

    folder: Path
    overwrite: bool = False
    checkpoint: Path | None = None

    @property
    def delta(self) -> Path:
        """The file of the differences."""
        return self.folder / "delta.safetensors"

    @property
    def model(self) -> Path:
        """The folder of the tuned model."""
        return self.folder / "model"

    @property
    def posterior(self) -> Path:
        """The folder of the posterior."""
        return self.folder / "posterior"

    @property
    def record(self) -> Path:
        """The file of the record. It is written last: where it is, a run has ended."""
        return self.folder / "record.json"

    @property
    def chain_state(self) -> Path | None:
        """Where the chain's state goes, if anywhere."""
        return self.checkpoint and self.checkpoint / _STATES[0]

    @property
    def tuning_state(self) -> Path | None:
        """Where the state of tuning goes, if anywhere."""
        return self.checkpoint and self.checkpoint / _STATES[1]

    def forget(self) -> None:
        """Remove the states: all is done."""
        for state in (self.chain_state, self.tuning_state):
            if state is not None:
                state.unlink(missing_ok=True)


def open_folder(
    folder: str | Path, *, overwrite: bool = False, checkpoint: str | Path | None = None
) -> TunedFolder:
    """Refuse to write over anything, before any work is done.

    Args:
        folder: Where all shall go.
        overwrite: Replace what an earlier run left.
        checkpoint: A folder to go on from after an interruption; what an interrupted run
            of it left in `folder` may be replaced.

    Returns:
        The places.

    Raises:
        ArgumentError: If both folders are one.
        StoreError: If something is there and may not be replaced.
    """
    folder = Path(folder)
    states = None if checkpoint is None else Path(checkpoint)
    if states is not None and states.resolve() == folder.resolve():
        raise ArgumentError(
            f"checkpoint must be a folder of its own, got {str(checkpoint)!r}, where the "
            "tuned model goes. Give another, and the same one again to go on."
        )
    left = states is not None and any((states / name).is_file() for name in _STATES)
    found = TunedFolder(folder, overwrite, states)
    if left and not found.record.exists():
        found = TunedFolder(folder, True, states)
    refuse_taken_model(found.model, overwrite=found.overwrite)
    refuse_taken_posterior(found.posterior, overwrite=found.overwrite)
    for path in (found.delta, found.record):
        if path.exists() and not found.overwrite:
            raise StoreError(
                f"{path} exists already. Give another folder, or overwrite=True "
                "(--overwrite) to replace it."
            )
    return found
