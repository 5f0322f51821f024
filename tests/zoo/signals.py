"""Images, sound and video: transformers and convolutional networks, tiny and random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.zoo.architecture import (
    CLASSES,
    WORDS,
    Architecture,
    classes,
    hugging_face,
    reals,
)

SIDE = 16
VIT: dict[str, Any] = {
    "image_size": SIDE,
    "patch_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
SWIN = {
    "image_size": SIDE,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [1, 2],
    "num_heads": [2, 2],
    "window_size": 2,
}
STAGES = {"hidden_sizes": [8, 12], "depths": [1, 1]}
MOBILE = {"depth_multiplier": 0.25, "min_depth": 4, "image_size": SIDE}
CLIP = {
    "vision_config": VIT,
    "text_config": {**VIT, "num_hidden_layers": 1, "vocab_size": WORDS},
}
SPEECH: dict[str, Any] = {
    **{name: VIT[name] for name in VIT if name not in ("image_size", "patch_size")},
    "conv_dim": [8, 8],
    "conv_stride": [4, 4],
    "conv_kernel": [8, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
}
SEGFORMER = {
    **STAGES,
    "num_encoder_blocks": 2,
    "sr_ratios": [2, 1],
    "num_attention_heads": [1, 2],
    "patch_sizes": [3, 3],
    "strides": [2, 2],
    "mlp_ratios": [2, 2],
}
POOLFORMER = {
    **STAGES,
    "num_encoder_blocks": 2,
    "patch_sizes": [3, 3],
    "strides": [2, 2],
    "padding": [1, 1],
}
EFFICIENT = {
    "image_size": SIDE,
    "width_coefficient": 0.0125,
    "depth_coefficient": 1.0,
    "depth_divisor": 4,
    "hidden_dim": 16,
    "kernel_sizes": [3, 3],
    "in_channels": [32, 16],
    "out_channels": [16, 24],
    "strides": [1, 2],
    "num_block_repeats": [1, 1],
    "expand_ratios": [1, 2],
}
AST = {
    **SPEECH,
    "patch_size": 4,
    "frequency_stride": 4,
    "time_stride": 4,
    "max_length": 12,
    "num_mel_bins": 8,
}
WHISPER = {
    "d_model": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "num_mel_bins": 8,
    "max_source_positions": 6,
    "vocab_size": WORDS,
    "classifier_proj_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def _draw(key: str, *shape: int) -> Callable[[torch.Generator], dict[str, Tensor]]:
    return lambda generator: {key: reals(generator, *shape), "labels": classes(generator)}


def _see(name: str, family: str, sizes: dict[str, Any], **more: Any) -> Architecture:
    build = hugging_face(
        f"{family}ForImageClassification", **sizes, **more, num_labels=CLASSES
    )
    return Architecture(
        name, "images", "classes", build, _draw("pixel_values", 3, SIDE, SIDE)
    )


def _hear(name: str, family: str, sizes: dict[str, Any], **more: Any) -> Architecture:
    build = hugging_face(f"{family}ForSequenceClassification", **sizes, num_labels=CLASSES)
    return Architecture(name, "audio", "classes", build, _draw("input_values", 200), **more)


def _watch(name: str, family: str, **sizes: Any) -> Architecture:
    build = hugging_face(
        f"{family}ForVideoClassification", **VIT, **sizes, num_frames=2, num_labels=CLASSES
    )
    draw = _draw("pixel_values", 2, 3, SIDE, SIDE)
    return Architecture(name, "video", "classes", build, draw)


IMAGES = [
    _see("ViT", "ViT", VIT),
    _see("DeiT", "DeiT", VIT),
    _see("BEiT", "Beit", VIT),
    _see("DINOv2", "Dinov2", VIT, mlp_ratio=2),
    _see("Swin", "Swin", SWIN),
    _see("Swin v2", "Swinv2", SWIN),
    _see("ConvNeXt", "ConvNext", STAGES, num_stages=2, patch_size=2),
    _see("ResNet", "ResNet", STAGES, embedding_size=8, layer_type="basic"),
    _see("RegNet", "RegNet", STAGES, embedding_size=8, groups_width=4),
    _see("MobileNet v1", "MobileNetV1", MOBILE),
    _see("MobileNet v2", "MobileNetV2", MOBILE, depth_divisible_by=4),
    _see("EfficientNet", "EfficientNet", EFFICIENT),
    _see("SegFormer", "Segformer", SEGFORMER),
    _see("PoolFormer", "PoolFormer", POOLFORMER),
    _see("CLIP", "CLIP", CLIP),
    _see("SigLIP", "Siglip", CLIP),
]
SOUNDS = [
    _hear("Wav2Vec2", "Wav2Vec2", SPEECH),
    _hear("HuBERT", "Hubert", SPEECH),
    _hear(
        "WavLM",
        "WavLM",
        SPEECH,
        refused=dict.fromkeys(
            ("all layers", "verify"), "uses weights of .* without a call"
        ),
    ),
    Architecture(
        "AST",
        "audio",
        "classes",
        hugging_face("ASTForAudioClassification", **AST, num_labels=CLASSES),
        _draw("input_values", 12, 8),
    ),
    Architecture(
        "Whisper",
        "audio",
        "classes",
        hugging_face("WhisperForAudioClassification", **WHISPER, num_labels=CLASSES),
        _draw("input_features", 8, 12),
    ),
]
VIDEOS = [
    _watch("VideoMAE", "VideoMAE", tubelet_size=1),
    _watch("TimeSformer", "Timesformer"),
]
SIGNALS = [*IMAGES, *SOUNDS, *VIDEOS]
