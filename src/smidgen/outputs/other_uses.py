"""Weights that a model also uses outside the calls of their layers.

Taps see a layer's weights through its calls. A norm of the weights, or a bias that is taken
off again, changes the outputs past them, and the Jacobian would be wrong. So one pass is run
with NaN in the place of the chosen weights, except within the calls of their layers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from smidgen.outputs.batches import take_few
from smidgen.outputs.problem import Problem
from smidgen.runtime.guard import preserve_random_state, require_runs
from smidgen.runtime.shadow import find_origin
from smidgen.runtime.sites.site import Site, find_site
from smidgen.types import Batch

Layers = Mapping[str, tuple[Collection[str], Collection[str]]]
"""Paths of the modules that run each layer, and the names of its weights, by its name."""


def find_other_uses(problem: Problem, batch: Batch, layers: Layers) -> dict[str, str]:
    """Find the layers whose weights change the outputs past their calls; say so of each."""
    shadowed = problem.on_shadow()
    with preserve_random_state(problem.model):
        # A pass of few rows for all; more only if something was found, or few rows do not run.
        for rows in (take_few(batch), batch):
            if not _are_used_elsewhere(shadowed, rows, layers):
                return {}
        used = [
            name
            for name, held in layers.items()
            if _are_used_elsewhere(shadowed, batch, {name: held})
        ]
    why = "the model uses weights of {!r} outside the layer's call too"
    return {name: why.format(name) for name in used}


def _are_used_elsewhere(problem: Problem, batch: Batch, layers: Layers) -> bool:
    names = {name for _, held in layers.values() for name in held}
    # Tied layers run the same module, which is watched once.
    paths = {path for held, _ in layers.values() for path in held}
    called: list[bool] = []
    with (
        _whole_in_calls([find_site(problem.model, path) for path in sorted(paths)], called),
        require_runs(find_origin(problem.model), lambda: True),
    ):
        # A layer that is never called is looked at by its tap.
        return problem.depends_on(batch, names) and bool(called)


@contextmanager
def _whole_in_calls(modules: Iterable[nn.Module], called: list[bool]) -> Iterator[None]:
    """Give modules the weights that they have now whenever they are called."""
    handles = []

    def watch(module: nn.Module) -> None:
        held, names = module._parameters, set(module._parameters)
        if isinstance(module, Site):
            # It reads its own among the weights of another module.
            owner = module.owner()
            assert owner is not None
            held, names = owner._parameters, owner._parameters.keys() & module.names
        whole = {name: held[name] for name in names}
        outside = list[dict[str, nn.Parameter | None]]()

        def enter(*_: object) -> None:
            called.append(True)
            outside.append({name: held[name] for name in whole})
            held.update(whole)

        def leave(*_: object) -> None:
            held.update(outside.pop())

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave))

    for module in modules:
        watch(module)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
