"""A tiny data set of ImageNet's shape: one plain colour a class, and a SqueezeNet whose weights
tell them apart.

Everything is made here, nothing is downloaded. The network hands the three colour channels through
(zero but for a few ones), so that its answers can be worked out by hand: the answer of a class is a
fixed mix of the channels.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import models

COLOURS = {
    "n00000001": (255, 0, 0),
    "n00000002": (0, 255, 0),
    "n00000003": (0, 0, 255),
    "n00000004": (255, 255, 0),
    "n00000005": (255, 0, 255),
    "n00000006": (0, 255, 255),
    "n00000007": (255, 255, 255),
}
"""Class folder -> colour; classes in the order of their numbers."""
CLASSES = len(COLOURS)
MODEL = "squeezenet1_1"


def write_images(folder: Path, each: int = 2, said: dict[str, str] | None = None) -> None:
    """``each`` PNG a class. ``said`` puts the colour of one class into the folder of another: class
    -> colour of."""
    for name in COLOURS:
        (folder / name).mkdir(parents=True, exist_ok=True)
        colour = COLOURS[(said or {}).get(name, name)]
        for number in range(each):
            Image.new("RGB", (300, 260), colour).save(folder / name / f"image{number}.png")


def network() -> nn.Module:
    """SqueezeNet whose answer for a class is the sum of its colour's channels, minus that of the
    others, halved."""
    model = models.squeezenet1_1(weights=None, num_classes=CLASSES)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.zero_()
                if module.bias is not None:
                    module.bias.zero_()
        _hand_on(model.features[0])  # type: ignore[index]
        for part in model.features[1:]:  # type: ignore[index]
            if hasattr(part, "squeeze"):
                _hand_on(part.squeeze)
                _hand_on(part.expand1x1)
        last = model.classifier[1]  # type: ignore[index]
        last.weight[:, :3, 0, 0] = mix()
        # The network ends in a ReLU: this lifts every answer above 0.
        last.bias.fill_(20.0)
    return model.eval()


def mix() -> Tensor:
    """Classes x channels: +1 for a channel of the class's colour, -1 for others."""
    return torch.tensor(
        [[1.0 if level else -1.0 for level in colour] for colour in COLOURS.values()]
    )


def _hand_on(layer: nn.Conv2d) -> None:
    """The first three channels out are the first three in, each pixel for itself."""
    middle = layer.kernel_size[0] // 2
    for channel in range(3):
        layer.weight[channel, channel, middle, middle] = 1.0


def answers(colour: tuple[int, int, int]) -> list[float]:
    """By hand: ImageNet's normalisation, negative channels cut off by ReLU, the mix, the lift."""
    means, deviations = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    seen = [
        max((level / 255 - mean) / by, 0.0)
        for level, mean, by in zip(colour, means, deviations, strict=True)
    ]
    return [
        20.0 + sum(weight * value for weight, value in zip(row, seen, strict=True))
        for row in mix().tolist()
    ]


def slow(answers: list[list[float]], targets: list[int]) -> tuple[int, int, float]:
    """Sort each row, largest first and smaller class first among equals."""
    first = among = 0
    loss = 0.0
    for row, target in zip(answers, targets, strict=True):
        order = sorted(range(len(row)), key=lambda place: (-row[place], place))
        first += order[0] == target
        among += target in order[:5]
        loss += math.log(sum(math.exp(value) for value in row)) - row[target]
    return first, among, loss


def save(file: Path) -> Path:
    """The checkpoint."""
    torch.save(network().state_dict(), file)
    return file
