"""Tiny real models and tokenizers, saved as folders that transformers can load."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
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


CHAT = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>"
    "{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


def byte_tokenizer(**changes):
    """Bytes and the words of a few reviews, as GPT-2 reads them: a space belongs to its word."""
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    reviews = ["Review: a fine film, a dull plot\nSentiment: positive negative mixed"] * 4
    trainer = trainers.BpeTrainer(
        vocab_size=350,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator(reviews, trainer)
    named = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        **{**named, "model_max_length": 64, "chat_template": CHAT, **changes},
    )


def tiny_llama(*, tied=False, seed=0, **changes):
    """A random Llama for `byte_tokenizer`, in float64."""
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(
        vocab_size=350,
        **{**sizes, **heads, "max_position_embeddings": 64, **changes},
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).double().eval()
        for parameter in model.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model
