"""The parts of a causal language model: its body, its output layer, what is done to logits."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.runtime.storage.offload import require_loaded


@dataclass(frozen=True)
class LogitScaling:
    """What a model does to logits after its output layer: factor, then a soft cap."""

    factor: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, config: Any) -> LogitScaling:
        """Read it from a config: Cohere multiplies, Granite divides, Gemma caps."""
        factor = getattr(config, "logit_scale", None) or 1.0
        factor /= getattr(config, "logits_scaling", None) or 1.0
        return cls(factor, getattr(config, "final_logit_softcapping", None))

    def __call__(self, logits: Tensor) -> Tensor:
        """Scale logits of any shape."""
        if self.factor != 1:
            logits = logits * self.factor
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()


@dataclass(frozen=True, eq=False)
class CausalParts:
    """A causal language model, which adapters may be in, and its parts; all the caller's own."""

    causal: nn.Module
    backbone: nn.Module
    output: nn.Linear
    scaling: LogitScaling


def split_causal(model: nn.Module) -> CausalParts:
    """Find the parts of a model; refuse one whose output layer is not plain."""
    require_loaded(model, "choosing among answers")
    causal = _unwrap(model)
    output = causal.get_output_embeddings()  # type: ignore[operator]
    if type(output) is not nn.Linear or not output.weight.is_floating_point():
        raise ArgumentError(
            f"model must have a plain output layer, got {type(causal).__name__} with "
            f"{type(output).__name__}. Merge adapters of the output layer, or leave it out "
            "of what is adapted or quantised."
        )
    config = causal.config.get_text_config()  # type: ignore[operator,union-attr]
    return CausalParts(causal, _find_backbone(causal), output, LogitScaling.of(config))


def takes_positions(backbone: nn.Module) -> bool:
    """Whether a body is told the positions of its tokens, and need not count them."""
    return "position_ids" in signature(backbone.forward).parameters


def read_hidden(
    backbone: nn.Module, ids: Tensor, mask: Tensor, positions: Tensor
) -> Tensor:
    """Run a body without a cache: hidden states, (B, T, d)."""
    inputs = {"input_ids": ids, "attention_mask": mask}
    taken = signature(backbone.forward).parameters
    offered: dict[str, Any] = {"position_ids": positions, "use_cache": False}
    inputs |= {name: value for name, value in offered.items() if name in taken}
    hidden: Tensor = backbone(**inputs)[0]
    return hidden


def _unwrap(model: nn.Module) -> nn.Module:
    """Find the causal model that peft has put adapters into."""
    if hasattr(model, "peft_config"):
        if any(config.is_prompt_learning for config in model.peft_config.values()):  # type: ignore[operator]
            raise ArgumentError(
                "model must have adapters in its layers, got one with learned prompts. Use "
                "LoRA."
            )
        model = model.get_base_model()  # type: ignore[operator]
    if not hasattr(model, "get_output_embeddings") or not hasattr(model, "base_model"):
        raise ArgumentError(
            f"model must be a causal language model of transformers, got "
            f"{type(model).__name__}. Load it with AutoModelForCausalLM."
        )
    return model


def _find_backbone(causal: nn.Module) -> nn.Module:
    backbone = causal.base_model
    if backbone is causal or not isinstance(backbone, nn.Module):
        raise ArgumentError(
            f"model must be a causal language model with a body and an output layer, got "
            f"{type(causal).__name__}. Load it with AutoModelForCausalLM."
        )
    return backbone
