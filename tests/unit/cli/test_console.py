"""The table of scores fits a terminal, and no heading is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.decision_record import make_decided

from smidgen.cli import console


@pytest.mark.parametrize("width", [80, 100])
def test_no_heading_is_cut(monkeypatch, width):
    record = make_decided()
    methods = [
        {**m, "label": "Last layer | isotropic body"} for m in record.results["methods"]
    ]
    record = replace(record, results={**record.results, "methods": methods})
    monkeypatch.setattr(console, "out", console.Terminal())
    monkeypatch.setattr(console.Terminal, "is_terminal", True)
    monkeypatch.setattr(console.out, "width", width)
    with console.out.capture() as captured:
        console.show_record(record)
    table = captured.get().split("\n\n")[0]
    assert "…" not in table
    for word in ("automated", "accuracy", "stored", "forward"):
        assert word in table
    assert max(map(len, captured.get().splitlines())) <= width
