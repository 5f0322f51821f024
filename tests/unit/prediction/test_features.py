"""Features are what the output layer is given, on a model that stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
)

import smidgen
from smidgen.errors import StructureError
from smidgen.prediction import point_features, point_outputs


def make_batches(width=5, rows=7):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, width, generator=generator)
    labels = torch.arange(rows) % 3
    return [(inputs[:4], labels[:4]), (inputs[4:], labels[4:])]


def test_features_are_the_inputs_of_the_last_layer(unchanged):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)
    ).train()
    batches = make_batches()
    with unchanged(model):
        features, targets = point_features(model, batches, progress=False)
    inputs = torch.cat([x for x, _ in batches])
    torch.testing.assert_close(features.float(), torch.tanh(model[0](inputs)).detach())
    assert features.dtype == torch.float64
    assert targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    # With them the outputs can be had.
    outputs, _ = point_outputs(model, batches, progress=False)
    again = features.float() @ model[3].weight.T + model[3].bias
    torch.testing.assert_close(again.double().detach(), outputs, atol=1e-6, rtol=1e-5)


def test_pools_need_no_labels():
    model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3))
    inputs = [x for x, _ in make_batches()]
    features, targets = point_features(model, inputs, progress=False)
    assert features.shape == (7, 6)
    assert targets is None


def test_a_regression_gives_features_too():
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
    problem = smidgen.Problem(model, smidgen.Gaussian(1))
    batches = [(x, y[:, None].float()) for x, y in make_batches()]
    features, targets = point_features(problem, batches, progress=False)
    assert features.shape == (7, 6)
    assert targets.shape == (7, 1)


class AveragedTokens(nn.Module):
    """The output layer sees every token; its outputs are averaged after it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, input_ids, attention_mask):
        logits = self.head(self.embed(input_ids)) * attention_mask[..., None]
        return logits.sum(1) / attention_mask.sum(1, keepdim=True)


def test_positions_are_averaged_without_padding():
    torch.manual_seed(0)
    model = AveragedTokens()
    batch = {
        "input_ids": torch.randint(0, 11, (3, 4)),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]),
    }
    features, _ = point_features(model, [batch], progress=False)
    tokens, mask = model.embed(batch["input_ids"]), batch["attention_mask"][..., None]
    expected = (tokens * mask).sum(1) / mask.sum(1)
    torch.testing.assert_close(features.float(), expected.detach())


TINY = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}


def test_tokens_have_a_row_each_and_texts_have_one():
    torch.manual_seed(0)
    batch = {
        "input_ids": torch.randint(0, 20, (2, 5)),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        "labels": torch.tensor([[0, 1, 0, 1, -100], [1, 0, 0, -100, -100]]),
    }
    tagger = BertForTokenClassification(BertConfig(**TINY, num_labels=2)).eval()
    features, targets = point_features(tagger, [batch], progress=False)
    hidden = tagger.bert(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    torch.testing.assert_close(features.float(), hidden.flatten(0, 1).detach())
    assert targets.tolist() == batch["labels"].flatten().tolist()
    classifier = BertForSequenceClassification(BertConfig(**TINY, num_labels=2)).eval()
    batch["labels"] = torch.tensor([0, 1])
    features, targets = point_features(classifier, [batch], progress=False)
    pooled = classifier.bert(batch["input_ids"], batch["attention_mask"]).pooler_output
    torch.testing.assert_close(features.float(), pooled.detach())


class Tied(nn.Module):
    """Outputs made by a matrix that no layer holds."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 6)
        self.matrix = nn.Parameter(torch.randn(3, 6))

    def forward(self, x):
        return self.body(x) @ self.matrix.T


def test_outputs_that_no_layer_makes_are_refused():
    with pytest.raises(StructureError, match="features cannot be found: 'matrix' makes"):
        point_features(Tied(), make_batches(), progress=False)
