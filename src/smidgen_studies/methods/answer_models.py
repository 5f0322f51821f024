"""Language models of a study that choose among answers: a base, and a LoRA adapter of a cell.

An adapter is left as a `Delta` of the adapted base, whose first weights follow from its seed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from smidgen import select
from smidgen.fit.finetune import FinetuneResult
from smidgen.integrations.answers import make_answer_problem
from smidgen.outputs.batches import model_outputs
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.runtime.artifact import read_sealed_json, write_sealed_json
from smidgen.runtime.files import new_folder
from smidgen.runtime.reading import make_from_json
from smidgen.weights.delta import Delta
from smidgen.weights.subset import Subset
from smidgen_studies.data.answers import AnswerData
from smidgen_studies.data.text import mixed_outputs
from smidgen_studies.methods.text_models import find_base

_DELTA, _NOTE = "delta.safetensors", "adapter.json"


@dataclass(frozen=True)
class Adapter:
    """A base model, and the LoRA adapters that are put into it."""

    base: str
    rank: int
    targets: tuple[str, ...]
    seed: int


@dataclass(frozen=True, eq=False)
class AnswerTask:
    """A model as a problem over a data set's answers, and its tokenizer."""

    problem: SettledProblem
    tokenizer: PreTrainedTokenizerBase

    def on(self, model: nn.Module) -> SettledProblem:
        """Pose the same question to another copy of the model."""
        return replace(self.problem, model=model)

    @property
    def adapters(self) -> Subset:
        """The weights of the adapters."""
        return select.named(self.problem.model, ["*lora_A*", "*lora_B*"])


def start_task(adapter: Adapter, about: AnswerData, device: str) -> AnswerTask:
    """Load a base, put fresh adapters into it and pose the question."""
    folder = find_base(adapter.base)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    # The question stands at the end of every row.
    tokenizer.padding_side = "left"
    base = AutoModelForCausalLM.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        # The fused backward pass in bf16 is far slower than the eager one on a processor.
        attn_implementation="eager" if about.mixed else None,
    )
    config = LoraConfig(
        r=adapter.rank, lora_alpha=2 * adapter.rank, target_modules=list(adapter.targets)
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(adapter.seed)
        adapted = get_peft_model(base, config).eval().to(device)
    posed = make_answer_problem(adapted, tokenizer, about.answers)
    forward = mixed_outputs if about.mixed else model_outputs
    problem = Problem(posed.model, forward=forward, mask=posed.mask)
    return AnswerTask(problem.with_likelihood(Categorical(len(about.choices))), tokenizer)


def save_adapter(tuned: FinetuneResult, adapter: Adapter, folder: Path) -> None:
    """Leave a fine-tuned adapter for other cells."""
    assert tuned.delta is not None
    with new_folder(folder, overwrite=True) as work:
        tuned.delta.save(work / _DELTA)
        write_sealed_json(work / _NOTE, {"adapter": asdict(adapter)})


def load_task(folder: Path, about: AnswerData, device: str) -> AnswerTask:
    """Load the model with the adapter that a cell left."""
    note = read_sealed_json(folder / _NOTE, what="adapter", advice="Run its cell again.")
    adapter = make_from_json(Adapter, note["adapter"])
    task = start_task(adapter, about, device)
    Delta.load(folder / _DELTA).apply(task.problem.model)
    return task
