"""Score a classifier's outputs on the host: loss, top-1 and top-5, summed over images.

Uses numpy, not torch, so that a profiler's window contains only the model's work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
