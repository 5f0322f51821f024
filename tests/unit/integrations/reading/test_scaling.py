"""How cells become numbers: by training rows alone, with a place for what they lack."""

import json

import pytest
import torch

from smidgen.errors import DataError, SmidgenError
from smidgen.integrations.reading.scaling import Scaling, measure_scaling

CELLS = {"age": (1.0, 3.0, None, 5.0), "town": ("Ulm", "Bonn", "Ulm", None)}


def test_numbers_are_standardised_and_gaps_are_marked():
    encoded = measure_scaling(CELLS).encode(CELLS)
    spread = (8 / 3) ** 0.5
    numbers = torch.tensor([-2.0, 0.0, 0.0, 2.0]) / spread
    torch.testing.assert_close(encoded[:, 0], numbers)
    assert encoded[:, 1].tolist() == [0, 0, 1, 0]


def test_categories_have_a_place_each_and_one_for_others():
    scaling = measure_scaling(CELLS)
    new = {"age": (3.0, 3.0), "town": ("Bonn", "Jena")}
    assert scaling.encode(new)[:, 2:].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert scaling.width == 5


def test_a_column_without_gaps_has_no_mark_and_new_gaps_are_the_median():
    scaling = measure_scaling({"x": (0.0, 1.0, 10.0)})
    assert scaling.width == 1
    filled, middle = scaling.encode({"x": (None, 1.0)})
    assert filled == middle


def test_a_constant_column_is_zero():
    assert measure_scaling({"x": (4.0, 4.0)}).encode({"x": (4.0,)}).tolist() == [[0.0]]


def test_numbers_among_texts_are_categories():
    scaling = measure_scaling({"x": (1.0, "b", 1.0)})
    assert scaling.columns[0].values == ("1", "b")


def test_it_goes_through_json():
    scaling = measure_scaling(CELLS)
    assert Scaling.from_json(json.loads(json.dumps(scaling.to_json()))) == scaling


def test_only_the_commonest_categories_are_kept():
    cells = tuple(f"v{i:03}" for i in range(150)) * 1 + ("v149",)
    values = measure_scaling({"x": cells}).columns[0].values
    assert len(values) == 100
    assert "v149" in values


def test_a_text_among_numbers_is_named():
    scaling = measure_scaling({"age": (1.0, 2.0)})
    with pytest.raises(DataError, match="'age' must be numbers.*'old' in row 2"):
        scaling.encode({"age": (1.0, "old")})


def test_columns_without_values_are_left_out():
    assert measure_scaling({"x": (None, None), "y": (1.0, 2.0)}).names == ("y",)
    with pytest.raises(DataError, match="a column besides the label"):
        measure_scaling({"x": (None,)})


def test_damaged_json_is_refused():
    with pytest.raises(SmidgenError):
        Scaling.from_json({"name": "x"})
