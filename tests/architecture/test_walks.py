"""The main calls lead through few files: what a reader opens to follow them."""

from __future__ import annotations

import torch
from torch import nn

import smidgen
from tests.architecture.walk import walk


def test_fitting_and_predicting_lead_through_few_files():
    torch.manual_seed(0)
    x = torch.randn(60, 8)
    batches = [(part, (part[:, 0] > 0).long()) for part in x.split(20)]
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    subset = smidgen.select.sparse_kfac(model, percent=50)
    # Named before they are walked through: the first use of a public name imports files.
    fit, predict = smidgen.fit.laplace, smidgen.predict
    posteriors = []
    fitting = walk(lambda: posteriors.append(fit(model, batches, subset, progress=False)))
    predicting = walk(lambda: predict(posteriors[0], model, batches[0]))
    # What refuses a wrong type is named so that nobody needs to open it. Two files came with
    # promises of their own: `runtime/shadow.py` (threads), `outputs/batches.py` (bad data).
    # With low-rank factors (`base`, `factor_sum`, `low_rank`, `jacobian`) and what is prepared
    # once (`runtime/keeping`) there are more of them; so there are with the kinds of layers (five
    # in `weights/affine`), what is read of them (`sides`), and where they run (`sites`).
    # `curvature/graph_start.py` promises that models as training leaves them have the numbers
    # of plain ones, and `runtime/storage` that those whose weights are quantised or offloaded
    # have. Two files are for rows and weights in several processes (`runtime/processes`), and
    # two for layers that no tap would see as they are (`weights/adapters.py`,
    # `outputs/other_uses.py`). A data set or a table in the place of a loader is one more
    # (`runtime/importing/foreign_tables.py`).
    assert len(set(fitting) - {"errors.py"}) <= 40
    assert len(set(predicting) - {"errors.py"}) <= 32
