"""Ways to fine-tune a text model under one budget: all of it, some of it, or an adapter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib import import_module, util
from math import exp
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from smidgen import fit, select
from smidgen.curvature.output_layers import first_batch, name_head
from smidgen.errors import ArgumentError, how_to_install
from smidgen.fit.epochs import Epoch
from smidgen.integrations.huggingface import load_with_head
from smidgen.outputs.likelihood import Categorical, Gaussian
from smidgen.outputs.likelihood.gaussian import squares_of_nll
from smidgen.outputs.problem import Problem
from smidgen.prediction import point_outputs
from smidgen.weights.head import Head, find_head
from smidgen.weights.subset import Subset
from smidgen_studies.data.text import SplitLoader, TextSplit, draw
from smidgen_studies.engine.cell import FinishedCell, Job
from smidgen_studies.methods.text_models import find_base
from smidgen_studies.methods.tuning_methods import TuningMethod

# A pass without gradients has room for more rows than a training step.
_ROWS_AT_ONCE = 32
_FLOAT_BYTES = 4
_SCORES: Mapping[str, Callable[[Problem, SplitLoader, int], Mapping[str, Tensor]]] = {
    "random": lambda problem, _, seed: select.scores.random(problem.model, seed),
    "magnitude": lambda problem, *_: select.scores.magnitude(problem.model),
    "gradient": lambda problem, train, _: select.scores.squared_gradient(problem, train),
}


@dataclass(frozen=True, eq=False)
class Start:
    """A pretrained model with a new head, and the rows of a job, in batches."""

    problem: Problem
    head: Head
    data: TextSplit
    tokenizer: PreTrainedTokenizerBase
    loaders: Mapping[str, SplitLoader]
    seed: int

    @property
    def model(self) -> nn.Module:
        """The pretrained model."""
        return self.problem.model

    @property
    def head_weights(self) -> Subset:
        """The weights of the head."""
        return select.named(self.model, list(find_head(self.model, self.head)))

    def shuffled(self) -> SplitLoader:
        """Training batches, in the same orders for every method."""
        return self.data.shuffled(self.tokenizer, self.seed)

    def predict_test(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """One number for each test row, and its target, in the rows' own order."""
        problem = Problem(model, self.problem.likelihood)
        outputs, _ = point_outputs(problem, self.loaders["test"], progress=False)
        values = outputs[:, 0]
        if not self.data.about.numbers:
            values = outputs[:, 1] - values
        ordered = torch.empty(len(values), dtype=torch.float64)
        ordered[self.data.test.by_length()] = values.double().cpu()
        return ordered, torch.tensor(self.data.test.labels, dtype=torch.float64)


def load_start(job: Job, base: str) -> Start:
    """Draw a job's rows and load the model that all methods start from, by its seed."""
    data = draw(job)
    if data.classes > 2:
        raise ArgumentError(
            f"data {data.about.name!r} must have two classes, or numbers = true, got "
            f"{data.classes} classes. Take other data."
        )
    loaded = load_with_head(
        find_base(base), labels=data.classes, seed=job.seed, device=job.device
    )
    likelihood = Gaussian(1) if data.about.numbers else Categorical(2)
    loaders = data.loaders(loaded.tokenizer, _ROWS_AT_ONCE)
    problem = Problem(loaded.model, likelihood, data.forward)
    head = name_head(problem, first_batch(loaders["train"]), loaded.head)
    return Start(problem, head, data, loaded.tokenizer, loaders, job.seed)


def choose_weights(
    method: TuningMethod, start: Start, fraction: float, scales: FinishedCell | None
) -> tuple[Subset, float]:
    """Choose the weights that a method tunes, head included; also its processor seconds."""
    head = start.head_weights
    if method == "head":
        return head, 0.0
    if method == "bitfit":
        return select.named(start.model, "*.bias") | head, 0.0
    if method in _SCORES:
        started = time.process_time()
        scores = _SCORES[method](start.problem, start.loaders["train"], start.seed)
        subset = select.bayestune(start.model, scores, fraction=fraction, head=start.head)
        return subset, time.process_time() - started
    file = None if scales is None else scales.artifact / f"{method}.safetensors"
    if scales is None or file is None or not file.is_file():
        raise ArgumentError(
            f"method {method!r} must need a cell of kind 'scales' that chooses by it, got "
            "none. Add needs."
        )
    if scales.record.results["fraction"] != fraction:
        raise ArgumentError(
            f"fraction must be that of the cell {scales.name!r}, "
            f"{scales.record.results['fraction']}, got {fraction}. Give both the same."
        )
    return Subset.from_file(file), scales.record.results["cpu_seconds"]


@dataclass(frozen=True, eq=False)
class TunedModel:
    """A tuned model, and what making and keeping it takes."""

    model: nn.Module
    history: tuple[Epoch, ...]
    best: Epoch
    trained: int
    delta_bytes: int
    choosing_seconds: float
    tuning_seconds: float

    @property
    def noise(self) -> float:
        """Mean squared error of a regression on validation data, whose noise was 1."""
        return max(squares_of_nll(self.best.nll, 1.0), exp(-20))


def tune(
    method: TuningMethod,
    start: Start,
    *,
    fraction: float,
    rank: int,
    scales: FinishedCell | None,
    work: Path,
    **how: Any,
) -> TunedModel:
    """Fine-tune by a method, with `how` many epochs and at which rate; keep the best epoch."""
    model, subset, choosing = start.model, None, 0.0
    if method == "lora":
        model = add_lora(model, rank, start.seed)
    elif method != "full":
        subset, choosing = choose_weights(method, start, fraction, scales)
    started = time.process_time()
    tuned = fit.finetune(
        replace(start.problem, model=model),
        start.shuffled(),
        subset,
        validation=start.loaders["validation"],
        settings=fit.FinetuneSettings(
            **how,
            head=start.head,
            weight_decay=0.0,
            patience=how["epochs"],
            stop_on="nll",
        ),
        seed=start.seed,
        progress=False,
    )
    seconds = time.process_time() - started
    if subset is None or tuned.delta is None:
        count = sum(p.numel() for p in model.parameters() if p.requires_grad)
        size = count * _FLOAT_BYTES
    else:
        count = subset.size
        size = tuned.delta.save(work / "delta.safetensors").stat().st_size
    return TunedModel(
        tuned.model, tuned.history, tuned.best, count, size, choosing, seconds
    )


def add_lora(model: nn.Module, rank: int, seed: int) -> nn.Module:
    """Copy a model with LoRA layers on queries and values; its head is trainable too."""
    if util.find_spec("peft") is None:
        raise ArgumentError(
            "method 'lora' needs PEFT, which is not there. Install it with "
            f"{how_to_install('hf')}, or take other methods."
        )
    peft = import_module("peft")
    layers = {"r": rank, "lora_alpha": 2 * rank, "target_modules": ["query", "value"]}
    config = peft.LoraConfig(task_type="SEQ_CLS", **layers)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        made: nn.Module = peft.get_peft_model(deepcopy(model), config)
    return made
