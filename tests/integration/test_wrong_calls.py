"""Wrong calls through Python: each is one sentence that names the argument and the next step."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen import evaluate, fit, select
from smidgen.errors import SmidgenError
from smidgen.prediction import dropout_outputs
from smidgen.runtime.record import Record
from smidgen.sparse import SparseSettings
from smidgen.weights.subset import Block, Entries, Whole

NAN = float("nan")


class World:
    """A model, its data, posteriors of it, and a folder."""

    def __init__(self, folder):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
            self.other = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
            x, y = torch.randn(24, 4), torch.arange(24) % 3
        self.x, self.y, self.folder = x, y, folder
        self.loader = DataLoader(TensorDataset(x, y), batch_size=8)
        self.batch = (x[:8], y[:8])
        self.subset = select.last_layer(self.model)
        self.laplace = fit.laplace(self.model, self.loader, self.subset, progress=False)
        settings = fit.SwagSettings(learning_rate=0.01, steps=8, every=2, rank=3)
        self.swag = fit.swag(
            self.model, self.loader, self.subset, settings=settings, progress=False
        )
        self.predictive = smidgen.predict(self.laplace, self.model, self.batch)
        self.file = folder / "file.txt"
        self.file.write_text("not a posterior")
        self.saved = smidgen.save(self.laplace, folder / "saved")
        tuned = fit.finetune(
            self.model,
            self.loader,
            self.subset,
            settings=fit.FinetuneSettings(epochs=1, head="none"),
            progress=False,
        )
        self.delta = tuned.delta


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("wrong"))


def exhausted(loader):
    batches = iter(loader)
    list(batches)
    return batches


QUIET = {"progress": False}

# What is called, and what the message must hold: the argument's name and its value.
CALLS = {
    # select
    "model is a state dict": (
        lambda w: select.last_layer(w.model.state_dict()),
        "model",
        "OrderedDict",
    ),
    "model is a class": (
        lambda w: select.sparse_kfac(nn.Linear, percent=10),
        "model",
        "type",
    ),
    "percent is 0": (lambda w: select.sparse_kfac(w.model, percent=0), "percent", "0"),
    "percent is 101": (
        lambda w: select.sparse_kfac(w.model, percent=101),
        "percent",
        "101",
    ),
    "percent is text": (
        lambda w: select.sparse_kfac(w.model, percent="10"),
        "percent",
        "'10'",
    ),
    "percent is NaN": (
        lambda w: select.sparse_kfac(w.model, percent=NAN),
        "percent",
        "nan",
    ),
    "percent is True": (
        lambda w: select.sparse_kfac(w.model, percent=True),
        "percent",
        "True",
    ),
    "no pattern matches": (lambda w: select.named(w.model, "nope.*"), "pattern", "nope"),
    "pattern is a number": (lambda w: select.named(w.model, 3), "pattern", "3"),
    "unknown selector": (lambda w: select.choose("nope", w.model), "name", "'nope'"),
    "selector is a list": (lambda w: select.choose(["nope"], w.model), "name", "['nope']"),
    "fraction is 2": (lambda w: select.weights(w.model, fraction=2.0), "fraction", "2.0"),
    "fraction is text": (
        lambda w: select.weights(w.model, fraction="all"),
        "fraction",
        "'all'",
    ),
    "scores of another model": (
        lambda w: select.weights(
            w.model, by=select.scores.magnitude(w.other), fraction=0.1
        ),
        "by",
        "(6, 5)",
    ),
    "scores are a tensor": (
        lambda w: select.weights(w.model, by=torch.ones(3), fraction=0.1),
        "by",
        "tensor",
    ),
    "scores hold NaN": (
        lambda w: select.weights(
            w.model,
            by={n: p * NAN for n, p in select.scores.magnitude(w.model).items()},
            fraction=0.1,
        ),
        "by",
        "NaN",
    ),
    "modules counted by a float": (
        lambda w: select.modules(w.model, count=1.5),
        "count",
        "1.5",
    ),
    "batches is a model": (
        lambda w: select.scores.curvature(w.model, w.model, **QUIET),
        "batches",
        "Sequential",
    ),
    "scores of no batch": (
        lambda w: select.scores.activation(w.model, [], **QUIET),
        "batch",
        "no",
    ),
    # problems and likelihoods
    "problem without a model": (
        lambda w: fit.laplace("model", w.loader, w.subset, **QUIET),
        "model",
        "str",
    ),
    "problem of a string": (lambda w: smidgen.Problem("bert"), "model", "str"),
    "likelihood is a name": (
        lambda w: smidgen.Problem(w.model, "categorical"),
        "likelihood",
        "'categorical'",
    ),
    "one class": (lambda w: smidgen.Categorical(1), "outputs", "1"),
    "no output": (lambda w: smidgen.Bernoulli(0), "outputs", "0"),
    "outputs is text": (lambda w: smidgen.Categorical("2"), "outputs", "'2'"),
    "noise below zero": (lambda w: smidgen.Gaussian(1, noise=-1.0), "noise", "-1.0"),
    "noise is NaN": (lambda w: smidgen.Gaussian(1, noise=NAN), "noise", "nan"),
    "noise is text": (lambda w: smidgen.Gaussian(1, noise="1"), "noise", "'1'"),
    "link is unknown": (lambda w: smidgen.Link("nope"), "link", "'nope'"),
    "draws of a link": (lambda w: smidgen.Link("sampling", draws=0), "draws", "0"),
    "three items a batch": (
        lambda w: fit.laplace(w.model, [(w.x, w.y, w.y)], w.subset, **QUIET),
        "batch",
        "3 items",
    ),
    # fits
    "arguments swapped": (
        lambda w: fit.laplace(w.model, w.subset, w.loader, **QUIET),
        "subset",
        "DataLoader",
    ),
    "subset is a name": (
        lambda w: fit.laplace(w.model, w.loader, "last", **QUIET),
        "subset",
        "str",
    ),
    "subset of another model": (
        lambda w: fit.laplace(
            w.other, w.loader, select.sparse_kfac(w.model, percent=50), **QUIET
        ),
        "model",
        "(6, 5)",
    ),
    "structure is unknown": (
        lambda w: fit.laplace(w.model, w.loader, w.subset, structure="dense", **QUIET),
        "structure",
        "'dense'",
    ),
    "structure is a list": (
        lambda w: fit.laplace(w.model, w.loader, w.subset, structure=["kron"], **QUIET),
        "structure",
        "['kron']",
    ),
    "precision is negative": (
        lambda w: fit.laplace(w.model, w.loader, w.subset, precision=-1.0, **QUIET),
        "precision",
        "-1.0",
    ),
    "precision is NaN": (
        lambda w: fit.laplace(w.model, w.loader, w.subset, precision=NAN, **QUIET),
        "precision",
        "nan",
    ),
    "precision is text": (
        lambda w: fit.laplace(w.model, w.loader, w.subset, precision="1", **QUIET),
        "precision",
        "'1'",
    ),
    "settings of another fit": (
        lambda w: fit.laplace(
            w.model, w.loader, w.subset, settings=fit.SwagSettings(), **QUIET
        ),
        "settings",
        "SwagSettings",
    ),
    "settings are a dict": (
        lambda w: fit.swag(w.model, w.loader, w.subset, settings={"steps": 9}, **QUIET),
        "settings",
        "dict",
    ),
    "num_data below the data": (
        lambda w: fit.laplace(
            w.model, w.loader, w.subset, settings=fit.LaplaceSettings(num_data=3), **QUIET
        ),
        "num_data",
        "3",
    ),
    "fisher_draws is 0": (
        lambda w: fit.laplace(
            w.model,
            w.loader,
            w.subset,
            settings=fit.LaplaceSettings(fisher_draws=0),
            **QUIET,
        ),
        "fisher_draws",
        "0",
    ),
    "one batch for a loader": (
        lambda w: fit.laplace(w.model, w.x, w.subset, **QUIET),
        "batches",
        "tensor",
    ),
    "one mapping for a loader": (
        lambda w: fit.laplace(w.model, {"input": w.x}, w.subset, **QUIET),
        "batches",
        "dict",
    ),
    "no data": (lambda w: fit.laplace(w.model, [], w.subset, **QUIET), "batch", "no"),
    "an iterator that was read": (
        lambda w: fit.laplace(w.model, exhausted(w.loader), w.subset, **QUIET),
        "batch",
        "no",
    ),
    "an iterator to be read twice": (
        lambda w: fit.laplace(
            w.model, iter(w.loader), w.subset, structure="ekfac", **QUIET
        ),
        "batches",
        "iterator",
    ),
    "labels of another length": (
        lambda w: fit.laplace(w.model, [(w.x, w.y[:5])], w.subset, **QUIET),
        "targets",
        "5",
    ),
    "outputs of another shape": (
        lambda w: fit.laplace(
            smidgen.Problem(w.model, smidgen.Categorical(7)), w.loader, w.subset, **QUIET
        ),
        "outputs",
        "(8, 3)",
    ),
    "no subsets": (
        lambda w: fit.laplace_many(w.model, w.loader, {}, **QUIET),
        "subsets",
        "none",
    ),
    "a list of subsets": (
        lambda w: fit.laplace_many(w.model, w.loader, [w.subset], **QUIET),
        "subsets",
        "list",
    ),
    "steps is 0": (lambda w: fit.SwagSettings(steps=0), "steps", "0"),
    "momentum is 1": (lambda w: fit.SwagSettings(momentum=1.0), "momentum", "1.0"),
    "rank is True": (lambda w: fit.SwagSettings(rank=True), "rank", "True"),
    "learning rate is NaN": (
        lambda w: fit.swag(
            w.model,
            w.loader,
            w.subset,
            settings=fit.SwagSettings(learning_rate=NAN),
            **QUIET,
        ),
        "learning_rate",
        "nan",
    ),
    "epochs is a float": (lambda w: fit.FinetuneSettings(epochs=1.5), "epochs", "1.5"),
    "learning rate below zero": (
        lambda w: fit.FinetuneSettings(learning_rate=-1.0),
        "learning_rate",
        "-1.0",
    ),
    "stop_on is unknown": (
        lambda w: fit.finetune(
            w.model, w.loader, settings=fit.FinetuneSettings(stop_on="f1"), **QUIET
        ),
        "stop_on",
        "'f1'",
    ),
    "finetune without a length": (
        lambda w: fit.finetune(w.model, (b for b in w.loader), **QUIET),
        "length",
        "none",
    ),
    "checkpoint is a folder": (
        lambda w: fit.finetune(w.model, w.loader, checkpoint=w.folder, **QUIET),
        "checkpoint",
        "wrong",
    ),
    "update is unknown": (lambda w: fit.LangevinSettings(update="hmc"), "update", "'hmc'"),
    "shape of the prior": (lambda w: fit.ScalePrior(shape=-1.0), "shape", "-1.0"),
    "density is 2": (lambda w: smidgen.make_sparse(w.model, density=2.0), "density", "2.0"),
    "density is text": (
        lambda w: smidgen.make_sparse(w.model, density="0.1"),
        "density",
        "'0.1'",
    ),
    "budget is unknown": (
        lambda w: smidgen.make_sparse(
            w.model, density=0.5, settings=SparseSettings(budget="nope")
        ),
        "budget",
        "'nope'",
    ),
    # calibrate, predict, compare
    "calibrate swapped": (
        lambda w: smidgen.calibrate(w.model, w.laplace, w.loader, **QUIET),
        "posterior",
        "Sequential",
    ),
    "calibrate another model": (
        lambda w: smidgen.calibrate(w.laplace, w.other, w.loader, **QUIET),
        "model",
        "",
    ),
    "what is unknown": (
        lambda w: smidgen.calibrate(
            w.laplace,
            w.model,
            w.loader,
            settings=fit.CalibrationSettings(what="all"),
            **QUIET,
        ),
        "what",
        "'all'",
    ),
    "precisions hold zero": (
        lambda w: smidgen.calibrate(
            w.laplace,
            w.model,
            w.loader,
            settings=fit.CalibrationSettings(precisions=[0.0]),
            **QUIET,
        ),
        "precisions",
        "[0.0]",
    ),
    "samples of a linearised": (
        lambda w: smidgen.calibrate(w.laplace, w.model, w.loader, samples=3, **QUIET),
        "samples",
        "3",
    ),
    "temperature of lists": (lambda w: fit.temperature([[1.0]], [0]), "logits", "list"),
    "predict a loader": (
        lambda w: smidgen.predict(w.laplace, w.model, w.loader),
        "batch",
        "DataLoader",
    ),
    "predict swapped": (
        lambda w: smidgen.predict(w.model, w.laplace, w.batch),
        "posterior",
        "Sequential",
    ),
    "predict another model": (
        lambda w: smidgen.predict(w.laplace, w.other, w.batch),
        "model",
        "",
    ),
    "predict with a link": (
        lambda w: smidgen.predict(w.laplace, w.model, w.batch, link="nope"),
        "link",
        "'nope'",
    ),
    "predict with one sample": (
        lambda w: smidgen.predict(w.swag, w.model, w.batch, samples=1),
        "samples",
        "1",
    ),
    "samples is a float": (
        lambda w: smidgen.predict(w.swag, w.model, w.batch, samples=2.5),
        "samples",
        "2.5",
    ),
    "predict_batches of one batch": (
        lambda w: smidgen.predict_batches(w.laplace, w.model, w.x, **QUIET),
        "batches",
        "tensor",
    ),
    "predict no batch": (
        lambda w: smidgen.predict_batches(w.laplace, w.model, [], **QUIET),
        "batch",
        "no",
    ),
    "point_outputs of one batch": (
        lambda w: smidgen.point_outputs(w.model, w.x, **QUIET),
        "batches",
        "tensor",
    ),
    "dropout without dropout": (
        lambda w: dropout_outputs(w.model, w.loader, **QUIET),
        "dropout",
        "none",
    ),
    "compare swapped": (
        lambda w: smidgen.compare(w.laplace, w.model, w.loader, **QUIET),
        "model",
        "LaplacePosterior",
    ),
    "compare no posterior": (
        lambda w: smidgen.compare(w.model, [], w.loader, **QUIET),
        "posteriors",
        "none",
    ),
    "compare a string": (
        lambda w: smidgen.compare(w.model, "laplace", w.loader, **QUIET),
        "posteriors",
        "'laplace'",
    ),
    "compare by number": (
        lambda w: smidgen.compare(w.model, {1: w.laplace}, w.loader, **QUIET),
        "name",
        "int",
    ),
    "compare named map": (
        lambda w: smidgen.compare(w.model, {"map": w.laplace}, w.loader, **QUIET),
        "name",
        "'map'",
    ),
    "shifted is a loader": (
        lambda w: smidgen.compare(w.model, w.laplace, w.loader, shifted=w.loader, **QUIET),
        "shifted",
        "DataLoader",
    ),
    "verify no row": (lambda w: smidgen.verify(w.model, w.loader, rows=0), "rows", "0"),
    "verify no batch": (lambda w: smidgen.verify(w.model, []), "batch", "no"),
    # evaluate
    "nll of a tensor": (
        lambda w: evaluate.nll(torch.ones(3), w.y[:3]),
        "predictive",
        "Tensor",
    ),
    "targets are a list": (
        lambda w: evaluate.nll(w.predictive, [0] * 8),
        "targets",
        "list",
    ),
    "targets too few": (lambda w: evaluate.nll(w.predictive, w.y[:5]), "targets", "5"),
    "targets are floats": (
        lambda w: evaluate.nll(w.predictive, w.y[:8].float()),
        "targets",
        "float32",
    ),
    "bins is 0": (
        lambda w: evaluate.expected_calibration_error(torch.rand(5), torch.ones(5), bins=0),
        "bins",
        "0",
    ),
    "confidence is 2": (
        lambda w: evaluate.expected_calibration_error(torch.full((5,), 2.0), torch.ones(5)),
        "confidence",
        "2.0",
    ),
    "scores are NaN": (
        lambda w: evaluate.auroc(torch.full((5,), NAN), torch.rand(5)),
        "",
        "nan",
    ),
    # files
    "load a file": (lambda w: smidgen.load(w.file, w.model), "not a", "file.txt"),
    "load nothing": (lambda w: smidgen.load(w.folder / "nope", w.model), "", "nope"),
    "load for another model": (lambda w: smidgen.load(w.saved, w.other), "model", ""),
    "load swapped": (lambda w: smidgen.load(w.model, w.saved), "path", "Sequential"),
    "save a model": (
        lambda w: smidgen.save(w.model, w.folder / "x"),
        "thing",
        "Sequential",
    ),
    "save swapped": (
        lambda w: smidgen.save(w.folder / "x", w.laplace),
        "path",
        "LaplacePosterior",
    ),
    "save over a folder": (lambda w: smidgen.save(w.laplace, w.saved), "", "saved"),
    "save over a file": (lambda w: smidgen.save(w.laplace, w.file), "", "file.txt"),
    "delta from nothing": (
        lambda w: smidgen.Delta.load(w.folder / "nope.safetensors"),
        "",
        "nope.safetensors",
    ),
    "delta on another model": (lambda w: w.delta.apply(w.other), "model", ""),
    "merge of nothing": (lambda w: smidgen.merge_deltas([]), "deltas", "none"),
    "merge of models": (lambda w: smidgen.merge_deltas([w.model]), "deltas", "Sequential"),
    "subset from nothing": (
        lambda w: smidgen.Subset.from_file(w.folder / "nope.json"),
        "",
        "nope.json",
    ),
    "subset of unknown parts": (
        lambda w: smidgen.Subset({"w": (2, 2)}, {"v": Whole()}),
        "",
        "'v'",
    ),
    "subset of wrong entries": (
        lambda w: smidgen.Subset({"w": (2, 2)}, {"w": Entries(torch.tensor([9]))}),
        "",
        "9",
    ),
    "subset of wrong rows": (
        lambda w: smidgen.Subset(
            {"w": (2, 2)}, {"w": Block(torch.tensor([5]), torch.tensor([0]))}
        ),
        "",
        "5",
    ),
    "record from nothing": (lambda w: Record.load(w.folder / "nope.json"), "", "nope.json"),
    "report on a number": (
        lambda w: smidgen.compare(w.model, w.laplace, w.loader, **QUIET).report(3),
        "path",
        "int",
    ),
    # plan
    "plan a string": (lambda w: smidgen.plan("bert"), "model", "str"),
    "plan with percent 0": (lambda w: smidgen.plan(w.model, percent=0), "percent", "0"),
    "plan by an unknown method": (
        lambda w: smidgen.plan(w.model, method="hmc"),
        "method",
        "'hmc'",
    ),
    "plan by a list of methods": (
        lambda w: smidgen.plan(w.model, method=["swag"]),
        "method",
        "['swag']",
    ),
    "plan of no example": (lambda w: smidgen.plan(w.model, examples=0), "examples", "0"),
    "precision replaced": (lambda w: w.laplace.with_precision(-1.0), "precision", "-1.0"),
    "temperature replaced": (
        lambda w: replace(w.laplace, temperature=0.0),
        "temperature",
        "0.0",
    ),
}


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_one_clear_sentence(name, world):
    call, argument, value = CALLS[name]
    with pytest.raises(SmidgenError) as caught:
        call(world)
    message = str(caught.value)
    assert argument in message
    assert value in message
    assert "\n" not in message
    assert len(message) < 400
    # What is wrong, and then what to do.
    assert re.search(r"\w.*\. [A-Z].*\w\W*\.$", message), message


def test_there_are_enough_of_them():
    assert len(CALLS) >= 60
