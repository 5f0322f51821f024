"""Tables of decisions: what is bold, and names with a bar."""

from __future__ import annotations

from docs.build.decision_tables import _write_gaps
from docs.build.measured import make_rows

from smidgen.report.many_records.aggregate import average_seeds


def test_a_bar_in_a_name_stays_in_its_cell():
    rows = make_rows(["a", "b"], [["Last layer | body", r"mean \|Δ\|"]])
    assert rows == ["| a | b |", "|---|---|", r"| Last layer \| body | mean \|Δ\| |"]


def test_bold_is_what_is_left_after_correction():
    clear = average_seeds([0.02, 0.05, 0.03, 0.04, 0.08])
    assert clear.chance is not None
    assert 0.01 < clear.chance < 0.05
    equal = average_seeds([0.0, 0.0, 0.0])
    assert _write_gaps({"a": clear})["a"].startswith("**")
    among = {"a": clear, **dict.fromkeys("bcdef", average_seeds([-0.1, 0.1, 0.05]))}
    assert not any("**" in text for text in _write_gaps(among).values())
    assert "**" not in _write_gaps({"a": equal})["a"]
