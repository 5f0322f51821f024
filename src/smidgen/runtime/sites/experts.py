"""transformers' fused experts through their sites: another part of the rows at each position.

All experts' matrices are one parameter (experts, out, in), or transposed. Classes that take part
in transformers' interface of experts (`use_experts_implementation`) say of themselves how they
compute, which is what several functions of transformers, and `_run` here, rely on.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from smidgen.runtime.sites.site import Rewrite, Site

EXPERTS_MARK = "_apply_gate"
"""What every class of fused experts has."""
_SAID = frozenset(("has_gate", "has_bias", "is_transposed", "_is_expert_parallel"))


class _ExpertsSite(Site):
    """W x + b with one expert's part of a parameter at each position."""

    def forward(self, x: Tensor, *, part: Tensor) -> Tensor:  # type: ignore[override]
        """Multiply each position (P · k, m), k of a token, with the matrix of its expert (P, k)."""
        weight, bias = map(self.read, self.names)
        assert weight is not None
        if vars(self.owner())["is_transposed"]:
            weight = weight.mT
        if isinstance(x, FakeTensor):
            # A rehearsal has no numbers to tell experts apart; sizes are those of any.
            return nn.functional.linear(x, weight[0], None if bias is None else bias[0])
        part = part.reshape(-1)
        pieces, places = [], []
        for expert in part.unique().tolist():
            where = (part == expert).nonzero().flatten()
            own = None if bias is None else bias[expert]
            pieces.append(nn.functional.linear(x[where], weight[expert], own))
            places.append(where)
        return torch.cat(pieces)[torch.cat(places).argsort()]


def name_experts(module: nn.Module) -> dict[str, tuple[str, str | None]]:
    """Names of experts' weights and biases by site; none if they compute in another way."""
    said = vars(module)
    if not hasattr(type(module), EXPERTS_MARK) or not said.keys() >= _SAID:
        return {}
    own = vars(module).get("forward")
    if said["_is_expert_parallel"] or getattr(own, "plain", own) is not None:
        return {}
    sites = ("gate_up_proj" if said["has_gate"] else "up_proj", "down_proj")
    names = {n: (n, f"{n}_bias" if said["has_bias"] else None) for n in sites}
    known = {name for pair in names.values() for name in pair if name is not None}
    parameters = {name for name, value in module._parameters.items() if value is not None}
    return names if known <= parameters else {}


def _open(module: nn.Module) -> dict[str, Site]:
    return {n: _ExpertsSite(module, *names) for n, names in name_experts(module).items()}


def _run(
    module: nn.Module,
    sites: dict[str, Site],
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """Send each token (P, d) through its experts (P, k), and add up what they make of it."""
    count = top_k_index.shape[-1]
    upward, downward = sites.values()
    x = upward(hidden_states.repeat_interleave(count, 0), part=top_k_index)
    x = module._apply_gate(x) if module.has_gate else module.act_fn(x)  # type: ignore[operator]
    x = downward(x, part=top_k_index)
    if getattr(module, "has_post_expert_norm", False):
        x = module.post_expert_norm(x)  # type: ignore[operator]
    weighed = x * top_k_weights.reshape(-1, 1)
    return weighed.unflatten(0, (-1, count)).sum(1).to(hidden_states.dtype)


EXPERTS_REWRITE = Rewrite(lambda module: bool(name_experts(module)), _open, _run)
"""Fused experts of transformers."""
