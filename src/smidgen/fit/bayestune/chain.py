"""A chain over weights that averages the scale of each weight's prior.

A `WeightUpdate` moves the weights; the chain takes the likelihood's gradient, gathers
samples with burn-in and thinning, and resumes bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from smidgen.errors import DataError, StoreError
from smidgen.fit.bayestune.scale_prior import ScalePrior
from smidgen.fit.epochs import backward, require_finite_gradients
from smidgen.fit.training_run import Learner, TrainingRun
from smidgen.outputs.problem import SettledProblem
from smidgen.runtime.artifact import require_like
from smidgen.runtime.checkpoint import of_prefix, with_prefix
from smidgen.types import Batch
from smidgen.weights.affine import ceil_fraction
from smidgen.weights.top_k import top_k_overlap

# Distances of the prior check, in units of 1/β.
_DISTANCES = (1e-3, 1e-2, 1e-1, 1.0)
_BARS = " ▁▂▃▄▅▆▇█"
# Powers of ten of the scales in the picture beside the progress bar.
_LOWEST_POWER, _POWERS = -12, 12


@dataclass(frozen=True)
class ChainSample:
    """One sample: the NLL of the step's batch, and means over all ranked weights."""

    step: int
    nll: float
    scale: float
    displacement: float


@dataclass(frozen=True)
class PriorCheck:
    """The share of weights further than `distance` from their pretrained values.

    `chain` is the share in the chain. `prior` is that of weights without data under the law
    the chain samples: the prior rounded off below a step's length, to the power of 1/γ².
    `stated` is that of the prior as stated, which no chain samples.
    """

    distance: float
    chain: float
    prior: float
    stated: float


@dataclass(frozen=True, eq=False)
class Scales:
    """The mean scale of every weight's prior along a chain, and how the chain went.

    Args:
        halves: Mean scales by parameter name, of the first and of the second half.
        counts: How many samples each half has.
        prior: The prior.
        traces: One row for each sample.
        check: Shares of weights far from their pretrained values, at four distances.
        displacement: Mean |θ − θ̄| by parameter name, if it was asked for.
    """

    halves: tuple[Mapping[str, Tensor], Mapping[str, Tensor]]
    counts: tuple[int, int]
    prior: ScalePrior
    traces: tuple[ChainSample, ...]
    check: tuple[PriorCheck, ...]
    displacement: Mapping[str, Tensor] | None = None

    def __repr__(self) -> str:
        return f"Scales({self.size:,} weights, {sum(self.counts)} samples)"

    @property
    def means(self) -> dict[str, Tensor]:
        """Mean scales over all samples: what selectors rank by."""
        first, second = self.halves
        share = self.counts[1] / sum(self.counts)
        return {name: first[name].lerp(second[name], share) for name in first}

    def overlap(self, fraction: float = 0.005) -> float:
        """The share of the top fraction that both halves of the chain choose."""
        # Halves of one trajectory: a chain that moves little agrees with itself, whatever
        # the data say. `fit.agreement` compares chains on other data.
        return top_k_overlap(*self.halves, ceil_fraction(self.size, fraction))

    def chance(self, fraction: float = 0.005) -> float:
        """The overlap of two independent choices."""
        return ceil_fraction(self.size, fraction) / self.size

    @property
    def size(self) -> int:
        """How many weights are ranked."""
        return sum(means.numel() for means in self.halves[0].values())

    @property
    def acceptance(self) -> float:
        """How well the prior predicts the weights' displacements, in [0, 1].

        One minus the largest difference between the shares `chain` and `prior` of the
        check. Below a half, most weights are not where the sampled prior puts them: reject
        the prior.
        """
        return 1 - max(abs(row.chain - row.prior) for row in self.check)

    def to_dict(self, fraction: float = 0.005) -> dict[str, Any]:
        """The diagnostics as JSON values, without the scales themselves."""
        return {
            "prior": asdict(self.prior),
            "samples": sum(self.counts),
            "fraction": fraction,
            "overlap_of_halves": self.overlap(fraction),
            "chance": self.chance(fraction),
            "acceptance": self.acceptance,
            "check": [asdict(row) for row in self.check],
            "traces": [asdict(sample) for sample in self.traces],
        }


@dataclass(frozen=True)
class ChainSchedule:
    """How long a chain is: a sample every `thin` steps after `burn_in`."""

    steps: int
    burn_in: int
    thin: int

    @property
    def samples(self) -> int:
        """How many samples the chain gives."""
        return (self.steps - self.burn_in) // self.thin

    def sample_at(self, step: int) -> int | None:
        """The number of the sample taken after a step, from 0, or None."""
        after = step - self.burn_in
        return after // self.thin - 1 if after > 0 and not after % self.thin else None


class WeightUpdate(Learner, Protocol):
    """Moves weights by their gradients, and knows the scale of each."""

    def move(self, step: int) -> None:
        """Move all tensors by their `.grad`; steps are numbered from 1."""

    def scales(self, name: str, displacement: Tensor) -> Tensor:
        """The scales of a parameter's weights, flat, given their displacements."""

    def expected_tail(self, distances: Sequence[float]) -> list[float]:
        """P(Δ > distance) of weights without data under what is sampled."""


class Chain:
    """The running sums of a chain over some tensors; those in `ranked` have a prior."""

    def __init__(
        self,
        problem: SettledProblem,
        tensors: Mapping[str, Tensor],
        ranked: Iterable[str],
        prior: ScalePrior,
        schedule: ChainSchedule,
        update: WeightUpdate,
        *,
        keep_displacement: bool,
    ) -> None:
        self.problem, self.tensors, self.ranked = problem, tensors, tuple(ranked)
        self.prior, self.schedule, self.update = prior, schedule, update
        self.base = {n: p.detach() for n, p in problem.model.named_parameters()}
        self.sums: dict[str, dict[str, Tensor]] = {
            part: {name: torch.zeros_like(tensors[name]) for name in self.ranked}
            for part in ("first", "second", "displacement")
            if part != "displacement" or keep_displacement
        }
        self.traces: list[ChainSample] = []
        self.tail = torch.zeros(len(_DISTANCES), dtype=torch.float64)
        self.label = "sampling scales"
        self.done = 0

    def run(self, run: TrainingRun, save_every: int, progress: bool) -> Scales:
        """Take all remaining steps and average the scales."""
        left = range(self.done, self.schedule.steps)
        for index, batch in run.steps(left, lambda: self.label, save_every, progress):
            step = index + 1
            with self.problem.reading(batch, run.batches.position):
                nll = self.step(batch, step)
            number = self.schedule.sample_at(step)
            if number is not None:
                self.sample(step, number, nll)
            self.done = step
        run.save()
        return self._scales()

    def step(self, batch: Batch, step: int) -> float:
        """Move the weights by one batch; return its mean NLL before the move."""
        nll = self.problem.within(
            batch, self.tensors, lambda outputs: self._backward(batch, outputs)
        )
        require_finite_gradients(self.tensors.values())
        with torch.no_grad():
            self.update.move(step)
        for tensor in self.tensors.values():
            tensor.grad = None
        return nll

    def _backward(self, batch: Batch, outputs: Tensor) -> float:
        nll, rows = backward(self.problem, batch, outputs)
        if not rows:
            raise DataError(
                "a chain needs labels, and a batch has none but -100. Leave such batches out."
            )
        return nll

    def sample(self, step: int, number: int, nll: float) -> None:
        """Add the weights' present scales to the sums; samples are numbered from 0."""
        half = "first" if number < self.schedule.samples // 2 else "second"
        totals, count, pictured = torch.zeros(2, dtype=torch.float64), 0, []
        for name in self.ranked:
            displacement = (self.tensors[name].detach() - self.base[name]).abs_().flatten()
            if not torch.isfinite(displacement.sum()):
                raise DataError(
                    f"the weights of {name!r} are not finite after {step} steps. Lower "
                    "learning_rate, or check the data."
                )
            scales = self.update.scales(name, displacement)
            self.sums[half][name].view(-1).add_(scales)
            if "displacement" in self.sums:
                self.sums["displacement"][name].view(-1).add_(displacement)
            for i, distance in enumerate(_DISTANCES):
                far = (displacement > distance / self.prior.rate).sum()
                self.tail[i] += far.cpu()
            totals += torch.stack([scales.sum(), displacement.sum()]).double().cpu()
            count += displacement.numel()
            pictured.append(scales[:: max(1, len(scales) // 1000)])
        scale, moved = (totals / count).tolist()
        self.traces.append(ChainSample(step, nll, scale, moved))
        self.label = f"sampling scales, {_picture(torch.cat(pictured))}"

    def _scales(self) -> Scales:
        samples = self.schedule.samples
        first = samples // 2
        counts = {"first": first, "second": samples - first, "displacement": samples}
        for part, sums in self.sums.items():
            for tensor in sums.values():
                tensor.div_(counts[part])
        total = samples * sum(self.tensors[name].numel() for name in self.ranked)
        distances = [distance / self.prior.rate for distance in _DISTANCES]
        shares = (self.tail / total).tolist()
        expected = self.update.expected_tail(distances)
        return Scales(
            halves=(self.sums["first"], self.sums["second"]),
            counts=(counts["first"], counts["second"]),
            prior=self.prior,
            traces=tuple(self.traces),
            check=tuple(
                PriorCheck(distance, share, prior, self.prior.tail(distance))
                for distance, share, prior in zip(distances, shares, expected, strict=True)
            ),
            displacement=self.sums.get("displacement"),
        )

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on."""
        rows = [astuple(sample) for sample in self.traces]
        tensors = {
            "step": torch.tensor(self.done),
            "traces": torch.tensor(rows, dtype=torch.float64).reshape(-1, 4),
            "tail": self.tail,
        }
        parts = {"weights": self.tensors, "update": self.update.state(), **self.sums}
        for name, part in parts.items():
            tensors |= with_prefix(name, part)
        return tensors

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from an earlier state."""
        with torch.no_grad():
            for part, tensors in {"weights": self.tensors, **self.sums}.items():
                for name, tensor in tensors.items():
                    tensor.copy_(require_like(name, state[f"{part}/{name}"], tensor))
        self.update.restore(of_prefix("update", state))
        self.tail = require_like("tail", state["tail"], self.tail)
        rows = state["traces"].tolist()
        self.traces = [ChainSample(int(step), *rest) for step, *rest in rows]
        self.done = int(state["step"])
        if not 0 <= self.done <= self.schedule.steps:
            raise StoreError(f"step must be 0 to {self.schedule.steps}, got {self.done}")


def _picture(scales: Tensor) -> str:
    """Draw how many scales there are of each power of ten."""
    powers = scales.double().clamp(min=1e-300).log10().clamp(_LOWEST_POWER, -1e-9)
    counts = torch.histc(powers, _POWERS, min=_LOWEST_POWER, max=0)
    heights = (counts / counts.max().clamp(min=1) * (len(_BARS) - 1)).ceil().int()
    bars = "".join(_BARS[height] for height in heights.tolist())
    return f"λ 1e{_LOWEST_POWER}▕{bars}▏1"
