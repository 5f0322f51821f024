"""A second opinion on every layer: agreement where taps are right, and a word where not."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import ArgumentError
from smidgen.workflows.verify import covariance_score
from tests.support.tolerances import Z


def test_all_maps_of_all_cases_agree(case, unchanged):
    model, batch = case.make()
    model.train()
    with unchanged(model):
        found = smidgen.verify(case.problem(model), [batch, batch])
    assert found.agrees, str(found)
    covered = [each.name for each in smidgen.coverage(model).layers]
    assert [check.name for check in found.checks] == covered
    assert "agree with the exact computation" in str(found)


class Beside(nn.Module):
    """Uses the weight of a layer once more, where no tap can see it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.hidden = nn.Linear(4, 6), nn.Linear(6, 6)
        self.leave = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.enter(x))
        again = nn.functional.linear(x, self.hidden.weight)
        return self.leave(torch.tanh(self.hidden(x)) + again)


class Never(nn.Module):
    """Never runs a layer, only its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.leave = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.leave(torch.tanh(nn.functional.linear(x, self.hidden.weight)))


@pytest.mark.parametrize("build", [Beside, Never])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_a_weight_used_behind_the_taps_back_disagrees(build, kind):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build().to(kind)
        x = torch.randn(5, 4).to(kind)
    found = smidgen.verify(model, [(x, torch.tensor([0, 1, 2, 0, 1]))])
    wrong = [check.name for check in found.checks if not check.agrees]
    assert wrong == ["hidden"]
    assert not found.agrees
    assert "1 of" in found.summary()
    assert "hidden" in found.summary()
    assert "DISAGREES" in str(found)


class Swapped(nn.Module):
    """Puts positions before examples: its first layer cannot be treated."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.leave = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.leave(torch.tanh(self.mix(x.transpose(0, 1))).mean(0))


def test_maps_that_a_fit_leaves_out_are_said_to_be():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, x = Swapped(), torch.randn(3, 3, 4)
    found = smidgen.verify(model, [(x, torch.tensor([0, 1, 0]))])
    assert found.agrees
    assert "skipped" in found.checks[0].remark
    assert "skipped" in str(found)
    written = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert written["checks"][0]["curvature"] is None


def test_samples_are_judged_by_their_spread():
    """The score lets chance pass, and sees variances that are a fifth too large."""
    generator = torch.Generator().manual_seed(4)
    root = torch.randn(8, 8, dtype=torch.float64, generator=generator)
    draws = torch.randn(4000, 8, dtype=torch.float64, generator=generator) @ root.T
    covariance = root @ root.T
    assert covariance_score(draws, covariance) < Z
    assert covariance_score(draws * 1.2**0.5, covariance) > 1.5 * Z


def test_the_seed_decides_which_weights_are_compared():
    model, batch = nn.Linear(30, 20), (torch.ones(3, 30), torch.tensor([0, 1, 2]))
    found = [smidgen.verify(model, [batch], seed=seed) for seed in (1, 1, 2)]
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_wrong_arguments_are_refused():
    with pytest.raises(ArgumentError, match="rows and columns must be 1 or more"):
        smidgen.verify(nn.Linear(3, 2), [torch.ones(2, 3)], rows=0)
