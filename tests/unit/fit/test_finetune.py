"""Fine-tuning chosen weights: what moves, what stays, and the optimiser by itself."""

from __future__ import annotations

from copy import deepcopy
from math import isnan

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen import Subset, fit, select
from smidgen.errors import ArgumentError, DataError, StoreError, SubsetError
from smidgen.fit import SubsetAdamW, trained_weights
from smidgen.fit.epochs import Epoch
from smidgen.weights.subset import Entries, Whole
from tests.support.settings import grouped
from tests.support.tolerances import SINGLE


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 12), nn.LayerNorm(12), nn.Tanh(), nn.Dropout(0.1), nn.Linear(12, 2)
    )


def loaders(batch=10):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(80, 4, generator=generator)
    data = TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
    order = torch.Generator().manual_seed(2)
    return DataLoader(data, batch, shuffle=True, generator=order), DataLoader(data, 40)


def few(model):
    some = select.weights(model, fraction=0.2, by="random", seed=3)
    return some | select.last_layer(model)


def tune(model, pair, subset, **settings):
    train, validation = pair
    return fit.finetune(
        model,
        train,
        subset,
        validation=validation,
        **grouped(fit.FinetuneSettings, **settings),
    )


def everything(model):
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return Subset(shapes, {name: Whole() for name in shapes})


def test_only_the_chosen_weights_move(unchanged):
    model = net()
    subset = few(model)
    with unchanged(model):
        tuned = tune(
            model, loaders(), subset, epochs=3, learning_rate=0.05, weight_decay=0.1
        )
    assert not tuned.model.training
    before, after = model.state_dict(), tuned.model.state_dict()
    for name, value in before.items():
        moved = (after[name] != value).flatten().nonzero().flatten()
        assert torch.isin(moved, subset.indices(name)).all()
    chosen = subset.indices("0.weight")
    assert (after["0.weight"] != before["0.weight"]).flatten()[chosen].all()
    assert tuned.best.nll < 0.69


def test_the_delta_gives_the_tuned_model_bitwise():
    model = net()
    tuned = tune(model, loaders(), few(model), epochs=2, learning_rate=0.05)
    assert sorted(tuned.delta.replaced) == ["4.bias", "4.weight"]
    with tuned.delta.applied(model):
        for name, value in model.state_dict().items():
            assert torch.equal(value, tuned.model.state_dict()[name])


def test_a_loader_is_left_as_it_was_and_equal_seeds_tune_equally():
    train, validation = loaders()
    before = train.generator.get_state()
    first, again = (
        fit.finetune(
            net(),
            train,
            few(net()),
            validation=validation,
            settings=fit.FinetuneSettings(epochs=2),
        ).model
        for _ in range(2)
    )
    assert torch.equal(train.generator.get_state(), before)
    assert torch.equal(first[0].weight, again[0].weight)


def test_an_interrupted_run_goes_on_bitwise(tmp_path):
    class Stopped(Exception):
        pass

    def run(checkpoint, stop_after=None):
        model = net()
        train, validation = loaders()
        seen = []

        def forward(network, batch):
            seen.append(1)
            if stop_after is not None and len(seen) > stop_after:
                raise Stopped
            return network(batch[0])

        return fit.finetune(
            smidgen.Problem(model, smidgen.Categorical(2), forward),
            train,
            few(model),
            validation=validation,
            checkpoint=checkpoint,
            settings=fit.FinetuneSettings(epochs=4, patience=4, learning_rate=0.05),
        )

    whole = run(None)
    path = tmp_path / "run.safetensors"
    for stop_after in (15, 14):
        with pytest.raises(Stopped):
            run(path, stop_after)
    found = run(path)
    assert found.history == whole.history
    assert torch.equal(found.delta.difference, whole.delta.difference)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path, model = tmp_path / "run.safetensors", net()
    tune(model, loaders(), few(model), epochs=1, checkpoint=path)

    def again(batch=10, **changes):
        settings = {"epochs": 1, "checkpoint": path, **changes}
        return tune(model, loaders(batch), few(model), **settings)

    with pytest.raises(StoreError, match="stop_on is 'accuracy', here 'nll'"):
        again(stop_on="nll")
    with pytest.raises(StoreError, match="batches is 8, here 4"):
        again(batch=20)


def test_without_validation_data_the_last_epoch_is_kept(tmp_path):
    model = net()
    path = tmp_path / "run.safetensors"
    settings = {"epochs": 3, "patience": 1, "learning_rate": 0.05}
    found = smidgen.fit.finetune(
        model,
        loaders()[0],
        few(model),
        checkpoint=path,
        **grouped(smidgen.fit.FinetuneSettings, **settings),
    )
    assert [each.number for each in found.history] == [1, 2, 3]
    assert found.best is found.history[-1]
    assert isnan(found.best.nll)
    assert found.best.train_nll < found.history[0].train_nll
    again = smidgen.fit.finetune(
        model,
        loaders()[0],
        few(model),
        checkpoint=path,
        **grouped(smidgen.fit.FinetuneSettings, **settings),
    )
    assert torch.equal(again.delta.difference, found.delta.difference)
    watched = smidgen.fit.finetune(
        model,
        loaders()[0],
        few(model),
        validation=loaders()[1],
        settings=smidgen.fit.FinetuneSettings(epochs=1),
    )
    assert watched.best.nll > 0


def test_deltas_of_two_runs_go_on_one_base_together():
    model = net()
    before = deepcopy(model.state_dict())
    runs = [
        tune(model, loaders(), few(model), epochs=1, learning_rate=rate).delta
        for rate in (0.05, 0.01)
    ]
    both = smidgen.merge_deltas([runs[0], runs[1].without_head()], [0.5, 0.5])
    with both.applied(model):
        assert torch.equal(model[4].weight, runs[0].replaced["4.weight"])
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_a_channels_last_model_can_be_tuned():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    strided = deepcopy(model).to(memory_format=torch.channels_last)
    x = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    batches = [(x, torch.arange(8) % 2)]
    subset = few(model)
    tuned = [
        fit.finetune(
            each,
            batches,
            subset,
            validation=batches,
            settings=fit.FinetuneSettings(epochs=2),
        )
        for each in (model, strided)
    ]
    torch.testing.assert_close(
        tuned[0].delta.difference, tuned[1].delta.difference, **SINGLE
    )
    optimiser = SubsetAdamW(strided, subset, lr=0.1)
    strided(x).sum().backward()
    optimiser.step()
    moved = (strided[0].weight != model[0].weight).flatten().nonzero().flatten()
    assert torch.isin(moved, subset.indices("0.weight")).all()


def test_no_gradient_of_the_model_grows_from_step_to_step():
    model = net().eval()
    chosen = select.named(model, "4.*")
    optimiser = SubsetAdamW(model, chosen)
    for none in (True, False):
        model(torch.ones(3, 4)).sum().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=none)
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_decay_pulls_to_the_pretrained_values():
    model = net()
    runs = [
        tune(model, loaders(), few(model), epochs=2, learning_rate=0.05, weight_decay=decay)
        for decay in (0.0, 5.0)
    ]
    sizes = [float(each.delta.difference.norm()) for each in runs]
    assert sizes[1] < 0.6 * sizes[0]


def test_accumulated_batches_are_one_larger_batch():
    model = net().eval()
    model[3].p = 0.0
    train = list(loaders(20)[0])
    halves = [[x[i], y[i]] for x, y in train for i in (slice(0, 10), slice(10, 20))]
    validation = loaders()[1]
    settings = {"epochs": 1, "learning_rate": 0.01}
    one = fit.finetune(
        model,
        train,
        few(model),
        validation=validation,
        **grouped(fit.FinetuneSettings, **settings),
    )
    two = fit.finetune(
        model,
        halves,
        few(model),
        validation=validation,
        **grouped(fit.FinetuneSettings, accumulate=2, **settings),
    )
    torch.testing.assert_close(one.delta.difference, two.delta.difference, **SINGLE)


def test_rates_fall_to_zero_at_the_end_and_not_before():
    """Three batches in groups of two: two steps an epoch, the second a short group."""
    model, rates = net(), []
    original = SubsetAdamW.step

    class Noted(SubsetAdamW):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return original(self, closure)

    train, validation = loaders(batch=27)
    assert len(train) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained_weights, "SubsetAdamW", Noted)
        fit.finetune(
            model,
            train,
            few(model),
            validation=validation,
            settings=fit.FinetuneSettings(epochs=4, accumulate=2, patience=9),
        )
    assert len(rates) == 8
    assert all(rate > 0 for rate in rates)


def test_over_all_weights_it_is_adamw():
    model = net().eval()
    others = deepcopy(model)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    ours = SubsetAdamW(model, everything(model), lr=1e-2)
    theirs = torch.optim.AdamW(others.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(25):
        for network, optimiser in ((model, ours), (others, theirs)):
            optimiser.zero_grad()
            network(x).square().sum().backward()
            optimiser.step()
    for mine, other in zip(model.parameters(), others.parameters(), strict=True):
        torch.testing.assert_close(mine, other, **SINGLE)


def test_its_state_follows_the_subset_and_can_be_reloaded():
    model = net().to(torch.bfloat16)
    subset = few(model)
    x = torch.randn(16, 4, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))

    def steps(network, optimiser, count):
        for _ in range(count):
            optimiser.zero_grad()
            network(x).float().square().sum().backward()
            optimiser.step()

    network = deepcopy(model).eval()
    optimiser = SubsetAdamW(network, subset, lr=1e-2)
    steps(network, optimiser, 3)
    floats = sum(each.numel() for each in optimiser.state_dict()["state"][0].values())
    assert floats == 4 * subset.size + 1
    again = deepcopy(model).eval()
    taken_up = SubsetAdamW(again, subset, lr=1e-2)
    taken_up.load_state_dict(optimiser.state_dict())
    assert taken_up.difference.dtype == torch.float32
    for network_, optimiser_ in ((network, optimiser), (again, taken_up)):
        steps(network_, optimiser_, 3)
    for mine, other in zip(network.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_scheduler_and_a_closure_work():
    model = net().eval()
    optimiser = SubsetAdamW(model, few(model), lr=1e-2, clip=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 0.5**step)
    x = torch.ones(3, 4)

    def closure():
        optimiser.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return float(loss.detach())

    first = optimiser.step(closure)
    schedule.step()
    assert optimiser.param_groups[0]["lr"] == 5e-3
    assert optimiser.step(closure) < first


def test_it_runs_under_accelerate():
    accelerate = pytest.importorskip("accelerate")
    model = net()
    before = deepcopy(model.state_dict())
    subset = few(model)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    optimiser = SubsetAdamW(model, subset, lr=1e-2)
    model, wrapped, loader = accelerator.prepare(model, optimiser, loaders()[0])
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            wrapped.step()
            wrapped.zero_grad()
    assert float(optimiser._state()["step"]) == len(loader) // 2
    after = accelerator.unwrap_model(model).state_dict()
    for name, value in before.items():
        moved = (after[name] != value).flatten().nonzero().flatten()
        assert torch.isin(moved, subset.indices(name)).all()
    assert optimiser.difference.any()


def test_what_cannot_be_is_named():
    model = net()
    train, validation = loaders()
    with pytest.raises(
        ArgumentError, match="accumulate must be a whole number, 1 or more, got 0"
    ):
        fit.finetune(
            model,
            train,
            few(model),
            validation=validation,
            settings=fit.FinetuneSettings(accumulate=0),
        )
    with pytest.raises(DataError, match="must have a length"):
        fit.finetune(model, (b for b in train), few(model), validation=validation)
    with pytest.raises(ArgumentError, match="clip > 0, got 0.001, 0.0 and -1"):
        SubsetAdamW(model, few(model), clip=-1)
    other = Subset({"5.weight": (3,)}, {"5.weight": Entries(torch.tensor([1]))})
    with pytest.raises(SubsetError, match="another model"):
        SubsetAdamW(model, other)


def test_an_epoch_without_classes_comes_back_from_a_checkpoint():
    for accuracy in (None, 0.5):
        epoch = Epoch(3, 0.2, 0.4, accuracy)
        assert Epoch.from_row(torch.tensor(epoch.to_row()).double().tolist()) == Epoch(
            3, pytest.approx(0.2), pytest.approx(0.4), accuracy
        )


def test_the_nll_decides_among_equal_accuracies():
    planted = [(0.80, 0.60), (0.82, 0.5597), (0.82, 0.4210), (0.82, 0.4300), (0.81, 0.1)]
    history = [Epoch(i + 1, 0.0, nll, hits) for i, (hits, nll) in enumerate(planted)]
    best = history[0]
    for epoch in history[1:]:
        best = epoch if epoch.gains(best, "accuracy") else best
    assert best == history[2]
    assert not best.gains(best, "accuracy")


@pytest.mark.parametrize("sparse", [False, True], ids=["whole", "sparse"])
def test_of_epochs_with_equal_accuracy_the_lowest_nll_is_kept(sparse, tmp_path):
    """Labels told with certainty from the start: only the NLL still falls."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    x[:, 0] += 3 * x[:, 0].sign()
    batches = [(x, (x[:, 0] > 0).long())]

    def run(epochs, checkpoint=None, stop_after=None):
        model, seen = nn.Linear(3, 2), []
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[-0.1, 0.0, 0.0], [0.1, 0.0, 0.0]]))
            model.bias.zero_()

        def forward(network, batch):
            seen.append(1)
            if stop_after is not None and len(seen) > stop_after:
                raise KeyboardInterrupt
            return network(batch[0])

        return fit.finetune(
            smidgen.Problem(model, smidgen.Categorical(2), forward),
            batches,
            everything(model) if sparse else None,
            validation=batches,
            checkpoint=checkpoint,
            settings=fit.FinetuneSettings(epochs=epochs, patience=2, learning_rate=0.05),
        )

    tuned = run(6)
    assert {epoch.accuracy for epoch in tuned.history} == {1.0}
    nlls = [epoch.nll for epoch in tuned.history]
    # Patience of two did not end it: each epoch gained.
    assert nlls == sorted(nlls, reverse=True)
    assert len(nlls) == 6
    assert tuned.best == tuned.history[-1]
    with pytest.raises(KeyboardInterrupt):
        run(6, tmp_path / "run", stop_after=7)
    resumed = run(6, tmp_path / "run")
    assert (resumed.history, resumed.best) == (tuned.history, tuned.best)
    assert torch.equal(resumed.model.weight, tuned.model.weight)
