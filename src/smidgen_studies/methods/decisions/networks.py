"""Small residual networks of a study, trained from scratch for a fixed number of steps."""

from __future__ import annotations

import torch
from torch import nn

from smidgen import fit
from smidgen.integrations.arrays import ArrayBatches, Arrays
from smidgen.sparse.architectures import small_resnet

_BATCH = 64


def train_network(
    images: Arrays,
    *,
    seed: int,
    width: int,
    steps: int,
    learning_rate: float,
    classes: int,
) -> nn.Module:
    """Train a network for about so many steps, whole epochs; nothing held out stops it."""
    shape = tuple(images.inputs.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = small_resnet(shape, classes, width=width)
    epochs = max(1, round(steps * _BATCH / len(images)))
    settings = fit.FinetuneSettings(
        epochs=epochs, learning_rate=learning_rate, weight_decay=1e-4
    )
    batches = ArrayBatches(images, _BATCH, shuffle=True, seed=seed)
    return fit.finetune(model, batches, settings=settings, seed=seed, progress=False).model
