"""The code of pages: read from Markdown, run block after block, with what it printed.

Blocks of `python` share their names and blocks of `bash` their folder, as in a person's
own session. A block of `text` right after one of them is what that one printed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

from smidgen.errors import SmidgenWarning

CODE = ("python", "bash")
_PRINTED = "text"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$\n?", re.DOTALL | re.MULTILINE)
# Not digits within a name, such as ResNet-18's: those are compared as text.
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_TIME = re.compile(r"^\s*(?:[×x]|s\b|seconds\b)")
_DIGEST = re.compile(r"\b[0-9a-f]{6,}…")
_RELATIVE, _ABSOLUTE, _ALIKE = 0.15, 0.03, 0.9


@dataclass(frozen=True)
class Piece:
    """A part of a page: a fenced block, or the prose between two (`language` is empty).

    `printed` is the output that stands after a block of code.
    """

    language: str
    text: str
    printed: str = ""

    @property
    def is_code(self) -> bool:
        """Whether it is run."""
        return self.language in CODE


def read_pieces(page: str) -> list[Piece]:
    """Take a page apart; `write_pieces` puts it together again."""
    pieces: list[Piece] = []
    end = 0
    for block in _BLOCK.finditer(page):
        prose, (language, text) = page[end : block.start()], block.groups()
        end = block.end()
        if language == _PRINTED and pieces and pieces[-1].is_code and not prose.strip():
            pieces[-1] = Piece(pieces[-1].language, pieces[-1].text, text)
            continue
        if prose:
            pieces.append(Piece("", prose))
        pieces.append(Piece(language, text))
    return [*pieces, Piece("", page[end:])]


def write_pieces(pieces: Sequence[Piece]) -> str:
    """Put a page together."""
    written = []
    for piece in pieces:
        if not piece.language:
            written.append(piece.text)
            continue
        written.append(f"```{piece.language}\n{piece.text}```\n")
        if piece.printed:
            written.append(f"\n```{_PRINTED}\n{piece.printed}```\n")
    return "".join(written)


def read_code(page: Path) -> list[Piece]:
    """Find the blocks of a page that are run."""
    pieces = read_pieces(page.read_text(encoding="utf-8"))
    return [piece for piece in pieces if piece.is_code]


def run_code(blocks: Sequence[Piece], names: dict[str, Any] | None = None) -> Iterator[str]:
    """Run blocks in the current folder and yield what each printed.

    Warnings of smidgen are shown among it, as a person sees them.

    Args:
        blocks: Blocks of code, in order.
        names: The names that blocks of Python see and make; a new namespace by default.
    """
    names = {"__name__": "__main__"} if names is None else names
    for block in blocks:
        if block.language == "bash":
            yield _tidy(_run_shell(block.text))
            continue
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), warnings.catch_warnings():
            warnings.simplefilter("always", SmidgenWarning)
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            exec(compile(block.text, "<page>", "exec"), names)
        yield _tidy(shown.getvalue())


def _show_warning(
    show_other: Callable[..., None],
    message: Warning | str,
    kind: type[Warning],
    *place: Any,
    **more: Any,
) -> None:
    if issubclass(kind, SmidgenWarning):
        print(f"{kind.__name__}: {message}")
    else:
        show_other(message, kind, *place, **more)


def _run_shell(script: str) -> str:
    """What a script prints, with this Python's commands on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # One thread, as in the page's own process, so that numbers repeat.
    settings = {"OMP_NUM_THREADS": "1", "SMIDGEN_PROGRESS": "0", "COLUMNS": "92"}
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        env={**os.environ, **settings, "PATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{script}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _tidy(printed: str) -> str:
    """Without spaces at the end of lines, and with one line end at the end."""
    lines = [line.rstrip() for line in printed.splitlines()]
    text = "\n".join(lines).strip("\n")
    return f"{text}\n" if text else ""


def find_difference(shown: str, printed: str) -> str | None:
    """Say where two outputs differ: in words, or in numbers by more than chance may.

    Numbers differ in their last digits from one processor to the next, and training
    makes more of it: 15 percent and 0.03 are let pass. Times are not compared. A verdict
    may turn with a number, so a tenth of the words may be others; numbers are compared
    where all words are the same.
    """
    parts = [_take_apart(text) for text in (shown, printed)]
    old_words, new_words = ([words for words, _ in part] for part in parts)
    if old_words != new_words:
        known = SequenceMatcher(
            None, *(" ".join(w).split() for w in (old_words, new_words))
        )
        alike = known.ratio() >= _ALIKE
        return None if alike else f"other words:\n{shown}\nnow:\n{printed}"
    for (_, old), (words, new) in zip(*parts, strict=True):
        if old is None or new is None:
            continue
        if abs(old - new) > _ABSOLUTE + _RELATIVE * max(abs(old), abs(new)):
            return f"{new} in place of {old} after {words!r}"
    return None


def _take_apart(text: str) -> list[tuple[str, float | None]]:
    """Words before each number, without spaces and rules, and the number if no time."""
    # Another processor trains to other last bits, and so to another digest.
    text = _DIGEST.sub("digest…", text)
    found, end = [], 0
    for number in _NUMBER.finditer(text):
        words = re.sub(r"[\s─━-]+", " ", text[end : number.start()]).strip()
        is_time = _TIME.match(text[number.end() :])
        plain = number.group().replace(",", "").replace("−", "-")
        found.append((words, None if is_time else float(plain)))
        end = number.end()
    return [*found, (re.sub(r"[\s─━-]+", " ", text[end:]).strip(), None)]
