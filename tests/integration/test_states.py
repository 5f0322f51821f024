"""A model in the state that training leaves it in has the numbers of the same model in plain form.

Every state is fitted, predicted, calibrated, saved, loaded and verified. A posterior of one form
belongs to the other too, and so does a subset.
"""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from functools import cache

import pytest
import torch
import torch._inductor.config
import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainingArguments

import smidgen
from smidgen.errors import ArgumentError, DataError, StoreError
from smidgen.fit import FinetuneSettings, SwagSettings
from smidgen.select import scores
from tests.support.cases import bert
from tests.support.tolerances import EXACT, HALF

# Six examples choose no precision well.
pytestmark = pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")

SWAG = SwagSettings(steps=6, every=1, rank=3, learning_rate=1e-3)
QUIET = {"progress": False}


def make():
    """A small classifier of text in float64, with weights that look trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = bert(3).double().eval()
        for parameter in model.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model


def make_batches():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 17, (6, 7), generator=generator)
    mask = torch.ones_like(ids)
    mask[2, 4:] = 0
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    whole = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return [
        {name: value[rows] for name, value in whole.items()}
        for rows in ([0, 1, 2], [3, 4, 5])
    ]


BATCHES, PLAIN = make_batches(), make()


def checkpointed(*, reentrant):
    model = make().train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return model


def with_input_gradients():
    model = make()
    model.enable_input_require_grads()
    return model


def compiled_in_place():
    model = make()
    model.compile(backend="eager")
    return model


STATES = {
    "checkpointed": lambda: checkpointed(reentrant=False),
    "checkpointed, reentrant": lambda: checkpointed(reentrant=True),
    "input gradients": with_input_gradients,
    "compiled": lambda: torch.compile(make(), backend="eager"),
    "compiled in place": compiled_in_place,
    "DataParallel": lambda: nn.DataParallel(make()),
    "DDP": lambda: nn.parallel.DistributedDataParallel(make()),
    "compiled DDP": lambda: torch.compile(
        nn.parallel.DistributedDataParallel(make()), backend="eager"
    ),
    "no_grad": make,
    "inference_mode": make,
}
CONTEXTS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    """One process that is a group of its own, for DistributedDataParallel."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(params=STATES)
def state(request):
    """A model in some state, in the context that belongs to it."""
    model = STATES[request.param]()
    with CONTEXTS.get(request.param, nullcontext)():
        yield model


def fit(model, structure="kron"):
    subset = smidgen.select.sparse_kfac(model, percent=40)
    if structure == "full":
        subset = smidgen.select.last_layer(model)
    return smidgen.fit.laplace(model, BATCHES, subset, structure=structure, **QUIET)


def calibrated(model, structure):
    posterior = smidgen.calibrate(fit(model, structure), model, BATCHES, **QUIET)
    return smidgen.predict(posterior, model, BATCHES[0]).probs


def predict_by_swag(model):
    subset = smidgen.select.sparse_kfac(model, percent=40)
    posterior = smidgen.fit.swag(model, BATCHES, subset, settings=SWAG, **QUIET)
    posterior = smidgen.calibrate(posterior, model, BATCHES, **QUIET)
    return smidgen.predict(posterior, model, BATCHES[0], samples=4).probs


def finetune(model, subset):
    settings = FinetuneSettings(epochs=1)
    tuned = smidgen.fit.finetune(model, BATCHES, subset, settings=settings, **QUIET).model
    return torch.cat([p.detach().flatten() for p in tuned.parameters()])


def score(model):
    found = [
        scores.squared_gradient(model, BATCHES, **QUIET),
        scores.curvature(model, BATCHES, **QUIET),
        scores.activation(model, BATCHES, **QUIET),
        scores.magnitude(model),
    ]
    return torch.cat([s.flatten() for each in found for s in each.values()])


WORKS = {
    **{
        s: lambda m, s=s: calibrated(m, s)
        for s in ("kron", "diag", "full", "ekfac", "isotropic")
    },
    "draws": lambda m: smidgen.predict(fit(m), m, BATCHES[0], samples=4).probs,
    "swag": predict_by_swag,
    "finetune": lambda m: finetune(m, smidgen.select.sparse_kfac(m, percent=40)),
    "finetune all": lambda m: finetune(m, None),
    "scores": score,
    "point": lambda m: smidgen.point_outputs(m, BATCHES, **QUIET)[0],
}


@cache
def plain(work):
    return WORKS[work](make())


@pytest.mark.parametrize("work", WORKS)
def test_numbers_are_those_of_the_plain_model(state, work):
    torch.testing.assert_close(WORKS[work](state), plain(work), **EXACT)


def test_the_exact_computation_agrees(state):
    assert smidgen.verify(state, BATCHES[:1], rows=2, columns=2).agrees


def test_a_posterior_of_one_form_belongs_to_the_other(state, tmp_path):
    model = PLAIN
    ours, theirs = fit(state), fit(model)
    assert ours.fingerprint == theirs.fingerprint
    assert ours.subset == theirs.subset
    saved = smidgen.save(ours, tmp_path / "ours"), smidgen.save(theirs, tmp_path / "theirs")
    loaded = smidgen.load(saved[0], model), smidgen.load(saved[1], state)
    expected = smidgen.predict(theirs, model, BATCHES[0]).probs
    for posterior, form in (
        (ours, model),
        (theirs, state),
        (loaded[0], model),
        (loaded[1], state),
    ):
        probs = smidgen.predict(posterior, form, BATCHES[0]).probs
        torch.testing.assert_close(probs, expected, **EXACT)


@pytest.mark.parametrize("inside", ["fit", "predict", "batch"])
def test_inference_mode_may_end_between_two_calls(inside):
    model = make()
    with torch.inference_mode(inside == "fit"):
        posterior = smidgen.calibrate(fit(model), model, BATCHES, **QUIET)
    with torch.inference_mode(inside == "batch"):
        batch = {name: value.clone() for name, value in BATCHES[0].items()}
    with torch.inference_mode(inside == "predict"):
        probs = smidgen.predict(posterior, model, batch).probs
        drawn = smidgen.predict(posterior, model, batch, samples=3).probs
    torch.testing.assert_close(probs, plain("kron"), **EXACT)
    torch.testing.assert_close(drawn.sum(-1), torch.ones(3, dtype=torch.float64), **EXACT)


def test_a_model_made_in_inference_mode_is_refused():
    with torch.inference_mode():
        model = make()
    with pytest.raises(ArgumentError, match=r"outside torch\.inference_mode.*deepcopy"):
        fit(model)
    torch.testing.assert_close(calibrated(deepcopy(model), "kron"), plain("kron"), **EXACT)


def test_what_the_trainer_leaves_behind(tmp_path):
    rows = [{name: value[0] for name, value in batch.items()} for batch in BATCHES]
    settings = TrainingArguments(
        str(tmp_path),
        gradient_checkpointing=True,
        max_steps=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    trained = make().train()
    Trainer(trained, settings, train_dataset=rows).train()
    fresh = make()
    fresh.load_state_dict(trained.state_dict())
    torch.testing.assert_close(
        calibrated(trained, "kron"), calibrated(fresh, "kron"), **EXACT
    )


def test_a_model_that_was_really_compiled():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    batch = (torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2]))
    compiled = torch.compile(model)
    # Scalar code: finding out which vectors the machine has takes twice as long as all else.
    with torch.no_grad(), torch._inductor.config.patch({"cpp.simdlen": 1}):
        torch.testing.assert_close(compiled(batch[0]), model(batch[0]), **EXACT)
    subset = smidgen.select.sparse_kfac(compiled, percent=60)
    posterior = smidgen.fit.laplace(compiled, [batch], subset, **QUIET)
    expected = smidgen.fit.laplace(model, [batch], subset, **QUIET)
    assert posterior == expected
    for form in (model, compiled):
        probs = smidgen.predict(posterior, form, batch).probs
        assert torch.equal(probs, smidgen.predict(expected, model, batch).probs)


FORWARDS = {
    "given": lambda wrapped: lambda model, batch: model(batch["input_ids"]).logits,
    "by a name of its own": lambda wrapped: (
        lambda _, batch: wrapped(batch["input_ids"]).logits
    ),
}


@pytest.mark.parametrize("forward", FORWARDS)
def test_a_forward_of_the_callers_own_sees_the_model_without_its_wrapper(forward):
    model = make()
    wrapped = nn.DataParallel(model)
    problem = smidgen.Problem(wrapped, forward=FORWARDS[forward](wrapped))
    expected = smidgen.Problem(model, forward=FORWARDS["given"](model))
    ours, theirs = fit_problem(problem), fit_problem(expected)
    assert ours == theirs
    probs = smidgen.predict(theirs, problem, BATCHES[0]).probs
    assert torch.equal(probs, smidgen.predict(ours, expected, BATCHES[0]).probs)


def fit_problem(problem):
    subset = smidgen.select.sparse_kfac(problem.model, percent=40)
    return smidgen.fit.laplace(problem, BATCHES, subset, **QUIET)


def test_a_forward_that_looks_into_the_wrapper_is_refused():
    wrapped = nn.DataParallel(make())
    problem = smidgen.Problem(
        wrapped, forward=lambda model, batch: model.module(batch["input_ids"]).logits
    )
    with pytest.raises(DataError, match=r"wrappers of torch\.compile.*without \.module"):
        fit_problem(problem)


def test_a_wrapper_with_hooks_of_its_own_is_another_model():
    wrapped = nn.DataParallel(make())
    wrapped.register_forward_hook(lambda *_: None)
    with pytest.raises(ArgumentError, match="must be the one the posterior was fitted to"):
        smidgen.predict(fit(make()), wrapped, BATCHES[0])


COPIES = {
    "half": lambda model: model.half(),
    "bfloat16": lambda model: model.bfloat16(),
    "half and back": lambda model: model.half().double(),
    "float": lambda model: model.float(),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("method", ["laplace", "swag"])
def test_a_posterior_follows_a_copy_in_another_dtype(name, method, tmp_path):
    model = make()
    subset = smidgen.select.sparse_kfac(model, percent=40)
    extra = {"settings": SWAG} if method == "swag" else {}
    posterior = getattr(smidgen.fit, method)(model, BATCHES, subset, **extra, **QUIET)
    copy = COPIES[name](deepcopy(model))
    with pytest.raises(ArgumentError, match=r"posterior\.for_copy"):
        smidgen.predict(posterior, copy, BATCHES[0])
    folder = smidgen.save(posterior, tmp_path / "model")
    with pytest.raises(StoreError, match=r"posterior\.for_copy"):
        smidgen.load(folder, copy)
    moved = posterior.for_copy(model, copy)
    loaded = smidgen.load(smidgen.save(moved, tmp_path / "copy"), copy)
    expected = smidgen.predict(posterior, model, BATCHES[0]).probs
    for each in (moved, loaded):
        probs = smidgen.predict(each, copy, BATCHES[0]).probs.double()
        torch.testing.assert_close(probs, expected, **HALF)
    wide = deepcopy(copy).double()
    probs = smidgen.predict(moved.for_copy(copy, wide), wide, BATCHES[0]).probs
    torch.testing.assert_close(probs, expected, **HALF)
    assert not torch.equal(probs, expected)  # the weights were rounded


def test_a_copy_with_other_weights_is_refused():
    model = make()
    posterior, copy = fit(model), deepcopy(model).half()
    with torch.no_grad():
        copy.classifier.bias[0] += 0.5
    with pytest.raises(ArgumentError, match=r"got others in 'classifier\.bias'"):
        posterior.for_copy(model, copy)
    with pytest.raises(ArgumentError, match="must be the one the posterior was fitted to"):
        posterior.for_copy(copy, copy)
