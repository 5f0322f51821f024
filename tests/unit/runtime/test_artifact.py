"""A digest covers all that an artifact says, and is the same wherever it is computed."""

from __future__ import annotations

import json

import pytest
import torch

from smidgen.errors import StoreError
from smidgen.runtime.artifact import (
    Taken,
    check_seal,
    fill_folder,
    find_digest,
    read_folder,
    read_sealed_json,
    read_tensor_file,
    require_finite,
    require_like,
    seal,
    write_sealed_json,
    write_tensor_file,
)

HEADER = {"a": 1, "b": [1.5, None, {"c": "é"}]}
TENSORS = {"x": torch.arange(6.0).reshape(2, 3), "y": torch.tensor([1, 2])}


def test_a_digest_is_of_everything_and_of_nothing_else():
    digest = find_digest(HEADER, TENSORS)
    assert digest == find_digest({**HEADER, "digest": "anything"}, TENSORS)
    # Neither the order of names nor how a tensor lies in memory says anything.
    other = {"y": TENSORS["y"], "x": TENSORS["x"].T.contiguous().T}
    assert digest == find_digest(dict(reversed(HEADER.items())), other)
    assert digest == find_digest({**HEADER, "b": (1.5, None, {"c": "é"})}, TENSORS)
    changed = [
        ({**HEADER, "a": 1.0}, TENSORS),
        ({**HEADER, "a": True}, TENSORS),
        ({**HEADER, "z": None}, TENSORS),
        (HEADER, {"x": TENSORS["x"]}),
        (HEADER, {"x": TENSORS["x"], "z": TENSORS["y"]}),
        (HEADER, {"x": TENSORS["y"], "y": TENSORS["x"]}),
        (HEADER, {**TENSORS, "x": TENSORS["x"].reshape(3, 2)}),
        (HEADER, {**TENSORS, "y": TENSORS["y"].to(torch.int32)}),
        (HEADER, {**TENSORS, "z": torch.zeros(0)}),
        (HEADER, {**TENSORS, "x": TENSORS["x"] + 1e-6}),
    ]
    digests = {digest, *(find_digest(*each) for each in changed)}
    assert len(digests) == 1 + len(changed)


def test_what_json_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    for value in (float("nan"), float("inf"), {1, 2}, b"x"):
        with pytest.raises(StoreError, match="holds a value JSON cannot"):
            write_sealed_json(tmp_path / "j", {"a": value})
        with pytest.raises(StoreError, match="holds a value JSON cannot"):
            write_tensor_file(tmp_path / "t", TENSORS, {"a": value}, key="k")
    assert not list(tmp_path.iterdir())


def test_sealed_json_comes_back_and_says_what_is_wrong_with_it(tmp_path):
    path = tmp_path / "about.json"
    how = {"what": "thing", "advice": "Make it again."}
    write_sealed_json(path, HEADER)
    assert read_sealed_json(path, **how) == HEADER
    assert check_seal(seal(HEADER)) == HEADER
    text = path.read_text()
    path.write_text(text.replace("1.5", "1.6"))
    with pytest.raises(
        StoreError,
        match=r"about.json is not a thing that can be read: it was damaged or edited, its "
        r"digest is another. Make it again.",
    ):
        read_sealed_json(path, **how)
    path.write_text(json.dumps(HEADER))
    with pytest.raises(
        StoreError, match="no digest, so an earlier version of smidgen wrote"
    ):
        read_sealed_json(path, **how)
    path.write_text(text[:-9])
    with pytest.raises(StoreError, match="not hold what it should .JSONDecodeError"):
        read_sealed_json(path, **how)


def test_a_file_is_of_one_kind(tmp_path):
    how = {"what": "thing", "advice": "Make it again."}
    path = write_tensor_file(tmp_path / "t", TENSORS, HEADER, key="k")
    tensors, header = read_tensor_file(path, key="k", **how)
    assert header == HEADER
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    with pytest.raises(StoreError, match="its metadata have no 'other'"):
        read_tensor_file(path, key="other", **how)


def test_a_folder_has_the_tensors_it_lists(tmp_path):
    how = {"what": "thing", "advice": "Make it again."}
    paths = tmp_path / "config.json", tmp_path / "t.safetensors"
    fill_folder(*paths, HEADER, TENSORS)
    tensors, header = read_folder(*paths, **how)
    assert header == HEADER
    assert tensors.keys() == TENSORS.keys()
    config = json.loads(paths[0].read_text())
    assert config["tensors"] == {"x": ["float32", [2, 3]], "y": ["int64", [2]]}
    config["tensors"]["z"] = ["float32", [1]]
    paths[0].write_text(json.dumps(seal(config, TENSORS)))
    with pytest.raises(StoreError, match="not those that its config lists"):
        read_folder(*paths, **how)


def test_nothing_is_left_unread_broadcast_or_infinite():
    taken = Taken(TENSORS)
    assert "x" in taken
    assert len(taken) == len(list(taken)) == 2
    assert taken.get("z") is None
    with pytest.raises(StoreError, match="the tensor 'z' is missing"):
        taken["z"]
    assert taken["x"] is TENSORS["x"]
    with pytest.raises(StoreError, match="the tensor 'y' belongs to nothing in it"):
        taken.refuse_rest()
    assert taken.get("y") is TENSORS["y"]
    taken.refuse_rest()
    x = TENSORS["x"]
    assert require_like("x", x, x) is x
    for other in (x[:1, :1], x.double(), x[None]):
        with pytest.raises(StoreError, match="x must be torch.float32 of shape"):
            require_like("x", other, x)
    require_finite("x", x)
    for value in (torch.nan, torch.inf):
        with pytest.raises(StoreError, match="x holds NaN or infinity"):
            require_finite("x", torch.tensor([1.0, value]))
