"""Text: transformers that classify, tag, choose or continue it, tiny and random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smidgen.integrations.causal import make_causal_problem
from tests.zoo.architecture import (
    CLASSES,
    WORDS,
    Architecture,
    classes,
    hugging_face,
    numbers,
    several_labels,
    tags,
    tokens,
)

WORD = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT: dict[str, Any] = {
    **WORD,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
LLAMA = {**BERT, "num_key_value_heads": 1}
HEADS = {**LLAMA, "head_dim": 8}
EXPERTS = {"num_local_experts": 3, "num_experts": 3, "moe_intermediate_size": 12}
MOE = {**HEADS, **EXPERTS, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 12}
GPT2 = {**WORD, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
XLM = {**WORD, "emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 32}
XLNET = {**WORD, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}
BART = {
    **WORD,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
}
T5 = {
    **WORD,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
DISTILBERT = {**BERT, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
FUNNEL = {
    **WORD,
    "d_model": 16,
    "n_head": 2,
    "d_head": 8,
    "d_inner": 24,
    "block_sizes": [1, 1],
    "num_decoder_layers": 1,
}
MODERN = {
    **BERT,
    "global_attn_every_n_layers": 2,
    "local_attention": 8,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
CONVBERT = {**BERT, "embedding_size": 16, "head_ratio": 1, "conv_kernel_size": 3}
PERCEIVER = {
    **WORD,
    "num_latents": 4,
    "d_latents": 16,
    "d_model": 16,
    "num_blocks": 1,
    "num_self_attends_per_block": 1,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 2,
    "max_position_embeddings": 32,
}
MAMBA = {
    **WORD,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "state_size": 4,
    "conv_kernel": 2,
    "expand": 2,
    "tie_word_embeddings": False,
}
MAMBA2 = {**MAMBA, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4}
OPT = {**BERT, "ffn_dim": 24, "word_embed_proj_dim": 16}
# A first token's query has nothing to choose from, and its gradient is zero. Written-out
# attention says so; torch's fused attention leaves rounding there, a fit then counts that
# position where one without rounding would not, and verify disagrees on Llama's first layer.
EAGER = {"attn_implementation": "eager"}
TIED = {"last layer": "'lm_head' makes the outputs and cannot be chosen"}
UNCALLED = "uses weights of .* without a call"


def _draw(
    label: Callable[[torch.Generator], Tensor], *shape: int
) -> Callable[[torch.Generator], dict[str, Tensor]]:
    return lambda generator: {**tokens(generator, *shape), "labels": label(generator)}


def _classify(
    name: str, family: str, sizes: dict[str, Any], *, label: Any = classes, **more: Any
) -> Architecture:
    task = label.__name__.replace("_", " ")
    count = 1 if label is numbers else CLASSES
    build = hugging_face(
        f"{family}ForSequenceClassification", **sizes | {"num_labels": count} | more
    )
    return Architecture(name, "text", task, build, _draw(label))


def _tag(name: str, family: str, sizes: dict[str, Any], **more: Any) -> Architecture:
    build = hugging_face(f"{family}ForTokenClassification", **sizes, num_labels=CLASSES)
    return Architecture(name, "text", "tokens", build, _draw(tags), **more)


def _choose(name: str, family: str, sizes: dict[str, Any]) -> Architecture:
    build = hugging_face(f"{family}ForMultipleChoice", **sizes)
    return Architecture(name, "text", "choices", build, _draw(classes, CLASSES))


def _continue(name: str, made: str, sizes: dict[str, Any], **more: Any) -> Architecture:
    build = hugging_face(made, **sizes)
    pose = make_causal_problem
    return Architecture(name, "text", "next token", build, tokens, pose, **more)


ENCODERS = [
    _classify("BERT", "Bert", BERT),
    _classify("BERT", "Bert", BERT, label=several_labels),
    _classify("BERT", "Bert", BERT, label=numbers),
    _classify("RoBERTa", "Roberta", BERT),
    _classify("XLM-RoBERTa", "XLMRoberta", BERT),
    _classify("CamemBERT", "Camembert", BERT),
    _classify("DistilBERT", "DistilBert", DISTILBERT),
    _classify("ALBERT", "Albert", BERT, embedding_size=8),
    _classify("ELECTRA", "Electra", BERT, embedding_size=8),
    _classify("DeBERTa", "Deberta", BERT),
    _classify("DeBERTa-v2", "DebertaV2", BERT),
    _classify("MPNet", "MPNet", BERT),
    _classify("XLNet", "XLNet", XLNET),
    _classify("XLM", "XLM", XLM),
    _classify("Longformer", "Longformer", BERT, attention_window=4),
    _classify("BigBird", "BigBird", BERT, attention_type="original_full"),
    _classify("Funnel", "Funnel", FUNNEL),
    _classify("ModernBERT", "ModernBert", MODERN),
    _classify("ConvBERT", "ConvBert", CONVBERT),
    _classify("RoFormer", "RoFormer", BERT, embedding_size=16),
    _classify("ESM", "Esm", BERT, mask_token_id=3),
    _classify("FNet", "FNet", BERT),
    _classify("I-BERT", "IBert", BERT),
    _classify("Perceiver", "Perceiver", PERCEIVER),
    _tag("BERT", "Bert", BERT),
    _tag("RoBERTa", "Roberta", BERT),
    _tag("DistilBERT", "DistilBert", DISTILBERT),
    _tag("DeBERTa-v2", "DebertaV2", BERT),
    _tag("XLNet", "XLNet", XLNET),
    _choose("BERT", "Bert", BERT),
    _choose("XLNet", "XLNet", XLNET),
]
DECODERS = [
    _classify("Llama", "Llama", HEADS),
    _classify("Mistral", "Mistral", HEADS),
    _classify("Qwen2", "Qwen2", LLAMA),
    _classify("Qwen3", "Qwen3", HEADS),
    _classify("Gemma", "Gemma", HEADS),
    _classify("Gemma 2", "Gemma2", HEADS),
    _classify("Gemma 3", "Gemma3Text", HEADS, sliding_window=4),
    _classify("GPT-2", "GPT2", GPT2),
    _classify(
        "GPT-Neo",
        "GPTNeo",
        WORD
        | {
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 32,
        },
    ),
    _classify("GPT-NeoX", "GPTNeoX", BERT),
    _classify("GPT-J", "GPTJ", GPT2, rotary_dim=4),
    _classify("OPT", "OPT", OPT),
    _classify("BLOOM", "Bloom", WORD, hidden_size=16, n_layer=2, n_head=2),
    _classify("Falcon", "Falcon", BERT),
    _classify("MPT", "Mpt", WORD, d_model=16, n_heads=2, n_layers=2, max_seq_len=32),
    _classify("Phi", "Phi", LLAMA),
    _classify("Phi-3", "Phi3", LLAMA),
    _classify("OLMo 2", "Olmo2", LLAMA),
    _classify("StarCoder 2", "Starcoder2", LLAMA),
    _classify("Mixtral", "Mixtral", MOE),
    _classify("Qwen3-MoE", "Qwen3Moe", MOE),
    _classify("gpt-oss", "GptOss", MOE),
    _classify("T5", "T5", T5),
    _classify("BART", "Bart", BART),
    _classify("mBART", "MBart", BART),
    _tag("Llama, eager attention", "Llama", HEADS | EAGER),
    _tag("GPT-2, eager attention", "GPT2", GPT2 | EAGER),
    _continue("GPT-2, eager attention", "GPT2LMHeadModel", GPT2 | EAGER, refused=TIED),
    _continue("Llama, eager attention", "LlamaForCausalLM", HEADS | EAGER),
    _continue("Qwen3, eager attention", "Qwen3ForCausalLM", HEADS | EAGER),
    _continue("OPT, eager attention", "OPTForCausalLM", OPT | EAGER, refused=TIED),
    _continue(
        "Mamba",
        "MambaForCausalLM",
        {**MAMBA, "time_step_rank": 2},
        refused=dict.fromkeys(("all layers", "verify"), UNCALLED),
    ),
    _continue(
        "Mamba 2",
        "Mamba2ForCausalLM",
        MAMBA2,
        refused=dict.fromkeys(("all layers", "verify"), UNCALLED),
    ),
]
TEXT = [*ENCODERS, *DECODERS]
