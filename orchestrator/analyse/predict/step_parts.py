"""What a step is made of: seconds at a machine's peaks, by kind of work and direction, from the forward operations alone.

Each part is a sum of floors (FLOPs/peak or bytes/bandwidth), a count, or one; all grow with batch or stay as they are. The
step model (``step_model``) gives each part a cost, the reciprocal of an efficiency, and adds them up. Training follows by
rule: grad_input (unless ``first``) and grad_weight each cost the forward's multiply-adds. 1 multiply-add is 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from perfctl.orchestrator.analyse.flops.engine import BACKWARD
from perfctl.orchestrator.analyse.hardware.machines import Machine
from perfctl.orchestrator.analyse.memory.by_batch import STATE
from perfctl.orchestrator.analyse.predict.operations import HEAVY, Operation, StepSpec, element_bytes
from perfctl.records.paper import LayerCall
from perfctl.records.report import Feature

PRODUCTS = ("conv", "pointwise", "grouped", "depthwise", "linear", "matmul")
"""Groups with multiply-adds: windows wider than 1x1, 1x1, groups of channels, each channel by itself, with weights, between
activations."""
PLAIN = ("norm", "activation", "elementwise", "pool", "softmax", "memory")
"""Groups that move bytes and multiply nothing."""

PARTS = (
    *(f"{group} {phase}" for group in PRODUCTS for phase in ("forward", "backward")),
    "narrow forward", "narrow backward", "shallow forward", "shallow backward", "weights forward", "weights backward",
    "window forward", "window backward",
    "spilled forward", "spilled backward", "overflow forward", "overflow backward",
    *(f"{group} bytes {phase}" for group in (*PRODUCTS, *PLAIN) for phase in ("forward", "backward")),
    "operations forward", "operations backward", "tensors optimizer", "bytes optimizer", "adam optimizer",
    "overflow optimizer", "fresh backward", "fresh optimizer", "step forward",
)  # fmt: skip
"""Names of the parts, each ending in its phase.

narrow and shallow: arithmetic divided by output channels and by depth, which small matrices waste; weights: bytes of the
parameters, whatever the batch; window: bytes of all windows that a pool looks at; spilled and overflow: bytes of an operation
beyond 2 and 32 MiB, which caches do not hold; adam: the optimizer's bytes once more, where it divides and takes roots;
fresh: bytes of the gradients of weights of more than 32 MiB, and of what adam makes of them, which are new memory in each step;
operations and tensors: a microsecond for each; step: a millisecond.
"""
PLACE = {name: place for place, name in enumerate(PARTS)}
BESIDE = ("narrow", "shallow", "window", "spilled", "overflow", "adam", "fresh", "operations", "tensors", "step")
"""First words of the parts that are no floors."""
REFERENCE = 64.0
"""Channels at which "narrow" and "shallow" are as much as the arithmetic itself."""
SPILLED, OVERFLOW = 2.0 * 2**20, 32.0 * 2**20
"""Bytes of one operation. Beyond 32 MiB glibc's malloc (DEFAULT_MMAP_THRESHOLD_MAX) maps each block by itself and gives it back
when it is freed: writing to it then meets a page fault every 4 KiB, which takes far longer than the write alone."""
FP32 = 4.0
"""Bytes of a parameter and its gradient."""
MICROSECOND, MILLISECOND = 1e-6, 1e-3


def merged(works: Iterable[Operation]) -> tuple[Operation, ...]:
    """Equal operations of different layers as one, their calls added, in the order of the first; layer names go."""
    found = tuple(works)
    if not any(work.layer for work in found) and len(set(found)) == len(found):
        return found  # merged before
    calls: dict[Operation, int] = {}
    for work in found:
        alike = replace(work, layer="", calls=1)
        calls[alike] = calls.get(alike, 0) + work.calls
    return tuple(replace(work, calls=count) for work, count in calls.items())


def group_of(work: Operation) -> str:
    """Which of :data:`PRODUCTS` or :data:`PLAIN` an operation belongs to."""
    if work.kind == "conv":
        return "conv" if work.kernel > 1 else "pointwise"
    if work.kind == "grouped_conv":
        return "depthwise" if work.depth <= work.kernel else "grouped"
    others = {
        "transposed_conv": "conv", "rnn": "linear", "attention": "matmul", "loss": "softmax", "other": "memory",
    }  # fmt: skip
    return others.get(work.kind, work.kind)


def peak_of(machine: Machine, precision: str, depthwise: bool = False) -> float:
    """FLOP/s of the path that products run on. Raises ValueError when the machine's peaks do not hold it.

    Depthwise kernels use the ordinary pipes, whatever the type.
    """
    paths = {"fp32": ("fp32",), "tf32": ("tensor tf32", "fp32"), "fp64": ("fp64",)}.get(
        precision, (f"tensor {precision}", precision)
    )
    if depthwise and precision != "fp64":
        paths = ("fp32",)
    for path in paths:
        if machine.flops_per_second.get(path):
            return machine.flops_per_second[path]
    raise ValueError(f"{machine.name}: no peak is known for {precision} (looked for {' or '.join(paths)})")


def parts_of_work(work: Operation, case: StepSpec, machine: Machine) -> tuple[tuple[str, float], ...]:
    """(part, seconds) of one operation, all its calls, at the case's batch."""
    size, batch = element_bytes(case.precision), float(case.batch)
    calls, group = float(work.calls), group_of(work)
    each = batch * (work.inputs + work.outputs) * size
    moved = calls * each / machine.bytes_per_second
    spilled = calls * max(each - SPILLED, 0.0) / machine.bytes_per_second
    overflow = calls * max(each - OVERFLOW, 0.0) / machine.bytes_per_second
    found = [("operations forward", calls * MICROSECOND), ("spilled forward", spilled), ("overflow forward", overflow)]
    back = 0.0
    if work.kind in HEAVY:
        products = _directions(work) if case.training else 0.0
        back = products
        found += _arithmetic(work, case, machine, group, products)
        held = calls * (work.weights * size) / machine.bytes_per_second
        found += [(f"{group} bytes forward", moved), ("weights forward", held)]
        if case.training:
            found += [(f"{group} bytes backward", moved * products), ("weights backward", held * products)]
    else:
        back = 1.0 if case.training and group != "memory" else 0.0
        found.append((f"{group} bytes forward", moved))
        window = (
            calls * (batch * work.outputs * work.kernel * size) / machine.bytes_per_second if group == "pool" else 0.0
        )
        found.append(("window forward", window))
        if case.training:
            found += [(f"{group} bytes backward", moved), ("window backward", window)]
    found += [
        ("operations backward", calls * back * MICROSECOND),
        ("spilled backward", spilled * back),
        ("overflow backward", overflow * back),
    ]
    if case.training and work.weights:
        found.append(("tensors optimizer", calls * MICROSECOND))
        if work.weights * FP32 > OVERFLOW:
            fresh = calls * (work.weights * FP32) / machine.bytes_per_second
            found += [("fresh backward", fresh), ("fresh optimizer", fresh if case.optimizer == "adam" else 0.0)]
    return tuple(found)


def _directions(work: Operation) -> float:
    """Products in backward for one in forward: one for each input that has a gradient."""
    weights = 1.0 if work.weights or work.kind in ("matmul", "attention") else 0.0
    return weights + (0.0 if work.first else 1.0)


def _arithmetic(
    work: Operation, case: StepSpec, machine: Machine, group: str, products: float
) -> list[tuple[str, float]]:
    peak = peak_of(machine, case.precision, group == "depthwise")
    seconds = float(work.calls) * (2.0 * float(case.batch) * work.macs) / peak
    narrow = seconds * (REFERENCE / max(work.columns, 1.0)) if group != "depthwise" else 0.0
    shallow = seconds * (REFERENCE / max(work.depth, 1.0)) if group != "depthwise" else 0.0
    found = [(f"{group} forward", seconds), ("narrow forward", narrow), ("shallow forward", shallow)]
    if case.training:
        found += [
            (f"{group} backward", seconds * products),
            ("narrow backward", narrow * products),
            ("shallow backward", shallow * products),
        ]
    return found


def parts(case: StepSpec, machine: Machine) -> tuple[float, ...]:
    """Seconds of each of :data:`PARTS`. Raises ValueError when the machine has no peak for the precision."""
    found = [0.0] * len(PARTS)
    for work in merged(case.works):
        for name, seconds in parts_of_work(work, case, machine):
            found[PLACE[name]] += seconds
    if case.training:
        moved = optimizer_seconds(case.parameters, case.optimizer, machine)
        found[PLACE["bytes optimizer"]] = moved
        found[PLACE["adam optimizer"]] = moved if case.optimizer == "adam" else 0.0
        found[PLACE["overflow optimizer"]] = max(moved - OVERFLOW / machine.bytes_per_second, 0.0)
    found[PLACE["step forward"]] = MILLISECOND
    return tuple(found)


def optimizer_seconds(parameters: int, optimizer: str, machine: Machine) -> float:
    """Gradient read, parameter and each value of state read and written, in fp32."""
    values = 3.0 + 2.0 * STATE.get(optimizer, 0)
    return float(parameters) * values * FP32 / machine.bytes_per_second


@dataclass(frozen=True, slots=True)
class Floor:
    """What one operation costs at least: all its calls, forward and backward together."""

    group: str
    """See :func:`group_of`."""
    flops: float
    """Per sample, 1 multiply-add = 2; 0 without a product."""
    elements: float
    """Activations read and written, per sample."""
    weights: float
    """Parameter elements read, whatever the batch."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The peaks of a machine that one precision runs at."""

    products: float
    """FLOP/s."""
    depthwise: float
    """FLOP/s of depthwise convolutions."""
    bytes: float
    """Bytes/s."""
    size: int
    """Bytes of an element."""


def rates_of(machine: Machine, precision: str) -> Rates:
    """Raises ValueError when the machine has no peak for the precision."""
    return Rates(
        peak_of(machine, precision), peak_of(machine, precision, depthwise=True), machine.bytes_per_second,
        element_bytes(precision),
    )  # fmt: skip


def floors(works: Iterable[Operation], training: bool) -> tuple[Floor, ...]:
    """Of each operation."""
    return tuple(_floor(work, training) for work in works)


def _floor(work: Operation, training: bool) -> Floor:
    heavy = work.kind in HEAVY
    times = float(work.calls) * (1.0 + ((_directions(work) if heavy else 1.0) if training else 0.0))
    return Floor(
        group_of(work), times * 2.0 * work.macs if heavy else 0.0, times * (work.inputs + work.outputs),
        times * work.weights if heavy else 0.0,
    )  # fmt: skip


def floor_seconds(floor: Floor, batch: int, rates: Rates) -> tuple[float, float]:
    """(arithmetic at its peak, bytes at the bandwidth) of one operation."""
    peak = rates.depthwise if floor.group == "depthwise" else rates.products
    return batch * floor.flops / peak, (batch * floor.elements + floor.weights) * rates.size / rates.bytes


def operations_floor(found: Iterable[Floor], batch: int, rates: Rates) -> float:
    """Seconds of all operations: each one's larger of arithmetic and bytes, added up."""
    return sum(max(floor_seconds(floor, batch, rates)) for floor in found)


def roofline(case: StepSpec, machine: Machine) -> float:
    """Seconds of the step below which nothing goes: all operations at the machine's peaks, and the optimizer."""
    found = operations_floor(floors(case.works, case.training), case.batch, rates_of(machine, case.precision))
    return found + (optimizer_seconds(case.parameters, case.optimizer, machine) if case.training else 0.0)


FEATURES = (
    "arithmetic", "bytes", "batch", "bytes an operation", "operations", "parameters", "columns", "depth", "rows", "intensity",
    "window share", "grouped share", "matrix share", "norm share", "activation share", "weights an operation",
)  # fmt: skip
"""What the step model's trees look at beside the parts; see :func:`features`."""
INCREASING = ("arithmetic", "bytes", "batch", "bytes an operation")
"""Those that batch drives; they grow with it."""


def features(case: StepSpec, found: tuple[float, ...]) -> tuple[float, ...]:
    """One figure for each of :data:`FEATURES`. ``found``: :func:`parts` of the case, on the machine of the fit."""
    arithmetic = sum_of(found, [f"{group} {phase}" for group in PRODUCTS for phase in ("forward", "backward")])
    moved = sum_of(found, [name for name in PARTS if " bytes " in name])
    works = merged(case.works)
    sums = _sums(works)
    operations, macs = max(sums["operations"], 1.0), max(sums["macs"], 1.0)
    elements = max(sums["elements"], 1.0)
    return (
        arithmetic, moved, float(case.batch), moved / operations, sums["operations"], float(case.parameters),
        macs / max(sums["by columns"], 1.0), macs / max(sums["by depth"], 1.0), macs / max(sums["by rows"], 1.0),
        macs / elements, sums["conv"] / macs, (sums["grouped"] + sums["depthwise"]) / macs, (sums["linear"] + sums["matmul"]) / macs,
        sums["norm"] / elements, sums["activation"] / elements, float(case.parameters) / operations,
    )  # fmt: skip


def _sums(works: tuple[Operation, ...]) -> Mapping[str, float]:
    """Over all operations, of one sample: products' macs by group, plain groups' elements, and macs over each size."""
    sums = dict.fromkeys(
        (*PRODUCTS, *PLAIN, "operations", "macs", "elements", "by columns", "by depth", "by rows"), 0.0
    )
    for work in works:
        calls, group = float(work.calls), group_of(work)
        macs, elements = calls * work.macs, calls * (work.inputs + work.outputs)
        sums["operations"] += calls
        sums["elements"] += elements
        sums[group] += macs if work.kind in HEAVY else elements
        sums["macs"] += macs
        if work.kind in HEAVY:
            sums["by columns"] += macs / max(work.columns, 1.0)
            sums["by depth"] += macs / max(work.depth, 1.0)
            sums["by rows"] += macs / max(work.rows, 1.0)
    return sums


def sum_of(found: tuple[float, ...], names: Iterable[str]) -> float:
    """The parts of these names, added in their order."""
    total = 0.0
    for name in names:
        total += found[PLACE[name]]
    return total


def features_of(calls: Iterable[LayerCall]) -> tuple[Feature, ...]:
    """Of one step at its batch size, all directions named apart. What has no formula is in "unknown", and in no sum."""
    sums: dict[str, float] = {}

    def add(name: str, value: float | None) -> None:
        sums[name] = sums.get(name, 0.0) + (value or 0.0)

    for call in calls:
        if call.direction == "optimizer":
            add("bytes:optimizer", (call.read_bytes or 0) + (call.write_bytes or 0))
            continue
        if call.macs is None:
            add("unknown", call.calls)
            continue
        moved = (call.read_bytes or 0) + (call.write_bytes or 0)
        if call.direction == "forward":
            add("flops:forward", 2 * call.macs)
            add("elementwise:forward", call.elementwise_flops)
            add("bytes:forward", moved)
            add("calls:forward", call.calls)
            add("parameters", call.parameters)
            add("activations", call.output_elements)
            if call.macs:
                add("layers", 1)
                add(f"flops:{call.kind}", 2 * call.macs)
        elif call.direction in BACKWARD:
            add("flops:backward", 2 * call.macs)
            add("bytes:backward", moved)
    return tuple(Feature(name, value, _UNITS.get(name.partition(":")[0])) for name, value in sorted(sums.items()))


_UNITS = {"flops": "FLOP", "elementwise": "FLOP", "bytes": "byte", "parameters": "element", "activations": "element"}
