"""A run's outputs are its own until they are all written, and nobody else's."""

from __future__ import annotations

from contextlib import suppress

import pytest

from smidgen.errors import StoreError
from smidgen.runtime.files import write_text
from smidgen.runtime.writing.claim import (
    RUN_NOTE,
    Claim,
    digest_path,
    hidden_beside,
)
from smidgen.runtime.writing.output import Output

ABOUT = {"command": "fit", "options": {"--lr": 1, "--out": "made"}, "inputs": {}}
OTHER = {**ABOUT, "options": {**ABOUT["options"], "--lr": 2}}


def refuse_folder(path, *, overwrite):
    if path.is_dir() and any(path.iterdir()) and not overwrite:
        raise StoreError(f"{path} exists already.")


def open_claim(folder, about=ABOUT, *, overwrite=False):
    outputs = [
        Output("--out", folder / "made", refuse_folder, folder=True),
        Output("--json", folder / "n.json"),
    ]
    return Claim(about, outputs, overwrite=overwrite)


def write_first(folder):
    write_text(folder / "made" / "numbers", "1")


def write_all(folder):
    write_first(folder)
    write_text(folder / "n.json", "{}")


def finish(folder, about=ABOUT, **how):
    with open_claim(folder, about, **how) as claim:
        assert not claim.finished
        write_all(folder)
        claim.finish()


def names(folder):
    paths = folder.rglob("*")
    return sorted(p.relative_to(folder).as_posix() for p in paths if p.is_file())


DONE = ["made/numbers", "made/run.json", "n.json"]


def test_a_finished_run_is_done_already(tmp_path):
    finish(tmp_path)
    assert names(tmp_path) == DONE
    assert open_claim(tmp_path).finished
    with pytest.raises(StoreError, match="made exists already"):
        open_claim(tmp_path, OTHER)
    # Not if something of it was deleted since, and not if it is to be made anew.
    assert not open_claim(tmp_path, overwrite=True).finished
    (tmp_path / "n.json").unlink()
    assert names(tmp_path) == [".made.run/run.json", "made/numbers", "made/run.json"]
    assert open_claim(tmp_path).resumed


@pytest.mark.parametrize("written", [lambda folder: None, write_first, write_all])
def test_a_killed_run_may_replace_what_it_wrote(tmp_path, written):
    claim = open_claim(tmp_path)
    written(tmp_path)
    write_text(claim.place("state"), "half")
    del claim  # killed
    again = open_claim(tmp_path)
    assert again.resumed
    assert again.overwrite
    assert again.place("state").read_text() == "half"
    write_all(tmp_path)
    again.finish()
    assert open_claim(tmp_path).finished
    assert names(tmp_path) == DONE


def test_a_run_killed_while_it_cleans_up_is_done(tmp_path):
    claim = open_claim(tmp_path)
    write_all(tmp_path)
    write_text(claim.place("state"), "whole")
    claim._clean = lambda: None  # killed
    claim.finish()
    copy = (claim.folder / RUN_NOTE).read_text()
    assert open_claim(tmp_path).finished
    assert names(tmp_path) == DONE
    write_text(claim.place("state"), "whole")
    assert open_claim(tmp_path).finished
    assert names(tmp_path) == DONE
    # Also if the description goes last.
    write_text(claim.folder / RUN_NOTE, copy)
    assert open_claim(tmp_path).finished
    assert names(tmp_path) == DONE


def test_checkpoints_of_another_run_are_not_thrown_away(tmp_path):
    claim = open_claim(tmp_path)
    write_text(claim.place("state"), "hours of work")
    with pytest.raises(StoreError) as error:
        open_claim(tmp_path, OTHER)
    text = str(error.value)
    assert "has an interrupted run with --lr 1, here it is 2" in text
    assert str(claim.folder) in text
    assert "--overwrite" in text
    changed = {**ABOUT, "inputs": {"--train a.csv": "other"}}
    with pytest.raises(StoreError, match=r"another content of --train a\.csv"):
        open_claim(tmp_path, changed)
    finish(tmp_path, OTHER, overwrite=True)
    assert names(tmp_path) == DONE


def test_a_claim_without_checkpoints_is_in_nobodys_way(tmp_path):
    open_claim(tmp_path)
    finish(tmp_path, OTHER)
    assert names(tmp_path) == DONE


def test_what_another_left_half_written_is_not_replaced(tmp_path):
    open_claim(tmp_path)
    write_first(tmp_path)
    with pytest.raises(StoreError, match="made exists already"):
        open_claim(tmp_path, OTHER)


def test_a_refusal_on_the_way_leaves_nothing(tmp_path):
    folder = tmp_path / "new" / "folder"
    with pytest.raises(ValueError, match="wrong"), open_claim(folder):
        raise ValueError("wrong")
    assert not list(tmp_path.iterdir())
    # Unless something would be lost.
    with suppress(ValueError), open_claim(folder):
        write_first(folder)
        raise ValueError("wrong")
    assert open_claim(folder).resumed


def test_an_old_note_never_speaks_for_a_new_run(tmp_path):
    finish(tmp_path)
    claim = open_claim(tmp_path, overwrite=True)
    del claim  # killed before it wrote anything
    again = open_claim(tmp_path)
    assert again.resumed
    assert not again.finished


@pytest.mark.parametrize("about", [ABOUT, OTHER])
def test_a_refused_run_leaves_the_finished_one_finished(tmp_path, about):
    finish(tmp_path)
    with suppress(ValueError), open_claim(tmp_path, about, overwrite=True):
        raise ValueError("wrong")
    assert names(tmp_path) == DONE
    assert open_claim(tmp_path).finished


def test_a_replaced_run_is_no_longer_finished(tmp_path):
    finish(tmp_path)
    # One output of two was replaced, and the folder was not: by an error, by a kill.
    for raised in (True, False):
        claim = open_claim(tmp_path, OTHER, overwrite=True)
        write_text(tmp_path / "n.json", "other")
        if raised:
            claim.__exit__(ValueError, ValueError("wrong"), None)
        with pytest.raises(StoreError, match="exists already"):
            open_claim(tmp_path)
        assert open_claim(tmp_path, OTHER).resumed
        if raised:
            finish(tmp_path, overwrite=True)


def test_what_lacks_a_file_is_not_finished(tmp_path):
    finish(tmp_path)
    assert open_claim(tmp_path).finished
    (tmp_path / "made" / "numbers").rename(tmp_path / "made" / "elsewhere")
    with pytest.raises(StoreError, match="made exists already"):
        open_claim(tmp_path)


def test_checkpoints_elsewhere_go_last(tmp_path):
    state = Output("--checkpoint", tmp_path / "state")
    output = Output("--out", tmp_path / "made", refuse_folder, folder=True)
    claim = Claim(ABOUT, [output], [state], overwrite=False)
    write_text(state.path, "whole")
    write_first(tmp_path)
    claim.finish()
    write_text(state.path, "killed before it was removed")
    assert Claim(ABOUT, [output], [state], overwrite=False).finished
    assert not state.path.exists()


def test_a_damaged_description_is_of_another_run(tmp_path):
    claim = open_claim(tmp_path)
    write_text(claim.place("state"), "whole")
    for text in ("", "[1]", "[" * 100_000):
        (claim.folder / RUN_NOTE).write_text(text)
        with pytest.raises(StoreError, match="interrupted run"):
            open_claim(tmp_path)


def test_names_of_any_length_have_a_claim(tmp_path):
    output = Output("--out", tmp_path / ("x" * 255), refuse_folder, folder=True)
    claim = Claim(ABOUT, [output], overwrite=False)
    assert claim.folder.is_dir()
    assert hidden_beside(tmp_path / ("x" * 254)) != claim.folder


def test_a_digest_is_of_names_and_contents(tmp_path):
    (tmp_path / "a").mkdir()
    for name, text in (("one", "1"), ("two", "2")):
        (tmp_path / "a" / name).write_text(text)
    first = digest_path(tmp_path / "a")
    assert digest_path(tmp_path / "a") == first
    (tmp_path / "a" / "two").write_text("3")
    assert digest_path(tmp_path / "a") != first
    (tmp_path / "a" / "two").write_text("2")
    (tmp_path / "a" / "two").rename(tmp_path / "a" / "three")
    assert digest_path(tmp_path / "a") != first


def test_a_digest_goes_as_deep_as_pictures_by_class_but_not_into_what_is_hidden(tmp_path):
    for name in ("cats/1.png", "dogs/1.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    first = digest_path(tmp_path)
    (tmp_path / ".made.run").mkdir()
    (tmp_path / ".made.run" / "run.json").write_text("a run's own")
    assert digest_path(tmp_path) == first
    (tmp_path / "cats" / "1.png").write_text("dogs/1.png")
    (tmp_path / "dogs" / "1.png").write_text("cats/1.png")
    swapped = digest_path(tmp_path)
    assert swapped != first
    (tmp_path / "dogs" / "1.png").unlink()
    assert digest_path(tmp_path) not in (first, swapped)


def test_of_very_many_small_files_every_content_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("smidgen.runtime.writing.claim._MOST_FILES", 2)
    for number in range(5):
        (tmp_path / str(number)).write_text("same length")
    first = digest_path(tmp_path)
    (tmp_path / "4").write_text("other text.")
    assert digest_path(tmp_path) != first


def test_a_large_file_is_sampled_from_its_start_to_its_end(tmp_path):
    path, size = tmp_path / "large", 80 << 20
    with path.open("wb") as file:
        file.truncate(size)
    digests = {digest_path(path)}
    for place in (0, size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        digests.add(digest_path(path))
    with path.open("ab") as file:
        file.write(b"\0")
    assert len(digests | {digest_path(path)}) == 4
