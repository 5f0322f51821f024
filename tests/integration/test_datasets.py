"""A `datasets.Dataset` in the place of a loader or of a file, in Python."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import smidgen
from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.answers.template import Question, read_prompts
from smidgen.integrations.text import TextTable, read_text

datasets = pytest.importorskip("datasets")
pandas = pytest.importorskip("pandas")

QUIET = {"progress": False}


class Named(nn.Module):
    """A network whose inputs have names, as those of a Dataset's columns."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, first, second):
        return self.head(torch.tanh(self.body(torch.cat([first, second[:, None]], 1))))


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Named()


def make(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(rows, 2, generator=generator)
    second = torch.randn(rows, generator=generator)
    labels = (first[:, 0] + second > 0).long()
    columns = {"first": first.tolist(), "second": second.tolist(), "label": labels.tolist()}
    return datasets.Dataset.from_dict(columns).with_format("torch")


def by_hand(dataset):
    """Batches of 32 in the order of the rows: what a loader of the user's yields."""
    rows = [dataset[i : i + 32] for i in range(0, len(dataset), 32)]
    return [dict(batch) for batch in rows]


TRAIN, HELD_OUT, RULES, TEST = make(70, 1), make(45, 2), make(200, 3), make(50, 4)


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
def test_all_that_reads_batches_reads_a_dataset(model):
    """The whole path gives the numbers that batches made by hand give."""

    def whole(read):
        kept = smidgen.bayesify(model, read(TRAIN), read(HELD_OUT), **QUIET)
        subset = smidgen.select.last_layer(model, read(TRAIN))
        settings = smidgen.fit.LaplaceSettings(num_data=70)
        posterior = smidgen.fit.laplace(
            model, read(TRAIN), subset, settings=settings, **QUIET
        )
        many = smidgen.fit.laplace_many(model, read(TRAIN), {1: subset}, **QUIET)[1]
        point = smidgen.fit.point(model, read(TRAIN), **QUIET)
        posterior = smidgen.calibrate(posterior, model, read(HELD_OUT), **QUIET)
        rules = smidgen.make_rules(posterior, model, read(RULES), max_error=0.5, **QUIET)
        record = smidgen.compare(
            model, posterior, read(TEST), validation=read(HELD_OUT), **QUIET
        )
        outputs, targets = smidgen.point_outputs(model, read(TEST), **QUIET)
        probs = smidgen.predict_batches(posterior, model, read(TEST), **QUIET).probs
        made = (
            kept.choice.kept,
            posterior,
            many,
            point,
            rules,
            record.results["differences"],
        )
        return made, (outputs, targets, probs)

    ours, theirs = whole(lambda dataset: dataset), whole(by_hand)
    assert ours[0] == theirs[0]
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert torch.equal(one, other)


def test_every_row_is_read_once_in_order_and_the_random_state_stays(model):
    before = torch.get_rng_state()
    _, targets = smidgen.point_outputs(model, TEST, **QUIET)
    assert targets.tolist() == TEST.with_format(None)["label"][:]
    assert torch.equal(torch.get_rng_state(), before)


def test_selectors_and_the_second_opinion_read_a_dataset(model):
    def score(batches):
        return smidgen.select.scores.squared_gradient(model, batches, **QUIET)

    ours, theirs = score(TRAIN), score(by_hand(TRAIN))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert smidgen.verify(model, TEST, rows=2, columns=2)


def test_training_asks_for_an_order_and_validation_does_not(model):
    settings = smidgen.fit.FinetuneSettings(epochs=1)
    loader = DataLoader(TRAIN, batch_size=16, shuffle=True)
    tuned = smidgen.fit.finetune(
        model, loader, validation=HELD_OUT, settings=settings, **QUIET
    )
    assert tuned.best.number == 1
    with pytest.raises(ArgumentError, match=r"training follows its order.*shuffle=True"):
        smidgen.fit.finetune(model, TRAIN, settings=settings, **QUIET)
    subset = smidgen.select.last_layer(model)
    with pytest.raises(ArgumentError, match="training follows its order"):
        smidgen.fit.swag(model, TRAIN, subset, **QUIET)


def ragged():
    rows = {"first": [[1.0, 2.0], [3.0]], "second": [0.0, 1.0], "label": [0, 1]}
    return datasets.Dataset.from_dict(rows).with_format("torch")


REFUSED = {
    "of plain values": (
        lambda: TEST.with_format(None),
        r"Dataset in torch format, got a Dataset in python format\. Pass dataset\.with_f",
    ),
    "of pandas": (lambda: TEST.with_format("pandas"), "got a Dataset in pandas format"),
    "with a text": (
        lambda: TEST.add_column("name", ["a"] * 50),
        r"must be tensors, got str in 'name'\. Leave it out, with dataset\.remove_columns",
    ),
    "of rows of several lengths": (
        ragged,
        r"rows of 'first' must have one shape, got \(1,\) and \(2,\)\. Pass .*collate_fn",
    ),
    "of several splits": (
        lambda: datasets.DatasetDict(test=TEST),
        r"got a DatasetDict\. Pass one split",
    ),
    "that streams": (lambda: TEST.to_iterable_dataset(), "got a IterableDataset"),
    "that is a frame": (
        lambda: TEST.to_pandas(),
        r"got a DataFrame\. Read texts with smidgen\.integrations\.text\.read_text",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_with_what_to_do(model, name):
    make_table, message = REFUSED[name]
    with pytest.raises((ArgumentError, DataError), match=message):
        smidgen.point_outputs(model, make_table(), **QUIET)


TEXTS = {"text": ["a b", "c", "d"], "more": ["x", "", "y"], "label": [1, 0, 1]}


def test_texts_are_read_from_a_dataset_a_frame_and_a_file_alike(tmp_path):
    dataset = datasets.Dataset.from_dict(TEXTS)
    dataset.to_parquet(str(tmp_path / "rows.parquet"))
    sources = (
        tmp_path / "rows.parquet",
        dataset,
        dataset.with_format("torch"),
        dataset.to_pandas(),
    )
    expected = TextTable(("a b . x", "c", "d . y"), labels=(1, 0, 1))
    for source in sources:
        assert read_text(source, text=["text", "more"]) == expected
    pairs = dataset.map(lambda row: {"more": row["more"] or "z"})
    assert read_text(pairs, text_pair="more", label=None).pairs == ("x", "z", "y")


def test_the_names_of_classes_come_along():
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"])
    )
    rows = {"text": TEXTS["text"], "label": TEXTS["label"]}
    table = read_text(datasets.Dataset.from_dict(rows, features=features))
    assert (table.labels, table.label_names) == ((1, 0, 1), ("bad", "good"))
    frame = pandas.DataFrame({"text": TEXTS["text"], "label": ["yes", "no", "yes"]})
    table = read_text(frame)
    assert (table.labels, table.label_names) == ((1, 0, 1), ("no", "yes"))


def test_prompts_are_read_from_them_too():
    answers = Question("{text}?", (" no", " yes"))
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": ["yes", "no"]})
    for source in (rows, rows.to_pandas()):
        table = read_prompts(source, answers)
        assert (table.texts, table.labels) == (("a?", "b?"), (1, 0))


def test_what_is_missing_is_named():
    dataset = datasets.Dataset.from_dict(TEXTS)
    with pytest.raises(
        ArgumentError, match=r"label must be one of the columns of the Data"
    ):
        read_text(dataset, label="stars")
    with pytest.raises(
        DataError, match=r"text must be a text .* got nan in row 2 of the D"
    ):
        read_text(pandas.DataFrame({"text": ["a", float("nan")], "label": [0, 1]}))
    with pytest.raises(DataError, match="the Dataset must hold at least one row"):
        read_text(datasets.Dataset.from_dict({"text": [], "label": []}))
    with pytest.raises(ArgumentError, match=r"path must be one table.*DatasetDict"):
        read_text(datasets.DatasetDict(train=dataset))
