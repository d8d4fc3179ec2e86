"""The evidence of one ledger row for the verdict rules: its kernels, their raw counts, the layer's shape, and their parts.

The parts of a count, in this order, so that the rules' factors multiply to the whole: the products (predicted from kernel
names, grids and shapes; paper's where nothing is known), transforms of Winograd and Fourier algorithms, forward work run
again, sums over split-K slices, layouts and epilogues.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from math import ceil, log, prod

from perfctl.orchestrator.analyse.counters.flops import sm_count
from perfctl.orchestrator.analyse.counters.sums import PATHS, PIPE_TENSOR, half_weights, ops_path, with_counts
from perfctl.orchestrator.analyse.figure import Figure, total_of
from perfctl.orchestrator.analyse.flops.formulas import CONVOLUTIONS, LINEAR, left_factor, shape_of
from perfctl.orchestrator.analyse.kernels.grids import ConvShape, ExpectedGrid, GemmShape, Grid, expected_grid
from perfctl.orchestrator.analyse.kernels.names import Algorithm, of_layer, recognise
from perfctl.orchestrator.analyse.kernels.pairing import inside, narrowed_to
from perfctl.orchestrator.analyse.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.analyse.ledger.prepared import PreparedRun, PreparedStudy
from perfctl.orchestrator.analyse.ledger.timing import Key
from perfctl.records.paper import OpShape
from perfctl.records.run import Run

Place = tuple[int, str, str]
"""(batch size, layer, direction) of a ledger row."""
Shape = ConvShape | GemmShape
FP = tuple(instruction for path in PATHS.values() for instruction in path)
PRODUCTS = ("conv", "winograd", "fft", "depthwise", "gemm", "attention", "rnn", None)
"""Families whose main kernels do the multiply-adds on paper; so may a kernel that no pattern fits."""


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """All launches of one kernel name with one grid, for one step."""

    name: str
    algorithm: Algorithm
    grid: tuple[int, int, int] | None
    launches: float
    """Per step."""
    counts: Mapping[str, float]
    """Threads (fadd, ffma, ...), instructions (pipe) or operations (ops_path) per step, if collected."""
    flops: Figure
    tensor: Figure
    half_weight: int = 2
    """FLOPs of one HFMA2 in ``flops``: 2 or 4, by the version of ncu."""

    def part(self, launches: float) -> KernelGroup:
        """The same for some of its launches, which all count alike."""
        share = launches / self.launches
        counts = {name: value * share for name, value in self.counts.items()}
        flops, tensor = (
            figure if figure.value is None else replace(figure, value=figure.value * share)
            for figure in (self.flops, self.tensor)
        )
        return self if share == 1 else replace(self, launches=launches, counts=counts, flops=flops, tensor=tensor)

    @property
    def main(self) -> bool:
        """True when it computes multiply-adds of the paper count."""
        return self.algorithm.role == "main" and self.algorithm.family in PRODUCTS

    @property
    def products(self) -> float:
        """FLOPs in multiply-adds, CUDA and tensor cores together; 0 where nothing was counted."""
        halves = 0 if "constant" in (self.flops.reason or "") else self.counts.get("hfma", 0)
        fused = self.counts.get("ffma", 0) + self.counts.get("dfma", 0) + 2 * self.counts.get("ffma2", 0)
        return 2 * fused + self.half_weight * halves + (self.tensor.value or 0)

    @property
    def executed(self) -> float:
        """All FLOPs; 0 where nothing was counted."""
        return self.flops.value or 0


@dataclass(frozen=True, slots=True)
class RowEvidence:
    """One ledger row and the kernels that ncu saw for it."""

    row: LedgerRow
    kernels: tuple[KernelGroup, ...]
    forward: Shape | None
    environment: Mapping[str, str]
    precision: str | None
    profiled: bool
    """True when ncu saw kernels of some layer at this batch size, and counted in this one."""
    left_out: str | None = None
    """Why kernels that ran may be missing: the run is partial, or ncu skipped launches. None: neither."""
    seen_batch: int | None = None
    ncu: str | None = None
    """Version of ncu, where it is known."""
    ours: bool = False
    """True when 'perfctl ncu' made the run, so that it is no advice to use it."""
    calls: int = 1
    """How often the step runs the product of ``forward``."""
    causal: tuple[int, int] | None = None
    """(queries, keys) of attention with a causal mask, whose whole square is on paper; None for other layers."""
    inside: float | None = None
    """Share of a convolution's multiply-adds that do not fall on its padding; None where it is not known."""

    @property
    def place(self) -> Place:
        return self.row.batch, self.row.layer, self.row.direction

    @property
    def paper(self) -> float:
        """Paper FLOPs of the batch that was profiled; 0 when there are none or no formula."""
        value = self.row.paper.value or 0
        return value * self.seen_batch / self.row.batch if self.seen_batch else value

    def total(self, count: str) -> float | None:
        """Sum of one raw count over the row's kernels; None when no kernel has it."""
        found = [kernel.counts[count] for kernel in self.kernels if count in kernel.counts]
        return sum(found) if found else None

    @property
    def product_kernels(self) -> tuple[KernelGroup, ...]:
        return tuple(kernel for kernel in self.kernels if kernel.main)

    def with_batch(self, batch: int) -> RowEvidence:
        """The same evidence, read as a profile of batch size ``batch``."""
        forward: Shape | None = self.forward
        if isinstance(forward, ConvShape):
            forward = replace(forward, batch=batch)
        elif forward is not None:
            forward = replace(forward, m=forward.m * batch // self.row.batch)
        return replace(self, seen_batch=batch, forward=forward)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes that its products may have; a convolution's gradients have no verified grid."""
        forward = self.forward
        if forward is not None and self.row.direction == "forward":
            return (forward,)
        if not isinstance(forward, GemmShape):
            return ()
        both = {
            "grad_input": GemmShape(forward.m, forward.k, forward.n),
            "grad_weight": GemmShape(forward.n, forward.k, forward.m),
        }
        calls = {call.direction for call in self.row.calls}
        return tuple(shape for direction, shape in both.items() if direction in calls)

    @property
    def unverified_shapes(self) -> tuple[Shape, ...]:
        """A convolution's gradient of its input is one with the channels exchanged; no measurement verified its grid."""
        forward = self.forward
        wanted = any(call.direction == "grad_input" and call.flops for call in self.row.calls)
        if isinstance(forward, ConvShape) and forward.same_size and self.row.direction != "forward" and wanted:
            return (replace(forward, in_channels=forward.out_channels, out_channels=forward.in_channels),)
        return ()


class EvidenceTable(dict[Place, RowEvidence]):
    """Every row's evidence by its place. Nothing is added once it is made: what is derived from it is kept."""

    @cached_property
    def network_order(self) -> Mapping[tuple[int, str], Sequence[RowEvidence]]:
        """(batch size, direction) -> rows in the network's order."""
        rows: dict[tuple[int, str], list[RowEvidence]] = {}
        for evidence in sorted(self.values(), key=lambda evidence: evidence.row.position):
            rows.setdefault((evidence.row.batch, evidence.row.direction), []).append(evidence)
        return rows

    @cached_property
    def positions(self) -> Mapping[Place, int]:
        """Index of each row in its list of ``network_order``."""
        return {evidence.place: at for rows in self.network_order.values() for at, evidence in enumerate(rows)}


Loose = Mapping[int, tuple[KernelGroup, ...]]
"""batch -> kernels that no layer's range enclosed, per step (of the whole report where it does not say steps)."""


def row_evidence(study: PreparedStudy, ledger: Ledger) -> tuple[EvidenceTable, Loose]:
    """(evidence of each ledger row with products on paper or recomputation, kernels of no layer by batch size)."""
    found = EvidenceTable()
    loose = {}
    seen = {}
    for batch in study.batches:
        counting = batch.counting
        kernels = kernels_by_key(counting) if counting else {}
        loose[batch.batch] = tuple(kernels.get(None, ()))
        ops = next((item.run.report.ops for item in batch.runs if item.run.report.ops), ())
        seen[batch.batch] = counting.run if counting else None, kernels, facts_by_layer(ops)
    for row in ledger.rows:
        if not row.layer or not (row.paper.value or row.direction == "recompute"):
            continue
        run, kernels, facts = seen[row.batch]
        layers = any(key is not None for key in kernels)
        profiled = run is not None and layers and inside(row.layer, narrowed_to(run))
        known = facts.get(row.layer, LayerFacts())
        evidence = RowEvidence(
            row, tuple(kernels.get((row.layer, row.direction), ())), known.shape,
            run.report.environment if run else {}, run.precision if run else None, profiled, _left_out(run) if run else None,
            ncu=run and (run.profiler_version or run.report.tool_version), ours=run is not None and run.origin == "measured",
            calls=known.calls, causal=known.causal, inside=known.inside,
        )  # fmt: skip
        found[evidence.place] = evidence
    return found, loose


def _left_out(run: Run) -> str | None:
    if run.status != "ok":
        return f"the ncu run is {run.status}{': ' + run.reason.rstrip('.') if run.reason else ''}"
    of_ncu = list(takewhile(lambda word: word != "-m", run.command))
    used = [option for option in ("--launch-skip", "--launch-count", "--kernel-name") if option in of_ncu]
    return f"ncu was asked to leave launches out ({', '.join(used)})" if used else None


def kernels_by_key(run: PreparedRun) -> dict[Key | None, list[KernelGroup]]:
    """Kernels of each (layer, direction), launches of one name and grid together; None: of no layer."""
    sms = sm_count(run.run)
    values = {
        launch: found if all(name.endswith(".sum") for name in found) else with_counts(found, sms)[0]
        for launch, found in run.values.items()
    }
    groups: dict[Key | None, dict[tuple[str, Grid | None], list[int]]] = defaultdict(lambda: defaultdict(list))
    for kernel, key in run.launches:
        grid = None if kernel.grid_x is None else (kernel.grid_x, kernel.grid_y or 1, kernel.grid_z or 1)
        groups[key][kernel.name, grid].append(kernel.launch)
    return {
        key: [_group(name, grid, launches, run, values) for (name, grid), launches in found.items()]
        for key, found in groups.items()
    }


def _group(
    name: str,
    grid: Grid | None,
    launches: list[int],
    run: PreparedRun,
    values: Mapping[int, Mapping[str, float | None]],
) -> KernelGroup:
    steps = run.steps or 1
    counts: dict[str, float] = defaultdict(float)
    for launch in launches:
        for count, value in _raw(values.get(launch, {})).items():
            counts[count] += value / steps
    known = [run.flops[launch] for launch in launches if launch in run.flops]
    total = total_of((item.total for item in known), divide_by=steps)
    tensor = total_of((item.tensor for item in known), divide_by=steps)
    version = run.run.profiler_version or run.run.report.tool_version
    half = next((half_weights(values[launch], version)["hfma"] for launch in launches if launch in values), 2)
    return KernelGroup(name, recognise(name), grid, len(launches) / steps, dict(counts), total, tensor, half)


def _raw(values: Mapping[str, float | None]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values.items():
        if value is None:
            continue
        head, _, tail = name.partition("_op_")
        if head.endswith("__sass_thread_inst_executed") and tail.endswith("_pred_on.sum"):
            found[tail.removesuffix("_pred_on.sum")] = value
        elif name.endswith("__" + PIPE_TENSOR):
            found["pipe"] = value
    if (operations := ops_path(values)) is not None:
        found["ops_path"] = operations
    return found


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What a layer's forward pass says about its product."""

    shape: Shape | None = None
    calls: int = 1
    causal: tuple[int, int] | None = None
    inside: float | None = None


def facts_by_layer(ops: Iterable[OpShape]) -> dict[str, LayerFacts]:
    """layer -> facts of its product in the forward pass, for layers that run exactly one, however often."""
    found: dict[str, list[OpShape]] = defaultdict(list)
    for op in ops:
        if op.direction == "forward" and (op.op in (*CONVOLUTIONS, *LINEAR) or op.attributes.get("is_causal")):
            found[op.layer].append(op)
    return {layer: _facts(op) for layer, (op, *others) in found.items() if not others}


def _facts(op: OpShape) -> LayerFacts:
    if op.op not in (*CONVOLUTIONS, *LINEAR):
        query, key = shape_of(op.inputs, 0), shape_of(op.inputs, 1)
        return LayerFacts(causal=(query[-2], key[-2]) if len(query) > 2 and len(key) > 2 else None)
    return LayerFacts(_shape(op), op.calls, inside=_inside(op))


def _inside(op: OpShape) -> float | None:
    """Taps of a filter that fall on the image, of all that paper counts."""
    source, weight, output = shape_of(op.inputs, 0), shape_of(op.inputs, 1), shape_of(op.outputs, 0)
    steps = [op.attributes.get(name) for name in ("stride", "padding", "dilation")]
    if (
        op.op not in CONVOLUTIONS
        or op.attributes.get("transposed")
        or not len(source) == len(weight) == len(output) == 4
    ):
        return None
    if not all(isinstance(step, (list, tuple)) and len(step) == 2 for step in steps):
        return None
    share = 1.0
    for at in (0, 1):
        stride, pad, dilation = (int(step[at]) for step in steps if isinstance(step, (list, tuple)))
        size, taps, outs = source[2 + at], weight[2 + at], output[2 + at]
        hits = sum(0 <= out * stride - pad + tap * dilation < size for out in range(outs) for tap in range(taps))
        share *= hits / (outs * taps) if outs and taps else 1.0
    return share


def _shape(op: OpShape) -> Shape | None:
    output = shape_of(op.outputs, 0)
    if op.op in CONVOLUTIONS:
        source, weight = shape_of(op.inputs, 0), shape_of(op.inputs, 1)
        if op.attributes.get("transposed") or not len(source) == len(weight) == len(output) == 4:
            return None
        groups = int(str(op.attributes.get("groups", 1)))
        stride = op.attributes.get("stride")
        same = isinstance(stride, (list, tuple)) and set(stride) == {1} and source[2:] == output[2:]
        return ConvShape(output[0], source[1], *output[1:], *weight[2:], groups, same_size=same)
    rows = left_factor(op)
    return GemmShape(prod(output[:-1]), output[-1], rows[-1]) if rows and output else None


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
    called: float = 0
    """Launches of a whole product beyond those of the step, by their grids."""

    def grown(self, part: str) -> float:
        """By what factor one part (called, transforms, repeated, summed or extra) makes the parts before it grow.

        Where nothing predicts the products, they are taken as counted: a small part of a large count is not a large one.
        """
        parts = ("called", "transforms", "repeated", "summed", "extra")
        base = self.base if self.rule or not self.seen else max(self.seen - self.called, 0.0)
        before = base + sum(float(getattr(self, name)) for name in parts[: parts.index(part)])
        return 1 + float(getattr(self, part)) / before if before else 1.0


def breakdown(evidence: RowEvidence, forward: RowEvidence | None) -> Breakdown:
    """``forward``: the same layer's forward row at the same batch size, for a row of its gradients."""
    several = _several(evidence)
    if several:
        products = tuple(kernel for kernel, _ in several)
        seen = sum(kernel.products for kernel in products)
        base = sum(2 * multiplies * kernel.launches for kernel, multiplies in several)
        return Breakdown(evidence.paper, base, "", None, None, products, seen, several=products)
    repeating = _repeated(evidence, forward)
    own = [*evidence.kernels]
    for kernel in repeating:
        whole = next(one for one in own if (one.name, one.grid) == (kernel.name, kernel.grid))
        own.remove(whole)
        if whole.launches > kernel.launches:
            own.append(whole.part(whole.launches - kernel.launches))
    beside = [kernel for kernel in own if not kernel.main]
    products = tuple(kernel for kernel in own if kernel.main)
    algorithm = of_layer(one.name for one in own if one.main or one.algorithm.role in ("transform", "offsets"))
    base, rule, called = from_grids(evidence, products) or (evidence.paper, "", 0.0)
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
        extra=_executed(extras) + epilogue, extras=(*extras, *(fused if epilogue else ())), called=called,
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
    known = {(kernel.name, kernel.grid): kernel.launches for kernel in forward.kernels}
    again = tuple(
        kernel.part(known[kernel.name, kernel.grid])
        for kernel in evidence.kernels
        if kernel.launches >= known.get((kernel.name, kernel.grid), float("inf"))
    )
    gradients = sum(1 for call in evidence.row.calls if call.flops)
    least = LEAST_MULTIPLIES * evidence.paper / max(gradients, 1)
    others = sum(
        one.launches - known.get((one.name, one.grid), 0.0) for one in evidence.kernels
        if one.main and (one.flops.value is None or one.flops.lower_bound or one.products >= least * one.launches)
    )  # fmt: skip
    names = {(kernel.name, kernel.grid) for kernel in again}
    whole = all((kernel.name, kernel.grid) in names for kernel in forward.product_kernels)
    return again if any(kernel.main for kernel in again) and whole and others >= gradients else ()


def _several(evidence: RowEvidence) -> tuple[tuple[KernelGroup, float], ...]:
    """(kernel, multiplies that its name, its grid and the shape say) of products that each do the whole layer."""
    if evidence.row.direction != "forward" or len(evidence.shapes) != 1 or evidence.calls != 1:
        return ()
    (shape,) = evidence.shapes
    tried = evidence.environment.get("cudnn_benchmark") == "on"
    whole = []
    for kernel in evidence.product_kernels:
        said = expected_grid(kernel.algorithm, kernel.grid, shape) if kernel.grid else None
        each = kernel.products / (2 * kernel.launches) if kernel.launches else 0
        predicted: float | None = said.multiplies if said is not None and said.matches else None
        if predicted is None and tried and kernel.algorithm.family == "conv" and isinstance(shape, ConvShape):
            predicted = shape.macs
        if predicted is None and tried and isinstance(shape, ConvShape) and kernel.algorithm.winograd:
            predicted = winograd_multiplies(shape, *kernel.algorithm.winograd)
        if predicted and each and abs(log(each / predicted)) < CLOSE:
            whole.append((kernel, predicted))
    return tuple(whole) if len(whole) > 1 else ()


def winograd_multiplies(shape: ConvShape, m: int, r: int) -> float:
    """(m + r - 1)^2 multiplies for each tile of m x m outputs and each pair of channels; tiles at the edge are whole."""
    tiles = shape.batch * ceil(shape.out_h / m) * ceil(shape.out_w / m)
    return tiles * (m + r - 1) ** 2 * shape.in_channels * shape.out_channels / shape.groups


def unknown_tiles(evidence: RowEvidence) -> frozenset[tuple[int, int]]:
    """Tiles that a product of unknown tile may have, by its count: fewer rows may have needed the same whole tiles."""
    forward, products = evidence.forward, evidence.product_kernels
    if forward is None or not products or any(kernel.algorithm.tile for kernel in products):
        return frozenset()
    rows, columns = (forward.m, forward.n) if isinstance(forward, GemmShape) else (forward.pixels, forward.out_channels)
    depth = evidence.paper / (rows * columns)
    area = sum(kernel.products for kernel in products) / depth if depth else 0
    sizes = {(m, n): ceil(rows / m) * m * ceil(columns / n) * n for m in TILES for n in TILES}
    return frozenset(tile for tile, size in sizes.items() if area > 0 and abs(log(area / size)) < EXACT)


def from_grids(evidence: RowEvidence, products: Sequence[KernelGroup]) -> tuple[float, str, float] | None:
    """(FLOPs of the step's products, how they were predicted, FLOPs of further launches of them).

    Each product's grid is held against each shape that the row may have; None when none matches.
    """
    base, called, rules, calls = evidence.paper, 0.0, [], evidence.calls
    open_shapes = [*evidence.shapes, *evidence.unverified_shapes]
    near = CLOSE if evidence.row.direction == "forward" else EXACT
    for kernel in products:
        if kernel.grid is None or kernel.launches % calls or not kernel.launches or not kernel.products:
            continue
        for shape in open_shapes:
            found = _matched(kernel, shape, int(kernel.launches) // calls, near)
            if found is None:
                continue
            multiplies, rule, parts = found
            base += 2 * (multiplies * parts - shape.macs) * calls
            called += 2 * multiplies * (kernel.launches - parts * calls)
            rules.append(rule + (f"; {calls} calls" if calls > 1 else ""))
            open_shapes.remove(shape)
            break
    return (base, "; ".join(rules), called) if rules else None


def _matched(kernel: KernelGroup, shape: Shape, launches: int, near: float) -> tuple[float, str, int] | None:
    """(multiplies of one launch, rule, launches that one call takes): the batch may be split over the launches."""
    for parts in (1, launches) if launches > 1 else (1,):
        part = _part_of(shape, parts)
        said = expected_grid(kernel.algorithm, kernel.grid, part) if part and kernel.grid else None
        if part is None or said is None or not said.matches:
            continue
        multiplies, rule = _deepened(said, kernel, part)
        if abs(log(kernel.products / (2 * multiplies * kernel.launches))) <= near:
            return multiplies, rule + (f", in {parts} launches" if parts > 1 else ""), parts
    return None


def _part_of(shape: Shape, parts: int) -> Shape | None:
    if isinstance(shape, ConvShape):
        return None if shape.batch % parts else replace(shape, batch=shape.batch // parts)
    return None if shape.m % parts else replace(shape, m=shape.m // parts)


def fits_grids(evidence: RowEvidence) -> bool:
    """True when no product's grid speaks against the row's shape."""
    found = _matches(evidence)
    return not found or any(found)


def _matches(evidence: RowEvidence) -> list[bool]:
    pairs = [(kernel, shape) for kernel in evidence.product_kernels for shape in evidence.shapes]
    found = [expected_grid(kernel.algorithm, kernel.grid, shape) for kernel, shape in pairs if kernel.grid]
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
        if padded != deep and abs(log(kernel.products / (2 * multiplies * kernel.launches))) < EXACT:
            return multiplies, f"{said.rule}; its sum of {deep} is padded to {padded}, so {multiplies:,.0f} multiplies"
    return said.multiplies, said.rule


def _winograd_in_theory(evidence: RowEvidence, own: Sequence[KernelGroup]) -> tuple[float, str]:
    """F(m x m, r x r) needs (m + r - 1)^2 multiplies for m^2 outputs of r^2 products; whole tiles where the shape is known."""
    sizes = next((kernel.algorithm.winograd for kernel in own if kernel.algorithm.winograd), None)
    if sizes is None:
        return evidence.paper, ""
    m, r = sizes
    share = ((m + r - 1) / (m * r)) ** 2
    rule = f"{m + r - 1}^2 multiplies in place of {m}^2 x {r}^2"
    shape = next(iter([*evidence.shapes, *evidence.unverified_shapes]), None)
    if isinstance(shape, ConvShape) and (shape.kernel_h, shape.kernel_w) == (r, r):
        share = winograd_multiplies(shape, m, r) / shape.macs
        rule += ", tiles at the edge included"
    gradients = max(sum(1 for call in evidence.row.calls if call.flops), 1)
    part = min(_winograds(own), gradients) / gradients or 1.0
    return evidence.paper * (1 - part + part * share), rule


def _winograds(own: Sequence[KernelGroup]) -> int:
    fused = sum(kernel.algorithm.family == "winograd" for kernel in own if kernel.main)
    return fused + sum("output" in one.name.lower().partition("winograd")[2] for one in own if not one.main)


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
