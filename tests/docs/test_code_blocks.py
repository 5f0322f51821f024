"""Pages are taken apart and put together, run as a person would, and compared with care."""

from __future__ import annotations

import warnings

import pytest
from docs.build.code_blocks import (
    Piece,
    find_difference,
    read_pieces,
    run_code,
    write_pieces,
)

from smidgen.errors import SmidgenWarning

PAGE = """# Title

Words.

```python
print(1)
```

```text
1
```

More words.

```bash
echo two
```

```text
kept: not an output

```

End.
"""


def test_a_page_is_put_together_as_it_was():
    pieces = read_pieces(PAGE)
    assert [piece.language for piece in pieces] == ["", "python", "", "bash", ""]
    assert [piece.printed for piece in pieces if piece.is_code] == [
        "1\n",
        "kept: not an output\n\n",
    ]
    assert write_pieces(pieces) == PAGE


def test_a_text_that_follows_prose_is_no_output():
    page = "```python\nx = 1\n```\n\nWords.\n\n```text\nshown\n```\n"
    pieces = read_pieces(page)
    assert pieces[0].printed == ""
    assert Piece("text", "shown\n") in pieces
    assert write_pieces(pieces) == page


def test_blocks_share_names_and_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = [
        Piece(
            "python", "from pathlib import Path\nx = 2\nPath('a.txt').write_text('seen')\n"
        ),
        Piece("bash", "cat a.txt\n"),
        Piece("python", "print(x + 1, '  ')\n"),
    ]
    assert list(run_code(code)) == ["", "seen\n", "3\n"]


def test_warnings_are_shown_as_a_person_sees_them():
    names = {"warnings": warnings, "kind": SmidgenWarning}
    code = Piece("python", "warnings.warn('too few rows', kind)\nprint('on')\n")
    assert list(run_code([code], names)) == ["SmidgenWarning: too few rows\non\n"]
    other = Piece("python", "warnings.warn('of another library', UserWarning)\n")
    with pytest.warns(UserWarning, match="of another library"):
        assert list(run_code([other], names)) == [""]


def test_a_command_that_fails_stops_the_page():
    with pytest.raises(RuntimeError, match="not there"):
        list(run_code([Piece("bash", "echo not there >&2; false\necho on\n")]))


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("NLL 0.301", "NLL 0.303"),
        ("MAP   84.0 %  0.55", "MAP  84 %      0.56"),
        ("took 3 s, 1.05×", "took 90 s, 14.2×"),
        ("12,345 weights", "12,346 weights"),
        ("base e41b831568df…", "base 6ea3fe34a5c5…"),
        (f"{'a ' * 30}clearly lower", f"{'a ' * 30}not told apart"),
    ],
)
def test_chance_is_let_pass(shown, printed):
    assert find_difference(shown, printed) is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("NLL 0.30", "NLL 0.50"),
        ("accuracy 84 %", "accuracy 40 %"),
        ("accuracy 84 %", "precision 84 %"),
        ("kept", ""),
        ("", "new"),
        ("−0.30", "0.30"),
    ],
)
def test_another_result_is_not(shown, printed):
    assert find_difference(shown, printed)
