"""Causal language models: the label of a token is the target of the output before it.

Of T tokens the first T − 1 outputs have a target, the next token. A target does not count if
it is padding, is labelled −100, or would be predicted from padding alone (the first token
of a text that is padded on the left).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from smidgen.errors import DataError
from smidgen.outputs.batches import batch_mask, batch_targets, model_outputs
from smidgen.outputs.likelihood.base import IGNORED
from smidgen.outputs.problem import Problem
from smidgen.types import Batch


def make_causal_problem(model: nn.Module) -> Problem:
    """Read a language model's batches so that every token is predicted by those before it.

    Pass the problem in place of the model wherever you fit, calibrate or predict: outputs
    and predictions have a row for each of the first T − 1 tokens of a text. Generating text
    is not covered.

    Args:
        model: A model with a row of logits for each token, such as `GPT2LMHeadModel`; it
            is never changed. Batches are mappings with input_ids (B, T), or ids alone.
            Labels must not be shifted yet; without labels the ids themselves are used.

    Returns:
        The problem; its likelihood is inferred from the first batch.
    """
    return Problem(model, forward=_outputs, targets=_next_tokens)


def _outputs(model: nn.Module, batch: Batch) -> Tensor:
    """The outputs that have a next token, (B, T − 1, C)."""
    outputs = model_outputs(model, batch)
    if outputs.dim() != 3 or outputs.shape[1] < 2:
        raise DataError(
            "a language model must have outputs of shape (batch, tokens, vocabulary) for "
            f"two tokens or more, got {tuple(outputs.shape)}. Leave shorter texts out."
        )
    return outputs[:, :-1]


def _next_tokens(batch: Batch) -> Tensor | None:
    """The token that follows each of the first T − 1, (B, T − 1); −100 for none."""
    labels = batch_targets(batch)
    if labels is None:
        labels = batch.get("input_ids") if isinstance(batch, Mapping) else batch
    if not isinstance(labels, Tensor):
        return None
    targets, mask = labels[:, 1:], batch_mask(batch)
    if mask is None:
        return targets
    both = mask[:, 1:] & mask[:, :-1]
    return targets.masked_fill(~both.to(targets.device), IGNORED)
