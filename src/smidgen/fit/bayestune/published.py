"""BayesTune's released update: Adam with noise, on the weights and on their scales.

Everything is divided by N̂ = 10¹², which is not the size of any data set:

    g_θ = ∇L (norm clipped to 1) + (θ − θ̄)/|θ − θ̄|/(λ N̂) + √(2/(N̂ η)) ξ
    g_λ = ((2 − α)/λ + β − |θ − θ̄|/λ²)/N̂ + √(2/(N̂ η_λ)) ξ

go through AdamW (decay 0.01 of matrices) and Adam. Adam divides drift and noise by the same
size, so this is no Langevin chain: with the released numbers a scale is a random walk.
Written from the description in `docs/methods/bayestune.md`, to compare with. Unlike there
the rate does not follow a schedule (theirs is at 4 to 10 percent of its nominal value), the
head has no prior, affine layers alone move by default, and chains are as long as they are
asked to be, not 20,000 steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from smidgen.fit.bayestune.scale_prior import ScalePrior
from smidgen.fit.epochs import group_by_decay
from smidgen.runtime.artifact import require_like
from smidgen.runtime.checkpoint import (
    of_prefix,
    pack_optimiser,
    unpack_optimiser,
    with_prefix,
)

_DATA_SIZE = 1e12
_SCALE_RATE = 0.01
_FIRST_SCALE, _LEAST_SCALE = 1e-4, 1e-8
_DECAY, _CLIP = 0.01, 1.0


class Published:
    """The joint update of weights and scales as it was released; `rate` is η."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        prior: ScalePrior,
        burn_in: int,
        rate: float,
        seed: int,
    ) -> None:
        self.tensors, self.base, self.prior, self.rate = tensors, base, prior, rate
        # As in the released settings, five sixths of the burn-in are plain AdamW.
        self.plain = burn_in * 5 // 6
        self.raw = {n: torch.full_like(tensors[n], _FIRST_SCALE) for n in base}
        groups = group_by_decay(tensors.values(), _DECAY)
        self.weights = torch.optim.AdamW(groups, lr=rate, fused=True)
        self.widths = torch.optim.Adam(self.raw.values(), lr=_SCALE_RATE, fused=True)
        self._optimisers = {"weights": self.weights, "widths": self.widths}
        self.generator = torch.Generator(next(iter(tensors.values())).device)
        self.generator.manual_seed(seed)

    def move(self, step: int) -> None:
        """Take one step from the gradients of the mean loss."""
        nn.utils.clip_grad_norm_(list(self.tensors.values()), _CLIP)
        if step > self.plain:
            for name, tensor in self.tensors.items():
                if tensor.grad is not None:
                    self._join(name, tensor)
            self.widths.step()
        self.weights.step()

    def scales(self, name: str, displacement: Tensor) -> Tensor:
        """The scales as they are."""
        return self.raw[name].flatten().clamp(min=_LEAST_SCALE)

    def expected_tail(self, distances: Sequence[float]) -> list[float]:
        """The prior's own tails: what this update samples has no known law."""
        return [self.prior.tail(distance) for distance in distances]

    def state(self) -> dict[str, Tensor]:
        """What the next step depends on."""
        tensors = {"generator": self.generator.get_state(), **with_prefix("raw", self.raw)}
        for label, optimiser in self._optimisers.items():
            tensors |= with_prefix(label, pack_optimiser(optimiser))
        return tensors

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from an earlier state."""
        self.generator.set_state(state["generator"])
        for name, raw in self.raw.items():
            raw.copy_(require_like(name, state[f"raw/{name}"], raw))
        for label, optimiser in self._optimisers.items():
            unpack_optimiser(optimiser, of_prefix(label, state))

    def _join(self, name: str, tensor: Tensor) -> None:
        """Add prior and noise to a weight's gradient, and compute its scales' gradient."""
        assert tensor.grad is not None
        tensor.grad.add_(self._noise(tensor, self.rate))
        if name not in self.base:
            return
        displacement, raw = tensor - self.base[name], self.raw[name]
        scales = raw.clamp(min=_LEAST_SCALE)
        tensor.grad.addcdiv_(displacement.sign(), scales, value=1 / _DATA_SIZE)
        drift = (2 - self.prior.shape) / scales + self.prior.rate
        drift.sub_(displacement.abs_().div_(scales.square_()))
        raw.grad = drift.div_(_DATA_SIZE).add_(self._noise(raw, _SCALE_RATE))

    def _noise(self, like: Tensor, rate: float) -> Tensor:
        drawn = torch.empty_like(like, requires_grad=False)
        return drawn.normal_(0, (2 / (_DATA_SIZE * rate)) ** 0.5, generator=self.generator)
