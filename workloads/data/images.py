"""Images for inference: a folder of class folders, or noise of a photograph's size. Corrupt files are skipped."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from perfctl.records.report import Gap, Summary
from perfctl.workloads.data.imagenet import CLASS_LIST
from perfctl.workloads.data.mnist import size
from perfctl.workloads.spec import WorkloadError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


TOP = 5


class Score:
    """Sums over the images so far. Images with a target below 0 were unreadable and do not count."""

    def __init__(self) -> None:
        self.images = 0
        """Scored: read, with a known class."""
        self.first = 0
        """The correct class has the largest output."""
        self.among = 0
        """The correct class is among the TOP largest outputs."""
        self.loss = 0.0
        """Sum of cross-entropies, in nats, over images with finite outputs."""
        self.unclear = 0
        """Images with a non-finite output: counted as wrong, left out of the loss."""

    def add(self, answers: NDArray[np.float32], targets: NDArray[np.int64]) -> tuple[float | None, float | None]:
        """``answers``: images x classes, before softmax. Returns (mean loss, top-1) of this batch; None without images.

        Among equal outputs, the class with the smaller number counts as larger.
        """
        import numpy as np

        known = targets >= 0
        given, targets = answers[known].astype(np.float64), targets[known]
        finite = np.isfinite(given).all(axis=1)
        right = given[np.arange(len(targets)), targets][:, None]
        with np.errstate(invalid="ignore"):
            equal = (given == right) & (np.arange(given.shape[1]) < targets[:, None])
            before = ((given > right) | equal).sum(axis=1)
        first, among = int((finite & (before < 1)).sum()), int((finite & (before < TOP)).sum())
        losses = _cross_entropy(given[finite], right[finite])
        self.images += len(targets)
        self.first += first
        self.among += among
        self.loss += float(losses.sum())
        self.unclear += int((~finite).sum())
        return (float(losses.mean()) if len(losses) else None, first / len(targets) if len(targets) else None)


def _cross_entropy(answers: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    if not len(answers):
        return np.zeros(0)
    largest = answers.max(axis=1, keepdims=True)
    total: NDArray[np.float64] = (np.log(np.exp(answers - largest).sum(axis=1, keepdims=True)) + largest - right)[:, 0]
    return total


Batch = tuple[Tensor, Tensor]
FIGURES = ("top1", f"top{TOP}", "loss")
_NAMED = 5
"""Unreadable images to name; more are only counted."""


@dataclass(slots=True)
class ImageFeed:
    """A ``spec.Feed``: batches in the data set's order, the same in every pass."""

    dataset: Dataset[Any]
    batch_size: int
    workers: int
    """Processes that load images; 0: the computing process does."""
    pinned: bool
    no_accuracy: str | None
    """Why outputs are not scored; None when they are."""
    problem: Callable[[int], str] | None = None
    """Index of an unreadable image -> its file and the reason."""
    notes: tuple[Gap, ...] = ()
    """Gaps known beforehand."""
    score: Score = field(default_factory=Score)
    seen: int = 0
    skipped: list[int] = field(default_factory=list)
    """Indices of unreadable images."""
    classes: int | None = None

    @property
    def steps(self) -> int:
        """Full batches of the pass."""
        return size(self.dataset) // self.batch_size

    def warm_up(self, count: int) -> Iterator[Batch]:
        """``count`` batches, repeating the first full ones; loaded in this process."""
        made = min(count, self.steps)
        loader = DataLoader(Subset(self.dataset, range(made * self.batch_size)), self.batch_size)
        return islice(cycle(list(loader)), count)

    def batches(self) -> Iterator[Batch]:
        """Full batches, then the rest. Loading may start at once."""
        loader = DataLoader(self.dataset, self.batch_size, num_workers=self.workers, pin_memory=self.pinned)
        return iter(loader)

    def take(self, outputs: Any, targets: Tensor) -> tuple[float | None, float | None]:
        """Score one batch of outputs on the host: (mean loss, top-1) of the batch; None when not scored."""
        labels = targets.numpy()
        self.seen += len(labels)
        self.skipped += [-1 - int(label) for label in labels if label < 0]
        if self.no_accuracy is not None:
            return None, None
        return self.score.add(outputs.to(torch.float32).numpy(), labels)

    def summaries(self) -> list[Summary]:
        """Images, unreadable images, and, when scored, top-1, top-5 (0..1) and mean loss."""
        found = [
            Summary("images", self.seen - len(self.skipped), "count"),
            Summary("images_skipped", len(self.skipped), "count"),
        ]
        score = self.score
        if self.no_accuracy is not None or not score.images:
            return found + [Summary(name, None, None if name == "loss" else "ratio") for name in FIGURES]
        clear = score.images - score.unclear
        return [
            *found,
            Summary("top1", score.first / score.images, "ratio"),
            Summary(f"top{TOP}", score.among / score.images if self._enough_classes() else None, "ratio"),
            Summary("loss", score.loss / clear if clear else None, None),
        ]

    def _enough_classes(self) -> bool:
        return self.classes is None or self.classes > TOP

    def gaps(self) -> list[Gap]:
        """Why figures are missing, and which images were skipped."""
        found = list(self.notes)
        if self.no_accuracy is not None:
            found += [Gap(name, "not_available", self.no_accuracy) for name in FIGURES]
        elif not self.score.images:
            found += [Gap(name, "not_available", "no image could be read") for name in FIGURES]
        elif not self._enough_classes():
            found.append(Gap(f"top{TOP}", "not_available", f"the model has only {self.classes} classes"))
        if self.score.unclear:
            reason = (
                f"NaN or infinity in the outputs of {self.score.unclear} images: wrong in top-1, left out of the loss"
            )
            found.append(Gap("loss", "unreadable", reason))
        return found + self._skipped()

    def _skipped(self) -> list[Gap]:
        if not self.skipped:
            return []
        named = [self.problem(place) for place in self.skipped[:_NAMED]] if self.problem else []
        more = len(self.skipped) - len(named)
        what = "; ".join([*named, *([f"and {more} more"] if more else [])])
        count = "1 image" if len(self.skipped) == 1 else f"{len(self.skipped)} images"
        reason = f"{count} could not be read: not scored, replaced by a blank one ({what})"
        return [Gap("images", "unreadable", reason)]
