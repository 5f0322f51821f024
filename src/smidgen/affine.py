"""The affine maps a = W x + b of a model, and the block of each that a subset chooses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from smidgen.errors import StructureError
from smidgen.subset import Block, Entries, Part, Subset, Whole
from smidgen.types import Shape

Group = Literal["attention", "mlp"]

# As in the paper: attention = the query, key, value and output maps, MLP = all others.
_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)


@dataclass(frozen=True)
class AffineMap:
    """One affine map: W is n × m, n outputs and m inputs.

    `modules` are all the module paths that run it (more than one when weights are
    tied); `transposed` says that W is stored m × n, as GPT-2's Conv1D does.
    """

    name: str
    modules: tuple[str, ...]
    weight: str
    bias: str | None
    outputs: int
    inputs: int
    transposed: bool

    @property
    def group(self) -> Group:
        """Whether the paper counts this map to attention or to the MLPs."""
        return "attention" if _ATTENTION.search(self.name) else "mlp"

    @property
    def shapes(self) -> dict[str, Shape]:
        """Names and shapes of its parameters."""
        n, m = self.outputs, self.inputs
        shapes: dict[str, Shape] = {self.weight: (m, n) if self.transposed else (n, m)}
        if self.bias is not None:
            shapes[self.bias] = (n,)
        return shapes

    def matrix(self, model: nn.Module) -> Tensor:
        """Return W as n × m, detached."""
        weight = model.get_parameter(self.weight).detach()
        return weight.T if self.transposed else weight

    def parts(self, rows: Tensor, columns: Tensor) -> dict[str, Part]:
        """Choose the crossing of rows and columns of W, and the bias of those rows."""
        first, second = (columns, rows) if self.transposed else (rows, columns)
        parts: dict[str, Part] = {self.weight: Block(first, second)}
        if self.bias is not None:
            parts[self.bias] = Entries(rows)
        return parts


@dataclass(frozen=True)
class Coverage:
    """Which modules of a model are affine maps, and why the others are left out."""

    maps: tuple[AffineMap, ...]
    left_out: dict[str, str]

    @property
    def universe(self) -> dict[str, Shape]:
        """Names and shapes of all parameters of the maps."""
        return {n: shape for each in self.maps for n, shape in each.shapes.items()}

    def __str__(self) -> str:
        rows = [(m.name, f"{m.outputs} × {m.inputs}, {m.group}") for m in self.maps]
        rows += [(name, f"left out: {why}") for name, why in self.left_out.items()]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


@dataclass(frozen=True, eq=False)
class MapBlock:
    """The chosen rows and columns of one map; `columns` may be empty if `bias`."""

    map: AffineMap
    rows: Tensor
    columns: Tensor
    bias: bool

    @property
    def row_count(self) -> int:
        """Side of the output-gradient factor."""
        return self.rows.numel()

    @property
    def column_count(self) -> int:
        """Side of the input factor; the bias counts as a column of ones."""
        return self.columns.numel() + self.bias


def coverage(model: nn.Module) -> Coverage:
    """List the affine maps of a model and what is left out, with the reason.

    Args:
        model: Any PyTorch module; it is only looked at.

    Returns:
        Maps in the order of the modules, and left-out modules that hold parameters.
    """
    canonical = {id(p): name for name, p in model.named_parameters()}
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(path)
    found: dict[int, AffineMap] = {}
    left_out: dict[str, str] = {}
    modules = dict(model.named_modules())
    for path, module in modules.items():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        why = _objection(module, path, modules, owners)
        if why is not None:
            left_out[path] = why
        elif id(own["weight"]) not in found:
            found[id(own["weight"])] = _map(path, own, canonical, owners, module)
    return Coverage(tuple(found.values()), left_out)


def affine_coverage(model: nn.Module) -> Coverage:
    """List the affine maps of a model that must have one.

    Args:
        model: Any PyTorch module; it is only looked at.

    Returns:
        The coverage, with at least one map.

    Raises:
        StructureError: If the model has no affine map.
    """
    found = coverage(model)
    if not found.maps:
        raise StructureError(
            f"{type(model).__name__} has no affine map (Linear or Conv1D) to choose "
            "from. Print smidgen.coverage(model) to see why each module is left out."
        )
    return found


def blocks(model: nn.Module, subset: Subset) -> tuple[MapBlock, ...]:
    """Read a subset as one block of rows and columns per affine map.

    Args:
        model: The model it was chosen from.
        subset: Blocks or whole parameters of affine maps.

    Returns:
        A block for each map that the subset touches, in the order of the modules.

    Raises:
        StructureError: If the subset holds scattered entries, parameters that are not
            affine maps, or biases of other rows than the weights'.
    """
    found = coverage(model)
    known = found.universe
    for name, shape in subset.universe.items():
        if name in subset.parts and known.get(name, shape) != shape:
            raise StructureError(
                f"subset was chosen from another model: there {name!r} has shape {shape}, "
                f"here {known[name]}. Choose one from this model."
            )
        if name in subset.parts and name not in known:
            raise StructureError(
                f"a posterior needs parameters of affine maps, got {name!r} of "
                f"shape {shape}. Print smidgen.coverage(model) to see the maps."
            )
    chosen = (_block(each, subset) for each in found.maps)
    return tuple(block for block in chosen if block is not None)


def _block(each: AffineMap, subset: Subset) -> MapBlock | None:
    weight = subset.parts.get(each.weight)
    bias = subset.parts.get(each.bias) if each.bias is not None else None
    if isinstance(weight, Entries):
        raise StructureError(
            f"a posterior needs rows × columns of each map, but {each.weight!r} has "
            f"{weight.indices.numel()} scattered entries. Choose with "
            "smidgen.select.sparse_kfac."
        )
    bias_rows = _bias_rows(bias, each.outputs)
    if weight is None:
        if bias_rows is None:
            return None
        return MapBlock(each, bias_rows, torch.empty(0, dtype=torch.int64), True)
    if isinstance(weight, Whole):
        rows, columns = torch.arange(each.outputs), torch.arange(each.inputs)
    elif each.transposed:
        rows, columns = weight.columns, weight.rows
    else:
        rows, columns = weight.rows, weight.columns
    if bias_rows is not None and not torch.equal(bias_rows, rows):
        raise StructureError(
            f"a posterior needs the bias of the chosen rows or none, but "
            f"{each.bias!r} has {bias_rows.numel()} entries that are not the "
            f"{rows.numel()} rows of {each.weight!r}."
        )
    return MapBlock(each, rows, columns, bias_rows is not None)


def _bias_rows(part: Part | None, outputs: int) -> Tensor | None:
    if part is None:
        return None
    return part.indices if isinstance(part, Entries) else torch.arange(outputs)


def _map(
    path: str,
    own: dict[str, nn.Parameter],
    canonical: dict[int, str],
    owners: dict[int, list[str]],
    module: nn.Module,
) -> AffineMap:
    weight, bias = own["weight"], own.get("bias")
    transposed = not isinstance(module, nn.Linear)
    n, m = reversed(weight.shape) if transposed else weight.shape
    return AffineMap(
        name=path,
        modules=tuple(owners[id(weight)]),
        weight=canonical[id(weight)],
        bias=canonical[id(bias)] if bias is not None else None,
        outputs=n,
        inputs=m,
        transposed=transposed,
    )


def _objection(
    module: nn.Module,
    path: str,
    modules: dict[str, nn.Module],
    owners: dict[int, list[str]],
) -> str | None:
    """Say why a module cannot be treated as an affine map, or None if it can."""
    if not _is_affine(module):
        return f"{type(module).__name__} is not an affine map"
    if any(isinstance(each, nn.MultiheadAttention) for each in _above(path, modules)):
        return "nn.MultiheadAttention uses these weights without calling the map"
    own = dict(module.named_parameters(recurse=False))
    if set(own) - {"weight", "bias"} or "weight" not in own:
        return f"its parameters are {', '.join(own)}, not weight and bias"
    if own["weight"].dim() != 2 or not own["weight"].is_floating_point():
        return "its weight is packed or quantised"
    for other in owners[id(own["weight"])]:
        twin = modules[other]
        if not _is_affine(twin) or isinstance(twin, nn.Linear) != isinstance(
            module, nn.Linear
        ):
            return f"its weight is tied to {other} ({type(twin).__name__})"
        if getattr(twin, "bias", None) is not getattr(module, "bias", None):
            return f"it shares its weight, but not its bias, with {other}"
    return None


def _is_affine(module: nn.Module) -> bool:
    """Whether a module computes W x + b and nothing else."""
    if isinstance(module, nn.Linear):
        # A subclass with a forward of its own may do something else with its weight.
        return type(module).forward is nn.Linear.forward
    kind = type(module)
    # By name, so that the core does not import transformers.
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


def _above(path: str, modules: dict[str, nn.Module]) -> Iterator[nn.Module]:
    while path:
        path = path.rpartition(".")[0]
        yield modules[path]
