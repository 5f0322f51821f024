"""TFB's noise is of one size where the adapters reach, and as large as held-out rows bear."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from smidgen import Categorical, Problem, predict
from smidgen.errors import ArgumentError
from smidgen.fit.calibration.samples import held_out
from smidgen_studies.methods.tfb import TfbSettings, _find_spreads, bayesianise

FEW = TfbSettings(samples=8, halvings=5)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.leave(torch.tanh(self.enter(x)))


@pytest.fixture
def problem():
    torch.manual_seed(0)
    model = get_peft_model(Net(), LoraConfig(r=2, target_modules=["enter"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return Problem(
        model.double().eval(), forward=lambda m, batch: m(batch[0])
    ).with_likelihood(Categorical(3))


@pytest.fixture
def rows(problem):
    inputs = torch.randn(60, 4, dtype=torch.float64)
    outputs = problem.model(inputs)
    return [(inputs, torch.distributions.Categorical(logits=3 * outputs).sample())]


def test_noise_has_one_size_in_the_directions_that_b_reaches(problem):
    known = dict(problem.model.named_parameters())
    (name,) = (n for n in known if "lora_A" in n)
    ((_, (mean, spread)),) = _find_spreads(problem.model, [name])
    up = known[name.replace("lora_A", "lora_B")].detach()
    assert torch.equal(mean, known[name])
    reached = up @ spread  # (n, r): U of the paper
    torch.testing.assert_close(reached.T @ reached, torch.eye(2, dtype=torch.float64))


def test_an_adapter_of_zeros_has_no_noise(problem):
    for name, parameter in problem.model.named_parameters():
        if "lora_B" in name:
            nn.init.zeros_(parameter)
    names = [n for n, _ in problem.model.named_parameters() if "lora_A" in n]
    ((_, (_, spread)),) = _find_spreads(problem.model, names)
    assert not spread.any()


def test_sigma_is_the_largest_that_held_out_rows_bear(problem, rows):
    before = {name: p.clone() for name, p in problem.model.named_parameters()}
    posterior = bayesianise(problem, rows, FEW)
    assert all(torch.equal(p, before[n]) for n, p in problem.model.named_parameters())

    def nll(sigma):
        held = held_out(problem, replace(posterior, sigma=sigma), rows, samples=8)
        return held.nll(held.outputs, 1.0) / held.nll(held.point, 1.0)

    # The bracket (1e-4, 1) was halved five times on a log scale.
    step = (1e4) ** (1 / 2**5)
    assert nll(posterior.sigma) <= 1 + FEW.tolerance < nll(posterior.sigma * step)
    predictive = predict(posterior, problem, rows[0])
    assert predictive.probs.shape == (60, 3)


def test_a_model_without_adapters_is_refused(rows):
    plain = Problem(Net().double()).with_likelihood(Categorical(3))
    with pytest.raises(ArgumentError, match="model must have LoRA adapters for TFB"):
        bayesianise(plain, rows, FEW)
