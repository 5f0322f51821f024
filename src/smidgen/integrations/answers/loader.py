"""Batches of prompts: tokens of each, cut at their beginning where they are too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from smidgen.errors import ArgumentError, DataError, warn
from smidgen.integrations.answers.choice_tokens import encode_prompts, find_choice_tokens
from smidgen.integrations.answers.template import Question
from smidgen.integrations.huggingface import batch_rows
from smidgen.integrations.text import TextTable


def make_answer_loader(
    table: TextTable,
    tokenizer: PreTrainedTokenizerBase,
    answers: Question,
    *,
    batch_size: int,
    max_length: int,
    shuffle: bool = False,
    seed: int = 0,
) -> DataLoader[dict[str, Tensor]]:
    """Tokenise prompts once and yield batches, padded on the tokenizer's side.

    Args:
        table: Filled prompts, from `read_prompts` or `Question.fill`.
        tokenizer: The model's.
        answers: The choices that follow every prompt.
        batch_size: How many prompts a batch has.
        max_length: Tokens of a prompt and its longest choice. A longer prompt loses its
            beginning, so that the question at its end stays; a warning says how many did.
        shuffle: Draw a new order for every epoch; prompts of similar length share a batch.
        seed: Of the order.

    Returns:
        Batches with input_ids and attention_mask (B, T), and labels (B,) if the table has
        them.

    Raises:
        ArgumentError: If max_length has no room for a prompt.
        DataError: If there is no prompt, a label is no choice, or a prompt merges with one.
    """
    if not len(table):
        raise DataError("table must hold at least one prompt, got none. Fill it.")
    count = len(answers.choices)
    labels: Sequence[float] = table.labels or ()
    for number, label in enumerate(labels, 1):
        if label not in range(count):
            raise DataError(
                f"labels must be numbers of choices, from 0 to {count - 1}, got {label} in "
                f"row {number}. Number them in the order of the choices."
            )
    room = max_length - max(map(len, find_choice_tokens(tokenizer, answers))) + 1
    if room < 2:
        raise ArgumentError(
            f"max_length must leave room for a prompt beside its choice, got {max_length}. "
            "Use more."
        )
    encoded = encode_prompts(tokenizer, answers, table.texts)
    cut = sum(len(ids) > room for ids in encoded)
    if cut:
        warn(
            f"{cut:,} of {len(encoded):,} prompts lost their beginning: they have up to "
            f"{max(map(len, encoded)):,} tokens, and max_length leaves {room:,}."
        )
    rows: list[dict[str, Any]] = [
        {"input_ids": _cut(ids, room, tokenizer)} for ids in encoded
    ]
    for row, label in zip(rows, labels, strict=False):
        row["labels"] = label
    left = tokenizer.padding_side == "left"
    # Masked, so any token will do.
    padding = tokenizer.pad_token_id
    padding = padding if padding is not None else tokenizer.eos_token_id or 0

    def collate(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
        return _pad(batch, int(padding), left=left)

    return batch_rows(rows, collate, batch_size=batch_size, shuffle=shuffle, seed=seed)


def _cut(ids: list[int], room: int, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if len(ids) <= room:
        return ids
    # Models are trained with the token that begins every text.
    begins = ids[:1] if ids[0] == tokenizer.bos_token_id else []
    return begins + ids[len(ids) - room + len(begins) :]


def _pad(batch: list[dict[str, Any]], padding: int, *, left: bool) -> dict[str, Tensor]:
    width = max(len(row["input_ids"]) for row in batch)
    ids = torch.full((len(batch), width), padding)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(batch):
        own = torch.tensor(row["input_ids"])
        places = slice(width - len(own), None) if left else slice(len(own))
        ids[number, places] = own
        mask[number, places] = 1
    found = {"input_ids": ids, "attention_mask": mask}
    if "labels" in batch[0]:
        found["labels"] = torch.tensor([row["labels"] for row in batch])
    return found
