"""The one table of methods: how each is called in full and in short, and how it is drawn.

Some names of methods in records mean two things: "full" is every layer in a comparison of
posteriors but every weight where weights are fine-tuned. Such a name has a second row,
"context:name", which `label_method` prefers in that context.

The colours are those of Okabe and Ito, which all common kinds of colour vision tell apart;
markers and dashes say the same again for print without colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Literal

from smidgen.report.drawing.palette import Style

Context = Literal["posterior", "tuning", "uci"]
"""Where a method is named: beside other posteriors, fine-tunes, or on the UCI tables."""

FAMILIES = {
    "laplace": "Laplace",
    "swag": "SWAG",
    "ssvi": "SSVI",
    "point": "Kept temperature scaling",
}
"""What a fit is called, by the name of its method."""


@dataclass(frozen=True)
class KnownMethod:
    """A method smidgen knows by name."""

    label: str
    style: Style | None = None
    short: str = ""
    meaning: str = ""


_DOTS = (1.4, 1.0)
_MIN_DASH = (2.4, 1.4)
_DRAWN_DASH = (2.4, 1.2)
_LAST_DASH = (6.0, 1.6, 1.2, 1.6)
_LONG_DASH = (8.0, 2.0)

METHODS: Mapping[str, KnownMethod] = {
    "map": KnownMethod("MAP", Style("#5f6368", "o", (1.2, 1.6))),
    "temperature": KnownMethod("Temperature scaling", Style("#d55e00", "s", (4.5, 1.8))),
    "sparse-kfac": KnownMethod(
        "Sparse-KFAC",
        Style("#0072b2", "D"),
        meaning="rows and columns of the largest weights, one percentage for all layers",
    ),
    "sparse-kfac-head": KnownMethod(
        "Sparse-KFAC | head",
        Style("#0072b2", "*", (6.0, 1.4)),
        meaning="rows and columns of the largest weights of all layers, and the whole head",
    ),
    "best-budget": KnownMethod(
        "Best budget",
        Style("#882255", "*", (7.0, 1.4)),
        meaning="a percentage for each layer: step by step, the larger block that lowers "
        "validation NLL most for each additional float",
    ),
    "random": KnownMethod(
        "Random modules",
        Style("#cc79a7", "o", _DRAWN_DASH),
        "Random",
        "whole layers, drawn at random",
    ),
    "last-layer": KnownMethod(
        "Last layer", Style("#009e73", "^", _LAST_DASH), meaning="the last layer alone"
    ),
    "full": KnownMethod("All layers", Style("#1f2328", "s"), meaning="every layer, whole"),
    "isotropic": KnownMethod(
        "Isotropic",
        Style("#007a87", "o", (5.0, 1.6)),
        meaning="the rows and columns of Sparse-KFAC without any curvature: nothing is stored",
    ),
    "head-isotropic": KnownMethod(
        "Last layer | isotropic body",
        Style("#a0522d", "s", _LAST_DASH),
        "Last | isotropic",
        "curvature of the last layer; every other layer whole and without curvature",
    ),
    "sparse-kfac-last-layer": KnownMethod(
        "Sparse-KFAC | last layer",
        Style("#0072b2", "^"),
        "KFAC | last",
    ),
    "bayesify": KnownMethod("bayesify", Style("#882255", "D")),
    "point": KnownMethod("Kept temperature scaling", Style("#d55e00", "o", (4.5, 1.8))),
    "magnitude": KnownMethod(
        "Largest weights", meaning="single weights of the largest magnitude"
    ),
    "max-mlp": KnownMethod("Max norm, MLP", Style("#8a6d00", "^"), "max, MLP"),
    "min-mlp": KnownMethod("Min norm, MLP", Style("#8a6d00", "v", _MIN_DASH), "min, MLP"),
    "max-attention": KnownMethod(
        "Max norm, attention", Style("#332288", "^"), "max, attention"
    ),
    "min-attention": KnownMethod(
        "Min norm, attention", Style("#332288", "v", _MIN_DASH), "min, attention"
    ),
    "posterior": KnownMethod("Posterior", Style("#0072b2", "D")),
    "modules": KnownMethod("Modules"),
    "single-weights": KnownMethod("Single weights"),
    "swag": KnownMethod("SWAG"),
    "constant": KnownMethod("Constant predictor", Style("#9a9a9a", "o", (1.0, 2.0))),
    "dropout": KnownMethod("MC dropout", Style("#b8860b", "o", _LONG_DASH)),
    "dropout-temperature": KnownMethod("MC dropout, temperature", Style("#b8860b", "s")),
    "ensemble": KnownMethod("Deep ensemble", Style("#117733", "o", _LONG_DASH)),
    "ensemble-temperature": KnownMethod(
        "Deep ensemble, temperature", Style("#117733", "s")
    ),
    # Posteriors over the weights of LoRA adapters.
    "adapter": KnownMethod("LoRA, Kronecker", Style("#0072b2", "^"), "LoRA"),
    "adapter-isotropic": KnownMethod(
        "LoRA, isotropic", Style("#007a87", "s", (5.0, 1.6)), "LoRA isotropic"
    ),
    "swag-adapter": KnownMethod("LoRA, SWAG", Style("#cc79a7", "v", _DOTS), "LoRA SWAG"),
    "tfb": KnownMethod("LoRA, TFB", Style("#b8860b", "D", _DOTS), "TFB"),
    "tfb-temperature": KnownMethod("LoRA, TFB, temperature", Style("#b8860b", "D")),
    # Ways of choosing the rows to label next.
    "acquire-random": KnownMethod("Random rows", Style("#5f6368", "o", (1.2, 1.6))),
    "acquire-entropy": KnownMethod("Largest entropy", Style("#d55e00", "s", (4.5, 1.8))),
    "acquire-information": KnownMethod(
        "Most information", Style("#0072b2", "D"), meaning="mutual information (BALD)"
    ),
    "acquire-information-diverse": KnownMethod(
        "Most information, diverse",
        Style("#009e73", "^", (6.0, 1.6)),
        meaning="rows drawn in proportion to their mutual information",
    ),
    # Fine-tunes.
    "tuning:full": KnownMethod("All weights"),
    "full-longer": KnownMethod("All weights, longer"),
    "lora": KnownMethod("LoRA"),
    "lora-longer": KnownMethod("LoRA, longer"),
    "bitfit": KnownMethod("BitFit"),
    "head": KnownMethod("Head only"),
    "tuning:random": KnownMethod("Random weights"),
    "gradient": KnownMethod("Largest squared gradients"),
    "displacement": KnownMethod("Largest mean |Δ| of the chain"),
    "published": KnownMethod("BayesTune, published update"),
    "bayestune": KnownMethod("BayesTune"),
    # Single weights on the UCI tables, for Laplace and SWAG alike.
    "uci:magnitude": KnownMethod("Largest weights", Style("#0072b2", "D"), "magnitude"),
    "uci:variance": KnownMethod("Largest variances", Style("#009e73", "v"), "variance"),
    "uci:random": KnownMethod(
        "Random weights", Style("#cc79a7", "o", _DRAWN_DASH), "random"
    ),
    "uci:full": KnownMethod("All weights", Style("#1f2328", "s"), "all"),
    "uci:sparse-kfac": KnownMethod("Rows × columns", Style("#8a6d00", "^")),
    "uci:last-layer": KnownMethod("Last layer", Style("#882255", "s", _LAST_DASH)),
    "uci:bayestune": KnownMethod(
        "BayesTune, T = 1e-5", Style("#d55e00", "o"), "BayesTune cold"
    ),
    "uci:bayestune-warm": KnownMethod(
        "BayesTune, T = 1", Style("#e69f00", "v", (6.0, 1.6)), "BayesTune warm"
    ),
    "uci:ssvi": KnownMethod("SSVI's weights", Style("#332288", "D", (4.5, 1.8)), "SSVI's"),
}
# Five and six share no divisor, so thirty other methods all look different.
_OTHER_COLOURS = ("#aa4499", "#997733", "#56b4e9", "#44557a", "#2aa198", "#cc6677")
_OTHER_MARKERS = ("v", "o", "s", "^", "D")
_OTHER_DASHES = ((3.0, 1.2), _LONG_DASH, (2.0, 1.0), (5.0, 1.5))


def label_method(
    name: str, context: Context = "posterior", *, family: str | None = None
) -> str:
    """Name a method as people read it."""
    if family is not None:
        return f"{FAMILIES.get(family, family)}, {label_within(name, context)}"
    method = METHODS.get(f"{context}:{name}") or METHODS.get(name)
    return method.label if method else name


def label_within(name: str, context: Context = "posterior") -> str:
    """Name a method inside a sentence, where only proper names keep their capitals."""
    label = label_method(name, context)
    proper = label.startswith(("BayesTune", "BitFit", "LoRA", "MAP", "MC", "SSVI", "SWAG"))
    return label if proper else label[0].lower() + label[1:]


def shorten_method(name: str) -> str:
    """Name a scheme in few letters, to stand at the end of its line."""
    plain = name.removeprefix("swag-")
    method = METHODS.get(plain)
    if method is None:
        return name
    short = method.short or method.label
    return short if plain == name else "SW " + short.replace("attention", "att.")


def explain_methods() -> dict[str, str]:
    """Say what each scheme of a ramp makes stochastic, by name."""
    return {name: method.meaning for name, method in METHODS.items() if method.meaning}


def assign_styles(names: Sequence[str]) -> dict[str, Style]:
    """Give every method its style; the methods smidgen knows always have theirs."""
    styles = {name: method.style for name, method in METHODS.items() if method.style}
    colours, markers = cycle(_OTHER_COLOURS), cycle(_OTHER_MARKERS)
    dashes = cycle(_OTHER_DASHES)
    for name in dict.fromkeys(names):
        if name in styles:
            continue
        family, _, choice = name.partition("-")
        base = styles.get(f"uci:{choice}") or styles.get(choice)
        if base is not None and family == "laplace":
            styles[name] = base
        elif base is not None and family == "swag":
            # The same choice of weights has the same colour; SWAG's lines are dotted.
            styles[name] = replace(base, dash=_DOTS)
        else:
            styles[name] = Style(next(colours), next(markers), next(dashes))
    return styles
