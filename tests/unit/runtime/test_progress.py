"""The bar: late, silent when asked, gone afterwards; in a log a line a minute."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import smidgen
from smidgen import fit
from smidgen.errors import DataError
from smidgen.runtime import progress
from tests.support.settings import grouped


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def heard(monkeypatch):
    """No test before these may have silenced the bars."""
    monkeypatch.delenv(progress.SWITCH, raising=False)


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, and a clock that ticks a second at each look."""
    found = Terminal()
    # Not sys.stderr itself: pytest puts its own there between set-up and test.
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=found))
    ticks = iter(range(1000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(ticks)))
    return found


def test_it_counts_and_cleans_up(terminal):
    assert list(progress.track([1, 2, 3, 4], "fitting")) == [1, 2, 3, 4]
    shown = terminal.getvalue()
    assert "4/4" in shown
    assert shown.endswith("\r\x1b[2K")


def test_without_a_length_it_counts_only(terminal):
    assert list(progress.track(iter("abc"), "reading")) == ["a", "b", "c"]
    assert "reading: 3 done" in terminal.getvalue()


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(torch.eye(4), torch.arange(4) % 2, strict=True)


def test_a_stream_has_no_length(terminal):
    """A torch loader over one has `__len__`, and it raises."""
    model = nn.Linear(4, 2)
    subset = smidgen.select.last_layer(model)
    posterior = fit.laplace(model, DataLoader(Stream(), 2), subset)
    assert posterior.num_data == 4
    assert "fitting: 2 done" in terminal.getvalue()
    for training in (
        lambda train: fit.finetune(model, train, validation=train),
        lambda train: fit.finetune(model, train, subset),
        lambda train: fit.ssvi(model, train, settings=fit.SsviSettings(num_data=4)),
    ):
        with pytest.raises(DataError, match="a length of 1 or more batches, got none"):
            training(DataLoader(Stream(), 2))


def test_it_is_cleaned_up_after_an_exception(terminal):
    def broken():
        yield from range(3)
        raise ValueError("the loader broke")

    with pytest.raises(ValueError, match="broke"):
        list(progress.track(broken(), "fitting"))
    assert terminal.getvalue().endswith("\r\x1b[2K")


@pytest.mark.parametrize("how", ["argument", "environment", "pipe", "quick"])
def test_it_is_silent(terminal, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv(progress.SWITCH, "0")
    if how == "pipe":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    if how == "quick":
        monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)
    assert list(progress.track(range(5), "fitting", show=how != "argument")) == list(
        range(5)
    )
    assert terminal.getvalue() == ""


def test_a_log_gets_a_line_a_minute(terminal, monkeypatch):
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    # The clock ticks a second an item.
    assert list(progress.track(range(150), "fitting")) == list(range(150))
    lines = terminal.getvalue().splitlines()
    assert lines == ["fitting: 61/150, 89 s left", "fitting: 122/150, 28 s left"]


def test_the_bar_of_a_chain_draws_its_scales(terminal):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 30, generator=generator)
    problem = smidgen.Problem(nn.Linear(30, 1, bias=False), smidgen.Gaussian(1, noise=1.0))
    batches = [(x, torch.randn(64, 1, generator=generator))]
    told = {"steps": 12, "burn_in": 4, "thin": 4, "head": "none", "num_data": 64}
    scales = fit.langevin(problem, batches, **grouped(fit.LangevinSettings, **told))
    drawn = re.findall(r"λ 1e-12▕(.{12})▏1", terminal.getvalue())
    assert drawn
    # The chain's last sample is not kept apart, but all samples are of the same powers.
    powers = scales.means["weight"].log10().floor().flatten()
    (common,) = powers.mode().values[None].int().tolist()
    assert drawn[-1][12 + common] == "█"
