"""Models and data of the golden cases: torch alone, nothing of smidgen.

Every weight is drawn here from a generator of our own, so that no library's way to start a
layer changes a number.
"""

from __future__ import annotations

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification
from transformers.utils import logging

logging.set_verbosity_error()


class Block(nn.Module):
    """A one-block transformer with a padding mask, written out."""

    def __init__(self, outputs):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.attention_output = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6, bias=False)
        self.classifier = nn.Linear(6, outputs)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 6**0.5
        scores = scores.masked_fill(~attention_mask.bool()[:, None, :], -1e9)
        x = self.norm(x + self.attention_output(scores.softmax(-1) @ self.value(x)))
        x = x + self.down(nn.functional.gelu(self.up(x)))
        return self.classifier(x[:, 0])


class Conv(nn.Module):
    """Two convolutions, one strided and dilated with its own padding, and a head."""

    def __init__(self, outputs):
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding="same")
        self.second = nn.Conv2d(3, 2, 2, stride=2, dilation=2, padding=1, bias=False)
        self.head = nn.Linear(2, outputs)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.head(torch.tanh(self.second(x)).mean((2, 3)))


def _mlp(outputs):
    return nn.Sequential(
        nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.GELU(), nn.Linear(5, outputs)
    )


def _normed(outputs):
    """With normalisation and dropout, for what trains."""
    return nn.Sequential(
        nn.Linear(4, 12),
        nn.LayerNorm(12),
        nn.Tanh(),
        nn.Dropout(0.1),
        nn.Linear(12, outputs),
    )


def _wide(outputs):
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, outputs))


def _images(outputs):
    """Convolutions, batch normalisation and dropout, for what trains."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(24, outputs),
    )


def _bert(outputs):
    config = BertConfig(
        vocab_size=17,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        num_labels=outputs,
        attn_implementation="eager",
    )
    return BertForSequenceClassification(config)


_BUILDERS = {
    "mlp": _mlp,
    "conv": Conv,
    "block": Block,
    "bert": _bert,
    "normed": _normed,
    "wide": _wide,
    "images": _images,
}


def model(name, outputs, *, dtype=torch.float64, seed=7):
    """A model with trained-looking weights: biases are not zero, logits not tiny."""
    with torch.random.fork_rng(devices=[]):
        built = _BUILDERS[name](outputs).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in sorted(built.named_parameters()):
            drawn = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            size = 0.2 if parameter.dim() < 2 else parameter[0].numel() ** -0.5
            whole = parameter.dim() == 1 and key.endswith("weight")
            parameter.copy_(drawn * size + (1.0 if whole else 0.0))
    return built


def _targets(kind, rows, outputs, generator, dtype):
    if kind == "categorical":
        return torch.randint(0, outputs, (rows,), generator=generator)
    drawn = torch.randn(rows, outputs, dtype=torch.float64, generator=generator).to(dtype)
    return (drawn > 0).to(dtype) if kind == "bernoulli" else drawn


def batches(name, kind, outputs, *, seed=3, count=2, dtype=torch.float64):
    """Small batches that a model of this name reads."""
    generator = torch.Generator().manual_seed(seed)
    return [_batch(name, kind, outputs, generator, dtype) for _ in range(count)]


def _batch(name, kind, outputs, generator, dtype):
    if name in ("block", "bert"):
        lengths = torch.tensor([7, 3, 5, 1])
        mask = (torch.arange(7) < lengths[:, None]).long()
        ids = torch.randint(1, 11, (4, 7), generator=generator) * mask
        labels = _targets(kind, 4, outputs, generator, dtype)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}
    shape = {"conv": (5, 2, 5, 6), "wide": (6, 6), "images": (5, 1, 6, 6)}.get(name, (6, 4))
    x = torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
    return x, _targets(kind, shape[0], outputs, generator, dtype)


def blobs(count=90, *, image=False, seed=0, shuffle=True):
    """Three classes around three centres, in batches of fifteen."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    centres = torch.eye(3, 36 if image else 6) * 3
    inputs = centres[labels] + torch.randn(count, centres.shape[1], generator=generator)
    inputs = inputs.view(count, 1, 6, 6) if image else inputs
    order = torch.Generator().manual_seed(1) if shuffle else None
    data = TensorDataset(inputs, labels)
    return DataLoader(data, batch_size=15, shuffle=shuffle, generator=order)


def products(count=80):
    """Two classes by the sign of a product; a training and a validation loader."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=generator)
    data = TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
    order = torch.Generator().manual_seed(2)
    return DataLoader(data, 10, shuffle=True, generator=order), DataLoader(data, 40)


def sparse_regression(inputs=60, support=5, rows=120):
    """A linear model, and data whose weights differ from it in a few places."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, inputs, generator=generator)
    base = torch.randn(inputs, generator=generator)
    moved = base.clone()
    places = torch.randperm(inputs, generator=generator)[:support]
    moved[places] += 0.3 * torch.randn(support, generator=generator).sign()
    y = x @ moved + 0.5 * torch.randn(rows, generator=generator)
    linear = nn.Linear(inputs, 1, bias=False)
    with torch.no_grad():
        linear.weight.copy_(base)
    order = torch.Generator().manual_seed(1)
    data = TensorDataset(x, y[:, None])
    return linear, DataLoader(data, batch_size=20, shuffle=True, generator=order)


class StopsAfter:
    """A loader that is interrupted in the epoch after some whole ones."""

    def __init__(self, loader, epochs):
        self.loader, self.left = loader, epochs
        self.dataset, self.generator = loader.dataset, loader.generator
        self.sampler = loader.sampler

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for place, batch in enumerate(self.loader):
            if self.left <= 0 and place == 3:
                raise KeyboardInterrupt
            yield batch
        self.left -= 1


def write_weights(built, path):
    save_file({n: t.contiguous() for n, t in built.state_dict().items()}, path)
