"""Weights of which each process holds a part: `torch.distributed.fsdp.fully_shard`.

Passes need whole weights, and gather them: a collective, so all processes must come by. They
stay whole for the pass, on each process, lest one with fewer batches keep the others waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from smidgen.errors import StructureError

# What it leaves in modules: hooks that gather and free weights, and their state.
_FSDP, _STATE = "torch.distributed.fsdp", "__composable_api_state_key"


def gather_tensor(tensor: Tensor) -> Tensor:
    """Gather the parts of a tensor, detached; a whole one is returned itself."""
    gather = getattr(tensor.detach(), "full_tensor", None)
    return tensor if gather is None else gather()


def gather_copy(tensor: Tensor) -> Tensor:
    """The same, but a whole one is copied."""
    whole = gather_tensor(tensor)
    return whole.detach().clone() if whole is tensor else whole


def is_sharded(model: nn.Module) -> bool:
    """Whether each process holds a part of the model's weights."""
    return any(find_plain_class(type(module)) for module in model.modules())


def find_plain_class(kind: type[nn.Module]) -> type[nn.Module] | None:
    """Find the class that a module had before its weights were sharded; None if they are not."""
    mixed_in = kind.__bases__[0]
    if (mixed_in.__name__, len(kind.__bases__)) != ("FSDPModule", 2):
        return None
    return kind.__bases__[1]


def drop_sharding(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A module's attributes without what gathers and frees its weights."""
    kept = {n: v for n, v in attributes.items() if not n.startswith(_STATE)}
    for name, held in kept.items():
        if name.endswith("_hooks") and isinstance(held, dict):
            kept[name] = type(held)(
                (key, hook) for key, hook in held.items() if not _comes_from(hook, _FSDP)
            )
    return kept


def _comes_from(hook: Any, room: str) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(room)


def refuse_other_shards(modules: Iterable[nn.Module]) -> None:
    """Refuse weights that are split over processes in a way that cannot be undone here."""
    for module in modules:
        hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        parallel = any(_comes_from(hook, "torch.distributed.tensor") for hook in hooks)
        if parallel or type(module).__name__ == "FullyShardedDataParallel":
            raise StructureError(
                "model must have whole weights, or those of torch.distributed.fsdp.fully_shard, "
                f"got {'tensor parallelism' if parallel else 'FullyShardedDataParallel'}. Load "
                "its full state dict into the plain model: torch.distributed.checkpoint."
                "state_dict.get_model_state_dict with StateDictOptions(full_state_dict=True)."
            )
