"""`Link`: how Gaussian outputs become probabilities, with its settings."""

from __future__ import annotations

from dataclasses import dataclass

from smidgen.outputs.links import DRAWS


@dataclass(frozen=True)
class Link:
    """A link and its settings; the name alone does wherever a link is asked for.

    Args:
        name: "auto", "probit" (two classes, exact in f₁ − f₀), "diagonal-probit" (the
            paper's equation 12), "sampling" or "laplace-bridge".
        draws: Draws of the logits if the link samples.
        top: Give only this many classes of each example a covariance, its likeliest:
            top − 1 backward passes. The others keep their distance to the likeliest.
    """

    name: str = "auto"
    draws: int = DRAWS
    top: int | None = None
