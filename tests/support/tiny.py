"""Tiny real models and tokenizers, saved as folders that transformers can load."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)
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


def gpt2_config(**changes):
    shape = {"vocab_size": len(WORDS), "n_embd": 8, "n_layer": 1, "n_head": 2}
    return GPT2Config(**{**shape, "n_inner": 12, "n_positions": 16, **changes})


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


TWO_MAPS = {
    "distilbert": ("pre_classifier", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
}
"""Families whose new heads have two layers, and the names of these."""


def saved_encoder_of(family, folder):
    """A pretrained encoder of such a family; the same one each time."""
    sizes = {"vocab_size": len(WORDS), "pad_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if family == "distilbert":
            depth = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16}
            config = DistilBertConfig(**sizes, **depth, max_position_embeddings=16)
            return saved(folder, DistilBertModel(config))
        config = RobertaConfig(
            **sizes,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            # Positions begin after that of padding.
            max_position_embeddings=18,
            type_vocab_size=1,
        )
        return saved(folder, RobertaModel(config))
