"""ncu metrics that are facts about a launch or its device, under all their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain

from perfctl.records.ranges import RangeName, parse_range_name
from perfctl.records.report import Device, Kernel

Value = int | float | str | None
Facts = dict[str, Value]
"""Metric, or field of a launch's identity -> value in base units."""

KERNEL_FACTS: dict[str, tuple[str, ...]] = {
    "duration_ns": ("gpu__time_duration.sum", "gpu__time_duration", "Duration"),
    "registers": ("launch__registers_per_thread", "Registers Per Thread"),
    "static_shared_bytes": (
        "launch__shared_mem_per_block_static",
        "Static Shared Memory Per Block",
    ),
    "dynamic_shared_bytes": (
        "launch__shared_mem_per_block_dynamic",
        "Dynamic Shared Memory Per Block",
    ),
    **{
        f"{part}_{axis}": (f"launch__{part}_dim_{axis}",)
        for part in ("grid", "block", "cluster")
        for axis in "xyz"
    },
    "device_index": ("launch__device_id",),
    "stream": ("launch__stream_id",),
    "context": ("launch__context_id",),
    "process": (),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
}
"""Field of Kernel -> metric names, the most exact first; display names are those of the
details page. What the identity of a launch says goes before them, under the field's own name."""

CYCLES = tuple(
    (f"{unit}__cycles_elapsed.avg", f"{unit}__cycles_elapsed.avg.per_second")
    for unit in ("gpc", "sm", "smsp")
)
"""Cycles of a launch and how many passed in a second. ncu divides by the launch's own time: where a
report has all three, the first by the second is gpu__time_duration.sum to six digits (H100, RTX
5090, 2025.1 and older)."""
_ATTRIBUTE = "device__attribute_"
_ATTRIBUTES = (
    "display_name",
    "multiprocessor_count",
    "total_memory",
    "clock_rate",
    "memory_clock_rate",
    "global_memory_bus_width",
    "compute_capability_major",
    "compute_capability_minor",
)
FACT_NAMES = {
    *chain(*KERNEL_FACTS.values(), *CYCLES),
    *(_ATTRIBUTE + name for name in _ATTRIBUTES),
}
ID_DIGITS = 18
"""Digits that a whole number in an identity cell may have."""

_AXES = ("grid_", "block_", "cluster_")
"""Begin the fields whose 0 means none: a launch that failed, or one without clusters."""
_FRACTIONS = ("duration_ns", "occupancy")
"""Fields that need not be whole numbers."""
_MAKES_FLOPS = re.compile(
    r"(?:sm|smsp)__(?:sass_thread_inst_executed_op_[dfh]fma2?_pred_on|inst_executed_pipe_tensor\w*"
    r"|ops_path_tensor_\w+)\.sum"
)

_QUOTED = re.compile(r'"(.*?)"(?=\s*(?:"|$))', re.DOTALL)
_FIELDS = 6
"""Fields behind the name of a range in the CSV: types and values of payload, color and message."""
_OF_BACKWARD = ("grad_input", "grad_weight", "grad_bias", "backward", "recompute")
"""Directions of work on autograd's own thread."""


@lru_cache(maxsize=4096)
def is_flop_counter(metric: str) -> bool:
    """Return whether a metric is a whole count of multiply-adds, as instructions or operations.
    Rates are not, and additions alone (FADD) leave out most of the work."""
    return _MAKES_FLOPS.fullmatch(metric) is not None


def is_launch_fact_or_flops(metric: str, unit: str | None) -> bool:
    """Return whether a metric in this base unit is a fact or counts FLOPs. ncu prints no unit for
    metrics of a report that a different version wrote (values stay in base units there)."""
    if metric in KERNEL_FACTS["duration_ns"]:
        return unit in (None, "ns")
    return metric in FACT_NAMES or is_flop_counter(metric)


def is_storable_integer_text(text: str) -> bool:
    """Return whether a cell is a whole number of a size that fits the store."""
    return text.isascii() and text.isdigit() and len(text) <= ID_DIGITS


def parse_launch_identity(cells: Mapping[str, str]) -> Facts:
    """Return facts from printed cells that identify a launch: "grid" and "block", such as
    "(16, 8, 1)", "capability", and fields of Kernel."""
    facts: Facts = {}
    for name, text in cells.items():
        sizes = [size.strip() for size in text.strip().strip("()").split(",")]
        if name == "capability":
            facts[name] = text
        elif len(sizes) == 3 and all(map(is_storable_integer_text, sizes)):
            facts |= {f"{name}_{axis}": int(sizes[index]) for index, axis in enumerate("xyz")}
        elif is_storable_integer_text(text):
            facts[name] = int(text)
    return facts


def make_kernel_fields(facts: Facts) -> dict[str, int | float]:
    """Return fields of Kernel from a launch's facts. Occupancy is 0..1."""
    fields: dict[str, int | float] = {}
    for field, names in KERNEL_FACTS.items():
        for name in (field, *names):
            value = facts.get(name)
            is_number = isinstance(value, int | float if field in _FRACTIONS else int)
            if is_number and (value or not field.startswith(_AXES)):
                fields[field] = value  # type: ignore[assignment]
                break
    if facts.keys().isdisjoint(KERNEL_FACTS["duration_ns"]):
        for names in CYCLES:
            cycles, rate = map(facts.get, names)
            if isinstance(cycles, int | float) and isinstance(rate, int | float) and rate > 0:
                fields["duration_ns"] = cycles / rate * 1e9
                break
    if "occupancy" in fields and 0 <= (share := fields.pop("occupancy") / 100) <= 1:
        fields["occupancy"] = share
    return fields


def make_device(index: int, facts: Facts, driver_version: str | None) -> Device:
    """Return the device of a launch, from the CC column and device attributes where they were
    collected. Clock attributes are in kHz and the bus width in bits; bandwidth is 2 x memory clock
    x bus width, which for an A100 gives the 1,555,200,000,000 bytes/s that nsys states for it."""

    def get_attribute(name: str) -> int | None:
        value = facts.get(_ATTRIBUTE + name)
        return value if isinstance(value, int) else None

    name, capability = facts.get(f"{_ATTRIBUTE}display_name"), facts.get("capability")
    version = get_attribute("compute_capability_major"), get_attribute("compute_capability_minor")
    if not capability and None not in version:
        capability = ".".join(map(str, version))
    clock, memory_clock = get_attribute("clock_rate"), get_attribute("memory_clock_rate")
    bus = get_attribute("global_memory_bus_width")
    return Device(
        name=str(name) if name else None,
        kind="gpu",
        index=index,
        compute_capability=str(capability) if capability else None,
        sm_count=get_attribute("multiprocessor_count"),
        memory_bytes=get_attribute("total_memory"),
        memory_bandwidth_bps=2 * memory_clock * 1000 * bus // 8 if memory_clock and bus else None,
        clock_hz=clock * 1000 if clock else None,
        driver_version=driver_version,
    )


@lru_cache(maxsize=4096)
def parse_nvtx_range_names(cell: str) -> tuple[str, ...]:
    """Return names of the ranges in one cell of the CSV, outermost first, without domains:
    "<default domain>:conv2:forward:none:none:none:none:none:none" -> "conv2:forward"."""
    names = []
    for text in _QUOTED.findall(cell):
        parts = text.split(":")[1:]
        size = (len(parts) - _FIELDS + 1) // 2
        if size > 0 and parts[:size] == parts[size + _FIELDS - 1 :]:
            # ranges with attributes carry their name again as message, colons included
            names.append(":".join(parts[:size]))
        else:
            names.append(":".join(parts[:-_FIELDS] or parts))
    return tuple(names)


def find_innermost_layer_and_step(names: tuple[str, ...]) -> RangeName:
    """Return layer, direction and step of the innermost perfctl ranges among ``names`` (outermost
    first). In the optimizer phase there is no layer, only the direction."""
    layer = direction = step = phase = None
    for label in map(parse_range_name, names):
        if label.layer is not None:
            layer, direction = label.layer, label.direction
        step = step if label.step is None else label.step
        phase = label.phase or phase
    is_optimizer = layer is None and phase == "optimizer"
    return RangeName(layer, phase if is_optimizer else direction, step)


@lru_cache(maxsize=4096)
def find_launch_layer_and_step(push_pop: tuple[str, ...], start_end: tuple[str, ...]) -> RangeName:
    """Return layer, direction and step of a launch within these ranges; no layer if no perfctl
    range encloses it. Start/end ranges do not nest, so they count only if no push/pop range names a
    layer, and all of them name the same."""
    label = find_innermost_layer_and_step(push_pop)
    unnested = {find_innermost_layer_and_step((name,))[:2] for name in start_end}
    layers = [pair for pair in unnested if pair[0] is not None]
    is_unnested = label.layer is None and len(layers) == 1
    return RangeName(*layers[0], label.step) if is_unnested else label


def infer_missing_kernel_steps(kernels: list[Kernel]) -> None:
    """Put launches from autograd's own thread into the step they ran in. The step's range is on the
    loop's thread only. ncu runs one launch after the other, so what lies between two launches of
    one step is in it, and a layer's gradients at the end of a step are in the step before the
    next."""
    next_steps: list[int | None] = []
    step: int | None = None
    for kernel in reversed(kernels):
        next_steps.append(step)
        step = step if kernel.step is None else kernel.step
    step = None
    for index, (kernel, next_step) in enumerate(zip(kernels, reversed(next_steps), strict=True)):
        if kernel.step is not None:
            step = kernel.step
        elif step is not None and (kernel.direction in _OF_BACKWARD or next_step == step):
            kernels[index] = kernel._replace(step=step)
