"""A model's head: new weights that have no pretrained values to stay near.

It has no prior, is never ranked, is tuned whole and is given whole in a delta. "last" takes
the layers that make the outputs for it, which is right for classifiers with one new output layer
and wrong where the outputs are made by something else, an output layer tied to the embeddings
say, or where several layers are new: DistilBERT's `pre_classifier` and `classifier`. A model
alone does not tell which of its weights are new, so those are given by name.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from smidgen.errors import ArgumentError
from smidgen.weights.affine import Coverage, coverage
from smidgen.weights.subset import Part, Subset, Whole

Head = Subset | tuple[str, ...] | list[str] | Literal["last", "none"]
"""Whole parameters, names of modules or of parameters, or a word."""


def find_head(
    model: nn.Module, head: Head, covered: Coverage | None = None
) -> dict[str, Part]:
    """Find the parts of the head by parameter name; "none" has none, `covered` knows "last"."""
    if isinstance(head, Subset):
        return _require_whole(model, head)
    if isinstance(head, (tuple, list)):
        return _find_named(model, head)
    if head == "none":
        return {}
    if head != "last":
        raise ArgumentError(
            f"head must be a Subset, a list of names, 'last' or 'none', got {head!r}. "
            f"Put names of modules in a list: head=[{head!r}]."
        )
    covered = covered or coverage(model)
    last = covered.last()
    if last is None:
        raise ArgumentError(
            f"head must be given for this model, got 'last': {covered.without_output_layer}. "
            "Pass head=smidgen.select.named(model, ...) with the new weights, or "
            "head='none' if none are new."
        )
    return dict(last.parts)


def find_certain_head(covered: Coverage, outputs: int) -> dict[str, Part]:
    """Find the parts of layers that were seen to make outputs, or guessed to and as wide."""
    last = covered.last()
    guessed = sum(layer.outputs for layer in covered.output_layers)
    certain = last is not None and (covered.seen or guessed == outputs)
    return dict(last.parts) if last is not None and certain else {}


def _require_whole(model: nn.Module, head: Subset) -> dict[str, Part]:
    missing = head.parts.keys() - dict(model.named_parameters()).keys()
    if missing:
        raise ArgumentError(
            f"head must hold parameters of the model, got {min(missing)!r}. Make it "
            "with smidgen.select.named(model, ...)."
        )
    for name, part in head.parts.items():
        if not isinstance(part, Whole):
            raise ArgumentError(
                f"head must hold whole parameters, got a part of {name!r}. Make it with "
                "smidgen.select.named(model, ...)."
            )
    return dict(head.parts)


def _find_named(model: nn.Module, names: tuple[str, ...] | list[str]) -> dict[str, Part]:
    """Find the parameters with these names or within modules with these names."""
    known = [name for name, _ in model.named_parameters()]
    for name in names:
        if not any(_is_within(parameter, name) for parameter in known):
            raise ArgumentError(
                f"head must name modules or parameters of the model, got {name!r}, which "
                "has no weights of its own. Take names of model.named_parameters()."
            )
    if not names:
        raise ArgumentError(
            "head must name a module or more, got none. Pass head='none' if none is new."
        )
    return {p: Whole() for p in known if any(_is_within(p, name) for name in names)}


def _is_within(parameter: str, name: str) -> bool:
    return parameter == name or parameter.startswith(f"{name}.")
