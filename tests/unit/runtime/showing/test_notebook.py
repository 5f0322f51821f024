"""A bar in a notebook is one output of its cell, drawn anew; nowhere else is IPython asked.

IPython is no dependency: where it is installed, a real kernel runs the same work.
"""

from __future__ import annotations

import sys
import textwrap
from types import ModuleType, SimpleNamespace

import pytest

from smidgen.runtime import progress
from smidgen.runtime.showing.notebook import NotebookLine, find_kernel_display

WORK = """
import time
from smidgen.runtime.progress import track
for _ in track(range(30), "fitting <b>"):
    time.sleep(0.1)
print("done")
"""


class Cell:
    """Outputs of a cell as a browser has them: `update` replaces."""

    def __init__(self):
        self.outputs, self.messages = [], 0

    def display(self, shown, *, raw, display_id):
        assert raw
        assert display_id
        self.outputs.append(shown)
        self.messages += 1
        place = len(self.outputs) - 1

        def update(other, *, raw):
            assert raw
            self.outputs[place] = other
            self.messages += 1

        return SimpleNamespace(update=update)


def put_ipython(monkeypatch, shell):
    """What a process with IPython loaded has; it is not imported for this."""
    cell = Cell()
    ipython, shown = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython, shown.display = lambda: shell, cell.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return cell


@pytest.fixture
def ticking(monkeypatch):
    """A clock that ticks a tenth of a second at each look."""
    monkeypatch.delenv(progress.SWITCH, raising=False)
    ticks = iter(range(10_000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(ticks) / 10)


def test_a_bar_is_one_output_that_is_empty_at_the_end(monkeypatch, ticking, capsys):
    cell = put_ipython(monkeypatch, SimpleNamespace(kernel=object()))
    seen = []
    for count in progress.track(range(100), "fitting <b>"):
        if cell.outputs and count == 50:
            seen.append(dict(cell.outputs[0]))
    assert len(cell.outputs) == 1
    assert cell.outputs[0] == {"text/plain": "", "text/html": ""}
    # 10 seconds, the first of them without a bar, two messages a second at most.
    assert 5 < cell.messages < 20
    assert "/100" in seen[0]["text/plain"]
    assert "━" in seen[0]["text/plain"]
    assert "fitting &lt;b&gt;" in seen[0]["text/html"]
    assert capsys.readouterr().err == ""


def test_quick_work_shows_nothing(monkeypatch, ticking):
    cell = put_ipython(monkeypatch, SimpleNamespace(kernel=object()))
    list(progress.track(range(9), "fitting"))
    assert cell.outputs == []


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_it_is_silent_in_a_notebook_too(monkeypatch, ticking, how):
    cell = put_ipython(monkeypatch, SimpleNamespace(kernel=object()))
    if how == "environment":
        monkeypatch.setenv(progress.SWITCH, "0")
    list(progress.track(range(100), "fitting", show=how != "argument"))
    assert cell.outputs == []


@pytest.mark.parametrize("shell", [None, SimpleNamespace()])
def test_ipython_in_a_terminal_or_merely_imported_is_no_notebook(monkeypatch, shell):
    put_ipython(monkeypatch, shell)
    assert find_kernel_display() is None


def test_ipython_is_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert find_kernel_display() is None
    assert "IPython" not in sys.modules


def test_a_line_is_made_when_it_is_first_shown():
    cell = Cell()
    line = NotebookLine(cell.display)
    assert cell.outputs == []
    line.show("one")
    line.show("two")
    assert [shown["text/plain"] for shown in cell.outputs] == ["two"]


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.filterwarnings("ignore")
def test_in_a_real_kernel(tmp_path, monkeypatch, switch):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat.v4")
    monkeypatch.setenv(progress.SWITCH, switch)
    cells = [nbformat.new_code_cell(textwrap.dedent(WORK))]
    book = nbformat.new_notebook(cells=cells)
    nbclient.NotebookClient(book, timeout=120).execute(cwd=str(tmp_path))
    kinds = [output.output_type for output in book.cells[0].outputs]
    if switch == "0":
        assert kinds == ["stream"]
    else:
        assert kinds == ["display_data", "stream"]
        assert book.cells[0].outputs[0].data["text/plain"] == ""
    assert book.cells[0].outputs[-1].text == "done\n"
