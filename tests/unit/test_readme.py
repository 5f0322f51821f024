"""What the README says is what the records say, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from studies.committed import across_of, records_of
from studies.pages import RESULTS, committed, write
from studies.pictures import FOLDER, PICTURES
from studies.readme import PAGES, README, written
from studies.screenshot import pictured_digest, record_digest
from torch import nn

from smidgen.report.across import gather

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_records(page):
    text = page.read_text(encoding="utf-8")
    assert written(text) == text


@pytest.mark.parametrize("study", committed())
def test_committed_pages_are_those_of_the_records(study, tmp_path):
    write(study, tmp_path / "page.html")
    page = RESULTS / study / "report.html"
    assert page.read_bytes() == (tmp_path / "page.html").read_bytes()


def test_code_comes_early():
    lines = README.read_text(encoding="utf-8").splitlines()
    assert "```python" in lines[:35]


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
def test_the_first_code_block_runs(tmp_path, monkeypatch):
    """As it stands, on a small network and loaders by the names it uses."""
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[
        1
    ]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, generator=generator)
    y = (x[:, 0] + torch.randn(64, generator=generator) > 0).long()
    loader = [(x[:32], y[:32]), (x[32:], y[32:])]
    names = {
        "model": nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
        "train_loader": loader,
        "val_loader": loader,
        "batch": loader[0],
    }
    exec(code, names)
    assert names["predictive"].probs.shape == (32, 2)
    assert names["predictive"].entropy.shape == (32,)
    assert names["predictive"].logit_covariance.shape == (32, 2, 2)
    assert (tmp_path / "my-posterior" / "config.json").is_file()


@pytest.mark.parametrize("study", committed())
def test_records_alone_say_whether_their_splits_overlap(study):
    """So `smidgen report` of a folder says what the study's page says."""
    assert gather(records_of(study)).test_to_train == across_of(study).test_to_train


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
    assert pictured_digest() == record_digest(), "run python -m studies.screenshot"
