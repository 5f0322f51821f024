"""Tables and picture of cost: from records in the form that the benches write, or a sentence.

The numbers of these records are made up, and stay in this file.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from bench.cost import classes, growth, limit, lora, startup, warm
from bench.cost.posteriors import TOLERANCE
from bench.serving import compared, sides
from docs.build import committed
from docs.build.cost_picture import draw_percents, read_percents
from docs.build.cost_tables import TABLES
from docs.build.measured import judge

from smidgen.runtime.record import Record

SIDES = {"limit": 0.1, "fit": 0.2, "low-rank": 0.14, "isotropic": 0.11}
PERCENTS = {
    str(percent): {
        "fit": 0.99,
        "exact": 1 + percent / 50,
        "low-rank": 1.1,
        "isotropic": 1.05,
    }
    for percent in growth.PERCENTS
}


def _limit():
    config = {
        "model": "MiniLM",
        "batch": 16,
        "tokens": 64,
        "batches in a pass": 4,
        "rounds": 9,
        "threads": 2,
        "tolerance of low-rank": TOLERANCE,
        "targets": limit.TARGETS,
    }
    times = dict.fromkeys((key for key in limit.TARGETS if "floats" not in key), 1.1)
    results = {
        "time / limit": {"forward": 0.46, **times, "laplace-torch fit 100 %": 120.4},
        "bytes": {"limit": 50_000_000, "predict 100 %, exact": 450_000_000},
        "posteriors": {
            "floats": {"full factors": 40_000_000, "low-rank": 1_000_000, "isotropic": 0},
            "floats of low-rank ÷ of full factors": 0.025,
            "largest relative error of low-rank variances": 0.00042,
            "its bound": 0.0099,
            "precisions": {"exact": [0.03, 1000.0], "isotropic": [3162.0]},
        },
    }
    return config, results


def _growth():
    sizes = {
        "width": growth.WIDTHS,
        "depth": growth.DEPTHS,
        "length": growth.LENGTHS,
        "classes": growth.CLASSES,
    }
    results = {
        name: {
            "seconds": {str(size): SIDES for size in own},
            "slopes": growth._slopes(dict.fromkeys(own, SIDES), growth.SLOPE_FROM[name]),
        }
        for name, own in sizes.items()
    }
    config = {
        "batch": 16,
        "batches of a fit": 8,
        "rounds": 3,
        "threads": 1,
        "models": dict.fromkeys((*sizes, "percent"), "BERT"),
        "slopes from": growth.SLOPE_FROM,
    }
    return config, {**results, "percent": PERCENTS}


def _classes():
    config = {
        "model": "BERT",
        "batch": 16,
        "tokens": 32,
        "threads": 2,
        "ten classes": "MLP",
        "targets": classes.TARGETS,
    }
    results = {
        "1,000 classes / forward and backward": {"fit, 10 %": 4.0, "predict, 10 %": 6.0},
        "10 classes, last layer, 2,000 rows, CPU seconds": {
            "calibrate": 1.5,
            "predict": 0.5,
        },
    }
    return config, results


def _lora():
    config = {
        "model": "SmolLM2",
        "adapters": "LoRA",
        "weights": 460_800,
        "data": "SST-2",
        "rows": {"fitted": 160},
        "threads": 2,
        "passes": "passes of the same batches",
        "targets": lora.GOALS,
    }
    ways = {"fit, default": 1.2, "predict, default": 1.3, "fit, full": 2.0}
    results = {
        "floats": {"default": 1_800_000, "full": 31_000_000},
        "time / passes": {**ways, "predict, full": 1.9},
        "test accuracy": 0.84,
        "test NLL": {"MAP": 0.5, "default": 0.4, "full": 0.401},
        "test NLL, default − full": -0.001,
        "Llama-2-7B": lora._plan_llama(),
    }
    return config, results


def _startup():
    targets = {"import smidgen": startup.TARGET, "smidgen --help": startup.TARGET}
    results = dict.fromkeys(startup.COMMANDS, 0.25)
    return {"seconds": "wall clock", "targets": targets}, results


def _warm():
    found = warm.summarise_turns([0.005], [0.007])
    results = {case: {warm.LAST: found} for case in warm.TARGETS}
    results[warm.TEXT]["isotropic, all layers"] = found
    targets = {case: {warm.LAST: target} for case, target in warm.TARGETS.items()}
    models = dict.fromkeys(warm.TARGETS, "a model")
    config = {"models": models, "rounds": warm.ROUNDS, "threads": 1, "targets": targets}
    return config, results


def _serve():
    side = {
        "requests a second": 120.5,
        "median, ms": 210.0,
        "95th percentile, ms": 400.0,
        "computing, ms a request": 8.2,
    }
    ratio = {"by the clock": 0.9, "by what was computed": 0.7}
    pair = f"{sides.POSTERIOR} / {sides.PLAIN}"
    checked = {
        "requests": 10_000,
        "rows": 15_000,
        "other answers, sets or flags": 0,
        "largest difference of a probability": 8.4e-7,
    }
    config = {
        "model": "MiniLM",
        "requests a round": 200,
        "clients": 32,
        "rounds": 7,
        "threads that compute": 1,
        "plain": "this",
        "bare": "that",
        "machine": "two cores",
        "checked": {"clients": 64},
        "targets": {pair: compared.TARGET},
    }
    names = (sides.POSTERIOR, sides.PLAIN, sides.BARE)
    return config, {**dict.fromkeys(names, side), pair: ratio, "answers": checked}


MADE = {
    "limit": _limit,
    "growth": _growth,
    "classes": _classes,
    "lora": _lora,
    "startup": _startup,
    "warm": _warm,
    "serve": _serve,
}
EXPECTED = {
    "limit": (
        "| forward | 0.460× | – | – |",
        "| fit 10 % | 1.100× | ≤ 1.05× | missed, 4.8 % above |",
        "| predict 100 %, isotropic | 1.100× | ≤ 1.15× | met, 4.3 % below |",
        "| laplace-torch fit 100 % | 120× | – | – |",
    ),
    "limit-memory": ("| predict 100 %, exact | 450 | 9.000× |",),
    "limit-floats": (
        "| low-rank | 1,000,000 | 2.50 % |",
        "at most 2 % of the floats: missed, 25 % above.",
        "largest relative error on test sentences was 0.042 %;",
        "bound is 0.99 %. Precisions, as calibrated: 0.03 and 1,000 (exact), 3,162 (isotropic).",
    ),
    "percent": (
        "(pictures/cost.svg)",
        "| percent | fit | predict, exact | predict, low-rank | predict, isotropic |",
        "| 10 % | 0.990× | 1.200× | 1.100× | 1.050× |",
    ),
    "growth": (
        "**Width** (BERT)",
        "| 2,048 | 100 | 200 | 140 | 110 |",
        "| power, from 512 | 0.00 | 0.00 | 0.00 | 0.00 |",
    ),
    "classes": (
        "| fit, 10 % | 4.000× | ≤ 5× | met, 20 % below |",
        "| predict, 10 % | 6.000× | ≤ 5× | missed, 20 % above |",
        "at most 3 seconds to calibrate: met, 50 % below.",
    ),
    "lora": (
        "| floats | 1,800,000 | 31,000,000 | ≤ 2,000,000 | met, 10 % below |",
        "| predict ÷ passes | 1.300× | 1.900× | ≤ 1.2× | missed, 8.3 % above |",
        "| test NLL, default − full | −0.00100 |  | ≤ 0.0020 | met, 0.0030 below |",
        "4,194,304 weights",
    ),
    "startup": (
        "| `python` | 0.250 s | – | – |",
        "| `import smidgen` | 0.250 s | ≤ 0.3 s | met, 17 % below |",
    ),
    "warm": (
        "- one text: a model; 200 rounds",
        "| one text, last layer | 5.00 | 7.00 | 1.400× | +2.00 | ≤ 1.2× | missed, 17 % above |",
        "| one text, isotropic, all layers | 5.00 | 7.00 | 1.400× | +2.00 | – | – |",
        "| ≤ forward + 0.3 ms | missed, 1.70 ms above |",
    ),
    "serve": (
        "| last layer | 120.5 | 210 | 400 | 8.2 |",
        "| last layer / plain, clock | 0.900× | ≥ 0.8× | met, 12 % above |",
        "| last layer / plain, processor | 0.700× | ≥ 0.8× | missed, 13 % below |",
        "10,000 requests of 15,000 rows from 64 clients",
        "0 other answers, sets or flags",
        "a probability was 8.4e-07.",
    ),
}


@pytest.fixture
def records(tmp_path, monkeypatch):
    monkeypatch.setattr(committed, "BENCHES", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", EXPECTED)
def test_a_table_says_what_its_record_says(name, records):
    bench = {"percent": "growth"}.get(name, name.partition("-")[0])
    config, results = MADE[bench]()
    Record("bench", config, results, seed=0).save(records / f"{bench}.json")
    text = TABLES[name]()
    for part in EXPECTED[name]:
        assert part in text


@pytest.mark.parametrize("name", TABLES)
def test_without_a_record_a_sentence_says_how_to_make_it(name, records):
    text = TABLES[name]()
    assert text.startswith("There is no record of this code yet: `python -m bench ")
    assert "|" not in text


def test_a_record_of_older_code_is_no_record(records):
    Record("bench", {}, {"forward": 0.46, "fit 10 %": 1.03}).save(records / "limit.json")
    assert TABLES["limit"]().startswith("There is no record of this code yet")


def test_a_target_of_the_peer_is_a_least(records):
    measures = {"fit": 0.9, "predict": 34.5, "fit bytes": 1.0, "predict bytes": 9.0}
    pairs = {"peer_over_smidgen": {"KFAC, smidgen at 100 %": measures}}
    config = {
        "peer": "laplace-torch 0.3",
        "threads": 2,
        "targets of peer_over_smidgen": {
            "predict, smidgen at 100 %": 30,
            "fit, DistilBERT, smidgen at 100 %": 2,
        },
    }
    record = Record("bench", config, {"MiniLM": pairs, "DistilBERT": pairs})
    record.save(records / "peers.json")
    text = TABLES["peers"]()
    met = "| MiniLM, smidgen at 100 %: predict time | 34.5× | ≥ 30× | met, 15 % above |"
    missed = "| DistilBERT, smidgen at 100 %: fit time | 0.9× | ≥ 2× | missed, 55 % below |"
    assert met in text
    assert missed in text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.05, "met, just"),
        (1.051, "missed, 0.095 % above"),
        (1.0, "met, 4.8 % below"),
        (3.15, "missed, 200 % above"),
    ],
)
def test_a_miss_is_said_in_the_words_of_a_success(value, words):
    assert judge(value, 1.05) == words


def test_the_picture_names_every_line_and_the_limit():
    drawn = ET.fromstring(draw_percents(PERCENTS))
    texts = {"".join(each.itertext()).strip() for each in drawn.iter("text")}
    names = {"predict, exact", "predict, isotropic", "predict, low-rank (default)"}
    assert names | {"fit, its pass over data", "the limit"} <= texts
    assert {"1 %", "3 %", "10 %", "30 %", "100 %", "3.00×", "1.00×"} <= texts


def test_the_picture_needs_a_record(records):
    assert read_percents() is None
    config, results = _growth()
    Record("bench", config, results).save(records / "growth.json")
    assert read_percents() == PERCENTS
