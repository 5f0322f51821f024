"""The best temperature of every precision, against all temperatures there are."""

from __future__ import annotations

from math import log

import pytest
import torch

import smidgen
from smidgen.fit.calibration.precision import CalibrationSettings
from tests.support.cases import Case, mlp, vectors


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
@pytest.mark.parametrize("top", [None, 3])
@pytest.mark.parametrize("scope", ["scalar", "group"])
def test_the_choice_among_classes_is_that_of_an_exhaustive_search(scope, top):
    """Every precision at thousands of temperatures, and between them a parabola."""
    model, batch = Case("mlp", mlp, 5, vectors).make()
    subset = smidgen.select.sparse_kfac(model, percent=60)
    posterior = smidgen.fit.laplace(model, [batch], subset)
    link = smidgen.Link(top=top)
    chosen = smidgen.calibrate(
        posterior,
        model,
        [batch],
        settings=CalibrationSettings(
            scope=scope, precisions=[0.01, 0.1, 1.0, 10.0, 100.0], refine=False
        ),
        link=link,
    )
    curve = chosen.calibration
    logs = torch.linspace(-log(100), log(100), 2001, dtype=torch.float64)
    chosen_by = []
    for index, precision in enumerate(curve.precisions):
        nlls = []
        for temperature in logs.exp().tolist():
            one = posterior.with_precision(precision).with_temperature(temperature)
            found = smidgen.predict(one, model, batch, link=link)
            nlls.append(float(smidgen.evaluate.nll(found, batch[1]).mean()))
        # With the prior on log T, worth as much as (log T)²/2 in the sum.
        scores = torch.tensor(nlls, dtype=torch.float64) + logs**2 / 2 / len(batch[1])
        lowest = int(scores.argmin())
        score = curve.joint_nll[index] + log(curve.scales[index]) ** 2 / 2 / len(batch[1])
        assert score == pytest.approx(float(scores[lowest]), rel=1e-5)
        assert score <= float(scores[lowest]) + 1e-12
        chosen_by.append(score)
        step = float(logs[1] - logs[0])
        assert abs(log(curve.scales[index]) - float(logs[lowest])) <= step
    best = min(range(5), key=chosen_by.__getitem__)
    penalty = log(chosen.temperature) ** 2 / 2 / len(batch[1])
    assert curve.chosen_nll + penalty <= chosen_by[best] + 1e-12
    if scope == "scalar":
        assert chosen.precision == curve.precisions[best]
        assert chosen.temperature == curve.scales[best]
