"""BayesTune's first stage: a Langevin chain that tells which weights are worth tuning.

θ_i ~ Laplace(θ̄_i, λ_i) around the pretrained value, λ_i ~ Gamma(α, rate β). The scales are
integrated out (`smidgen.scale_prior`), so the chain runs over θ alone, and E[λ_i | θ_i] is
averaged along it. With the likelihood counted as N/T examples, a preconditioner G that is
fixed after burn-in and h = 2 η T/N, one step is

    θ ← θ − η G ∇L − (h/2) G (θ − θ̄) E[1/λ | r]/r + γ √(h G) ξ,   r² = (θ − θ̄)² + c h G

with L the mean loss of a batch. r rounds the prior's spike off below the length of one
step, which no chain could resolve. Kim and Hospedales (NeurIPS 2023) have the model; their
own joint update of θ and λ is `update="published"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from smidgen.affine import affine_coverage
from smidgen.endless import Endless
from smidgen.errors import ArgumentError, DataError
from smidgen.fingerprint import fingerprint
from smidgen.fit.chain import Chain, Course, Mover, Scales
from smidgen.fit.preparation import training_size
from smidgen.fit.published import Published
from smidgen.guard import untouched
from smidgen.problem import Problem, as_problem
from smidgen.scale_prior import ScalePrior
from smidgen.subset import Subset, Whole
from smidgen.trainable import Trainable
from smidgen.types import Batch

Update = Literal["langevin", "published"]
Head = Subset | Literal["last", "none"]

_CHUNK = 1 << 16
# The squared gradients' running mean forgets over a hundred steps.
_KEPT = 0.99
# Odd numbers from −127 to 127 have this standard deviation.
_ODD_DEVIATION = ((128**2 - 1) / 3) ** 0.5
# The spike is rounded off no less than this, also where the prior only has a kink.
_LEAST_ROUNDING = 0.5


def langevin(
    model: nn.Module | Problem,
    train: Iterable[Batch],
    *,
    among: Subset | None = None,
    head: Head = "last",
    prior: ScalePrior | None = None,
    steps: int = 1000,
    burn_in: int = 500,
    thin: int = 10,
    learning_rate: float = 1e-4,
    temperature: float = 1e-5,
    noise_discount: float = 0.1,
    preconditioned: bool = True,
    clip: float | None = None,
    num_data: int | None = None,
    update: Update = "langevin",
    displacement: bool = False,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    progress: bool = True,
) -> Scales:
    """Average the scale of every weight's prior along a chain from the pretrained weights.

    The model runs in evaluation mode and is never changed. Beside the moving weights and
    their gradients the chain keeps three vectors of their size.

    Args:
        model: The pretrained model, or its `Problem`.
        train: Training batches; a loader that can be read again.
        among: The whole parameters that move; all affine maps if left out.
        head: Whole parameters that move without a prior, being new, and are not ranked:
            "last" is the last affine map, "none" ranks them all.
        prior: Of the other weights; Gamma(0.01, rate 100) scales if left out.
        steps: Length of the chain.
        burn_in: Steps before the first sample; the preconditioner is fixed after them.
        thin: Steps from one sample to the next.
        learning_rate: η, the length of a step in units of the preconditioned gradient.
        temperature: T of the likelihood, which counts as N/T examples; the prior stays
            as it is.
        noise_discount: γ, a factor on the noise; the posterior is sampled to the power
            of 1/γ².
        preconditioned: Divide by the root mean square of the gradients.
        clip: Largest norm of the likelihood's gradient; none if left out. The prior is
            added after clipping.
        num_data: N; the length of the loader's data set if left out.
        update: "langevin", or "published": Adam with noise on θ and λ, whose
            temperature, clipping and preconditioner are those of the released code.
        displacement: Average |θ − θ̄| too, one more vector.
        seed: Of the noise.
        checkpoint: A file to go on from after an interruption.
        checkpoint_every: Steps between writing it.
        progress: Draw a progress bar on a terminal.

    Returns:
        Mean scales of all weights of `among` outside `head`, with diagnostics.

    Raises:
        ArgumentError: If an argument is outside what it may be.
        DataError: If there is no label, no length, or the loss is not finite.
    """  # noqa: DOC502
    given = as_problem(model)
    prior = prior or ScalePrior()
    course = Course(steps, burn_in, thin)
    settings = Settings(learning_rate, temperature, noise_discount, preconditioned, clip)
    _check(course, settings, update)
    moving, free = _parts(given.model, among, head)
    batches = Endless(train)
    with batches.borrowed(seed), untouched(given.model), torch.enable_grad():
        settled, _, _ = given.settled(train)
        size = training_size(settled, train, num_data)
        about = {
            "what": f"scales by {update}",
            "model": fingerprint(given.model),
            "num_data": size,
            "among": sorted(moving.parts),
            "head": sorted(free),
            "displacement": displacement,
            "seed": seed,
            **{"course": asdict(course), "settings": asdict(settings)},
            "prior": asdict(prior),
        }
        torch.manual_seed(seed)
        tensors = Trainable(given.model, moving).tensors
        ranked = [name for name in tensors if name not in free]
        base = {n: p.detach() for n, p in given.model.named_parameters() if n in ranked}
        mover: Mover
        if update == "published":
            mover = Published(tensors, base, prior, course.burn_in, learning_rate, seed)
        else:
            mover = Langevin(tensors, base, prior, settings, size, course.burn_in, seed)
        chain = Chain(
            settled, tensors, ranked, prior, course, mover, keep_displacement=displacement
        )
        return chain.run(batches, about, checkpoint, checkpoint_every, progress=progress)


@dataclass(frozen=True)
class Settings:
    """How far and how noisily a step goes."""

    learning_rate: float
    temperature: float = 1.0
    noise_discount: float = 1.0
    preconditioned: bool = True
    clip: float | None = None


class Langevin:
    """Preconditioned Langevin steps under the marginal prior.

    The noise is uniform over 128 values, of mean 0 and variance 1: the increments of a
    step of weak order one need no more than their first moments, and a normal draw for
    every weight would take as long as half a training step.

    Args:
        tensors: The moving weights.
        base: Pretrained values of those that have a prior.
        prior: The prior.
        settings: The step.
        num_data: N.
        burn_in: Steps after which the preconditioner is fixed.
        seed: Of the noise.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        prior: ScalePrior,
        settings: Settings,
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
                    self._warmed(memory, torch.zeros_like(memory), step)
                continue
            flat, gradients = tensor.view(-1), tensor.grad.reshape(-1)
            base = self.base[name].reshape(-1) if name in self.base else None
            noise = self._noise(flat.numel())
            for start in range(0, flat.numel(), _CHUNK):
                here = slice(start, start + _CHUNK)
                root = self.memory[name][here]
                if warming:
                    root, size = self._warmed(root, gradients[here], step)
                    total += size
                place = None if base is None else base[here]
                self._move_chunk(flat[here], place, gradients[here], root, noise[here])
            count += flat.numel()
        if warming:
            self.level.fill_(total / max(count, 1))

    def scales(self, name: str, displacement: Tensor) -> Tensor:
        """E[λ | Δ] of a parameter's weights."""
        return self.prior.mean(displacement)

    def state(self) -> dict[str, Tensor]:
        """What the next step depends on."""
        drawn = {"generator": self.generator.get_state(), "level": self.level}
        return {**drawn, **{f"memory/{n}": t for n, t in self.memory.items()}}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Go on from another's state."""
        self.generator.set_state(state["generator"])
        self.level.copy_(state["level"])
        for name, tensor in self.memory.items():
            tensor.copy_(state[f"memory/{name}"])

    def _warmed(self, squares: Tensor, gradient: Tensor, step: int) -> tuple[Tensor, float]:
        """Update the mean squares in place; √G and the sum of root mean squares."""
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
    gradients = [each.grad for each in tensors if each.grad is not None]
    total = sum(float(each.abs().sum()) for each in gradients)
    if not total > 0:
        raise DataError(
            "no weight gets a gradient from the first batch. Check that the outputs "
            "depend on the parameters of among."
        )
    return total / sum(each.numel() for each in gradients)


def _check(course: Course, settings: Settings, update: str) -> None:
    if update not in get_args(Update):
        raise ArgumentError(f"update must be one of {get_args(Update)}, got {update!r}.")
    if course.burn_in < 1 or course.thin < 1 or course.samples < 2:
        raise ArgumentError(
            "burn_in and thin must be 1 or more and steps leave two samples after "
            f"burn-in, got steps={course.steps}, burn_in={course.burn_in}, "
            f"thin={course.thin}."
        )
    positive = {
        "learning_rate": settings.learning_rate,
        "temperature": settings.temperature,
    }
    if settings.clip is not None:
        positive["clip"] = settings.clip
    for name, value in positive.items():
        if not value > 0:
            raise ArgumentError(f"{name} must be > 0, got {value}.")
    if not settings.noise_discount >= 0:
        raise ArgumentError(
            f"noise_discount must be 0 or more, got {settings.noise_discount}."
        )


def _parts(
    model: nn.Module, among: Subset | None, head: Head
) -> tuple[Subset, frozenset[str]]:
    """Settle what moves, and the names of what moves without a prior."""
    found = affine_coverage(model)
    if among is None:
        among = Subset(found.universe, {name: Whole() for name in found.universe})
    if head == "last":
        head = found.last()
    elif not isinstance(head, Subset) and head != "none":
        raise ArgumentError(f"head must be a Subset, 'last' or 'none', got {head!r}.")
    free = frozenset(head.parts) if isinstance(head, Subset) else frozenset()
    ranked = among.parts.keys() - free
    if isinstance(head, Subset):
        among = among | head
    for name, part in among.parts.items():
        if not isinstance(part, Whole):
            raise ArgumentError(
                f"among and head must hold whole parameters, got a part of {name!r}. Make "
                "them with smidgen.select.named."
            )
    for name, parameter in model.named_parameters():
        if name in among.parts and parameter.dtype.itemsize < 4:
            raise ArgumentError(
                f"model must be fp32 or fp64 where the chain moves it, got {name!r} in "
                f"{parameter.dtype}: its steps would round to nothing. Use model.float()."
            )
    if not ranked:
        raise ArgumentError("among must hold more than the head. Pass head='none'.")
    return among, free
