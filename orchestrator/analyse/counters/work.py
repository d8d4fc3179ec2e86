"""Counted work of a group of launches: FLOPs by path, DRAM bytes and launches, per step. 1 multiply-add = 2 FLOPs.

Bytes that a launch moved through L1 and L2, and the most of them that its chip moves in a cycle: Nsight Compute's
hierarchical roofline sections read other counters from version to version: ``l1tex__t_bytes`` and ``lts__t_bytes`` up
to 2022.3; cycles of write-back, of 128 bytes in L1 and 32 in L2, in 2024.1. They do not count the same traffic (the
latter is what the SMs read, the former has writes and fills too), so the roof of a level is the peak of the very
counter that its bytes come from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from perfctl.orchestrator.analyse.counters import amd
from perfctl.orchestrator.analyse.counters.flops import KernelFlops
from perfctl.orchestrator.analyse.counters.sums import INTEGER, PATHS, Values
from perfctl.orchestrator.analyse.figure import Figure, missing, total_of
from perfctl.orchestrator.analyse.hardware.gpus import TENSOR
from perfctl.orchestrator.analyse.kernels.names import recognise
from perfctl.records.report import Kernel

LEVELS = ("L1", "L2", "DRAM")
"""From the SMs outwards."""
CACHES = LEVELS[:2]
SECTOR = 32
"""Bytes of a sector."""
K = TypeVar("K", bound=Hashable)
NOT_COUNTED = "no ncu run at this batch size; 'perfctl ncu' makes one"
NO_COUNTERS = "the runs were on a CPU; FLOPs are counted on NVIDIA GPUs only, by ncu"
NO_BYTES = missing("not_collected", "DRAM bytes were not counted; 'perfctl ncu' collects them")
NOT_MOVED = missing("not_collected", "bytes of this cache were not counted")


@dataclass(frozen=True, slots=True)
class _Reading:
    """A counter of one level's traffic and the bytes of one of it."""

    counter: str
    bytes_each: int = 1


_READINGS = {
    "L1": (
        *(_Reading(f"l1tex__lsu_writeback_active{tail}", 128) for tail in ("_mem_lgds", "_mem_lg", "")),
        _Reading("l1tex__t_bytes"), _Reading("l1tex__t_sectors", SECTOR),
    ),
    "L2": (
        _Reading("lts__lts2xbar_cycles_active", 32), _Reading("lts__t_bytes"), _Reading("lts__t_sectors", SECTOR),
    ),
}  # fmt: skip
"""Level -> counters, the newest section's first: then the points are those that Nsight Compute draws."""
_READ = frozenset(
    f"{reading.counter}.sum{tail}"
    for readings in _READINGS.values()
    for reading in readings
    for tail in ("", ".per_second")
)


def cache_bytes(values: Values) -> dict[str, Figure]:
    """Level -> bytes in one launch, counted, or from a rate where nothing counted them; ``rule`` names the counter.

    Levels without a counter are left out.
    """
    found: dict[str, Figure] = {}
    if _READ.isdisjoint(values):
        return found
    for level, readings in _READINGS.items():
        figures = (_bytes(values, reading) for reading in readings)
        if (figure := next((one for one in figures if one is not None), None)) is not None:
            found[level] = figure
    return found


def _bytes(values: Values, reading: _Reading) -> Figure | None:
    total = values.get(f"{reading.counter}.sum")
    if total is not None:
        return Figure(total * reading.bytes_each, "counted", rule=reading.counter)
    rate, time_ns = values.get(f"{reading.counter}.sum.per_second"), values.get("gpu__time_duration.sum")
    if rate is None or time_ns is None:
        return None
    said = f"{reading.counter}.sum.per_second x gpu__time_duration"
    return Figure(rate * reading.bytes_each * time_ns / 1e9, "estimated", said, rule=reading.counter)


def bytes_per_cycle(launches: Iterable[Values]) -> dict[str, float]:
    """Counter -> the most bytes that the chip moves in a cycle, where a report says so; the largest of its launches.

    Either as ``.sum.peak_sustained``, or from a sum, its share of the peak and the cycles of its unit.
    """
    found: dict[str, float] = {}
    for values in launches:
        for readings in _READINGS.values():
            for reading in readings:
                if (peak := _peak(values, reading.counter)) is not None:
                    most = peak * reading.bytes_each
                    found[reading.counter] = max(most, found.get(reading.counter, 0.0))
    return found


def _peak(values: Values, counter: str) -> float | None:
    stated = values.get(f"{counter}.sum.peak_sustained")
    if stated:
        return stated
    total, share = values.get(f"{counter}.sum"), values.get(f"{counter}.sum.pct_of_peak_sustained_elapsed")
    cycles = values.get(f"{counter.partition('__')[0]}__cycles_elapsed.avg")
    # a share that is printed with two decimals is near enough from 1 % on
    return float(f"{total / (share / 100) / cycles:.3g}") if total and share and share >= 1 and cycles else None


class CountedWork(NamedTuple):
    """What a group of launches executed in one step."""

    paths: Mapping[str, Figure]
    """"fp32", "fp64", "fp16" and "tensor tf32", ... -> FLOPs."""
    total: Figure
    dram: Figure
    """Bytes between the GPU and its DRAM."""
    launches: float
    caches: Mapping[str, Figure] = MappingProxyType({})
    """"L1" and "L2" -> bytes, for levels that were counted."""


NOTHING = CountedWork({}, missing("not_collected", NOT_COUNTED), NO_BYTES, 0)
ON_A_CPU = CountedWork(
    {}, missing("not_available", NO_COUNTERS),
    missing("not_available", "DRAM bytes are counted on NVIDIA GPUs only, by ncu"), 0,
)  # fmt: skip


Parts = Sequence[tuple[str, Figure]]


def launch_parts(
    kernel: Kernel, flops: KernelFlops | None, values: Values, *, capability: str | None, precision: str | None
) -> Parts:
    """("total", "dram", a path or a cache; its figure) of one launch.

    ``capability`` ("7.0") and ``precision`` ("fp32") name the type of tensor work that neither a counter nor the kernel's
    name says.
    """
    moved = cache_bytes(values)
    parts = [
        ("total", flops.total if flops else NOTHING.total),
        ("dram", dram_bytes(values) if values else NO_BYTES),
        *((level, moved.get(level, NOT_MOVED)) for level in CACHES),
    ]
    if flops:
        parts += [(path, getattr(flops, path)) for path in PATHS]
        types = [item for item in flops.tensor_types if item[0] not in INTEGER]
        parts += [
            (f"tensor {kind}", figure)
            for kind, figure in types or [(tensor_kind(kernel.name, capability, precision), flops.tensor)]
        ]
    return parts


def counted_work(launches: Iterable[tuple[K, Parts]], *, steps: int) -> dict[K, CountedWork]:
    """key -> work per step of the launches with that key, from the parts of each."""
    grouped: dict[K, list[Parts]] = defaultdict(list)
    for key, parts in launches:
        grouped[key].append(parts)
    known: dict[tuple[int, ...], Figure] = {}

    def total(found: Sequence[Figure]) -> Figure:
        """Most paths of a kernel have one and the same figure; ``grouped`` keeps all of them alive."""
        same = tuple(map(id, found))
        if (figure := known.get(same)) is None:
            figure = known[same] = total_of(found, divide_by=steps)
        return figure

    def of(group: Sequence[Parts]) -> CountedWork:
        figures: dict[str, list[Figure]] = defaultdict(list)
        for parts in group:
            for name, figure in parts:
                figures[name].append(figure)
        paths = {path: total(found) for path, found in figures.items()}
        caches = {level: paths.pop(level) for level in CACHES}
        return CountedWork(
            total=paths.pop("total"), dram=paths.pop("dram"), paths=paths, launches=len(group) / steps,
            caches={level: figure for level, figure in caches.items() if figure.value is not None},
        )  # fmt: skip

    made: dict[tuple[int, ...], CountedWork] = {}
    """Launches that have all in common have one object of parts, so many groups are the same."""
    work = {}
    for key, group in grouped.items():
        same = tuple(map(id, group))
        if (one := made.get(same)) is None:
            one = made[same] = of(group)
        work[key] = one
    return work


def dram_bytes(values: Values) -> Figure:
    """Bytes between the GPU and its DRAM in one launch; from a rate only where nothing counted them."""
    whole = values.get("dram__bytes.sum")
    read, written = values.get("dram__bytes_read.sum"), values.get("dram__bytes_write.sum")
    if whole is None and read is not None and written is not None:
        whole = read + written
    if whole is not None:
        return Figure(whole, "counted")
    rate, time_ns = values.get("dram__bytes.sum.per_second"), values.get("gpu__time_duration.sum")
    if rate is None or time_ns is None:
        return amd.dram_bytes(values) or NO_BYTES
    return Figure(rate * time_ns / 1e9, "estimated", "dram__bytes.sum.per_second x gpu__time_duration")


def tensor_kind(name: str, capability: str | None, precision: str | None) -> str:
    """Input type of tensor work that no counter tells apart: from the kernel's name, the chip, the run's precision."""
    said = recognise(name)
    if said.tensor_core and said.math:
        return said.math
    if capability == "7.0":
        return "fp16"
    return {"fp32": "tf32"}.get(precision or "", precision if precision in TENSOR else "of unknown type") or ""
