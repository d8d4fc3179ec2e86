"""Counted work: FLOPs that one kernel executed, from its SASS counters or from those of an AMD GPU
(amd.py); and of a group of launches FLOPs by path, DRAM bytes and launches, per step. 1
multiply-add = 2 FLOPs.

``_thread_inst_`` metrics count threads, so they are not multiplied by 32; ``sm__`` and ``smsp__``
sums agree. Additions alone (FADD, the counters of many studies) say nothing about multiply-adds,
which are FFMA: all three are needed.

Bytes that a launch moved through L1 and L2, and the most of them that its chip moves in a cycle:
Nsight Compute's hierarchical roofline sections read other counters from version to version:
``l1tex__t_bytes`` and ``lts__t_bytes`` up to 2022.3; cycles of write-back, of 128 bytes in L1 and
32 in L2, in 2024.1. They do not count the same traffic (the latter is what the SMs read, the former
has writes and fills too), so the roof of a level is the peak of the very counter that its bytes
come from.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from perfctl.orchestrator.counts.counters import amd, sums
from perfctl.orchestrator.counts.counters.sums import (
    AMPERE_OR_LATER,
    PATHS,
    PREFIX,
    Values,
)
from perfctl.orchestrator.counts.figure import Figure, make_missing_figure, sum_figures
from perfctl.orchestrator.counts.hardware.machines import TENSOR
from perfctl.orchestrator.counts.kernels.names import NOTHING, Algorithm, recognise_kernel
from perfctl.records.report import Counter, Kernel
from perfctl.records.run import Run

LEVELS = ("L1", "L2", "DRAM")
"""From the SMs outwards."""
CACHES = LEVELS[:2]
SECTOR = 32
"""Bytes of a sector."""
K = TypeVar("K", bound=Hashable)
THIS_BATCH = "this batch size"
NO_COUNTERS = (
    "perfctl measures FLOPs with GPU counters (NVIDIA: ncu; AMD: rocprof); these runs used a CPU"
)
NO_BYTES = make_missing_figure(
    "not_collected", "no DRAM bytes were measured; 'perfctl ncu' collects them"
)
NOT_MOVED = make_missing_figure("not_collected", "no bytes of this cache were measured")

_HALF = re.compile(r"half|bf16|bfloat16|(?<![a-z0-9])fp?16|e[45]m[23]|fp8", re.IGNORECASE)
_CASTS = re.compile(r"\((?:unsigned )?(?:int|long|bool|char)\)")
_TYPE = re.compile(
    r"(?<![a-z])(?:float|double|int|long|unsigned|char|short|bool)\d?(?![a-z])|[sdcz]gemm|scudnn|"
    "f32|f64"
)

BESIDE = "partly known: only the work of its threads outside of the tensor cores"

Parts = Sequence[tuple[str, Figure]]


class KernelFlops(NamedTuple):
    """FLOPs of one launch by path; ``total`` is their sum, a lower bound when a path is missing."""

    fp32: Figure
    fp64: Figure
    fp16: Figure
    tensor: Figure
    total: Figure
    tensor_types: tuple[tuple[str, Figure], ...] = ()
    """("tf32", figure), ... where the report tells them apart; operations on integers are no
    FLOPs."""


def describe_missing_ncu_run(point: str) -> str:
    """Return why nothing was counted at this point of a sweep."""
    return f"no ncu run at {point}; run 'perfctl ncu'"


def group_counters_by_launch(counters: Iterable[Counter]) -> dict[int, dict[str, float | None]]:
    """launch -> metric -> value; a metric that several sections print keeps its first number."""
    by_launch: dict[int, dict[str, float | None]] = {}
    for launch, name, value, *_ in counters:
        values = by_launch.setdefault(launch, {})
        if values.get(name) is None:
            values[name] = value
    return by_launch


def compute_flops_by_launch(run: Run, by_launch: Mapping[int, Values]) -> dict[int, KernelFlops]:
    """launch -> FLOPs, for every launch of the run that has any counter; ``by_launch`` are its
    ``group_counters_by_launch``."""
    capability, sms = find_compute_capability(run), find_sm_count(run)
    if run.profiler in amd.TOOLS:
        return {
            launch: compute_amd_flops(values, capability) for launch, values in by_launch.items()
        }
    # what the chip is at least, by kernels that exist for it only: ampere_sgemm runs on no earlier
    if capability is None:
        chips = {
            recognise_kernel(name).architecture or ""
            for name in {kernel.name for kernel in run.report.kernels}
        }
        later = ("ampere", "ada", "hopper", "blackwell")
        if any(chip in later or (chip.startswith("sm") and int(chip[2:]) >= 80) for chip in chips):
            capability = AMPERE_OR_LATER
    version = run.profiler_version or run.report.tool_version
    names = {kernel.launch: kernel.name for kernel in run.report.kernels}
    return {
        launch: compute_kernel_flops(
            values, capability, kernel_name=names.get(launch), sm_count=sms, ncu_version=version
        )
        for launch, values in by_launch.items()
    }


def find_compute_capability(run: Run) -> str | None:
    """Of the GPU the run used, "gfx942" for AMD's; None when no record says so."""
    return next(
        (device.compute_capability for device in run.devices if device.compute_capability), None
    )


def find_sm_count(run: Run) -> int | None:
    """Streaming multiprocessors (AMD: compute units) of the GPU the run used; None when no record
    says so."""
    return next((device.sm_count for device in run.devices if device.sm_count), None)


def compute_amd_flops(values: Values, chip: str | None) -> KernelFlops:
    """FLOPs of one launch on an AMD GPU; ``chip`` is "gfx942", ... or None when not known."""
    used = tuple(item for item in values.items() if amd.is_amd_flop_counter(item[0]))
    return _compute_amd_flops_cached(used, chip)


@lru_cache(maxsize=65536)
def _compute_amd_flops_cached(
    items: tuple[tuple[str, float | None], ...], chip: str | None
) -> KernelFlops:
    values = dict(items)
    vector = {path: amd.compute_vector_flops(values, path, chip) for path in amd.PATHS}
    matrix, types = amd.compute_matrix_flops(values, chip)
    paths = {**vector, "tensor": matrix}
    return KernelFlops(**paths, total=_sum_flops_over_paths(paths), tensor_types=types)


def compute_kernel_flops(
    values: Values,
    capability: str | None,
    *,
    kernel_name: str | None = None,
    sm_count: int | None = None,
    ncu_version: str | None = None,
) -> KernelFlops:
    """FLOPs of one launch from its metrics.

    ``capability`` is "7.0", "8.6", ... or None when not known. The kernel's ``kernel_name`` may say
    the shape of its tensor instructions, ``sm_count`` turns averages into sums, ``ncu_version`` is
    that of ncu.
    """
    algorithm = recognise_kernel(kernel_name) if kernel_name else NOTHING
    halves = has_half_or_smaller_type(kernel_name) if kernel_name else None
    used = tuple(item for item in values.items() if is_flop_counter(item[0]))
    if all(metric.endswith(".sum") for metric, _ in used):
        return _compute_kernel_flops_cached(used, capability, algorithm, ncu_version, halves)
    counted, rules = sums.add_counts_from_rates(values, sm_count)
    items = tuple(item for item in counted.items() if is_flop_counter(item[0]))
    flops = _compute_kernel_flops_cached(items, capability, algorithm, ncu_version, halves)
    return (
        _mark_paths_estimated(flops, rules)
        if rules
        else _explain_rate_only_paths(flops, sums.find_rate_only_instructions(values))
    )


def _explain_rate_only_paths(
    flops: KernelFlops, rate_only_instructions: frozenset[str]
) -> KernelFlops:
    reasons = {
        figure.reason: (
            f"{path} counters ({', '.join(ops).upper()}) exist as rates only, which give no exact "
            "counts"
        )
        for path, ops in sums.PATHS.items()
        if (figure := getattr(flops, path)).state == "not_collected"
        and rate_only_instructions.issuperset(ops)
    }
    changed = {
        path: replace(figure, reason=reasons[figure.reason])
        for path in (*sums.PATHS, "total")
        if (figure := getattr(flops, path)).value is None and figure.reason in reasons
    }
    return flops._replace(**changed)


def _mark_paths_estimated(flops: KernelFlops, rules: Mapping[str, str]) -> KernelFlops:
    core = [rule for metric, rule in rules.items() if "_op_" in metric and "tensor" not in metric]
    tensors = [rule for metric, rule in rules.items() if "tensor" in metric]
    by_path = dict.fromkeys(sums.PATHS, core) | {"tensor": tensors, "total": [*core, *tensors]}
    return flops._replace(
        tensor_types=tuple(
            (kind, _mark_figure_estimated(figure, tensors)) for kind, figure in flops.tensor_types
        ),
        **{
            path: _mark_figure_estimated(getattr(flops, path), used)
            for path, used in by_path.items()
        },
    )


def _mark_figure_estimated(figure: Figure, rules: Iterable[str]) -> Figure:
    rule_texts = tuple(dict.fromkeys(rules))
    if figure.value is None or not figure.launches or not rule_texts:
        return figure
    return replace(
        figure, state="estimated", reason="; ".join((*rule_texts, *filter(None, (figure.reason,))))
    )


@lru_cache(maxsize=4096)
def is_flop_counter(name: str) -> bool:
    """True for the metrics that FLOPs are made from (what turns a rate into a count
    not included)."""
    is_nvidia = (
        "_thread_inst_executed_op_" in name
        or "_inst_executed_pipe_tensor" in name
        or name.startswith(PREFIX)
    )
    return is_nvidia or amd.is_amd_flop_counter(name)


@lru_cache(maxsize=65536)
def _compute_kernel_flops_cached(
    items: tuple[tuple[str, float | None], ...],
    capability: str | None,
    algorithm: Algorithm,
    ncu_version: str | None,
    has_half_type: bool | None,
) -> KernelFlops:
    """Launches of one kernel mostly have the same counts, so equal ones are worked out once."""
    values = dict(items)
    phantom = sums.has_only_constant_move_instructions(values, capability, algorithm.tensor_core)
    fp32 = sums.compute_fp32_flops(values, capability)
    fp64 = sums.sum_weighted_instructions(values, "fp64")
    fp16 = sums.compute_fp16_flops(values, capability, phantom, ncu_version, has_half_type)
    tensor, types = sums.compute_tensor_flops(values, capability, phantom, algorithm)
    paths = {"fp32": fp32, "fp64": fp64, "fp16": fp16, "tensor": tensor}
    total = _sum_flops_over_paths(paths, bool(algorithm.tensor_core))
    return KernelFlops(**paths, total=total, tensor_types=types)


@lru_cache(maxsize=4096)
def has_half_or_smaller_type(kernel_name: str) -> bool | None:
    """Whether a kernel's name has a type of 16 bits or fewer among its types; None where it has
    no types."""
    if _HALF.search(kernel_name):
        return True
    return False if _TYPE.search(_CASTS.sub("", kernel_name)) else None


def _sum_flops_over_paths(
    paths: Mapping[str, Figure], is_tensor_core_kernel: bool = False
) -> Figure:
    """Sum of the paths. No value when nothing was measured, or when the known part is 0 and a path
    is missing.

    A product on tensor cores whose tensor work is not known has no counted total: what is known is
    beside its work.
    """
    lacking = {name: figure for name, figure in paths.items() if figure.value is None}
    present = [figure for figure in paths.values() if figure.value is not None]
    value = sum(figure.value or 0 for figure in present)
    without = (*lacking, *(part for figure in present for part in figure.missing))
    if not present or (without and value == 0):
        first = next(iter(lacking.values()), None)
        if first is None:
            return make_missing_figure(
                "not_collected", f"{', '.join(without)} was not collected and the rest is 0"
            )
        return make_missing_figure(
            first.state,
            first.reason or "not collected",
            lacking=first.lacking,
            moves_constants=first.moves_constants,
        )
    notes = [figure.reason for figure in present if figure.reason and figure.launches]
    notes += [f"{name}: {figure.reason}" for name, figure in lacking.items()]
    rules = "; ".join(
        f"{name}: {figure.rule}" for name, figure in paths.items() if figure.rule and figure.value
    )
    beside = is_tensor_core_kernel and "tensor" in lacking
    if beside:
        notes.insert(0, BESIDE)
    state = (
        "estimated"
        if beside or any(figure.state == "estimated" for figure in present)
        else "counted"
    )
    return Figure(
        value,
        state,
        "; ".join(notes) or None,
        missing=without,
        lacking=tuple(
            dict.fromkeys(reason for figure in paths.values() for reason in figure.lacking)
        ),
        rule=rules or None,
        moves_constants=any(figure.moves_constants for figure in paths.values()),
    )


@dataclass(frozen=True, slots=True)
class _CacheCounter:
    """A counter of one level's traffic and the bytes of one of it."""

    counter: str
    bytes_each: int = 1


_READINGS = {
    "L1": (
        *(
            _CacheCounter(f"l1tex__lsu_writeback_active{tail}", 128)
            for tail in ("_mem_lgds", "_mem_lg", "")
        ),
        _CacheCounter("l1tex__t_bytes"),
        _CacheCounter("l1tex__t_sectors", SECTOR),
    ),
    "L2": (
        _CacheCounter("lts__lts2xbar_cycles_active", 32),
        _CacheCounter("lts__t_bytes"),
        _CacheCounter("lts__t_sectors", SECTOR),
    ),
}
"""Level -> counters, the newest section's first: then the points are those that Nsight
Compute draws."""
_READ = frozenset(
    f"{reading.counter}.sum{tail}"
    for readings in _READINGS.values()
    for reading in readings
    for tail in ("", ".per_second")
)


def compute_cache_bytes(values: Values) -> dict[str, Figure]:
    """Level -> bytes in one launch, counted, or from a rate where nothing counted them; ``rule``
    names the counter.

    Levels without a counter are left out. A counter of one kind of access is 0 where a kernel
    uses others (``_mem_lgds`` with asynchronous copies), so a 0 yields to a counter above 0.
    """
    by_level: dict[str, Figure] = {}
    if _READ.isdisjoint(values):
        return by_level
    for level, readings in _READINGS.items():
        figures = [figure for reading in readings if (figure := _read_cache_bytes(values, reading))]
        if figures:
            by_level[level] = next((figure for figure in figures if figure.value), figures[0])
    return by_level


def _read_cache_bytes(values: Values, reading: _CacheCounter) -> Figure | None:
    total = values.get(f"{reading.counter}.sum")
    if total is not None:
        return Figure(total * reading.bytes_each, "counted", rule=reading.counter)
    rate, time_ns = (
        values.get(f"{reading.counter}.sum.per_second"),
        values.get("gpu__time_duration.sum"),
    )
    if rate is None or time_ns is None:
        return None
    rule = f"{reading.counter}.sum.per_second x gpu__time_duration"
    return Figure(
        rate * reading.bytes_each * time_ns / 1e9, "estimated", rule, rule=reading.counter
    )


def find_peak_bytes_per_cycle(launches: Iterable[Values]) -> dict[str, float]:
    """Counter -> the most bytes that the chip moves in a cycle, where a report says so; the largest
    of its launches.

    Either as ``.sum.peak_sustained``, or from a sum, its share of the peak and the cycles of
    its unit.
    """
    by_counter: dict[str, float] = {}
    for values in launches:
        for readings in _READINGS.values():
            for reading in readings:
                if (peak := _compute_peak_per_cycle(values, reading.counter)) is not None:
                    most = peak * reading.bytes_each
                    by_counter[reading.counter] = max(most, by_counter.get(reading.counter, 0.0))
    return by_counter


def _compute_peak_per_cycle(values: Values, counter: str) -> float | None:
    stated = values.get(f"{counter}.sum.peak_sustained")
    if stated:
        return stated
    total, share = (
        values.get(f"{counter}.sum"),
        values.get(f"{counter}.sum.pct_of_peak_sustained_elapsed"),
    )
    cycles = values.get(f"{counter.partition('__')[0]}__cycles_elapsed.avg")
    # a share that is printed with two decimals is near enough from 1% on
    return (
        float(f"{total / (share / 100) / cycles:.3g}")
        if total and share and share >= 1 and cycles
        else None
    )


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


NO_WORK = CountedWork(
    {}, make_missing_figure("not_collected", describe_missing_ncu_run(THIS_BATCH)), NO_BYTES, 0
)
ON_A_CPU = CountedWork(
    {},
    make_missing_figure("not_available", NO_COUNTERS),
    make_missing_figure(
        "not_available", "perfctl measures DRAM bytes on NVIDIA GPUs only, with ncu"
    ),
    0,
)


def list_launch_flops_and_bytes(
    kernel: Kernel,
    flops: KernelFlops | None,
    values: Values,
    *,
    capability: str | None,
    precision: str | None,
) -> Parts:
    """("total", "dram", a path or a cache; its figure) of one launch.

    ``capability`` ("7.0") and ``precision`` ("fp32") name the type of tensor work that neither a
    counter nor the kernel's name says.
    """
    moved = compute_cache_bytes(values)
    parts = [
        ("total", flops.total if flops else NO_WORK.total),
        ("dram", compute_dram_bytes(values, capability) if values else NO_BYTES),
        *((level, moved.get(level, NOT_MOVED)) for level in CACHES),
    ]
    if flops:
        parts += [(path, getattr(flops, path)) for path in PATHS]
        parts += [
            (f"tensor {kind}", figure)
            for kind, figure in flops.tensor_types
            or [(infer_tensor_type(kernel.name, capability, precision), flops.tensor)]
        ]
    return parts


def sum_step_work_by_key(
    launches: Iterable[tuple[K, Parts]], *, steps: int
) -> dict[K, CountedWork]:
    """key -> work per step of the launches with that key, from the parts of each."""
    grouped: dict[K, list[Parts]] = defaultdict(list)
    for key, parts in launches:
        grouped[key].append(parts)
    figure_cache: dict[tuple[int, ...], Figure] = {}

    def sum_cached_figures(figures: Sequence[Figure]) -> Figure:
        """Most paths of a kernel have one and the same figure; ``grouped`` keeps all of
        them alive."""
        same = tuple(map(id, figures))
        if (figure := figure_cache.get(same)) is None:
            figure = figure_cache[same] = sum_figures(figures, divide_by=steps)
        return figure

    def sum_group_work(group: Sequence[Parts]) -> CountedWork:
        figures: dict[str, list[Figure]] = defaultdict(list)
        for parts in group:
            for name, figure in parts:
                figures[name].append(figure)
        paths = {path: sum_cached_figures(path_figures) for path, path_figures in figures.items()}
        caches = {level: paths.pop(level) for level in CACHES}
        return CountedWork(
            total=paths.pop("total"),
            dram=paths.pop("dram"),
            paths=paths,
            launches=len(group) / steps,
            caches={level: figure for level, figure in caches.items() if figure.value is not None},
        )

    work_cache: dict[tuple[int, ...], CountedWork] = {}
    """Launches that have all in common have one object of parts, so many groups are the same."""
    work = {}
    for key, group in grouped.items():
        same = tuple(map(id, group))
        if (group_work := work_cache.get(same)) is None:
            group_work = work_cache[same] = sum_group_work(group)
        work[key] = group_work
    return work


def compute_dram_bytes(values: Values, chip: str | None = None) -> Figure:
    """Bytes between the GPU and its DRAM in one launch; from a rate only where nothing
    counted them. ``chip``: "7.0" or "gfx942"."""
    total = values.get("dram__bytes.sum")
    read, written = values.get("dram__bytes_read.sum"), values.get("dram__bytes_write.sum")
    if total is None and read is not None and written is not None:
        total = read + written
    if total is not None:
        return Figure(total, "counted")
    rate, time_ns = values.get("dram__bytes.sum.per_second"), values.get("gpu__time_duration.sum")
    if rate is None or time_ns is None:
        return amd.compute_amd_dram_bytes(values, chip) or NO_BYTES
    return Figure(
        rate * time_ns / 1e9, "estimated", "dram__bytes.sum.per_second x gpu__time_duration"
    )


def infer_tensor_type(name: str, capability: str | None, precision: str | None) -> str:
    """Input type of tensor work that no counter tells apart: from the kernel's name, the chip, the
    run's precision."""
    algorithm = recognise_kernel(name)
    if algorithm.tensor_core and algorithm.math:
        return algorithm.math
    if capability == "7.0":
        return "fp16"
    return {"fp32": "tf32"}.get(
        precision or "", precision if precision in TENSOR else "of unknown type"
    ) or ""
