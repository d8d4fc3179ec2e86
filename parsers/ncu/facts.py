"""ncu metrics that are facts about a launch or its device, under all their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from perfctl.records.ranges import RANGE_PREFIX, read_range_name
from perfctl.records.report import Device, Kernel

Value = int | float | str | None
Facts = dict[str, tuple[Value, str | None]]
"""Metric name -> (value, unit), both in base units."""
NO_FACT: tuple[Value, str | None] = (None, None)

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
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
}
"""Field of Kernel -> metric names, the most exact first; display names are those of the
details page."""

CYCLES = tuple(
    (f"{unit}__cycles_elapsed.avg", f"{unit}__cycles_elapsed.avg.per_second")
    for unit in ("gpc", "sm", "smsp")
)
"""Cycles of a launch and how many passed in a second. ncu divides by the launch's own time: where a
report has all three, the first by the second is gpu__time_duration.sum to six digits (H100, RTX
5090, 2025.1 and older)."""
_CAPABILITY = {"compute_capability_major", "compute_capability_minor"}
_DEVICE_FACTS = (
    "display_name",
    "multiprocessor_count",
    "total_memory",
    "clock_rate",
    "memory_clock_rate",
    "global_memory_bus_width",
    *_CAPABILITY,
)
_ATTRIBUTE = "device__attribute_"
FACT_NAMES = frozenset(
    chain(*KERNEL_FACTS.values(), *CYCLES, (_ATTRIBUTE + name for name in _DEVICE_FACTS))
)

_AXES = ("grid_", "block_")
_UNITS = {
    "duration_ns": "ns",
    "static_shared_bytes": "byte/block",
    "dynamic_shared_bytes": "byte/block",
    "occupancy": "%",
}
_FRACTIONS = ("duration_ns", "occupancy")
"""Fields that need not be whole numbers."""
_CLUSTER = ("cluster_x", "cluster_y", "cluster_z")
_MAKES_FLOPS = re.compile(
    r"(?:sm|smsp)__(?:sass_thread_inst_executed_op_[dfh]fma2?_pred_on|inst_executed_pipe_tensor\w*"
    r"|ops_path_tensor_\w+)\.sum"
)

_DEFAULT_DOMAIN = "<default domain>:"
_QUOTED = re.compile(r'"(.*?)"(?=\s*(?:"|$))', re.DOTALL)
_REPEATED_MESSAGE = re.compile(r"(?P<name>.+):[^:]*:[^:]*:[^:]*:[^:]*:[^:]*:(?P=name)", re.DOTALL)
_FIELDS = 6
_NAME_MAX = 2000
_OF_BACKWARD = ("grad_input", "grad_weight", "grad_bias", "backward", "recompute")
"""Directions of work on autograd's own thread."""


@lru_cache(maxsize=4096)
def counts_flops(metric: str) -> bool:
    """Return whether a metric is a whole count of multiply-adds, as instructions or operations.
    Rates are not, and additions alone (FADD) leave out most of the work."""
    return _MAKES_FLOPS.fullmatch(metric) is not None


def kernel_fields(facts: Facts) -> dict[str, int | float]:
    """Return fields of Kernel from a launch's facts. A missing unit means the base unit: ncu prints
    none for metrics of a report that a different version wrote (values stay in base units there). A
    value in another unit than the field's is left out. Occupancy is 0..1; clusters are left out
    where the launch had none."""
    fields: dict[str, int | float] = {}
    for field, names in KERNEL_FACTS.items():
        for name in names:
            value, unit = facts.get(name, NO_FACT)
            if value == 0 and field.startswith(_AXES):  # a launch that failed
                continue
            if isinstance(value, int | float if field in _FRACTIONS else int) and (
                field not in _UNITS or unit in (None, "byte", _UNITS[field])
            ):
                fields[field] = value
                break
    if facts.keys().isdisjoint(KERNEL_FACTS["duration_ns"]):
        for names in CYCLES:
            (cycles, _), (rate, unit) = (facts.get(name, NO_FACT) for name in names)
            if (
                isinstance(cycles, int | float)
                and isinstance(rate, int | float)
                and rate > 0
                and unit in (None, "Hz")
            ):
                fields["duration_ns"] = cycles / rate * 1e9
                break
    if not any(map(fields.get, _CLUSTER)):  # sizes of 0: launched without clusters
        fields = {name: value for name, value in fields.items() if name not in _CLUSTER}
    if "occupancy" in fields and 0 <= (share := fields.pop("occupancy") / 100) <= 1:
        fields["occupancy"] = share
    return fields


def device_of(
    index: int, capability: str | None, facts: Facts, driver_version: str | None = None
) -> Device:
    """Return the device of a launch, from the CC column and device attributes where they were
    collected. Clock attributes are in kHz and the bus width in bits; bandwidth is 2 x memory clock
    x bus width, which for an A100 gives the 1,555,200,000,000 bytes/s that nsys states for it."""

    attributes = {name: facts.get(_ATTRIBUTE + name, NO_FACT)[0] for name in _DEVICE_FACTS}
    sizes = {name: value for name, value in attributes.items() if isinstance(value, int)}
    name, clock = attributes["display_name"], sizes.get("clock_rate")
    memory_clock, bus = sizes.get("memory_clock_rate"), sizes.get("global_memory_bus_width")
    if capability is None and sizes.keys() >= _CAPABILITY:
        capability = ".".join(str(sizes[part]) for part in sorted(_CAPABILITY))
    return Device(
        name=name if isinstance(name, str) and name else None,
        kind="gpu",
        index=index,
        compute_capability=capability,
        sm_count=sizes.get("multiprocessor_count"),
        memory_bytes=sizes.get("total_memory"),
        memory_bandwidth_bps=2 * memory_clock * 1000 * bus // 8 if memory_clock and bus else None,
        clock_hz=clock * 1000 if clock else None,
        driver_version=driver_version,
    )


class Place(NamedTuple):
    """Layer, direction and step of a launch; all None when no perfctl range encloses it. Optimizer
    work has no layer."""

    layer: str | None = None
    direction: str | None = None
    step: int | None = None


@lru_cache(maxsize=4096)
def range_names(cell: str) -> tuple[str, ...]:
    """Return names of the ranges in one cell of the CSV, outermost first, without domains:
    "<default domain>:conv2:forward:none:none:none:none:none:none" -> "conv2:forward"."""
    names = []
    for part in _QUOTED.findall(cell):
        text = part.removeprefix(_DEFAULT_DOMAIN)
        if text == part:
            text = part.partition(":")[2]
        repeated = _REPEATED_MESSAGE.fullmatch(text) if len(text) < _NAME_MAX else None
        if repeated:  # ranges with attributes carry their name again as message, colons included
            names.append(repeated["name"])
        else:
            fields = text.rsplit(":", _FIELDS)
            names.append(fields[0] if len(fields) > _FIELDS else text)
    return tuple(names)


def read_place(names: Iterable[str]) -> Place:
    """Return layer and step of the innermost perfctl ranges among ``names`` (outermost first). In
    the optimizer phase there is no layer, only the direction."""
    place, phase = Place(), None
    for name in names:
        range_name = read_range_name(name)
        if range_name.layer is not None:
            place = place._replace(layer=range_name.layer, direction=range_name.direction)
        if range_name.step is not None:
            place = place._replace(step=range_name.step)
        if range_name.phase is not None:
            phase = range_name.phase
    if place.layer is None and phase == "optimizer":
        place = place._replace(direction=phase)
    return place


@lru_cache(maxsize=4096)
def place_of(push_pop: tuple[str, ...], start_end: tuple[str, ...] = (), name: str = "") -> Place:
    """Return layer, direction and step of a launch within these ranges; else from a range's name in
    place of the kernel's. Start/end ranges do not nest, so they count only where no push/pop range
    says a layer and all of them that name a layer name the same."""
    place, named = read_place(push_pop), place_in_name(name)
    if place.layer is None:
        unnested = [read_place([name]) for name in start_end]
        layers = {(other.layer, other.direction) for other in unnested if other.layer is not None}
        if len(layers) == 1:
            place = Place(*layers.pop(), place.step)
    if named is not None and place.layer is None and place.direction is None:
        place = Place(*named[:2], place.step)
    return place._replace(step=named.step) if named is not None and place.step is None else place


@lru_cache(maxsize=4096)
def place_in_name(name: str) -> Place | None:
    """Return layer, direction and step of a launch that ncu printed under its range's name; None
    for a kernel's name. With ``--print-nvtx-rename kernel`` the innermost push/pop range replaces
    the kernel's name. Only perfctl's ranges are told from kernels; should ncu print outer ranges
    too, they stand before a slash."""
    if "(" in name or "<" in name:
        return None
    parts = name.split("/")
    if any(
        part.startswith(RANGE_PREFIX) or read_range_name(part).layer is not None for part in parts
    ):
        return read_place(parts)
    return None


def add_steps(kernels: list[Kernel]) -> None:
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
