"""Tables from odd files: quotes, gaps, byte order marks, arrays."""

import numpy as np
import pytest

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.reading.tables import (
    FeatureTable,
    find_identifiers,
    find_row_numbers,
    make_feature_table,
    read_table_columns,
    refuse_stray_texts,
)


def write(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return path


def test_cells_are_numbers_texts_or_nothing(tmp_path):
    path = write(
        tmp_path / "odd.csv",
        'age,town,y\r\n" 41 ","Ulm, ""Alt""",a\r\nNA,?,b\r\n1e3, Bonn ,a\r\n',
        "utf-8-sig",
    )
    columns = read_table_columns(path, {"label": "y"})
    table = make_feature_table(columns, ["age", "town"], path)
    assert table.cells == {
        "age": (41.0, None, 1000.0),
        "town": ('Ulm, "Alt"', None, "Bonn"),
    }
    assert len(table) == 3


def test_json_lines_keep_their_types(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"x": 1, "b": true}\n{"x": null, "b": false}\n')
    table = make_feature_table(read_table_columns(path, {}), ["x", "b"], path)
    assert table.cells == {"x": (1.0, None), "b": ("true", "false")}


def test_arrays_are_numbered_columns(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([[1.0, 2.0], [3.0, 4.0]]), y=np.array([0, 1]))
    columns = read_table_columns(path, {"label": "y", "text": (), "group": None})
    assert columns == {"0": [1.0, 3.0], "1": [2.0, 4.0], "y": [0, 1]}
    with pytest.raises(ArgumentError, match="label must be one of the columns"):
        read_table_columns(path, {"label": "z"})
    np.savez(path, x=np.zeros((2, 3, 3)))
    with pytest.raises(DataError, match="--images"):
        read_table_columns(path, {})


def test_a_missing_column_is_named_with_its_likeness(tmp_path):
    with pytest.raises(DataError, match=r"column 'town'.*Rename 'towns' to 'town'"):
        make_feature_table({"towns": ["x"]}, ["town"], tmp_path / "new.csv")


def test_a_few_texts_among_numbers_are_a_mistake(tmp_path):
    cells = (*map(float, range(30)), "x31")
    table = FeatureTable({"age": cells})
    with pytest.raises(DataError, match="'x31' in row 31 of"):
        refuse_stray_texts(table, tmp_path)
    refuse_stray_texts(FeatureTable({"age": ("a", "b", 1.0)}), tmp_path)


def test_identifiers_are_texts_that_differ_in_every_row():
    table = FeatureTable(
        {
            "id": tuple(f"row {i}" for i in range(60)),
            "x": tuple(map(float, range(60))),
            "town": ("Ulm", "Bonn") * 30,
        }
    )
    assert find_identifiers(table) == ["id"]


def test_take_and_keys():
    table = FeatureTable(
        {"x": (1.0, 2.0, 1.0), "t": ("a", "b", "a")}, (0, 1, 1), ("n", "p")
    )
    assert table.keys()[0] == table.keys()[2] != table.keys()[1]
    taken = table.take([2, 1])
    assert taken.cells == {"x": (1.0, 2.0), "t": ("a", "b")}
    assert taken.labels == (1, 1)


def test_values_that_are_no_cells_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"\[1\] in row 1"):
        make_feature_table({"x": [[1]]}, ["x"], tmp_path)


def test_columns_that_count_rows():
    shuffled = tuple(float(row * 7 % 30 + 5) for row in range(30))
    gaps = tuple(float(row * 2) for row in range(30))
    cells = {"id": shuffled, "": gaps, "evens": gaps, "half": tuple(x / 2 for x in gaps)}
    cells["parts"] = tuple(x + 0.5 for x in shuffled)
    assert find_row_numbers(FeatureTable(cells)) == ["id", "", "half"]
    few = FeatureTable({"x": (0.0, 1.0, 2.0)})
    assert find_row_numbers(few) == []
