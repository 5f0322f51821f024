"""`CompareSettings`: what a comparison says about decisions, beyond the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smidgen.decide import Rules
from smidgen.errors import ArgumentError, is_number, is_whole, require_kind


@dataclass(frozen=True, eq=False)
class CompareSettings:
    """What a comparison says about decisions.

    Args:
        rules: Rules made for the posterior that the verdict is about, to be tried on the
            test rows.
        texts: A text for each test row, in the order of the batches. The record keeps those
            of the least certain and the strangest rows, shortened.
        row_numbers: Which row of the caller's file each test row is, in the order of the
            batches. By default they are counted from 0.
        class_names: The name of each class, label or output. By default those of a Hugging
            Face model, or numbers.
        max_errors: The shares of errors that automated answers may have; the verdict is
            about the first.

    Raises:
        ArgumentError: If one of these is not what it must be.
    """

    rules: Rules | None = None
    texts: Sequence[str] | None = None
    row_numbers: Sequence[int] | None = None
    class_names: Sequence[str] | None = None
    max_errors: Sequence[float] = (0.05,)

    def __post_init__(self) -> None:
        if self.rules is not None:
            require_kind("rules", self.rules, Rules, "Make them with smidgen.decide")
        for name in ("texts", "class_names"):
            _require_words(name, getattr(self, name))
        numbers: Any = self.row_numbers
        if numbers is not None and not (
            isinstance(numbers, Sequence) and all(map(is_whole, numbers))
        ):
            raise ArgumentError(
                f"row_numbers must be a list of whole numbers, got {type(numbers).__name__}. "
                "Pass one for each test row."
            )
        several: Any = self.max_errors
        listed = isinstance(several, Sequence) and not isinstance(several, str) and several
        if not listed or not all(is_number(error) and 0 < error < 1 for error in several):
            raise ArgumentError(
                f"max_errors must be numbers between 0 and 1, got {several!r}. Pass (0.05,) "
                "for 5 percent."
            )


def _require_words(name: str, words: Any) -> None:
    if words is None:
        return
    listed = isinstance(words, Sequence) and not isinstance(words, str)
    if not listed or not all(isinstance(word, str) for word in words):
        raise ArgumentError(
            f"{name} must be a list of strings, got {type(words).__name__}. Pass a string for "
            "each."
        )
