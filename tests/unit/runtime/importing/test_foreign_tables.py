"""Tables of other libraries are recognised without importing those."""

from __future__ import annotations

import subprocess
import sys

import pytest

from smidgen.errors import ArgumentError
from smidgen.runtime.importing.foreign_tables import (
    name_table,
    read_foreign_columns,
    refuse_other_tables,
)

datasets = pytest.importorskip("datasets")
pandas = pytest.importorskip("pandas")

COLUMNS = {"text": ["a b", "c"], "label": [1, 0]}


def test_tables_are_named():
    assert name_table(datasets.Dataset.from_dict(COLUMNS)) == "Dataset"
    assert name_table(pandas.DataFrame(COLUMNS)) == "DataFrame"
    for other in (COLUMNS, [COLUMNS], "file.csv", None, pandas.DataFrame(COLUMNS)["text"]):
        assert name_table(other) is None


def test_their_columns_are_plain_lists_whatever_the_format():
    dataset = datasets.Dataset.from_dict(COLUMNS)
    for table in (dataset, dataset.with_format("torch"), pandas.DataFrame(COLUMNS)):
        columns, _ = read_foreign_columns(table)
        assert columns == COLUMNS
        assert {type(value) for value in columns["label"]} == {int}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: datasets.DatasetDict(train=datasets.Dataset.from_dict(COLUMNS)),
            r"got a DatasetDict\. Pass one split, such as dataset\['train'\]",
        ),
        (
            lambda: datasets.Dataset.from_dict(COLUMNS).to_iterable_dataset(),
            r"got a IterableDataset\. Pass a DataLoader",
        ),
        (lambda: pandas.Series(["a"]), r"got a Series\. Pass its data frame"),
    ],
    ids=["DatasetDict", "IterableDataset", "Series"],
)
def test_what_is_not_one_table_is_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        refuse_other_tables("batches", make())


def test_nothing_is_imported_to_find_out():
    code = (
        "import sys; from smidgen.runtime.importing.foreign_tables import name_table; "
        "name_table([]); print({'datasets', 'pandas', 'torch'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "set()"
