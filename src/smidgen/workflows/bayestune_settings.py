"""What a run of BayesTune is told, and how its record holds that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from smidgen.fit.bayestune.langevin import NOISE_DISCOUNT, TEMPERATURE, Update
from smidgen.fit.epochs import Criterion
from smidgen.select.bayestune import DEFAULT_FRACTION, refuse_several_rules
from smidgen.select.ranking import check_fraction

Kind = Literal["laplace", "swag", "none"]


@dataclass(frozen=True)
class BayesTuneSettings:
    """Every choice that shapes a run.

    `fraction`, `threshold` and `elbow` are rules of `select.bayestune`, of which one may
    be given; `posterior` is what is fitted over the tuned weights. `agreement` compares
    chains on two halves of the data, `half` keeps the differences in fp16.

    Raises:
        ArgumentError: If the rule is not one.
    """

    fraction: float | None = None
    threshold: float | None = None
    elbow: bool = False
    posterior: Kind = "laplace"
    chain_epochs: int = 2
    temperature: float | None = None
    noise_discount: float | None = None
    update: Update = "langevin"
    agreement: bool = False
    epochs: int = 5
    learning_rate: float = 1e-3
    patience: int = 2
    stop_on: Criterion | None = None
    half: bool = False
    batch_size: int = 16
    max_length: int = 128
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        refuse_several_rules(self.fraction, self.threshold, self.elbow)
        if self.fraction is not None:
            check_fraction(self.fraction)

    @property
    def rule(self) -> dict[str, Any]:
        """How many weights are chosen, as `select.bayestune` takes it."""
        if self.threshold is not None or self.elbow:
            return {"threshold": self.threshold, "elbow": self.elbow}
        return {"fraction": DEFAULT_FRACTION if self.fraction is None else self.fraction}

    @property
    def chain(self) -> dict[str, Any]:
        """How the chain moves, as `fit.langevin` takes it."""
        names = ("temperature", "noise_discount", "update", "seed")
        return {name: getattr(self, name) for name in names}

    @property
    def tuning(self) -> dict[str, Any]:
        """How the weights are tuned, as `fit.sparse_finetune` takes it."""
        names = ("epochs", "learning_rate", "patience", "stop_on", "seed")
        return {name: getattr(self, name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """As a record holds it, the chain's defaults filled in."""
        chain = self.chain
        if self.update == "langevin":
            defaults = {"temperature": TEMPERATURE, "noise_discount": NOISE_DISCOUNT}
            chain |= {n: d for n, d in defaults.items() if chain[n] is None}
        return {
            "rule": self.rule,
            "chain": {"epochs": self.chain_epochs, **chain},
            "tuning": self.tuning,
            "posterior": self.posterior,
            "half": self.half,
        }
