import json
import os

import datasets
import pytest

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.text import TextTable, read_text


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def parquet(path, features=None, **columns):
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(path))
    if not bars:
        datasets.enable_progress_bars()
    return path


def test_quotes_in_tab_separated_text_are_literal(write):
    path = write("a.tsv", 'sentence\tlabel\nhe said " no\t0\n"quoted" \t1\n')
    table = read_text(path, text="sentence")
    assert table == TextTable(('he said " no', '"quoted" '), labels=(0, 1))
    assert len(table) == 2


def test_quotes_in_comma_separated_text_are_syntax(write):
    path = write("a.csv", 'text,label\n"a, ""b""\nc",1\nNA,0\n')
    assert read_text(path).texts == ('a, "b"\nc', "NA")


def test_text_that_looks_like_a_number_stays_as_it_is(write):
    path = write("a.tsv", "text\tlabel\n007\t1\n1.50\t0\n")
    assert read_text(path).texts == ("007", "1.50")


def test_a_file_without_a_header_line(write):
    path = write("a.tsv", "gj04\t1\t\tA b.\ngj04\t0\t*\tB a.")
    assert read_text(path, text=3, label=1) == TextTable(("A b.", "B a."), labels=(1, 0))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "text,label\na,1\n"), ("a.jsonl", '{"text": "a", "label": 1}')],
)
def test_a_byte_order_mark_is_no_text(write, name, content):
    assert read_text(write(name, "\ufeff" + content)).texts == ("a",)


def test_pairs_with_named_classes(write):
    path = write(
        "a.tsv",
        "index\ts1\ts2\tlabel\n0\ta\tb\tnot_entailment\n1\tc\td\tentailment\n",
    )
    table = read_text(path, text="s1", text_pair="s2")
    assert table.pairs == ("b", "d")
    assert table.labels == (1, 0)
    assert table.label_names == ("entailment", "not_entailment")
    turned = ("not_entailment", "entailment")
    table = read_text(path, text="s1", text_pair="s2", label_names=turned)
    assert table.labels == (0, 1)
    assert table.label_names == turned


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        (["1", " 0"], (1, 0)),
        (["5.000", "3.8"], (5.0, 3.8)),
        (["1", "0.5"], (1.0, 0.5)),
        (["-1.0", "2e0"], (-1.0, 2.0)),
    ],
)
def test_numbers_keep_their_kind(write, written, labels):
    path = write("a.tsv", "text\tlabel\na\t{}\nb\t{}\n".format(*written))
    found = read_text(path).labels
    assert found == labels
    assert [type(label) for label in found] == [type(label) for label in labels]


def test_names_that_are_numbers_are_names(write):
    path = write("a.tsv", "text\tlabel\na\t02\nb\t01\n")
    assert read_text(path, label_names=("01", "02")).labels == (1, 0)
    path = write("b.tsv", "text\tlabel\na\t3\nb\t0\n")
    with pytest.raises(DataError, match="one of 1, 2, 3, got 0 in row 2"):
        read_text(path, label_names=("1", "2", "3"))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "array.json", "a[1]::b.jsonl"])
def test_json_lines_and_arrays(write, name):
    rows = [
        {"text": "a\u2028b", "label": True},
        {"text": "2020-01-01", "more": 1, "label": 0},
    ]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path = write(name, json.dumps(rows, indent=1) if "array" in name else lines)
    table = read_text(path)
    assert table == TextTable(("a\u2028b", "2020-01-01"), labels=(1, 0))
    assert type(table.labels[0]) is int


def test_parquet_keeps_the_numbers_of_its_classes(tmp_path, monkeypatch, capfd):
    classes = datasets.ClassLabel(names=["no", "also"])
    features = datasets.Features(text=datasets.Value("string"), label=classes)
    path = parquet(tmp_path / "a[1].parquet", features, text=["x", "y"], label=[1, 0])
    empty = tmp_path / "here"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", empty)
    bars, level = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    table = read_text(path)
    assert table == TextTable(("x", "y"), labels=(1, 0), label_names=("no", "also"))
    assert os.listdir(empty) == []
    assert capfd.readouterr() == ("", "")
    assert datasets.are_progress_bars_disabled() == bars
    assert datasets.logging.get_verbosity() == level


def test_parquet_floats_are_targets(tmp_path):
    path = parquet(tmp_path / "a.parquet", text=["x", "y"], label=[1.0, 0.0])
    assert all(type(label) is float for label in read_text(path).labels)


def test_a_damaged_parquet_file_is_refused_quietly(write, capfd):
    path = write("a.parquet", b"PAR1 no")
    with pytest.raises(DataError, match="must be a Parquet file with rows"):
        read_text(path)
    assert capfd.readouterr() == ("", "")


def test_texts_without_labels(write):
    path = write("a.tsv", "text\nhello\n")
    assert read_text(path, label=None).labels is None


def test_wrong_columns_are_named_with_the_right_ones(write):
    path = write("a.tsv", "sentence\tlabel\na\t1\n")
    with pytest.raises(ArgumentError, match=r"text must .*\(sentence, label\), got 'te"):
        read_text(path)
    with pytest.raises(ArgumentError, match=r"text_pair must .*\(sentence, label\)"):
        read_text(path, text="sentence", text_pair="b")
    with pytest.raises(ArgumentError, match=r"label must .*got 'gold'\. Name one, or"):
        read_text(path, text="sentence", label="gold")
    # A close name is no file without a header, and None is no word of the shell.
    with pytest.raises(ArgumentError, match=r"got 'labl'\. Did you mean 'label'\?$"):
        read_text(path, text="sentence", label="labl")
    with pytest.raises(ArgumentError, match="all column names, or all column numbers"):
        read_text(path, text=0)
    json_lines = write("a.jsonl", '{"a": 1}')
    with pytest.raises(ArgumentError, match="all column names, or all column numbers"):
        read_text(json_lines, text=0, label=1)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.json"])
def test_an_empty_file_is_refused(write, name):
    with pytest.raises(DataError, match="at least one row"):
        read_text(write(name, ""))


def test_a_header_alone_and_an_empty_array_are_refused(write, tmp_path):
    for path in (write("a.tsv", "text\tlabel\n"), write("a.json", "[]")):
        with pytest.raises(DataError, match="at least one row"):
            read_text(path)
    with pytest.raises(DataError, match="with rows"):
        read_text(parquet(tmp_path / "a.parquet", text=[], label=[]))


def test_the_file_must_exist_and_be_of_a_known_kind(write, tmp_path):
    with pytest.raises(ArgumentError, match="must be a file that exists"):
        read_text(tmp_path / "absent.tsv")
    with pytest.raises(ArgumentError, match="must be a file that exists"):
        read_text(tmp_path)
    with pytest.raises(ArgumentError, match=r"end in one of \.tsv.*got 'a\.xlsx'"):
        read_text(write("a.xlsx", "text"))


@pytest.mark.parametrize("line", ["b", "b\t0\t9"])
def test_a_line_of_another_width_is_refused(write, line):
    path = write("a.tsv", f"text\tlabel\na\t1\n\n{line}\n")
    with pytest.raises(DataError, match="line 4 of .* 2 fields"):
        read_text(path)


def test_every_row_wider_than_the_header_is_refused(write):
    with pytest.raises(DataError, match="line 2 of"):
        read_text(write("a.tsv", "text\tlabel\nx\ta\t1\ny\tb\t0\n"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["1", ""], "got none in row 2"),
        (["1", "good"], "got 1 in row 1 and 'good' in row 2"),
        (["good", "1"], "got 'good' in row 1 and 1 in row 2"),
        (["1.0", "NaN"], "got nan in row 2"),
        (["1.0", "1e999"], "got inf in row 2"),
        (["1", "-1"], "class number from 0, got -1 in row 2"),
    ],
)
def test_bad_labels_are_refused_with_their_row(write, labels, message):
    path = write("a.tsv", "text\tlabel\na\t{}\nb\t{}\n".format(*labels))
    with pytest.raises(DataError, match=message):
        read_text(path)


@pytest.mark.parametrize("value", ["null", "NaN", "[1]"])
def test_bad_json_labels_are_refused(write, value):
    rows = f'{{"text": "a", "label": 0}}\n{{"text": "b", "label": {value}}}'
    with pytest.raises(DataError, match="in row 2"):
        read_text(write("a.jsonl", rows))


def test_labels_outside_the_given_names_are_refused(write):
    path = write("a.tsv", "text\tlabel\na\tgood\nb\tfine\n")
    with pytest.raises(DataError, match="one of bad, good or a class number.*row 2"):
        read_text(path, label_names=("bad", "good"))
    with pytest.raises(ArgumentError, match="label_names must be different"):
        read_text(path, label_names=("good", "good"))
    path = write("b.tsv", "text\tlabel\na\t1\nb\t2\n")
    with pytest.raises(DataError, match="from 0 to 1, got 2 in row 2"):
        read_text(path, label_names=("bad", "good"))


@pytest.mark.parametrize("content", ["text\tlabel\n \t1\n", "text\tlabel\n\t1\n"])
def test_empty_texts_are_refused(write, content):
    with pytest.raises(DataError, match="text must be a text in every row.*row 1"):
        read_text(write("a.tsv", content))


def test_a_text_that_is_no_string_is_refused(write):
    with pytest.raises(DataError, match="got 5 in row 1"):
        read_text(write("a.jsonl", '{"text": 5, "label": 0}'))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": \n', "in line 2"),
        ("a.json", '[{"text": "a"},\n {"text": }]', "in line 2"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": ' + "[" * 100_000,
            r"in line 2 \(maximum recursion",
        ),
        ("a.jsonl", '{"text": ' + "9" * 5000 + "}", r"in line 1 \(Exceeds the limit"),
        ("a.jsonl", "5\n", "row 1 .* must be a JSON object"),
        ("a.csv", b"text,label\n\xe9,1\n", "must be UTF-8 text, got byte 0xe9"),
        ("a.csv", 'text,label\n"a,1\n', "cannot be read"),
        ("a.csv", "text,text\na,1\n", "different names, got text, text"),
    ],
)
def test_unreadable_files_are_refused(write, name, content, message):
    with pytest.raises(DataError, match=message):
        read_text(write(name, content))


def test_a_table_has_columns_of_one_length():
    with pytest.raises(DataError, match=r"labels must be as many as the texts \(1\)"):
        TextTable(("a",), labels=(0, 1))
    with pytest.raises(DataError, match="pairs must be as many"):
        TextTable(("a",), pairs=())


@pytest.mark.parametrize(
    ("labels", "absent"), [((1, 2, 3, 4, 5), 0), ((0, 1, 3), 2), ((7,), 0)]
)
def test_class_numbers_with_gaps_are_refused(labels, absent):
    table = TextTable(("a",) * len(labels), labels=labels)
    with pytest.raises(DataError, match="Number the classes from 0, or write names") as e:
        table.classes("--label of stars.tsv")
    said = "--label of stars.tsv must be class numbers from 0 without gaps, got none of "
    assert str(e.value).startswith(f"{said}class {absent} and some of {labels[0]}")


def test_decimals_are_no_classes():
    with pytest.raises(DataError, match=r"label of a.tsv must be classes, got .* 0\.2"):
        TextTable(("a", "b"), labels=(0.2, 1.7)).classes("label of a.tsv")


def test_classes_are_counted_by_numbers_or_names():
    assert TextTable(("a", "b", "c"), labels=(2, 0, 1)).classes("x") == 3
    named = TextTable(("a",), labels=(2,), label_names=("no", "maybe", "yes"))
    assert named.classes("x") == 3
    with pytest.raises(DataError, match="must be a class for each text"):
        TextTable(("a",)).classes("x")


def test_several_columns_are_one_text(tmp_path):
    path = tmp_path / "news.csv"
    path.write_text("title,body,label\nA,b c,1\nB,,0\n")
    table = read_text(path, text=["title", "body"])
    assert table.texts == ("A . b c", "B")
    with pytest.raises(ArgumentError, match="text must be one of .*got 'boby'"):
        read_text(path, text=["title", "boby"])


def test_a_row_is_the_same_as_another_by_its_text_or_its_pair():
    texts, pairs = ("One  text", "two"), ("x", "ONE text ")
    assert TextTable(texts).keys() == [("one text",), ("two",)]
    table = TextTable(texts, pairs)
    assert table.keys() == [(("one text", "x"),), (("two", "one text"),)]
