"""`smidgen train-sparse` on every kind of file, and the readers' refusals."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import smidgen
from smidgen.cli import main
from smidgen.errors import ArgumentError, DataError, StoreError
from smidgen.evaluate import correct
from smidgen.integrations.arrays import (
    ArrayBatches,
    Arrays,
    measure_moments,
    read_arrays,
    standardise,
)
from smidgen.report.drawing.connectivity import connectivity_picture
from smidgen.sparse import make_sparse, prune_network
from smidgen.sparse.architectures import PlainNetwork, Standardise, mlp
from tests.support.tolerances import SINGLE


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


def write_cifar(path, seed=0):
    images, labels = examples(120, (3, 32, 32), seed)
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
        ("a.csv", b"", "must hold at least one row"),
        ("a.csv", b"a,b\n1,x\n", "numbers only, got 'x'"),
        ("a.csv", b"1,0.5\n", "must be whole numbers, got 0.5"),
        ("a.npz", b"not a zip", "cannot be read"),
        ("a.npz", b"PK\x03\x04garbage", "cannot be read: .* Check that the file is whole"),
        ("a.csv", b"1,0\n1,-1\n", "classes from 0 .*, got -1 in example 1, .* Number the"),
        ("a.csv", b"1,0\n2,1e9\n", "to 1,048,575, got 1000000000 in example 1"),
        ("a.csv", b"1,0\n1,1\nnan,0\n", "finite numbers, got nan in example 2, .* Leave"),
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
    train, other = standardise(Arrays(inputs, labels), Arrays(inputs[:5], labels[:5]))
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
    # 84 steps, so a move every 4 until step 63: weights have come and gone.
    assert [move["step"] for move in found["moves"]][:3] == [4, 8, 12]
    assert all(sum(m["came"].values()) == sum(m["went"].values()) for m in found["moves"])
    assert (tmp_path / "net.svg").read_text().count("<svg") == 1
    assert "Training 432 of 2,160 weights" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    assert_usable(tmp_path / "net", found["scores"]["test"], images, labels)
    run(*words)
    assert "net is done already" in capsys.readouterr().out
    run(*words, "--seed", 1, code=1)
    assert "exists already" in capsys.readouterr().err


def assert_usable(folder, scores, images, labels):
    """What was saved takes raw data and needs no model."""
    config = json.loads((folder / "config.json").read_text())
    assert config["model"] == {
        **{"kind": "mlp", "shape": [1, 8, 8], "classes": 2},
        **{"hidden": [24, 24], "width": 16},
    }
    assert config["about"]["likelihood"] == {"kind": "categorical", "outputs": 2}
    assert config["about"]["seed"] == 0
    assert config["about"]["data"]["examples"] == 216
    posterior = smidgen.load(folder)
    network = posterior.network
    assert network.density == pytest.approx(0.2, abs=1e-3)
    raw = torch.from_numpy(images[:50].astype(np.float32) / 255)
    predictive = smidgen.predict(posterior, network, raw, samples=4)
    right = correct(predictive, torch.from_numpy(labels[:50].astype(np.int64)))
    assert float(right.mean()) == pytest.approx(scores["accuracy"]["value"])


def test_a_folder_without_its_model_says_so(tmp_path):
    network = make_sparse(mlp((4,), 2, hidden=(3,)))
    posterior = smidgen.SparsePosterior(network=network, likelihood=smidgen.Categorical(2))
    folder = smidgen.save(posterior, tmp_path / "net")
    with pytest.raises(StoreError, match="model must be given"):
        smidgen.load(folder)
    with pytest.raises(ArgumentError, match="kind must be .*got 'rnn'"):
        PlainNetwork("rnn", (4,), 2)


def test_the_first_layer_standardises_as_the_arrays_do():
    inputs = torch.randn(50, 2, 3, 3) * 4 + 1
    arrays = Arrays(inputs, torch.zeros(50, dtype=torch.int64))
    layer = Standardise((2, 3, 3))
    assert torch.equal(layer(inputs), inputs)
    layer.measure(*measure_moments(arrays))
    torch.testing.assert_close(layer(inputs), standardise(arrays)[0].inputs)


def test_cifar_comes_in_several_files(tmp_path, capsys):
    for number in (1, 2):
        write_cifar(tmp_path / f"data_batch_{number}.bin", seed=number)
    write_cifar(tmp_path / "test_batch.bin", seed=9)
    assert read_arrays(tmp_path).inputs.shape == (240, 3, 32, 32)
    words = ("train-sparse", "--hidden", 8, "--epochs", 1, "--batch-size", 16)
    words = (*words, "--samples", 2, "--density", 0.05, "--every", 3)
    run(
        *words,
        "--train",
        tmp_path,
        "--out",
        tmp_path / "a",
        "--picture",
        tmp_path / "a.svg",
    )
    assert "on 216 examples" in capsys.readouterr().out
    # 3,072 columns in 1,024 bins are no image of 32 × 32.
    assert "epoch 1" not in (tmp_path / "a.svg").read_text()
    files = [f"--train={tmp_path / f'data_batch_{n}.bin'}" for n in (1, 2)]
    run(*words, *files, "--out", tmp_path / "b")
    assert "on 216 examples" in capsys.readouterr().out
    networks = [smidgen.load(tmp_path / name).network for name in ("a", "b")]
    assert torch.equal(*(network.layers["2"].means for network in networks))
    (tmp_path / "none").mkdir()
    run(*words, "--train", tmp_path / "none", "--out", tmp_path / "c", code=1)
    assert "must hold CIFAR-10's data_batch" in capsys.readouterr().err


def test_the_test_data_only_report(tmp_path, capsys):
    images, labels = examples(60)
    np.savez(tmp_path / "train.npz", x=images, y=labels)
    np.savez(tmp_path / "other.npz", x=images, y=labels + 1)
    np.savez(tmp_path / "flat.npz", x=images.reshape(60, -1), y=labels)
    np.savez(tmp_path / "soft.npz", x=images, y=np.linspace(0, 1, 60))
    base = ("train-sparse", "--train", tmp_path / "train.npz", "--out", tmp_path / "net")
    for name, words in (
        ("other.npz", "has a class 2, the training data have 0 to 1"),
        ("flat.npz", "must hold examples of shape (1, 8, 8)"),
        ("soft.npz", "must be whole numbers, got 0.0169"),
    ):
        run(*base, "--test", tmp_path / name, code=1)
        assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--replaced", 2), "replaced must be in [0, 1], got 2.0"),
        (("--until", -1), "until must be in [0, 1], got -1.0"),
        (("--warm-up", 3), "--warm-up must be in [0, 1], got 3.0"),
        (("--scale", 0), "scale must be > 0, got 0.0"),
        (("--prior", 0), "prior must be > 0, got 0.0"),
        (("--hidden", "a"), "--hidden must be numbers of units such as 512,512, got 'a'"),
    ],
)
def test_wrong_options_are_refused(tmp_path, capsys, words, refusal):
    images, labels = examples(60)
    np.savez(tmp_path / "train.npz", x=images, y=labels)
    base = ("train-sparse", "--train", tmp_path / "train.npz", "--out", tmp_path / "net")
    run(*base, *words, code=1)
    assert refusal in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "net").exists()


def test_the_command_trains_a_resnet_and_a_table(tmp_path, capsys):
    images, labels = examples(60)
    np.savez(tmp_path / "train.npz", x=images, y=labels)
    quick = ("--epochs", 1, "--batch-size", 16, "--samples", 2)
    run(
        *("train-sparse", "--train", tmp_path / "train.npz", "--model", "resnet"),
        *("--width", 4, "--out", tmp_path / "res", *quick),
    )
    network = smidgen.load(tmp_path / "res").network
    assert network(torch.from_numpy(images[:3].astype(np.float32) / 255)).shape == (3, 2)
    path = write_csv(tmp_path / "table.csv", images, labels)
    run(
        *("train-sparse", "--train", path, "--label", "verdict", "--hidden", 16),
        *("--deterministic", "--removal", "magnitude", "--out", tmp_path / "tab", *quick),
        *("--start", "magnitude", "--optimiser", "sgd", "--passes", 2),
    )
    assert not smidgen.load(tmp_path / "tab").stochastic
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


def test_a_pruned_network_still_knows_what_it_was_made_from(tmp_path):
    plain = PlainNetwork("mlp", (4,), 2, hidden=(6,))
    network = make_sparse(plain.build(), density=0.5)
    posterior = smidgen.SparsePosterior(
        network=network, likelihood=smidgen.Categorical(2), plain=plain
    )
    smidgen.save(posterior, tmp_path / "first")
    whole = smidgen.load(tmp_path / "first")
    cut = prune_network(whole.network, 0.2)
    smidgen.save(replace(whole, network=cut), tmp_path / "second")
    again = smidgen.load(tmp_path / "second").network
    assert again.count == cut.count < network.count
    with pytest.raises(ArgumentError, match="at most the network's own, 0.1"):
        prune_network(cut, 0.5)
    rows = torch.rand(3, 4)
    assert torch.equal(again(rows.double()), again(rows.double().float()))
    with pytest.raises(DataError, match="Divide bytes of images by 255"):
        again((255 * rows).byte())
    with pytest.raises(DataError, match="4 numbers for each example"):
        again(torch.rand(3, 5))
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "second").iterdir()}
    assert modes == {(tmp_path / "plain").stat().st_mode}
