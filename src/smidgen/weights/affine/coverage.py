"""`coverage`: the affine layers of a model, and why its other modules have none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from smidgen.errors import StructureError, require_kind
from smidgen.runtime.keeping.structure import unwrap
from smidgen.runtime.showing.html import ShownInNotebook
from smidgen.runtime.storage.quantised import is_quantised
from smidgen.types import Shape
from smidgen.weights.adapters import NeverRuns, find_adapter_objection
from smidgen.weights.affine.kind import Matrix
from smidgen.weights.affine.kinds import find_matrices
from smidgen.weights.affine.layer import AffineLayer, ceil_fraction
from smidgen.weights.origin import LAST_LAYER_ORIGIN, Origin
from smidgen.weights.subset import Part, Subset, Whole

# Why the rest of a module, beside its layers, is left out.
_BESIDE = "no affine layer has all of it"
# Tables of embeddings make outputs only through a layer tied to them, left out itself.
_NO_OUTPUTS = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Coverage(ShownInNotebook):
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


def coverage(model: nn.Module) -> Coverage:
    """List the affine layers of a model, and the modules that are left out with the reason.

    Args:
        model: Any PyTorch module.

    Returns:
        Layers in the order of the modules, and left-out modules that hold parameters.
    """
    require_kind("model", model, nn.Module, "Of a Problem, pass its .model")
    model = unwrap(model)
    modules = dict(model.named_modules())
    claims, left_out = _collect_claims(modules)
    canonical = {id(p): name for name, p in model.named_parameters()}
    owners: dict[int, list[str]] = {}
    for path, module in modules.items():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(path)
    layers = []
    for id_, uses in claims.items():
        why = _find_tie(uses, owners[id_], owners, modules)
        if why is not None:
            left_out |= {claim.owner: why for claim in uses}
            continue
        weight, bias = uses[0].weight, uses[0].bias
        layers.append(
            AffineLayer(
                name=uses[0].path,
                modules=tuple(claim.path for claim in uses),
                weight=canonical[id_],
                bias=None if bias is None else canonical[id(bias)],
                shape=tuple(weight.shape),
                row_axes=uses[0].matrix.row_axes,
                kind=uses[0].kind,
                groups=uses[0].matrix.groups,
            )
        )
    left_out = {path: left_out[path] for path in modules if path in left_out}
    found = tuple(layers)
    return Coverage(found, left_out, *_guess_output_layer(found, left_out, modules))


@dataclass(frozen=True)
class _Claim:
    """A module's claim that a parameter is the matrix of an affine layer, which runs at `path`.

    `owner` is the path of the module that runs it, `holder` of the one that has the parameter.
    """

    path: str
    owner: str
    holder: str
    kind: str
    matrix: Matrix
    weight: nn.Parameter
    bias: nn.Parameter | None


def _collect_claims(
    modules: dict[str, nn.Module],
) -> tuple[dict[int, list[_Claim]], dict[str, str]]:
    """All modules' claims by id of the weight, and why other modules have none."""
    claims: dict[int, list[_Claim]] = {}
    left_out: dict[str, str] = {}
    held: set[str] = set()
    for path, module in modules.items():
        if path in held or next(module.parameters(recurse=False), None) is None:
            continue
        kind, matrices = find_matrices(module)
        why = _find_objection(module, path, modules, matrices)
        if why is not None:
            left_out[path] = why
        if isinstance(matrices, str) or (why is not None and not why.startswith(_BESIDE)):
            continue
        for matrix in matrices:
            claim = _make_claim(path, module, kind, matrix)
            held.add(claim.holder)
            claims.setdefault(id(claim.weight), []).append(claim)
    return claims, left_out


def _make_claim(path: str, module: nn.Module, kind: str, matrix: Matrix) -> _Claim:
    parameters = dict(module.named_parameters())
    inner = matrix.weight.rpartition(".")[0]
    return _Claim(
        f"{path}.{matrix.site}".strip("."),
        path,
        f"{path}.{inner}".strip("."),
        kind,
        matrix,
        parameters[matrix.weight],
        parameters.get(matrix.bias) if matrix.bias else None,
    )


def require_coverage(model: nn.Module) -> Coverage:
    """List the affine layers of a model, refusing one that has none."""
    covered = coverage(model)
    if not covered.layers:
        raise StructureError(
            f"{type(model).__name__} has no affine layer (Linear, a convolution, attention) to "
            "choose from. Print smidgen.coverage(model) to see why each module is left out."
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

    def place(layer: AffineLayer) -> int:
        path = layer.modules[-1]
        return order[path if path in order else path.rpartition(".")[0]]

    last = max(layers, key=place)
    for path, why in left_out.items():
        if _may_make_outputs(modules[path], why) and order[path] > place(last):
            after = f"{path!r} comes after the last affine layer {last.name!r}"
            return (), f"{after} and cannot be chosen ({why})"
    return (last,), ""


def _find_objection(
    module: nn.Module,
    path: str,
    modules: dict[str, nn.Module],
    matrices: tuple[Matrix, ...] | str,
) -> str | None:
    """Say why a module, or what it has beside its matrices, is no affine layer; None if it is."""
    own = dict(module.named_parameters(recurse=False))
    if "weight" in own and is_quantised(own["weight"]):
        return "its weight is packed or quantised"
    if isinstance(matrices, str):
        return matrices
    if any(isinstance(m, nn.MultiheadAttention) for m in _ancestors(path, modules)):
        return "nn.MultiheadAttention uses these weights without calling the layer"
    if (why := find_adapter_objection(path, modules)) is not None:
        return why
    known = {name for matrix in matrices for name in (matrix.weight, matrix.bias)}
    if "weight" in known and "weight" not in own:
        return f"its parameters are {', '.join(own)}, not weight and bias"
    parameters = dict(module.named_parameters())
    for matrix in matrices:
        weight = parameters[matrix.weight]
        if weight.dim() != matrix.axes or is_quantised(weight):
            return "its weight is packed or quantised"
    if all(matrix.site for matrix in matrices):
        more = ", ".join(name for name in own if name not in known)
        return f"{_BESIDE}: {more}" if more else None
    if own.keys() - known:
        return f"its parameters are {', '.join(own)}, not weight and bias"
    return None


def _find_tie(
    uses: list[_Claim],
    holders: list[str],
    owners: dict[int, list[str]],
    modules: dict[str, nn.Module],
) -> str | None:
    """Say why a weight that several modules hold is not the matrix of one layer."""
    by_holder, first = {claim.holder: claim for claim in uses}, uses[0]
    for other in holders:
        twin = by_holder.get(other)
        form = (first.kind, first.matrix.row_axes, first.matrix.groups)
        if twin is None or (twin.kind, twin.matrix.row_axes, twin.matrix.groups) != form:
            return f"its weight is tied to {other} ({type(modules[other]).__name__})"
        if twin.bias is not first.bias:
            return f"it shares its weight, but not its bias, with {other}"
    if first.bias is not None and owners[id(first.bias)] != holders:
        return "it shares its bias, but not its weight, with another module"
    return None


def _ancestors(path: str, modules: dict[str, nn.Module]) -> Iterator[nn.Module]:
    while path:
        path = path.rpartition(".")[0]
        yield modules[path]
