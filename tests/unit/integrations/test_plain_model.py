"""Plain models go to a folder and come back, bit for bit."""

import json

import pytest
import torch

from smidgen.errors import StoreError
from smidgen.integrations.plain_model import load_plain_model, save_plain_model
from smidgen.sparse.architectures import PlainNetwork

MLP = PlainNetwork("mlp", (3,), 2, hidden=(4,))
CNN = PlainNetwork("cnn", (1, 8, 9), 3, width=2)


@pytest.mark.parametrize("network", [MLP, CNN], ids=["mlp", "cnn"])
def test_a_model_comes_back_as_it_was(tmp_path, network):
    model = network.build(seed=1)
    model[0].measure(torch.tensor(2.0), torch.tensor(3.0)) if network is CNN else None
    loaded = load_plain_model(save_plain_model(model, network, tmp_path / "model"))
    inputs = torch.randn(5, *network.shape)
    assert loaded(inputs).equal(model.eval()(inputs))
    assert loaded(inputs).shape == (5, network.classes)


def test_small_images_have_fewer_convolutions():
    assert len(PlainNetwork("cnn", (1, 4, 4), 2).build()) < len(
        PlainNetwork("cnn", (1, 28, 28), 2).build()
    )
    assert PlainNetwork("cnn", (3, 2, 2), 2).build()(torch.zeros(1, 3, 2, 2)).shape == (
        1,
        2,
    )


def test_damage_and_other_architectures_are_refused(tmp_path):
    folder = save_plain_model(MLP.build(), MLP, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["network"]["hidden"] = [5]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(StoreError, match="digest"):
        load_plain_model(folder)
    with pytest.raises(StoreError, match="'smidgen run'"):
        load_plain_model(tmp_path / "gone")


def test_a_taken_folder_is_kept(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(StoreError, match="not empty"):
        save_plain_model(MLP.build(), MLP, tmp_path)
