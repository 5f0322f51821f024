"""Causal language models: the label of a token is the target of the output before it.

Of T tokens the first T − 1 outputs have a target, the next token. No target is counted that
is padding, that is labelled −100, or that would be predicted from padding alone (the first
token of a text that is padded on the left).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from smidgen.errors import DataError
from smidgen.outputs.problem import Problem, batch_mask, batch_targets, model_outputs
from smidgen.outputs.targets import IGNORED
from smidgen.types import Batch


def causal_problem(model: nn.Module) -> Problem:
    """Read a language model's batches so that every token is predicted by those before it.

    Hand the problem, in place of the model, to everything that fits, tunes or predicts:
    outputs and predictions have a row for each of the first T − 1 tokens of a text.
    Generating text is not covered.

    Args:
        model: A model with a row of logits for each token, such as `GPT2LMHeadModel`; it
            is left as it was. Batches are mappings with input_ids (B, T), or ids alone;
            labels, which are not yet shifted, are the ids themselves where there are none.

    Returns:
        The problem; its likelihood is inferred from the first batch.
    """
    return Problem(model, forward=_outputs, targets=_next_tokens)


def _outputs(model: nn.Module, batch: Batch) -> Tensor:
    """The outputs that have a next token, (B, T − 1, C)."""
    found = model_outputs(model, batch)
    if found.dim() != 3 or found.shape[1] < 2:
        raise DataError(
            "a language model must have outputs of shape (batch, tokens, vocabulary) for "
            f"two tokens or more, got {tuple(found.shape)}. Leave shorter texts out."
        )
    return found[:, :-1]


def _next_tokens(batch: Batch) -> Tensor | None:
    """The token that follows each of the first T − 1, (B, T − 1); −100 for none."""
    labels = batch_targets(batch)
    if labels is None:
        labels = batch.get("input_ids") if isinstance(batch, Mapping) else batch
    if not isinstance(labels, Tensor):
        return None
    found, mask = labels[:, 1:], batch_mask(batch)
    if mask is None:
        return found
    both = mask[:, 1:] & mask[:, :-1]
    return found.masked_fill(~both.to(found.device), IGNORED)
