"""References of scripts/proof/accuracy/accuracy.py: published figures, hand values, and how each
model is built."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models

from perfctl.workloads.models.source import build_model
from perfctl.workloads.models.torchvision import find_torchvision_input_shape

ROUNDING = 0.0005
"""GMAC: published figures have three decimals."""


@dataclass(frozen=True, slots=True)
class Published:
    """One torchvision model as its documentation states it."""

    name: str
    family: str
    gmac: float
    parameters: int


def rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def published(folder: Path) -> list[Published]:
    """Every model once, in the file's order."""
    found = {
        row["model"]: Published(
            row["model"], row["family"], float(row["published_ops_GMAC"]), int(row["num_params"])
        )
        for row in rows(folder / "torchvision_ops.csv")
    }
    return list(found.values())


def build(name: str, family: str, train: bool, device: str = "meta") -> nn.Module:
    """The model in the form of the published figure (for training with its own defaults), without
    its weights."""
    settings: dict[str, Any] = {}
    if family in ("segmentation", "detection"):
        settings["weights_backbone"] = None
    if family == "segmentation" and "lraspp" not in name:
        settings["aux_loss"] = True
    if "googlenet" in name or "inception" in name:
        settings |= {"init_weights": False, "aux_logits": train or "inception" in name}
    if name == "quantized_inception_v3":
        settings["aux_logits"] = True
    size = find_torchvision_input_shape(name)
    if name.startswith("vit_") and size:
        settings["image_size"] = size[-1]
    return build_model(lambda: models.get_model(name, weights=None, **settings), name, device)


def inputs(name: str, batch: int, device: str = "meta") -> tuple[torch.Tensor, ...]:
    """A 512 x 512 image or clip after the weights' own preprocessing."""
    size = find_torchvision_input_shape(name)
    assert size is not None
    count = 2 if name.startswith("raft") else 1
    return tuple(torch.zeros((batch, *size), device=device) for _ in range(count))


def _twice(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Four levels down and up, 3 classes: 31,037,763 parameters."""

    def __init__(self) -> None:
        super().__init__()
        wide = (64, 128, 256, 512, 1024)
        self.inc = _twice(3, 64)
        self.downs = nn.ModuleList(_twice(a, b) for a, b in pairwise(wide))
        back = wide[::-1]
        self.ups = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairwise(back))
        self.ucs = nn.ModuleList(_twice(a, b) for a, b in pairwise(back))
        self.outc = nn.Conv2d(64, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.inc(x)]
        for down in self.downs:
            kept.append(down(nn.functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, block in zip(self.ups, self.ucs, strict=True):
            x = block(torch.cat([kept.pop(), up(x)], 1))
        return self.outc(x)


class BiLSTM(nn.Module):
    """Two layers, both directions: 2,372,618 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 256, 2, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


def _mnist() -> nn.Module:
    from perfctl.workloads.models.mnist_cnn import build_mnist_cnn

    return build_mnist_cnn()


def _torchvision(name: str) -> Callable[[], nn.Module]:
    return lambda: models.get_model(name, weights=None)


HAND: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mnist_b16": (_mnist, (16, 1, 28, 28)),
    "unet_b1": (UNet, (1, 3, 128, 128)),
    "bilstm_b32_t100": (BiLSTM, (32, 100, 128)),
    "resnet18_b32": (_torchvision("resnet18"), (32, 3, 224, 224)),
    "vgg16_b32": (_torchvision("vgg16"), (32, 3, 224, 224)),
    "dwconv_only": (
        lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, groups=64)),
        (8, 64, 32, 32),
    ),
    "groupconv_g4": (
        lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, groups=4)),
        (8, 64, 32, 32),
    ),
}
"""The models of train_layers.csv and their inputs."""


class Attend(nn.Module):
    """scaled_dot_product_attention alone: 4 heads, 50 positions, 16 wide."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


class SelfAttention(nn.Module):
    """nn.MultiheadAttention on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


PROBES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "LSTM": (lambda: nn.LSTM(32, 64, 2, bidirectional=True), (20, 2, 32), 5_898_240),
    "GRU": (lambda: nn.GRU(32, 64), (20, 2, 32), 737_280),
    "SDPA": (Attend, (2, 4, 50, 16), 640_000),
    "MHA": (SelfAttention, (2, 50, 64), 2_278_400),
}
"""Layers that counters get wrong by device: model, input, hand value in MAC (layer_probe.csv)."""
