"""A second opinion on every layer: agreement where taps are right, and a word where not."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import smidgen
from smidgen.curvature.accumulate import Accumulator
from smidgen.errors import ArgumentError, DataError
from smidgen.workflows.verify import covariance_score
from tests.support.cases import CASES, Case, OneBlock, padded_tokens
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


def test_a_batch_without_any_label_changes_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    x, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, -100, 1])
    ignored = torch.full((6,), -100)
    without = smidgen.verify(model, [(x, labels)])
    found = smidgen.verify(model, [(x, labels), (x + 1, ignored)])
    assert found.agrees, str(found)
    assert found.examples == without.examples == 5
    with pytest.raises(DataError, match="no example has a label"):
        smidgen.verify(model, [(x, ignored)])


def test_a_layer_that_runs_twice_on_padded_texts_agrees():
    """As in ALBERT: padding does not count in any of the runs."""

    class Twice(OneBlock):
        def forward(self, input_ids, attention_mask):
            mask = attention_mask.bool()
            x = self.embed(input_ids)
            for _ in range(2):
                scores = self.query(x) @ self.key(x).mT
                scores = scores.masked_fill(~mask[:, None, :], -1e9)
                x = self.norm(x + self.attention_output(scores.softmax(-1) @ self.value(x)))
            return self.classifier(x[:, 0])

    model, batch = Case("twice", Twice, 3, padded_tokens).make()
    found = smidgen.verify(model, [batch])
    assert found.agrees, str(found)


def test_many_classes_are_compared_without_draws():
    """A fit of them draws labels by default: that is noise, not an error."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 60))
    found = smidgen.verify(model, [(torch.randn(6, 4), torch.randint(60, (6,)))])
    assert found.agrees, str(found)


def lose_all_but_the_first_column(self, trace):
    """The sums as they once were: inputs counted only where the first column reached."""
    self.ran.update(name for name in self.names if trace.runs(name))
    _, parts = self.columns.of(trace)
    for part in parts:
        for k, column in enumerate(part):
            deltas = trace.deltas(column, more=True)
            if k == 0:
                for name in deltas:
                    self.add_inputs(trace, name)
            self.add_deltas(trace, deltas)


class TwoHeads(nn.Module):
    """Two separate heads on tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = (
            nn.Linear(3, 5),
            nn.Linear(5, 1),
            nn.Linear(5, 1),
        )

    def forward(self, x):
        x = torch.tanh(self.body(x))
        return torch.cat([self.first(x), self.second(x)], -1)


@pytest.mark.parametrize("likelihood", [smidgen.Gaussian(2), smidgen.Bernoulli(2)])
def test_factors_that_forget_a_head_disagree(likelihood, monkeypatch):
    """A layer without curvature under kron is not "agrees" where the exact one has some."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, x = TwoHeads(), torch.randn(2, 3, 3)
    problem = smidgen.Problem(model, likelihood)
    batches = [(x, (x[..., :2] > 0).float())]
    right = smidgen.verify(problem, batches)
    assert right.agrees, str(right)
    assert not right.lost
    assert max(check.factors for check in right.checks) < 1e-5
    monkeypatch.setattr(Accumulator, "_add_columns", lose_all_but_the_first_column)
    found = smidgen.verify(problem, batches)
    (wrong,) = (check for check in found.checks if not check.agrees)
    assert wrong.name == "second"
    assert wrong.factors == pytest.approx(1)
    assert wrong.curvature < 1e-5
    assert not found.agrees
    assert wrong.verdict == "DISAGREES"
    assert "1 of 3 layers disagree, starting with second" in str(found)
    assert "what 'kron' makes of them is not" in found.summary()


def test_a_layer_that_kron_loses_by_definition_is_lost_and_does_not_agree():
    """δ of attention's keys sum to zero over the positions: "reduce" keeps nothing of them."""
    case = next(case for case in CASES if case.name == "bert-2")
    model, batch = case.make()
    found = smidgen.verify(case.problem(model), [batch])
    assert found.lost == ("bert.encoder.layer.0.attention.self.key",)
    (key,) = (check for check in found.checks if check.lost)
    assert key.verdict == "LOST BY KRON"
    assert key.approximation == pytest.approx(1)
    assert found.agrees
    assert "7 of 8 layers agree" in found.summary()
    assert "structure='ekfac'" in found.summary()
    measured = smidgen.fit.laplace(
        case.problem(model),
        [batch],
        smidgen.select.named(model, f"{key.name}.*"),
        structure="ekfac",
    )
    assert float(measured.operators[key.name].values.sum()) > 0


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


def test_a_weight_that_is_only_used_behind_the_taps_back_is_refused():
    with pytest.raises(DataError, match="uses weights of 'hidden' without a call"):
        smidgen.verify(Never(), [(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))])


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_a_weight_used_behind_the_taps_back_disagrees(kind):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Beside().to(kind)
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
