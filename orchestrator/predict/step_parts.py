"""The parts of a step: seconds at a machine's peaks, by kind of work and direction, from the
forward operations.

Each is a sum of floors (FLOPs/peak or bytes/bandwidth), a count, or one; none falls with batch.
:mod:`.fit` adds them up.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import NamedTuple

from perfctl.orchestrator.counts.hardware.machines import Machine
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.estimate.memory import STATE
from perfctl.orchestrator.predict.operations import (
    HEAVY,
    Operation,
    StepSpec,
    get_activation_element_bytes,
)
from perfctl.records.paper import LayerCall
from perfctl.records.report import Feature

PRODUCTS = ("conv", "pointwise", "grouped", "depthwise", "linear", "matmul")
"""Groups with multiply-adds: windows wider than 1x1, 1x1, groups of channels, single channels, with
weights, between activations."""
PLAIN = ("norm", "activation", "elementwise", "pool", "softmax", "memory")

PHASES = ("forward", "backward", "optimizer")
PARTS = (
    *(
        f"{name} {phase}"
        for name in (
            *PRODUCTS,
            "narrow",
            "shallow",
            "unpacked",
            "broadcast",
            "weights",
            "window",
            "spilled",
            "overflow",
            *(f"{group} bytes" for group in (*PRODUCTS, *PLAIN)),
            "operations",
        )
        for phase in ("forward", "backward")
    ),
    "tensors optimizer",
    "bytes optimizer",
    "adam optimizer",
    "overflow optimizer",
    "fresh backward",
    "fresh optimizer",
    "step forward",
)
"""Names of the parts, each ending in its phase.

narrow and shallow: arithmetic divided by output channels and by depth, which small matrices waste;
unpacked: narrow arithmetic of grouped convolutions that have no kernel for channels-last tensors
(:func:`lacks_channels_last_kernel`), on ordinary pipes; broadcast: bytes of elementwise work in
which one operand is smaller than the other (a gate of each channel), whose gradient is a sum;
weights: bytes of the parameters, whatever the batch; window: bytes of all windows that a pool looks
at; spilled and overflow: bytes of an operation beyond 2 and 32 MiB, which caches do not hold; adam:
the optimizer's bytes once more, where it divides and takes roots; fresh: bytes of the gradients of
weights of more than 32 MiB, and of what adam makes of them, which are new memory in each step;
operations and tensors: a microsecond for each; step: a millisecond. """
EXTRA = {
    "narrow": "arithmetic",
    "shallow": "arithmetic",
    "unpacked": "arithmetic",
    "broadcast": "bytes",
    "window": "bytes",
    "spilled": "bytes",
    "overflow": "bytes",
    "adam": "bytes",
    "fresh": "bytes",
}
"""First words of the parts that add to others, and the class of these."""


BESIDE = (*EXTRA, "operations", "tensors", "step")
"""First words of the parts that are not floors."""
REFERENCE = 64.0
"""Channels at which "narrow" and "shallow" equal the arithmetic."""
PACKED, GROUPS = (4.0, 8.0, 16.0, 32.0), 8.0
"""Channels of a group, in and out, and least number of groups, of grouped convolutions that have
kernels for channels-last tensors. From published times (timm, RTX 3090, cuDNN 8): with others a
network takes up to four times as long as with contiguous tensors."""
SPILLED, OVERFLOW = 2.0 * 2**20, 32.0 * 2**20
"""Bytes of one operation. Beyond 32 MiB glibc's malloc (DEFAULT_MMAP_THRESHOLD_MAX) maps each block
by itself and gives it back when it is freed: writing to it then meets a page fault every 4 KiB,
which takes far longer than the write alone."""
FP32 = 4.0
"""Bytes of a parameter and its gradient."""
MICROSECOND, MILLISECOND = 1e-6, 1e-3

_PATHS = {"fp32": ("tensor fp32", "fp32"), "tf32": ("tensor tf32",), "fp64": ("fp64",)}
"""Paths of a precision, the first that a machine has. fp32 products of AMD's chips run on matrix
cores, "tensor fp32"."""
_INSTEAD = {
    "tf32": "matrix multiplications would run in fp32, no faster",
    "bf16": "matrix multiplications would be converted to fp32, no faster",
    "fp16": "it runs slower than fp32, or at an unknown rate",
    "fp8": "its tensor cores do not support 8-bit floats",
}

FEATURES = (
    "arithmetic",
    "bytes",
    "batch",
    "bytes per operation",
    "operations",
    "parameters",
    "columns",
    "depth",
    "rows",
    "intensity",
    "window share",
    "grouped share",
    "matrix share",
    "norm share",
    "activation share",
    "weights per operation",
)
"""Features of the step model; see :func:`compute_step_features`."""
INCREASING = ("arithmetic", "bytes", "batch", "bytes per operation")
"""Features that grow with the batch size."""


def _classify_part_bottleneck(part: str) -> str:
    first = part.split(" ")[0]
    if " bytes " in part or first in ("bytes", "weights"):
        return "bytes"
    counted = {"operations": "operations", "tensors": "operations", "step": "step"}
    return (counted | EXTRA).get(first, "arithmetic")


CLASS_OF = {part: _classify_part_bottleneck(part) for part in PARTS}
"""Part -> arithmetic, bytes, operations or step."""
LIMIT_OF = {part: "operations" if kind == "step" else kind for part, kind in CLASS_OF.items()}
"""Part -> arithmetic, bytes or operations."""
PHASE_OF = {part: part.rpartition(" ")[2] for part in PARTS}


@lru_cache(maxsize=16)
def _merge_operations_and_sum_sizes(
    works: tuple[Operation, ...],
) -> tuple[tuple[Operation, ...], Mapping[str, float]]:
    """Return what holds of a network at every batch size: its operations, merged, and their
    sums."""
    merged_works = merge_equal_operations(works)
    return merged_works, _sum_network_sizes(merged_works)


def merge_equal_operations(works: Iterable[Operation]) -> tuple[Operation, ...]:
    """Equal operations of different layers as one, with their calls added and without
    layer names."""
    works_ = tuple(works)
    if not any(work.layer for work in works_) and len(set(works_)) == len(works_):
        return works_  # merged before
    calls: dict[Operation, int] = {}
    for work in works_:
        alike = work._replace(layer="", calls=1)
        calls[alike] = calls.get(alike, 0) + work.calls
    return tuple(work._replace(calls=count) for work, count in calls.items())


def classify_operation(work: Operation) -> str:
    """Return which of :data:`PRODUCTS` or :data:`PLAIN` an operation belongs to."""
    if work.kind == "conv":
        return "conv" if work.kernel > 1 else "pointwise"
    if work.kind == "grouped_conv":
        return "depthwise" if work.depth <= work.kernel else "grouped"
    group_names = {
        "transposed_conv": "conv",
        "rnn": "linear",
        "attention": "matmul",
        "loss": "softmax",
        "other": "memory",
    }
    return group_names.get(work.kind, work.kind)


def lacks_channels_last_kernel(work: Operation) -> bool:
    """A grouped convolution that cuDNN has no kernel of its own for when tensors are channels-last.
    See :data:`PACKED`."""
    packed = (
        work.columns in PACKED
        and work.depth == work.columns * work.kernel
        and work.groups >= GROUPS
    )
    return classify_operation(work) == "grouped" and work.kernel > 1 and not packed


def get_peak_flops_or_raise(machine: Machine, precision: str, is_depthwise: bool = False) -> float:
    """FLOP/s of the path that products run on. Raises ValueError when the machine has no fast path
    for the precision.

    Depthwise kernels use the ordinary pipes, whatever the type.
    """
    if is_depthwise and precision != "fp64" and "fp32" in machine.flops_per_second:
        return machine.flops_per_second["fp32"]
    if peak := _find_peak_flops(machine, precision):
        return peak
    able = (
        ", ".join(name for name in ("fp32", *_INSTEAD) if _find_peak_flops(machine, name))
        or "no known precision"
    )
    precision_name = "TF32" if precision == "tf32" else f"fast {precision}"
    unknown = "its peak is unknown"
    reason = _INSTEAD.get(precision, unknown) if machine.kind == "gpu" else unknown
    raise ValueError(
        f"{machine.name} has no {precision_name} ({reason}). Available precisions: {able}"
    )


def _find_peak_flops(machine: Machine, precision: str) -> float | None:
    """None without a path, and where fp16 is slower than fp32 (1/64 of its rate on Pascal's P4
    and P40)."""
    peaks = machine.flops_per_second
    for path in _PATHS.get(precision, (f"tensor {precision}", precision)):
        if peaks.get(path) and (path != "fp16" or peaks["fp16"] >= peaks.get("fp32", 0.0)):
            return peaks[path]
    return None


def list_operation_part_seconds(
    work: Operation, case: StepSpec, machine: Machine
) -> tuple[tuple[str, float], ...]:
    """Return (part, seconds) of one operation, all its calls, at the case's batch."""
    size, batch, rate = (
        get_activation_element_bytes(case.precision),
        float(case.batch),
        machine.bytes_per_second,
    )
    calls, group = float(work.calls), classify_operation(work)
    each = (
        work.weights if work.works_on_weights_only else batch * (work.inputs + work.outputs)
    ) * size
    moved, spilled, overflow = (
        calls * max(each - cached_bytes, 0.0) / rate for cached_bytes in (0.0, SPILLED, OVERFLOW)
    )
    part_seconds = [
        ("operations forward", calls * MICROSECOND),
        ("spilled forward", spilled),
        ("overflow forward", overflow),
    ]
    if work.kind in HEAVY:
        back = products = _count_backward_products(work) if case.training else 0.0
        part_seconds += _list_arithmetic_part_seconds(work, case, machine, group, products)
        weight_seconds = calls * (work.weights * size) / rate
        part_seconds += [(f"{group} bytes forward", moved), ("weights forward", weight_seconds)]
        if case.training:
            part_seconds += [
                (f"{group} bytes backward", moved * products),
                ("weights backward", weight_seconds * products),
            ]
    else:
        back = 1.0 if case.training and group != "memory" and not work.is_counter_update else 0.0
        part_seconds.append((f"{group} bytes forward", moved))
        window = (
            calls * (batch * work.outputs * work.kernel * size if group == "pool" else 0.0) / rate
        )
        broadcast = (
            moved
            if group == "elementwise" and work.outputs < work.inputs < 2 * work.outputs
            else 0.0
        )
        part_seconds += [("window forward", window), ("broadcast forward", broadcast)]
        if case.training:
            part_seconds += [
                (f"{group} bytes backward", moved),
                ("window backward", window),
                ("broadcast backward", broadcast),
            ]
    part_seconds += [
        ("operations backward", calls * back * MICROSECOND),
        ("spilled backward", spilled * back),
    ]
    part_seconds.append(("overflow backward", overflow * back))
    if case.training and work.weights and not work.works_on_weights_only:
        part_seconds.append(("tensors optimizer", calls * MICROSECOND))
        if work.weights * FP32 > OVERFLOW:
            fresh = calls * (work.weights * FP32) / rate
            part_seconds += [
                ("fresh backward", fresh),
                ("fresh optimizer", fresh if case.optimizer == "adam" else 0.0),
            ]
    return tuple(part_seconds)


def list_cache_overflow_batches(work: Operation, element_bytes: int) -> tuple[int, ...]:
    """Batch sizes between which the parts are straight lines over batch; ``element_bytes``: bytes
    of an activation."""
    each = (work.inputs + work.outputs) * element_bytes
    last = [int(cached_bytes / each) for cached_bytes in (SPILLED, OVERFLOW) if each]
    return tuple(batch for last_batch in last for batch in (last_batch, last_batch + 1))


def _count_backward_products(work: Operation) -> float:
    """Products in backward for one in forward: one for each input that has a gradient."""
    weights = 1.0 if work.weights or work.kind in ("matmul", "attention") else 0.0
    return weights + (0.0 if work.first else 1.0)


def _list_arithmetic_part_seconds(
    work: Operation, case: StepSpec, machine: Machine, group: str, backward_products: float
) -> list[tuple[str, float]]:
    peak = get_peak_flops_or_raise(machine, case.precision, group == "depthwise")
    seconds = float(work.calls) * (2.0 * float(case.batch) * work.macs) / peak
    narrow, shallow = (
        seconds * (REFERENCE / max(size, 1.0)) if group != "depthwise" else 0.0
        for size in (work.columns, work.depth)
    )
    part_seconds = [(group, seconds), ("narrow", narrow), ("shallow", shallow)]
    if (
        case.channels_last
        and get_activation_element_bytes(case.precision) <= 2
        and lacks_channels_last_kernel(work)
    ):
        ordinary = get_peak_flops_or_raise(machine, case.precision, is_depthwise=True)
        width = 0.5 * (REFERENCE / work.columns + REFERENCE * work.kernel / work.depth)
        part_seconds.append(("unpacked", seconds * peak / ordinary * width))
    forward = [(f"{name} forward", amount) for name, amount in part_seconds]
    return forward + [
        (f"{name} backward", amount * backward_products)
        for name, amount in part_seconds
        if case.training
    ]


def sum_step_part_seconds(case: StepSpec, machine: Machine) -> tuple[float, ...]:
    """Seconds of each of :data:`PARTS`. Raises ValueError when the machine has no peak for
    the precision."""
    seconds_by_part = dict.fromkeys(PARTS, 0.0)
    for work in _merge_operations_and_sum_sizes(case.works)[0]:
        for name, seconds in list_operation_part_seconds(work, case, machine):
            seconds_by_part[name] += seconds
    if case.training:
        moved = compute_optimizer_seconds(case.parameters, case.optimizer, machine)
        seconds_by_part["bytes optimizer"], seconds_by_part["adam optimizer"] = (
            moved,
            moved if case.optimizer == "adam" else 0.0,
        )
        seconds_by_part["overflow optimizer"] = max(
            moved - OVERFLOW / machine.bytes_per_second, 0.0
        )
    seconds_by_part["step forward"] = MILLISECOND
    return tuple(seconds_by_part.values())


OPTIMIZER, STEP = "(optimizer)", "(step)"


class PartAmount(NamedTuple):
    """How much one operation, the optimizer or the step has of one part."""

    layer: str
    kind: str
    group: str
    """``classify_operation`` of the operation, "optimizer" or "overhead"."""
    part: str
    amount: float
    """Seconds at the machine's peaks, times the part's cost."""


def iterate_weighted_part_seconds(
    case: StepSpec, machine: Machine, costs: Mapping[str, float] | None = None
) -> Iterator[PartAmount]:
    """Yield the parts of each operation, of the optimizer and of the step.

    ``costs``: of each part; None for 1.
    """
    costs = costs or dict.fromkeys(PARTS, 1.0)
    for work in case.works:
        for part, seconds in list_operation_part_seconds(work, case, machine):
            names = (work.layer, work.kind, classify_operation(work))
            if PHASE_OF[part] == "optimizer":
                names = (OPTIMIZER, "optimizer", "optimizer")
            yield PartAmount(*names, part, costs[part] * seconds)
    totals = dict(zip(PARTS, sum_step_part_seconds(case, machine), strict=True))
    for part in ("bytes optimizer", "adam optimizer", "overflow optimizer"):
        yield PartAmount(OPTIMIZER, "optimizer", "optimizer", part, costs[part] * totals[part])
    part = "step forward"
    yield PartAmount(STEP, "overhead", "overhead", part, costs[part] * totals[part])


def compute_optimizer_seconds(parameters: int, optimizer: str, machine: Machine) -> float:
    """Gradient read; parameter and each value of state read and written; fp32."""
    values = 3.0 + 2.0 * STATE.get(optimizer, 0)
    return float(parameters) * values * FP32 / machine.bytes_per_second


@dataclass(frozen=True, slots=True)
class OperationFloor:
    """Least cost of one operation, forward and backward together: FLOPs and activations per sample,
    and weights."""

    group: str
    flops: float
    elements: float
    weights: float


@dataclass(frozen=True, slots=True)
class PeakRates:
    """The peaks of a machine that one precision runs at."""

    products: float
    depthwise: float
    elements: float


def get_peak_rates(machine: Machine, precision: str) -> PeakRates:
    """Raises ValueError when the machine has no peak for the precision."""
    products, depthwise = (
        get_peak_flops_or_raise(machine, precision, depthwise) for depthwise in (False, True)
    )
    return PeakRates(
        products, depthwise, machine.bytes_per_second / get_activation_element_bytes(precision)
    )


def list_operation_floors(works: Iterable[Operation], training: bool) -> tuple[OperationFloor, ...]:
    floors_ = []
    for work in works:
        heavy = work.kind in HEAVY
        times = float(work.calls) * (
            1.0 + ((_count_backward_products(work) if heavy else 1.0) if training else 0.0)
        )
        macs, weights = work.macs, work.weights if heavy or work.works_on_weights_only else 0.0
        floors_.append(
            OperationFloor(
                classify_operation(work),
                times * 2.0 * macs,
                times * (work.inputs + work.outputs),
                times * weights,
            )
        )
    return tuple(floors_)


def sum_operation_floor_seconds(
    floors_: Iterable[OperationFloor], batch: int, rates: PeakRates
) -> float:
    """Return the time of all operations: each one's larger of arithmetic at its peak and bytes at
    the bandwidth, added up."""
    total = 0.0
    for floor in floors_:
        peak = rates.depthwise if floor.group == "depthwise" else rates.products
        moved = (batch * floor.elements + floor.weights) / rates.elements
        total += max(batch * floor.flops / peak, moved)
    return total


def compute_step_floor_seconds(case: StepSpec, machine: Machine) -> float:
    """Least seconds of the step: all operations at the machine's peaks, and the optimizer."""
    floor = sum_operation_floor_seconds(
        list_operation_floors(case.works, case.training),
        case.batch,
        get_peak_rates(machine, case.precision),
    )
    return floor + (
        compute_optimizer_seconds(case.parameters, case.optimizer, machine)
        if case.training
        else 0.0
    )


def compute_step_features(case: StepSpec, part_seconds: tuple[float, ...]) -> tuple[float, ...]:
    """Return one figure for each of :data:`FEATURES`. ``part_seconds``: as
    :func:`sum_step_part_seconds` returns them for the machine of the fit."""
    seconds = dict(zip(PARTS, part_seconds, strict=True))
    arithmetic = add_left_to_right(
        seconds[f"{group} {phase}"] for group in PRODUCTS for phase in ("forward", "backward")
    )
    moved = add_left_to_right(seconds[name] for name in PARTS if " bytes " in name)
    _, sums = _merge_operations_and_sum_sizes(case.works)
    operations, macs, elements = (
        max(sums[name], 1.0) for name in ("operations", "macs", "elements")
    )
    return (
        arithmetic,
        moved,
        float(case.batch),
        moved / operations,
        sums["operations"],
        float(case.parameters),
        macs / max(sums["by columns"], 1.0),
        macs / max(sums["by depth"], 1.0),
        macs / max(sums["by rows"], 1.0),
        macs / elements,
        sums["conv"] / macs,
        (sums["grouped"] + sums["depthwise"]) / macs,
        (sums["linear"] + sums["matmul"]) / macs,
        sums["norm"] / elements,
        sums["activation"] / elements,
        float(case.parameters) / operations,
    )


def _sum_network_sizes(works: tuple[Operation, ...]) -> Mapping[str, float]:
    """Over all operations, of one sample: products' macs by group, plain groups' elements, and macs
    over each size."""
    sums: dict[str, float] = defaultdict(float)
    for work in works:
        calls, group = float(work.calls), classify_operation(work)
        macs, elements = calls * work.macs, calls * (work.inputs + work.outputs)
        sums["operations"] += calls
        sums["elements"] += elements
        sums[group] += macs if work.kind in HEAVY else elements
        sums["macs"] += macs
        if work.kind in HEAVY:
            for name, size in (
                ("by columns", work.columns),
                ("by depth", work.depth),
                ("by rows", work.rows),
            ):
                sums[name] += macs / max(size, 1.0)
    return sums


def add_left_to_right(values: Iterable[float]) -> float:
    """Added one by one: ``sum`` compensates from Python 3.12 on, and its last digits
    then differ."""
    return reduce(operator.add, values, 0.0)


def sum_layer_call_features(calls: Iterable[LayerCall]) -> tuple[Feature, ...]:
    """Of one step at its batch size, by direction. Calls without a formula are in
    "unknown" only."""
    sums: dict[str, float] = defaultdict(float)
    for call in calls:
        moved = (call.read_bytes or 0) + (call.write_bytes or 0)
        if call.direction == "optimizer":
            sums["bytes:optimizer"] += moved
        elif call.macs is None:
            sums["unknown"] += call.calls
        elif call.direction == "forward":
            sums["flops:forward"] += 2 * call.macs
            sums["elementwise:forward"] += call.elementwise_flops or 0
            sums["bytes:forward"] += moved
            sums["calls:forward"] += call.calls
            sums["parameters"] += call.parameters or 0
            sums["activations"] += call.output_elements or 0
            if call.macs:
                sums["layers"] += 1
                sums[f"flops:{call.kind}"] += 2 * call.macs
        elif call.direction in BACKWARD:
            sums["flops:backward"] += 2 * call.macs
            sums["bytes:backward"] += moved
    units = {
        "flops": "FLOP",
        "elementwise": "FLOP",
        "bytes": "byte",
        "parameters": "element",
        "activations": "element",
    }
    return tuple(
        Feature(name, value, units.get(name.partition(":")[0]))
        for name, value in sorted(sums.items())
    )
