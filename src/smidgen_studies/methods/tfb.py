"""Training-free Bayesianisation of LoRA (TFB, Shi et al., NeurIPS 2025), written from the paper.

An adapter adds B A to a weight. With B = U diag(d) Vᵀ the paper takes B' = U diag(d) and
A' = Vᵀ A, and gives A'_ij the variance (σ / d_i)²: in the weights' own space noise of one
size in the directions that B reaches. Since B V E = B' E, a draw of the adapter is A + V E
with E_ij = σ z_ij / d_i, and B stays.

σ is the largest that held-out rows bear: by bisection, until their NLL under draws is above
the adapter's own by a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from smidgen import select
from smidgen.errors import ArgumentError
from smidgen.fit.calibration.samples import held_out
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.posterior.base import Config, Posterior, Sampler, Tensors
from smidgen.runtime.guard import fingerprint, require_fingerprint
from smidgen.types import Batch

_DOWN, _UP = ".lora_A.", ".lora_B."


@dataclass(frozen=True, eq=False, kw_only=True)
class TfbPosterior(Posterior):
    """Noise of one size `sigma` in the directions that an adapter's B reaches."""

    sigma: float
    method: ClassVar[str] = "tfb"
    packed_types: ClassVar[dict[str, Any]] = {"sigma": float}

    def require(self, model: nn.Module) -> None:
        """Refuse a model that it does not belong to."""
        require_fingerprint(model, self.fingerprint)

    def sampler(self, model: nn.Module) -> Sampler:
        """Prepare draws of all A."""
        spreads = dict(_find_spreads(model, self.subset.parts))

        def draw(generators: Sequence[torch.Generator]) -> Iterator[dict[str, Tensor]]:
            for generator in generators:
                yield {
                    name: mean + self.sigma * spread @ _draw_normal(mean, generator)
                    for name, (mean, spread) in spreads.items()
                }

        return draw

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Nothing but σ is stored."""
        return {}, {"sigma": self.sigma}

    @classmethod
    def unpack(
        cls, tensors: Tensors, config: Config, problem: Problem, common: Config
    ) -> Self:
        """Put together what `pack` split."""
        return cls(**common, sigma=config["sigma"])

    def settings(self) -> dict[str, Any]:
        """List what held-out data chose."""
        return {**super().settings(), "sigma": self.sigma}


def _find_spreads(
    model: nn.Module, names: Iterable[str]
) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Yield A (r, m) of each adapter, and V diag(1/d) (r, r) of its B (n, r)."""
    known = dict(model.named_parameters())
    for name in names:
        down, up = known[name].detach(), known[name.replace(_DOWN, _UP)].detach()
        _, d, v = torch.linalg.svd(up.double(), full_matrices=False)
        # A direction that B does not reach has no noise in the weights' own space.
        reached = d > d[0] * 1e-6
        inverse = torch.where(reached, 1 / d.clamp_min(d[0] * 1e-6), 0.0)
        yield name, (down, (v.T * inverse).to(down))


def _draw_normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator).to(like)


@dataclass(frozen=True)
class TfbSettings:
    """How σ is searched: the paper's tolerance is 0.3 % of the NLL.

    Args:
        tolerance: By how much, relative to it, the NLL may rise.
        largest: Where the search begins.
        halvings: How often the bracket of σ is halved, on a log scale.
        samples: Draws.
    """

    tolerance: float = 0.003
    smallest: float = 1e-4
    largest: float = 1.0
    halvings: int = 7
    samples: int = 10


def bayesianise(
    problem: SettledProblem, batches: Iterable[Batch], settings: TfbSettings, seed: int = 0
) -> TfbPosterior:
    """Find the largest σ that held-out batches bear."""
    names = [name for name, _ in problem.model.named_parameters() if _DOWN in name]
    if not names:
        raise ArgumentError(
            "model must have LoRA adapters for TFB, got none. Fine-tune it with peft's LoRA."
        )
    rows = list(batches)
    posterior = TfbPosterior(
        subset=select.named(problem.model, names),
        likelihood=problem.likelihood,
        num_data=0,
        fingerprint=fingerprint(problem.model),
        sigma=settings.smallest,
    )

    def is_borne(sigma: float) -> bool:
        candidate = replace(posterior, sigma=sigma)
        held = held_out(problem, candidate, rows, samples=settings.samples, seed=seed)
        before = held.nll(held.point, 1.0)
        return held.nll(held.outputs, 1.0) <= before * (1 + settings.tolerance)

    low, high = settings.smallest, settings.largest
    for _ in range(settings.halvings):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_borne(middle) else (low, middle)
    return replace(posterior, sigma=low)
