"""Records as a study leaves them: two data sets, three seeds, curves and levels."""

from __future__ import annotations

import random

from smidgen.runtime.record import Record
from tests.support.ramp_record import make_ramp_record

DATA, SEEDS = ("SST-2", "a <b>& long name of data"), (0, 1, 2)
SHIFTS = {
    "map": 0.2,
    "temperature": 0.0,
    "constant": 0.4,
    "sparse-kfac": -0.05,
    "dropout-temperature": 0.01,
    "ensemble-temperature": -0.01,
    "swag-max-mlp": 0.02,
}


def make_study_records():
    found = []
    for place, data in enumerate(DATA):
        for seed in SEEDS:
            noise = random.Random(f"{data} {seed}")
            base = 0.4 + 0.1 * place + noise.uniform(-0.03, 0.03)
            methods = [method(name, base + shift, noise) for name, shift in SHIFTS.items()]
            found.append(record(data, seed, "points", {"methods": methods[:3]}))
            ramp = make_ramp_record()
            curves = {"ramp": ramp.results["ramp"], "norms": ramp.results["norms"]}
            found.append(record(data, seed, "rest", {"methods": methods[3:], **curves}))
    return found


def make_level_records():
    found = []
    for seed in SEEDS:
        noise = random.Random(seed)
        methods = [method("map", 0.5 + noise.uniform(-0.01, 0.01), noise, "rmse")]
        found.append(record("Yacht", seed, "map", {"methods": methods}))
        for scheme, shift in (("laplace-magnitude", -0.1), ("laplace-variance", -0.05)):
            levels = [
                {
                    "scheme": scheme,
                    "level": percent,
                    "scores": method(
                        scheme, 0.5 + shift * percent / 40 + noise.uniform(0, 0.02), noise
                    )["scores"],
                }
                for percent in (1, 5, 37)
            ]
            chosen = {**method(scheme, 0.5, noise), "scores": levels[-1]["scores"]}
            results = {"methods": [chosen], "levels": levels}
            found.append(record("Yacht", seed, scheme, results))
    return found


def record(data, seed, cell, results):
    config = {"cell": cell, "kind": "test", "data": {"name": data}}
    return Record("cell", config, results, seed=seed)


def method(name, nll, noise, other="ece_equal_mass"):
    values = {"nll": nll + noise.uniform(-0.004, 0.004), other: noise.uniform(0.02, 0.1)}
    if other != "rmse":
        values["accuracy"] = noise.uniform(0.8, 0.9)
        values["ece_equal_width"] = noise.uniform(0.02, 0.1)
    scores = {
        score: {"value": value, "low": value - 0.02, "high": value + 0.02}
        for score, value in values.items()
    }
    steps = [0.5 + 0.05 * i for i in range(10)]
    curve = {"confidence": steps, "accuracy": [s - 0.03 for s in steps], "count": [9] * 10}
    return {
        "name": name,
        "label": name.replace("-", " ").capitalize(),
        "scores": scores,
        "floats": 1000,
        "fraction": 0.01,
        "reliability": curve,
    }
