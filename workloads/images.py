"""Images for inference: a folder of class folders, or noise of a photograph's size. Corrupt files are skipped."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from perfctl.workloads.imagenet_val import CLASS_LIST
from perfctl.workloads.spec import WorkloadError

SUFFIXES = (".jpeg", ".jpg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff", ".pgm")
HEIGHT, WIDTH = 375, 500
"""Size of a synthetic image, that of most photographs in ImageNet."""
FRAMES = 16
"""Frames of a synthetic clip."""
_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)
"""What Pillow raises for damaged files, depending on format and damage."""
_SHOWN = 5

Transforms = Callable[[Any], Tensor]


class ClassFolders(Dataset[tuple[Tensor, int]]):
    """``paths`` with their class numbers. An unreadable file gives a blank image with target -1 - index."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], transforms: Transforms) -> None:
        self.paths = paths
        self.labels = labels
        self._transforms = transforms

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        from PIL import Image

        try:
            with Image.open(self.paths[place]) as image:
                return self._transforms(image.convert("RGB")), self.labels[place]
        except (*_UNREADABLE, Image.DecompressionBombError):
            return self._transforms(Image.new("RGB", (WIDTH, HEIGHT))), -1 - place

    def problem(self, place: int) -> str:
        """Why an image cannot be read, in one line."""
        from PIL import Image

        try:
            with Image.open(self.paths[place]) as image:
                image.convert("RGB")
        except (*_UNREADABLE, Image.DecompressionBombError) as error:
            return (str(error).splitlines() or [type(error).__name__])[0].replace(str(self.paths[place]), "it")
        return "it could not be read during the run"


class Noise(Dataset[tuple[Tensor, int]]):
    """``count`` images (or clips) of random pixels, preprocessed like photographs; all of class 0."""

    def __init__(self, count: int, seed: int, transforms: Transforms, frames: int | None = None) -> None:
        self._count = count
        self._seed = seed
        self._transforms = transforms
        self._shape = (3, HEIGHT, WIDTH) if frames is None else (frames, 3, HEIGHT, WIDTH)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + place)
        pixels = torch.randint(256, self._shape, dtype=torch.uint8, generator=generator)
        return self._transforms(pixels), 0


def read_folder(folder: Path, classes: int, transforms: Transforms) -> ClassFolders:
    """All images in the class folders of ``folder``.

    The number of a class is its index in ``classes.txt`` (written by perfctl prepare), else among the sorted folders.
    Raises WorkloadError when their number is not ``classes``, that of the model.
    """
    if not folder.is_dir():
        raise WorkloadError(f"`data_dir`: {folder} is not a folder")
    there = sorted(child.name for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    names = _listed(folder / CLASS_LIST) or there
    if missing := [name for name in names if name not in set(there)]:
        raise WorkloadError(
            f"{folder} lacks {len(missing)} of the {len(names)} class folders in {CLASS_LIST}: {_some(missing)}. "
            "Run perfctl prepare imagenet-val again to restore them"
        )
    if len(names) != classes:
        raise WorkloadError(
            f"{folder} has {len(names)} class folders, but the model has {classes} classes, so the folders' class numbers "
            f"are unknown. Create all {classes} folders (they may be empty), or list their names in "
            f"{folder / CLASS_LIST}, one per line, in the model's order"
        )
    paths: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(names):
        found = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in SUFFIXES)
        paths += found
        labels += [number] * len(found)
    if not paths:
        raise WorkloadError(f"no images in the {len(names)} class folders of {folder} ({', '.join(SUFFIXES[:3])}, ...)")
    return ClassFolders(paths, labels, transforms)


def _listed(file: Path) -> list[str]:
    """The names in the list of classes; empty without the file."""
    if not file.is_file():
        return []
    return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def sample_images(dataset: ClassFolders, count: int, seed: int) -> ClassFolders:
    """``count`` images drawn with ``seed``, the same for every model and batch size."""
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))[:count].tolist()
    return ClassFolders(
        [dataset.paths[place] for place in order], [dataset.labels[place] for place in order], dataset._transforms
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
