"""What a row's count is made of, part by part, so that the rules' factors multiply to the whole.

Parts in this order: the products (predicted from kernel names, grids and shapes; paper's where nothing is known),
transforms of Winograd and Fourier algorithms, forward work run again, sums over split-K slices, layouts and epilogues.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log

from perfctl.orchestrator.analyse.kernels.grids import ConvShape, ExpectedGrid, GemmShape, expected_grid
from perfctl.orchestrator.analyse.kernels.names import of_layer
from perfctl.orchestrator.analyse.verdicts.evidence import KernelGroup, RowEvidence, Shape

CLOSE = log(1.2)
"""A predicted number of multiplies further than this from what was counted is not the reason."""
EXACT = log(1.02)
"""The same where the grid's formula is not verified for the direction."""
LEAST_MULTIPLIES = 0.24
"""Of paper's multiply-adds; Winograd F(4x4,3x3) needs 36 / 144."""
TILES = (1, 8, 16, 32, 64, 96, 128, 192, 256)
DEPTH_STEPS = (4, 8, 16, 32)
"""Steps along the sum that SIMT kernels take."""
_FFT_TILE = re.compile(r"(?:r2c|c2r)_(\d+)x(\d+)")
_TRANSFORMED = ("winograd", "fft")


@dataclass(frozen=True, slots=True)
class Breakdown:
    """FLOPs of one step."""

    paper: float
    base: float
    """Products as predicted; ``paper`` where no rule predicts."""
    rule: str
    """How ``base`` was predicted; empty where it was not."""
    method: str | None
    """In words, of the algorithm that the layer's kernels are: "winograd F(2x2,3x3)", "implicit gemm", "fft"."""
    family: str | None
    products: tuple[KernelGroup, ...]
    seen: float
    transforms: float = 0
    transforming: tuple[KernelGroup, ...] = ()
    repeated: float = 0
    repeating: tuple[KernelGroup, ...] = ()
    summed: float = 0
    summing: tuple[KernelGroup, ...] = ()
    extra: float = 0
    extras: tuple[KernelGroup, ...] = ()
    several: tuple[KernelGroup, ...] = ()
    """Products that each do the whole layer, one after the other; the other parts are then not separated."""

    def grown(self, part: str) -> float:
        """By what factor one part (transforms, repeated, summed or extra) makes the parts before it grow."""
        parts = ("transforms", "repeated", "summed", "extra")
        before = self.base + sum(float(getattr(self, name)) for name in parts[: parts.index(part)])
        return 1 + float(getattr(self, part)) / before if before else 1.0


def breakdown(evidence: RowEvidence, forward: RowEvidence | None) -> Breakdown:
    """``forward``: the same layer's forward row at the same batch size, for a row of its gradients."""
    several = _several(evidence)
    if several:
        seen = sum(kernel.products for kernel in evidence.product_kernels)
        return Breakdown(
            evidence.paper, evidence.paper, "", None, None, evidence.product_kernels, seen, several=several
        )
    repeating = _repeated(evidence, forward)
    own = [kernel for kernel in evidence.kernels if kernel not in repeating]
    beside = [kernel for kernel in own if not kernel.main]
    products = tuple(kernel for kernel in own if kernel.main)
    algorithm = of_layer(
        kernel.name for kernel in own if kernel.main or kernel.algorithm.role in ("transform", "offsets")
    )
    base, rule = from_grids(evidence, products) or (evidence.paper, "")
    if algorithm.family == "fft":
        base, rule = _fourier(evidence, own)
    elif algorithm.family == "winograd" and (not rule or (evidence.row.direction != "forward" and _winograds(own) > 1)):
        base, rule = _winograd_in_theory(evidence, own)
    # what the products execute beyond multiply-adds: transforms in a fused Winograd kernel, else an epilogue
    fused = tuple(kernel for kernel in products if kernel.executed > kernel.products)
    within = sum(kernel.executed - kernel.products for kernel in fused)
    inside, epilogue = (within, 0.0) if algorithm.family in _TRANSFORMED else (0.0, within)
    transforming = tuple(kernel for kernel in beside if kernel.algorithm.family in _TRANSFORMED)
    summing = tuple(kernel for kernel in own if kernel.algorithm.role == "reduction")
    extras = tuple(kernel for kernel in beside if kernel not in transforming and kernel not in summing)
    return Breakdown(
        evidence.paper, base, rule, algorithm.method, algorithm.family, products, sum(kernel.products for kernel in products),
        transforms=_executed(transforming) + inside, transforming=transforming,
        repeated=_executed(repeating), repeating=repeating, summed=_executed(summing), summing=summing,
        extra=_executed(extras) + epilogue, extras=(*extras, *(fused if epilogue else ())),
    )  # fmt: skip


def _executed(kernels: Sequence[KernelGroup]) -> float:
    return sum(kernel.executed for kernel in kernels)


def _repeated(evidence: RowEvidence, forward: RowEvidence | None) -> tuple[KernelGroup, ...]:
    """Forward's kernels that ran again among the gradients' own; () unless the others suffice for the gradients.

    A kernel that forward runs too may be a gradient's: cuDNN uses the same one for both where the shapes allow it. So
    only others that do a gradient's work (a quarter of its multiply-adds at least, as Winograd F(4x4) does) count.
    """
    if forward is None or evidence.row.direction == "forward" or _several(forward):
        return ()
    known = {(kernel.name, kernel.grid) for kernel in forward.kernels}
    again = tuple(kernel for kernel in evidence.kernels if (kernel.name, kernel.grid) in known)
    gradients = sum(1 for call in evidence.row.calls if call.flops)
    least = LEAST_MULTIPLIES * evidence.paper / max(gradients, 1)
    others = sum(
        kernel.launches
        for kernel in evidence.kernels
        if kernel.main
        and kernel not in again
        and (kernel.flops.value is None or kernel.flops.lower_bound or kernel.products >= least * kernel.launches)
    )
    names = {(kernel.name, kernel.grid) for kernel in again}
    whole = all((kernel.name, kernel.grid) in names for kernel in forward.product_kernels)
    return again if any(kernel.main for kernel in again) and whole and others >= gradients else ()


def _several(evidence: RowEvidence) -> tuple[KernelGroup, ...]:
    if evidence.row.direction != "forward" or len(evidence.shapes) != 1:
        return ()
    whole = []
    for kernel in evidence.product_kernels:
        said = expected_grid(kernel.algorithm, kernel.grid, evidence.shapes[0]) if kernel.grid else None
        each = kernel.products / (2 * kernel.launches) if kernel.launches else 0
        if said is not None and said.matches and each and abs(log(each / said.multiplies)) < CLOSE:
            whole.append(kernel)
    return tuple(whole) if len(whole) > 1 else ()


def fills_unknown_tile(evidence: RowEvidence) -> bool:
    """True when a matrix product of unknown tile counted whole tiles: fewer rows may have needed the same."""
    forward, products = evidence.forward, evidence.product_kernels
    if not isinstance(forward, GemmShape) or not products or any(kernel.algorithm.tile for kernel in products):
        return False
    depth = evidence.paper / (forward.m * forward.n)
    area = sum(kernel.products for kernel in products) / depth if depth else 0
    sizes = {ceil(forward.m / m) * m * ceil(forward.n / n) * n for m in TILES for n in TILES}
    return area > 0 and any(abs(log(area / size)) < EXACT for size in sizes)


def from_grids(evidence: RowEvidence, products: Sequence[KernelGroup]) -> tuple[float, str] | None:
    """Each product's grid against each shape that the row may have; None when none matches."""
    base, rules, open_shapes = evidence.paper, [], [*evidence.shapes, *evidence.unverified_shapes]
    near = CLOSE if evidence.row.direction == "forward" else EXACT
    for kernel in products:
        if kernel.grid is None or kernel.launches != 1 or not kernel.products:
            continue
        for shape in open_shapes:
            said = expected_grid(kernel.algorithm, kernel.grid, shape)
            if said is None or not said.matches:
                continue
            multiplies, rule = _deepened(said, kernel, shape)
            if abs(log(kernel.products / (2 * multiplies))) > near:
                continue
            base += 2 * (multiplies - shape.macs)
            rules.append(rule)
            open_shapes.remove(shape)
            break
    return (base, "; ".join(rules)) if rules else None


def fits_grids(evidence: RowEvidence) -> bool:
    """True when no product's grid speaks against the row's shape."""
    found = _matches(evidence)
    return not found or any(found)


def _matches(evidence: RowEvidence) -> list[bool]:
    found = (
        expected_grid(kernel.algorithm, kernel.grid, shape)
        for kernel in evidence.product_kernels
        if kernel.grid
        for shape in evidence.shapes
    )
    return [said.matches for said in found if said is not None]


def fills_tiles(evidence: RowEvidence) -> bool:
    """True when a product's grid follows from the row's own batch size. Transforms follow it more closely."""
    return not any(kernel.algorithm.family in _TRANSFORMED for kernel in evidence.kernels) and any(_matches(evidence))


def _deepened(said: ExpectedGrid, kernel: KernelGroup, shape: Shape) -> tuple[float, str]:
    """The sum's length rounded up to the kernel's step, where the name does not say the step and the count fits one."""
    tile = kernel.algorithm.tile
    if kernel.algorithm.family not in ("conv", "gemm") or (tile is not None and tile[2] is not None):
        return said.multiplies, said.rule
    deep = shape.depth if isinstance(shape, ConvShape) else shape.k
    for step in DEPTH_STEPS:
        padded = ceil(deep / step) * step
        multiplies = said.multiplies * padded / deep
        if padded != deep and abs(log(kernel.products / (2 * multiplies))) < EXACT:
            return multiplies, f"{said.rule}; its sum of {deep} is padded to {padded}"
    return said.multiplies, said.rule


def _winograd_in_theory(evidence: RowEvidence, own: Sequence[KernelGroup]) -> tuple[float, str]:
    """F(m x m, r x r) needs (m + r - 1)^2 multiplies for m^2 outputs of r^2 products, tiles not padded."""
    sizes = next((kernel.algorithm.winograd for kernel in own if kernel.algorithm.winograd), None)
    if sizes is None:
        return evidence.paper, ""
    m, r = sizes
    share = ((m + r - 1) / (m * r)) ** 2
    gradients = max(sum(1 for call in evidence.row.calls if call.flops), 1)
    part = min(_winograds(own), gradients) / gradients or 1.0
    return evidence.paper * (1 - part + part * share), f"{m + r - 1}^2 multiplies in place of {m}^2 x {r}^2"


def _winograds(own: Sequence[KernelGroup]) -> int:
    return sum(
        kernel.algorithm.family == "winograd"
        if kernel.main
        else "output" in kernel.name.lower().partition("winograd")[2]
        for kernel in own
    )


def _fourier(evidence: RowEvidence, own: Sequence[KernelGroup]) -> tuple[float, str]:
    """t x (t/2 + 1) complex products of 4 multiply-adds for the (t - r + 1)^2 outputs of a tile of t x t points."""
    size = next((found for kernel in own if (found := _FFT_TILE.search(kernel.name))), None)
    shape = evidence.shapes[0] if len(evidence.shapes) == 1 else None
    if size is None or not isinstance(shape, ConvShape):
        return evidence.paper, ""
    t = int(size[1])
    if t < shape.kernel_h or t < shape.kernel_w:
        return evidence.paper, ""
    tiles = shape.batch * ceil(shape.out_h / (t - shape.kernel_h + 1)) * ceil(shape.out_w / (t - shape.kernel_w + 1))
    multiplies = tiles * shape.in_channels // shape.groups * shape.out_channels * t * (t // 2 + 1) * 4
    rule = f"{tiles:,} tiles of {t} x {t} points, {t} x {t // 2 + 1} complex products each"
    return 2.0 * multiplies, rule
