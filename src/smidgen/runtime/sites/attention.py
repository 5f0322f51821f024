"""`nn.MultiheadAttention` through its sites: one for the inputs' matrices, one for the output.

The queries', keys' and values' matrices lie one below the other in `in_proj_weight`, three
parts of one site. Where keys or values have another width they are three parameters, and three
sites; the bias that those share is added here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad, scaled_dot_product_attention

from smidgen.runtime.sites.site import Rewrite, Site, has_own_forward

SEPARATE = ("q_proj", "k_proj", "v_proj")
"""The sites of matrices that are parameters of their own."""


def is_plain_attention(module: nn.Module) -> bool:
    """Whether a module is torch's attention, run as torch runs it."""
    if not isinstance(module, nn.MultiheadAttention):
        return False
    outward = module._modules.get("out_proj")
    if has_own_forward(module, nn.MultiheadAttention) or not isinstance(outward, nn.Linear):
        return False
    names = ("in_proj_weight",) if module._qkv_same_embed_dim else _separate_weights()
    return (
        type(outward).forward is nn.Linear.forward
        and outward._parameters.get("weight") is not None
        and all(module._parameters.get(name) is not None for name in names)
    )


def _separate_weights() -> tuple[str, ...]:
    return tuple(f"{name}_weight" for name in SEPARATE)


def _open(module: nn.Module) -> dict[str, Site]:
    assert isinstance(module, nn.MultiheadAttention)
    sites = {"out_proj": Site(module.out_proj, "weight", "bias")}
    if module._qkv_same_embed_dim:
        sites["in_proj"] = Site(module, "in_proj_weight", "in_proj_bias", parts=3)
    else:
        sites |= {name: Site(module, f"{name}_weight") for name in SEPARATE}
    return sites


def _attend(
    module: nn.MultiheadAttention,
    sites: dict[str, Site],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend as `nn.MultiheadAttention.forward` does; `is_causal` only hints at the mask."""
    single, swapped = query.dim() == 2, query.dim() == 3 and not module.batch_first
    queries, keys, values = _project(module, sites, (query, key, value), single, swapped)
    if module.bias_k is not None and module.bias_v is not None:
        ones = keys.new_ones(len(keys), 1, 1)
        keys = torch.cat([keys, ones * module.bias_k], 1)
        values = torch.cat([values, ones * module.bias_v], 1)
    # (B, T, d) to (B, heads, T, d / heads)
    queries, keys, values = (
        x.unflatten(-1, (module.num_heads, module.head_dim)).transpose(1, 2)
        for x in (queries, keys, values)
    )
    if module.add_zero_attn:
        keys, values = pad(keys, (0, 0, 0, 1)), pad(values, (0, 0, 0, 1))
    if single and key_padding_mask is not None:
        key_padding_mask = key_padding_mask[None]
    mask = _join_masks(queries, keys.shape[2], attn_mask, key_padding_mask)
    rate = module.dropout if module.training else 0.0
    weights = None
    if need_weights:
        scores = queries * module.head_dim**-0.5 @ keys.mT
        weights = dropout((scores if mask is None else scores + mask).softmax(-1), rate)
        made = weights @ values
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        made = scaled_dot_product_attention(queries, keys, values, mask, rate)
    outputs = sites["out_proj"](made.transpose(1, 2).flatten(2))
    if single:
        return outputs[0], None if weights is None else weights[0]
    return outputs.transpose(0, 1) if swapped else outputs, weights


def _project(
    module: nn.MultiheadAttention,
    sites: dict[str, Site],
    inputs: tuple[Tensor, Tensor, Tensor],
    single: bool,
    swapped: bool,
) -> list[Tensor]:
    """Queries, keys and values, (B, T, d), of inputs whose examples may come second, or be one."""
    same = inputs[0] is inputs[1] is inputs[2]
    moved = [x[None] if single else x.transpose(0, 1) if swapped else x for x in inputs]
    if not module._qkv_same_embed_dim:
        made = [sites[name](x) for name, x in zip(SEPARATE, moved, strict=True)]
        shared: Tensor | None = module.in_proj_bias
        if shared is None:
            return made
        return [x + bias for x, bias in zip(made, shared.chunk(3), strict=True)]
    if same:
        return list(sites["in_proj"](moved[0]).chunk(3, -1))
    return [sites["in_proj"](x, part=part) for part, x in enumerate(moved)]


def _join_masks(
    queries: Tensor, width: int, attention: Tensor | None, padding: Tensor | None
) -> Tensor | None:
    """Add up masks (T, S) or (B·heads, T, S), and (B, S): what is added to scores, or None."""
    joined = None
    if attention is not None:
        if attention.dim() == 3:
            attention = attention.unflatten(0, (-1, queries.shape[1]))
        joined = _as_scores(attention, width, queries)
    if padding is not None:
        hidden = _as_scores(padding[:, None, None], width, queries)
        joined = hidden if joined is None else joined + hidden
    return joined


def _as_scores(mask: Tensor, width: int, like: Tensor) -> Tensor:
    """Write a mask as scores, zero for positions that were put behind those it knows."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))
    return pad(mask.to(like.dtype), (0, width - mask.shape[-1]))


ATTENTION_REWRITE = Rewrite(is_plain_attention, _open, _attend)
"""torch's attention."""
