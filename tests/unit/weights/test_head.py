"""Heads of several layers: no prior, never ranked, always tuned, no part of the base."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from smidgen import Problem, Subset, fit, merge_deltas, select
from smidgen.errors import ArgumentError, StoreError
from smidgen.integrations.huggingface import load_with_head
from smidgen.weights.head import find_head
from smidgen.weights.subset import Entries, Whole
from smidgen_studies.methods.tuned_text import Start, choose_weights
from tests.support.settings import grouped
from tests.support.tiny import TWO_MAPS, saved_encoder, saved_encoder_of

COURSE = {"steps": 6, "burn_in": 2, "thin": 2, "num_data": 12}


def batches():
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(3):
        words = torch.randint(4, 8, (4, 6), generator=generator)
        words[:, 0] = 2
        one = {"input_ids": words, "attention_mask": torch.ones_like(words)}
        found.append({**one, "labels": (words == 4).any(1).long()})
    return found


@pytest.fixture(scope="module", params=TWO_MAPS)
def family(request, tmp_path_factory):
    folder = saved_encoder_of(request.param, tmp_path_factory.mktemp(request.param))
    return folder, TWO_MAPS[request.param]


def run(model, head):
    scales = fit.langevin(
        model, batches(), **grouped(fit.LangevinSettings, head=head, **COURSE)
    )
    subset = select.bayestune(model, scales.means, fraction=0.02, head=head)
    how = {"head": head, "epochs": 2, "learning_rate": 0.01}
    return (
        scales,
        subset,
        fit.finetune(model, batches(), subset, **grouped(fit.FinetuneSettings, **how)),
    )


def test_another_head_seed_is_no_other_base(family):
    folder, layers = family
    first, second = (load_with_head(folder, labels=2, seed=seed) for seed in (0, 1))
    names = [f"{name}.{field}" for name in layers for field in ("weight", "bias")]
    assert list(first.head) == names
    found = [run(each.model, each.head) for each in (first, second)]
    for scales, subset, tuned in found:
        assert not set(names) & set(scales.means)
        assert all(subset.parts[name] == Whole() for name in names)
        assert set(tuned.delta.replaced) == set(names)
        assert not set(names) & set(tuned.delta.subset.parts)
    deltas = [tuned.delta for _, _, tuned in found]
    assert deltas[0].fingerprint == deltas[1].fingerprint
    started, ended = first.model.state_dict(), found[0][2].model.state_dict()
    for name, value in ended.items():
        moved = (value != started[name]).flatten().nonzero().flatten().tolist()
        if name in names:
            assert moved, name
        else:
            assert set(moved) <= set(deltas[0].subset.indices(name).tolist()), name
    with deltas[0].applied(second.model) as there:
        assert all(torch.equal(v, ended[n]) for n, v in there.state_dict().items())
    both = merge_deltas([deltas[0], deltas[1].without_head()])
    assert set(both.replaced) == set(names)


def test_told_of_one_map_the_other_is_part_of_the_base(family):
    folder, layers = family
    first, second = (load_with_head(folder, labels=2, seed=seed) for seed in (0, 1))
    scales, _, tuned = run(first.model, "last")
    assert f"{layers[0]}.weight" in scales.means
    with pytest.raises(StoreError, match="another base model"):
        tuned.delta.apply(second.model)


def test_names_of_modules_of_parameters_and_a_subset_say_the_same(family):
    folder, layers = family
    loaded = load_with_head(folder, labels=2)
    model, names = loaded.model, list(loaded.head)
    wanted = find_head(model, loaded.head)
    assert list(wanted) == names
    assert find_head(model, list(layers)) == wanted
    assert find_head(model, select.named(model, names)) == wanted
    # A subset that lacks the head is tuned with it all the same.
    few = Subset(
        {n: tuple(p.shape) for n, p in model.named_parameters() if n not in names},
        {next(iter(dict(model.named_parameters()))): Entries(torch.tensor([3]))},
    )
    tuned = fit.finetune(
        model, batches(), few, settings=fit.FinetuneSettings(head=layers, epochs=1)
    )
    assert set(tuned.delta.replaced) == set(names)
    assert tuned.delta.subset.size == 1


@pytest.mark.parametrize("method", ["head", "bitfit", "magnitude"])
def test_studies_tune_all_of_a_new_head(family, method):
    folder, _ = family
    loaded = load_with_head(folder, labels=2)
    problem = Problem(loaded.model)
    start = Start(problem, loaded.head, None, loaded.tokenizer, {"train": batches()}, 0)
    subset, _ = choose_weights(method, start, 0.01, None)
    parts = subset.parts
    assert all(parts[name] == Whole() for name in loaded.head)
    assert (set(parts) == set(loaded.head)) == (method == "head")


def test_one_new_map_is_the_last(tmp_path):
    loaded = load_with_head(saved_encoder(tmp_path), labels=2)
    model = loaded.model
    assert loaded.head == ("classifier.weight", "classifier.bias")
    # In that order, on which sums of gradients depend.
    assert list(find_head(model, loaded.head)) == list(find_head(model, "last"))
    assert select.named(model, list(loaded.head)) == select.last_layer(model)
    told, last = (run(model, head) for head in (loaded.head, "last"))
    assert told[1].digest() == last[1].digest()
    assert told[2].delta.fingerprint == last[2].delta.fingerprint
    assert torch.equal(told[2].delta.difference, last[2].delta.difference)


def test_what_is_new_without_a_map_of_its_own(tmp_path):
    # An encoder that was kept without its pooler gets a new one.
    folder = saved_encoder(tmp_path)
    file = folder / "model.safetensors"
    kept = {n: t for n, t in load_file(file).items() if not n.startswith("pooler")}
    save_file(kept, file, metadata={"format": "pt"})
    assert load_with_head(folder, labels=2).head == (
        *("bert.pooler.dense.weight", "bert.pooler.dense.bias"),
        *("classifier.weight", "classifier.bias"),
    )


def test_heads_that_are_none():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(ArgumentError, match="got '1', which has no weights of its own"):
        find_head(model, ["2", "1"])
    # '2' is no beginning of another name.
    with pytest.raises(ArgumentError, match="got '2.w'"):
        find_head(model, ["2.w"])
    with pytest.raises(ArgumentError, match="must name a module or more, got none"):
        find_head(model, [])
    with pytest.raises(ArgumentError, match=r"got 'body'. Put names .* head=\['body'\]"):
        find_head(model, "body")
    part = Subset({"2.bias": (2,)}, {"2.bias": Entries(torch.tensor([0]))})
    with pytest.raises(ArgumentError, match="whole parameters, got a part of '2.bias'"):
        find_head(model, part)
