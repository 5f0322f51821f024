"""`smidgen run` from end to end on tiny data of each kind, then `predict` and `evaluate`."""

import csv
import json
import random

import numpy as np
import pytest
import torch
from transformers import BertModel

from smidgen.cli.app import main
from smidgen.cli.run import command
from smidgen.decide import Rules
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.runtime.record import Record
from smidgen.workflows.predictor.answers import Answers
from smidgen.workflows.run import pipeline
from tests.support.tiny import bert_config, saved, saved_encoder

WORDS = "abcd"


def smidgen(*words):
    """Run a command; return its code."""
    with pytest.raises(SystemExit) as leaving:
        main([*map(str, words), "--quiet"])
    return leaving.value.code


def find_scores(record, *names):
    """The scores of each method, by its name."""
    return {
        method["name"]: {name: method["scores"][name]["value"] for name in names}
        for method in record.results["methods"]
    }


def find_shown(values):
    """The number and text of every row that a record shows."""
    if isinstance(values, dict) and {"row", "text"} <= values.keys():
        yield values["row"], values["text"]
    elif isinstance(values, dict | list):
        for each in values.values() if isinstance(values, dict) else values:
            yield from find_shown(each)


def write_rows(path, columns, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def read_rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Rows of a number, a category and gaps; the class follows from them."""
    draw = random.Random(0)
    rows = []
    for number in range(400):
        x, town = draw.gauss(0, 1), draw.choice(("Ulm", "Bonn"))
        score = x + (town == "Ulm") + draw.gauss(0, 0.3)
        cell = "" if number % 17 == 0 else f"{x:.4f}"
        rows.append([number, cell, town, "yes" if score > 0.5 else "no", f"{score:.4f}"])
    folder = tmp_path_factory.mktemp("table")
    return write_rows(folder / "rows.csv", ["row", "x", "town", "buys", "score"], rows)


RUN = ("--table", "--leave-out", "row")


def test_a_table_with_classes(table, tmp_path, capsys):
    out = tmp_path / "ready"
    words = ("run", table, "--label", "buys", *RUN, "--leave-out", "score", "--out", out)
    assert smidgen(*words, "--epochs", 20) == 0
    said = capsys.readouterr().out
    assert "400 rows of 2 columns in 2 classes (no, yes)" in " ".join(said.split())
    assert {path.name for path in out.iterdir()} == {
        *("model", "posterior", "task.json", "record.json", "report.html"),
        *("README.md", "run.json"),
    }
    record = Record.load(out / "record.json")
    assert find_scores(record, "accuracy")["map"]["accuracy"] > 0.8
    note = TaskNote.load(out)
    assert sum(map(len, note.split.rows.values())) == 400
    assert Rules.load(out / "posterior").sets is not None

    new = write_rows(
        tmp_path / "new.csv",
        ["town", "who", "x"],
        [["Ulm", "A, B", "3"], ["Bonn", "C", ""], ["Jena", "D", "-3"]],
    )
    answers, listed = tmp_path / "answers.csv", tmp_path / "answers.json"
    assert smidgen("predict", out, "--data", new, "--out", answers, "--json", listed) == 0
    rows = read_rows(answers)
    assert list(rows[0])[:5] == ["town", "who", "x", "answer", "confidence"]
    assert rows[0]["who"] == "A, B"
    assert [rows[0]["answer"], rows[2]["answer"]] == ["yes", "no"]
    assert "yes" in rows[0]["set"].split("|")
    assert rows[0]["strange"] in ("true", "false")
    first = json.loads(listed.read_text())["predictions"][0]
    assert first["probabilities"]["yes"] == pytest.approx(first["confidence"], abs=1e-5)

    capsys.readouterr()
    assert smidgen("predict", out, "--data", table, "--out", tmp_path / "a.xlsx") == 1
    assert "--out must end in .csv" in capsys.readouterr().err
    lacking = write_rows(tmp_path / "lacking.csv", ["towns"], [["Ulm"]])
    assert smidgen("predict", out, "--data", lacking) == 1
    assert "must have the column 'x', as in training" in capsys.readouterr().err
    capsys.readouterr()
    assert smidgen("evaluate", out, "--test", table, "--report", tmp_path / "p.html") == 0
    used = sum(len(rows) for part, rows in note.split.rows.items() if part != "test")
    told = f"{used} of these 400 rows trained this model or chose something for it"
    assert told in " ".join(capsys.readouterr().err.split())
    assert told in (tmp_path / "p.html").read_text()
    assert smidgen(*words, "--epochs", 20) == 0
    assert "done already" in capsys.readouterr().out


def test_a_table_with_a_number(table, tmp_path, capsys):
    out, answers = tmp_path / "ready", tmp_path / "answers.jsonl"
    words = ("--label", "score", *RUN, "--leave-out", "buys", "--epochs", 30)
    assert smidgen("run", table, *words, "--out", out) == 0
    assert "to predict the number 'score'" in " ".join(capsys.readouterr().out.split())
    assert smidgen("predict", out, "--data", table, "--out", answers) == 0
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    inside = [row["low"] <= float(row["score"]) <= row["high"] for row in rows]
    assert sum(inside) / len(inside) > 0.85
    errors = [row["answer"] - float(row["score"]) for row in rows if row["x"]]
    assert np.std(errors) < 0.5
    assert smidgen("evaluate", out, "--test", table) == 0


@pytest.fixture(scope="module")
def news(tmp_path_factory):
    """Pairs of short texts in two named classes, and an encoder of eight words."""
    folder = tmp_path_factory.mktemp("news")
    draw = random.Random(1)
    rows, seen = [], set()
    while len(rows) < 220:
        title = " ".join(draw.choices(WORDS, k=4))
        body = " ".join(draw.choices(WORDS, k=6))
        if (title, body) not in seen:
            seen.add((title, body))
            rows.append([title, body, "good" if title[0] in "ab" else "bad"])
    saved_encoder(folder / "encoder")
    return write_rows(folder / "news.csv", ["title", "body", "topic"], rows)


def text_words(news, out, *more):
    typed = ("--label", "topic", "--text", "title,body", "--max-length", 12)
    model = news.parent / "encoder"
    return ("run", news, *typed, "--model", model, "--epochs", 2, "--out", out, *more)


def test_texts(news, tmp_path, capsys):
    out, answers = tmp_path / "ready", tmp_path / "answers.tsv"
    assert smidgen(*text_words(news, out)) == 0
    note = TaskNote.load(out)
    assert note.columns == ("title", "body")
    assert note.classes == ("bad", "good")
    assert note.max_length == 12
    rows = read_rows(news)
    shown = list(find_shown(json.loads((out / "record.json").read_text())))
    assert shown
    for number, text in shown:
        assert text == " . ".join((rows[number]["title"], rows[number]["body"]))
    assert smidgen("predict", out, "--data", news, "--out", answers) == 0
    lines = answers.read_text().splitlines()
    assert lines[0].split("\t")[:4] == ["title", "body", "topic", "answer"]
    assert {line.split("\t")[3] for line in lines[1:]} <= {"bad", "good"}
    capsys.readouterr()
    for typed, message in (
        (("--max-length", 16), "--max-length must be what training saw, 12"),
        (("--text", "title"), "--text must be what training saw, 'title,body'"),
        (("--text-pair", "body"), "--text-pair must be what training saw, none"),
    ):
        assert smidgen("predict", out, "--data", news, *typed) == 1
        assert message in " ".join(capsys.readouterr().err.split())
    assert smidgen("predict", news.parent / "encoder", "--data", news) == 1
    assert "made by 'smidgen run'" in capsys.readouterr().err


def test_a_trained_model_is_taken_as_it_is(news, tmp_path, capsys):
    first, again = tmp_path / "first", tmp_path / "again"
    assert smidgen(*text_words(news, first)) == 0
    typed = ("--label", "topic", "--text", "title,body", "--trained", first / "model")
    assert smidgen("run", news, *typed, "--max-length", 12, "--out", again) == 0
    weights = "model.safetensors"
    assert (first / "model" / weights).read_bytes() == (
        again / "model" / weights
    ).read_bytes()
    other = write_rows(
        tmp_path / "other.csv", ["text", "y"], [["a b", "u"], ["b c", "v"]] * 20
    )
    typed = ("--label", "y", "--text", "text", "--trained", first / "model")
    capsys.readouterr()
    assert smidgen("run", other, *typed, "--out", tmp_path / "none") == 1


def test_a_trained_model_may_have_its_classes_in_another_order(news, tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    assert smidgen(*text_words(news, first)) == 0
    config = first / "model" / "config.json"
    values = json.loads(config.read_text())
    values |= {"id2label": {"0": "good", "1": "bad"}, "label2id": {"good": 0, "bad": 1}}
    config.write_text(json.dumps(values))
    typed = ("--label", "topic", "--text", "title,body", "--trained", first / "model")
    assert smidgen("run", news, *typed, "--max-length", 12, "--out", again) == 0
    assert TaskNote.load(again).classes == ("good", "bad")
    before, after = (
        find_scores(Record.load(out / "record.json"), "accuracy")["map"]["accuracy"]
        for out in (first, again)
    )
    # The model's names were turned, so that what was right is now wrong.
    assert after == pytest.approx(1 - before)


def test_rules_of_groups_are_made_from_a_row_of_each(tmp_path, capsys):
    draw = random.Random(1)
    rows = [[f"{draw.gauss(0, 1):.12f}", row // 4] for row in range(800)]
    rows = [[x, who, "yes" if float(x) > 0 else "no"] for x, who in rows]
    path = write_rows(tmp_path / "rows.csv", ["x", "who", "y"], rows)
    words = ("run", path, "--label", "y", "--table", "--group", "who", "--epochs", 3)
    assert smidgen(*words, "--out", tmp_path / "ready") == 0
    said = " ".join(capsys.readouterr().out.split())
    count = len(TaskNote.load(tmp_path / "ready").split.rows["decision"])
    assert f"rules from {count // 4} groups of {count} rows, a row of each" in said
    assert Rules.load(tmp_path / "ready" / "posterior").sets.rows == count // 4


def test_images_in_arrays(tmp_path):
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 300)
    images = draw.integers(0, 80, (300, 8, 8)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 3] += 120
    path, out = tmp_path / "images.npz", tmp_path / "ready"
    np.savez(path, images=images, labels=labels)
    assert smidgen("run", path, "--images", "--epochs", 4, "--out", out) == 0
    answers = tmp_path / "answers.csv"
    assert smidgen("predict", out, "--data", path, "--out", answers) == 0
    rows = read_rows(answers)
    assert (
        np.mean([int(row["answer"]) == y for row, y in zip(rows, labels, strict=True)])
        > 0.8
    )
    assert smidgen("evaluate", out, "--test", path) == 0


def test_images_with_a_number_each(tmp_path, capsys):
    draw = np.random.default_rng(0)
    labels = draw.uniform(0, 5, 300)
    images = draw.integers(0, 20, (300, 8, 8)) + 40 * labels[:, None, None]
    path, out = tmp_path / "images.npz", tmp_path / "ready"
    np.savez(path, images=images.astype(np.uint8), labels=labels)
    assert smidgen("run", path, "--images", "--epochs", 6, "--out", out) == 0
    assert "to predict a number" in " ".join(capsys.readouterr().out.split())
    note = TaskNote.load(out)
    assert (note.kind, note.classes, note.label) == ("images", None, "label")
    assert smidgen("predict", out, "--data", path, "--out", tmp_path / "a.csv") == 0
    rows = read_rows(tmp_path / "a.csv")
    errors = [float(r["answer"]) - y for r, y in zip(rows, labels, strict=True)]
    assert np.std(errors) < 0.5 * np.std(labels)
    inside = [
        float(r["low"]) <= y <= float(r["high"]) for r, y in zip(rows, labels, strict=True)
    ]
    assert np.mean(inside) > 0.85
    assert smidgen("evaluate", out, "--test", path) == 0
    capsys.readouterr()
    for words, option in (
        (("--label", "x"), "--label"),
        (("--batch-size", 4), "--batch-size"),
    ):
        assert smidgen("evaluate", out, "--test", path, *words) == 1
        shown = " ".join(capsys.readouterr().err.split())
        assert (
            f"{option} must be left out for a folder of 'smidgen run' with images" in shown
        )


class Killed(BaseException):
    """Ends a command as a signal would: nothing in it is told."""


def test_killed_at_every_step_it_ends_the_same(table, tmp_path, monkeypatch, capsys):
    words = ("run", table, "--label", "buys", *RUN, "--leave-out", "score", "--epochs", 5)
    assert smidgen(*words, "--out", tmp_path / "whole") == 0
    out = tmp_path / "killed"

    def end(*_, **__):
        raise Killed

    for step in ("train_model", "bayesify", "make_rules", "compare"):
        with monkeypatch.context() as patched:
            patched.setattr(pipeline, step, end)
            with pytest.raises(Killed):
                main([*map(str, (*words, "--out", out)), "--quiet"])
        assert not out.exists()
    # Another option is refused, plainly: what was begun could still be finished.
    capsys.readouterr()
    assert smidgen(*words, "--seed", 1, "--out", out) == 1
    assert "interrupted run with --seed 0, here it is 1" in capsys.readouterr().err
    assert smidgen(*words, "--out", out) == 0
    assert "trained already" in capsys.readouterr().out
    whole, again = (Record.load(tmp_path / n / "record.json") for n in ("whole", "killed"))
    assert find_scores(whole, "nll", "accuracy") == find_scores(again, "nll", "accuracy")
    rules = [Rules.load(tmp_path / n / "posterior") for n in ("whole", "killed")]
    assert rules[0] == rules[1]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--table", "--images"), "--images must be left out beside --table"),
        (("--regression", "--classes"), "--classes must be left out beside --regression"),
        (("--coverage", 1), "--coverage must be between 0 and 1, got 1"),
        (
            ("--label", "nothing", "--table"),
            "--label must be one of the columns of rows.csv",
        ),
        (("--table",), "--label must name the column to predict"),
        (("--images", "--label", "x"), "--label must be left out for images"),
        (("--label", "buys", "--split", "town"), "must say train, validation or test"),
        (("--model", "a", "--trained", "b"), "--trained must be left out beside --model"),
        (
            ("--label", "buys", "--table", "--trained", "b"),
            "--trained must be left out for a table, got 'b'. It is for texts",
        ),
        (
            ("--label", "buys", "--table", "--max-length", 9),
            "--max-length must be left out for a table, got 9",
        ),
        (
            ("--label", "score", *RUN, "--max-error", 0.1),
            "--max-error must be left out for numbers, which are never quite right, got 0.1",
        ),
        (("--images",), "--images reads an IDX file, an .npz or a folder of pictures"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(words, message, table, tmp_path, capsys):
    assert smidgen("run", table, *words, "--out", tmp_path / "none") == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "none").exists()


def test_the_unit_of_numbers_is_named_where_it_is_not_the_label(tmp_path, capsys):
    draw = random.Random(2)
    rows = [
        [f"{x:.9f}", f"{5e4 + 9000 * x + draw.gauss(0, 500):.1f}"]
        for x in (draw.gauss(0, 1) for _ in range(200))
    ]
    path = write_rows(tmp_path / "rows.csv", ["x", "price"], rows)
    out = tmp_path / "ready"
    words = ("run", path, "--label", "price", "--table", "--epochs", 5, "--out", out)
    assert smidgen(*words) == 0
    unit = TaskNote.load(out).unit
    assert unit == "(price - 0) / 1000"
    said = " ".join(capsys.readouterr().out.split())
    assert f"numbers of rules are of {unit}" in said
    assert f"Numbers above are of `{unit}`" in (out / "README.md").read_text()


def test_probabilities_are_listed_only_if_they_are_asked_for(table, tmp_path, monkeypatch):
    out = tmp_path / "ready"
    words = ("run", table, "--label", "buys", *RUN, "--leave-out", "score", "--out", out)
    assert smidgen(*words, "--epochs", 2) == 0
    listed = []
    list_all = Answers.to_dicts
    monkeypatch.setattr(Answers, "to_dicts", lambda a: listed.append(1) or list_all(a))
    assert smidgen("predict", out, "--data", table, "--out", tmp_path / "a.csv") == 0
    assert not listed
    assert smidgen("predict", out, "--data", table, "--json", tmp_path / "a.json") == 0
    entries = json.loads((tmp_path / "a.json").read_text())["predictions"]
    assert sum(entries[0]["probabilities"].values()) == pytest.approx(1)


def test_columns_are_separated_by_commas():
    assert command.split_columns("title, text") == ("title", "text")
    assert command.split_columns(None) == ()


@pytest.mark.parametrize("typed", [(), ("--max-length", 9)])
def test_a_model_with_few_positions(news, tmp_path, capsys, typed):
    config = bert_config()
    config.max_position_embeddings = 8
    with torch.random.fork_rng(devices=[]):
        saved(tmp_path / "short", BertModel(config))
    words = ("--label", "topic", "--text", "title,body", "--model", tmp_path / "short")
    out = tmp_path / "ready"
    code = smidgen("run", news, *words, "--epochs", 1, "--out", out, *typed)
    told = capsys.readouterr()
    if typed:
        assert code == 1
        error = " ".join(told.err.split())
        assert "--max-length must be at most 8, as many tokens as the model reads" in error
        assert "got 9." in error
    else:
        assert code == 0, told.err
        said = " ".join(told.out.split())
        assert "texts are cut to 8 tokens, the most that this model reads" in said
        assert TaskNote.load(out).max_length == 8
        assert smidgen("predict", out, "--data", news) == 0
