"""Layers inside PEFT's adapters: which of them run, and as what.

An adapter layer holds its base layer, the factors of every adapter that was added, and says
which of them are active, disabled or merged. Plain LoRA calls its factors A and B as layers.
DoRA also divides by a norm of W + BA, which it leaves out of its gradient, so that the outputs'
true derivative is not the one that autograd finds: none of its layers is treated.
"""

from __future__ import annotations

from typing import Any

from torch import nn

_REPLACED = "a copy in peft's modules_to_save stands in its place"
CALLS_BASE = ("lora", "ia3", "adalora", "loha", "lokr", "vera", "oft")
"""Adapters that call their base layer, or leave it be, and use its weights in no other way."""


class NeverRuns(str):
    """Why a layer is left out that makes no outputs, since it never runs."""


def find_adapter_objection(path: str, modules: dict[str, nn.Module]) -> str | None:
    """Say why a layer inside an adapter cannot be treated, or None if it can, or is in none."""
    parts = path.split(".")
    for depth in range(len(parts)):
        module, inside = modules[".".join(parts[:depth])], parts[depth:]
        kinds = {kind.__name__ for kind in type(module).__mro__ if _is_peft(kind)}
        why = None
        if "BaseTunerLayer" in kinds:
            why = _object_to_adapter(module, inside)
        elif "ModulesToSaveWrapper" in kinds:
            why = _object_to_saved(module, inside)
        elif "PromptEncoder" in kinds:
            why = "peft's PromptEncoder runs once for all examples of a batch"
        if why is not None:
            return why
    return None


def _is_peft(kind: type) -> bool:
    # By name, so that peft need not be there.
    return kind.__module__.startswith("peft.")


def _object_to_adapter(adapter: Any, inside: list[str]) -> str | None:
    own = inside[0] != "base_layer"
    if adapter.disable_adapters:
        return NeverRuns("its adapter is disabled") if own else None
    if adapter.merged:
        return NeverRuns("its adapter is merged into the base layer") if own else None
    method = type(adapter).__module__.split(".")[2]
    if type(adapter).__name__ in ("MultiheadAttention", "ParamWrapper"):
        return (
            f"peft's {type(adapter).__name__} uses these weights without calling the layer"
        )
    if own and (len(inside) < 2 or inside[1] not in adapter.active_adapters):
        return NeverRuns(f"its adapter {inside[-1]!r} is not active")
    variants = getattr(adapter, "lora_variant", {})
    active = inside[1:2] if own else adapter.active_adapters
    for name in active:
        if name in variants:
            kind = type(variants[name]).__name__.removesuffix("LinearVariant")
            return f"peft's {kind} uses these weights outside the layer's call"
    if method not in CALLS_BASE or (own and method != "lora"):
        return f"peft's {method} may use these weights outside the layer's call"
    return None


def _object_to_saved(wrapper: Any, inside: list[str]) -> str | None:
    active = wrapper.active_adapters
    passed_by = wrapper.disable_adapters or any(a not in wrapper._adapters for a in active)
    if inside[0] == "original_module":
        return None if passed_by else NeverRuns(_REPLACED)
    if passed_by or inside[1] != active[0]:
        return NeverRuns(f"its adapter {inside[1]!r} is not active")
    return None
