"""Plain torch: networks that people write themselves, and a Llama with LoRA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional

import smidgen
from tests.zoo.architecture import (
    CLASSES,
    WORDS,
    Architecture,
    classes,
    hugging_face,
    numbers,
    reals,
    several_labels,
    tokens,
)
from tests.zoo.text import HEADS

WIDTH, STEPS, SIDE = 8, 5, 6


def _mlp(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Linear(16, outputs),
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def _group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), _Pool(), nn.Linear(8, CLASSES)
    )


def _depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 1),
        _Pool(),
        nn.Linear(16, CLASSES),
    )


def _conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(WIDTH, 12, 3), nn.ReLU(), _Pool(), nn.Linear(12, CLASSES)
    )


def _conv3d() -> nn.Module:
    return nn.Sequential(nn.Conv3d(2, 8, 2), nn.ReLU(), _Pool(), nn.Linear(8, CLASSES))


class _Pool(nn.Module):
    """The mean over all places."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(2)


class _Residual(nn.Module):
    """A residual block with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(c, 8, 3, padding=1) for c in (3, 8))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.skip, self.head = nn.Conv2d(3, 8, 1), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return self.head(torch.relu(inner + self.skip(x)).mean((2, 3)))


class _Recurrent(nn.Module):
    """What an LSTM or a GRU ends with."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.recurrent = kind(WIDTH, 12, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


class _Encoder(nn.Module):
    """torch's transformer encoder."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class _Attention(nn.Module):
    """torch's attention between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class _UNet(nn.Module):
    """Down, up and across; a class for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 2, stride=2)
        self.leave = nn.Conv2d(20, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        above = torch.relu(self.enter(x))
        below = functional.interpolate(torch.relu(self.down(above)), scale_factor=2)
        return self.leave(torch.cat([above, below], 1)).flatten(2).mT


class _Siamese(nn.Module):
    """One tower for both inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head((self.tower(left) - self.tower(right)).square())


class _TwoInputs(nn.Module):
    """Tokens and numbers, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.words, self.numbers = nn.Linear(8, 12), nn.Linear(WIDTH, 12)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, input_ids: Tensor, values: Tensor) -> Tensor:
        words = torch.relu(self.words(self.embed(input_ids).mean(1)))
        return self.head(torch.cat([words, torch.relu(self.numbers(values))], 1))


class _Autoencoder(nn.Module):
    """A decoder that uses the encoder's weights; only the layer between is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.code = nn.Linear(WIDTH, 12), nn.Linear(12, 4)
        self.between = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        code = self.between(torch.tanh(self.code(torch.tanh(self.enter(x)))))
        hidden = torch.tanh(functional.linear(code, self.code.weight.T))
        return functional.linear(hidden, self.enter.weight.T)


def _lora() -> nn.Module:
    llama = hugging_face("LlamaForSequenceClassification", **HEADS, num_labels=CLASSES)()
    config = LoraConfig(
        r=2, target_modules=["q_proj", "v_proj"], task_type="SEQ_CLS", lora_dropout=0.1
    )
    return get_peft_model(llama, config)


def _draw(
    *shape: int, label: Callable[..., Tensor] = classes
) -> Callable[[torch.Generator], Any]:
    return lambda generator: (reals(generator, *shape), label(generator))


def _draw_pairs(generator: torch.Generator) -> dict[str, Tensor]:
    left, right = reals(generator, WIDTH), reals(generator, WIDTH)
    return {"left": left, "right": right, "labels": classes(generator)}


def _draw_both(generator: torch.Generator) -> dict[str, Tensor]:
    ids = tokens(generator)["input_ids"]
    values, labels = reals(generator, WIDTH), classes(generator)
    return {"input_ids": ids, "values": values, "labels": labels}


def _draw_itself(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = reals(generator, WIDTH)
    return x, x


def _plain(
    name: str, build: Callable[[], nn.Module], draw: Any, **more: Any
) -> Architecture:
    return Architecture(
        name, "plain torch", more.pop("task", "classes"), build, draw, **more
    )


IMAGE, SERIES = _draw(3, SIDE, SIDE), _draw(STEPS, WIDTH)
PLAIN = [
    _plain("MLP", lambda: _mlp(CLASSES), _draw(WIDTH)),
    _plain("MLP", lambda: _mlp(1), _draw(WIDTH, label=numbers), task="numbers"),
    _plain(
        "MLP",
        lambda: _mlp(CLASSES),
        _draw(WIDTH, label=several_labels),
        pose=lambda model: smidgen.Problem(model, smidgen.Bernoulli(CLASSES)),
        task="several labels",
    ),
    _plain("CNN", _cnn, IMAGE),
    _plain("residual CNN with BatchNorm", _Residual, IMAGE),
    _plain("CNN with GroupNorm", _group_norm, IMAGE),
    _plain("depthwise CNN", _depthwise, IMAGE),
    _plain("Conv1d", _conv1d, _draw(WIDTH, STEPS)),
    _plain("Conv3d", _conv3d, _draw(2, 3, 3, 3)),
    _plain(
        "U-Net",
        _UNet,
        _draw(3, SIDE, SIDE, label=lambda g: classes(g, SIDE**2)),
        task="places",
    ),
    _plain("TransformerEncoder", _Encoder, SERIES),
    _plain("MultiheadAttention", _Attention, SERIES),
    _plain("LSTM", lambda: _Recurrent(nn.LSTM), SERIES),
    _plain("GRU", lambda: _Recurrent(nn.GRU), SERIES),
    _plain("siamese towers", _Siamese, _draw_pairs),
    _plain("two inputs", _TwoInputs, _draw_both),
    _plain(
        "weight-tied autoencoder",
        _Autoencoder,
        _draw_itself,
        task="numbers",
        refused={"verify": "uses their weights in a way that smidgen does not see"},
    ),
    _plain(
        "Llama with LoRA",
        _lora,
        lambda g: {**tokens(g), "labels": classes(g)},
    ),
]
