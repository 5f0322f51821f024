"""How many tokens of a text a model reads: at most those that it has positions for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from smidgen.errors import ArgumentError

# What transformers calls tables of positions. Rotary and relative positions have none, and
# no limit either.
_TABLES = ("position_embeddings", "position_embedding", "embed_positions", "wpe")


@dataclass(frozen=True)
class TextLength:
    """How many tokens of a text are to be read.

    Args:
        typed: What was asked for; None for the usual.
        usual: What is read by default, or as many as the model can.
    """

    typed: int | None = None
    usual: int = 128

    def fit(self, tokenizer: Any, option: str = "--max-length") -> int:
        """Find the length for a model.

        Args:
            tokenizer: The model's, fitted to it.
            option: What asked for the length, for errors.

        Returns:
            What was asked for, or the usual length if the model reads as many tokens.

        Raises:
            ArgumentError: If more was asked for than the model reads.
        """
        most = int(tokenizer.model_max_length)
        if self.typed is None:
            return min(self.usual, most)
        if self.typed > most:
            raise ArgumentError(
                f"{option} must be at most {most}, as many tokens as the model reads, got "
                f"{self.typed}. Leave it out, or give {most} or fewer."
            )
        return self.typed

    def describe_cut(self, length: int) -> str | None:
        """Say that fewer tokens are read than usual; None if they are not."""
        if self.typed is not None or length >= self.usual:
            return None
        return f"texts are cut to {length} tokens, the most that this model reads"


def limit_to_positions(model: nn.Module, tokenizer: Any) -> None:
    """Let a tokenizer cut texts to the positions that its model has, if it has a table of them.

    Args:
        model: The model.
        tokenizer: Its tokenizer, whose largest length is lowered.
    """
    most = count_positions(model)
    if most is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, most)


def count_positions(model: nn.Module) -> int | None:
    """Count the positions that tokens of a text may have; None if a model has no table of them."""
    counts = [
        _count(table)
        for name, table in model.named_modules()
        if name.rpartition(".")[2] in _TABLES and isinstance(table, nn.Embedding)
    ]
    return min(counts, default=None)


def _count(table: nn.Embedding) -> int:
    """Count the positions of a table without those that no token has."""
    # RoBERTa counts positions from behind the padding's, BART and OPT from an offset.
    padding = -1 if table.padding_idx is None else table.padding_idx
    offset = getattr(table, "offset", padding + 1)
    return table.num_embeddings - int(offset)
