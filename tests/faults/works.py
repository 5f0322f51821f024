"""The kinds of long work, in a world of a tiny model and a few texts."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import BertForSequenceClassification

from tests.faults.watching import SWITCH
from tests.integration.test_cli import rows
from tests.support.tiny import bert_config, saved, saved_encoder

ROOT = Path(__file__).parents[2]
KILLED = -9
TEXTS = "--text sentence --label verdict --max-length 12 --batch-size 16"
DATA = f"--train ../train.tsv --val ../val.tsv {TEXTS}"
SWAG = "--method swag --steps 24 --every 4 --rank 3 --trial-steps 12 --samples 4"
STUDY = """
title = "A study that is killed"
[[data]]
name = "one"
[[cells]]
name = "base"
kind = "tests.faults.study_kind"
diary = "diary"
leaves = true
seconds = 0.02
[[cells]]
name = "leaf"
kind = "tests.faults.study_kind"
needs = ["base"]
diary = "diary"
each = { seconds = [0.02, 0.04] }
[profiles.small]
seeds = [0, 1]
"""
WORKS = {
    "finetune": f"finetune ../encoder {DATA} --epochs 4 --patience 4 --out made --json n.json",
    "fit swag": f"fit ../map {DATA} {SWAG} --rate 0.01,0.1 --out made --json n.json",
    "fit laplace": f"fit ../map {DATA} --percent 30 --out made --json n.json",
    "bayestune": (
        f"bayestune ../encoder {DATA} --fraction 0.1 --epochs 3 --patience 3 --out made "
        "--json n.json"
    ),
    "bayestune swag": (
        f"bayestune ../encoder {DATA} --fraction 0.1 --epochs 2 --posterior swag --out made"
    ),
    "train-sparse": (
        "train-sparse --train ../train.npz --out made --hidden 12 --density 0.3 --epochs 5 "
        "--batch-size 16 --samples 4 --json n.json --picture net.svg"
    ),
    "ramp laplace": (
        f"ramp ../map {DATA} --test ../test.tsv --percents 10,100 --schemes "
        "sparse-kfac,last-layer --save best --out made"
    ),
    "ramp swag": (
        f"ramp ../map {DATA} {SWAG} --rate 0.05 --test ../test.tsv --schemes "
        "magnitude,max-mlp --fractions 0.1 --out made"
    ),
    "run": "run ../table.npz --table --epochs 3 --out made --json n.json",
    "python ssvi": "python ssvi",
    "python langevin": "python langevin",
    "python finetune": "python finetune",
    "python finetune_subset": "python finetune_subset",
    "python swag": "python swag",
    "study": "study run ../study.toml --out made --workers 1 --threads 1",
}
# Seconds and dates are of a run; all else is of the work.
_OF_A_RUN = {"created", "seconds", "relative_seconds", "digest", "posterior_digest"}
_PAGES = (".html",)


def make_world(root):
    """Write the models and the data that all works share."""
    saved_encoder(root / "encoder")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        saved(root / "map", BertForSequenceClassification(bert_config(num_labels=2)))
    for seed, (name, count) in enumerate([("train", 48), ("val", 32), ("test", 32)]):
        lines = [
            f"{text}\t{('LABEL_0', 'LABEL_1')[label]}" for text, label in rows(count, seed)
        ]
        (root / f"{name}.tsv").write_text("sentence\tverdict\n" + "\n".join(lines) + "\n")
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(96, 6)).astype(np.float32)
    np.savez(root / "train.npz", x=inputs, y=(inputs[:, 0] > 0).astype(np.int64))
    inputs = generator.normal(size=(160, 4)).astype(np.float32)
    np.savez(root / "table.npz", x=inputs, y=(inputs[:, 0] > 0).astype(np.int64))
    (root / "study.toml").write_text(STUDY)
    return root


class Server:
    """The fork server, and the works in a folder each."""

    def __init__(self, root):
        self.root, self.count = make_world(root), 0
        paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
            "SMIDGEN_PROGRESS": "0",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server", str(root / "map")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=ROOT,
            text=True,
        )
        assert self.process.stdout.readline() == "ready\n"
        self.undisturbed = {}

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def new_folder(self):
        self.count += 1
        folder = self.root / f"run{self.count}"
        folder.mkdir()
        return folder

    def run(self, work, folder, *, in_worker=None, **kill):
        """Start a work in a folder, perhaps to kill it; return how it ended."""
        request = {"words": WORKS[work].split(), "folder": str(folder), **kill}
        request["log"] = f"{folder}.log"
        token, log = Path(f"{folder}.token"), Path(f"{folder}.operations")
        if work == "study":
            told = {"log": str(log), "token": str(token), "number": 0, "worker": True}
            request["environment"] = {SWITCH: json.dumps(told | (in_worker or {}))}
            log.unlink(missing_ok=True)
        if in_worker:
            token.touch()
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        ended = json.loads(self.process.stdout.readline())
        assert not ended["left_alive"], "workers outlived the program that was killed"
        # A worker that was killed is replaced, and the run ends well.
        ended["killed"] = ended["code"] == KILLED or bool(in_worker and not token.exists())
        ended["in_worker"] = log.stat().st_size if log.exists() else 0
        return ended

    def reference(self, work):
        """What the undisturbed work leaves and takes, once for each work."""
        if work not in self.undisturbed:
            folder = self.new_folder()
            ended = self.run(work, folder)
            assert ended["code"] == 0, Path(f"{folder}.log").read_text(encoding="utf-8")
            self.undisturbed[work] = read_results(folder), ended
        return self.undisturbed[work]


def read_results(folder):
    """Everything in a folder, without what is of a run and not of the work."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): _read(path) for path in paths}


def _read(path):
    if path.suffix in _PAGES or path.parent.name == "locks" or path.name == "diary":
        return "there"
    if path.suffix == ".safetensors":
        tensors = load_file(path).items()
        return {n: (str(t.dtype), t.shape, t.numpy().tobytes()) for n, t in tensors}
    if path.suffix == ".gz":
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        return sorted((_strip(json.loads(line)) for line in lines), key=str)
    if path.suffix == ".json":
        return _strip(json.loads(path.read_text()))
    return path.read_bytes()


def _strip(value):
    if isinstance(value, dict):
        return {n: _strip(v) for n, v in value.items() if n not in _OF_A_RUN}
    if isinstance(value, list):
        return [_strip(item) for item in value]
    return value


def choose_kill(generator: random.Random, ended):
    """Draw when to kill: at a random time, or before a random operation on files.

    Of a study also before an operation of a worker: the worker, or the program.
    """
    if ended["in_worker"] and generator.random() < 0.7:
        number = generator.randint(1, ended["in_worker"])
        return {"in_worker": {"number": number, "worker": generator.random() < 0.5}}
    if generator.random() < 0.5:
        return {"kill_at": generator.randint(1, ended["operations"])}
    return {"kill_after": generator.uniform(0, 1.05 * ended["seconds"])}
