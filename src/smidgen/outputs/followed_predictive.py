"""`FollowedPredictive`: the likeliest classes of a vocabulary, and the rest in four numbers.

Of C classes the m that were followed keep their log-probabilities. All others share the noise
of the likeliest, so each has log p_c = f_c/T + `remaining_scale`, with its own logit f_c: what
is kept of them is that number, their probability together, and their parts of the entropy and
of Σ p². That is m + 4 numbers an example in place of 2C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from smidgen.errors import ArgumentError
from smidgen.outputs.information import entropy_of
from smidgen.outputs.predictive import ClassPredictive, list_rows


@dataclass(frozen=True, eq=False)
class FollowedPredictive(ClassPredictive):
    """Probabilities of each example's likeliest classes, and of all others together.

    `classes` (B, m) are the numbers of the classes that were followed, those of the largest
    logits first; `class_log_probs`, `class_logits` (B, m) and `logit_covariance` (B, m, m) are
    theirs. No other class is likelier than the first. `outputs` is C. Of the `remaining`
    classes there are the log-probability together, (B,), the parts of entropy and Σ p², and
    the scale by which `log_prob_of` finds the probability of one whose logit is known.
    """

    classes: Tensor
    class_log_probs: Tensor
    class_logits: Tensor
    logit_covariance: Tensor
    remaining_log_prob: Tensor
    remaining_entropy: Tensor
    remaining_squares: Tensor
    remaining_scale: Tensor
    information: Tensor
    outputs: int
    temperature: float = 1.0
    kind: ClassVar[str] = "categorical"

    def __repr__(self) -> str:
        return (
            f"FollowedPredictive({len(self)} examples, {self.classes.shape[1]} of "
            f"{self.outputs:,} classes)"
        )

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def class_count(self) -> int:
        """How many classes there are."""
        return self.outputs

    @property
    def known_log_probs(self) -> Tensor:
        """Log-probabilities of the followed classes, (B, m)."""
        return self.class_log_probs

    @property
    def probs(self) -> NoReturn:
        """Refuse: the probabilities of all classes were not kept."""
        self._refuse("probs")

    @property
    def log_probs(self) -> NoReturn:
        """Refuse: the probabilities of all classes were not kept."""
        self._refuse("log_probs")

    @property
    def class_probs(self) -> Tensor:
        """Probabilities of the followed classes, (B, m)."""
        return self.class_log_probs.exp()

    @property
    def remaining_prob(self) -> Tensor:
        """Probability of all other classes together, (B,)."""
        return self.remaining_log_prob.exp()

    @property
    def predicted(self) -> Tensor:
        """The likeliest class, (B,)."""
        best = self.class_log_probs.argmax(-1, keepdim=True)
        return self.classes.gather(-1, best).squeeze(-1)

    @property
    def confidence(self) -> Tensor:
        """Probability of the likeliest class, (B,)."""
        return self.class_probs.max(-1).values

    @property
    def entropy(self) -> Tensor:
        """Entropy of all classes' probabilities in nats, (B,)."""
        return entropy_of(self.class_log_probs) + self.remaining_entropy

    @property
    def logit_variance(self) -> Tensor:
        """Variance of each followed logit, centred among them, (B, m)."""
        return self.logit_covariance.diagonal(dim1=1, dim2=2)

    @property
    def mutual_information(self) -> Tensor:
        """H[E p] − E H[p], at most the entropy, (B,)."""
        return self.information.minimum(self.entropy)

    def log_prob_of(self, targets: Tensor, logits: Tensor | None = None) -> Tensor:
        """Find the log-probability of a class of each example.

        Args:
            targets: Class numbers, (B,).
            logits: The model's outputs for those classes, (B,), as
                `point_outputs(...)[0].gather(1, targets[:, None])` has them. Needed only where
                a target is not among the classes that were followed.

        Returns:
            The log-probabilities, (B,).

        Raises:
            ArgumentError: If a target was not followed, and no logits are given.
        """
        for name, values in (("targets", targets), ("logits", logits)):
            if values is not None and values.shape != self.classes.shape[:1]:
                raise ArgumentError(
                    f"{name} must have shape ({len(self.classes)},), one for each example, "
                    f"got {tuple(values.shape)}."
                )
        is_target = self.classes == targets[:, None]
        followed = is_target.any(-1)
        place = is_target.int().argmax(-1, keepdim=True)
        found = self.class_log_probs.gather(-1, place).squeeze(-1)
        if followed.all():
            return found
        if logits is None:
            row = int((~followed).nonzero()[0])
            raise ArgumentError(
                f"targets must be among the {self.classes.shape[1]} classes that were followed, "
                f"got {int(targets[row])} for example {row}, whose probability was not kept. "
                "Predict with Link(keep='all') for scores, or call log_prob_of(targets, logits)."
            )
        elsewhere = logits.to(found) / self.temperature + self.remaining_scale
        return torch.where(followed, found, elsewhere)

    def squared_error_of(self, targets: Tensor) -> Tensor:
        """Σ (p − truth)² over all classes, (B,), for targets that were followed."""
        squares = self.class_probs.square().sum(-1) + self.remaining_squares
        return squares - 2 * self.log_prob_of(targets).exp() + 1

    def to_dict(self) -> dict[str, list[object]]:
        """List the followed classes with their probabilities, that of the rest, and more."""
        listed = {
            "classes": self.classes,
            "class_probs": self.class_probs,
            "remaining_prob": self.remaining_prob,
            "predicted": self.predicted,
            "confidence": self.confidence,
            "class_logits": self.class_logits,
            "entropy": self.entropy,
            "logit_variance": self.logit_variance,
        }
        return list_rows(listed, self.mutual_information)

    def _refuse(self, name: str) -> NoReturn:
        raise ArgumentError(
            f"{name} of all {self.outputs:,} classes were not kept. Use class_{name} of "
            "`classes`, or predict with Link(keep='all')."
        )
