"""What a row's count is made of, part by part, so that the rules' factors multiply to the whole.

Parts in this order: the products (predicted from kernel names, grids and shapes; paper's where nothing is known),
transforms of Winograd and Fourier algorithms, forward work run again, sums over split-K slices, layouts and epilogues.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log

from perfctl.orchestrator.analyse.algorithms import of_layer
from perfctl.orchestrator.analyse.case import Case, Shape, Work
from perfctl.orchestrator.analyse.grids import ConvShape, GemmShape, Prediction, predict

CLOSE = log(1.2)
"""A predicted number of multiplies further than this from what was counted is not the reason."""
EXACT = log(1.02)
"""The same where the grid's formula is not verified for the direction."""
LEAST_MULTIPLIES = 0.24
"""Of paper's multiply-adds; Winograd F(4x4,3x3) needs 36 / 144."""
TILES = (1, 8, 16, 32, 64, 96, 128, 192, 256)
"""Sides of the tiles that matrix products have."""
DEPTH_STEPS = (4, 8, 16, 32)
"""Steps along the sum that SIMT kernels take."""
_FFT_TILE = re.compile(r"(?:r2c|c2r)_(\d+)x(\d+)")


@dataclass(frozen=True, slots=True)
class Budget:
    """FLOPs of one step."""

    paper: float
    base: float
    """Products as predicted; ``paper`` where no rule predicts."""
    rule: str
    """How ``base`` was predicted; empty where it was not."""
    method: str | None
    """In words, of the algorithm that the layer's kernels are: "winograd F(2x2,3x3)", "implicit gemm", "fft"."""
    family: str | None
    products: tuple[Work, ...]
    seen: float
    """FLOPs counted in multiply-adds by ``products``."""
    transforms: float = 0
    transforming: tuple[Work, ...] = ()
    repeated: float = 0
    repeating: tuple[Work, ...] = ()
    summed: float = 0
    summing: tuple[Work, ...] = ()
    extra: float = 0
    extras: tuple[Work, ...] = ()
    several: tuple[Work, ...] = ()
    """Products that each do the whole layer, one after the other; the other parts are then not told apart."""

    def grown(self, part: str) -> float:
        """By what factor one part makes the parts before it grow."""
        before = self.base
        for name in ("transforms", "repeated", "summed", "extra"):
            if name == part:
                return 1 + float(getattr(self, name)) / before if before else 1.0
            before += float(getattr(self, name))
        raise KeyError(part)


def budget(case: Case, forward: Case | None) -> Budget:
    """``forward``: the same layer's forward row at the same batch size, for a row of its gradients."""
    several = _several(case)
    if several:
        seen = sum(work.products for work in case.mains)
        return Budget(case.paper, case.paper, "", None, None, case.mains, seen, several=several)
    repeating = _repeated(case, forward)
    own = [work for work in case.works if work not in repeating]
    algorithm = of_layer(work.name for work in own if work.main or work.algorithm.role in ("transform", "offsets"))
    products = tuple(work for work in own if work.main)
    transformed = algorithm.family in ("winograd", "fft")
    base, rule = _predicted(case, algorithm.family, products, own)
    inside = [(work, max(work.executed - work.products, 0)) for work in products]
    transforming = tuple(work for work in own if not work.main and work.algorithm.family in ("winograd", "fft"))
    summing = tuple(work for work in own if work.algorithm.role == "reduction")
    extras = tuple(work for work in own if not work.main and work not in transforming and work not in summing)
    within = sum(value for _, value in inside)
    return Budget(
        case.paper, base, rule, algorithm.method, algorithm.family, products, sum(work.products for work in products),
        transforms=sum(work.executed for work in transforming) + (within if transformed else 0),
        transforming=transforming,
        repeated=sum(work.executed for work in repeating), repeating=repeating,
        summed=sum(work.executed for work in summing), summing=summing,
        extra=sum(work.executed for work in extras) + (0 if transformed else within),
        extras=(*extras, *(() if transformed else (work for work, value in inside if value))),
    )  # fmt: skip


def _repeated(case: Case, forward: Case | None) -> tuple[Work, ...]:
    """Forward's kernels that ran again among the gradients' own; () unless the others suffice for the gradients.

    A kernel that forward runs too may be a gradient's: cuDNN takes the same one for both where the shapes allow it. So
    only others that do a gradient's work (a quarter of its multiply-adds at least, as Winograd F(4x4) does) count.
    """
    if forward is None or case.row.direction == "forward" or _several(forward):
        return ()
    known = {(work.name, work.grid) for work in forward.works}
    again = tuple(work for work in case.works if (work.name, work.grid) in known)
    names = {(work.name, work.grid) for work in again}
    gradients = sum(1 for call in case.row.calls if call.flops)
    least = LEAST_MULTIPLIES * case.paper / max(gradients, 1)
    apart = [work for work in case.works if work.main and work not in again]
    others = sum(work.launches for work in apart if not _counted(work) or work.products >= least * work.launches)
    whole = all((work.name, work.grid) in names for work in forward.mains)
    return again if any(work.main for work in again) and whole and others >= gradients else ()


def _counted(work: Work) -> bool:
    return work.flops.value is not None and not work.flops.lower_bound


def _several(case: Case) -> tuple[Work, ...]:
    """Kernels of different names or grids that each do all of the layer's forward; () when fewer than two do."""
    if case.row.direction != "forward" or len(case.shapes) != 1:
        return ()
    (shape,) = case.shapes
    whole = []
    for work in case.mains:
        said = predict(work.algorithm, work.grid, shape) if work.grid and work.launches else None
        multiplies = work.products / (2 * work.launches) if work.launches else 0
        if said is not None and said.matches and multiplies and abs(log(multiplies / said.multiplies)) < CLOSE:
            whole.append(work)
    return tuple(whole) if len(whole) > 1 else ()


def fills_unknown_tile(case: Case) -> bool:
    """May a matrix product whose tile is not known have done the same for fewer rows: is its count one of whole tiles?"""
    forward = case.forward
    if not isinstance(forward, GemmShape) or not case.mains or any(work.algorithm.tile for work in case.mains):
        return False
    depth = case.paper / (forward.m * forward.n)
    area = sum(work.products for work in case.mains) / depth if depth else 0
    sizes = {ceil(forward.m / m) * m * ceil(forward.n / n) * n for m in TILES for n in TILES}
    return area > 0 and any(abs(log(area / size)) < EXACT for size in sizes)


def _predicted(case: Case, family: str | None, products: Sequence[Work], own: Sequence[Work]) -> tuple[float, str]:
    """FLOPs of the products as their names, grids and shapes predict; paper's where they do not."""
    if family == "fft":
        return _fourier(case, own)
    found = from_grids(case, products)
    if family == "winograd" and (found is None or (case.row.direction != "forward" and _winograds(own) > 1)):
        return _winograd_in_theory(case, own)
    return found or (case.paper, "")


def from_grids(case: Case, products: Sequence[Work]) -> tuple[float, str] | None:
    """Each product's grid against each shape that the row may have; None when none matches."""
    base, rules, open_shapes = case.paper, [], [*case.shapes, *case.unverified_shapes]
    near = CLOSE if case.row.direction == "forward" else EXACT
    for work in products:
        if work.grid is None or work.launches != 1 or not work.products:
            continue
        for shape in open_shapes:
            said = predict(work.algorithm, work.grid, shape)
            if said is None or not said.matches:
                continue
            multiplies, rule = _deepened(said, work, shape)
            if abs(log(work.products / (2 * multiplies))) > near:
                continue
            base += 2 * (multiplies - shape.macs)
            rules.append(rule)
            open_shapes.remove(shape)
            break
    return (base, "; ".join(rules)) if rules else None


def fits_grids(case: Case) -> bool:
    """Does no product's grid speak against the case's shape?"""
    found = [predict(work.algorithm, work.grid, shape) for work in case.mains if work.grid for shape in case.shapes]
    known = [said for said in found if said is not None]
    return not known or any(said.matches for said in known)


def fills_tiles(case: Case) -> bool:
    """Does the grid of a plain product follow from the row's own batch size? Transforms follow it more closely."""
    if any(work.algorithm.family in ("winograd", "fft") for work in case.works):
        return False
    found = [predict(work.algorithm, work.grid, shape) for work in case.mains if work.grid for shape in case.shapes]
    return any(said is not None and said.matches for said in found)


def _deepened(said: Prediction, work: Work, shape: Shape) -> tuple[float, str]:
    """The sum's length rounded up to the kernel's step, where the name does not say the step and the count fits one."""
    tile = work.algorithm.tile
    deep = shape.macs // _outputs(shape)
    if work.algorithm.family not in ("conv", "gemm") or (tile is not None and tile[2] is not None):
        return said.multiplies, said.rule
    for step in DEPTH_STEPS:
        padded = ceil(deep / step) * step
        multiplies = said.multiplies * padded / deep
        if padded != deep and abs(log(work.products / (2 * multiplies))) < EXACT:
            return multiplies, f"{said.rule}; its sum of {deep} is padded to {padded}"
    return said.multiplies, said.rule


def _outputs(shape: Shape) -> int:
    if isinstance(shape, ConvShape):
        return shape.batch * shape.out_h * shape.out_w * shape.out_channels
    return shape.batch * shape.m * shape.n


def _winograd_in_theory(case: Case, own: Sequence[Work]) -> tuple[float, str]:
    """F(m x m, r x r) needs (m + r - 1)^2 multiplies for m^2 outputs of r^2 products, tiles not padded."""
    sizes = next((work.algorithm.winograd for work in own if work.algorithm.winograd), None)
    if sizes is None:
        return case.paper, ""
    m, r = sizes
    share = ((m + r - 1) / (m * r)) ** 2
    gradients = max(sum(1 for call in case.row.calls if call.flops), 1)
    part = min(_winograds(own), gradients) / gradients or 1.0
    rule = f"{m + r - 1}^2 multiplies in place of {m}^2 x {r}^2"
    return case.paper * (1 - part + part * share), rule


def _winograds(own: Sequence[Work]) -> int:
    """How many Winograd convolutions the kernels make: fused ones, and the last transforms of those in parts."""
    fused = sum(1 for work in own if work.main and work.algorithm.family == "winograd")
    return fused + sum(1 for work in own if not work.main and re.search("winograd.*output", work.name, re.IGNORECASE))


def _fourier(case: Case, own: Sequence[Work]) -> tuple[float, str]:
    """t x (t/2 + 1) complex products of 4 multiply-adds for the (t - r + 1)^2 outputs of a tile of t x t points."""
    size = next((found for work in own if (found := _FFT_TILE.search(work.name))), None)
    shape = case.shapes[0] if len(case.shapes) == 1 else None
    if size is None or not isinstance(shape, ConvShape):
        return case.paper, ""
    t = int(size[1])
    if t < shape.kernel_h or t < shape.kernel_w:
        return case.paper, ""
    tiles = shape.batch * ceil(shape.out_h / (t - shape.kernel_h + 1)) * ceil(shape.out_w / (t - shape.kernel_w + 1))
    multiplies = tiles * shape.in_channels // shape.groups * shape.out_channels * t * (t // 2 + 1) * 4
    rule = f"{tiles:,} tiles of {t} x {t} points, {t} x {t // 2 + 1} complex products each"
    return 2.0 * multiplies, rule
