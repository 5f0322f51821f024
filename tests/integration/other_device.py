"""Run commands and cells of a study on the processor and on a pretended device.

A process of its own: python -m tests.integration.other_device FOLDER. FOLDER has an
encoder and data; what was found on each device is left there as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest
import torch

from smidgen.cli import main
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.engine.run import check_study, run_cells
from smidgen_studies.engine.study import read_study
from smidgen_studies.engine.workers.base import Workspace
from tests.integration.test_study_kinds import TEXT
from tests.support.inline_engine import InlineEngine
from tests.support.pretended_device import NAME, announce, pretended

SHORT = ("--text", "sentence", "--label", "verdict", "--max-length", 12)
SWAG = ("--method", "swag", "--steps", 12, "--every", 2, "--rank", 4, "--trial-steps", 6)


def commands(root, out):
    """Words by the name of what is found."""
    train, val, test = (("--" + n, root / f"{n}.tsv") for n in ("train", "val", "test"))
    data = ("--data", root / "test.tsv", "--text", "sentence", "--max-length", 12)
    brief = ("--epochs", 1, "--lr", 0.02)
    fit = ("fit", out / "map", *train, *val, *SHORT)
    swag = (*SWAG, "--rate", "0.01,0.1", "--samples", 4, "--select", "max-mlp")
    ramp = ("--percents", "20", "--schemes", "sparse-kfac,last-layer")
    encoder = (root / "encoder", *train, *val, *SHORT)
    return {
        "map": ("finetune", *encoder, *brief),
        "ekfac": (*fit, "--structure", "ekfac", "--percent", 40),
        "single": (*fit, "--select", "squared-gradient"),
        "swag": (*fit, *swag),
        "predicted": ("predict", out / "map", out / "ekfac", *data),
        "evaluated": ("evaluate", out / "map", out / "swag", *test, *SHORT),
        "ramp": ("ramp", out / "map", *train, *val, *test, *SHORT, *ramp),
        "tuned": ("bayestune", *encoder, *brief, "--chain-epochs", 1, "--agreement"),
        "published": ("bayestune", *encoder, *brief, "--update", "published", "--half"),
        "sparse": ("train-sparse", "--train", root / "images.npz", "--epochs", 1)
        + ("--hidden", "16", "--samples", 4),
    }


def found_by(root, device):
    """What every command and every cell finds on a device."""
    out = root / device
    found = {}
    for name, words in commands(root, out).items():
        file = out / f"{name}.json"
        told = (*words, "--device", device, "--json", file, "--quiet", "--debug")
        told += () if words[0] in ("predict", "evaluate") else ("--out", out / name)
        with pytest.raises(SystemExit) as leaving:
            main([str(word) for word in told])
        assert not leaving.value.code, name
        found[name] = json.loads(file.read_text())
    return {**found, "study": cells_of(root, out / "study", device)}


def cells_of(root, folder, device):
    """The records of a study whose cells are done on a device."""
    file = root / "letters.toml"
    file.write_text(TEXT.format(encoder=root / "dropped"))
    study, ledger = read_study(str(file)), Ledger(folder)
    engine = InlineEngine(Workspace(folder, root, device))
    ended = run_cells(check_study(study, ledger, root), ledger, engine)
    assert not ended.failed, [ledger.failure(cell) for cell in ended.failed]
    return {cell.name: json.loads(ledger.record(cell).to_json()) for cell in study.cells}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    announce()
    results = {"cpu": found_by(root, "cpu")}
    with pretended():
        results["other"] = found_by(root, NAME)
    (root / "found.json").write_text(json.dumps(results))
