"""A Hugging Face classifier without weights: shapes on the meta device, from a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from smidgen.errors import ArgumentError, reason
from smidgen.integrations.model_folder import CONFIG, UNLOADABLE, WEIGHTS, check_model_file


def load_skeleton(path: str | Path, *, labels: int | None = None) -> PreTrainedModel:
    """Build a sequence classifier on the meta device from a model folder or its config.json."""
    file = Path(path).expanduser()
    file = file / CONFIG if file.is_dir() else file
    changes: dict[str, Any] = {} if labels is None else {"num_labels": labels}
    if file.is_file():
        check_model_file(file)
    try:
        config = AutoConfig.from_pretrained(
            file, trust_remote_code=False, local_files_only=True, **changes
        )
        if config.pad_token_id is None:
            # A decoder needs one to find where a text ends; any will do here.
            config.pad_token_id = 0
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(
                config, trust_remote_code=False
            )
    except UNLOADABLE as error:
        raise ArgumentError(
            f"model must be a folder with a {CONFIG} of a classifier, that file, or a hub "
            f"id, got {str(path)!r} ({reason(error)[:160]}). Check the path."
        ) from error
    return model.eval()


def has_weights(path: str | Path) -> bool:
    """Tell whether a folder holds weights that can be loaded."""
    return any((Path(path).expanduser() / name).is_file() for name in WEIGHTS)


def has_head(model: PreTrainedModel) -> bool:
    """Tell whether a model's config says it was saved as a classifier."""
    return any("Classification" in name for name in model.config.architectures or [])
