"""`smidgen train-sparse` on every kind of file, and the readers' refusals."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch
from tests.tolerances import SINGLE

from smidgen.cli import main
from smidgen.errors import DataError
from smidgen.integrations.arrays import ArrayBatches, Arrays, read_arrays, standardised
from smidgen.integrations.plain_networks import mlp
from smidgen.report.connectivity import connectivity_picture
from smidgen.sparse import load_sparse


def examples(count=240, shape=(1, 8, 8), seed=0):
    """Images whose class is the half that is bright."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = generator.integers(0, 100, (count, *shape))
    half = shape[-1] // 2
    images[labels == 1, ..., :half] += 120
    images[labels == 0, ..., half:] += 120
    return images.astype(np.uint8), labels.astype(np.uint8)


def write_idx(folder, images, labels, *, packed=True):
    opened = gzip.open if packed else open
    end = ".gz" if packed else ""
    flat = images[:, 0]
    heads = {
        "train-images-idx3-ubyte": (flat, bytes([0, 0, 8, 3])),
        "train-labels-idx1-ubyte": (labels, bytes([0, 0, 8, 1])),
    }
    for name, (values, head) in heads.items():
        with opened(folder / (name + end), "wb") as file:
            file.write(head + np.array(values.shape, ">u4").tobytes() + values.tobytes())
    return folder / ("train-images-idx3-ubyte" + end)


def write_csv(path, images, labels):
    rows = np.concatenate([images.reshape(len(labels), -1), labels[:, None]], 1)
    names = ",".join([*(f"p{i}" for i in range(rows.shape[1] - 1)), "verdict"])
    lines = [",".join(str(int(v)) for v in row) for row in rows]
    path.write_text("\n".join([names, *lines]) + "\n")
    return path


def write_cifar(path):
    images, labels = examples(120, (3, 32, 32))
    records = np.concatenate([labels[:, None], images.reshape(len(labels), -1)], 1)
    path.write_bytes(records.astype(np.uint8).tobytes())
    return path


def run(*words, code=0):
    with pytest.raises(SystemExit) as leaving:
        main([str(word) for word in words])
    assert leaving.value.code == code


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read(tmp_path, packed):
    images, labels = examples()
    found = read_arrays(write_idx(tmp_path, images, labels, packed=packed))
    assert torch.equal(found.inputs, torch.from_numpy(images.astype(np.float32) / 255))
    assert found.labels.tolist() == labels.tolist()


def test_the_other_files_are_read(tmp_path):
    images, labels = examples()
    np.savez(tmp_path / "last.npz", X=images.transpose(0, 2, 3, 1).repeat(3, -1), y=labels)
    assert read_arrays(tmp_path / "last.npz").inputs.shape == (240, 3, 8, 8)
    np.savez(tmp_path / "grey.npz", images=images[:, 0], labels=labels)
    assert read_arrays(tmp_path / "grey.npz").inputs.shape == (240, 1, 8, 8)
    path = write_csv(tmp_path / "table.csv", images, labels)
    for column in ("verdict", -1, 64):
        found = read_arrays(path, label=column)
        assert found.inputs.shape == (240, 64)
        assert found.labels.tolist() == labels.tolist()
    found = read_arrays(write_cifar(tmp_path / "data_batch_1.bin"))
    assert found.inputs.shape == (120, 3, 32, 32)
    assert found.classes == 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "must be .npz, .csv, .bin"),
        ("a.bin", b"123", "records of 3073 bytes, got 3 bytes"),
        ("a.csv", b"", "holds no line"),
        ("a.csv", b"a,b\n1,x\n", "cannot be read"),
        ("a.csv", b"1,0.5\n", "must be whole numbers, got 0.5"),
        ("a.npz", b"not a zip", "cannot be read"),
        ("train-images-idx3-ubyte", b"", "with …-labels-idx1-ubyte beside it"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_arrays(tmp_path / name)


def test_objects_in_an_npz_are_refused(tmp_path):
    np.savez(tmp_path / "o.npz", x=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(DataError, match="cannot be read"):
        read_arrays(tmp_path / "o.npz")


def test_standardising_uses_the_training_data():
    inputs = torch.randn(50, 2, 3, 3) * 4 + 1
    labels = torch.zeros(50, dtype=torch.int64)
    train, other = standardised(Arrays(inputs, labels), Arrays(inputs[:5], labels[:5]))
    torch.testing.assert_close(train.inputs.mean((0, 2, 3)), torch.zeros(2), **SINGLE)
    assert torch.equal(other.inputs, train.inputs[:5])


def test_batches_are_shuffled_by_their_seed():
    arrays = Arrays(torch.arange(10.0)[:, None], torch.arange(10))
    first, second = (ArrayBatches(arrays, 4, shuffle=True, seed=1) for _ in range(2))
    seen = [torch.cat([y for _, y in loader]).tolist() for loader in (first, second, first)]
    assert seen[0] == seen[1] != seen[2]
    assert sorted(seen[0]) == list(range(10))
    assert len(first) == 3


def test_the_command_trains_saves_draws_and_reports(tmp_path, capsys):
    images, labels = examples()
    train = write_idx(tmp_path, images, labels)
    np.savez(tmp_path / "test.npz", x=images[:50], y=labels[:50])
    words = [
        "train-sparse",
        *("--train", train, "--test", tmp_path / "test.npz", "--out", tmp_path / "net"),
        *("--hidden", "24,24", "--density", 0.2, "--epochs", 6, "--batch-size", 16),
        *("--samples", 4, "--lr", 0.01, "--json", tmp_path / "found.json"),
        *("--picture", tmp_path / "net.svg", "--checkpoint", tmp_path / "run"),
    ]
    run(*words)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["scores"]["test"]["accuracy"]["value"] > 0.9
    assert len(found["history"]) == 6
    assert (tmp_path / "net.svg").read_text().count("<svg") == 1
    assert "Training 432 of 2,160 weights" in capsys.readouterr().out
    network = load_sparse(tmp_path / "net", mlp((1, 8, 8), 2, hidden=(24, 24)))
    assert network.density == pytest.approx(0.2, abs=1e-3)
    run(*words, code=1)
    assert "exists already" in capsys.readouterr().err


def test_the_command_trains_a_resnet_and_a_table(tmp_path, capsys):
    images, labels = examples(60)
    np.savez(tmp_path / "train.npz", x=images, y=labels)
    quick = ("--epochs", 1, "--batch-size", 16, "--samples", 2)
    run(
        *("train-sparse", "--train", tmp_path / "train.npz", "--model", "resnet"),
        *("--width", 4, "--out", tmp_path / "res", *quick),
    )
    path = write_csv(tmp_path / "table.csv", images, labels)
    run(
        *("train-sparse", "--train", path, "--label", "verdict", "--hidden", 16),
        *("--deterministic", "--removal", "magnitude", "--out", tmp_path / "tab", *quick),
    )
    run(
        *("train-sparse", "--train", path, "--label", "verdict", "--model", "resnet"),
        *("--out", tmp_path / "no", *quick),
        code=1,
    )
    assert "takes images (channels, height, width), got (64,)" in capsys.readouterr().err


def test_the_picture_shows_every_map():
    epochs = [
        {"first": [0.1] * 12, "last": [0.2, 0.4]},
        {"first": [0.3] * 12, "last": [0, 1]},
    ]
    drawn = connectivity_picture(epochs, image=(3, 4))
    assert drawn.count("epoch 2") == 2
    assert "last: active share" in drawn
    assert "first: active share" in connectivity_picture(epochs)
