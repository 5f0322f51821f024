"""Rows of a study's text data: which set each sentence may stand in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smidgen.errors import DataError
from smidgen.integrations.text import TextTable
from smidgen_studies.data.text import TextData, TextSplit, draw
from smidgen_studies.engine.cell import Job


def draw_pairs(folder: Path, seed: int = 0, **about: Any) -> TextSplit:
    """Draw from pairs whose sentences come back on either side, in other cases too."""
    lines = ["first\tsecond\tlabel"]
    lines += [f"sentence {i}\tSentence {(i * 7 + 3) % 120}\t{i % 2}" for i in range(120)]
    (folder / "train.tsv").write_text("\n".join(lines))
    held = ["first\tsecond\tlabel", "SENTENCE 5\tnew a\t0", "new b\tsentence 40 \t1"]
    (folder / "test.tsv").write_text("\n".join(held))
    data = TextData(
        "pairs", "train.tsv", "test.tsv", text="first", text_pair="second", **about
    )
    return draw(Job(data, seed, None, folder, (), folder, folder))


def sentences(table: TextTable) -> set[str]:
    assert table.pairs is not None
    return {text.strip().lower() for text in (*table.texts, *table.pairs)}


@pytest.mark.parametrize("seed", range(5))
def test_disjoint_sets_share_no_sentence(tmp_path, seed):
    sizes = {"train_size": 30, "validation_size": 20}
    split = draw_pairs(tmp_path, seed, disjoint=True, **sizes)
    assert split.sizes == {"train": 30, "validation": 20, "test": 2}
    sets = [sentences(getattr(split, name)) for name in split.sizes]
    assert not sets[0] & sets[1]
    assert not sets[0] & sets[2]
    assert not sets[1] & sets[2]
    usual = draw_pairs(tmp_path, seed, **sizes)
    assert sentences(usual.train) & sentences(usual.validation)


def test_disjoint_sets_take_all_that_is_left(tmp_path):
    split = draw_pairs(tmp_path, disjoint=True, validation_size=20)
    assert 30 < len(split.train) < 98
    assert not sentences(split.train) & sentences(split.validation)


def test_too_few_strangers_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"must hold 110 .* got \d+\. Lower train_size"):
        draw_pairs(tmp_path, disjoint=True, train_size=90, validation_size=20)
