"""Next-token uncertainty over documents, with the output layer alone stochastic.

Every predicted token is an example of its own: the head is given one hidden state for each, so
the derivative of its logit c is that state in row c, and no backward pass is needed at all.
Layers below the head would need one for each token and class; they are for
`make_causal_problem`, which says so.

Where the output layer is tied to the embeddings, the head has the same numbers under a name of
its own. Only their use as outputs is stochastic; the embeddings stay fixed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.answers.causal_parts import CausalParts, read_hidden, split_causal
from smidgen.outputs.batches import batch_mask, batch_targets
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.likelihood.base import IGNORED
from smidgen.outputs.problem import Problem
from smidgen.types import Batch


class NextTokenModel(nn.Module):
    """The backbone of a causal language model, and its output layer with weights untied.

    Both are shared with the model, whose numbers are not copied.
    """

    smidgen_output_layers = ("head",)

    def __init__(self, parts: CausalParts) -> None:
        super().__init__()
        self.scaling = parts.scaling
        self.backbone = parts.backbone
        count, size = parts.output.weight.shape
        self.head = nn.utils.skip_init(
            nn.Linear, size, count, bias=parts.output.bias is not None, device="meta"
        )
        for name, value in parts.output.named_parameters():
            # Other parameters in the same memory, so that nothing else is tied to them.
            setattr(self.head, name, nn.Parameter(value.detach(), requires_grad=False))
        self.training = self.head.training = parts.backbone.training

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None, wanted: Tensor
    ) -> Tensor:
        """Compute the logits (R, V) after the R wanted tokens of (B, T)."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        hidden = read_hidden(self.backbone, input_ids, mask, positions)
        features = hidden[wanted.to(hidden.device)].to(self.head.weight.device)
        return self.scaling(self.head(features))


def make_next_token_problem(model: nn.Module) -> Problem:
    """Predict every token of documents, with a row of outputs for each.

    For `smidgen.fit.isotropic(problem, smidgen.select.last_layer(problem))`: uncertainty of the
    output layer costs no backward pass. Rows are the tokens that have one before them and a
    label, which is the token itself unless the batch has labels; −100 leaves it out.

    Args:
        model: A causal language model of transformers, or of peft with adapters in it; it is
            never changed. Its batches are mappings with input_ids (B, T), or ids alone.

    Returns:
        The problem, for `Categorical` over the vocabulary.

    Raises:
        ArgumentError: If the model has no plain output layer.
    """  # noqa: DOC502
    parts = split_causal(model)
    likelihood = Categorical(len(parts.output.weight))
    return Problem(NextTokenModel(parts), likelihood, forward=_outputs, targets=_targets)


def make_document_batches(
    text: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    window: int = 256,
    overlap: int = 64,
) -> list[dict[str, Tensor]]:
    """Cut a document into windows, a batch each, that predict every token but the first once.

    Args:
        text: The document.
        tokenizer: The model's.
        window: How many tokens a window has.
        overlap: How many of them it shares with the window before, which has predicted
            them; here they are context.

    Returns:
        Batches of input_ids, attention_mask and labels (1, T).

    Raises:
        ArgumentError: If the window is not longer than the overlap.
        DataError: If the document has fewer than two tokens.
    """
    if not 1 <= overlap < window:
        raise ArgumentError(
            f"overlap must be from 1 to {window - 1}, less than the window, got {overlap}."
        )
    ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"])
    if len(ids) < 2:
        raise DataError(f"text must have two tokens or more, got {len(ids)}. Give more.")
    batches = []
    for start in range(0, max(1, len(ids) - overlap), window - overlap):
        own = ids[None, start : start + window]
        labels = own.clone()
        if start:
            labels[:, :overlap] = IGNORED
        mask = torch.ones_like(own)
        batches.append({"input_ids": own, "attention_mask": mask, "labels": labels})
    return batches


def _outputs(model: nn.Module, batch: Batch) -> Tensor:
    """Logits (R, V) of the tokens that have a target."""
    ids, labels = _read(batch)
    wanted = labels != IGNORED
    if not wanted.any(-1).all():
        # Else rows might be taken for texts where there are as many.
        raise DataError(
            "every text must have a token to predict, got one without. Leave it out of the "
            "batch."
        )
    last = wanted.new_zeros(len(wanted), 1)
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    outputs: Tensor = model(ids, mask, torch.cat([wanted, last], 1))
    return outputs


def _targets(batch: Batch) -> Tensor:
    """The tokens that follow, (R,)."""
    _, labels = _read(batch)
    return labels[labels != IGNORED]


def _read(batch: Batch) -> tuple[Tensor, Tensor]:
    """The ids (B, T), and the label of each token but the first, (B, T − 1); −100 for none."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else batch
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise DataError(
            "a batch must have input_ids of shape (texts, tokens), got "
            f"{tuple(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__}."
        )
    labels, mask = batch_targets(batch), batch_mask(batch)
    targets = (ids if labels is None else labels)[:, 1:]
    if mask is None:
        return ids, targets
    both = mask[:, 1:] & mask[:, :-1]
    return ids, targets.masked_fill(~both.to(targets.device), IGNORED)
