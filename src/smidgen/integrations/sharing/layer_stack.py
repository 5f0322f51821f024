"""`LayerStack`: an `nn.Sequential` of torch's own layers as JSON, and built from it again.

So a small model of somebody's own can be stored without any code: no class is imported by a
name from a file, only those listed here are made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

from torch import nn

from smidgen.errors import ArgumentError, StoreError
from smidgen.runtime.reading import convert_json
from smidgen.sparse.architectures import Standardise

_CONVOLUTION = (
    *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation"),
    *("groups", "bias", "padding_mode"),
)
_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")
_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_MEAN_POOL = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
# What each layer was made with, by the names of its attributes.
_LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features", "bias"),
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.BatchNorm1d: _NORM,
    nn.BatchNorm2d: _NORM,
    nn.LayerNorm: ("normalized_shape", "eps", "elementwise_affine", "bias"),
    nn.GroupNorm: ("num_groups", "num_channels", "eps", "affine"),
    nn.MaxPool1d: _POOL,
    nn.MaxPool2d: _POOL,
    nn.AvgPool1d: _MEAN_POOL,
    nn.AvgPool2d: (*_MEAN_POOL, "divisor_override"),
    nn.AdaptiveAvgPool1d: ("output_size",),
    nn.AdaptiveAvgPool2d: ("output_size",),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Unflatten: ("dim", "unflattened_size"),
    nn.Dropout: ("p",),
    nn.Dropout1d: ("p",),
    nn.Dropout2d: ("p",),
    nn.Identity: (),
    nn.ReLU: (),
    nn.ReLU6: (),
    nn.LeakyReLU: ("negative_slope",),
    nn.ELU: ("alpha",),
    nn.GELU: ("approximate",),
    nn.SiLU: (),
    nn.Mish: (),
    nn.Hardswish: (),
    nn.Softplus: ("beta", "threshold"),
    nn.Tanh: (),
    nn.Sigmoid: (),
    Standardise: ("shape",),
}
_BY_NAME = {kind.__name__: kind for kind in _LAYERS}
_STACK = "Sequential"


@dataclass(frozen=True)
class LayerStack:
    """Layers one after another: of each its name, its kind and what it was made with."""

    layers: tuple[Mapping[str, Any], ...]

    def build(self) -> nn.Sequential:
        """Build the layers, with weights of any value."""
        return nn.Sequential(
            OrderedDict((str(layer["name"]), _build(layer)) for layer in self.layers)
        )

    def to_json(self) -> list[dict[str, Any]]:
        """List the layers as JSON values."""
        return [dict(layer) for layer in self.layers]

    @classmethod
    def from_json(cls, values: object) -> LayerStack:
        """Read what `to_json` listed.

        Args:
            values: The layers.

        Returns:
            The stack.

        Raises:
            StoreError: If these are no layers.
        """
        layers = convert_json(values, tuple[dict[str, Any], ...], "layers")
        for layer in layers:
            if not {"name", "kind"} <= layer.keys():
                raise StoreError("a layer must have a name and a kind")
        return cls(layers)


def describe_stack(model: nn.Module) -> LayerStack:
    """Describe an `nn.Sequential` of torch's own layers, so that it can be built again.

    Args:
        model: The model; its weights are stored apart.

    Returns:
        The layers.

    Raises:
        ArgumentError: If there is a layer that cannot be described.
    """
    described = _describe(model, "model")
    if described["kind"] != _STACK:
        _refuse(model, "model")
    _refuse_tied(model)
    return LayerStack(tuple(described["layers"]))


def _list_layers(stack: nn.Sequential, path: str) -> list[dict[str, Any]]:
    # Not `named_children`, which leaves out a layer that it met before: one activation may
    # stand in several places, and is several when it is built.
    return [
        {"name": name, **_describe(layer, f"{path}.{name}")}
        for name, layer in stack._modules.items()
        if layer is not None
    ]


def _refuse_tied(model: nn.Module) -> None:
    """Refuse weights that stand in several places: built again, each would have its own."""
    places: dict[int, str] = {}
    held = chain(
        model.named_parameters(remove_duplicate=False),
        model.named_buffers(remove_duplicate=False),
    )
    for name, tensor in held:
        first = places.setdefault(id(tensor), name)
        if first != name:
            raise ArgumentError(
                f"model must have weights of its own in every layer, got those of {first!r} "
                f"again as {name!r}. Give each place a layer of its own, or share its posterior "
                "alone: smidgen.save it, and smidgen.load it beside the model."
            )


def _describe(layer: nn.Module, path: str) -> dict[str, Any]:
    # A subclass, or a layer with hooks or parametrizations, may do anything else.
    hooks = layer._forward_hooks or layer._forward_pre_hooks
    changed = hooks or "forward" in vars(layer)
    if type(layer) is nn.Sequential and not changed:
        return {"kind": _STACK, "layers": _list_layers(layer, path)}
    if type(layer) not in _LAYERS or changed:
        _refuse(layer, path)
    made_with = {}
    for name in _LAYERS[type(layer)]:
        value = getattr(layer, name)
        # A layer keeps its bias, and not whether it was asked for one.
        made_with[name] = value is not None if name == "bias" else _make_plain(value)
    return {"kind": type(layer).__name__, **made_with}


def _make_plain(value: Any) -> Any:
    return (
        list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
    )


def _build(layer: Mapping[str, Any]) -> nn.Module:
    settings = {
        name: value for name, value in layer.items() if name not in ("name", "kind")
    }
    if layer["kind"] == _STACK:
        return LayerStack.from_json(settings["layers"]).build()
    kind = _BY_NAME.get(str(layer["kind"]))
    if kind is None or settings.keys() != set(_LAYERS[kind]):
        raise StoreError(f"the layer {str(layer['kind'])[:80]!r} is unknown")
    return kind(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in settings.items()
        }
    )


def _refuse(layer: nn.Module, path: str) -> NoReturn:
    raise ArgumentError(
        "model must be an nn.Sequential of torch's own layers, without hooks or a forward of "
        f"their own, got {type(layer).__name__} as {path}. Build it of these, or share its "
        "posterior alone: smidgen.save it, and smidgen.load it beside the model."
    )
