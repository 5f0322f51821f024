"""Hugging Face classifiers: load one, feed it a text table, save it. No pickle."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.utils import logging as hub_logging
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from smidgen.errors import ArgumentError, DataError, reason
from smidgen.integrations.devices import find_device
from smidgen.integrations.model_folder import (
    TOKENIZER_SETTINGS,
    UNLOADABLE,
    check_model_file,
    find_model_folder,
)
from smidgen.integrations.reading.task_note import TASK_NOTE, TaskNote
from smidgen.integrations.text import TextTable
from smidgen.integrations.text_length import limit_to_positions
from smidgen.runtime.files import new_folder, refuse_taken
from smidgen.runtime.storage.quantised import is_quantised
from smidgen.runtime.writing.claim import RUN_NOTE

# Everything save_pretrained of a model and a tokenizer may write.
_WRITTEN = (
    "config.json",
    "generation_config.json",
    "model*.safetensors*",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.*",
    "merges.txt",
    "spiece.model",
    "sentencepiece*",
    RUN_NOTE,
    TASK_NOTE,
)


@dataclass(frozen=True, eq=False)
class NewClassifier:
    """A pretrained model in evaluation mode, its tokenizer, and which weights are new.

    `head` names the parameters that the folder lacks, drawn from the seed; "last", for
    the last affine layer, if it has them all.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    head: tuple[str, ...] | Literal["last"]


def load_classifier(
    name_or_folder: str | Path,
    *,
    labels: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a sequence classifier and its tokenizer from safetensors.

    Args:
        name_or_folder: A folder made by `save_pretrained`, or a model id on the hub.
        labels: The number of classes (1 for regression). A model without a head gets a
            new one of this size. With None the model must have a trained head.
        seed: Fixes the weights of a new head; the global generator is not used.
        device: Where the model goes: "auto" for a CUDA device if there is one, or what
            `torch.device` takes; the CPU by default.
        trust_remote_code: Run the code and kernels that the model's files ask for; without
            it such a model is refused.
        revision: A commit, a tag or a branch on the hub; main by default.

    Returns:
        The model in evaluation mode, and its tokenizer, which has a pad token and
        returns token types only if the model has an embedding for them.

    Raises:
        ArgumentError: If the model cannot be found, is stored as a pickle, has no
            tokenizer or has a trained head of another size; or there is no such device.
    """  # noqa: DOC502
    model, tokenizer, _ = _load(
        name_or_folder,
        labels,
        seed,
        device,
        trust_remote_code=trust_remote_code,
        revision=revision,
    )
    return model, tokenizer


def load_tokenizer(folder: Path, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model from a folder of its own."""
    with silence():
        for name in TOKENIZER_SETTINGS:
            if (folder / name).exists():
                check_model_file(folder / name)
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, config=model.config
            )
        except UNLOADABLE as error:
            raise ArgumentError(
                f"tokenizer must be one that transformers can load, got {str(folder)!r} "
                f"({reason(error)}). Save it again with save_pretrained."
            ) from error
    _fit_tokenizer(model, tokenizer)
    return tokenizer


def load_with_head(
    name_or_folder: str | Path,
    *,
    labels: int,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> NewClassifier:
    """Load a model to fine-tune as `load_classifier` does, and list its new weights."""
    model, tokenizer, missing = _load(name_or_folder, labels, seed, device)
    # Buffers may be missing, too, but they are not trained.
    new = tuple(name for name, _ in model.named_parameters() if name in missing)
    return NewClassifier(model, tokenizer, new or "last")


def _load(
    name_or_folder: str | Path,
    labels: int | None,
    seed: int,
    device: str | torch.device | None,
    *,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, frozenset[str]]:
    """The model, its tokenizer, and the names of the weights missing from its folder."""
    if labels is not None and (isinstance(labels, bool) or labels < 1):
        raise ArgumentError(
            f"labels must be at least 1, got {labels}. Give the number of classes."
        )
    # Checked first: a model may take long to load.
    target = find_device("cpu" if device is None else device)
    with silence():
        folder = find_model_folder(
            str(name_or_folder), trust_remote_code=trust_remote_code, revision=revision
        )
        try:
            # Only the CPU generator is seeded: that is where transformers builds heads.
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                model, report = AutoModelForSequenceClassification.from_pretrained(
                    folder,
                    use_safetensors=True,
                    trust_remote_code=trust_remote_code,
                    local_files_only=True,
                    ignore_mismatched_sizes=True,
                    output_loading_info=True,
                    **({} if labels is None else {"num_labels": labels}),
                )
            tokenizer = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=trust_remote_code, local_files_only=True
            )
        except UNLOADABLE as error:
            raise ArgumentError(
                f"model must be a classifier transformers can load, got "
                f"{str(name_or_folder)!r} ({reason(error)}). Save it again with "
                "save_pretrained, or give another model."
            ) from error
    _check_weights(model, report, labels, str(name_or_folder))
    _fit_tokenizer(model, tokenizer)
    return model.to(target), tokenizer, frozenset(report["missing_keys"])


def name_classes(model: PreTrainedModel, names: Sequence[str] | None) -> None:
    """Write the names of its classes into a new model's config, if they have names."""
    if names is not None:
        model.config.id2label = dict(enumerate(names))
        model.config.label2id = {name: number for number, name in enumerate(names)}


def make_text_loader(
    table: TextTable,
    tokenizer: PreTrainedTokenizerBase,
    *,
    batch_size: int,
    max_length: int,
    shuffle: bool = False,
    seed: int = 0,
) -> DataLoader[dict[str, Tensor]]:
    """Tokenise once and yield batches as dicts, padded to their longest text."""
    # input_ids and attention_mask (B, T), token_type_ids where the tokenizer gives them,
    # labels (B,) where the table has them. A shuffled loader draws a new order for every epoch,
    # never from the global generator; texts of similar length share a batch: half the padding.
    least = tokenizer.num_special_tokens_to_add(table.pairs is not None) + 1
    most = tokenizer.model_max_length
    if not least <= max_length <= most:
        raise ArgumentError(
            f"max_length must be from {least} to {most} for this tokenizer and its model, "
            f"got {max_length}. Use a length in between."
        )
    if not len(table):
        raise DataError("table must hold at least one text, got none. Fill it.")
    encoded = tokenizer(
        list(table.texts),
        None if table.pairs is None else list(table.pairs),
        truncation=True,
        max_length=max_length,
    )
    columns = dict(encoded)
    if table.labels is not None:
        columns["labels"] = table.labels
    rows = [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ]
    pad = DataCollatorWithPadding(tokenizer)
    return batch_rows(
        rows,
        lambda batch: dict(pad(batch)),
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
    )


def batch_rows(
    rows: Sequence[dict[str, Any]],
    collate: Callable[[list[dict[str, Any]]], dict[str, Tensor]],
    *,
    batch_size: int,
    shuffle: bool,
    seed: int,
) -> DataLoader[dict[str, Tensor]]:
    """Batch rows of tokens: in order, or shuffled anew for every epoch, alike lengths together."""
    if batch_size < 1:
        raise ArgumentError(f"batch_size must be at least 1, got {batch_size}.")
    # Unshuffled too: a loader without a generator draws from the global one.
    generator = torch.Generator().manual_seed(seed)
    batching: dict[str, Any] = {"batch_size": batch_size}
    if shuffle:
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        batching = {"batch_sampler": _BatchesByLength(lengths, batch_size, generator)}
    return DataLoader(
        rows,  # type: ignore[arg-type]
        collate_fn=collate,
        generator=generator,
        **batching,
    )


class _BatchesByLength(Sampler[list[int]]):
    """Random batches of similar length: shuffled, sorted in chunks, batches shuffled."""

    def __init__(
        self, lengths: Tensor, batch_size: int, generator: torch.Generator
    ) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.generator = generator

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(len(self.lengths), generator=self.generator)
        chunks = [
            chunk[self.lengths[chunk].argsort(stable=True)]
            for chunk in order.split(16 * self.batch_size)
        ]
        batches = torch.cat(chunks).split(self.batch_size)
        for index in torch.randperm(len(batches), generator=self.generator).tolist():
            yield batches[index].tolist()


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    overwrite: bool = False,
    note: TaskNote | None = None,
) -> Path:
    """Write a model, its tokenizer and what training saw, whole or not at all."""
    folder = Path(folder)
    refuse_taken_model(folder, overwrite=overwrite)
    with new_folder(folder, overwrite=overwrite) as work, silence():
        _without_tag(model).save_pretrained(work)
        tokenizer.save_pretrained(work)
        if note is not None:
            note.save(work)
        # Somebody may have written there meanwhile.
        refuse_taken_model(folder, overwrite=overwrite)
    return folder


def _without_tag(model: PreTrainedModel) -> PreTrainedModel:
    """Take the tag of a quantised file off a model whose weights it unpacked, as from GGUF."""
    # transformers would refuse to save it. The modules are the same; nothing is copied.
    tagged = getattr(model, "hf_quantizer", None) is not None
    if not tagged or any(map(is_quantised, model.parameters())):
        return model
    plain = copy(model)
    vars(plain).update(hf_quantizer=None, config=deepcopy(model.config))
    del plain.config.quantization_config
    return plain


@contextmanager
def silence() -> Iterator[None]:
    """Silence the bars and load reports of Hugging Face, and restore them."""
    level, hub_level = transformers_logging.get_verbosity(), hub_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers_logging.set_verbosity_error()
        hub_logging.set_verbosity(logging.ERROR)
        if bars:
            transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(level)
            hub_logging.set_verbosity(hub_level)
            if bars:
                transformers_logging.enable_progress_bar()


def _check_weights(
    model: PreTrainedModel, report: dict[str, Any], labels: int | None, name: str
) -> None:
    """Refuse a model that has random weights without a reason."""
    mismatched = sorted(report["mismatched_keys"])
    missing = sorted(report["missing_keys"])
    if mismatched and labels is not None:
        key, stored, _ = mismatched[0]
        raise ArgumentError(
            f"labels must be the size of the trained head of {name!r}, whose {key} has "
            f"shape {tuple(stored)}, got {labels}. Leave labels out, or start from the "
            "base model."
        )
    if mismatched or 2 * len(missing) > len(model.state_dict()):
        raise ArgumentError(
            f"model must hold the weights of its config.json, got {name!r} "
            f"where {len(missing) + len(mismatched)} do not fit. Save the model again."
        )
    if missing and labels is None:
        raise ArgumentError(
            f"model must be a trained classifier if labels is not given, got "
            f"{name!r} without {', '.join(missing)}. Fine-tune it first "
            "(smidgen finetune), or give labels for a new head."
        )


def _fit_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set a pad token and a limit, and token types if the model has an embedding of them."""
    limit_to_positions(model, tokenizer)
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ArgumentError(
                "the tokenizer must have a pad token or an end token, got neither. Set "
                "tokenizer.pad_token and save it again."
            )
        tokenizer.pad_token = tokenizer.eos_token
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    # GPT-2 would look up token types among its words; DistilBERT takes none.
    if getattr(model.config, "type_vocab_size", 0) < 2:
        tokenizer.model_input_names = [
            name for name in tokenizer.model_input_names if name != "token_type_ids"
        ]


def refuse_taken_model(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something, unless it is a model to be replaced."""
    refuse_taken(
        folder,
        overwrite=overwrite,
        needed="model*.safetensors*",
        written=_WRITTEN,
        what="model",
    )
