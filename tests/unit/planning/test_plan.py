"""Costs before any work: exact where they can be, honest where they cannot."""

from __future__ import annotations

import time

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    MixtralConfig,
    MixtralForSequenceClassification,
)

import smidgen
from smidgen.curvature.dry_run import ActivationTrace, dry_run
from smidgen.curvature.operators import STRUCTURES
from smidgen.errors import ArgumentError, ResourceError, StructureError
from smidgen.planning.settings import PlanSettings
from smidgen.posterior.cost.laplace import LAPLACE_COSTS
from smidgen.posterior.cost.model import Setting
from smidgen.posterior.swag import COVARIANCE_KINDS
from smidgen.runtime.memory import available_bytes, format_bytes, read_bytes
from smidgen.weights.blocks import find_blocks
from tests.support.cases import CASES, SELECTORS, Case, OneBlock, bert, padded_tokens

BLOCK = Case("one-block", OneBlock, 2, padded_tokens)
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("name", ["one-block-2", "gpt2-2", "conv-3", "mlp-4"])
def test_stored_bytes_are_those_of_the_saved_file(name, selector, structure, tmp_path):
    case = BY_NAME[name]
    model, batch = case.make()
    subset = SELECTORS[selector](model)
    scattered = any(block.entries is not None for block in find_blocks(model, subset))
    if scattered and not STRUCTURES[structure].scattered:
        pytest.skip("this structure holds rows × columns only")
    problem = case.problem(model)
    planned = smidgen.plan(problem, subset=subset, structure=structure, batch=batch)
    posterior = smidgen.fit.laplace(problem, [batch], subset, structure=structure)
    smidgen.save(posterior, tmp_path / "posterior")
    tensors = load_file(tmp_path / "posterior" / "posterior.safetensors").values()
    stored = sum(each.numel() * each.itemsize for each in tensors)
    assert planned.chosen.cost.stored_bytes == stored
    assert planned.chosen.cost.weights == subset.size


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "isotropic"])
@pytest.mark.parametrize("name", ["bert-2", "gpt2-2"])
def test_an_isotropic_body_joins_the_plan(name, structure, tmp_path):
    model, batch = BY_NAME[name].make()
    problem = BY_NAME[name].problem(model)
    last = smidgen.select.last_layer(model)
    given = {"subset": last, "structure": structure, "batch": batch}
    joined = smidgen.plan(problem, **given, settings=PlanSettings(isotropic_body=True))
    alone, body = (
        smidgen.plan(problem, **{**given, **more}).chosen.cost
        for more in ({}, {"subset": ~last, "structure": "isotropic"})
    )
    posterior = smidgen.fit.laplace(problem, [batch], last, structure=structure)
    posterior |= smidgen.fit.isotropic(problem, ~last)
    smidgen.save(posterior, tmp_path / "posterior")
    tensors = load_file(tmp_path / "posterior" / "posterior.safetensors").values()
    cost = joined.chosen.cost
    assert joined.chosen.subset == "last layer | isotropic body"
    assert cost.stored_bytes == sum(each.numel() * each.itemsize for each in tensors)
    assert cost.weights == posterior.subset.size == alone.weights + body.weights
    # Fitted as the last layer alone; predicted as all layers without curvature, and more.
    assert (cost.fit_peak_bytes, cost.passes) == (alone.fit_peak_bytes, alone.passes)
    for peak in ("tune_peak_bytes", "predict_peak_bytes"):
        parts = [getattr(each, peak) for each in (alone, body)]
        assert max(parts) <= getattr(cost, peak) <= sum(parts)


def test_an_isotropic_body_needs_layers_of_its_own():
    model, batch = BLOCK.make()
    settings = PlanSettings(isotropic_body=True)
    with pytest.raises(ArgumentError, match="an isotropic body needs a layer of which"):
        smidgen.plan(model, percent=50, batch=batch, settings=settings)
    last = smidgen.select.last_layer(model)
    with pytest.raises(StructureError, match="must keep layers apart for an isotropic"):
        smidgen.plan(model, subset=last, structure="full", batch=batch, settings=settings)
    with pytest.raises(ArgumentError, match="isotropic_body is for method 'laplace'"):
        smidgen.plan(model, method="swag", batch=batch, settings=settings)


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("name", ["one-block-2", "gpt2-2", "conv-3"])
def test_swags_stored_bytes_are_those_of_the_saved_file(name, selector, tmp_path):
    case = BY_NAME[name]
    model, batch = case.make()
    subset = SELECTORS[selector](model)
    problem = case.problem(model)
    planned = smidgen.plan(
        problem, subset=subset, method="swag", batch=batch, settings=PlanSettings(rank=4)
    )
    for covariance in COVARIANCE_KINDS:
        found = smidgen.fit.swag(
            problem,
            [batch],
            subset,
            settings=smidgen.fit.SwagSettings(steps=25, rank=4, covariance=covariance),
        )
        folder = smidgen.save(found, tmp_path / covariance)
        tensors = load_file(folder / "posterior.safetensors").values()
        (row,) = (
            r
            for r in planned.rows
            if r.structure == f"swag, {covariance}" and r.subset == planned.chosen.subset
        )
        assert row.cost.stored_bytes == sum(each.nbytes for each in tensors)
    assert "2,000 steps of SGD" in str(planned)


def test_a_collection_that_cannot_fit_is_refused_with_advice(monkeypatch):
    model, batch = BLOCK.make()
    subset = smidgen.select.sparse_kfac(model, percent=100)
    monkeypatch.setenv("SMIDGEN_MEMORY", "40e3")
    with pytest.raises(ResourceError, match="covariance 'low-rank' on 286 weights") as why:
        smidgen.fit.swag(
            model, [batch], subset, settings=smidgen.fit.SwagSettings(steps=25)
        )
    assert "this subset with covariance='diagonal'" in str(why.value)
    smidgen.fit.swag(
        model,
        [batch],
        subset,
        settings=smidgen.fit.SwagSettings(steps=25, covariance="diagonal"),
    )


@pytest.mark.parametrize("percent", [1, 7, 10, 33.3, 100])
def test_a_skeleton_costs_what_the_model_costs(percent):
    """Counts of rows and columns need no weights: the same as the selector's."""
    model, batch = BLOCK.make()
    subset = smidgen.select.sparse_kfac(model, percent=percent)
    with torch.device("meta"):
        skeleton = OneBlock(2).double().eval()
    plain = smidgen.plan(skeleton, percent=percent, batch=batch)
    assert plain.chosen.cost == smidgen.plan(model, subset=subset, batch=batch).chosen.cost
    assert plain.chosen.seconds is None
    assert "No time is given: the weights were not loaded." in str(plain)


def test_time_is_estimated_where_there_are_weights():
    model, batch = BLOCK.make()
    planned = smidgen.plan(model, batch=batch, examples=500)
    assert all(row.seconds > 0 for row in planned.rows)
    assert "time for 500 examples" in str(planned)


def test_a_rehearsal_sees_what_autograd_keeps():
    """Bytes and positions on pretended tensors equal those of a real pass."""
    model, batch = Case("bert", bert, 2, padded_tokens).make()
    seen = dry_run(smidgen.Problem(model), batch)
    kept = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    inputs = {key: value for key, value in batch.items() if key != "labels"}
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    first = model.get_submodule(smidgen.coverage(model).layers[0].name)
    hook = first.register_forward_hook(lambda *a: a[2].requires_grad_().clone())
    twins = [
        model.get_submodule(each.name).register_forward_hook(
            lambda *a: a[2] if a[2].requires_grad else a[2].requires_grad_().clone()
        )
        for each in smidgen.coverage(model).layers[1:]
    ]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(**inputs).logits
    for each in [hook, *twins]:
        each.remove()
    assert outputs.requires_grad
    names = [each.name for each in smidgen.coverage(model).layers]
    graph = seen.graph(names)
    assert sum(graph.values()) == sum(storage.nbytes() for storage in kept.values())
    assert seen.positions(names[0]) == batch["input_ids"].shape[1]
    assert seen.positions("classifier") == 1


def test_peaks_grow_with_the_subset_and_the_batch():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 2))
    costs = [
        smidgen.plan(model, percent=percent, batch=torch.zeros(8, 512)).chosen.cost
        for percent in (10, 30, 100)
    ]
    assert costs[0].fit_peak_bytes < costs[1].fit_peak_bytes < costs[2].fit_peak_bytes
    wide = smidgen.plan(model, percent=10, batch=torch.zeros(800, 512)).chosen.cost
    assert wide.activation_bytes > 50 * costs[0].activation_bytes
    assert wide.stored_bytes == costs[0].stored_bytes


def test_seventy_billion_weights_are_planned_in_seconds():
    config = LlamaConfig(
        hidden_size=8192,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        intermediate_size=28672,
        vocab_size=128256,
        num_labels=2,
        pad_token_id=0,
    )
    with torch.device("meta"):
        model = LlamaForSequenceClassification(config)
    started = time.monotonic()
    planned = smidgen.plan(model, percent=1, settings=PlanSettings(batch_size=1))
    assert time.monotonic() - started < 30
    cost = planned.chosen.cost
    assert 5e6 < cost.weights < 1e7
    # 560 layers of 82 to 287 rows and columns, in fp32: about a hundred megabytes.
    assert 5e7 < cost.stored_bytes < 2e8
    assert not planned.notes[0].startswith("Activations")


def test_a_fit_that_cannot_fit_is_refused_with_advice(monkeypatch):
    model, batch = BLOCK.make()
    subset = smidgen.select.sparse_kfac(model, percent=100)
    monkeypatch.setenv("SMIDGEN_MEMORY", "100e3")
    with pytest.raises(
        ResourceError, match=r"structure 'full' on 286 weights needs"
    ) as why:
        smidgen.fit.laplace(model, [batch], subset, structure="full")
    assert "this subset with structure='kron'" in str(why.value)
    assert "100 kB are available" in str(why.value)
    planned = smidgen.plan(model, subset=subset, structure="full", batch=batch)
    assert not planned.chosen.fits
    assert "The choice does not fit" in str(planned)
    assert "No time is given" in str(planned)
    monkeypatch.setenv("SMIDGEN_MEMORY", "1e9")
    smidgen.fit.laplace(model, [batch], subset, structure="full")
    monkeypatch.setenv("SMIDGEN_MEMORY", "much")
    with pytest.raises(ArgumentError, match="must be a number of bytes"):
        smidgen.plan(model, batch=batch)


def test_a_structure_that_cannot_hold_single_weights_is_refused():
    model, batch = BLOCK.make()
    subset = smidgen.select.weights(model, fraction=0.1)
    with pytest.raises(
        StructureError, match="'diag' or 'full' or 'isotropic' for a subset of single"
    ):
        smidgen.plan(model, subset=subset, batch=batch)
    assert smidgen.plan(model, subset=subset, structure="diag", batch=batch).chosen.fits


class Asks(nn.Module):
    """A pass that depends on its numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) if bool(x.sum() > 0) else -self.layer(x)


def test_what_cannot_be_followed_is_said():
    with torch.device("meta"):
        skeleton = Asks()
    planned = smidgen.plan(skeleton, batch=torch.ones(3, 4))
    assert "Activations are not counted: a pass of Asks cannot be rehearsed" in str(planned)
    assert "a pass of Asks over this batch fails (RuntimeError:" in str(
        smidgen.plan(Asks(), batch=torch.ones(3, 5))
    )
    assert "pass batch=..." in str(smidgen.plan(nn.Linear(4, 2)))


def test_a_pass_that_depends_on_its_numbers_is_computed(unchanged, capfd):
    """It costs what the same pass costs without asking."""

    class Plain(Asks):
        def forward(self, x):
            return self.layer(x)

    model = Asks()
    batch = (torch.ones(3, 4), torch.zeros(3).long())
    with unchanged(model):
        found = smidgen.plan(model, batch=batch)
    assert found.chosen.cost == smidgen.plan(Plain(), batch=batch).chosen.cost
    assert found.chosen.seconds > 0
    assert capfd.readouterr() == ("", "")


def test_what_torch_cannot_pretend_is_not_logged(caplog):
    """Fused experts in fp32 run, and torch knows no shapes for them."""
    config = MixtralConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
        pad_token_id=0,
    )
    batch = {"input_ids": torch.ones(2, 3).long(), "labels": torch.zeros(2).long()}
    found = smidgen.plan(MixtralForSequenceClassification(config).eval(), batch=batch)
    assert found.chosen.seconds > 0
    assert not caplog.records


def test_labels_say_what_a_plan_is_for():
    """Several labels an example are planned as a fit would take them, without being told."""
    model = bert(3).eval()
    batch = padded_tokens(3, "bernoulli", torch.Generator().manual_seed(0))
    told = smidgen.Problem(model, smidgen.Bernoulli(3))
    costs = [smidgen.plan(p, batch=batch).chosen.cost for p in (model, told)]
    assert costs[0] == costs[1]


class Swapped(nn.Module):
    """Positions come first in the middle, as in XLNet."""

    def __init__(self):
        super().__init__()
        self.middle, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.middle(x.transpose(0, 1)).mean(0))


def test_layers_that_a_fit_leaves_out_are_planned_and_named():
    batch = (torch.randn(3, 5, 4), torch.zeros(3).long())
    planned = smidgen.plan(Swapped(), batch=batch)
    assert planned.chosen.seconds > 0
    assert "1 chosen layers are counted, but a Laplace fit would leave them" in str(planned)
    alone = smidgen.select.named(model := Swapped(), ["middle.*"])
    assert "a Laplace fit would refuse: the layer 'middle' saw inputs of shape" in str(
        smidgen.plan(model, subset=alone, batch=batch)
    )


def test_plans_leave_the_model_as_it_was(case, unchanged):
    model, batch = case.make()
    model.train()
    with unchanged(model):
        planned = smidgen.plan(case.problem(model), percent=40, batch=batch)
    assert planned.rows[0] is planned.chosen
    assert planned.chosen.cost.predict_peak_bytes > 0


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"percent": 0}, ArgumentError, "percent must be in"),
        ({"structure": "dense"}, StructureError, "structure must be one of"),
        ({"examples": 0}, ArgumentError, "must be 1 or more"),
        (
            {"settings": PlanSettings(fisher_draws=0)},
            ArgumentError,
            "fisher_draws must be 1 or more, got 0",
        ),
        ({"settings": PlanSettings(top=1)}, ArgumentError, "top must be 2 or more, got 1"),
        (
            {"settings": PlanSettings(top=3), "batch": torch.ones(1, 3)},
            ArgumentError,
            "top must be a whole number of classes, 2 to 2, or 'all', got 3",
        ),
        (
            {"settings": PlanSettings(top=2), "method": "swag"},
            ArgumentError,
            "top is for method 'laplace', got 2 with 'swag'",
        ),
    ],
)
def test_wrong_arguments_are_refused(wrong, error, says):
    with pytest.raises(error, match=says):
        smidgen.plan(nn.Linear(3, 2), **wrong)


def test_memory_is_told_and_written_for_people():
    found = available_bytes()
    assert found is None or found > 0
    counts = [0, 999, 1000, 12_345, 999_999, 3 * 10**9, 5 * 10**21]
    texts = ["0 bytes", "999 bytes", "1.00 kB", "12.3 kB", "1.00 MB", "3.00 GB", "5,000 EB"]
    assert [format_bytes(count) for count in counts] == texts


def test_a_network_of_convolutions_is_rehearsed():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2)
    )
    batch = (torch.randn(5, 1, 8, 8), torch.zeros(5).long())
    found = str(smidgen.plan(net, percent=50, batch=batch))
    assert "cannot be rehearsed" not in found
    assert "batches of 5" in found


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
def test_many_classes_cost_what_is_drawn_and_followed(monkeypatch):
    """As many backward passes are planned as each verb then runs."""
    classes, top, draws = 30, 4, 2
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, classes))
    batch = (torch.randn(6, 3), torch.randint(classes, (6,)))
    subset = smidgen.select.named(model, ["0.*"])
    planned, passes = [], []
    kept, grad = Setting.of, torch.autograd.grad
    monkeypatch.setattr(Setting, "of", lambda *a: planned.append(kept(*a)) or planned[-1])
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **k: passes.append(1) or grad(*a, **k)
    )

    def counted(verb, *args, **how):
        passes.clear()
        return verb(*args, **how), len(passes)

    how = {"subset": subset, "batch": batch}
    whole = smidgen.plan(model, **how).chosen
    part = smidgen.plan(
        model, **how, settings=PlanSettings(fisher_draws=draws, top=top)
    ).chosen
    laplace, predict, calibrate = smidgen.fit.laplace, smidgen.predict, smidgen.calibrate
    for setting, drawn, followed in ((planned[0], None, None), (planned[1], draws, top)):
        posterior, many = counted(
            laplace,
            model,
            [batch],
            subset,
            settings=smidgen.fit.LaplaceSettings(fisher_draws=drawn),
        )
        _, again = counted(
            laplace,
            model,
            [batch] * 2,
            subset,
            settings=smidgen.fit.LaplaceSettings(fisher_draws=drawn),
        )
        assert again - many == setting.columns
        for verb, data in ((predict, batch), (calibrate, [batch])):
            _, many = counted(verb, posterior, model, data, link=smidgen.Link(top=followed))
            assert many == setting.directions
    assert part.cost.predict_peak_bytes < whole.cost.predict_peak_bytes
    assert part.cost.tune_peak_bytes < whole.cost.tune_peak_bytes
    assert part.cost.fit_peak_bytes == whole.cost.fit_peak_bytes
    assert part.cost.pass_work * (classes - 1) == whole.cost.pass_work * draws


def test_time_of_many_classes_is_told_without_all_their_passes(monkeypatch):
    passes, grad = [], torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **k: passes.append(1) or grad(*a, **k)
    )
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 500))
    assert smidgen.plan(model, batch=torch.randn(6, 3)).chosen.seconds > 0
    assert len(passes) < 20


def test_classes_to_follow_are_planned_where_outputs_are_not_known():
    assert (
        smidgen.plan(
            nn.Linear(4, 9), settings=PlanSettings(top=5)
        ).chosen.cost.predict_peak_bytes
        > 0
    )


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("percent", [20, 100])
def test_a_fit_is_refused_from_the_first_byte_that_is_missing(
    structure, percent, monkeypatch
):
    """The quick look at the memory passes nothing that the count would refuse."""
    model, batch = BLOCK.make()
    problem = BLOCK.problem(model).with_likelihood(smidgen.Categorical(2))
    subset = smidgen.select.sparse_kfac(model, percent=percent)
    trace = ActivationTrace(len(next(iter(batch.values()))), 0)
    peak = LAPLACE_COSTS.cost(
        model, subset, structure, trace, Setting.of(problem)
    ).fit_peak_bytes
    fit = {"structure": structure, "progress": False}
    monkeypatch.setenv("SMIDGEN_MEMORY", str(peak - 1))
    with pytest.raises(ResourceError, match="are available"):
        smidgen.fit.laplace(problem, [batch], subset, **fit)
    monkeypatch.setenv("SMIDGEN_MEMORY", str(peak))
    assert smidgen.fit.laplace(problem, [batch], subset, **fit).structure == structure


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("50MB", 50_000_000), (" 1.5 gb", 1_500_000_000), ("2e3k", 2_000_000)],
)
def test_bytes_are_read_as_people_write_them(text, count):
    assert read_bytes("memory", text) == count


@pytest.mark.parametrize("text", ["", "MB", "0", "-1MB", "5 miles", "1e999B", "nan"])
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(ArgumentError, match="memory must be a number of bytes"):
        read_bytes("memory", text)
