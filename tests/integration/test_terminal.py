"""What data hold never steers the terminal, and odd file names work or are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from rich.table import Table
from rich.text import Text
from transformers import BertForSequenceClassification

import smidgen
from smidgen.cli import main
from smidgen.cli.console import Steps, Terminal, clean, note, out, refuse
from tests.support.tiny import bert_config, saved

# Colour, clearing the screen, a title, C1's CSI, a bell, bidi, line ends, DEL, and markup.
HOSTILE = (
    "\x1b[31mred\x1b[2J\x1b]0;t\x07\x9b1m\u202eabc\u2066\u2028\x85\x7f\r[/] [bold]:warning:"
)


def forbidden(text):
    return [
        letter
        for letter in text
        if (ord(letter) < 32 and letter != "\n")
        or 127 <= ord(letter) < 160
        or letter in "\u202e\u2066\u2028"
    ]


def test_a_table_is_whole_where_the_output_is_a_file(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    table = Table("a name that is long", "another that is just as long", "and a third one")
    table.add_row("x" * 60, "y" * 70, "z")
    out = Terminal()  # of this width; the shared one may have been made for another
    out.show(table)
    lines = capsys.readouterr().out.splitlines()
    assert any("x" * 60 in line and "y" * 70 in line and "z" in line for line in lines)
    out.print("word " * 20)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 30
    # On a terminal it fits.
    narrow = Terminal()
    monkeypatch.setattr(Terminal, "is_terminal", True)
    narrow.show(table)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 30


@pytest.mark.parametrize("show", [note, refuse, Steps(), out.print])
def test_everything_printed_is_clean(show, capsys):
    show(HOSTILE)
    printed = "".join(capsys.readouterr())
    assert not forbidden(printed)
    # As it is otherwise: brackets are no markup and colons no emoji.
    assert r"\x1b[31mred" in printed
    assert "[/] [bold]:warning:" in printed.replace("\n", "")


def test_a_message_is_one_line(capsys):
    refuse("first\nsmidgen: all is well")
    assert capsys.readouterr().err.count("\n") == 1


def test_cells_of_tables_are_clean(capsys):
    table = Table()
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    Terminal().print(table)
    assert not forbidden(capsys.readouterr().out)


def test_letters_of_all_languages_stay():
    text = "naïve\tдоброе 日本 नमस्ते 👩‍👩‍👧 −½\n"
    assert clean(text) == text


@pytest.fixture(scope="module")
def hostile_world(tmp_path_factory):
    """A model whose classes have hostile names, data of such texts, and a posterior."""
    root = tmp_path_factory.mktemp("hostile") / "a [/] b"
    root.mkdir(parents=True)
    names = {0: f"bad{HOSTILE}", 1: "[/]good"}
    config = bert_config(
        num_labels=2, id2label=names, label2id={v: k for k, v in names.items()}
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        saved(root / "model", BertForSequenceClassification(config))
    rows = [{"text": f"a b {HOSTILE} {'c' * (i % 3)}", "label": i % 2} for i in range(24)]
    (root / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


def run(capsys, *words):
    with pytest.raises(SystemExit) as leaving:
        main(["--quiet", *map(str, words)])
    printed = capsys.readouterr()
    return leaving.value.code, printed.out, printed.err


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
@pytest.mark.parametrize(
    "name", ["[/]", "-dash", "a b", "two\nlines", "\x1b[31mred", "né日本"]
)
def test_hostile_names_and_texts_through_every_step(name, hostile_world, capsys, tmp_path):
    folder, data = hostile_world / "model", hostile_world / "data.jsonl"
    posterior, answers = tmp_path / name / "posterior", tmp_path / f"{name}.json"
    page = tmp_path / f"{name}.html"
    code, printed, errors = run(
        capsys,
        "fit",
        folder,
        "--train",
        data,
        "--val",
        data,
        "--percent",
        50,
        "--out",
        posterior,
    )
    assert code == 0, errors
    assert not forbidden(printed + errors)
    code, printed, errors = run(
        capsys, "predict", folder, posterior, "--data", data, "--json", answers
    )
    assert code == 0, errors
    assert not forbidden(printed + errors)
    # Files have everything as it is.
    rows = json.loads(answers.read_text())["predictions"]
    assert rows[0]["text"].startswith(f"a b {HOSTILE[:20]}")
    assert {row["label"] for row in rows} <= {f"bad{HOSTILE}", "[/]good"}
    code, printed, errors = run(
        capsys,
        "evaluate",
        folder,
        posterior,
        "--test",
        data,
        "--report",
        page,
        "--name",
        f"<b>{name}",
    )
    assert code == 0, errors
    assert not forbidden(printed + errors)
    assert "<b>" + name not in page.read_text()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no such names")
def test_names_that_are_not_utf8_are_refused_in_a_sentence(tmp_path):
    word = os.fsencode(tmp_path) + b"/\xff\xfe"
    script = "import sys; from smidgen.cli import main; main(sys.argv[1:])"
    for words in ([b"report", word], [b"plan", b"model", b"--json", word]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.startswith("smidgen: names and values must be UTF-8, got ")
        assert done.stderr.endswith("Rename the file or folder.\n")
        assert done.stderr.count("\n") == 1


def test_python_saves_and_loads_under_odd_names(tmp_path):
    model = torch.nn.Linear(3, 2)
    batch = (torch.randn(8, 3), torch.randint(2, (8,)))
    posterior = smidgen.fit.laplace(
        model, [batch], smidgen.select.last_layer(model), progress=False
    )
    for name in ("[/]", "-x", "a b", "two\nlines", "\x1b[0m", "né日本", "x" * 200):
        smidgen.save(posterior, tmp_path / name)
        loaded = smidgen.load(tmp_path / name, model)
        torch.testing.assert_close(
            smidgen.predict(loaded, model, batch).probs,
            smidgen.predict(posterior, model, batch).probs,
        )


def test_styles_are_kept_for_what_we_wrote(capsys):
    Terminal().print(Text("bold", "bold"))
    assert capsys.readouterr().out == "bold\n"
