"""One small artifact of every kind that smidgen reads back, and what each one says."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import warnings
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save as serialise
from torch import nn

import smidgen
from smidgen import decide, fit
from smidgen.decide import Rules
from smidgen.runtime.artifact import find_digest
from smidgen.runtime.checkpoint import read_checkpoint, write_checkpoint
from smidgen.runtime.packed_records import pack_records, unpack_records
from smidgen.runtime.reading import read_safetensors
from smidgen.runtime.record import Record
from smidgen.sparse import SparseSettings, make_sparse
from smidgen.sparse.architectures import PlainNetwork
from smidgen.weights.delta import Delta
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Block, Entries, Subset, Whole
from smidgen.workflows.ramp.swag import SwagPoint, _StoredPoints
from smidgen_studies.data.uci import load_needed_problem, make_network, save_network
from smidgen_studies.engine.cell import Cell
from smidgen_studies.engine.ledger import Ledger
from tests.support.decisions import make_classes, make_numbers

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where files of a moment go."""
CONFIG, TENSORS = "config.json", "posterior.safetensors"


@cache
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().eval()


PLAIN = PlainNetwork("mlp", (3,), 2, hidden=(4,))


def batches(kind=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 3, generator=generator, dtype=torch.float64).to(kind)
    y = (x.sum(1) > 0).long()
    return [(x[i : i + 6], y[i : i + 6]) for i in range(0, 24, 6)]


def meaning(thing):
    """A digest of all that a loaded thing says: two with the same are the same."""
    header, tensors = said(thing)
    return find_digest(header, tensors)


def said(thing):
    if isinstance(thing, smidgen.Posterior):
        return posterior_said(thing)
    if isinstance(thing, Delta):
        header, tensors = said(thing.subset)
        header |= {"base": thing.fingerprint, "left out": thing.left_out}
        header["replaced"] = sorted(thing.replaced)
        replaced = {f"replaced {n}": t for n, t in thing.replaced.items()}
        return header, {**tensors, **replaced, "difference": thing.difference}
    if isinstance(thing, Subset):
        tensors, header = thing.to_tensors()
        return {"subset": header}, tensors
    if isinstance(thing, Record):
        return asdict(thing), {}
    if isinstance(thing, nn.Module):
        return {}, thing.state_dict()
    if isinstance(thing, dict) and any(isinstance(v, torch.Tensor) for v in thing.values()):
        return {}, thing
    if isinstance(thing, dict) and any(isinstance(v, Record) for v in thing.values()):
        return {name: asdict(record) for name, record in thing.items()}, {}
    if isinstance(thing, list):
        return {"points": [asdict(point) for point in thing]}, {}
    return dict(thing), {}


def posterior_said(posterior):
    tensors, settings = posterior.pack()
    indices, subset = posterior.subset.to_tensors()
    calibration = posterior.calibration
    header = {
        "settings": settings,
        "subset": subset,
        "temperature": posterior.temperature,
        "likelihood": repr(posterior.likelihood),
        "data": posterior.num_data,
        "fingerprint": posterior.fingerprint,
        "calibration": None if calibration is None else asdict(calibration),
        "choice": None if posterior.choice is None else posterior.choice.to_json(),
    }
    return header, {**tensors, **{f"index {n}": t for n, t in indices.items()}}


@dataclass(frozen=True)
class Kind:
    """How an artifact is made and read; `path` is what is read, within a folder.

    `header` is the file that holds the header: JSON, packed lines, or the metadata of a
    safetensors file under `key`; `tensors` is the file of the tensors, if there are any.
    """

    make: callable
    load: callable
    path: str
    header: str
    tensors: str | None = None
    key: str | None = None

    def files(self):
        """Bytes of each file of a sound artifact, by its path."""
        return dict(_files(self))

    def original(self):
        """What the sound artifact means."""
        return _original(self)

    def write(self, folder, files):
        """Write files as they are, without any care."""
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder / self.path

    def take_apart(self, files):
        """Header (a list of lines for packed records) and tensors of an artifact."""
        if self.header.endswith(".gz"):
            lines = gzip.decompress(files[self.header]).decode().splitlines()
            return [json.loads(line) for line in lines], {}
        tensors, metadata = {}, {}
        if self.tensors:
            with TemporaryDirectory(dir=MEMORY) as place:
                path = Path(place) / "t"
                path.write_bytes(files[self.tensors])
                tensors, metadata = read_safetensors(path)
        text = metadata[self.key] if self.key else files[self.header]
        return json.loads(text), tensors

    def put_together(self, files, header, tensors, text=None):
        """Write a header, or its text, and tensors in place of those that were there."""
        files = dict(files)
        if self.header.endswith(".gz"):
            lines = "".join(f"{json.dumps(each)}\n" for each in header)
            files[self.header] = gzip.compress(lines.encode(), mtime=0)
            return files
        text = json.dumps(header) if text is None else text
        plain = {name: value.clone().contiguous() for name, value in tensors.items()}
        if self.key:
            files[self.tensors] = serialise(plain, metadata={self.key: text})
        else:
            files[self.header] = text.encode("utf-8", "surrogatepass")
            if self.tensors:
                files[self.tensors] = serialise(plain, metadata={"format": "smidgen"})
        return files


@cache
def _files(kind):
    with TemporaryDirectory(dir=MEMORY) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Twenty examples leave much to warn of.
        kind.make(Path(place))
        paths = [path for path in Path(place).rglob("*") if path.is_file()]
        return tuple((str(path.relative_to(place)), path.read_bytes()) for path in paths)


@cache
def _original(kind):
    with TemporaryDirectory(dir=MEMORY) as place:
        return meaning(kind.load(kind.write(Path(place), kind.files())))


def laplace(structure):
    def make(folder):
        problem = smidgen.Problem(network(), smidgen.Categorical(2))
        subset = smidgen.select.sparse_kfac(network(), percent=60)
        found = fit.laplace(problem, batches(), subset, structure=structure, progress=False)
        if structure in ("kron", "diag"):
            found = smidgen.calibrate(found, problem, batches(), progress=False)
        smidgen.save(found.with_temperature(1.3), folder / "saved")

    return posterior_kind(make)


def bayesified(*candidates):
    def make(folder):
        problem = smidgen.Problem(network(), smidgen.Categorical(2))
        settings = smidgen.BayesifySettings(candidates, percents=(60,), folds=2, memory=1)
        found = smidgen.bayesify(
            problem, batches(), batches(), settings=settings, progress=False
        )
        # What a prediction took is another number each time.
        choice = found.choice
        timeless = [replace(each, relative_seconds=1.0) for each in choice.candidates]
        choice = replace(choice, candidates=tuple(timeless))
        smidgen.save(replace(found, choice=choice), folder / "saved")

    return posterior_kind(make)


def posterior_kind(make, model=network):
    return Kind(
        make,
        lambda path: smidgen.load(path, model()),
        "saved",
        f"saved/{CONFIG}",
        f"saved/{TENSORS}",
    )


SWAG = fit.SwagSettings(steps=6, every=1, rank=3, learning_rate=0.05, checkpoint_every=1)


def swag(covariance):
    def make(folder):
        subset = smidgen.select.weights(network(), fraction=0.4)
        settings = replace(SWAG, covariance=covariance)
        found = fit.swag(network(), batches(), subset, settings=settings, progress=False)
        smidgen.save(found, folder / "saved")

    return posterior_kind(make)


SSVI = fit.SsviSettings(epochs=2, every=2, num_data=24)


def sparse(deterministic):
    def make(folder):
        settings = SparseSettings(deterministic=deterministic, path="dense")
        made = make_sparse(PLAIN.build(), density=0.5, settings=settings)
        found = fit.ssvi(made, batches(torch.float32), settings=SSVI, progress=False)
        smidgen.save(replace(found, plain=PLAIN, notes={"seed": 0}), folder / "saved")

    return posterior_kind(make, lambda: None)


def a_subset():
    shapes = {name: tuple(p.shape) for name, p in network().named_parameters()}
    parts = {
        "0.weight": Entries(torch.tensor([0, 5, 10])),
        "2.weight": Block(torch.tensor([1]), torch.tensor([0, 3])),
        "2.bias": Whole(),
    }
    return Subset(shapes, parts, Origin("named", {"patterns": ["0.*"], "count": 3}))


def a_delta():
    torch.manual_seed(3)
    replaced = {"0.bias": torch.randn(4).double()}
    return Delta(a_subset(), torch.randn(7).double(), replaced, "ab" * 32, ("odd",))


def a_record(seed=3):
    results = {"nll": 0.25, "rows": [1, 2.5, None], "names": {"a": "b"}}
    about = {"versions": {"torch": "1"}, "machine": {"cores": 2}, "created": "today"}
    return Record("evaluate", {"percent": 10}, results, seed, **about)


def some_rules():
    predictive, targets = make_classes(100, with_variance=True)
    numbers, values = make_numbers(60, outputs=2)
    return Rules(
        decide.abstain(predictive, targets, max_error=0.5),
        decide.sets(predictive, targets, by_class=True),
        decide.intervals(numbers, values),
        decide.strange(predictive),
    )


def single(make, load, name, key=None):
    return Kind(make, load, name, name, name if key else None, key)


ABOUT = {"steps": 3, "rates": [0.1, 0.2]}


def a_checkpoint(folder):
    torch.manual_seed(4)
    values = {"learner/values": torch.randn(5), "learner/count": torch.tensor(2)}
    values |= {"random/cpu": torch.get_rng_state()[:64], "loader/place": torch.ones(2)}
    write_checkpoint(folder / "run.checkpoint", values, ABOUT)


def stored_points(folder):
    return _StoredPoints(folder, {"model": "ab", "settings": {"steps": 3}})


def points(folder):
    stored = stored_points(folder / "study")
    how = {"floats": 3, "weights": 2, "fraction": 0.1, "temperature": 1.2, "ece": 0.1}
    how |= {"learning_rate": 0.1, "nll_untempered": 0.5, "seconds": 1.5, "nll": 0.4}
    how |= {"ece_floor": 0.02}
    subset = smidgen.select.weights(network(), fraction=0.4)
    found = fit.swag(network(), batches(), subset, settings=SWAG, progress=False)
    for level in (1, 2):
        stored.add(SwagPoint(scheme="random", level=level, **how), found)
        shutil.rmtree(folder / "study" / f"random-{level}")  # a kind of its own


CELL = Cell("map", "constant", {"name": "toy"}, 1)


def failures(folder):
    Ledger(folder).note_failure(CELL, "it failed", "here")


@dataclass(frozen=True)
class Needed:
    """What stands for a job that needs one trained network."""

    artifact: Path

    @property
    def needs(self):
        return (self,)

    @property
    def train(self):
        return (torch.zeros(2, 3), None)


def load_needed(path):
    needed = Needed(path.parent)
    return load_needed_problem(needed, needed).model


# Training that was killed and goes on: what is read is the result in the end.


class Killed(list):
    """Batches that end in a kill, once so many were read."""

    left = 7

    def __iter__(self):
        for batch in super().__iter__():
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield batch


def resumed(run):
    def make(folder):
        try:
            run(Killed(batches(torch.float32)), folder / "run.checkpoint")
        except KeyboardInterrupt:
            return
        raise AssertionError("it was not killed")

    def load(path):
        return run(batches(torch.float32), path)

    return single(make, load, "run.checkpoint", "smidgen-checkpoint")


@cache
def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()


QUIET = {"progress": False}


def run_swag(data, path):
    subset = smidgen.select.weights(small(), fraction=0.4)
    settings = replace(SWAG, steps=8)
    return fit.swag(small(), data, subset, settings=settings, checkpoint=path, **QUIET)


def run_finetune(data, path):
    subset = smidgen.select.weights(small(), fraction=0.4)
    settings = fit.FinetuneSettings(epochs=3, learning_rate=0.05)
    found = fit.finetune(small(), data, subset, settings=settings, checkpoint=path, **QUIET)
    return found.model


def run_chain(data, path):
    settings = fit.LangevinSettings(
        steps=10, burn_in=4, thin=2, num_data=24, checkpoint_every=2, head="none"
    )
    found = fit.langevin(small(), data, settings=settings, checkpoint=path, **QUIET)
    return {f"{i} {n}": t for i, half in enumerate(found.halves) for n, t in half.items()}


def run_ssvi(data, path):
    settings = SparseSettings(path="dense")
    made = make_sparse(small(), density=0.5, settings=settings)
    return fit.ssvi(made, data, settings=SSVI, checkpoint=path, **QUIET)


KINDS = {
    **{f"laplace {name}": laplace(name) for name in ("kron", "ekfac", "diag", "full")},
    **{f"swag {name}": swag(name) for name in ("low-rank", "diagonal", "none")},
    "point": bayesified("temperature"),
    "bayesified": bayesified("isotropic", "last-layer", "sparse-kfac"),
    "sparse": sparse(deterministic=False),
    "sparse points": sparse(deterministic=True),
    "delta": single(
        lambda f: a_delta().save(f / "d.safetensors"),
        Delta.load,
        "d.safetensors",
        "smidgen-delta",
    ),
    "subset": single(
        lambda f: a_subset().to_file(f / "s.safetensors"),
        Subset.from_file,
        "s.safetensors",
        "smidgen-subset",
    ),
    "checkpoint": single(
        a_checkpoint,
        lambda path: read_checkpoint(path, ABOUT),
        "run.checkpoint",
        "smidgen-checkpoint",
    ),
    "record": single(
        lambda f: a_record().save(f / "record.json"), Record.load, "record.json"
    ),
    "rules": single(
        lambda f: some_rules().save(f),
        lambda path: Rules.load(path.parent).to_json(),
        "rules.json",
    ),
    "packed records": single(
        lambda f: pack_records(
            f / "study.jsonl.gz", {n: a_record(i) for i, n in enumerate("abc")}
        ),
        unpack_records,
        "study.jsonl.gz",
    ),
    "ramp points": Kind(
        points,
        lambda path: stored_points(path).points,
        "study",
        "study/points.json",
    ),
    "failure": single(
        failures,
        lambda path: Ledger(path.parents[1]).failure(CELL),
        f"failed/{CELL.slug}.json",
    ),
    "study network": single(
        lambda f: save_network(make_network(3, 0), f),
        load_needed,
        "model.safetensors",
        "smidgen-network",
    ),
}
RESUMED = {
    "resumed swag": resumed(run_swag),
    "resumed fine-tuning": resumed(run_finetune),
    "resumed chain": resumed(run_chain),
    "resumed ssvi": resumed(run_ssvi),
}
