"""`FeatureDistance`: how far features are from those of the training data.

The relative Mahalanobis distance (Ren et al., 2021, arXiv:2106.09022): with the classes' means μ_k
and their shared covariance Σ, and with mean μ₀ and covariance Σ₀ of all features,

    score(z) = min_k (z − μ_k)ᵀ Σ⁻¹ (z − μ_k) − (z − μ₀)ᵀ Σ₀⁻¹ (z − μ₀).

The second term takes off what is unusual for every class alike. Without it (`relative=False`)
the score is the plain distance to the nearest class (Lee et al., 2018, arXiv:1807.03888).
Covariances of few rows in many dimensions have no inverse: both get the same small multiple of the
identity. It must be the same, since in directions that training rows do not have the two terms
should cancel; shrunk each by itself, the second can outweigh the first and turn the score around.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from smidgen.errors import DataError, require_kind

_FLAT = 1e-10
# Of the mean variance: as little as makes an inverse.
_RIDGE = 1e-6


@dataclass(frozen=True, eq=False)
class FeatureDistance:
    """Means (K, d) and (d,) and inverse covariances (d, d) of features, in fp64."""

    class_means: Tensor
    class_precision: Tensor
    mean: Tensor
    precision: Tensor

    @classmethod
    def fit(
        cls, features: Tensor, labels: Tensor | None = None, *, relative: bool = True
    ) -> FeatureDistance:
        """Fit the Gaussians to features of training rows.

        Args:
            features: What the output layer sees of each row, (N, d).
            labels: Their classes, (N,); rows labelled −100 are left out. Without them all
                rows are one class: for regressions, and the plain Mahalanobis distance is
                used, as the relative one would be zero.
            relative: Take off the distance to all training rows; else the distance is that to
                the nearest class.

        Returns:
            The distance.

        Raises:
            DataError: If there are fewer than two rows, or labels are not one for each.
        """
        features = _as_features(features)
        if labels is not None:
            require_kind("labels", labels, Tensor, "Use torch.tensor(labels)")
            labels = labels.detach().cpu()
            if labels.shape != features.shape[:1] or labels.is_floating_point():
                raise DataError(
                    f"labels must be {len(features)} class numbers, one for each row of "
                    f"features, got {labels.dtype} of shape {tuple(labels.shape)}. Pass "
                    "those of the same rows."
                )
            features, labels = features[labels >= 0], labels[labels >= 0]
        if len(features) < 2:
            raise DataError(
                f"features must be of two rows or more, got {len(features)}. Pass those of "
                "the training data."
            )
        mean = features.mean(0)
        whole = _covariance(features - mean)
        ridge = _RIDGE * float(whole.trace()) / len(whole)
        if labels is None:
            return cls(mean[None], _invert(whole, ridge), mean, torch.zeros_like(whole))
        present = labels.unique()
        means = torch.stack([features[labels == number].mean(0) for number in present])
        within = _covariance(features - means[torch.searchsorted(present, labels)])
        every = _invert(whole, ridge) if relative else torch.zeros_like(whole)
        return cls(means, _invert(within, ridge), mean, every)

    def score(self, features: Tensor) -> Tensor:
        """Score features of new rows: higher is stranger.

        Args:
            features: What the output layer sees of each row, (B, d).

        Returns:
            The scores, (B,).

        Raises:
            DataError: If features have another width.
        """
        features = _as_features(features)
        if features.shape[1:] != self.mean.shape:
            raise DataError(
                f"features must have {len(self.mean)} numbers for each row, got "
                f"{features.shape[1]}. Pass those of the same layer."
            )
        nearest = torch.stack(
            [
                _squared_distance(features - mean, self.class_precision)
                for mean in self.class_means
            ]
        ).amin(0)
        return nearest - _squared_distance(features - self.mean, self.precision)


def _as_features(features: Tensor) -> Tensor:
    require_kind("features", features, Tensor, "Use smidgen.prediction.point_features")
    features = features.detach().cpu().double()
    if features.dim() != 2:
        raise DataError(
            f"features must be of shape (rows, width), got {tuple(features.shape)}. Pool "
            "them, so that each row has one vector."
        )
    if not features.isfinite().all():
        row = int((~features.isfinite()).any(-1).nonzero()[0])
        raise DataError(
            f"features must be finite numbers, got NaN or infinity for row {row}. Check the "
            "inputs there."
        )
    return features


def _squared_distance(centred: Tensor, precision: Tensor) -> Tensor:
    return ((centred @ precision) * centred).sum(-1)


def _covariance(centred: Tensor) -> Tensor:
    return centred.T @ centred / len(centred)


def _invert(covariance: Tensor, ridge: float) -> Tensor:
    """Invert a covariance (d, d) with a ridge, as far as it is not flat."""
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp_min(0) + ridge
    flat = values <= _FLAT * values[-1].clamp_min(1e-300)
    inverse = torch.where(flat, 0.0, 1 / values.where(~flat, torch.ones_like(values)))
    return (vectors * inverse) @ vectors.T
