"""Images for inference: a folder of class folders, or noise of a photograph's size. Corrupt files
are skipped."""

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
from perfctl.workloads.data.mnist import count_samples
from perfctl.workloads.spec import WorkloadError, get_first_error_line

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

TOP = 5

Batch = tuple[Tensor, Tensor]
FIGURES = ("top1", f"top{TOP}", "loss")
_NAMED = 5
"""Unreadable images to name; more are only counted."""


class ClassFolderImages(Dataset[tuple[Tensor, int]]):
    """``paths`` with their class numbers. An unreadable file gives a blank image with target -1
    - index."""

    def __init__(
        self, paths: Sequence[Path], labels: Sequence[int], transforms: Transforms
    ) -> None:
        self.paths, self.labels, self._transforms = paths, labels, transforms

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        try:
            with Image.open(self.paths[index]) as image:
                return self._transforms(image.convert("RGB")), self.labels[index]
        except (*_UNREADABLE, Image.DecompressionBombError):
            return self._transforms(Image.new("RGB", (WIDTH, HEIGHT))), -1 - index

    def describe_unreadable_image(self, index: int) -> str:
        """Return an image that cannot be read, and why, in one line."""
        from PIL import Image

        path, reason = self.paths[index], "it could not be read during the run"
        try:
            with Image.open(path) as image:
                image.convert("RGB")
        except (*_UNREADABLE, Image.DecompressionBombError) as error:
            reason = get_first_error_line(error).replace(str(path), "it")
        return f"{path.parent.name}/{path.name}: {reason}"

    def sample_images_randomly(self, count: int, seed: int) -> ClassFolderImages:
        """``count`` images drawn with ``seed``, the same for every model and batch size."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator)[:count].tolist()
        paths, labels = ([part[index] for index in order] for part in (self.paths, self.labels))
        return ClassFolderImages(paths, labels, self._transforms)


class NoiseImages(Dataset[tuple[Tensor, int]]):
    """``count`` images (or clips) of random pixels, preprocessed like photographs; all of
    class 0."""

    def __init__(
        self, count: int, seed: int, transforms: Transforms, frames: int | None = None
    ) -> None:
        self._count, self._seed, self._transforms = count, seed, transforms
        self._shape = (3, HEIGHT, WIDTH) if frames is None else (frames, 3, HEIGHT, WIDTH)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        pixels = torch.randint(256, self._shape, dtype=torch.uint8, generator=generator)
        return self._transforms(pixels), 0


def read_class_folders(folder: Path, classes: int, transforms: Transforms) -> ClassFolderImages:
    """Return all images in the class folders of ``folder``.

    The number of a class is its index in ``classes.txt`` (written by perfctl prepare), else among
    the sorted folders. Raises WorkloadError when their number is not ``classes``, that of
    the model.
    """
    if not folder.is_dir():
        raise WorkloadError(f"`data_dir`: {folder} is not a folder")
    present = sorted(
        child.name
        for child in folder.iterdir()
        if child.is_dir() and not child.name.startswith(".")
    )
    file = folder / CLASS_LIST
    listed = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    names = list(filter(None, map(str.strip, listed))) or present
    if missing := [name for name in names if name not in set(present)]:
        first = ", ".join(missing[:_SHOWN])
        if len(missing) > _SHOWN:
            first += f" and {len(missing) - _SHOWN} more"
        lacks = f"lacks {len(missing)} of the {len(names)} class folders in {CLASS_LIST}: {first}"
        raise WorkloadError(
            f"{folder} {lacks}. Run perfctl prepare imagenet-val again to restore them"
        )
    if len(names) != classes:
        raise WorkloadError(
            f"{folder} has {len(names)} class folders, but the model has {classes} classes, so the "
            f"folders' class numbers are unknown. Create all {classes} folders (they may be "
            f"empty), or list their names in {folder / CLASS_LIST}, one per line, in the model's "
            "order"
        )
    paths: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(names):
        images = sorted(
            path for path in (folder / name).iterdir() if path.suffix.lower() in SUFFIXES
        )
        paths += images
        labels += [number] * len(images)
    if not paths:
        raise WorkloadError(
            f"no images in the {len(names)} class folders of {folder} ({', '.join(SUFFIXES[:3])}, "
            "...)"
        )
    return ClassFolderImages(paths, labels, transforms)


class ClassificationScore:
    """Sums over the images so far. Images with a target below 0 were unreadable and do
    not count."""

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

    def add_batch_returning_loss_top1(
        self, logits: NDArray[np.float32], targets: NDArray[np.int64]
    ) -> tuple[float | None, float | None]:
        """``logits``: images x classes, before softmax. Returns (mean loss, top-1) of this batch;
        None without images.

        Among equal outputs, the class with the smaller number counts as larger.
        """
        import numpy as np

        readable = targets >= 0
        logits, targets = logits[readable].astype(np.float64), targets[readable]
        finite = np.isfinite(logits).all(axis=1)
        right = logits[np.arange(len(targets)), targets][:, None]
        with np.errstate(invalid="ignore"):
            equal = (logits == right) & (np.arange(logits.shape[1]) < targets[:, None])
            before = ((logits > right) | equal).sum(axis=1)
        first, among = int((finite & (before < 1)).sum()), int((finite & (before < TOP)).sum())
        logits, right = logits[finite], right[finite]
        losses = np.zeros(0)
        if len(logits):
            largest = logits.max(axis=1, keepdims=True)
            sums = np.exp(logits - largest).sum(axis=1, keepdims=True)
            losses = (np.log(sums) + largest - right)[:, 0]
        self.images += len(targets)
        self.first += first
        self.among += among
        self.loss += float(losses.sum())
        self.unclear += int((~finite).sum())
        loss = float(losses.mean()) if len(losses) else None
        return loss, first / len(targets) if len(targets) else None


@dataclass(slots=True)
class ImageFeed:
    """One pass over a data set in inference, in its order: ``full_batch_count`` full batches, then
    the rest."""

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
    score: ClassificationScore = field(default_factory=ClassificationScore)
    seen: int = 0
    skipped: list[int] = field(default_factory=list)
    """Indices of unreadable images."""
    classes: int | None = None

    @property
    def full_batch_count(self) -> int:
        return count_samples(self.dataset) // self.batch_size

    def load_warmup_batches(self, count: int) -> Iterator[Batch]:
        """``count`` batches, repeating the first full ones; loaded in this process."""
        images = min(count, self.full_batch_count) * self.batch_size
        loader = DataLoader(Subset(self.dataset, range(images)), self.batch_size)
        return islice(cycle(list(loader)), count)

    def batches(self) -> Iterator[Batch]:
        """Yield (inputs, targets) on the host: full batches, then the rest. Loading may start at
        once."""
        return iter(
            DataLoader(
                self.dataset, self.batch_size, num_workers=self.workers, pin_memory=self.pinned
            )
        )

    def score_batch(self, outputs: Any, targets: Tensor) -> tuple[float | None, float | None]:
        """Score one batch of outputs on the host: (mean loss, top-1) of the batch; None when
        not scored."""
        labels = targets.numpy()
        self.seen += len(labels)
        self.skipped += [-1 - int(label) for label in labels if label < 0]
        if self.no_accuracy is not None:
            return None, None
        return self.score.add_batch_returning_loss_top1(outputs.to(torch.float32).numpy(), labels)

    @property
    def _has_scores(self) -> bool:
        return self.no_accuracy is None and self.score.images > 0

    @property
    def _is_top_k_trivial(self) -> bool:
        return self.classes is not None and self.classes <= TOP

    def summarize_counts_and_accuracy(self) -> list[Summary]:
        """Images, unreadable images, and, when scored, top-1, top-5 (0..1) and mean loss."""
        score = self.score
        values: list[float | None] = [None] * len(FIGURES)
        if self._has_scores:
            clear = score.images - score.unclear
            among = None if self._is_top_k_trivial else score.among / score.images
            values = [score.first / score.images, among, score.loss / clear if clear else None]
        skipped = len(self.skipped)
        return [
            Summary("images", self.seen - skipped, "count"),
            Summary("images_skipped", skipped, "count"),
            *map(Summary, FIGURES, values, ("ratio", "ratio", None)),
        ]

    def describe_missing_data(self) -> list[Gap]:
        """Return why figures are missing, and which images were skipped."""
        gaps = list(self.notes)
        if not self._has_scores:
            reason = self.no_accuracy or "no image could be read"
            gaps += [Gap(name, "not_available", reason) for name in FIGURES]
        elif self._is_top_k_trivial:
            reason = f"the model has only {self.classes} classes"
            gaps.append(Gap(f"top{TOP}", "not_available", reason))
        if self.score.unclear:
            reason = (
                f"NaN or infinity in the outputs of {self.score.unclear} images: wrong in top-1, "
                "excluded from the loss"
            )
            gaps.append(Gap("loss", "unreadable", reason))
        if skipped := len(self.skipped):
            listed = (
                [self.problem(index) for index in self.skipped[:_NAMED]] if self.problem else []
            )
            if skipped > len(listed):
                listed.append(f"and {skipped - len(listed)} more")
            count = "1 image" if skipped == 1 else f"{skipped} images"
            reason = (
                f"{count} could not be read: not scored, replaced by a blank image "
                f"({'; '.join(listed)})"
            )
            gaps.append(Gap("images", "unreadable", reason))
        return gaps
