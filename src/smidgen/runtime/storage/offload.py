"""Offloaded weights: accelerate keeps them in memory or in files, and loads them for each run.

Meanwhile a parameter is an empty one on the meta device. Here its numbers are read without
running anything, and a shadow gets hooks of its own: they load what is empty, and leave
alone what a pass has put there. accelerate itself is not imported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.errors import StructureError
from smidgen.runtime.processes.whole_weights import gather_tensor
from smidgen.runtime.storage.quantised import is_wrapped, list_stored

HOOK = "_hf_hook"
"""The attribute in which accelerate keeps the hook of a module."""

# The dicts of parameters and buffers, the name in it, and the name below the hook's module.
_Place = tuple[dict[str, Any], str, str]


class LoadingHook:
    """Takes the place of a hook that loads weights, in a shadow."""

    def __init__(self, source: Any) -> None:
        self.source = source
        # What else it does, such as moving inputs, it goes on doing.
        self._rest = copy(source)
        self._rest.offload = False
        self._empty: list[tuple[dict[str, Any], str, Tensor]] = []

    @property
    def no_grad(self) -> bool:
        """Whether accelerate is to run the module without gradients."""
        return bool(self.source.no_grad)

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Load what is empty, before the module runs."""
        for held, name, path in list(_find_empty(module, self.source)):
            self._empty.append((held, name, held[name]))
            held[name] = _load(self.source, path, held[name])
        return self._rest.pre_forward(module, *args, **kwargs)

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Let go of what was loaded."""
        while self._empty:
            held, name, empty = self._empty.pop()
            held[name] = empty
        return self._rest.post_forward(module, output)


def shadow_hook(hook: Any) -> Any:
    """Make a hook of the same kind for a shadow of its module."""
    if isinstance(hook, LoadingHook):
        return LoadingHook(hook.source)
    if _loads(hook):
        return LoadingHook(hook)
    other = copy(hook)
    if hasattr(hook, "hooks"):
        other.hooks = tuple(map(shadow_hook, hook.hooks))
    return other


def is_offloaded(model: nn.Module) -> bool:
    """Whether some weights of a model are loaded only while their layer runs."""
    return any(_find_loaders(module) for module in model.modules())


def require_loaded(model: nn.Module, use: str) -> None:
    """Refuse an offloaded model, to whose weights nothing can be written."""
    if is_offloaded(model):
        raise StructureError(
            f"{use} needs a model that holds its weights, got one that accelerate offloads. "
            "Load it without device_map, or call remove_hook_from_submodules(model) of "
            "accelerate.hooks first."
        )


def find_working_device(model: nn.Module) -> torch.device:
    """Find where a model's first parameter is when it is used."""
    first = next(model.parameters(), torch.empty(0))
    if first.is_meta:
        for module in model.modules():
            for loader in _find_loaders(module):
                return torch.device(loader.execution_device)
    return first.device


def read_parameter(model: nn.Module, name: str) -> Tensor:
    """Read a parameter whole, detached; an offloaded one from where it is kept."""
    held = read_offloaded(model, name, model.get_parameter(name))
    return gather_tensor(held).detach()


def read_offloaded(model: nn.Module, name: str, held: Tensor) -> Tensor:
    """Read a tensor from where it is kept: what the model holds, unless that is empty."""
    if not held.is_meta:
        return held
    loader, below = _find_loader(model, name)
    if loader is None:
        raise _refuse_empty(name)
    return _load(loader, below, held)


def refuse_empty_weights(model: nn.Module) -> None:
    """Refuse a model with parameters that are empty and nowhere kept."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta and _find_loader(model, name)[0] is None:
            raise _refuse_empty(name)


def refuse_hidden_tie(model: nn.Module, paths: Collection[str]) -> None:
    """Refuse an offloaded head of a language model whose weight is that of its embeddings."""
    # Offloading makes two parameters of it, and a draw would change one of them.
    tied = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
    if tied is not True or not is_offloaded(model):
        return
    find_head = getattr(model, "get_output_embeddings", lambda: None)
    head = find_head()
    for path in paths:
        if model.get_submodule(path) is head:
            raise StructureError(
                f"a chosen layer must have weights of its own, got {path!r}, which is tied to "
                "the embeddings though offloading hides it. Choose other layers."
            )


def _refuse_empty(name: str) -> StructureError:
    return StructureError(
        f"the model's weights must be loaded, got {name!r} on the meta device without any "
        "numbers. Load them first; PEFT leaves a new adapter empty on an offloaded base, so "
        "offload the model afterwards."
    )


def read_weights(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Read weights and persistent buffers by name, in order, one after another.

    Of a quantised weight the codes count, and not their scales.
    """
    if not any(p.is_meta or is_wrapped(p) for p in model.parameters()):
        yield from sorted(model.state_dict().items())
        return
    # Not its own state dict: that is empty where weights are offloaded, and making one lets
    # some layers of bitsandbytes change their weights.
    for name, held in sorted(_list_tensors(model), key=lambda pair: pair[0]):
        for stored in list_stored(read_offloaded(model, name, held)):
            yield name, stored


def list_in_memory(model: nn.Module) -> list[Tensor]:
    """List what of a model's parameters and buffers can be read at no cost."""
    tensors = [each for each in (*model.parameters(), *model.buffers()) if not each.is_meta]
    for module in model.modules():
        for loader in _find_loaders(module):
            # A dict of all weights, of which the module's begin with a prefix; or files.
            named, prefix = loader.weights_map, getattr(loader.weights_map, "prefix", "")
            named = getattr(named, "dataset", named)
            named = getattr(named, "state_dict", named)
            if isinstance(named, dict):
                places = (prefix + path for *_, path in _find_empty(module, loader))
                tensors += [named[place] for place in places if place in named]
    return tensors


def _list_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        hidden = module._non_persistent_buffers_set
        buffers = {n: b for n, b in module._buffers.items() if n not in hidden}
        for name, tensor in (module._parameters | buffers).items():
            if tensor is not None:
                yield prefix + name, tensor


def _loads(hook: Any) -> bool:
    return bool(getattr(hook, "offload", False)) and hasattr(hook, "weights_map")


def _find_loaders(module: nn.Module) -> list[Any]:
    """Find accelerate's hooks of a module, or of a shadow's, that load weights."""
    hook = vars(module).get(HOOK)
    each = (getattr(one, "source", one) for one in getattr(hook, "hooks", (hook,)))
    return [one for one in each if _loads(one)]


def _find_empty(module: nn.Module, loader: Any) -> Iterator[_Place]:
    """Find the empty tensors that a hook of a module loads."""
    inside = module.named_modules() if loader.place_submodules else [("", module)]
    for path, part in inside:
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None and tensor.is_meta:
                    yield held, name, f"{path}.{name}" if path else name


def _find_loader(model: nn.Module, name: str) -> tuple[Any, str]:
    """Find the hook that loads a tensor, if any, and its name below the hook's module."""
    path, _, below = name.rpartition(".")
    while True:
        for loader in _find_loaders(model.get_submodule(path)):
            if "." not in below or loader.place_submodules:
                return loader, below
        if not path:
            return None, below
        path, _, last = path.rpartition(".")
        below = f"{last}.{below}"


def _load(loader: Any, path: str, empty: Tensor) -> Tensor:
    if type(empty) not in (Tensor, nn.Parameter):
        raise StructureError(
            f"weights must be quantised or offloaded, not both, got {path!r} of class "
            f"{type(empty).__name__} on the meta device. Load the model without device_map."
        )
    try:
        kept: Tensor = loader.weights_map[path].detach()
    except KeyError:
        raise _refuse_empty(path) from None
    return kept.to(loader.execution_device, empty.dtype)
