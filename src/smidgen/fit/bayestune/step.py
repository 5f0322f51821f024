"""One Langevin step under the marginal prior of `smidgen.fit.bayestune.scale_prior`.

With the likelihood counted as N/T examples, a preconditioner G that is fixed after burn-in
and h = 2 η T/N, a step is

    θ ← θ − η G ∇L − (h/2) G (θ − θ̄) E[1/λ | r]/r + γ √(h G) ξ,   r² = (θ − θ̄)² + c h G

with L the mean loss of a batch. Its prior is not the one of the model: the drift is the
slope of log p(θ̄ + r), whose spike is rounded off below the length of one step, which no
chain could resolve. For α < 1 most of the prior's mass lies in there and is lost as the
density is normalised anew, so weights leave the spike far more readily than the prior
has it, the more the longer the step. `Langevin.expected_tail` gives the law that is sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn

from smidgen.errors import DataError
from smidgen.fit.bayestune.scale_prior import ScalePrior
from smidgen.runtime.artifact import require_like
from smidgen.runtime.checkpoint import with_prefix

_CHUNK = 1 << 16
# The squared gradients' running mean forgets over a hundred steps.
_KEPT = 0.99
# Odd numbers from −127 to 127 have this standard deviation.
_ODD_DEVIATION = ((128**2 - 1) / 3) ** 0.5
# The spike is rounded off no less than this, also where the prior only has a kink.
_LEAST_ROUNDING = 0.5
# G is not one number: its prior is averaged over these quantiles of √G.
_QUANTILES = tuple(i / 10 for i in range(1, 10))
_ENOUGH = 10_000


@dataclass(frozen=True)
class StepSettings:
    """How far and how noisily a step moves."""

    learning_rate: float
    temperature: float = 1.0
    noise_discount: float = 1.0
    preconditioned: bool = True
    clip: float | None = None


class Langevin:
    """Preconditioned Langevin steps under the marginal prior.

    The noise is uniform over 128 values, of mean 0 and variance 1: a step of weak order one
    needs only its first moments, and a normal draw for every weight would take as long as
    half a training step. `base` are the pretrained values of the weights with a prior; the
    preconditioner is fixed after `burn_in` steps.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        prior: ScalePrior,
        settings: StepSettings,
        num_data: int,
        burn_in: int,
        seed: int,
    ) -> None:
        self.tensors, self.base, self.prior = tensors, base, prior
        self.settings, self.burn_in = settings, burn_in
        # h of the module's docstring.
        self.pace = 2 * settings.learning_rate * settings.temperature / num_data
        self.rounding = max(1 - prior.shape, _LEAST_ROUNDING)
        # Mean squared gradients until the burn-in ends, then √G.
        start = torch.zeros_like if settings.preconditioned else torch.ones_like
        self.memory = {n: start(t).detach().flatten() for n, t in tensors.items()}
        self.level = torch.zeros((), dtype=torch.float64)
        device = next(iter(tensors.values())).device
        self.generator = torch.Generator(device).manual_seed(seed)

    def move(self, step: int) -> None:
        """Take one step from the gradients of the mean loss."""
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(list(self.tensors.values()), self.settings.clip)
        warming = self.settings.preconditioned and step <= self.burn_in
        if warming and not self.level:
            self.level += _mean_size(self.tensors.values())
        total, count = 0.0, 0
        for name, tensor in self.tensors.items():
            if tensor.grad is None:
                # It took no part in this batch and stays; what it remembers is settled.
                if warming and step == self.burn_in:
                    memory = self.memory[name]
                    self._warm(memory, torch.zeros_like(memory), step)
                continue
            flat, gradients = tensor.view(-1), tensor.grad.reshape(-1)
            base = self.base[name].reshape(-1) if name in self.base else None
            noise = self._noise(flat.numel())
            for start in range(0, flat.numel(), _CHUNK):
                here = slice(start, start + _CHUNK)
                root = self.memory[name][here]
                if warming:
                    root, size = self._warm(root, gradients[here], step)
                    total += size
                place = None if base is None else base[here]
                self._move_chunk(flat[here], place, gradients[here], root, noise[here])
            count += flat.numel()
        if warming:
            self.level.fill_(total / max(count, 1))

    def scales(self, name: str, displacement: Tensor) -> Tensor:
        """E[λ | Δ] of a parameter's weights."""
        # Under the prior as stated, at Δ and not at r: r grows with G, and weights that get
        # no gradient would rank high for standing still.
        return self.prior.mean(displacement)

    def expected_tail(self, distances: Sequence[float]) -> list[float]:
        """P(Δ > distance) of a weight without data under the law that is sampled."""
        # p(θ̄ + r) to the power of 1/γ², averaged over the weights' G.
        power = self.settings.noise_discount**-2 if self.settings.noise_discount else inf
        roots = torch.cat([self.memory[name] for name in self.base])
        roots = roots[:: max(1, len(roots) // _ENOUGH)].double()
        quantiles = roots.quantile(roots.new_tensor(_QUANTILES)).square().tolist()
        tails = [
            self.prior.rounded_tail(distances, self.rounding * self.pace * square, power)
            for square in quantiles
        ]
        return [sum(tail) / len(tail) for tail in zip(*tails, strict=True)]

    def state(self) -> dict[str, Tensor]:
        """What the next step depends on."""
        tensors = {"generator": self.generator.get_state(), "level": self.level}
        return {**tensors, **with_prefix("memory", self.memory)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from an earlier state."""
        self.generator.set_state(state["generator"])
        self.level.copy_(require_like("level", state["level"], self.level))
        for name, tensor in self.memory.items():
            tensor.copy_(require_like(name, state[f"memory/{name}"], tensor))

    def _warm(self, squares: Tensor, gradient: Tensor, step: int) -> tuple[Tensor, float]:
        """Update the mean squares in place; return √G and the sum of root mean squares."""
        squares.mul_(_KEPT).addcmul_(gradient, gradient, value=1 - _KEPT)
        sizes = (squares / (1 - _KEPT**step)).sqrt_()
        total = float(sizes.sum())
        # Damped by the mean over all weights: what gets no gradient must not run away.
        root = sizes.add_(float(self.level)).rsqrt_()
        if step == self.burn_in:
            squares.copy_(root)
        return root, total

    def _move_chunk(
        self,
        flat: Tensor,
        base: Tensor | None,
        gradient: Tensor,
        root: Tensor,
        noise: Tensor,
    ) -> None:
        settings = self.settings
        drift = gradient
        if base is not None:
            displacement = flat - base
            squares = displacement * displacement
            squares.addcmul_(root, root, value=self.rounding * self.pace)
            pull = displacement.mul_(self.prior.pull(squares))
            # Everything is in units of the mean loss: h/2 = η · (h/2η).
            share = self.pace / (2 * settings.learning_rate)
            drift = torch.add(gradient, pull, alpha=share)
        flat.addcmul_(drift * root, root, value=-settings.learning_rate)
        amount = settings.noise_discount * self.pace**0.5 / _ODD_DEVIATION
        flat.addcmul_(noise.to(flat.dtype), root, value=amount)

    def _noise(self, count: int) -> Tensor:
        """Draw odd numbers from −127 to 127, eight at a time."""
        words = torch.empty(count // 8 + 1, dtype=torch.int64, device=self.generator.device)
        words.random_(-(2**63), None, generator=self.generator)
        # The lowest bit of every byte is set: odd numbers are symmetric around zero.
        return words.bitwise_or_(0x0101010101010101).view(torch.int8)[:count]


def _mean_size(tensors: Iterable[Tensor]) -> float:
    """The mean |gradient| over all weights that have one."""
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    total = sum(float(gradient.abs().sum()) for gradient in gradients)
    if not total > 0:
        raise DataError(
            "no weight gets a gradient from the first batch. Check that the outputs "
            "depend on the parameters of subset."
        )
    return total / sum(gradient.numel() for gradient in gradients)
