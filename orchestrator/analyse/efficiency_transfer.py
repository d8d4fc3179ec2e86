"""From GPUs that were measured to one that was not: a few shared coefficients over the parts of ``efficiency_ops``.

``seconds = launch + memory + ((sum of products)^4 + (executed / sustained)^4)^(1/4)``, each term times a coefficient that
holds on every GPU. ``sustained`` is what power allows: see :func:`sustained_rate`. Learning needs scipy, which comes with
scikit-learn; what comes out are plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from perfctl.orchestrator.analyse.efficiency_ops import LAUNCH, Chip, Parts
from perfctl.orchestrator.errors import ToolMissing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shared:
    """The coefficients, of one kind of operation."""

    launch: float
    memory: float
    products: tuple[float, ...]
    drift: float = 0.0
    """Seconds by which the measuring program itself slows with every row; 0 where it does not. Never predicted."""


def seconds(shared: Shared, parts: Parts, sustained: float) -> float:
    """Of one product on a GPU that sustains so many FLOP/s."""
    full = sum(weight * part for weight, part in zip(shared.products, parts.products, strict=True))
    capped = parts.executed / sustained
    squares = full * full * full * full + capped * capped * capped * capped
    return shared.launch * LAUNCH + shared.memory * parts.memory + sqrt(sqrt(squares))


def sustained_rate(chip: Chip, reached: Mapping[Chip, float]) -> float:
    """FLOP/s that ``chip`` can keep up, from what other GPUs reached (FLOP/s of their largest products).

    The smaller of two: the best part of its peak that any GPU reached, of this one's peak; and the most FLOPs a joule
    that GPUs of the same process reached, at this one's power limit. Without a GPU of that process: the former alone.
    """
    best = max(rate / other.flops for other, rate in reached.items()) * chip.flops
    alike = [rate / other.watts for other, rate in reached.items() if other.process == chip.process]
    return min(best, max(alike) * chip.watts) if alike else best


@dataclass(frozen=True, slots=True)
class Rows:
    """What was measured on one GPU."""

    parts: Sequence[Parts]
    seconds: Sequence[float]
    sustained: float
    """FLOP/s."""
    places: Sequence[float] | None = None
    """Place of each row in the order of measuring, where the measuring program drifted."""


def learn(measured: Sequence[Rows], limit: int = 900, seed: int = 0) -> Shared:
    """Least squares of the logarithms, robust; at most ``limit`` rows of each GPU. Raises ToolMissing without scipy."""
    from importlib.util import find_spec

    if find_spec("scipy") is None:
        raise ToolMissing("learning from measurements needs scikit-learn, which is not installed",
                          "pip install 'perfctl[predict]'")  # fmt: skip
    import numpy as np
    from scipy.optimize import least_squares

    rng = np.random.default_rng(seed)
    taken = [_matrix(rows, rng.permutation(len(rows.seconds))[:limit]) for rows in measured]
    count = len(measured[0].parts[0].products)
    start = np.log(np.array([5.0, 1.0, 0.8, *([0.3] * count)]))

    def missed(logs: Floats) -> Floats:
        found = [np.log(_all(np.exp(logs), matrix) / matrix[:, 0]) for matrix in taken]
        return np.concatenate([*found, 0.05 * (logs - start)])

    best = np.exp(least_squares(missed, start, loss="soft_l1", f_scale=0.1).x)
    drifted = any(rows.places is not None for rows in measured)
    weights = tuple(float(weight) for weight in best[3:])
    return Shared(float(best[0]), float(best[1]), weights, float(best[2]) * 1e-7 if drifted else 0.0)


def _matrix(rows: Rows, chosen: NDArray[np.intp]) -> Floats:
    """seconds, memory, place, capped, products..."""
    import numpy as np

    places = rows.places or [0.0] * len(rows.seconds)
    return np.array([
        (rows.seconds[i], rows.parts[i].memory, places[i], rows.parts[i].executed / rows.sustained, *rows.parts[i].products)
        for i in chosen
    ])  # fmt: skip


def _all(weights: Floats, matrix: Floats) -> Floats:
    full = matrix[:, 4:] @ weights[3:]
    rest = LAUNCH * weights[0] + weights[1] * matrix[:, 1] + 1e-7 * weights[2] * matrix[:, 2]
    found: Floats = (full**4 + matrix[:, 3] ** 4) ** 0.25 + rest
    return found
