"""`AnswerModel`: a causal language model with an output for every answer.

Its head holds copies of the answers' rows of the output matrix, so it is small, and free of the
embeddings where the model ties the two: these stay fixed, and only the use as output counts.

Answers of one token each have its logit: what all share, the log of the normaliser, cancels
among them. Otherwise the output of an answer is Σ log p(token | prompt, tokens before), whose
normalisers run over the whole vocabulary, with rows other than the answers' fixed. The tokens of
all answers follow the prompt in one pass, as branches that do not see each other (by attention
mask and positions), so the prompt is read once: T + Σ (tokens − 1) positions, not T for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from smidgen.errors import DataError
from smidgen.integrations.answers.causal_parts import LogitScaling, read_hidden
from smidgen.integrations.answers.choice_tokens import ChoiceTokens

# What configs call the most tokens that a layer looks back.
_WINDOWS = ("sliding_window", "window_size", "attention_window")


@dataclass(frozen=True)
class _Branches:
    """Where the tokens of all choices stand behind the prompt, and what predicts each."""

    appended: tuple[int, ...]  # (E,) all tokens of the choices but the last of each
    depths: tuple[int, ...]  # (E,) their places in their choice
    owners: tuple[int, ...]  # (E,) and which choice that is
    places: tuple[
        int, ...
    ]  # (ΣL,) what predicts a token: 0 the prompt, e + 1 an appended one
    targets: tuple[int, ...]  # (ΣL,) the predicted tokens
    choices: tuple[int, ...]  # (ΣL,) and their choices

    @classmethod
    def of(cls, tokens: ChoiceTokens) -> _Branches:
        inner = [(t, d, k) for k, own in enumerate(tokens) for d, t in enumerate(own[:-1])]
        all_tokens = [(t, d, k) for k, own in enumerate(tokens) for d, t in enumerate(own)]
        place = {(d + 1, k): number for number, (_, d, k) in enumerate(inner, 1)}
        return cls(
            tuple(t for t, _, _ in inner),
            tuple(d for _, d, _ in inner),
            tuple(k for _, _, k in inner),
            tuple(place.get((d, k), 0) for _, d, k in all_tokens),
            tuple(t for t, _, _ in all_tokens),
            tuple(k for _, _, k in all_tokens),
        )


class AnswerModel(nn.Module):
    """The backbone of a causal language model, shared, and a head for the answers alone.

    Args:
        backbone: From input_ids to hidden states, as `LlamaModel`; shared, never changed.
        output: The model's output layer; rows of it are copied into the head, in fp32 at
            least.
        tokens: The tokens of every choice.
        scaling: What the model does to its logits.
    """

    smidgen_output_layers = ("head",)

    def __init__(
        self,
        backbone: nn.Module,
        output: nn.Linear,
        tokens: ChoiceTokens,
        scaling: LogitScaling,
    ) -> None:
        super().__init__()
        self.tokens, self.scaling = tokens, scaling
        self.backbone = backbone
        self.branches = None if max(map(len, tokens)) == 1 else _Branches.of(tokens)
        if self.branches is not None:
            # A table, which no selector takes for a layer.
            shape = output.weight.shape
            self.vocabulary = nn.utils.skip_init(nn.Embedding, *shape, device="meta")
            self.vocabulary.weight = output.weight
            self.vocabulary_bias = output.bias
        self.rows = tuple(dict.fromkeys(token for own in tokens for token in own))
        weight = output.weight
        # Without numbers of its own, which would be drawn from the global generator.
        self.head = nn.utils.skip_init(
            nn.Linear,
            weight.shape[1],
            len(self.rows),
            bias=output.bias is not None,
            device=weight.device,
            dtype=torch.promote_types(weight.dtype, torch.float32),
        )
        self._copy_rows(output)
        # Not by train(): the backbone's mode is the caller's.
        self.training = self.head.training = backbone.training

    @torch.no_grad()
    def _copy_rows(self, output: nn.Linear) -> None:
        rows = list(self.rows)
        for own, whole in zip(self.head.parameters(), output.parameters(), strict=True):
            own.copy_(whole[rows])
            own.requires_grad_(whole.requires_grad)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Compute an output for every choice, (B, C), after the last token of each prompt."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        places = torch.arange(mask.shape[1], device=mask.device)
        last = (mask * places).argmax(-1, keepdim=True)  # (B, 1)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)  # (B, T)
        if self.branches is None:
            hidden = read_hidden(self.backbone, input_ids, mask, positions)
            features = _take(hidden, last)[:, 0].to(self.head.weight)  # (B, d)
            return self.scaling(self.head(features))
        return self._sum_tokens(self.branches, input_ids, mask, positions, last)

    def _sum_tokens(
        self,
        branches: _Branches,
        input_ids: Tensor,
        mask: Tensor,
        positions: Tensor,
        last: Tensor,
    ) -> Tensor:
        """Sum the log-probabilities of every choice's tokens, (B, C)."""

        def as_tensor(values: tuple[int, ...]) -> Tensor:
            return torch.tensor(values, device=input_ids.device)

        batch, length = input_ids.shape
        count = len(branches.appended)
        ids = torch.cat([input_ids, as_tensor(branches.appended).expand(batch, -1)], 1)
        begins = positions.gather(1, last) + 1
        positions = torch.cat([positions, begins + as_tensor(branches.depths)], 1)
        allowed = _allow(mask, as_tensor(branches.owners))  # (B, T + E, T + E)
        self._refuse_beyond_window(length + count)
        dtype = next(p.dtype for p in self.backbone.parameters() if p.is_floating_point())
        added = torch.zeros(allowed.shape, dtype=dtype, device=mask.device)
        added = added.masked_fill(~allowed, torch.finfo(dtype).min)
        hidden = read_hidden(self.backbone, ids, added[:, None], positions)
        ends = torch.arange(length, length + count, device=last.device).expand(batch, -1)
        features = _take(hidden, torch.cat([last, ends], 1))  # (B, 1 + E, d)
        logits = self._all_logits(features).log_softmax(-1)
        picked = logits[:, as_tensor(branches.places), as_tensor(branches.targets)]
        sums = picked.new_zeros(batch, len(self.tokens))
        return sums.index_add(1, as_tensor(branches.choices), picked)

    def _all_logits(self, features: Tensor) -> Tensor:
        """Logits of the vocabulary, with the head's in the place of the answers' rows."""
        # Detached: the fixed rows are no layer of this model, and take no gradient.
        table = self.vocabulary.weight
        bias = None if self.vocabulary_bias is None else self.vocabulary_bias.detach()
        fixed = linear(features.to(table), table.detach(), bias)
        own = self.head(features.to(self.head.weight))
        rows = torch.tensor(self.rows, device=own.device)
        return self.scaling(fixed.to(own).index_copy(-1, rows, own))

    def _refuse_beyond_window(self, length: int) -> None:
        # Windows go by index, and so count padding and the branches of other answers.
        named = (getattr(self.backbone.config, name, None) for name in _WINDOWS)
        window = min((size for size in named if isinstance(size, int)), default=length)
        if length > window:
            raise DataError(
                f"prompts and choices must be at most {window:,} tokens for this model where "
                f"a choice has several, got {length:,}. Lower max_length."
            )


def _take(hidden: Tensor, places: Tensor) -> Tensor:
    """Take the hidden states at places (B, P) of each row: (B, P, d)."""
    places = places.to(hidden.device)
    return hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))


def _allow(mask: Tensor, owners: Tensor) -> Tensor:
    """Which positions (B, T + E, T + E) see which: the prompt, and a branch its own beginning."""
    batch, length = mask.shape
    size = length + len(owners)
    order = torch.arange(size, device=mask.device)
    causal = order[:, None] >= order
    # The prompt is everybody's; a branch is seen by itself alone.
    whose = torch.cat([owners.new_full((length,), -1), owners])
    shared = (whose[None] == -1) | (whose[:, None] == whose[None])
    real = torch.cat([mask.bool(), mask.new_ones(batch, len(owners)).bool()], 1)
    itself = torch.eye(size, dtype=torch.bool, device=mask.device)
    return (causal & shared & real[:, None]) | itself
