"""Text data of a study as questions to a language model that chooses among answers.

Beside what `TextData` has, a data set says:

    prompt             the question, with {text} and {pair} where a row's texts stand
    choices            the answers, in the order of the file's classes
    mixed              every pass in mixed precision (bf16), of all methods alike
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from smidgen.errors import ArgumentError
from smidgen.integrations.answers import Question, make_answer_loader
from smidgen.integrations.text import TextTable
from smidgen_studies.data.text import SplitLoader, TextData, TextSplit, draw
from smidgen_studies.engine.cell import Job


@dataclass(frozen=True)
class AnswerData(TextData):
    """What a study's file says of one data set."""

    prompt: str = "{text}"
    choices: tuple[str, ...] = ()
    mixed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = set(self.answers.columns) - {"text", "pair"}
        if unknown:
            raise ArgumentError(
                f"prompt must name {{text}} and {{pair}} alone, got {sorted(unknown)}."
            )

    @property
    def answers(self) -> Question:
        """The question and its answers."""
        return Question(self.prompt, self.choices)


@dataclass(frozen=True)
class AnswerSplit(TextSplit):
    """The rows of one seed; their texts are prompts."""

    about: AnswerData

    def _loader(
        self, table: TextTable, tokenizer: PreTrainedTokenizerBase, **how: Any
    ) -> SplitLoader:
        length = self.about.max_length
        return make_answer_loader(
            table, tokenizer, self.about.answers, max_length=length, **how
        )


def draw_answers(job: Job) -> AnswerSplit:
    """Draw the rows of a job's data by its seed, and write their prompts."""
    split, about = draw(job), job.data
    if split.classes != len(about.choices):
        raise ArgumentError(
            f"choices of data {about.name!r} must be {split.classes}, one for each class, "
            f"got {len(about.choices)}. Name them in the order of the classes."
        )

    def ask(table: TextTable) -> TextTable:
        columns = {"text": table.texts, "pair": table.pairs or table.texts}
        filled = about.answers.fill(columns)
        return replace(filled, labels=table.labels)

    return AnswerSplit(
        ask(split.train), ask(split.validation), ask(split.test), about, split.classes
    )
