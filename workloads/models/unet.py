"""Workload: U-Net, an encoder and decoder of four levels with skip connections that classifies
every pixel.

Source: O. Ronneberger, P. Fischer, T. Brox, "U-Net", MICCAI 2015; here with padding, so that a mask
has its image's size, and with batch normalisation, so that the 3x3 convolutions need no bias.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfctl.workloads.interface import WorkloadParts
from perfctl.workloads.spec import (
    SpecError,
    WorkloadOptions,
    declare_number_option,
    declare_option,
    make_argparse_integer_type,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

NAME = "unet"
ABOUT = (
    "U-Net: images to a class for every pixel (background, disc, square), 3 x 128 x 128 by "
    "default; Adam, lr 1e-3."
)
SAME_NETWORK = ("samples",)
"""Own options that change the amount of data, not the model."""

LEVELS = 4
"""How often the image is halved; its sides are multiples of 2**LEVELS."""
CHANNELS = CLASSES = 3
WIDTH = 64
UPSAMPLINGS = ("transposed", "bilinear")


def _parse_image_side(text: str) -> int:
    number, step = make_argparse_integer_type(1)(text), 1 << LEVELS
    if number % step:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a multiple of {step}: the image is halved {LEVELS} times"
        )
    return number


@dataclass
class Own:
    base_width: int = declare_number_option(
        1, WIDTH, "channels at full resolution (default: 64)", heading=NAME
    )
    image_size: int = declare_option(
        128,
        "width and height of an image, a multiple of 16 (128)",
        type=_parse_image_side,
        metavar="N",
    )
    classes: int = declare_number_option(2, CLASSES, "classes of a pixel (default: 3)")
    upsampling: str = declare_option(
        UPSAMPLINGS[0],
        "upsampling of the decoder: transposed convolution, or bilinear and a 1x1 convolution "
        "(%(default)s)",
        choices=UPSAMPLINGS,
    )
    samples: int = declare_number_option(4, 256, "synthetic images to train on (256)")


def check(options: WorkloadOptions, model_options: Own) -> WorkloadOptions:
    if options.data not in ("synthetic", "folder"):
        raise SpecError(
            f"{NAME} needs masks: `data` must be folder (images and masks in `data_dir`) or "
            "synthetic"
        )
    if options.data == "synthetic" and model_options.classes < CLASSES:
        least = f"at least {CLASSES} (background, disc, square)"
        raise SpecError(
            f"`classes` of synthetic masks must be {least}, got {model_options.classes}"
        )
    return options


def build(options: WorkloadOptions, model_options: Own) -> WorkloadParts:
    """Model, loss, optimizer and data on the CPU. Raises WorkloadError when the data is missing."""
    import torch
    from torch.nn.functional import cross_entropy

    from perfctl.workloads.data.shapes import generate_shape_images_and_masks, read_images_and_masks

    model = build_unet(model_options.base_width, model_options.classes, model_options.upsampling)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if options.data == "folder":
        assert options.data_dir is not None
        masked = read_images_and_masks(
            options.data_dir, model_options.image_size, model_options.classes
        )
        return WorkloadParts(
            model, cross_entropy, optimizer, *masked, overlap=model_options.classes
        )
    train = generate_shape_images_and_masks(
        model_options.samples, model_options.image_size, options.seed
    )
    test = generate_shape_images_and_masks(
        max(model_options.samples // 4, 1), model_options.image_size, options.seed + 1_000_003
    )
    return WorkloadParts(
        model, cross_entropy, optimizer, train, test, overlap=model_options.classes
    )


def build_unet(
    width: int = WIDTH, classes: int = CLASSES, upsampling: str = UPSAMPLINGS[0]
) -> nn.Module:
    """Input: batch x 3 x H x W; output: batch x classes x H x W, before softmax. Every operation is
    a named submodule."""
    import torch
    from torch import nn

    class UNet(nn.Module):
        """``enc0`` ... ``enc4`` downwards, ``up3 dec3`` ... ``up0 dec0`` upwards, ``head``."""

        def __init__(self) -> None:
            super().__init__()
            self.enc0 = _make_two_convolutions(CHANNELS, width)
            for level in range(1, LEVELS + 1):
                self.add_module(f"pool{level}", nn.MaxPool2d(2))
                self.add_module(
                    f"enc{level}", _make_two_convolutions(width << (level - 1), width << level)
                )
            for level in reversed(range(LEVELS)):
                self.add_module(
                    f"up{level}", _make_upsampling(width << (level + 1), width << level, upsampling)
                )
                self.add_module(
                    f"dec{level}", _make_two_convolutions(width << (level + 1), width << level)
                )
            self.head = nn.Conv2d(width, classes, 1)

        def forward(self, images: Tensor) -> Tensor:
            states = [self.enc0(images)]
            for level in range(1, LEVELS + 1):
                pooled = self.get_submodule(f"pool{level}")(states[-1])
                states.append(self.get_submodule(f"enc{level}")(pooled))
            state: Tensor = states.pop()
            for level in reversed(range(LEVELS)):
                state = self.get_submodule(f"up{level}")(state)
                state = self.get_submodule(f"dec{level}")(torch.cat([states.pop(), state], dim=1))
            return self.head(state)  # type: ignore[no-any-return]

    return UNet()


def _make_two_convolutions(in_channels: int, out_channels: int) -> nn.Module:
    from torch import nn

    def make_conv_norm_relu(channels: int) -> tuple[nn.Module, ...]:
        conv = nn.Conv2d(channels, out_channels, 3, padding=1, bias=False)
        return conv, nn.BatchNorm2d(out_channels), nn.ReLU()

    return nn.Sequential(*make_conv_norm_relu(in_channels), *make_conv_norm_relu(out_channels))


def _make_upsampling(in_channels: int, out_channels: int, upsampling: str) -> nn.Module:
    """Twice the width and height, ``out_channels`` channels."""
    from torch import nn

    if upsampling == "transposed":
        return nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
    return nn.Sequential(
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        nn.Conv2d(in_channels, out_channels, 1),
    )
