"""A fit says so where the layers it chose from are less than half of the model."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import SmidgenWarning


class MostlyPairs(nn.Module):
    """Most of its weights are in nn.Bilinear; its table of embeddings is larger than all."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(500, 4)
        self.pairs = nn.Bilinear(4, 4, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        x = self.table(x)
        return self.head(self.norm(self.pairs(x, x)))


BATCHES = [(torch.arange(6), torch.arange(6) % 2)]
FITS = {
    "laplace": lambda model, subset: smidgen.fit.laplace(model, BATCHES, subset),
    "isotropic": lambda model, subset: smidgen.fit.isotropic(
        smidgen.Problem(model, smidgen.Categorical(2)), subset
    ),
    "laplace_many": lambda model, subset: smidgen.fit.laplace_many(
        model, BATCHES, {"one": subset}
    ),
    "swag": lambda model, subset: smidgen.fit.swag(
        model,
        BATCHES,
        subset,
        settings=smidgen.fit.SwagSettings(steps=20, learning_rate=1e-3),
    ),
}


@pytest.mark.parametrize("fit", FITS)
def test_a_fit_says_that_most_of_the_model_is_left_out(fit):
    model = MostlyPairs()
    subset = smidgen.select.sparse_kfac(model, percent=50)
    # 12 of the head and 96 of the pairs.
    expected = "only 11% of the model's 108 weights .* the others, 96, are in Bilinear"
    with pytest.warns(SmidgenWarning, match=expected):
        FITS[fit](model, subset)


def test_it_says_nothing_of_weights_that_were_named_or_where_half_is_covered():
    model = MostlyPairs()
    named = smidgen.select.named(model, "head.*")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FITS["laplace"](model, named)
        model.pairs = nn.Linear(4, 6)
        model.forward = lambda x: model.head(model.norm(model.pairs(model.table(x))))
        FITS["laplace"](model, smidgen.select.sparse_kfac(model, percent=50))
