"""Prompts and choices as tokens: the tokens of a choice are those that it adds to its prompt.

A tokenizer may join the end of a prompt with what follows. Then the model would be asked about
another prompt than the one it reads, so every prompt is tokenised with every choice, and refused
where the two do not add up.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.answers.template import Question
from smidgen.integrations.labels import format_label

ChoiceTokens = tuple[tuple[int, ...], ...]
"""The tokens of every choice, in the order of the choices."""


def find_choice_tokens(
    tokenizer: PreTrainedTokenizerBase, answers: Question
) -> ChoiceTokens:
    """Find the tokens that every choice adds to the prompt; refuse what cannot be told apart."""
    (prompt,) = answers.fill({name: ["a"] for name in answers.columns}).texts
    (text,) = _write(tokenizer, answers, [prompt])
    encoded = _encode(tokenizer, answers, [text, *(text + c for c in answers.choices)])
    start = encoded[0]
    if not answers.chat and start[-1] in tokenizer.all_special_ids:
        raise ArgumentError(
            "tokenizer must leave the end of a prompt open, got one that adds "
            f"{tokenizer.convert_ids_to_tokens(start[-1])!r}. Set tokenizer.add_eos_token = "
            "False, or use the tokenizer of a causal language model."
        )
    found = tuple(
        _read_choice(choice, start, whole, text)
        for choice, whole in zip(answers.choices, encoded[1:], strict=True)
    )
    for choice, tokens in zip(answers.choices, found, strict=True):
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in tokens:
            raise ArgumentError(
                f"choices must be words that the tokenizer knows, got {choice!r}. Choose "
                "another word."
            )
        other = answers.choices[found.index(tokens)]
        if other != choice:
            raise ArgumentError(
                f"choices must have tokens of their own, got {other!r} and {choice!r} with "
                "the same. Choose another word for one of them."
            )
    return found


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase, answers: Question, prompts: Sequence[str]
) -> list[list[int]]:
    """Tokenise prompts, and refuse one to which a choice does not add its own tokens."""
    tokens = find_choice_tokens(tokenizer, answers)
    texts = _write(tokenizer, answers, prompts)
    starts = _encode(tokenizer, answers, texts)
    for choice, own in zip(answers.choices, tokens, strict=True):
        wholes = _encode(tokenizer, answers, [text + choice for text in texts])
        for row, (start, whole) in enumerate(zip(starts, wholes, strict=True)):
            if (*start, *own) != tuple(whole):
                raise DataError(
                    f"the choice {choice!r} must add the same tokens to every prompt, got "
                    f"others after {texts[row][-20:]!r} in row {row + 1}. End the template "
                    "with a word or a sign, and begin the choice with a space."
                )
    return starts


def _write(
    tokenizer: PreTrainedTokenizerBase, answers: Question, prompts: Sequence[str]
) -> list[str]:
    """Write prompts as the model reads them: as they are, or as messages of a chat."""
    if not answers.chat:
        return list(prompts)
    if getattr(tokenizer, "chat_template", None) is None:
        raise ArgumentError(
            "chat must be False for a tokenizer without a chat template, got True. Ask with "
            "a plain prompt, or use a model that was tuned to chat."
        )
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    written: list[str] = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    return written


def _encode(
    tokenizer: PreTrainedTokenizerBase, answers: Question, texts: list[str]
) -> list[list[int]]:
    # A chat template writes the special tokens itself.
    encoded = tokenizer(texts, add_special_tokens=not answers.chat, verbose=False)
    ids: list[list[int]] = encoded["input_ids"]
    return ids


def _read_choice(
    choice: str, start: list[int], whole: list[int], text: str
) -> tuple[int, ...]:
    if whole[: len(start)] != start or len(whole) == len(start):
        raise ArgumentError(
            f"choices must be tokens of their own after the prompt, got {choice!r}, which "
            f"merges with the end of {format_label(text[-20:])}. End the template without a "
            "space, and begin the choice with one."
        )
    return tuple(whole[len(start) :])
