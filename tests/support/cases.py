"""Models × batch layouts × likelihoods, and subsets of every shape, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2ForSequenceClassification,
)
from transformers.utils import logging as transformers_logging

import smidgen
from smidgen.outputs.problem import SettledProblem, model_outputs
from smidgen.weights.subset import Whole
from tests.support.tiny import gpt2_config

transformers_logging.set_verbosity_error()


class OneBlock(nn.Module):
    """A one-block transformer with a padding mask, written out."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.attention_output = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6, bias=False)
        self.classifier = nn.Linear(6, classes)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 6**0.5
        scores = scores.masked_fill(~attention_mask.bool()[:, None, :], -1e9)
        x = self.norm(x + self.attention_output(scores.softmax(-1) @ self.value(x)))
        x = x + self.down(nn.functional.gelu(self.up(x)))
        return self.classifier(x[:, 0])


class Shared(nn.Module):
    """One hidden layer that runs twice, and a second module tied to it."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 5)
        self.hidden = nn.Linear(5, 5)
        self.twin = nn.Linear(5, 5)
        self.twin.weight, self.twin.bias = self.hidden.weight, self.hidden.bias
        self.leave = nn.Linear(5, outputs)

    def forward(self, x):
        x = torch.tanh(self.enter(x))
        x = torch.tanh(self.hidden(x))
        x = torch.tanh(self.hidden(x))
        return self.leave(torch.tanh(self.twin(x)))


class InPlace(nn.Module):
    """Changes its first activation in place, as ReLU(inplace=True) does."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, outputs)
        )

    def forward(self, x):
        return self.net(x)


class Encoder(nn.Module):
    """torch's own encoder layer, whose attention calls no layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.classifier = nn.Linear(8, classes)

    def forward(self, input_ids, attention_mask):
        padding = ~attention_mask.bool()
        x = self.encoder(self.embed(input_ids), src_key_padding_mask=padding)
        return self.classifier(x[:, 0])


class Latents(nn.Module):
    """As many latent positions as there are tokens: they are not the padded ones."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.latents = nn.Parameter(torch.randn(7, 6))
        self.mix = nn.Linear(6, 6)
        self.classifier = nn.Linear(6, classes)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        scores = self.latents @ x.transpose(1, 2)
        scores = scores.masked_fill(~attention_mask.bool()[:, None, :], -1e9)
        return self.classifier(torch.tanh(self.mix(scores.softmax(-1) @ x)).mean(1))


class ConvNet(nn.Module):
    """Two convolutions, one strided and dilated with its own padding, and a head."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding="same")
        self.second = nn.Conv2d(3, 2, 2, stride=2, dilation=2, padding=1, bias=False)
        self.head = nn.Linear(2, outputs)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.head(torch.tanh(self.second(x)).mean((2, 3)))


class GroupedNet(nn.Module):
    """Convolutions in groups, one for each channel too, a transposed one, and a head."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding="same", groups=2)
        self.each = nn.Conv2d(4, 4, 2, stride=2, groups=4, bias=False)
        self.upward = nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1)
        self.head = nn.Linear(2, outputs)

    def forward(self, x):
        x = torch.tanh(self.each(torch.tanh(self.first(x))))
        return self.head(torch.tanh(self.upward(x)).mean((2, 3)))


class Sequence(nn.Module):
    """Matrices used without a call: a GRU's, and those of attention with two inputs."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 2, batch_first=True, bidirectional=True)
        self.attention = nn.MultiheadAttention(4, 2)  # the examples come second
        self.slide = nn.Conv1d(4, 3, 2)
        self.head = nn.Linear(3, outputs)

    def forward(self, x):
        x, states = x.transpose(0, 1), self.gru(x)[0].transpose(0, 1)
        seen, _ = self.attention(x, states, x)
        return self.head(torch.tanh(self.slide(seen.permute(1, 2, 0))).mean(-1))


class Tagger(OneBlock):
    """One row of outputs for each token."""

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 6**0.5
        scores = scores.masked_fill(~attention_mask.bool()[:, None, :], -1e9)
        x = self.norm(x + self.attention_output(scores.softmax(-1) @ self.value(x)))
        return self.classifier(x + self.down(nn.functional.gelu(self.up(x))))


def bert(classes: int) -> nn.Module:
    config = BertConfig(
        vocab_size=17,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        num_labels=classes,
    )
    return BertForSequenceClassification(config)


def gpt2(classes: int) -> nn.Module:
    config = gpt2_config(vocab_size=17, num_labels=classes, pad_token_id=0)
    return GPT2ForSequenceClassification(config)


def vectors(outputs: int, targets: str, generator: torch.Generator):
    x = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    return (x, _targets(6, outputs, targets, generator))


def padded_tokens(outputs: int, targets: str, generator: torch.Generator):
    lengths = torch.tensor([7, 3, 5, 1])
    mask = (torch.arange(7) < lengths[:, None]).long()
    ids = torch.randint(1, 11, (4, 7), generator=generator) * mask
    labels = _targets(4, outputs, targets, generator)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def images(outputs: int, targets: str, generator: torch.Generator):
    x = torch.randn(5, 2, 5, 6, dtype=torch.float64, generator=generator)
    return (x, _targets(5, outputs, targets, generator))


def sequences(outputs: int, targets: str, generator: torch.Generator):
    x = torch.randn(4, 5, 4, dtype=torch.float64, generator=generator)
    return (x, _targets(4, outputs, targets, generator))


def labelled_tokens(outputs: int, targets: str, generator: torch.Generator):
    """Every kept position has a label; padding and every third position have none."""
    batch = padded_tokens(outputs, targets, generator)
    labels = torch.randint(outputs, batch["input_ids"].shape, generator=generator)
    labels[batch["attention_mask"] == 0] = -100
    labels[:, ::3] = -100
    return {**batch, "labels": labels}


def _targets(rows, outputs, kind, generator):
    if kind == "categorical":
        return torch.randint(0, outputs, (rows,), generator=generator)
    drawn = torch.randn(rows, outputs, dtype=torch.float64, generator=generator)
    return (drawn > 0).double() if kind == "bernoulli" else drawn


@dataclass(frozen=True)
class Case:
    """A model, a batch of its data and what its outputs mean."""

    name: str
    build: Callable[[int], nn.Module]
    outputs: int
    batch_of: Callable
    kind: str = "categorical"
    padding_is_honoured: bool = True
    one_output_each: bool = True

    def make(self):
        """Build the model in float64 and one batch, both from a fixed seed."""
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = self.build(self.outputs).double().eval()
            for parameter in model.parameters():
                # Trained-looking weights: biases are not zero, logits not tiny.
                parameter.data.add_(0.3 * torch.randn_like(parameter))
        batch = self.batch_of(self.outputs, self.kind, torch.Generator().manual_seed(3))
        return model, batch

    def problem(self, model):
        kinds = {
            "categorical": smidgen.Categorical,
            "bernoulli": smidgen.Bernoulli,
            "gaussian": smidgen.Gaussian,
        }
        return SettledProblem(model, kinds[self.kind](self.outputs))

    @staticmethod
    def forward(model, batch):
        """Outputs, one row for each example or token."""
        return model_outputs(model, batch).flatten(0, -2)


def linear(outputs):
    return nn.Linear(4, outputs)


def mlp(outputs):
    return nn.Sequential(
        nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.GELU(), nn.Linear(5, outputs)
    )


CASES = [
    Case("linear-2", linear, 2, vectors),
    Case("linear-regression", linear, 2, vectors, "gaussian"),
    Case("mlp-2", mlp, 2, vectors),
    Case("mlp-4", mlp, 4, vectors),
    Case("mlp-labels", mlp, 3, vectors, "bernoulli"),
    Case("mlp-regression", mlp, 1, vectors, "gaussian"),
    Case("shared-3", Shared, 3, vectors),
    Case("in-place-2", InPlace, 2, vectors),
    Case("one-block-2", OneBlock, 2, padded_tokens),
    Case("one-block-3", OneBlock, 3, padded_tokens),
    Case("encoder-2", Encoder, 2, padded_tokens),
    Case("latents-2", Latents, 2, padded_tokens, padding_is_honoured=False),
    Case("bert-2", bert, 2, padded_tokens),
    Case("gpt2-2", gpt2, 2, padded_tokens),
    Case("conv-3", ConvNet, 3, images),
    Case("grouped-3", GroupedNet, 3, images),
    Case("sequence-2", Sequence, 2, sequences),
    Case("tagger-3", Tagger, 3, labelled_tokens, one_output_each=False),
]

SELECTORS = {
    "sparse-kfac-100": lambda model: smidgen.select.sparse_kfac(model, percent=100),
    "sparse-kfac-40": lambda model: smidgen.select.sparse_kfac(model, percent=40),
    "last-layer": smidgen.select.last_layer,
    "max-norm-module": lambda model: smidgen.select.modules(model, count=1),
    "random-module": lambda model: smidgen.select.modules(
        model, count=1, by="random", seed=5
    ),
    "biases": lambda model: smidgen.select.named(
        model, [each.bias for each in smidgen.coverage(model).layers if each.bias]
    ),
    "scattered": lambda model: smidgen.select.weights(model, fraction=0.3),
    "scattered-per-layer": lambda model: smidgen.select.weights(
        model, fraction=0.2, per_layer=True
    ),
    "a-block-and-other-biases": lambda model: smidgen.Subset(
        smidgen.coverage(model).universe,
        {
            **smidgen.select.sparse_kfac(model, percent=40).parts,
            **{each.bias: Whole() for each in smidgen.coverage(model).layers if each.bias},
        },
    ),
    "every-weight-by-name": lambda model: smidgen.select.named(
        model, list(smidgen.coverage(model).universe)
    ),
}
