"""`Site`: a matrix that a module multiplies with without calling a layer, made callable.

torch's attention and recurrent layers, and the fused experts of transformers, hand their
matrices to functions of torch. In a shadow each such matrix gets a site. As soon as somebody
has hooked one, the module runs in another way, written out here, that calls its sites; until
then it runs as it is, so that draws and exact Jacobians are of torch's own computation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode

# Where a module of a shadow has its sites.
_SITES = "_smidgen_sites"


class Site(nn.Module):
    """W x + b with a matrix of another module, whole or one of `parts` of its rows.

    It holds its owner weakly, and reads the matrix when called: another may be swapped in.
    """

    def __init__(
        self, owner: nn.Module, weight: str, bias: str | None = None, parts: int = 1
    ) -> None:
        super().__init__()
        self.owner, self.names, self.parts = ref(owner), (weight, bias), parts

    def read(self, name: str | None) -> Tensor | None:
        """Read a parameter of the owner."""
        return None if name is None else getattr(self.owner(), name)

    def forward(self, x: Tensor, *, part: int | None = None) -> Tensor:
        """Multiply with all rows, or with one part of them."""
        weight, bias = map(self.read, self.names)
        assert weight is not None
        if part is not None:
            weight = weight.chunk(self.parts)[part]
            bias = None if bias is None else bias.chunk(self.parts)[part]
        return nn.functional.linear(x, weight, bias)


@dataclass(frozen=True)
class Rewrite:
    """A kind of modules that have sites.

    `matches` says whether a module is run in exactly the way that `run` writes out, and
    `open` makes its sites, by name.
    """

    matches: Callable[[nn.Module], bool]
    open: Callable[[nn.Module], dict[str, Site]]
    run: Callable[..., Any]


def install(module: nn.Module, rewrite: Rewrite | None) -> None:
    """Give a module of a shadow its sites, and a forward that calls them once one is hooked."""
    this, kind = ref(module), type(module)
    own: Any = vars(module).get("forward")
    if hasattr(own, "plain"):
        # A shadow of a shadow: its sites must be of its own.
        own = own.plain
    sites = rewrite.open(module) if rewrite is not None else {}
    # The mode rules out the fused pass of attention, for which no draws can be run at once.
    # Training mode would too, but the module's own code and hooks may look at that.
    fused = isinstance(module, nn.MultiheadAttention)
    mode: Any = BaseTorchFunctionMode if fused else nullcontext

    def forward(*args: Any, **kwargs: Any) -> Any:
        if rewrite is not None and any(site._forward_hooks for site in sites.values()):
            return rewrite.run(this(), sites, *args, **kwargs)
        with mode():
            return own(*args, **kwargs) if own else kind.forward(this(), *args, **kwargs)

    forward.plain = own  # type: ignore[attr-defined]
    vars(module)["forward"] = forward
    vars(module)[_SITES] = sites


def has_own_forward(module: nn.Module, plain: type[nn.Module]) -> bool:
    """Whether a module runs in another way than a class of torch does."""
    own = vars(module).get("forward")
    patched = own is not None and getattr(own, "plain", own) is not None
    return patched or type(module).forward is not plain.forward


def find_site(shadow: nn.Module, path: str) -> nn.Module:
    """Find what is called where a layer runs: a site, or else the module of that path."""
    parent, _, name = path.rpartition(".")
    sites = vars(shadow.get_submodule(parent)).get(_SITES, {})
    return sites[name] if name in sites else shadow.get_submodule(path)
