"""The affine layers a = W x + b of a model: Linear, GPT-2's Conv1D, and Conv2d by patches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod
from typing import Literal

import torch
from torch import Tensor, nn

from smidgen.errors import StructureError, require_kind
from smidgen.runtime.processes.whole_weights import gather_tensor
from smidgen.types import Shape
from smidgen.weights.adapters import NeverRuns, find_adapter_objection
from smidgen.weights.origin import LAST_LAYER_ORIGIN, Origin
from smidgen.weights.subset import Block, Entries, Part, Subset, Whole

Group = Literal["attention", "mlp"]

_PLAIN = (nn.Linear, nn.Conv2d)
# Tables of embeddings make outputs only through a layer tied to them, left out itself.
_NO_OUTPUTS = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)
# As in the paper: attention = the query, key, value and output layers, MLP = all others.
_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)


@dataclass(frozen=True)
class AffineLayer:
    """One affine layer: W is n × m, n outputs and m inputs.

    `modules` are all the module paths that run it (more than one when weights are
    tied); `transposed` says that W is stored m × n, as GPT-2's Conv1D does. A convolution
    is the layer from patches to channels: `window` is its channels and kernel, m their
    product.
    """

    name: str
    modules: tuple[str, ...]
    weight: str
    bias: str | None
    outputs: int
    inputs: int
    transposed: bool
    window: Shape = ()

    @property
    def group(self) -> Group:
        """Whether the paper counts this layer to attention or to the MLPs."""
        return "attention" if _ATTENTION.search(self.name) else "mlp"

    @property
    def shapes(self) -> dict[str, Shape]:
        """Names and shapes of its parameters."""
        n, m = self.outputs, self.inputs
        stored: Shape = (n, *self.window) if self.window else (n, m)
        shapes: dict[str, Shape] = {self.weight: (m, n) if self.transposed else stored}
        if self.bias is not None:
            shapes[self.bias] = (n,)
        return shapes

    def matrix(self, model: nn.Module) -> Tensor:
        """Return W as n × m, detached."""
        return self.as_matrix(gather_tensor(model.get_parameter(self.weight)).detach())

    def as_matrix(self, stored: Tensor) -> Tensor:
        """Write a tensor of the weight's stored shape as n × m."""
        return stored.T if self.transposed else stored.flatten(1)

    def parts(self, rows: Tensor, columns: Tensor) -> dict[str, Part]:
        """Choose the crossing of rows and columns of W, and the bias of those rows."""
        first, second = (columns, rows) if self.transposed else (rows, columns)
        parts: dict[str, Part] = {self.weight: Block(first, second)}
        if self.bias is not None:
            parts[self.bias] = Entries(rows)
        return parts


@dataclass(frozen=True)
class Coverage:
    """Which modules of a model are affine layers, and why the others are left out.

    `output_layers` make the outputs; there are none where something else may make them, and
    `without_output_layer` says why. Until a pass has `seen` them, the last one in the order of
    the modules stands for them: a guess, wrong where a head is registered first.
    """

    layers: tuple[AffineLayer, ...]
    left_out: dict[str, str]
    output_layers: tuple[AffineLayer, ...] = ()
    without_output_layer: str = ""
    seen: bool = False

    @property
    def universe(self) -> dict[str, Shape]:
        """Names and shapes of all parameters of the layers."""
        return {n: shape for layer in self.layers for n, shape in layer.shapes.items()}

    def last(self) -> Subset | None:
        """Choose all weights of the output layers; None if there is none."""
        if not self.output_layers:
            return None
        parts = {name: Whole() for layer in self.output_layers for name in layer.shapes}
        return Subset(self.universe, parts, Origin(LAST_LAYER_ORIGIN))

    def row_column_blocks(self, fraction: float) -> Subset:
        """Choose the first fraction of rows and columns of every layer."""
        # They stand in for others where sizes are counted and no weights are loaded.
        parts: dict[str, Part] = {}
        for layer in self.layers:
            rows = torch.arange(ceil_fraction(layer.outputs, fraction))
            columns = torch.arange(ceil_fraction(layer.inputs, fraction))
            parts.update(layer.parts(rows, columns))
        return Subset(self.universe, parts)

    def __str__(self) -> str:
        rows = [(la.name, f"{la.outputs} × {la.inputs}, {la.group}") for la in self.layers]
        rows += [(name, f"left out: {why}") for name, why in self.left_out.items()]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def ceil_fraction(total: int, fraction: float) -> int:
    """Compute a fraction in (0, 1] of `total`, rounded up."""
    # 1e-9: a tenth of 30 is 3, whatever floating point makes of it.
    return max(1, ceil(fraction * total - 1e-9))


def coverage(model: nn.Module) -> Coverage:
    """List the affine layers of a model, and the modules that are left out with the reason.

    Args:
        model: Any PyTorch module.

    Returns:
        Layers in the order of the modules, and left-out modules that hold parameters.
    """
    require_kind("model", model, nn.Module, "Of a Problem, pass its .model")
    canonical = {id(p): name for name, p in model.named_parameters()}
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(path)
    layers_by_id: dict[int, AffineLayer] = {}
    left_out: dict[str, str] = {}
    modules = dict(model.named_modules())
    for path, module in modules.items():
        if next(module.parameters(recurse=False), None) is None:
            continue
        why = _find_objection(module, path, modules, owners)
        if why is not None:
            left_out[path] = why
        elif id(module.weight) not in layers_by_id:
            layers_by_id[id(module.weight)] = _make_layer(path, module, canonical, owners)
    layers = tuple(layers_by_id.values())
    return Coverage(layers, left_out, *_guess_output_layer(layers, left_out, modules))


def require_coverage(model: nn.Module) -> Coverage:
    """List the affine layers of a model, refusing one that has none."""
    covered = coverage(model)
    if not covered.layers:
        raise StructureError(
            f"{type(model).__name__} has no affine layer (Linear, Conv1D, Conv2d) to choose "
            "from. Print smidgen.coverage(model) to see why each module is left out."
        )
    return covered


def find_opaque(model: nn.Module, covered: Coverage) -> dict[str, str]:
    """Find the left-out modules that may make outputs and hold no affine layer; say why."""
    modules = dict(model.named_modules())
    paths = [path for layer in covered.layers for path in layer.modules]

    def holds_layer(path: str) -> bool:
        return not path or any(inner.startswith(f"{path}.") for inner in paths)

    return {
        path: why
        for path, why in covered.left_out.items()
        if _may_make_outputs(modules[path], why) and not holds_layer(path)
    }


def _may_make_outputs(module: nn.Module, why: str) -> bool:
    if isinstance(why, NeverRuns):
        return False
    matrix = any(p.dim() > 1 for p in module.parameters(recurse=False))
    return matrix and not isinstance(module, _NO_OUTPUTS)


def _guess_output_layer(
    layers: tuple[AffineLayer, ...], left_out: dict[str, str], modules: dict[str, nn.Module]
) -> tuple[tuple[AffineLayer, ...], str]:
    """Guess by the order of the modules which layer makes the outputs; none, and the reason."""
    if not layers:
        return (), "it has no affine layer"
    order = {path: number for number, path in enumerate(modules)}
    last = max(layers, key=lambda layer: order[layer.modules[-1]])
    for path, why in left_out.items():
        if _may_make_outputs(modules[path], why) and order[path] > order[last.modules[-1]]:
            after = f"{path!r} comes after the last affine layer {last.name!r}"
            return (), f"{after} and cannot be chosen ({why})"
    return (last,), ""


def _make_layer(
    path: str,
    module: nn.Module,
    canonical: dict[int, str],
    owners: dict[int, list[str]],
) -> AffineLayer:
    parameters = dict(module.named_parameters(recurse=False))
    weight, bias = parameters["weight"], parameters.get("bias")
    transposed = not isinstance(module, _PLAIN)
    n, m = weight.shape[0], prod(weight.shape[1:])
    if transposed:
        n, m = m, n
    return AffineLayer(
        name=path,
        modules=tuple(owners[id(weight)]),
        weight=canonical[id(weight)],
        bias=canonical[id(bias)] if bias is not None else None,
        outputs=n,
        inputs=m,
        transposed=transposed,
        window=tuple(weight.shape[1:]) if isinstance(module, nn.Conv2d) else (),
    )


def _find_objection(
    module: nn.Module,
    path: str,
    modules: dict[str, nn.Module],
    owners: dict[int, list[str]],
) -> str | None:
    """Say why a module cannot be treated as an affine layer, or None if it can."""
    if not _is_affine(module):
        return f"{type(module).__name__} is not an affine layer"
    if any(isinstance(m, nn.MultiheadAttention) for m in _ancestors(path, modules)):
        return "nn.MultiheadAttention uses these weights without calling the layer"
    if (why := find_adapter_objection(path, modules)) is not None:
        return why
    parameters = dict(module.named_parameters(recurse=False))
    if set(parameters) - {"weight", "bias"} or "weight" not in parameters:
        return f"its parameters are {', '.join(parameters)}, not weight and bias"
    axes = 4 if isinstance(module, nn.Conv2d) else 2
    if parameters["weight"].dim() != axes or not parameters["weight"].is_floating_point():
        return "its weight is packed or quantised"
    if isinstance(module, nn.Conv2d) and module.groups > 1:
        return f"a convolution in {module.groups} groups is not one affine layer"
    for other in owners[id(parameters["weight"])]:
        twin = modules[other]
        if not _is_affine(twin) or not isinstance(twin, _plain_kind(module)):
            return f"its weight is tied to {other} ({type(twin).__name__})"
        if getattr(twin, "bias", None) is not getattr(module, "bias", None):
            return f"it shares its weight, but not its bias, with {other}"
    if (
        "bias" in parameters
        and owners[id(parameters["bias"])] != owners[id(parameters["weight"])]
    ):
        return "it shares its bias, but not its weight, with another module"
    return None


def _is_affine(module: nn.Module) -> bool:
    """Whether a module computes W x + b and nothing else."""
    kind = type(module)
    for plain in _PLAIN:
        if isinstance(module, plain):
            # A subclass with a forward of its own may use its weight in another way.
            return kind.forward is plain.forward
    # By name, so that the core does not import transformers.
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


def _plain_kind(module: nn.Module) -> type[nn.Module]:
    return next((kind for kind in _PLAIN if isinstance(module, kind)), type(module))


def _ancestors(path: str, modules: dict[str, nn.Module]) -> Iterator[nn.Module]:
    while path:
        path = path.rpartition(".")[0]
        yield modules[path]
