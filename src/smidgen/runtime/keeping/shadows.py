"""Shadows that are lent, one call in one thread at a time, and lent again while nothing changed.

Making a shadow takes longer than a small network's pass. One that is given back is kept if a
pass left it as it was made, whatever it wrote meanwhile, and lent again if the model, too, is
what it was then. Anything else means a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType

from torch import nn
from torch.nn.utils import parametrize

from smidgen.runtime.guard import set_modes
from smidgen.runtime.keeping.structure import Structure, find_structure, refuse_to_keep
from smidgen.runtime.shadow import find_origin, is_shadow, shadow_values
from smidgen.types import Forward

# As many as threads might want at once.
_MOST_IDLE = 16


@contextmanager
def lend_shadow(model: nn.Module, forward: Forward) -> Iterator[tuple[nn.Module, Forward]]:
    """Lend a shadow in evaluation mode, and a forward around it; one that is lent lends itself."""
    if is_shadow(model) and find_origin(model).lent:
        yield model, forward
        return
    structure = _find_structure(model, forward)
    if structure is None:
        shadow, shadowed = shadow_values(model, model, forward)
        set_modes(shadow)
        find_origin(shadow).lent = True
        yield shadow, shadowed
        return
    shadow, made = _take_idle(structure) or _make(model)
    origin = find_origin(shadow)
    if origin.forward is not forward:
        origin.checked, origin.forward = False, forward
    origin.lent, origin.structure = True, structure
    try:
        yield shadow, forward
    finally:
        # Not kept after an error, when it may be anything.
        origin.lent, origin.structure = False, None
    if made is not None and made.holds(shadow):
        if len(structure.idle) < _MOST_IDLE:
            structure.idle.append((shadow, made))
    else:
        refuse_to_keep(model)


def _find_structure(model: nn.Module, forward: Forward) -> Structure | None:
    # A forward that may hold a module must be rebuilt around each shadow.
    plain = type(forward) is FunctionType and not (
        forward.__closure__
        or forward.__defaults__
        or forward.__kwdefaults__
        or vars(forward)
    )
    return find_structure(model) if plain and not parametrize._cache_enabled else None


def _take_idle(structure: Structure) -> tuple[nn.Module, Structure] | None:
    try:
        return structure.idle.pop()
    except IndexError:
        return None


def _make(model: nn.Module) -> tuple[nn.Module, Structure | None]:
    (shadow,) = shadow_values(model, model)
    set_modes(shadow)
    return shadow, Structure.of_shadow(shadow)
