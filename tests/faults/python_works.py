"""Long work from Python, each with a checkpoint: what it finds is kept in one file."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen import fit
from smidgen.runtime.artifact import write_tensor_file

CHECKPOINT, RESULT = Path("state.safetensors"), Path("result.safetensors")


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 3))


def make_batches():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(48, 5, generator=generator)
    labels = inputs[:, :3].argmax(-1)
    order = torch.Generator().manual_seed(2)
    data = TensorDataset(inputs, labels)
    return DataLoader(data, batch_size=8, shuffle=True, generator=order)


def work(compute):
    """Do it unless it was done; what it found is durable before its checkpoint goes."""

    def run():
        if not RESULT.exists():
            tensors = compute(make_model(), make_batches())
            write_tensor_file(RESULT, tensors, {}, key="found")
        CHECKPOINT.unlink(missing_ok=True)
        assert not [name for name in os.listdir() if name.startswith(".")]

    return run


@work
def ssvi(model, batches):
    settings = fit.SsviSettings(epochs=5, every=4, learning_rate=0.01)
    posterior = fit.ssvi(
        model, batches, settings=settings, checkpoint=CHECKPOINT, progress=False
    )
    return dict(posterior.network.state_dict())


@work
def langevin(model, batches):
    settings = fit.LangevinSettings(steps=40, burn_in=20, thin=2, checkpoint_every=5)
    scales = fit.langevin(
        model, batches, settings=settings, checkpoint=CHECKPOINT, progress=False
    )
    return scales.means


@work
def finetune(model, batches):
    settings = fit.FinetuneSettings(epochs=5, learning_rate=0.01, patience=5)
    found = fit.finetune(
        model,
        batches,
        validation=make_batches(),
        settings=settings,
        checkpoint=CHECKPOINT,
        progress=False,
    )
    return found.model.state_dict()


@work
def finetune_subset(model, batches):
    subset = smidgen.select.sparse_kfac(model, percent=40)
    settings = fit.FinetuneSettings(epochs=5, learning_rate=0.01, head="none")
    found = fit.finetune(
        model, batches, subset, settings=settings, checkpoint=CHECKPOINT, progress=False
    )
    return {"difference": found.delta.difference}


@work
def swag(model, batches):
    subset = smidgen.select.sparse_kfac(model, percent=40)
    settings = fit.SwagSettings(
        steps=40,
        every=4,
        rank=4,
        learning_rate=(0.01, 0.1),
        trial_steps=12,
        samples=4,
        checkpoint_every=5,
    )
    found = fit.swag(
        model,
        batches,
        subset,
        validation=make_batches(),
        settings=settings,
        checkpoint=CHECKPOINT,
        progress=False,
    )
    return {"mean": found.mean, "variance": found.variance, "deviations": found.deviations}


WORKS = {
    name: globals()[name]
    for name in ("ssvi", "langevin", "finetune", "finetune_subset", "swag")
}
