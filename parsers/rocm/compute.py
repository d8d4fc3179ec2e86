"""CSV files of Omniperf and rocprof-compute (a workload's folder), and ``results.csv`` of rocprof: one row a launch, one
column a counter. Omniperf 2 and rocprof-compute 3 were seen.

``pmc_perf.csv`` joins many passes, so identity columns repeat with a number (Wave_Size_3) and are left out. A counter of
channels ("TCC_HIT[0]" to "TCC_HIT[127]") is summed into ``TCC_HIT_sum``, its name in rocprofiler. What is beside it under
the same prefix belongs to the report: ``sysinfo.csv`` (the device), ``timestamps.csv`` (the times of a run without
counters, which pmc_perf.csv repeats), passes of their own (``SQ_LEVEL_WAVES.csv``, kept with the file as section), and
``pmc_kernel_top.csv`` (sums).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from perfctl.parsers.rocm.agreement import of_joined, of_sums
from perfctl.parsers.rocm.records import (
    AGAIN,
    COMPUTE,
    LDS,
    ONE_SIZE,
    ROCPROF,
    SERIAL,
    counter,
    exact,
    gfx,
    groups,
    kernel_name,
    launched,
    no_kernels,
    no_layers,
    plain,
    registers,
    scratch,
    shared,
    span,
    whole,
)
from perfctl.parsers.rocm.tables import Cells, header_of, read_header, rows_of
from perfctl.records.errors import ReportError
from perfctl.records.report import Counter, Device, Gap, Kernel, Operation, Report, Summary

_NAME = ("Kernel_Name", "KernelName")
_DISPATCH = ("Dispatch_ID", "Index")
_GRID, _BLOCK = ("Grid_Size", "grd"), ("Workgroup_Size", "wgr")
_LDS, _SCRATCH = ("LDS_Per_Workgroup", "lds"), ("Scratch_Per_Workitem", "scr")
_GPU = ("GPU_ID", "gpu-id")
_BEGIN, _END = ("Start_Timestamp", "BeginNs"), ("End_Timestamp", "EndNs")
_VGPR, _ACC = ("Arch_VGPR", "arch_vgpr", "vgpr"), ("Accum_VGPR", "accum_vgpr")
_IDENTITY = frozenset((
    *_NAME, *_DISPATCH, *_GRID, *_BLOCK, *_LDS, *_SCRATCH, *_GPU, *_BEGIN, *_END, *_VGPR, *_ACC, "Queue_ID", "PID", "TID",
    "queue-id", "queue-index", "pid", "tid", "SGPR", "sgpr", "Wave_Size", "wave_size", "sig", "obj", "Correlation_ID",
    "Kernel_ID", "XCC_Index", "Node", "DispatchNs", "CompleteNs", "DurationNs",
))  # fmt: skip
_AGAIN = re.compile(rf"(?:{'|'.join(map(re.escape, sorted(_IDENTITY)))})_\d{{1,3}}\Z")
"""An identity column that a join of passes repeated."""
_SAME = ("Kernel_Name", "KernelName", "Grid_Size", "Workgroup_Size", "LDS_Per_Workgroup", "Wave_Size", "Kernel_ID")
"""Columns that have one value in all passes."""
_CHANNEL = re.compile(r"(?P<name>\w+)\[(?P<channel>\d{1,4})\]\Z")
_SYSINFO = {"gpu_model", "gpu_arch", "cu_per_gpu"}
_TOP = {"Kernel_Name", "Count", "Sum(ns)"}
_KNOWN_STEMS = re.compile(
    r"(?P<prefix>.*?)(?P<stem>pmc_perf|sysinfo|timestamps|pmc_kernel_top|pmc_dispatch_info|roofline|SQ\w*_LEVEL\w*"
    r"|SQ_IFETCH_LEVEL|SQ_INST_LEVEL\w*)\.csv\Z"
)
_FACTS = {
    "version": "omniperf", "rocm_version": "rocm", "linux_distro": "os", "linux_kernel_version": "kernel", "cpu_model": "cpu",
    "compute_partition": "compute_partition", "memory_partition": "memory_partition", "num_xcd": "num_xcd",
    "wave_size": "wave_size", "vbios": "vbios",
}  # fmt: skip
"""Columns of sysinfo.csv that are kept -> their names. Command and host name are not."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is one of these files, by its columns."""
    return not path.is_dir() and _kind(header_of(head)) is not None


def _kind(header: list[str]) -> str | None:
    """ "launches", "sysinfo" or "top"; None for other columns."""
    names = {name.strip() for name in header}
    if names >= _SYSINFO:
        return "sysinfo"
    if names >= _TOP:
        return "top"
    wide = any(name in names for name in _DISPATCH) and any(name in names for name in _NAME)
    return (
        "launches" if wide and any(name in names for name in _GRID) and any(name in names for name in _BLOCK) else None
    )


def leader(path: Path) -> Path:
    """The file from which the report is read that ``path`` is part of: ``pmc_perf.csv`` of the same prefix."""
    named = _KNOWN_STEMS.match(path.name)
    first = path.with_name(f"{named['prefix']}pmc_perf.csv") if named else path
    return first if first.is_file() else path


def _beside(path: Path) -> dict[str, Path]:
    """Stem ("sysinfo", "SQ_LEVEL_WAVES") -> file beside ``pmc_perf.csv``."""
    named = _KNOWN_STEMS.match(path.name)
    if named is None or named["stem"] != "pmc_perf":
        return {}
    others = (
        (one, _KNOWN_STEMS.match(one.name)) for one in sorted(path.parent.iterdir()) if one.is_file() and one != path
    )
    return {other["stem"]: one for one, other in others if other and other["prefix"] == named["prefix"]}


def parse(path: Path) -> Report:
    """Read the file and, for ``pmc_perf.csv``, what is beside it. Raises ReportError when one is cut off or damaged."""
    kind = _kind(read_header(path))
    if kind == "sysinfo":
        device, facts = _system(path)
        alone = no_kernels("sysinfo.csv describes the machine alone")
        return Report(COMPUTE, path, "rocprof-compute sysinfo.csv", devices=(device,), environment=facts, gaps=(alone,))
    if kind == "top":
        operations, figures = _top(path)
        said = of_sums(list(rows_of(path, COMPUTE)), "Kernel_Name", "Count", "Sum(ns)", "Mean(ns)", "Pct")
        gaps = (no_kernels("the file has only sums by name"), Gap("device", "not_available", "the file names no GPU"))
        form = "rocprof-compute sums of kernels"
        return Report(COMPUTE, path, form, operations=operations, summaries=figures, gaps=gaps, diagnostics=said)
    if kind is None:
        raise ReportError(path, COMPUTE, "no CSV file of rocprof-compute", AGAIN)
    return _launches(path)


class _Columns:
    """Which columns of a wide table are counters."""

    def __init__(self, header: list[str]) -> None:
        self.single: list[tuple[int, str]] = []
        self.channels: dict[str, list[int]] = {}
        self.repeated = 0
        self.again: dict[str, str] = {}
        """Identity column of a further pass -> that of the first, which it repeats."""
        names = [name.strip() for name in header]
        for at, name in enumerate(names):
            if name in _IDENTITY or name in names[:at]:
                self.repeated += name not in _IDENTITY
            elif _AGAIN.match(name):
                self.repeated += 1
                if (first := name.rpartition("_")[0]) in names and first in _SAME:
                    self.again[name] = first
            elif found := _CHANNEL.match(name):
                self.channels.setdefault(found["name"], []).append(at)
            else:
                self.single.append((at, name))
        known = {name for _, name in self.single}
        self.dropped = sum(len(at) for name, at in self.channels.items() if f"{name}_sum" in known)
        """Columns of single channels whose sum has a column of its own."""
        self.channels = {name: at for name, at in self.channels.items() if f"{name}_sum" not in known}

    def counters(self, launch: int, row: list[str], section: str | None = None) -> Iterator[Counter]:
        for at, name in self.single:
            if row[at].strip():
                yield counter(launch, name, row[at], section)
        for name, places in self.channels.items():
            values = [exact(row[at]) for at in places]
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                yield Counter(launch, f"{name}_sum", plain(sum(known, known[0] * 0)), None, section)


def _launches(path: Path) -> Report:
    beside = _beside(path)
    device, facts = _system(beside["sysinfo"]) if "sysinfo" in beside else (None, {})
    columns = _Columns(read_header(path))
    rows = list(rows_of(path, COMPUTE))
    gpus = sorted({gpu for row in rows if (gpu := whole(row.text(*_GPU))) is not None})
    kernels: list[Kernel] = []
    counters: list[Counter] = []
    for launch, row in enumerate(rows):
        kernels.append(_kernel(launch, row, gpus))
        counters += scratch(launch, whole(row.text(*_SCRATCH)))
        counters += columns.counters(launch, row.row)
    joined, apart = _passes(beside, kernels, counters)
    _, figures = _top(beside["pmc_kernel_top"]) if "pmc_kernel_top" in beside else ([], ())
    devices = tuple(_numbered(device, place) for place in range(len(gpus)))
    old = "Index" in rows[0].at if rows else False
    more = ["sysinfo"] if device else []
    more += ["timestamps"] if "timestamps" in beside else []
    more += [*joined, *(["pmc_kernel_top"] if figures else [])]
    form = f"{'rocprof' if old else 'rocprof-compute'} CSV, a column a counter" + (
        f", with {', '.join(more)}" if more else ""
    )
    return Report(
        tool=ROCPROF if old else COMPUTE,
        path=path,
        form=form,
        tool_version=facts.get("omniperf"),
        devices=devices or ((device,) if device else ()),
        environment=facts,
        kernels=kernels,
        counters=counters,
        summaries=figures,
        gaps=tuple(_gaps(kernels, columns, device, gpus, apart)),
        diagnostics=(
            *((SERIAL,) if (columns.single or columns.channels) and "timestamps" not in beside else ()),
            *of_joined(rows, _DISPATCH, columns.again),
        ),
    )


def _kernel(launch: int, row: Cells, gpus: list[int]) -> Kernel:
    size, gpu = whole(row.text(*_BLOCK)), whole(row.text(*_GPU))
    return launched(
        launch, row.text(*_NAME),
        None if gpu is None else gpus.index(gpu), whole(row.text("Queue_ID", "queue-id")),
        groups(whole(row.text(*_GRID)), size), None, None, size, None, None,
        registers(whole(row.text(*_VGPR)), whole(row.text(*_ACC))),
        *shared(whole(row.text(*_LDS))),
        *span(row.text(*_BEGIN), row.text(*_END)),
    )  # fmt: skip


def _passes(beside: dict[str, Path], kernels: list[Kernel], counters: list[Counter]) -> tuple[list[str], list[str]]:
    """Add the counters of passes whose launches are the same, in order and name; (names of these, of the others)."""
    joined: list[str] = []
    apart: list[str] = []
    for stem, file in beside.items():
        if "LEVEL" not in stem:
            continue
        rows = list(rows_of(file, COMPUTE))
        if [kernel_name(row.text(*_NAME)) for row in rows] != [kernel.name for kernel in kernels]:
            apart.append(file.name)
            continue
        joined.append(stem)
        columns = _Columns(read_header(file))
        for launch, row in enumerate(rows):
            counters += columns.counters(launch, row.row, stem)
    return joined, apart


def _system(path: Path) -> tuple[Device, dict[str, str]]:
    """The device and the facts of sysinfo.csv."""
    row = next(rows_of(path, COMPUTE), None)
    if row is None:
        raise ReportError(path, COMPUTE, "sysinfo.csv has no row below its header", AGAIN)
    clock, bandwidth = exact(row.text("max_sclk")), exact(row.text("hbm_bw"))
    model = row.text("gpu_model").strip()
    device = Device(
        name=f"AMD Instinct {model.removesuffix('_A1').removesuffix('_A0')}"
        if model.startswith("MI")
        else model or None,
        kind="gpu",
        compute_capability=gfx(row.text("gpu_arch").strip()),
        sm_count=whole(row.text("cu_per_gpu")),
        memory_bandwidth_bps=round(bandwidth * 10**9) if bandwidth else None,
        clock_hz=round(clock * 10**6) if clock else None,
    )
    facts = {name: row.text(column).strip() for column, name in _FACTS.items()}
    return device, {name: value for name, value in facts.items() if value and value not in ("NA", "xxxxxxxx")}


def _numbered(device: Device | None, place: int) -> Device:
    if device is None:
        return Device(None, "gpu", place)
    return Device(
        device.name, "gpu", place, device.compute_capability, device.sm_count, None, device.memory_bandwidth_bps,
        device.clock_hz,
    )  # fmt: skip


def _top(path: Path) -> tuple[list[Operation], tuple[Summary, ...]]:
    """Sums by kernel; ns with a fraction, which went through floats, are rounded in operations and whole in figures."""
    operations, figures = [], []
    for row in rows_of(path, COMPUTE):
        name, calls, total = kernel_name(row.text("Kernel_Name")), whole(row.text("Count")), exact(row.text("Sum(ns)"))
        if calls is None or total is None:
            raise ReportError(path, COMPUTE, f"the row of {name[:60]} has no whole number of calls or no time", AGAIN)
        operations.append(Operation(name, "kernel", calls, None, None, round(total), None, None))
        for column, label in (("Sum(ns)", "Sum"), ("Median(ns)", "Median")):
            if (value := exact(row.text(column))) is not None:
                figures.append(Summary(f"kernel:{name}:{label}", float(value), "ns"))
    return operations, tuple(figures)


def _gaps(
    kernels: list[Kernel], columns: _Columns, device: Device | None, gpus: list[int], apart: list[str]
) -> Iterator[Gap]:
    if not kernels:
        yield no_kernels("the file holds no launch")
        return
    yield from no_layers(ranges=False)
    yield ONE_SIZE
    yield Gap("copy", "not_collected", "counters are collected without a trace of copies")
    if any(kernel.static_shared_bytes for kernel in kernels):
        yield LDS
    if device is None:
        reason = "no sysinfo.csv is here; name the GPU with perfctl ingest --device-name"
        yield Gap("device.name", "not_available", reason)
    if columns.channels:
        places = sum(map(len, columns.channels.values()))
        reason = f"{places:,} columns of single channels are summed into {len(columns.channels)} counters (..._sum)"
        yield Gap("counter:channels", "not_available", reason)
    if columns.dropped:
        reason = f"{columns.dropped:,} columns of single channels are left out: their sums (..._sum) are in the file"
        yield Gap("counter:channels", "not_available", reason)
    if columns.repeated:
        reason = f"{columns.repeated} identity columns that the join of passes repeats were left out"
        yield Gap("counter:repeated", "not_available", reason)
    for name in apart:
        yield Gap(f"counter:{name}", "ambiguous", f"the launches of {name} are not those of pmc_perf.csv: left out")
    if not columns.single and not columns.channels:
        yield Gap("counter", "not_collected", "the file has times and no counters")
    if gpus and gpus != list(range(len(gpus))):
        reason = f"GPU_ID {', '.join(map(str, gpus))} is the KFD's number; GPUs are counted from 0 in its order"
        yield Gap("kernel.device_index", "ambiguous", reason)
