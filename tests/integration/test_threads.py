"""Many threads predict with one model while its owner runs it: every number is right.

All numbers are compared bitwise: the same arithmetic runs in every thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from threading import Barrier, Event
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertForSequenceClassification

import smidgen
from smidgen.outputs.problem import model_outputs
from smidgen.prediction import dropout_outputs
from tests.support.tiny import bert_config

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
THREADS = 8
# In all 1,000 in each thread, most of them where they are cheap.
LINEARISED = {"mlp": 400, "bert": 150, "attention": 150}
BY_DRAWS = {"mlp": 200, "bert": 50, "attention": 50}


class Doubling(nn.Module):
    """Acts in training as no evaluation may, and always in the same way."""

    def forward(self, x):
        return 2 * x if self.training else x


class Attention(nn.Module):
    """Both of torch's layers with a fused pass, which a padding mask reaches too."""

    def __init__(self):
        super().__init__()
        self.enter, self.mode = nn.Linear(3, 8), Doubling()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.leave = nn.Linear(8, 2)

    def forward(self, x):
        padding = x[..., 0] > 1.5
        hidden = self.encoder(self.mode(self.enter(x)), src_key_padding_mask=padding)
        hidden, _ = self.attention(hidden, hidden, hidden, key_padding_mask=padding)
        return self.leave(hidden.mean(1))


def make_mlp(generator):
    model = nn.Sequential(nn.Linear(4, 8), Doubling(), nn.Tanh(), nn.Linear(8, 2))
    return model, [torch.randn(3, 4, generator=generator) for _ in range(4)]


def make_bert(generator):
    config = bert_config(num_labels=2, hidden_dropout_prob=0.0)
    config.num_hidden_layers = 1
    config.attention_probs_dropout_prob = 0.0
    model = BertForSequenceClassification(config)
    model.dropout = Doubling()
    lengths = torch.tensor([[6], [3], [1]])
    batches = []
    for _ in range(4):
        tokens = torch.randint(4, 8, (3, 6), generator=generator)
        mask = (torch.arange(6) < lengths).long()
        batches.append({"input_ids": tokens * mask, "attention_mask": mask})
    return model, batches


def make_attention(generator):
    return Attention(), [torch.randn(3, 5, 3, generator=generator) for _ in range(4)]


MODELS = {"mlp": make_mlp, "bert": make_bert, "attention": make_attention}


def with_labels(batch):
    labels = torch.tensor([0, 1, 1])
    return {**batch, "labels": labels} if isinstance(batch, dict) else (batch, labels)


def collect_swag(model, subset):
    """A SWAG posterior around the trained weights, by random steps."""
    collector = smidgen.fit.SwagCollector(model, subset, rank=2)
    generator = torch.Generator().manual_seed(4)
    before = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for _ in range(4):
            for parameter, start in zip(model.parameters(), before, strict=True):
                noise = torch.randn(start.shape, generator=generator)
                parameter.copy_(start + 0.05 * noise)
            collector.collect()
        for parameter, start in zip(model.parameters(), before, strict=True):
            parameter.copy_(start)
    return collector.posterior(smidgen.Categorical(2))


@dataclass
class Setup:
    """A model, what is asked of it, and the answers that one thread alone gets."""

    name: str
    model: nn.Module
    batches: list[Any]
    laplace: smidgen.Posterior
    swag: smidgen.Posterior

    def ask_all(self) -> list[Callable[[], torch.Tensor]]:
        """Every question once, linearised and by draws of either posterior."""
        linearised = [
            lambda b=b: smidgen.predict(self.laplace, self.model, b).logit_covariance
            for b in self.batches
        ]
        drawn = [
            lambda b=b, p=p: smidgen.predict(p, self.model, b, samples=3, seed=1).probs
            for b in self.batches
            for p in (self.laplace, self.swag)
        ]
        return [
            *islice(cycle(linearised), LINEARISED[self.name]),
            *islice(cycle(drawn), BY_DRAWS[self.name]),
        ]


@pytest.fixture(params=MODELS)
def setup(request):
    torch.manual_seed(0)
    model, batches = MODELS[request.param](torch.Generator().manual_seed(1))
    data = [with_labels(batch) for batch in batches]
    subset = smidgen.select.sparse_kfac(model, percent=60)
    laplace = smidgen.fit.laplace(model, data, subset, progress=False)
    return Setup(request.param, model, batches, laplace, collect_swag(model, subset))


@pytest.fixture(autouse=True)
def changing_often():
    """Let threads take turns far more often than they would by themselves."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def run_beside(works: list[Callable[[], Any]], beside: list[Callable[[], None]]) -> list:
    """Run works in threads of their own, and others again and again until they are done."""
    barrier, done = Barrier(len(works) + len(beside)), Event()
    turns = [0] * len(beside)

    def work(call):
        barrier.wait()
        return call()

    def repeat(number, call):
        barrier.wait()
        while not done.is_set():
            call()
            turns[number] += 1

    with ThreadPoolExecutor(len(works) + len(beside)) as pool:
        others = [pool.submit(repeat, *each) for each in enumerate(beside)]
        futures = [pool.submit(work, call) for call in works]
        try:
            results = [future.result() for future in futures]
        finally:
            done.set()
        for other in others:
            other.result()
    assert all(turns)
    return results


def compute_gradients(model, batch):
    loss = model_outputs(model, batch).square().sum()
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def same_gradients(left, right):
    return all(a is b or torch.equal(a, b) for a, b in zip(left, right, strict=True))


def check_modes(model, training):
    def check():
        assert all(module.training == training for module in model.modules())
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        assert not any("forward" in vars(m) for m in model.modules())
        assert torch.backends.mha.get_fastpath_enabled()
        assert torch.equal(torch.get_rng_state(), state)

    state = torch.get_rng_state()
    return check


@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
def test_a_thousand_predictions_in_each_thread(setup, unchanged, training):
    model, questions = setup.model.train(training), setup.ask_all()
    # Twice a thread answers half of them: with a model that evaluates, and one that trains.
    questions = questions[training::2]
    answers = [ask() for ask in questions]
    batch = setup.batches[0]
    with torch.no_grad():
        outputs = model_outputs(model, batch)
    gradients = compute_gradients(model, batch)

    def answer_all(first):
        order = [*range(first, len(questions)), *range(first)]
        return [n for n in order if not torch.equal(questions[n](), answers[n])]

    def forward():
        with torch.no_grad():
            assert torch.equal(model_outputs(model, batch), outputs)

    def step():
        assert same_gradients(compute_gradients(model, batch), gradients)

    before = torch.get_rng_state()
    with unchanged(model):
        works = [lambda n=n: answer_all(n * 11 % len(questions)) for n in range(THREADS)]
        wrong = run_beside(works, [forward, step, check_modes(model, training)])
    assert wrong == [[]] * THREADS
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(torch.get_rng_state(), before)


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if "seconds" not in k}
    return [without_times(v) for v in value] if isinstance(value, (list, tuple)) else value


def test_whole_loaders_and_comparisons_in_every_thread(setup, unchanged):
    model = setup.model.eval()
    data = [with_labels(batch) for batch in setup.batches]
    posteriors = {"laplace": setup.laplace, "swag": setup.swag}

    def ask():
        record = smidgen.compare(model, posteriors, data, validation=data, progress=False)
        predictive = smidgen.predict_batches(setup.laplace, model, data, progress=False)
        draws = smidgen.predict_batches(setup.swag, model, data, progress=False)
        outputs, _ = smidgen.point_outputs(model, data, progress=False)
        tensors = predictive.probs, predictive.logit_covariance, draws.probs, outputs
        return repr(without_times(record.results)), torch.cat(
            [t.flatten() for t in tensors]
        )

    report, numbers = ask()
    batch = setup.batches[0]
    quiet = model_outputs(model, batch)

    def forward():
        assert torch.equal(model_outputs(model, batch), quiet)

    with unchanged(model):
        found = run_beside([ask] * THREADS, [forward, check_modes(model, False)])
    for own_report, own_numbers in found:
        assert own_report == report
        assert torch.equal(own_numbers, numbers)


def test_dropout_in_every_thread_draws_as_it_does_alone(unchanged):
    """Passes that seed torch's own generator take turns."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    data = [torch.randn(3, 4) for _ in range(2)]

    def ask():
        return dropout_outputs(model, data, samples=4, seed=7, progress=False)

    alone, before = ask(), torch.get_rng_state()
    with unchanged(model):
        found = run_beside([lambda: [ask() for _ in range(20)]] * THREADS, [])
    assert all(torch.equal(own, alone) for each in found for own in each)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("path", ["dense", "sparse"])
def test_a_sparse_network_of_its_own_in_every_thread(unchanged, path):
    """A posterior that holds its network shares that with all threads."""
    torch.manual_seed(0)
    model, batches = make_mlp(torch.Generator().manual_seed(1))
    data = [with_labels(batch) for batch in batches]
    settings = smidgen.fit.SsviSettings(epochs=2, density=0.5, num_data=12, every=2)
    posterior = smidgen.fit.ssvi(model, data, settings=settings, progress=False)
    posterior.network.set_path(path)

    def ask():
        return smidgen.predict(posterior, model, batches[0], samples=4).probs

    alone = ask()
    with unchanged(model), unchanged(posterior.network):
        works = [lambda: [ask() for _ in range(30)]] * THREADS
        found = run_beside(works, [check_modes(posterior.network, False)])
    assert all(torch.equal(own, alone) for each in found for own in each)


def test_draws_of_the_callers_own_are_not_drawn_again():
    """In threads that draw nothing, torch's generator is left alone."""
    torch.manual_seed(0)
    model, batches = make_mlp(torch.Generator().manual_seed(1))
    data = [with_labels(batch) for batch in batches]
    posterior = smidgen.fit.laplace(
        model, data, smidgen.select.last_layer(model), progress=False
    )
    torch.manual_seed(3)
    wanted = torch.rand(2_000)
    torch.manual_seed(3)

    def draw():
        return torch.cat([torch.rand(1) for _ in range(2_000)])

    def predict():
        for _ in range(100):
            smidgen.predict(posterior, model, batches[0])

    drawn, *_ = run_beside([draw, predict, predict], [])
    assert torch.equal(drawn, wanted)
