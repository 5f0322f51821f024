"""Tiny real models and tokenizers, saved as folders that transformers can load."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils import logging

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"]
INPUTS = ["input_ids", "token_type_ids", "attention_mask"]


def word_tokenizer(*, bert):
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if not bert:
        return PreTrainedTokenizerFast(
            tokenizer_object=words,
            eos_token="[SEP]",
            model_max_length=16,
            model_input_names=INPUTS,
        )
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=16,
        model_input_names=INPUTS,
    )


def bert_config(**changes):
    return BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        **changes,
    )


def saved(folder, model, *, bert=True):
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        model.save_pretrained(folder)
    word_tokenizer(bert=bert).save_pretrained(folder)
    if bars:
        logging.enable_progress_bar()
    return folder


def saved_encoder(folder):
    """A pretrained encoder; the same one each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return saved(folder, BertModel(bert_config()))
