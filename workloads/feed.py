"""One inference pass over a data set: load images while the steps run, and score the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from perfctl.parsers.records import Gap, Summary
from perfctl.workloads.data import size
from perfctl.workloads.score import TOP, Score

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
