"""What the tests of sparse networks train: two models, blobs, and how to compare."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from smidgen.fit import SparseTraining
from smidgen.sparse import SparseSettings, make_sparse


def mlp(width=32):
    """The least network with two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


def resnet():
    """Convolutions, normalisation and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


def made_sparse(model, **options):
    """`make_sparse` with arguments and settings mixed."""
    names = [name for name in options if name in SparseSettings.__dataclass_fields__]
    settings = SparseSettings(**{name: options.pop(name) for name in names})
    return make_sparse(model, settings=settings, **options)


def blobs(count=300, *, image=False, shuffle=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    centres = torch.eye(3, 36 if image else 6) * 3
    inputs = centres[labels] + torch.randn(count, centres.shape[1], generator=generator)
    inputs = inputs.view(count, 1, 6, 6) if image else inputs
    order = torch.Generator().manual_seed(1) if shuffle else None
    data = TensorDataset(inputs, labels)
    return DataLoader(data, batch_size=30, shuffle=shuffle, generator=order)


QUICK = SparseTraining(epochs=4, learning_rate=0.02, every=4, temperature=0.1)


def everything(network):
    """All that training changes of a network."""
    return {
        **{n: p.detach() for n, p in network.named_parameters()},
        **dict(network.named_buffers()),
        **{
            f"{n} indices": part.pattern.list_indices()
            for n, part in network.layers.items()
        },
    }


def assert_same(left, right):
    left, right = everything(left), everything(right)
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name
