"""One architecture of the zoo: how to make it tiny, and batches for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.utils import logging

import smidgen

logging.set_verbosity_error()

EXAMPLES, CLASSES, WORDS, TOKENS = 4, 3, 20, 6


@dataclass(frozen=True)
class Architecture:
    """A row of the table.

    Args:
        name: What the page calls it.
        kind: What it reads.
        task: What its outputs are.
        build: Makes the network.
        draw: Draws a labelled batch from a generator.
        pose: Makes a problem of the network.
        refused: What is rightly refused, by step, and how the sentence goes that says so.
    """

    name: str
    kind: str
    task: str
    build: Callable[[], nn.Module]
    draw: Callable[[torch.Generator], Any]
    pose: Callable[[nn.Module], smidgen.Problem] = smidgen.Problem
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name it and its task, as no other row is."""
        return f"{self.name}: {self.task}"

    def make(self) -> nn.Module:
        """Make the network, with weights that are the same each time and far from zero."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.build().eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    def batches(self, count: int, seed: int) -> list[Any]:
        """Draw labelled batches."""
        generator = torch.Generator().manual_seed(seed)
        return [self.draw(generator) for _ in range(count)]


def hugging_face(name: str, **sizes: Any) -> Callable[[], nn.Module]:
    """Tell how to build a class of transformers with a config of these sizes."""

    def build() -> nn.Module:
        made = getattr(transformers, name)
        return made(made.config_class(**sizes))

    return build


def classes(generator: torch.Generator, *shape: int, count: int = CLASSES) -> Tensor:
    """Draw a class for each example, or for each place of it."""
    return torch.randint(count, (EXAMPLES, *shape), generator=generator)


def several_labels(generator: torch.Generator) -> Tensor:
    """Draw several labels for each example, zero or one."""
    return classes(generator, CLASSES, count=2).float()


def numbers(generator: torch.Generator) -> Tensor:
    """Draw a number for each example."""
    return reals(generator, 1)


def tags(generator: torch.Generator) -> Tensor:
    """Draw a class for each token."""
    return classes(generator, TOKENS)


def reals(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw inputs, or targets, that are real numbers."""
    return torch.randn(EXAMPLES, *shape, generator=generator)


def tokens(generator: torch.Generator, *shape: int) -> dict[str, Tensor]:
    """Draw texts that end with a token 2; the first is shorter and padded with zeros."""
    ids = torch.randint(3, WORDS, (EXAMPLES, *shape, TOKENS), generator=generator)
    ids[..., -1] = 2
    ids[0, ..., -3:] = torch.tensor([2, 0, 0])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}
