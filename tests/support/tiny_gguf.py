"""A tiny Llama as a GGUF file, with its tokenizer."""

from __future__ import annotations

import json

import gguf

_OUTER = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_INNER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def save_gguf(path, model, tokenizer):
    """Write the file."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    held = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    words = sorted(held["vocab"], key=held["vocab"].get)
    words += [f"<extra{number}>" for number in range(config.vocab_size - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_merges([" ".join(pair) for pair in held["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    names = dict(_OUTER)
    for number in range(config.num_hidden_layers):
        for theirs, short in _INNER.items():
            names[f"model.layers.{number}.{theirs}"] = f"blk.{number}.{short}"
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        module, value = name.removesuffix(".weight"), parameter.detach().float()
        count = heads.get(module.split(".")[-1])
        if count is not None:
            # Rotations turn neighbours here, and halves in transformers.
            halves = value.view(count, 2, -1, value.shape[1])
            value = halves.transpose(1, 2).reshape(value.shape)
        writer.add_tensor(f"{names[module]}.weight", value.numpy().copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
