"""What the README says is what the records say, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from docs.build.code_blocks import read_code, run_code
from docs.build.committed import list_committed, read_records, read_table
from docs.build.pages import write_page
from docs.build.pictures import FOLDER, PICTURES
from docs.build.readme import PAGES, README, written
from docs.build.screenshot import pictured_digest, record_digest

import smidgen
from smidgen.report.many_records.aggregate import gather

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_records(page):
    text = page.read_text(encoding="utf-8")
    assert written(text) == text


@pytest.mark.parametrize("study", list_committed())
def test_every_study_with_records_has_a_page(study, tmp_path):
    write_page(study, tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_code_comes_early():
    lines = README.read_text(encoding="utf-8").splitlines()
    assert "```python" in lines[:35]


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
def test_the_first_code_block_runs(tmp_path, monkeypatch):
    """As it stands, after the block that makes the names it uses."""
    monkeypatch.chdir(tmp_path)
    first, _, makes_names, *_ = (b for b in read_code(README) if b.language == "python")
    names: dict[str, Any] = {}
    assert len(list(run_code([makes_names, first], names))) == 2
    logits, targets = smidgen.point_outputs(names["model"], names["val_loader"])
    assert (logits.argmax(1) == targets).double().mean() > 0.7
    assert names["predictive"].probs.shape == (50, 2)
    assert names["predictive"].entropy.shape == (50,)
    assert names["predictive"].logit_covariance.shape == (50, 2, 2)
    assert (tmp_path / "my-posterior" / "config.json").is_file()


@pytest.mark.parametrize("study", list_committed())
def test_records_alone_say_whether_their_splits_overlap(study):
    """So `smidgen report` of a folder says what the study's page says."""
    assert gather(read_records(study)).test_to_train == read_table(study).test_to_train


def test_links_lead_somewhere():
    pages = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_those_of_the_records(name):
    assert (FOLDER / name).read_text(encoding="utf-8") == PICTURES[name]()


def test_the_picture_of_the_page_is_of_the_committed_record():
    assert pictured_digest() == record_digest(), "run python -m docs.build.screenshot"
