"""Workload: a small convolutional network for MNIST, with two convolutions and two
linear layers."""

from __future__ import annotations

import argparse
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfctl.workloads.interface import WorkloadParts
from perfctl.workloads.spec import SpecError, WorkloadOptions, declare_option

if TYPE_CHECKING:
    from torch import nn

NAME = "mnist_cnn"
ABOUT = (
    "MNIST CNN: two 3x3 convolutions, a pool and two linear layers on 1x28x28 images; Adadelta, lr "
    "1.0, decay 0.7."
)

IMAGE = 28
CONV1 = (1, 32, 3, 1)
CONV2 = (32, 64, 3, 1)
"""Input channels, output channels, kernel width, stride."""
POOL = 2
HIDDEN = 128
CLASSES = 10


def compute_pooled_width(conv2: tuple[int, int, int, int]) -> int:
    """Width of fc1's input image; 0 or less when ``conv2`` does not fit."""
    _, _, kernel, stride = conv2
    width = IMAGE - CONV1[2] + 1
    return ((width - kernel) // stride + 1) // POOL


def _parse_conv2(text: str) -> tuple[int, int, int, int]:
    try:
        into, out_channels, kernel, stride = map(int, text.split(","))
    except ValueError:
        into = out_channels = kernel = stride = 0
    conv2 = (into, out_channels, kernel, stride)
    if min(conv2) < 1:
        four = "four whole numbers of at least 1"
        raise argparse.ArgumentTypeError(f"expected IN,OUT,KERNEL,STRIDE, {four}, got {text!r}")
    if into != CONV1[1]:
        raise argparse.ArgumentTypeError(
            f"{text!r} must begin with {CONV1[1]}, the output channels of conv1"
        )
    if compute_pooled_width(conv2) < 1:
        width = IMAGE - CONV1[2] + 1
        sizes = f"gets {width}x{width} from conv1 and must leave {POOL}x{POOL} for the pool"
        raise argparse.ArgumentTypeError(f"{text!r} does not fit: conv2 {sizes}")
    return conv2


@dataclass
class Own:
    conv2: tuple[int, int, int, int] = declare_option(
        CONV2,
        "shape of the second convolution (default: 32,64,3,1)",
        heading=NAME,
        type=_parse_conv2,
        metavar="IN,OUT,KERNEL,STRIDE",
    )


def check(options: WorkloadOptions, model_options: Own) -> WorkloadOptions:
    if options.data not in ("synthetic", "mnist"):
        raise SpecError("mnist_cnn needs digits: `data` must be mnist or synthetic")
    return options


def build(options: WorkloadOptions, model_options: Own) -> WorkloadParts:
    """Model, loss, optimizer and data on the CPU. Raises WorkloadError when the data is missing."""
    import torch
    from torch.nn.functional import nll_loss

    from perfctl.workloads.data.mnist import load_digits

    model = build_mnist_cnn(model_options.conv2)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    return WorkloadParts(model, nll_loss, optimizer, *load_digits(options), scheduler)


def build_mnist_cnn(conv2: tuple[int, int, int, int] = CONV2) -> nn.Module:
    """Input: batch x 1 x 28 x 28; output: batch x 10 log-probabilities. Every operation is a
    named submodule."""
    from torch import nn

    pooled = compute_pooled_width(conv2)

    class MnistCNN(nn.Sequential):
        """Runs its submodules in order."""

    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(*CONV1),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(*conv2),
        relu2=nn.ReLU(),
        pool=nn.MaxPool2d(POOL),
        dropout1=nn.Dropout(0.25),
        flatten=nn.Flatten(),
        fc1=nn.Linear(conv2[1] * pooled * pooled, HIDDEN),
        relu3=nn.ReLU(),
        dropout2=nn.Dropout(0.5),
        fc2=nn.Linear(HIDDEN, CLASSES),
        log_softmax=nn.LogSoftmax(dim=1),
    )
    return MnistCNN(layers)
