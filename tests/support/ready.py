"""Ready folders as `smidgen run` leaves them, of tiny data of each kind."""

from __future__ import annotations

import csv
import random

import numpy as np
import pytest

from smidgen.cli.app import main
from tests.support.tiny import saved_encoder

WORDS = "abcd"


def run(*words):
    """Run a command, which must succeed."""
    with pytest.raises(SystemExit) as leaving:
        main([*map(str, words), "--quiet"])
    assert leaving.value.code == 0


def write_rows(path, columns, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def ready_table(folder, *, number=False):
    """Rows of a number with gaps and a category; a class, or a number, follows from them."""
    draw = random.Random(0)
    rows = []
    for index in range(800):
        x, town = draw.gauss(0, 1), draw.choice(("Ulm", "Bonn"))
        score = x + (town == "Ulm") + draw.gauss(0, 0.1)
        cell = "" if index % 17 == 0 else f"{x:.4f}"
        rows.append([cell, town, f"{score:.4f}" if number else ("no", "yes")[score > 0.5]])
    label = "score" if number else "buys"
    data = write_rows(folder / "rows.csv", ["x", "town", label], rows)
    words = ("--table", "--label", label, "--epochs", 12)
    run("run", data, *words, "--out", folder / "ready")
    return folder / "ready"


def ready_texts(folder, *, pair=False):
    """Titles and bodies of a few words in two classes, read as one text or as a pair."""
    draw = random.Random(1)
    rows, seen = [], set()
    while len(rows) < 260:
        topic, words = draw.choice((("good", "aab"), ("bad", "ccd")))
        title, body = (
            " ".join(draw.choices(words * 2 + WORDS, k=draw.randint(2, 6))) for _ in "ab"
        )
        if (title, body) not in seen:
            seen.add((title, body))
            rows.append([title, body, topic])
    data = write_rows(folder / "news.csv", ["title", "body", "topic"], rows)
    model = saved_encoder(folder / "encoder")
    columns = ("title", "--text-pair", "body") if pair else ("title,body",)
    words = ("--label", "topic", "--text", *columns, "--max-length", 16)
    training = ("--epochs", 4, "--lr", 0.01, "--model", model)
    run("run", data, *words, *training, "--out", folder / "ready")
    return folder / "ready"


def ready_images(folder):
    """Small pictures with a bright stripe; its height is the class."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 300)
    images = draw.integers(0, 80, (300, 8, 8)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 3] += 120
    np.savez(folder / "images.npz", images=images, labels=labels)
    run("run", folder / "images.npz", "--images", "--epochs", 4, "--out", folder / "ready")
    return folder / "ready"
