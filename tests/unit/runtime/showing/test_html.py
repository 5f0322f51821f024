"""Values look in a notebook as they are printed, and no name of theirs becomes markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen import decide, fit
from smidgen.outputs.followed_predictive import FollowedPredictive
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
)
from smidgen.runtime.record import Record
from smidgen.runtime.showing.html import PrintedTable, ShownInNotebook, format_html
from smidgen.weights.delta import Delta

HOSTILE = "<script>alert('x')</script>"
VOID = {"br", "hr", "img", "input"}


class Reader(HTMLParser):
    """Collects elements and words, and checks that every element is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.words = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read(markup):
    reader = Reader()
    reader.feed(markup)
    reader.close()
    assert not reader.open
    return reader


def words_of(text):
    return re.sub(r"\s+", "", text)


def assert_shown(value):
    """Exactly the printed words, in harmless elements, and small."""
    markup = value._repr_html_()
    reader = read(markup)
    assert words_of("".join(reader.words)) == words_of(str(value))
    assert reader.seen <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
    assert len(markup) < 20_000
    # Colours that suit a light page only would be unreadable in a dark one.
    assert "#" not in re.sub(r"&#\w+;", "", markup)


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    x = torch.randn(240, 4)
    y = (x[:, 0] + 0.5 * torch.randn(240) > 0).long()
    loader = DataLoader(TensorDataset(x, y), 40)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, loader


@pytest.fixture(scope="module")
def made(trained):
    """One value of every kind, by name."""
    model, loader = trained
    quiet = {"progress": False}
    subset = smidgen.select.last_layer(model)
    laplace = fit.laplace(model, loader, subset, **quiet)
    laplace = smidgen.calibrate(laplace, model, loader, **quiet)
    settings = fit.SwagSettings(steps=12, burn_in=2, every=2)
    chosen = smidgen.bayesify(model, loader, loader, **quiet)
    batch = next(iter(loader))
    return {
        "subset": smidgen.select.weights(model, fraction=0.1, by="magnitude"),
        "laplace": laplace,
        "point": fit.point(model, loader, **quiet),
        "swag": fit.swag(model, loader, subset, settings=settings, **quiet),
        "sparse": fit.ssvi(model, loader, settings=fit.SsviSettings(epochs=1), **quiet),
        "choice": chosen.choice,
        "comparison": smidgen.compare(model, laplace, loader, **quiet),
        "rules": smidgen.make_rules(laplace, model, loader, max_error=0.2, **quiet),
        "plan": smidgen.plan(model, batch=batch),
        "verification": smidgen.verify(model, [batch]),
        "coverage": smidgen.coverage(model),
        "predictive": smidgen.predict(laplace, model, batch),
    }


KINDS = (
    *("subset", "laplace", "point", "swag", "sparse", "choice", "comparison", "rules"),
    *("plan", "verification", "coverage", "predictive"),
)


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_notebook_shows_what_is_printed(made, kind):
    assert_shown(made[kind])


def test_every_kind_of_prediction_is_one_line():
    logits = torch.zeros(3, 2)
    followed = FollowedPredictive(
        *(torch.zeros(3, 2, dtype=torch.int64), *[logits] * 2, torch.zeros(3, 2, 2)),
        *(torch.zeros(3),) * 5,
        outputs=5000,
    )
    for value, printed in (
        (CategoricalPredictive.from_logits(logits), "(3 examples, 2 classes)"),
        (BernoulliPredictive.from_logits(logits), "(3 examples, 2 labels)"),
        (GaussianPredictive(logits, logits, logits), "(3 examples, 2 outputs)"),
        (followed, "(3 examples, 2 of 5,000 classes)"),
    ):
        assert str(value) == type(value).__name__ + printed
        assert_shown(value)


def test_tables_are_tables_and_not_lines(made):
    for kind in ("choice", "comparison", "plan", "verification"):
        assert "<table" in made[kind]._repr_html_()


def test_names_are_never_markup(made):
    subset = smidgen.Subset({HOSTILE: (2, 3)}, {HOSTILE: smidgen.weights.subset.Whole()})
    record = Record(HOSTILE, {HOSTILE: HOSTILE}, {"a": {HOSTILE: 1}}, status=HOSTILE)
    candidates = tuple(replace(c, label=HOSTILE) for c in made["choice"].candidates)
    choice = replace(made["choice"], candidates=candidates)
    plan = replace(made["plan"], model=HOSTILE, notes=(HOSTILE,))
    delta = Delta(subset, torch.zeros(6), {}, HOSTILE)
    for value in (subset, record, choice, plan, delta):
        assert_shown(value)
        assert "<script" not in value._repr_html_()
    assert HOSTILE in unescape(record._repr_html_())


def test_a_record_is_a_few_lines_whatever_it_holds():
    record = Record("evaluate", {"a": "b" * 5000}, {"nll": float("nan")}, seed=3)
    assert_shown(record)
    assert len(str(record)) < 300
    assert "Record of evaluate: complete, seed 3" in str(record)
    assert "NaN" in str(record)
    assert str(Record("demo", {}, {})).startswith("Record of demo: complete, 20")


def test_a_rule_alone_is_shown_as_its_promise():
    predictive = CategoricalPredictive.from_logits(torch.randn(60, 2))
    rule = decide.sets(predictive, torch.zeros(60, dtype=torch.int64))
    assert_shown(rule)


def test_indents_and_columns_are_kept():
    markup = format_html(["one\n  two", PrintedTable([("a", "b"), ("<", "&")], left=(1,))])
    assert "pre-wrap" in markup
    assert "one\n  two" in markup
    assert re.search(r"text-align:right\">&lt;</td><td[^>]*text-align:left\">&amp;", markup)


def test_a_value_needs_only_to_be_printed():
    class Line(ShownInNotebook):
        def __str__(self):
            return "a <b>"

    assert "a &lt;b&gt;" in Line()._repr_html_()
