"""`TopClasses`: which classes of each example get a covariance, when there are many.

Of C classes the m likeliest of an example are followed: the differences f_c − f_top of
the others among them to the likeliest are Gaussian, m − 1 backward passes and not C − 1.
All remaining classes keep their distance to the likeliest: they share its noise. So they
act as one class, whose logit is their log-sum-exp, and all work after the backward passes
follows m.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log

import torch
from torch import Tensor

from smidgen.outputs.followed_predictive import FollowedPredictive
from smidgen.outputs.information import mixture_information
from smidgen.outputs.links import (
    append_axes,
    centre,
    log_mean,
    noise_draws,
    pick_class,
    with_first_class,
)
from smidgen.outputs.log_sum_table import LogSumTable
from smidgen.outputs.temperature_curve import Means, Slopes

# Sums over more classes are tabulated where many temperatures are asked for.
_DIRECT_CLASSES = 256


@dataclass(frozen=True, eq=False)
class TopClasses:
    """The m likeliest classes of each example, the likeliest first: `numbers`, (B, m)."""

    numbers: Tensor

    @classmethod
    def of(cls, logits: Tensor, count: int) -> TopClasses:
        """Take the largest logits of each row (B, C); of equals, the first classes."""
        # Stable sorts, so that one row gives one answer on every device: `topk` alone takes
        # equals in any order. It finds the last value that counts; where more classes have
        # at least that than are taken, all of the row are sorted.
        values, found = logits.topk(count, dim=-1)
        found = found.sort(dim=-1).values
        order = logits.gather(-1, found).sort(stable=True, dim=-1, descending=True).indices
        numbers = found.gather(-1, order)
        tied = (logits >= values[:, -1:]).sum(-1) > count
        if tied.any():
            # Indexing copies: a view would hold the order of all classes.
            sorted_rows = logits[tied].sort(stable=True, dim=-1, descending=True)
            numbers[tied] = sorted_rows.indices[:, :count]
        return cls(numbers)

    def directions(self, outputs: Tensor) -> Tensor:
        """The differences f_c − f_top as combinations of the outputs: (m−1, B, C)."""
        others = self.numbers[:, 1:].T[..., None]
        weights = outputs.new_zeros(len(others), *outputs.shape)
        weights.scatter_(-1, others, 1)
        first = self.numbers[:, :1].expand(len(others), -1, -1)
        return weights.scatter_(-1, first, -1)

    def grouped(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Split logits (..., B, C), as distances to the likeliest, into followed and others."""
        # Followed: (..., B, m−1). Others: (..., B, C), with −∞ for followed classes.
        numbers = self.numbers.expand(*logits.shape[:-1], -1)
        distances = logits - logits.gather(-1, numbers[..., :1])
        remaining = distances.scatter(-1, numbers, -inf)
        return distances.gather(-1, numbers[..., 1:]), remaining

    def at_temperatures(
        self, logits: Tensor, covariance: Tensor, *, normals: Tensor | None = None
    ) -> Callable[[float | Tensor], Tensor]:
        """Prepare the sampling link: log-probabilities (..., B, C) of temperatures (...)."""
        # covariance: of the directions, (..., B, m−1, m−1). normals: (S, m−1). One temperature
        # takes memory for B·S·m + B·C numbers.
        noise = noise_draws(covariance, normals)
        count = log(noise.shape[-2])

        def sampled(temperature: float | Tensor) -> Tensor:
            means, remaining = self.grouped(logits / append_axes(temperature, 2))
            drawn = with_first_class(means[..., None, :] + noise)  # (..., B, S, m)
            rest = remaining.logsumexp(-1, keepdim=True)
            total = torch.logaddexp(drawn.logsumexp(-1), rest)  # (..., B, S)
            followed = (drawn - total[..., None]).logsumexp(-2) - count
            fixed = remaining + (-total).logsumexp(-1, keepdim=True) - count
            return fixed.scatter(-1, self.numbers.expand_as(followed), followed)

        return sampled

    def means_for(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Means]:
        """Which class's noise each target (B,) has, (B,), and the means of m classes."""
        # The likeliest class and all that are not followed share its noise, so they act as
        # one: its mean is the log-sum-exp of theirs, whose derivatives in 1/T are the mean
        # and the variance of their distances.
        distances = logits - pick_class(logits, targets)[..., None]  # (B, C)
        followed = distances.gather(-1, self.numbers[:, 1:])
        apart = torch.zeros_like(distances, dtype=torch.bool)
        apart = apart.scatter(-1, self.numbers[:, 1:], True)
        is_target = self.numbers[:, 1:] == targets[:, None]
        places = (is_target * torch.arange(1, self.numbers.shape[1])).sum(-1)
        together = _log_sum_of(distances, apart)

        def means(inverse: Tensor) -> Slopes:
            total, first, second = together(inverse)
            others = followed * inverse
            still = torch.zeros_like(others)
            return (
                torch.cat([total, others], -1),
                torch.cat([first, followed.expand_as(others)], -1),
                torch.cat([second, still], -1),
            )

        return places, means

    def information(
        self,
        logits: Tensor,
        covariance: Tensor,
        temperature: float,
        *,
        normals: Tensor | None = None,
    ) -> Tensor:
        """H[E p] − E H[p] of the same draws, (B,)."""
        # Among the remaining classes nothing is uncertain: they count as one.
        means, remaining = self.grouped(logits / temperature)
        drawn = with_first_class(means[..., None, :] + noise_draws(covariance, normals))
        rest = remaining.logsumexp(-1)[..., None, None].expand(*drawn.shape[:-1], 1)
        return mixture_information(torch.cat([drawn, rest], -1).log_softmax(-1))

    def predictive(
        self,
        logits: Tensor,
        covariance: Tensor,
        temperature: float,
        *,
        normals: Tensor | None = None,
    ) -> FollowedPredictive:
        """Keep the followed classes (B, m) of the same draws, and sums over the others."""
        means, remaining = self.grouped(logits / temperature)
        drawn = with_first_class(means[..., None, :] + noise_draws(covariance, normals))
        rest = remaining.logsumexp(-1)  # (B,)
        others = rest[:, None, None].expand(*drawn.shape[:-1], 1)
        grouped = torch.cat([drawn, others], -1).log_softmax(-1)  # (B, S, m+1)
        log_probs = log_mean(grouped)
        # Every remaining class has its share of what they have together.
        shares = (remaining - rest[:, None]).exp()
        together = log_probs[:, -1].exp()
        spread = torch.special.entr(shares).sum(-1)
        own = logits.gather(-1, self.numbers)
        nothing = rest.isinf()  # all classes were followed
        return FollowedPredictive(
            classes=self.numbers,
            class_log_probs=log_probs[:, :-1],
            class_logits=own,
            logit_covariance=centre(covariance, self.numbers.shape[1]),
            remaining_log_prob=log_probs[:, -1],
            remaining_entropy=torch.where(
                nothing, 0, together * spread + torch.special.entr(together)
            ),
            remaining_squares=torch.where(
                nothing, 0, together.square() * shares.square().sum(-1)
            ),
            remaining_scale=log_probs[:, -1] - rest - own[:, 0] / temperature,
            information=mixture_information(grouped),
            outputs=logits.shape[-1],
            temperature=temperature,
        )


def _log_sum_of(distances: Tensor, apart: Tensor) -> Means:
    """Log-sum-exp (..., B, 1) of distances over T but for those apart, with derivatives."""
    if distances.shape[-1] > _DIRECT_CLASSES:
        return LogSumTable(distances.masked_fill(apart, -inf)).at

    def direct(inverse: Tensor) -> Slopes:
        scaled = (distances * inverse).masked_fill(apart, -inf)  # (..., B, C)
        total = scaled.logsumexp(-1, keepdim=True)
        shares = (scaled - total).exp()
        first = (shares * distances).sum(-1, keepdim=True)
        second = (shares * distances.square()).sum(-1, keepdim=True) - first.square()
        return total, first, second

    return direct
