"""Images with masks (a class per pixel): drawn discs and squares, or the user's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from perfctl.workloads.spec import WorkloadError, get_first_error_line

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
TEST_SHARE = 5
"""Every fifth image is a test image."""
_BACKGROUND, _DISC, _SQUARE = 0, 1, 2


def generate_shape_images_and_masks(count: int, side: int, seed: int) -> TensorDataset:
    """``count`` images 3 x side x side with a disc and a square in random colours, and their
    masks (int64).

    Colours do not depend on the class, so that a model has to learn the outlines. The same ``seed``
    gives the same images to the bit on one machine.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = [
        _render_shape_images_and_masks(min(64, count - start), side, generator)
        for start in range(0, count, 64)
    ]
    return TensorDataset(
        torch.cat([image for image, _ in parts]), torch.cat([mask for _, mask in parts])
    )


def _render_shape_images_and_masks(
    n: int, side: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    def draw_uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=generator)

    line = (torch.arange(side) + 0.5) / side
    x, y = line.view(1, 1, -1), line.view(1, -1, 1)
    images = draw_uniform(-0.5, 0.0, 3, 1, 1).expand(n, 3, side, side).clone()
    mask = torch.full((n, side, side), _BACKGROUND, dtype=torch.int64)
    for kind in (_DISC, _SQUARE):
        across, down = x - draw_uniform(0.25, 0.75, 1, 1), y - draw_uniform(0.25, 0.75, 1, 1)
        reach = draw_uniform(0.14, 0.24, 1, 1)
        distance = (
            torch.hypot(across, down) if kind == _DISC else torch.maximum(across.abs(), down.abs())
        )
        inside = distance < reach
        mask[inside] = kind
        images = torch.where(inside.unsqueeze(1), draw_uniform(0.3, 1.0, 3, 1, 1), images)
    return images + 0.1 * torch.randn(n, 3, side, side, generator=generator), mask


class MaskedImages(Dataset[tuple[Tensor, Tensor]]):
    """Images and masks with equal names, resized to ``side`` x ``side`` when loaded."""

    def __init__(self, pairs: list[tuple[Path, Path]], side: int, classes: int) -> None:
        self._pairs, self._side, self._classes = pairs, side, classes

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return (image: 3 x side x side in -1..1, mask: side x side class numbers). Raises
        WorkloadError naming the file."""
        from PIL import Image

        image_file, mask_file = self._pairs[index]
        image = _open_resized_image(image_file, "RGB", self._side, Image.Resampling.BILINEAR)
        mask = _open_resized_image(mask_file, None, self._side, Image.Resampling.NEAREST)
        if mask.ndim != 2 or int(mask.max()) >= self._classes:
            problem = f"values up to {int(mask.max())}" if mask.ndim == 2 else "several channels"
            raise WorkloadError(
                f"{mask_file} has {problem}: a mask needs one value per pixel, "
                f"0..{self._classes - 1}"
            )
        return image.permute(2, 0, 1).float() / 127.5 - 1, mask.long()


def _open_resized_image(file: Path, mode: str | None, side: int, resampling: Any) -> Tensor:
    import numpy
    from PIL import Image

    try:
        with Image.open(file) as image:
            converted = image.convert(mode) if mode else image
            return torch.from_numpy(numpy.array(converted.resize((side, side), resampling)))
    except (OSError, ValueError, SyntaxError, TypeError) as error:
        raise WorkloadError(
            f"{file} cannot be read as an image ({get_first_error_line(error)}). Remove or "
            "replace it"
        ) from error


def read_images_and_masks(
    folder: Path, side: int, classes: int
) -> tuple[MaskedImages, MaskedImages]:
    """Return (train, test) of ``folder``/images and ``folder``/masks, paired by name without
    suffix. Raises WorkloadError."""
    images, masks = (_map_names_to_files(folder / part) for part in ("images", "masks"))
    lonely = sorted(set(images) ^ set(masks))
    if lonely:
        raise WorkloadError(
            f"{folder}: {lonely[0]} is in only one of images and masks ({len(lonely)} such)"
        )
    pairs = [(images[name], masks[name]) for name in sorted(images)]
    train = [pair for index, pair in enumerate(pairs) if index % TEST_SHARE]
    if not train:
        raise WorkloadError(
            f"{folder} has {len(pairs)} images with masks: too few to train and test"
        )
    return MaskedImages(train, side, classes), MaskedImages(pairs[::TEST_SHARE], side, classes)


def _map_names_to_files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise WorkloadError(
            f"{folder} does not exist. Set `data_dir` to a folder with images/ and masks/"
        )
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES}
