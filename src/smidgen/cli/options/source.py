"""Which model a command reads, and where: a classifier, or a language model and its prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Option

from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import split_words
from smidgen.errors import ArgumentError
from smidgen.runtime.writing.answers_note import find_answers_folder

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader
    from transformers import PreTrainedTokenizerBase

    from smidgen.integrations.answers.folder import LanguageModel
    from smidgen.integrations.answers.template import Question
    from smidgen.integrations.reading.columns import FileColumns
    from smidgen.integrations.text import TextTable
    from smidgen.integrations.text_length import TextLength
    from smidgen.outputs.problem import Problem

PANEL = "Language models that choose among answers"
Prompt = Annotated[
    str | None,
    Option(
        help="Ask a causal language model: a prompt with columns in braces, such as "
        r"'Review: {sentence}\nSentiment:'. \n is a new line.",
        rich_help_panel=PANEL,
    ),
]
Choices = Annotated[
    str | None,
    Option(
        metavar="WORD,WORD",
        help="The answers, in the order of the class numbers. A space goes before each, "
        "unless the prompt ends with one or it is a chat.",
        rich_help_panel=PANEL,
    ),
]
Choice = Annotated[
    list[str] | None,
    Option(
        help="One answer exactly as it follows the prompt; repeat it.",
        rich_help_panel=PANEL,
    ),
]
Chat = Annotated[
    bool,
    Option(
        "--chat",
        help="Ask through the tokenizer's chat template.",
        rich_help_panel=PANEL,
    ),
]
Gguf = Annotated[
    str | None,
    Option(
        metavar="FILE",
        help="Name of a GGUF file in the model's folder, to be unpacked.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class Source:
    """The model that was typed, and what to ask it; `reads_model` gives it to a command."""

    model: texts.Model
    prompt: Prompt = None
    choices: Choices = None
    choice: Choice = None
    chat: Chat = False
    gguf: Gguf = None
    device: texts.Device = "auto"

    def __post_init__(self) -> None:
        if self.choices and self.choice:
            raise ArgumentError(
                f"--choice must be left out beside --choices, got {self.choice[0]!r}. Give "
                "all answers in one way."
            )
        given = {"--choices": self.choices or self.choice, "--chat": self.chat}
        for option, value in {**given, "--gguf": self.gguf}.items():
            if value and self.prompt is None:
                raise ArgumentError(
                    f"{option} must come with --prompt, got {value!r} without. Add --prompt "
                    "'… {column} …'."
                )
        if self.prompt is not None and not (self.choices or self.choice):
            raise ArgumentError(
                "--choices must come with --prompt, got none. Name the answers, as in "
                "--choices positive,negative."
            )

    @property
    def is_asked(self) -> bool:
        """Whether it is a language model that chooses among answers."""
        return self.prompt is not None or find_answers_folder(self.model) is not None

    def read_answers(self) -> Question | None:
        """Read the prompt and its choices, if they were typed."""
        from smidgen.integrations.answers.template import Question

        if self.prompt is None:
            return None
        template = self.prompt.replace("\\n", "\n").replace("\\t", "\t")
        space = "" if self.chat or template[-1:].isspace() else " "
        words = tuple(space + word for word in split_words([self.choices or ""]))
        return Question(template, tuple(self.choice or words), self.chat)

    def load(self) -> TextModel:
        """Load the model and its tokenizer."""
        if self.is_asked:
            return TextModel.of_language_model(self.load_language_model())
        network, tokenizer = texts.load_model(self.model, device=self.device)
        return TextModel.of_classifier(network, tokenizer)

    def load_language_model(self) -> LanguageModel:
        """Load a language model and what it is asked."""
        from smidgen.integrations.answers.folder import load_language_model

        return load_language_model(
            self.model, self.read_answers(), gguf=self.gguf, device=self.device
        )


@dataclass(frozen=True, eq=False)
class TextModel:
    """A model that reads texts, how its data are read, and the names of its classes."""

    problem: Problem
    tokenizer: PreTrainedTokenizerBase
    classes: tuple[str, ...]
    names: (
        tuple[str, ...] | None
    )  # those that files may have; None if they are placeholders
    answers: Question | None = None

    @classmethod
    def of_classifier(cls, network: Any, tokenizer: PreTrainedTokenizerBase) -> TextModel:
        """Read texts as a classifier does."""
        from smidgen.outputs.problem import Problem

        classes = tuple(
            network.config.id2label[i] for i in range(network.config.num_labels)
        )
        return cls(Problem(network), tokenizer, classes, texts.find_label_names(network))

    @classmethod
    def of_language_model(cls, loaded: LanguageModel) -> TextModel:
        """Read prompts, and choose among answers."""
        names = loaded.answers.names
        return cls(loaded.ask(), loaded.tokenizer, names, names, loaded.answers)

    def read(self, path: Path, columns: tuple[str, str | None, str | None]) -> TextTable:
        """Read a data file: its texts, pairs and labels, or what the prompt names."""
        if self.answers is None:
            return texts.read_table(path, *columns, self.names)
        from smidgen.integrations.answers.template import read_prompts

        label = columns[-1]
        return read_prompts(
            path, self.answers, label=None if label is None else texts.as_column(label)
        )

    def read_all(self, path: Path, text: str) -> FileColumns:
        """Read all columns of a data file as they are; the text's tells whether it has a header."""
        from smidgen.integrations.reading.columns import read_columns

        chosen = {} if self.answers is not None else {"text": texts.as_column(text)}
        return read_columns(path, chosen)[0]

    def batch(
        self,
        table: TextTable,
        batch_size: int,
        length: TextLength,
        *,
        shuffle: bool = False,
        seed: int = 0,
    ) -> DataLoader[dict[str, Tensor]]:
        """Tokenize a table into batches."""
        if self.answers is None:
            return texts.make_batches(
                table, self.tokenizer, batch_size, length, shuffle=shuffle, seed=seed
            )
        from smidgen.integrations.answers.loader import make_answer_loader

        return make_answer_loader(
            table,
            self.tokenizer,
            self.answers,
            batch_size=batch_size,
            max_length=length.fit(self.tokenizer),
            shuffle=shuffle,
            seed=seed,
        )


def reads_model(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Source` in the place of its argument `source`."""
    hints = get_type_hints(Source, include_extras=True)
    added = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.name == "model" else field.default,
            annotation=hints[field.name],
        )
        for field in fields(Source)
    ]
    own = get_type_hints(command, include_extras=True)
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        kept = parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=own[name])
        parameters += added[:1] if name == "source" else [kept]
    parameters += added[1:]

    @wraps(command)
    def run(**values: Any) -> None:
        chosen = {field.name: values.pop(field.name) for field in fields(Source)}
        command(source=Source(**chosen), **values)

    run.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
