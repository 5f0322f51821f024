"""How many tokens of a text a model reads."""

import pytest
import torch
from torch import nn
from transformers import (
    BartConfig,
    BartModel,
    BertForSequenceClassification,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    RobertaConfig,
    RobertaModel,
)

from smidgen.errors import ArgumentError
from smidgen.integrations.huggingface import load_classifier
from smidgen.integrations.text_length import TextLength, limit_to_positions
from tests.support.tiny import bert_config, gpt2_config, saved, word_tokenizer

SMALL = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
HEADS = {**SMALL, "num_attention_heads": 2}


def make_bert(positions=8):
    config = bert_config(num_labels=2)
    config.max_position_embeddings = positions
    return BertForSequenceClassification(config)


def make_gpt2():
    return GPT2Model(gpt2_config(n_positions=9))


def make_bart():
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    more = {"decoder_ffn_dim": 8, "d_model": 8, "max_position_embeddings": 10}
    return BartModel(BartConfig(vocab_size=8, **layers, **heads, **more))


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (make_bert, 8),
        (make_gpt2, 9),
        (make_bart, 10),
        (lambda: RobertaModel(RobertaConfig(**HEADS, max_position_embeddings=14)), 12),
        # Rotary positions have no end.
        (lambda: LlamaModel(LlamaConfig(**HEADS, max_position_embeddings=4)), 16),
        (lambda: make_bert(100), 16),
        (lambda: nn.Linear(2, 2), 16),
    ],
)
def test_a_tokenizer_cuts_to_the_positions_of_its_model(make, most):
    model, tokenizer = make(), word_tokenizer(bert=True)
    limit_to_positions(model, tokenizer)
    assert tokenizer.model_max_length == most
    if most < 16:
        ids = torch.full((1, most), 4)
        model(input_ids=ids)
        with pytest.raises((RuntimeError, IndexError)):
            model(input_ids=torch.full((1, most + 1), 4))


def test_a_loaded_tokenizer_is_limited(tmp_path):
    _, tokenizer = load_classifier(saved(tmp_path / "model", make_bert()))
    assert tokenizer.model_max_length == 8
    assert TextLength().fit(tokenizer) == 8
    assert TextLength(usual=5).fit(tokenizer) == 5
    assert TextLength(8).fit(tokenizer) == 8
    with pytest.raises(ArgumentError, match=r"^--max-length must be at most 8, .*got 9\."):
        TextLength(9).fit(tokenizer)


def test_a_cut_is_said():
    assert TextLength().describe_cut(8) == (
        "texts are cut to 8 tokens, the most that this model reads"
    )
    assert TextLength().describe_cut(128) is None
    assert TextLength(8).describe_cut(8) is None
