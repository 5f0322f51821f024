"""`make_answer_problem`: pose the choice among answers to a causal language model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from smidgen.errors import ArgumentError, StructureError
from smidgen.integrations.answers.answer_model import AnswerModel
from smidgen.integrations.answers.causal_parts import split_causal, takes_positions
from smidgen.integrations.answers.choice_tokens import encode_prompts, find_choice_tokens
from smidgen.integrations.answers.template import Question
from smidgen.outputs.batches import batch_mask
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import Problem
from smidgen.runtime.guard import preserve_random_state, set_modes
from smidgen.runtime.shadow import shadow_model
from smidgen.types import Batch

# How far outputs may be from the model's own, relatively: an output layer that is not the last
# step is further off, and the rounding of a type nearer.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
_COARSE = 5e-2


def make_answer_problem(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, answers: Question
) -> Problem:
    """Pose the choice among answers: one output for each, after the prompt.

    Pass the problem in place of the model wherever you fit, calibrate or predict, with batches
    of `make_answer_loader`, and its `.model` to selectors that read no batches. That is an
    `AnswerModel`, which shares the weights of this one but for the answers' rows of the output
    layer: these are copied into its `head`.
    Choices of several tokens cost a pass over the prompt and all their tokens, and the logits
    of the whole vocabulary at each.

    Args:
        model: A causal language model of transformers, or of peft with adapters in it; it is
            never changed.
        tokenizer: Its tokenizer.
        answers: The template and the choices.

    Returns:
        The problem, for `Categorical` over the choices.

    Raises:
        ArgumentError: If the model has no plain output layer, or choices cannot be told apart
            by their tokens.
        StructureError: If the model computes its logits in a way that is not known here.
    """
    if isinstance(model, AnswerModel):
        raise ArgumentError(
            "model must be the language model, got one that asks already, as fine-tuning its "
            "problem returns it. Go on with dataclasses.replace(problem, model=tuned.model)."
        )
    tokens = find_choice_tokens(tokenizer, answers)
    parts = split_causal(model)
    asked = AnswerModel(parts.backbone, parts.output, tokens, parts.scaling)
    if not parts.output.weight.is_meta:
        (prompt,) = answers.fill({column: ["a"] for column in answers.columns}).texts
        (ids,) = encode_prompts(tokenizer, answers, [prompt])
        _require_same(parts.causal, asked, ids)
    likelihood = Categorical(len(answers.choices))
    extra = 0 if asked.branches is None else len(asked.branches.appended)
    return Problem(asked, likelihood, mask=_Mask(extra) if extra else batch_mask)


@dataclass(frozen=True)
class _Mask:
    """Finds which positions are not padding, with those that the model appends."""

    extra: int

    def __call__(self, batch: Batch) -> Tensor | None:
        mask = batch_mask(batch)
        if mask is None:
            return None
        return torch.cat([mask, mask.new_ones(len(mask), self.extra)], 1)


@torch.no_grad()
def _require_same(causal: nn.Module, asked: AnswerModel, ids: list[int]) -> None:
    """Refuse a model whose own outputs after a short prompt are others."""
    device = asked.head.weight.device
    with preserve_random_state(causal):
        shadows = [shadow_model(each) for each in (causal, asked)]
        for shadow in shadows:
            set_modes(shadow)
        theirs = _ask_plainly(shadows[0], asked, ids, device)
        prompt = torch.tensor([ids], device=device)
        try:
            ours = shadows[1](prompt, torch.ones_like(prompt))[0].to(theirs)
        except Exception as error:
            raise _other_way(causal, asked) from error
    if asked.branches is not None and not takes_positions(asked.backbone):
        # By index, the branches of other answers would count as tokens before.
        raise _other_way(causal, asked)
    dtype = next(p.dtype for p in causal.parameters() if p.is_floating_point())
    allowed = _TOLERANCE.get(dtype, _COARSE)
    if not torch.allclose(
        ours, theirs, rtol=allowed, atol=allowed * float(theirs.abs().max())
    ):
        raise _other_way(causal, asked)


def _other_way(causal: nn.Module, asked: AnswerModel) -> StructureError:
    what = "its logits" if asked.branches is None else "answers of several tokens"
    return StructureError(
        f"model must compute logits from its output layer, as Llama or GPT-2 do, got "
        f"{type(causal).__name__}, which computes {what} in another way. Use another model, or "
        "answers of one token each."
    )


def _ask_plainly(
    causal: nn.Module, asked: AnswerModel, ids: list[int], device: torch.device
) -> Tensor:
    """Ask the model itself, without padding, for one choice after the other: (C,)."""
    if asked.branches is None:
        logits = causal(torch.tensor([ids], device=device), use_cache=False).logits[0, -1]
        return torch.stack([logits[own[0]] for own in asked.tokens]).double()
    sums = []
    for own in asked.tokens:
        whole = torch.tensor([[*ids, *own]], device=device)
        logits = causal(whole, use_cache=False).logits[0].double().log_softmax(-1)
        places = range(len(ids) - 1, len(ids) + len(own) - 1)
        sums.append(
            torch.stack([logits[p, t] for p, t in zip(places, own, strict=True)]).sum()
        )
    return torch.stack(sums)
