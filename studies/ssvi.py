"""SSVI against dense VI on Fashion-MNIST: quality, bytes, operations, robustness.

    .venv/bin/python -m studies.ssvi --data FOLDER

FOLDER holds `fashion-mnist` and `mnist` as IDX files. One JSON a cell under
`results/ssvi/`; a cell that is there is not made again. Validation data (10,000 of the
training images) choose rate, first scale and temperature of each method; test data, and
MNIST as what the network has never seen, only report.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from smidgen import evaluate, fit
from smidgen.fit import SparseFit, SparseTraining
from smidgen.integrations.arrays import ArrayBatches, Arrays, read_arrays, standardised
from smidgen.integrations.plain_networks import mlp, small_resnet
from smidgen.prediction import predict_sparse_batches
from smidgen.predictive import CategoricalPredictive
from smidgen.problem import Problem
from smidgen.record import Record
from smidgen.sparse import SparseNetwork, pruned, save_sparse, sparse_bayesian
from smidgen.sparse.flops import step_flops
from smidgen.sparse.removal import SCORES

HIDDEN = (256, 256)
BATCH, HELD_OUT, DRAWS, ROUNDS = 128, 10_000, 10, 15
RATES = (1e-3, 3e-3, 1e-2)
SCALES, TEMPERATURES = (0.01, 0.1, 1.0), (1.0, 0.1, 0.01)
MAIN = SparseTraining(epochs=10)
GRID = replace(MAIN, epochs=4)
IMAGES = replace(MAIN, epochs=3)
EQUAL = replace(MAIN, epochs=6, learning_rate=3e-3, temperature=0.1)
DENSITIES = {"dense VI": 1.0, "SSVI 10 %": 0.1, "SSVI 5 %": 0.05}
POINTS = {"dense": 1.0, "sparse 10 %": 0.1, "sparse 5 %": 0.05}


class Data:
    """The images of one seed: its own split, and the same test images for all."""

    def __init__(self, folder: Path, seed: int, *, train: int | None = None) -> None:
        images = folder / "fashion-mnist" / "train-images-idx3-ubyte.gz"
        tests = [
            read_arrays(folder / name / "t10k-images-idx3-ubyte.gz")
            for name in ("fashion-mnist", "mnist")
        ]
        generator = torch.Generator().manual_seed(seed)
        parts = read_arrays(images).split(HELD_OUT, generator)
        held = standardised(parts[0], parts[1], *tests)
        self.train, self.validation, self.test, self.outside = held
        if train is not None:
            # A convolution's pixels are many: fewer images to score as well.
            self.train = self.train[:train]
            self.validation, self.test = self.validation[:2000], self.test[:2000]
            self.outside = self.outside[:2000]

    def batches(self, seed: int) -> ArrayBatches:
        """Training batches in an order of their own."""
        return ArrayBatches(self.train, BATCH, shuffle=True, seed=seed)


def network_of(
    data: Data, seed: int, kind: str, density: float, **options: Any
) -> SparseNetwork:
    """A new model of the study, made sparse."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        shape = tuple(data.train.inputs.shape[1:])
        model: nn.Module = mlp(shape, 10, hidden=HIDDEN)
        if kind == "resnet":
            model = small_resnet(shape, 10, width=8)
    return sparse_bayesian(model, density=density, seed=seed, **options)


def predicted(network: SparseNetwork, arrays: Arrays) -> CategoricalPredictive:
    """Predict with draws of the weights."""
    batches = ArrayBatches(arrays, 1000)
    found = predict_sparse_batches(Problem(network), batches, samples=DRAWS, progress=False)
    assert isinstance(found, CategoricalPredictive)
    return found


def scored(network: SparseNetwork, data: Data) -> dict[str, Any]:
    """Scores on validation and test data, of foreign images, and the size on disk."""
    held, test = predicted(network, data.validation), predicted(network, data.test)
    outside = predicted(network, data.outside)
    with tempfile.TemporaryDirectory() as folder:
        saved = save_sparse(network, Path(folder) / "network")
        stored = (saved / "sparse.safetensors").stat().st_size
    labels = data.test.labels
    found = {
        "validation_nll": float(evaluate.nll(held, data.validation.labels).mean()),
        "accuracy": float(evaluate.correct(test, labels).mean()),
        "nll": float(evaluate.nll(test, labels).mean()),
        "ece": evaluate.expected_calibration_error(test, labels),
        "brier": float(evaluate.brier(test, labels).mean()),
        "ood_auroc": evaluate.auroc(test.entropy, outside.entropy),
        "stored_bytes": stored,
        "active": network.count,
        "total": network.total,
    }
    if test.mutual_information is not None and network.stochastic:
        inside, far = test.mutual_information, outside.mutual_information
        assert far is not None
        found["ood_auroc_information"] = evaluate.auroc(inside, far)
    return found


def costs(network: SparseNetwork, data: Data, training: SparseTraining) -> dict[str, Any]:
    """Counted operations, and the time of a step over that of dense VI, interleaved."""
    inputs, labels = data.train.inputs[:BATCH], data.train.labels[:BATCH]
    kind = "resnet" if any(len(p.shape) == 4 for p in network.maps.values()) else "mlp"
    dense = network_of(data, 0, kind, 1.0)
    counted = {
        name: step_flops(
            each,
            inputs,
            passes=training.passes,
            every=training.every,
            until=training.until,
        ).total
        for name, each in (("own", network), ("dense", dense))
    }
    times: dict[str, list[float]] = {"own": [], "dense": []}
    sides = {"own": network.train(), "dense": dense}
    optimisers = {
        n: torch.optim.AdamW(s.parameters(), 1e-9, fused=True) for n, s in sides.items()
    }
    for _ in range(ROUNDS + 2):
        for name, side in sides.items():
            started = time.perf_counter()
            loss = nn.functional.cross_entropy(side(inputs), labels)
            if side.stochastic:
                loss = loss + side.kl() / len(data.train)
            optimisers[name].zero_grad()
            loss.backward()
            optimisers[name].step()
            times[name].append(time.perf_counter() - started)
    pairs = zip(times["own"][2:], times["dense"][2:], strict=True)
    network.eval()
    return {
        "flops": counted["own"],
        "flops_ratio": counted["own"] / counted["dense"],
        "seconds_ratio": median(own / full for own, full in pairs),
        "paths": [part.path for part in network.maps.values()],
    }


class Study:
    """Cells that have a record are read, the others made."""

    def __init__(self, data: Path, out: Path) -> None:
        self.folder, self.out = data, out
        self._data: dict[tuple[int, int | None], Data] = {}

    def data(self, seed: int, train: int | None = None) -> Data:
        """The images of a seed, the last kept."""
        if (seed, train) not in self._data:
            self._data = {(seed, train): Data(self.folder, seed, train=train)}
        return self._data[seed, train]

    def cell(
        self,
        name: str,
        seed: int,
        density: float,
        training: SparseTraining,
        *,
        kind: str = "mlp",
        train: int | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Train one network and score it, unless its record is there."""
        target = (
            self.out / f"{name.replace(' ', '-').replace('%', 'percent')}-seed{seed}.json"
        )
        if target.exists():
            return dict(Record.load(target).results)
        data = self.data(seed, train)
        if density < 1:
            options = {"budget": "erk", **options}
        network = network_of(data, seed, kind, density, **options)
        started = time.perf_counter()
        found = fit.ssvi(
            network, data.batches(seed), training=training, seed=seed, progress=False
        )
        seconds = time.perf_counter() - started
        results: dict[str, Any] = {
            **scored(found.network, data),
            "state_bytes": found.state_bytes,
            "train_nll": found.history[-1].train_nll,
            "seconds": seconds,
            **costs(found.network, data, training),
        }
        if name.startswith("main dense VI"):
            results["pruned"] = self.pruned_rows(found, data)
        config = {
            "cell": name,
            "kind": kind,
            "hidden": list(HIDDEN),
            "density": density,
            "options": options,
            "training": vars(training),
            "train": len(data.train),
            "draws": DRAWS,
        }
        Record("ssvi", config, results, seed=seed).save(target)
        print(
            f"{name}, seed {seed}: accuracy {results['accuracy']:.4f}, NLL "
            f"{results['nll']:.4f}, {seconds:.0f} s",
            flush=True,
        )
        return results

    def pruned_rows(self, found: SparseFit, data: Data) -> dict[str, Any]:
        """Dense VI cut down after training, without training further."""
        return {
            f"{by} {density:g}": scored(pruned(found.network, density, by=by), data)
            for density in (0.1, 0.05)
            for by in ("magnitude", "snr")
        }

    def rate(self, name: str, density: float) -> float:
        """The learning rate with the least validation NLL on seed 0."""
        nlls = {}
        for rate in RATES:
            training = replace(GRID, temperature=0.1, learning_rate=rate)
            found = self.cell(f"rate {name} {rate:g}", 0, density, training, scale=0.1)
            nlls[rate] = found["validation_nll"]
        return min(nlls, key=lambda each: nlls[each])

    def grid(self, name: str, density: float) -> tuple[float, SparseTraining]:
        """Choose first scale and temperature on seed 0 by validation NLL."""
        rate = self.rate(name, density)
        nlls = {}
        for temperature in TEMPERATURES:
            for scale in SCALES:
                training = replace(GRID, temperature=temperature, learning_rate=rate)
                cell = f"grid {name} scale{scale:g} temperature{temperature:g}"
                found = self.cell(cell, 0, density, training, scale=scale)
                nlls[scale, temperature] = found["validation_nll"]
        scale, temperature = min(nlls, key=lambda pair: nlls[pair])
        return scale, replace(MAIN, temperature=temperature, learning_rate=rate)

    def run(self, seeds: list[int]) -> None:
        """Every cell, the chosen settings first."""
        chosen = {n: self.grid(n, DENSITIES[n]) for n in ("dense VI", "SSVI 5 %")}
        # The sparse networks share one choice.
        chosen["SSVI 10 %"] = chosen["SSVI 5 %"]
        for seed in seeds:
            for name, density in DENSITIES.items():
                scale, training = chosen[name]
                self.cell(f"main {name}", seed, density, training, scale=scale)
            for name, density in POINTS.items():
                _, training = chosen["dense VI" if density == 1 else "SSVI 5 %"]
                training = replace(training, removal="magnitude")
                self.cell(f"main {name}", seed, density, training, deterministic=True)
        scale, training = chosen["SSVI 5 %"]
        for seed in seeds:
            for by in SCORES:
                if by == training.removal:
                    continue  # that is the cell "main SSVI 5 %"
                each = replace(training, removal=by)
                self.cell(f"criterion {by}", seed, 0.05, each, scale=scale)
        for budget in ("uniform", "global"):
            self.cell(f"budget {budget}", 0, 0.05, training, scale=scale, budget=budget)
        for name in ("dense VI", "SSVI 10 %"):
            # With what was chosen for the MLP, and with one setting for both: the first
            # gives the two rates that are ten times apart.
            scale, training = chosen[name]
            settings = {
                "resnet": (scale, replace(training, epochs=IMAGES.epochs)),
                "resnet equal": (0.1, EQUAL),
            }
            for label, (first, each) in settings.items():
                self.cell(
                    f"{label} {name}",
                    0,
                    DENSITIES[name],
                    each,
                    kind="resnet",
                    train=12_000,
                    scale=first,
                )


def main() -> None:
    """Make the cells that have no record yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/ssvi"))
    given = parser.parse_args()
    Study(given.data, given.out).run(given.seeds)


if __name__ == "__main__":
    main()
