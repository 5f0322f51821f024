"""Rules in files: whole, sealed, and the same when they are read."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

import smidgen
from smidgen import decide
from smidgen.decide import Rules
from smidgen.errors import ArgumentError, StoreError
from smidgen.runtime.artifact import write_sealed_json
from tests.support.decisions import make_classes, make_numbers


@pytest.fixture
def rules():
    predictive, targets = make_classes(400, with_variance=True)
    numbers, values = make_numbers(100, outputs=2)
    return Rules(
        abstain=decide.abstain(predictive, targets, max_error=0.3),
        sets=decide.sets(predictive, targets, by_class=True, kind="aps"),
        intervals=decide.intervals(numbers, values),
        strange=decide.strange(predictive),
    )


def test_rules_are_the_same_when_they_are_read(rules, tmp_path):
    assert rules.save(tmp_path / "made") == tmp_path / "made" / "rules.json"
    loaded = Rules.load(tmp_path / "made")
    assert loaded == rules
    predictive, _ = make_classes(50, seed=3, with_variance=True)
    for name in ("abstain", "sets", "strange"):
        ours, theirs = (getattr(side, name).apply(predictive) for side in (rules, loaded))
        assert torch.equal(ours, theirs)


def test_some_rules_may_be_missing(rules, tmp_path):
    some = Rules(strange=rules.strange)
    some.save(tmp_path)
    assert Rules.load(tmp_path) == some
    replace(some, unpromised="too often wrong").save(tmp_path)
    assert Rules.load(tmp_path).unpromised == "too often wrong"
    assert str(some) == str(rules.strange)
    assert list(some.by_name()) == ["strange"]
    assert str(Rules()) == "No rules."
    Rules().save(tmp_path)
    assert Rules.load(tmp_path) == Rules()


def test_every_rule_is_a_line(rules):
    assert str(rules).splitlines() == [str(rule) for rule in rules.by_name().values()]


def test_each_rule_goes_to_json_and_back(rules):
    numbers, values = make_numbers(100, outputs=2)
    quantiles = decide.quantiles(numbers, values, levels=(0.1, 0.9))
    for rule in (*rules.by_name().values(), quantiles):
        values = json.loads(json.dumps(rule.to_json()))
        assert type(rule).from_json(values) == rule


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": "high"}, "threshold must not be 'high'"),
        ({"extra": 1}, "has the unknown 'extra'"),
        ({"score": None}, "score must not be 'None'"),
    ],
)
def test_wrong_fields_are_refused(rules, tmp_path, change, message):
    stored = rules.to_json()
    stored["strange"] |= change
    write_sealed_json(
        tmp_path / "rules.json", {"schema": 2, "posterior_digest": None, "rules": stored}
    )
    with pytest.raises(StoreError, match=message):
        Rules.load(tmp_path)


def test_what_is_damaged_or_foreign_is_refused(rules, tmp_path):
    with pytest.raises(StoreError, match=r"there is no 'rules.json'. Make the rules again"):
        Rules.load(tmp_path)
    path = rules.save(tmp_path)
    whole = path.read_text()
    path.write_text(whole.replace("0.05", "0.5"))
    with pytest.raises(StoreError, match="damaged or edited"):
        Rules.load(tmp_path)
    write_sealed_json(path, {"schema": 7, "rules": {}})
    with pytest.raises(StoreError, match="rules schema 7, this smidgen reads 2"):
        Rules.load(tmp_path)
    write_sealed_json(path, {"schema": 2, "posterior_digest": None, "rules": {"guess": {}}})
    with pytest.raises(StoreError, match="the rule 'guess' is unknown"):
        Rules.load(tmp_path)
    write_sealed_json(path, {"schema": 2, "rules": {}, "more": 1})
    with pytest.raises(
        StoreError, match="must hold 'schema', 'posterior_digest' and 'rules' and"
    ):
        Rules.load(tmp_path)
    write_sealed_json(path, {"schema": 2, "posterior_digest": 3, "rules": {}})
    with pytest.raises(StoreError, match="posterior_digest must not be '3'"):
        Rules.load(tmp_path)


def test_a_rule_of_another_kind_is_refused(rules):
    with pytest.raises(ArgumentError, match="sets must be a SetRule, got AbstainRule"):
        Rules(sets=rules.abstain)


def fit_posterior():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    batches = [(torch.randn(20, 3), torch.arange(20) % 2)]
    subset = smidgen.select.last_layer(model)
    return smidgen.fit.laplace(model, batches, subset, progress=False), model


def test_rules_go_with_one_posterior(rules, tmp_path):
    posterior, model = fit_posterior()
    warm = posterior.with_temperature(2.0)
    made = rules.for_posterior(posterior)
    assert made == rules
    assert made.for_posterior(posterior).posterior == made.posterior
    with pytest.raises(ArgumentError, match="must be those of this posterior, got some of"):
        made.for_posterior(warm)
    with pytest.raises(ArgumentError, match="must be those of this posterior, got some of"):
        made.for_posterior(replace(posterior, num_data=21))
    own = smidgen.save(posterior, tmp_path / "own")
    made.save(own)
    assert Rules.load(own).posterior == made.posterior
    assert Rules.load(own).for_posterior(smidgen.load(own, model)) == rules
    other = smidgen.save(warm, tmp_path / "other")
    with pytest.raises(
        StoreError, match="must hold the posterior that the rules were made"
    ):
        made.save(other)
    shutil.copy(own / "rules.json", other)
    with pytest.raises(StoreError, match="with another posterior than the one beside them"):
        Rules.load(other)


def test_rules_that_were_put_together_are_those_of_the_posterior_beside(rules, tmp_path):
    posterior, _ = fit_posterior()
    rules.save(tmp_path / "alone")
    assert Rules.load(tmp_path / "alone").posterior is None
    folder = smidgen.save(posterior, tmp_path / "own")
    rules.save(folder)
    assert Rules.load(folder).posterior == rules.for_posterior(posterior).posterior
    shutil.copy(tmp_path / "alone" / "rules.json", folder)
    with pytest.raises(StoreError, match="its digest is unknown, this posterior's"):
        Rules.load(folder)


def test_a_posterior_with_rules_may_be_replaced(rules, tmp_path):
    """Rules belong to their posterior: a new one starts without them."""
    posterior, model = fit_posterior()
    folder = smidgen.save(posterior, tmp_path / "posterior")
    rules.save(folder)
    assert smidgen.load(folder, model).num_data == 20
    smidgen.save(posterior, folder, overwrite=True)
    assert not (folder / "rules.json").exists()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "abstain",
            {"answered": 500},
            "errors must be at most answered, and that at most rows",
        ),
        ("abstain", {"score": "luck"}, "score must be one of confidence, .* got 'luck'"),
        ("sets", {"thresholds": [0.5]}, "thresholds must be 3, got 1"),
        ("sets", {"coverage": 1.5}, "coverage must be between 0 and 1, got 1.5"),
        (
            "intervals",
            {"factors": [1.0]},
            "factors must be one for each output, got 1 for 2",
        ),
        ("strange", {"rows": 0}, "rows must be 1 or more"),
        ("strange", {"score": "luck"}, "score must be one of .*distance, got 'luck'"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rules, tmp_path, name, change, message):
    """Also with a right seal: nobody made it with these functions."""
    stored = json.loads(json.dumps(rules.to_json()))
    stored[name] |= change
    write_sealed_json(
        tmp_path / "rules.json", {"schema": 2, "posterior_digest": None, "rules": stored}
    )
    with pytest.raises(StoreError, match=message):
        Rules.load(tmp_path)
