"""Tables of numbers: which rows train, stop the training, calibrate and report."""

import numpy as np
import pytest
import torch

from smidgen.errors import ArgumentError
from smidgen_studies.data.uci import TableData, read_tables
from smidgen_studies.engine.cell import Job
from smidgen_studies.kinds.uci_map import Settings, run


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(100, 3))
    y = x[:, 0] + 0.3 * generator.normal(size=100)
    where = tmp_path / "made"
    where.mkdir()
    np.savetxt(where / "data.txt", np.column_stack([x, y]))
    for name, rows in {
        "features": range(3),
        "target": [3],
        "train_0": range(80),
        "test_0": range(80, 100),
    }.items():
        np.savetxt(where / f"index_{name}.txt", list(rows), fmt="%d")
    return tmp_path


def _job(root, **about):
    return Job(
        data=TableData("made", "made", **about),
        seed=0,
        settings=Settings(epochs=3),
        root=root,
        needs=(),
        artifact=root / "artifact",
        work=root / "work",
    )


def _rows(pair):
    return {tuple(row) for row in pair[0].tolist()}


def test_rows_that_stop_the_training_are_rows_of_their_own(folder):
    tables = read_tables(_job(folder, stopping=0.2))
    parts = [
        _rows(p) for p in (tables.train, tables.stopping, tables.validation, tables.test)
    ]
    assert [len(part) for part in parts] == [56, 16, 8, 20]
    assert len(set().union(*parts)) == 100
    assert torch.equal(tables.loader("stopping")[0][0], tables.stopping[0])


def test_without_them_those_that_calibrate_stop_it_as_in_earlier_records(folder):
    tables = read_tables(_job(folder))
    assert tables.stopping is None
    assert len(tables.train[0]) == 72
    assert torch.equal(tables.loader("stopping")[0][0], tables.validation[0])


def test_most_rows_must_train():
    with pytest.raises(ArgumentError, match=r"stopping of data 'made' must be at most 0.5"):
        TableData("made", "made", stopping=0.6)


def test_the_noise_of_the_point_estimate_is_fitted_on_rows_that_calibrate(folder):
    job = _job(folder, stopping=0.2)
    (method,) = run(job)["methods"]
    assert len(method["losses"]) == 20
    assert sum(method["losses"]) / 20 == pytest.approx(
        method["scores"]["nll"]["value"], rel=1e-3
    )
