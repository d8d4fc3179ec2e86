"""ncu metrics that are facts about a launch or its device, under all their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from perfctl.records.ranges import RANGE_PREFIX, read_range_name
from perfctl.records.report import WORKED_OUT, Device, Gap, Kernel

Value = int | float | str | None
Facts = dict[str, tuple[Value, str | None]]
"""Metric name -> (value, unit), both in base units."""

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
    "grid_x": ("launch__grid_dim_x",),
    "grid_y": ("launch__grid_dim_y",),
    "grid_z": ("launch__grid_dim_z",),
    "block_x": ("launch__block_dim_x",),
    "block_y": ("launch__block_dim_y",),
    "block_z": ("launch__block_dim_z",),
    "device_index": ("launch__device_id",),
    "stream": ("launch__stream_id",),
    "context": ("launch__context_id",),
    "cluster_x": ("launch__cluster_dim_x",),
    "cluster_y": ("launch__cluster_dim_y",),
    "cluster_z": ("launch__cluster_dim_z",),
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
_DEVICE_FACTS = (
    "display_name",
    "multiprocessor_count",
    "total_memory",
    "clock_rate",
    "memory_clock_rate",
    "global_memory_bus_width",
    "compute_capability_major",
    "compute_capability_minor",
)
_ATTRIBUTE = "device__attribute_"
BLOCKS = ("launch__grid_size", "Grid Size")
"""Blocks of a grid, which the launch itself states as three sizes."""
FACT_NAMES = frozenset(
    chain(*KERNEL_FACTS.values(), *CYCLES, BLOCKS, (_ATTRIBUTE + name for name in _DEVICE_FACTS))
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

PUSH_POP = "Push/Pop_Range"
START_END = "Start/Stop_Range"

_DEFAULT_DOMAIN = "<default domain>:"
_QUOTED = re.compile(r'"(.*?)"(?=\s*(?:"|$))', re.DOTALL)
_REPEATED_MESSAGE = re.compile(r"(?P<name>.+):[^:]*:[^:]*:[^:]*:[^:]*:[^:]*:(?P=name)", re.DOTALL)
_FIELDS = 6
_NO_FIELDS = ":none" * _FIELDS
_LONGEST_NAME = 2000
_OF_BACKWARD = ("grad_input", "grad_weight", "grad_bias", "backward", "recompute")
"""Directions of work on autograd's own thread."""


def counts_flops(metric: str) -> bool:
    """Return whether a metric is a whole count of multiply-adds, as instructions or operations.
    Rates are not, and additions alone (FADD) leave out most of the work."""
    return _MAKES_FLOPS.fullmatch(metric) is not None


def kernel_fields(facts: Facts) -> dict[str, int | float]:
    """Fields of Kernel from a launch's facts. A missing unit means the base unit: ncu prints none
    for metrics of a report that a different version wrote (values stay in base units there). A
    value in another unit than the field's is left out. Occupancy is 0..1; clusters are left out
    where the launch had none."""
    found: dict[str, int | float] = {}
    for field, names in KERNEL_FACTS.items():
        kinds = int | float if field in _FRACTIONS else int
        for value, unit in (facts.get(name, (None, None)) for name in names):
            if value == 0 and field.startswith(_AXES):  # a launch that failed
                continue
            if isinstance(value, kinds) and (
                field not in _UNITS or unit in (None, "byte", _UNITS[field])
            ):
                found[field] = value
                break
    if (
        not any(name in facts for name in KERNEL_FACTS["duration_ns"])
        and (took := _by_cycles(facts)) is not None
    ):
        found["duration_ns"] = took
    if not any(found.get(field) for field in _CLUSTER):  # sizes of 0: launched without clusters
        for field in _CLUSTER:
            found.pop(field, None)
    if "occupancy" in found and not 0 <= (share := found.pop("occupancy") / 100) > 1:
        found["occupancy"] = share
    return found


def _by_cycles(facts: Facts) -> float | None:
    """Nanoseconds: cycles by the clock rate of the same unit, where both were collected."""
    for names in CYCLES:
        (cycles, _), (rate, unit) = (facts.get(name, (None, None)) for name in names)
        if (
            isinstance(cycles, int | float)
            and isinstance(rate, int | float)
            and rate > 0
            and unit in (None, "Hz")
        ):
            return cycles / rate * 1e9
    return None


def worked_out(kernels: Iterable[Kernel], metrics: Iterable[str]) -> Iterator[Gap]:
    """The gap of a report whose launches have times by cycles alone."""
    names = set(metrics)
    pair = next((pair for pair in CYCLES if names.issuperset(pair)), None)
    if pair is None or names.intersection(KERNEL_FACTS["duration_ns"]):
        return
    if any(kernel.duration_ns is not None for kernel in kernels):
        reason = (
            f"gpu__time_duration.sum is not among the metrics; times are {WORKED_OUT}: {pair[0]} / "
            f"{pair[1]}"
        )
        yield Gap("kernel.duration_ns", "not_collected", reason)


def kernel_of(
    launch: int,
    name: str,
    place: Place,
    fields: Mapping[str, int | float],
    short_name: str | None = None,
    *,
    counted: bool = False,
) -> Kernel:
    """A launch with its ``kernel_fields``; ``counted``: a metric that ``counts_flops`` has
    a value."""
    by_range, source = "range" if place.layer is not None else None, "counted" if counted else None
    return Kernel(launch, name, short_name, *place, by_range, source=source)._replace(**fields)  # type: ignore[arg-type]


def device_of(index: int, capability: str | None, facts: Facts) -> Device:
    """The device of a launch, from the CC column and device attributes where they were collected.
    Clock attributes are in kHz and the bus width in bits; bandwidth is 2 x memory clock x bus
    width, which for an A100 gives the 1,555,200,000,000 bytes/s that nsys states for it."""
    name, *values = (facts.get(_ATTRIBUTE + name, (None, None))[0] for name in _DEVICE_FACTS)
    count, memory, clock, memory_clock, bus, major, minor = (
        one if isinstance(one, int) else None for one in values
    )
    return Device(
        name=name if isinstance(name, str) and name else None,
        kind="gpu",
        index=index,
        compute_capability=capability
        or (f"{major}.{minor}" if major is not None and minor is not None else None),
        sm_count=count,
        memory_bytes=memory,
        memory_bandwidth_bps=2 * memory_clock * 1000 * bus // 8 if memory_clock and bus else None,
        clock_hz=clock * 1000 if clock else None,
    )


class Place(NamedTuple):
    """Layer, direction and step of a launch; all None when no perfctl range encloses it. Optimizer
    work has no layer."""

    layer: str | None = None
    direction: str | None = None
    step: int | None = None


def range_names(cell: str) -> list[str]:
    """Names of the ranges in one cell, outermost first, without domains."""
    return [_name(part) for part in _QUOTED.findall(cell)]


def cell_of(name: str) -> str:
    """A range of the console text as it would stand in a cell of the CSV, to be joined
    with others."""
    return f'  "{_DEFAULT_DOMAIN}{name}{_NO_FIELDS}"'


def _name(part: str) -> str:
    """ "<default domain>:conv2:forward:none:none:none:none:none:none" -> "conv2:forward"."""
    default = part.startswith(_DEFAULT_DOMAIN)
    rest = part[len(_DEFAULT_DOMAIN) :] if default else part.partition(":")[2]
    repeated = _REPEATED_MESSAGE.fullmatch(rest) if len(rest) < _LONGEST_NAME else None
    if repeated:  # ranges with attributes carry their name again as the message, colons included
        return repeated["name"]
    fields = rest.rsplit(":", _FIELDS)
    return fields[0] if len(fields) > _FIELDS else rest


def innermost(names: Iterable[str]) -> Place:
    """Layer and step of the innermost perfctl ranges among ``names`` (outermost first). In the
    optimizer phase there is no layer, only the direction."""
    place, phase = Place(), None
    for name in names:
        found = read_range_name(name)
        if found.layer is not None:
            place = place._replace(layer=found.layer, direction=found.direction)
        if found.step is not None:
            place = place._replace(step=found.step)
        if found.phase is not None:
            phase = found.phase
    if place.layer is None and phase == "optimizer":
        place = place._replace(direction=phase)
    return place


@lru_cache(maxsize=4096)
def place_of(push_pop: str, start_end: str = "", name: str = "") -> Place:
    """Layer, direction and step of a launch with these two cells; else from a range's name in place
    of the kernel's. Start/end ranges do not nest, so they count only where no push/pop range says a
    layer and all of them that name a layer name the same."""
    place, named = innermost(range_names(push_pop)), place_in_name(name)
    if place.layer is None:
        others = [innermost([name]) for name in range_names(start_end)]
        layers = {(other.layer, other.direction) for other in others if other.layer is not None}
        if len(layers) == 1:
            place = Place(*layers.pop(), place.step)
    if named is not None and place.layer is None and place.direction is None:
        place = Place(*named[:2], place.step)
    return place._replace(step=named.step) if named is not None and place.step is None else place


@lru_cache(maxsize=4096)
def place_in_name(name: str) -> Place | None:
    """Layer, direction and step of a launch that ncu printed under its range's name; None for a
    kernel's name. With ``--print-nvtx-rename kernel`` the innermost push/pop range replaces the
    kernel's name. Only perfctl's ranges are told from kernels; should ncu print outer ranges too,
    they stand before a slash."""
    if "(" in name or "<" in name:
        return None
    parts = name.split("/")
    if not any(
        part.startswith(RANGE_PREFIX) or read_range_name(part).layer is not None for part in parts
    ):
        return None
    return innermost(parts)


def with_steps(kernels: Iterable[Kernel]) -> list[Kernel]:
    """The launches in their order, those from autograd's own thread put into the step they ran in.
    The step's range is on the loop's thread only. ncu runs one launch after the other, so what lies
    between two launches of one step is in it, and a layer's gradients at the end of a step are in
    the step before the next."""
    found = list(kernels)
    following: list[int | None] = [None] * len(found)
    for number in range(len(found) - 2, -1, -1):
        after = found[number + 1].step
        following[number] = following[number + 1] if after is None else after
    before: int | None = None
    for number, kernel in enumerate(found):
        if kernel.step is not None:
            before = kernel.step
        elif before is not None and (
            kernel.direction in _OF_BACKWARD or following[number] == before
        ):
            found[number] = kernel._replace(step=before)
    return found


def name_gaps(names: Sequence[str]) -> list[Gap]:
    """The gap for launches whose names are ranges, if there are any."""
    renamed = [name for name in names if place_in_name(name) is not None]
    if not renamed:
        return []
    reason = (
        f'ncu printed the NVTX range (such as "{renamed[0][:100]}") instead of the kernel\'s name '
        f"for {len(renamed)} of"
        f" {len(names)} launches; export the report again without --print-nvtx-rename"
    )
    return [Gap("kernel.name", "not_available", reason)]
