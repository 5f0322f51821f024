"""The code of the page on decisions runs, block after block, and does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from docs.build.code_blocks import read_code, run_code

PAGE = Path(__file__).parents[2] / "docs" / "decisions.md"


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
def test_its_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        printed = "".join(run_code(read_code(PAGE), names))
    assert (tmp_path / "my-posterior" / "rules.json").is_file()
    assert "at most 10 % of the answers are wrong, with 90 % confidence" in printed
    assert names["answered"].shape == names["unlike"].shape == (400,)
    assert names["members"].shape == (400, 2)
    # What was promised, on rows that made no rule: these are few, so with room for chance.
    right = names["right"][names["answered"]]
    assert len(right) > 100
    assert right.mean() > 0.85
    assert names["rule"].auroc > 0.5
    assert len(names["rows"]) == 20
