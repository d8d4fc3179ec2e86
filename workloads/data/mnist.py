"""Data sets of digits: drawn ones by default, or MNIST from a folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from perfctl.workloads.spec import WorkloadError, WorkloadOptions, get_first_error_line

MEAN, DEVIATION = 0.1307, 0.3081
"""Of the pixels of MNIST's training images; both data sets are normalised with them."""
TRAIN_IMAGES, TEST_IMAGES = 2048, 512
"""Size of the drawn set: large enough to learn from, small enough for an epoch in seconds on
a CPU."""
IMAGE = 28
CLASSES = 10
MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

_CORNERS = {
    "a": (-0.6, -1.0, 0.6, -1.0),
    "b": (0.6, -1.0, 0.6, 0.0),
    "c": (0.6, 0.0, 0.6, 1.0),
    "d": (-0.6, 1.0, 0.6, 1.0),
    "e": (-0.6, 0.0, -0.6, 1.0),
    "f": (-0.6, -1.0, -0.6, 0.0),
    "g": (-0.6, 0.0, 0.6, 0.0),
}
"""The bars of a seven-segment digit: x0, y0, x1, y1 with y downwards."""
_DIGITS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")


def load_digits(options: WorkloadOptions) -> tuple[Dataset[Any], Dataset[Any]]:
    """Return (train, test) of float32 images 1x28x28, normalised, and int64 labels 0..9. Raises
    WorkloadError."""
    if options.data == "synthetic":
        test = generate_synthetic_digits(TEST_IMAGES, options.seed + 1_000_003)
        return generate_synthetic_digits(TRAIN_IMAGES, options.seed), test
    assert options.data_dir is not None
    return load_mnist(options.data_dir, options.download)


def generate_synthetic_digits(count: int, seed: int) -> TensorDataset:
    """``count`` seven-segment digits, randomly rotated, scaled, shifted and made noisy; equally
    many of each class.

    The same ``seed`` gives the same images to the bit on one machine.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    labels = labels[torch.randperm(count, generator=generator)]
    chunks = [_render_digit_images(part, generator) for part in labels.split(256)]
    images = (torch.cat(chunks) - MEAN) / DEVIATION
    return TensorDataset(images.unsqueeze(1), labels)


def _render_digit_images(labels: Tensor, generator: torch.Generator) -> Tensor:
    """n x 28 x 28 pixels in 0..1: bright near a bar of the digit."""
    n = len(labels)

    def draw_uniform(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(n, generator=generator)).view(n, 1, 1)

    turn, size = draw_uniform(-0.2, 0.2), draw_uniform(6.5, 9.0)
    shift_x, shift_y = draw_uniform(-2.5, 2.5), draw_uniform(-2.0, 2.0)
    thickness, brightness = draw_uniform(0.12, 0.22), draw_uniform(0.7, 1.0)
    grid = torch.arange(IMAGE) - (IMAGE - 1) / 2
    x, y = (grid.view(1, 1, -1) - shift_x) / size, (grid.view(1, -1, 1) - shift_y) / size
    across, down = x * turn.cos() + y * turn.sin(), y * turn.cos() - x * turn.sin()
    nearest = torch.full((n, IMAGE, IMAGE), math.inf)
    for name, bar in _CORNERS.items():
        lit = torch.tensor([name in digit for digit in _DIGITS])[labels].view(n, 1, 1)
        nearest = torch.where(
            lit, torch.minimum(nearest, _measure_distance_to_bar(across, down, bar)), nearest
        )
    ink = (1.5 - nearest / thickness).clamp(0.0, 1.0) * brightness
    noise = 0.1 * torch.randn(n, IMAGE, IMAGE, generator=generator)
    return (ink + noise).clamp(0.0, 1.0)


def _measure_distance_to_bar(
    x: Tensor, y: Tensor, bar: tuple[float, float, float, float]
) -> Tensor:
    """Distance of each point to the line from (x0, y0) to (x1, y1)."""
    x0, y0, x1, y1 = bar
    along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / ((x1 - x0) ** 2 + (y1 - y0) ** 2)
    along = along.clamp(0.0, 1.0)
    return torch.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0))


def load_mnist(folder: Path, download: bool) -> tuple[TensorDataset, TensorDataset]:
    """Return (train, test) of MNIST below ``folder``; fetched only with ``download``. Raises
    WorkloadError."""
    try:
        from torchvision.datasets import MNIST
    except ImportError as error:
        raise WorkloadError(
            f"`data` mnist needs torchvision ({error}): pip install 'perfctl[torch]'"
        ) from error
    raw = folder / "MNIST" / "raw"
    missing = [name for name in MNIST_FILES if not (raw / name).is_file()]
    if missing and not download:
        lacks = f"{', '.join(missing)} missing (unpacked, without .gz)"
        advice = "Set `data_dir` to the folder above MNIST/raw, or use `download`"
        raise WorkloadError(f"MNIST is not in {raw}: {lacks}. {advice}")
    try:
        train, test = (
            MNIST(str(folder), train=train, download=download) for train in (True, False)
        )
    except (RuntimeError, OSError, ValueError, AssertionError) as error:
        problem = "cannot be downloaded" if missing else "cannot be read"
        raise WorkloadError(f"MNIST in {raw} {problem}: {get_first_error_line(error)}") from error
    return _normalize_digits(train), _normalize_digits(test)


def _normalize_digits(digits: Any) -> TensorDataset:
    images = digits.data.to(torch.float32).div_(255).sub_(MEAN).div_(DEVIATION)
    return TensorDataset(images.unsqueeze(1), digits.targets.to(torch.int64))


def count_samples(dataset: Dataset[Any]) -> int:
    return len(dataset)  # type: ignore[arg-type]


def collate_batch(dataset: Dataset[Any], indices: Tensor) -> tuple[Tensor, Tensor]:
    """One batch on the host: (samples, labels) at ``indices``."""
    if isinstance(dataset, TensorDataset):
        inputs, labels = dataset[indices]
    else:
        inputs, labels = default_collate([dataset[int(index)] for index in indices])
    return inputs, labels


def make_fixed_batches(
    dataset: Dataset[Any], batch_size: int, max_batches: int
) -> list[tuple[Tensor, Tensor]]:
    """Up to ``max_batches`` full batches in the data's order; samples repeat when there are too
    few."""
    samples = count_samples(dataset)
    count = min(max_batches, max(1, samples // batch_size))
    return [
        collate_batch(dataset, (torch.arange(batch_size) + i * batch_size) % samples)
        for i in range(count)
    ]
