"""Small predictors of each kind, made in Python as users make them."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen.integrations.huggingface import load_classifier, make_text_loader
from smidgen.integrations.text import TextTable

CLASSES = ("low", "high <b>")
TEXT_CLASSES = ("bad", "good")


def train(model, inputs, targets, *, steps=60):
    """Train a small model; the same numbers each time."""
    loss = nn.MSELoss() if targets.is_floating_point() else nn.CrossEntropyLoss()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model(inputs), targets).backward()
        optimiser.step()
    return model.eval()


def fit_predictor(model, inputs, targets, task, *, rules=True):
    """Fit, calibrate and make rules on parts of the rows."""
    third = len(inputs) // 3
    parts = [
        DataLoader(TensorDataset(x, y), batch_size=50)
        for x, y in zip(inputs.split(third), targets.split(third), strict=True)
    ]
    subset = smidgen.select.last_layer(model, parts[0])
    posterior = smidgen.fit.laplace(model, parts[0], subset, progress=False)
    posterior = smidgen.calibrate(posterior, model, parts[1], progress=False)
    made = None
    if rules:
        made = smidgen.make_rules(posterior, model, parts[2], max_error=0.2, progress=False)
    return smidgen.make_predictor(posterior, model, task, rules=made)


def make_table_predictor(*, classes=CLASSES, rules=True):
    """Two standardised columns; the class, or the number, is about their sum."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs = torch.randn(600, 2)
        total = inputs.sum(1) + 0.3 * torch.randn(600)
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2 if classes else 1))
        targets = (total > 0).long() if classes else total[:, None]
        train(model, inputs, targets)
    columns = {"age": (40.0, 10.0), "income": (0.0, 1.0)}
    task = smidgen.describe_table(columns, classes=classes, label="risk")
    return fit_predictor(model, inputs, targets, task, rules=rules)


def make_images(count=300):
    """Bytes of 6 × 6 pixels in three classes, by the row that is bright; and the classes."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (count,), generator=draw)
    images = torch.randint(0, 80, (count, 6, 6), generator=draw, dtype=torch.uint8)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[2 * label : 2 * label + 2] += 120
    return images.numpy(), labels


def make_image_predictor():
    images, labels = make_images()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
        )
        inputs = torch.from_numpy(images)[:, None] / 255
        train(model, inputs, labels, steps=30)
    task = smidgen.describe_images(images, classes=["top", "middle", "bottom"])
    return fit_predictor(model, inputs, labels, task)


def make_texts(count=240):
    """Texts of five words and their classes, by the first word."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices("abcd", k=5)) for _ in range(count)]
    return texts, tuple(int(text[0] in "ab") for text in texts)


def load_tiny(folder, *, seed=3):
    """A classifier on a pretrained encoder, with a new head."""
    return load_classifier(folder, labels=2, seed=seed)


def fit_text_predictor(model, tokenizer, **task):
    """A predictor of a text model, with a posterior of its head."""
    texts, labels = make_texts()

    def batch(rows):
        table = TextTable(tuple(texts[rows]), None, labels[rows])
        return make_text_loader(table, tokenizer, batch_size=20, max_length=16)

    first, second, third = (slice(start, start + 80) for start in (0, 80, 160))
    subset = smidgen.select.last_layer(model, batch(first))
    posterior = smidgen.fit.laplace(model, batch(first), subset, progress=False)
    posterior = smidgen.calibrate(posterior, model, batch(second), progress=False)
    rules = smidgen.make_rules(posterior, model, batch(third), progress=False)
    described = {"classes": TEXT_CLASSES, "max_length": 16, **task}
    note = smidgen.describe_texts(**described)
    return smidgen.make_predictor(posterior, model, note, rules=rules, tokenizer=tokenizer)
