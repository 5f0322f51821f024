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

from smidgen.outputs.information import mixture_information
from smidgen.outputs.links import append_axes, noise_draws, with_first_class


@dataclass(frozen=True, eq=False)
class TopClasses:
    """The m likeliest classes of each example, the likeliest first: `numbers`, (B, m)."""

    numbers: Tensor

    @classmethod
    def of(cls, logits: Tensor, count: int) -> TopClasses:
        """Take the largest logits of each row (B, C); of equals, the first classes."""
        # A stable sort, so that one row gives one answer on every device.
        order = logits.sort(stable=True, dim=-1, descending=True).indices
        # A copy: a view would hold the order of all classes as long as the prediction.
        return cls(order[:, :count].clone())

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
