"""One product (Linear, or a convolution) on one GPU: the parts of its time, and the features for
the boosted model.

A GPU works in waves of thread blocks: a tile of the output each, as many at once as there are SMs.
The parts below count whole waves for the tiles that cuBLAS and cuDNN use, at full clock; what power
allows is a part of its own, since a board of 70 W cannot run all of its SMs at their highest clock.
Winograd F(2x2, 3x3) and F(4x4, 3x3) need fewer multiplies: Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", 2015. Every part grows with batch.

Measured GPUs and a new one share a few coefficients: ``seconds = launch + memory +
((sum of products)^4 + (executed / sustained)^4)^(1/4)``, each term times a coefficient that holds
on every GPU. ``sustained`` is what power allows: see :func:`sustained_rate`. Learning needs scipy,
which comes with scikit-learn; what comes out are plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING

from perfctl.orchestrator.errors import ToolMissing
from perfctl.orchestrator.predict.operations import Operation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LAUNCH = 1e-5
"""Seconds: the unit of what starting costs."""
EXECUTED = 2.0
"""A 3 x 3 convolution of stride 1 runs about this much fewer multiplies than on paper: a mean over
what cuDNN picks, by shape, among implicit products (1), F(2x2) (2.25) and F(4x4) (4), with
tiles padded."""
LEAST = 4.0
"""F(4x4, 3x3): no algorithm here needs fewer multiplies than a fourth."""

GROWING = (
    "batch",
    "rows",
    "macs",
    "outputs",
    "inputs",
    "bytes",
    "intensity",
    "tiles",
    "waves 128x64",
    "waves 64x64",
    "part 0",
    "part 1",
    "part 2",
    "work 128x128",
    "work 128x32",
    "work 32x128",
    "work 64x64",
    "winograd 128x128",
    "winograd 64x64",
    "winograd 32x128",
)
"""Features that grow with batch."""
FIXED = (
    "columns",
    "depth",
    "weights",
    "side",
    "columns by 4",
    "columns by 32",
    "depth by 4",
    "depth by 32",
    "side by 4",
)
"""Features that batch does not change; "by 4": the remainder."""
UNEVEN = (
    "last wave 128x128",
    "last wave 128x64",
    "last wave 64x64",
    "last of two 128x64",
    "last of four 128x64",
    "last of four 64x64",
    "shape",
)
"""Features that rise and fall with batch; left out where seconds must not fall with it."""


@dataclass(frozen=True, slots=True)
class Chip:
    """Figures of a GPU that the parts need, as the vendor states them."""

    name: str
    flops: float
    """fp32 peak in FLOP/s, 1 multiply-add = 2."""
    bandwidth: float
    """Bytes per second."""
    sms: int
    watts: float
    """Board power limit."""
    process: int
    """Nanometres: only chips of one process are taken to spend alike for a FLOP."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of one product. ``products``: one figure for each algorithm and tile, at peak rate
    and full clock."""

    products: tuple[float, ...]
    executed: float
    """FLOPs it is likely to run."""
    memory: float
    """Least bytes over bandwidth."""


def bytes_moved(work: Operation, batch: float) -> float:
    """Least bytes of one call, forward, fp32: everything read once, everything written once."""
    return (batch * (work.inputs + work.outputs) + work.weights) * 4


def winograd(work: Operation) -> bool:
    """Can run as Winograd: 3 x 3, stride 1, one group."""
    return work.kind == "conv" and work.kernel == 9 and work.stride == 1


def tiled(m: float, n: float, tile: tuple[int, int], sms: int, products: float = 1) -> float:
    """Output elements, padded to whole tiles and whole waves, that one SM works through."""
    blocks = products * ceil(m / tile[0]) * ceil(n / tile[1])
    return ceil(blocks / sms) * tile[0] * tile[1]


def parts(work: Operation, batch: int, chip: Chip) -> Parts:
    """Of one call, forward, fp32."""
    rows, channels = batch * work.rows, work.columns
    rate = chip.flops / chip.sms
    flops = 2.0 * batch * work.macs
    memory = bytes_moved(work, batch) / chip.bandwidth
    if work.kind != "conv":
        products = tuple(
            2 * tiled(rows, channels, tile, chip.sms, work.groups) * work.depth / rate
            for tile in ((128, 64), (32, 32))
        )
        return Parts(products, flops, memory)
    implicit = 2 * tiled(rows, channels, (128, 64), chip.sms) * ceil(work.depth / 8) * 8 / rate
    if not winograd(work):
        return Parts((0.0, 0.0, implicit), flops, memory)
    inputs = work.depth / work.kernel
    four = 2 * tiled(_tiles(work, batch), channels, (64, 64), chip.sms, 36) * inputs / rate
    blocks = batch * ceil(channels / 32) * ceil(_side(work) / 8) * ceil(_side(work) / 16)
    two = 2 * ceil(blocks / chip.sms) * inputs * 32 * 32 * 16 / rate
    return Parts((four, two, implicit), flops / EXECUTED, memory)


def _side(work: Operation) -> float:
    """Of a square map with as many positions."""
    return sqrt(work.rows)


def _tiles(work: Operation, batch: int) -> float:
    """Of F(4x4), padded as cuDNN does."""
    return 16 * ceil(batch / 16) * ceil(_side(work) / 4) ** 2


def floor(work: Operation, batch: int, chip: Chip) -> float:
    """Seconds below which the product cannot go on this chip."""
    flops = 2.0 * batch * work.macs / (LEAST if winograd(work) else 1.0)
    return max(flops / chip.flops, bytes_moved(work, batch) / chip.bandwidth)


def features(work: Operation, batch: int, chip: Chip) -> tuple[float, ...]:
    """One figure for each of GROWING, FIXED and UNEVEN, in that order."""
    m, n, k, sms = batch * work.rows, work.columns, work.depth, chip.sms
    inputs = work.depth / work.kernel
    found = parts(work, batch, chip)
    moved = bytes_moved(work, batch)
    macs = batch * work.macs
    side = _side(work) if work.kind == "conv" else 1.0
    tiles = _tiles(work, batch) if winograd(work) else 0.0
    per_sm = m * n / sms
    growing = (
        batch,
        m,
        macs,
        batch * work.outputs,
        batch * work.inputs,
        moved,
        macs / moved,
        tiles,
        tiled(m, n, (128, 64), sms) / 8192,
        tiled(m, n, (64, 64), sms) / 4096,
        *_three(found.products),
        *(tiled(m, n, tile, sms) * k for tile in ((128, 128), (128, 32), (32, 128), (64, 64))),
        *(tiled(tiles, n, tile, sms, 36) * inputs for tile in ((128, 128), (64, 64), (32, 128))),
    )
    fixed = (n, k, work.weights, side, n % 4, n % 32, inputs % 4, inputs % 32, side % 4)
    uneven = (
        *(tiled(m, n, tile, sms) / per_sm for tile in ((128, 128), (128, 64), (64, 64))),
        *(
            tiled(m, n, tile, count * sms) * count / per_sm
            for count, tile in ((2, (128, 64)), (4, (128, 64)), (4, (64, 64)))
        ),
        m / n,
    )
    return (*growing, *fixed, *uneven)


def _three(products: Sequence[float]) -> tuple[float, float, float]:
    first, second, *rest = products
    return first, second, rest[0] if rest else 0.0


@dataclass(frozen=True, slots=True)
class Shared:
    """The coefficients, of one kind of operation."""

    launch: float
    memory: float
    products: tuple[float, ...]
    drift: float = 0.0
    """Seconds by which the measuring program itself slows with every row; 0 where it does not.
    Never predicted."""


def seconds(shared: Shared, parts: Parts, sustained: float) -> float:
    """Of one product on a GPU that sustains so many FLOP/s."""
    full = sum(weight * part for weight, part in zip(shared.products, parts.products, strict=True))
    capped = parts.executed / sustained
    squares = full * full * full * full + capped * capped * capped * capped
    return shared.launch * LAUNCH + shared.memory * parts.memory + sqrt(sqrt(squares))


def sustained_rate(chip: Chip, reached: Mapping[Chip, float]) -> float:
    """FLOP/s that ``chip`` can sustain, from the FLOP/s that other GPUs reached in their
    largest products.

    The smaller of two figures: this chip's peak times the best fraction of peak that any GPU
    reached; and this chip's power limit times the most FLOPs per joule of GPUs of the same process.
    Without a GPU of that process: the first alone.
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
    """Least squares of the logarithms, robust; at most ``limit`` rows of each GPU. Raises
    ToolMissing without scipy."""
    from importlib.util import find_spec

    if find_spec("scipy") is None:
        raise ToolMissing(
            "learning from measurements needs scikit-learn, which is not installed",
            "pip install 'perfctl[predict]'",
        )
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
    return Shared(
        float(best[0]), float(best[1]), weights, float(best[2]) * 1e-7 if drifted else 0.0
    )


def _matrix(rows: Rows, chosen: NDArray[np.intp]) -> Floats:
    """seconds, memory, place, capped, products..."""
    import numpy as np

    places = rows.places or [0.0] * len(rows.seconds)
    return np.array(
        [
            (
                rows.seconds[i],
                rows.parts[i].memory,
                places[i],
                rows.parts[i].executed / rows.sustained,
                *rows.parts[i].products,
            )
            for i in chosen
        ]
    )


def _all(weights: Floats, matrix: Floats) -> Floats:
    full = matrix[:, 4:] @ weights[3:]
    rest = LAUNCH * weights[0] + weights[1] * matrix[:, 1] + 1e-7 * weights[2] * matrix[:, 2]
    found: Floats = (full**4 + matrix[:, 3] ** 4) ** 0.25 + rest
    return found
