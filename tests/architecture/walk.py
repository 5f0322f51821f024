"""Which files of ours a call leads through, in the order a reader would open them.

A file is *entered* when one of its functions that has not run yet is called from another
file; calls that follow each other into the same file count once. Comprehensions, lambdas and
generated methods (those of dataclasses) are not read on their own and do not count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "smidgen"


def walk(call: Callable[[], Any]) -> list[str]:
    """Run a call and list the files it enters, in order; a file stands once per entry."""
    seen: set[CodeType] = set()
    entered: list[str] = []

    def notice(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in seen or code.co_name.startswith("<"):
            return
        path = Path(code.co_filename)
        if not path.is_relative_to(SOURCE):
            return
        seen.add(code)
        name = path.relative_to(SOURCE).as_posix()
        if not entered or entered[-1] != name:
            entered.append(name)

    sys.setprofile(notice)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered
