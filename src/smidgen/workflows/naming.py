"""What posteriors are called in a comparison: by a name of their own, and for readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smidgen.curvature.operators import STRUCTURES, Isotropic
from smidgen.outputs.likelihood import Gaussian, Likelihood
from smidgen.posterior.base import Posterior
from smidgen.posterior.point import PointPosterior
from smidgen.report.formats import THIN
from smidgen.report.names import FAMILIES, label_method, label_within
from smidgen.select import SELECTORS
from smidgen.weights.origin import LAST_LAYER_ORIGIN, Origin

_TEMPERATURE = "temperature"
# Laplace posteriors are named by the selector of their weights alone.
_UNNAMED = "laplace"
_ISOTROPIC = Isotropic.structure
# What the origin of joined posteriors notes of them.
_JOINED = "structures"


def label_temperature(likelihood: Likelihood | None) -> str:
    """Name temperature scaling, or what takes its place in a regression."""
    noisy = isinstance(likelihood, Gaussian)
    return "MAP, noise refitted" if noisy else label_method(_TEMPERATURE)


def name_posterior(posterior: Posterior, beside: Sequence[Posterior]) -> str:
    """Name a posterior after its method and, where that is not enough, its selector."""
    method, origin = posterior.method, posterior.subset.origin
    structure = getattr(posterior, "structure", "")
    if structure == _ISOTROPIC:
        return _ISOTROPIC
    if origin is None:
        return method
    if _ISOTROPIC in structure:
        curved = [part.selector for part, kind in _list_parts(origin) if kind != _ISOTROPIC]
        # As the scheme of a ramping study is called.
        head = "head" if curved == [LAST_LAYER_ORIGIN] else "-".join(curved)
        return f"{head or method}-{_ISOTROPIC}"
    if method == _UNNAMED:
        # Of a union the selectors that chose it: "sparse-kfac-last-layer".
        return "-".join(part.selector for part in origin.parts())
    alone = sum(other.method == method for other in beside) == 1
    return method if alone else f"{method}-{origin.selector}"


def label_posterior(posterior: Posterior) -> str:
    """Name a posterior for readers, with the selector that its subset remembers."""
    origin, method = posterior.subset.origin, posterior.method
    structure = getattr(posterior, "structure", None)
    if method == PointPosterior.method:
        # Beside the baseline of the same name, which is always shown.
        noisy = isinstance(posterior.likelihood, Gaussian)
        return "Kept MAP, noise refitted" if noisy else label_method(method)
    if structure == _ISOTROPIC:
        return _label_isotropic(origin)
    if origin is None or origin.selector == method:
        return FAMILIES.get(method, method)
    if _JOINED in origin.settings:
        parts = _list_parts(origin)
        labels = [_label_curved(part, k) for part, k in parts if k != _ISOTROPIC]
        if len(labels) < len(parts):
            subset = posterior.subset
            rest = "body" if subset.parts.keys() == subset.universe.keys() else "layers"
            labels.append(f"{_ISOTROPIC} {rest}")
        return " | ".join(labels)
    family = None if method == _UNNAMED else method
    first, *others = origin.parts()
    labels = [_label_curved(first, structure, family)]
    return " | ".join(labels + [_label_selector(x.selector, within=True) for x in others])


def _list_parts(origin: Origin) -> list[tuple[Origin, str | None]]:
    """List the origins of posteriors that were joined, each with its structure."""
    settings: Any = origin.settings
    if _JOINED not in settings:
        return [(origin, None)]
    pairs = zip(settings["of"], settings[_JOINED], strict=True)
    parts: list[tuple[Origin, str | None]] = []
    for stored, structure in pairs:
        part = Origin.from_json(stored)
        if part is None:
            parts.append((Origin(_UNNAMED), structure))
        else:
            parts += [(p, kind or structure) for p, kind in _list_parts(part)]
    return parts


def _label_isotropic(origin: Origin | None) -> str:
    """Name a posterior without curvature after what it makes stochastic."""
    label, chosen = label_method(_ISOTROPIC), origin or Origin(_UNNAMED)
    percent: Any = chosen.settings.get("percent")
    if origin is None or _JOINED in origin.settings:
        return label
    if chosen.selector != "sparse-kfac" or percent is None:
        return f"{label}, {_label_selector(chosen.selector, within=True)}"
    if percent == 100:
        return f"{label}, {label_within('full')}"
    return f"{label} {percent:g}{THIN}%"


def _label_curved(origin: Origin, structure: str | None, family: str | None = None) -> str:
    """Name a posterior after its selector, and its structure unless that is the usual one."""
    label = _label_selector(origin.selector, family)
    selector = SELECTORS.get(origin.selector)
    usual = usual_structure(scattered=bool(selector and selector.scattered))
    return label if structure in (None, usual) else f"{label}, {structure}"


def _label_selector(
    selector: str, family: str | None = None, *, within: bool = False
) -> str:
    label = label_method(selector, family=family)
    if label != selector:
        return label_within(selector) if within else label
    label = (
        "Chosen by name" if selector == "named" else selector.replace("-", " ").capitalize()
    )
    return label.lower() if within else label


def usual_structure(*, scattered: bool) -> str:
    """Name the structure of a fit by default; only some can hold scattered weights."""
    return next(n for n, kind in STRUCTURES.items() if kind.scattered or not scattered)
