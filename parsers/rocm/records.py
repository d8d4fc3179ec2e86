"""Records of rocprofv3's reports: which column of its CSV, JSON and database fills which field,
and what is made of these fields.

HIP and HSA state a grid in work-items, not in work-groups (CUDA's blocks): each size is divided by
that of the work-group and rounded up, since a grid need not be a multiple of it. Registers are
vector registers of a work-item (VGPRs) with the accumulation registers (AccVGPRs), which share one
file since CDNA 2. Devices have compute units (CUs) where NVIDIA's have SMs, and their gfx name
("gfx942") is kept as the compute capability.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfctl.parsers.common.doubts import split_words
from perfctl.parsers.common.numbers import Number, parse_finite_decimal, parse_integer, parse_real
from perfctl.parsers.common.tables import FieldColumn, nonempty_text_or_none
from perfctl.records.report import (
    Copy,
    Counter,
    Device,
    Diagnostic,
    Gap,
    Kernel,
    Operation,
    Range,
    Report,
    Summary,
)

ROCPROFV3 = "rocprofv3"
"""Name of the tool, which ROCm 6.2 and later have."""
AGAIN = "Copy it again, or let the profiler write it again"
NAMELESS = "(no name in the report)"
API_DOMAINS = ("hip_api", "hsa_api", "rccl_api", "rocdecode_api", "rocjpeg_api")
_SIZES = tuple(f"{part}_{axis}" for part in ("grid", "block") for axis in "xyz")
"""Fields of a kernel."""
_GFX = re.compile(r"gfx[0-9a-f]{3,5}\Z")
_IN_KIB = ("FETCH_SIZE", "WRITE_SIZE", "FetchSize", "WriteSize")
"""Derived counters in kilobytes of 1024 bytes: rocprofiler's definitions divide bytes by 1024
(metrics.xml, counter_defs.yaml: ``FETCH_SIZE``, "the total kilobytes fetched from the
video memory")."""
_PERCENT = split_words(
    "L2CacheHit OccupancyPercent MemUnitBusy MemUnitStalled WriteUnitStalled LDSBankConflict "
    "ALUStalledByLDS GPUBusy GPU_UTIL CU_UTILIZATION CU_OCCUPANCY MfmaUtil VALUUtilization "
    "VALUBusy SALUBusy ValuPipeIssueUtil SIMD_UTILIZATION"
)
_ENDING = re.compile(r"(?: \[clone )?[ (]?\.kd[\])]?\Z")
"""The mark of a kernel descriptor: "mul(...) [clone .kd]", "mul(...) (.kd)", "fill.kd"."""
_DIRECTION = re.compile(
    "(?:MEMORY_COPY_|Copy)?(?P<source>HOST|DEVICE|Host|Device)_?(?:TO_|To|2)(?P<target>HOST|"
    "DEVICE|Host|Device)"
)
AGENT = FieldColumn("Agent_Id", "", "agent", lambda agent: agent)
"""An agent as the form names it: "Agent 3", a handle, or the number of a row."""
_SERIAL = Diagnostic(
    "info",
    "perfctl",
    "times may come from counter passes, which run kernels one at a time. A run without counters "
    "may differ",
)


def _parse_time_ns(value: object) -> int | Decimal | None:
    """Return a time in ns; some versions write a fraction, which a float would lose. A power of
    ten ("3.42331E+14") is what a spreadsheet made of a time: its digits are gone."""
    if isinstance(value, str) and "E" in value.upper():
        return None
    integer = parse_integer(value)
    return parse_finite_decimal(value) if integer is None else integer


TIMES = (
    FieldColumn(
        "Start_Timestamp", "ns", "start", _parse_time_ns, also=("start_timestamp", "start")
    ),
    FieldColumn("End_Timestamp", "ns", "end", _parse_time_ns, also=("end_timestamp", "end")),
)
LAUNCH = (
    *TIMES,
    FieldColumn("Dispatch_Id", field="dispatch", also=("dispatch_info.dispatch_id",)),
    FieldColumn("Correlation_Id", field="correlation", also=("correlation_id.internal",)),
    FieldColumn(
        "Kernel_Name",
        field="name",
        read=nonempty_text_or_none,
        also=(
            "symbol.formatted_kernel_name",
            "symbol.demangled_kernel_name",
            "symbol.kernel_name",
            "kernel_name",
        ),
    ),
    AGENT._replace(also=("dispatch_info.agent_id.handle", "agent_id")),
    FieldColumn(
        "Stream_Id",
        field="stream",
        also=("Queue_Id", "stream_id.handle", "dispatch_info.queue_id.handle", "stream_id"),
    ),
    *(
        FieldColumn(
            f"{name}_Size_{axis.upper()}",
            field=f"{size}_{axis}",
            also=(f"dispatch_info.{name.lower()}_size.{axis}", f"{name.lower()}_size_{axis}"),
        )
        for name, size in (("Grid", "items"), ("Workgroup", "block"))
        for axis in "xyz"
    ),
    FieldColumn("VGPR_Count", field="vgprs", also=("symbol.arch_vgpr_count", "arch_vgpr_count")),
    FieldColumn(
        "Accum_VGPR_Count",
        field="accvgprs",
        also=("symbol.accum_vgpr_count", "accum_vgpr_count"),
    ),
    FieldColumn(
        "LDS_Block_Size",
        "byte",
        "lds",
        also=("Group_Segment_Size", "dispatch_info.group_segment_size", "group_segment_size"),
    ),
    FieldColumn(
        "Scratch_Size",
        "byte",
        "scratch",
        also=("Private_Segment_Size", "dispatch_info.private_segment_size"),
    ),
)
LAUNCH_OF_SYMBOL = (
    *LAUNCH,
    FieldColumn("symbol.group_segment_size", "byte", "static_lds"),
)
"""Columns of a launch in forms that state the static LDS of its kernel (CSV does not)."""
COPY = (
    *TIMES,
    FieldColumn("Direction", "", "kind", nonempty_text_or_none),
    *(
        AGENT._replace(name=f"{name}_Agent_Id", field=field, also=(f"{key}.handle", key))
        for name, field, key in (
            ("Source", "source", "src_agent_id"),
            ("Destination", "target", "dst_agent_id"),
        )
    ),
    FieldColumn("Stream_Id", field="stream", also=("stream_id",)),
    FieldColumn("Size", "byte", "bytes", also=("Bytes", "bytes", "size")),
)


def read_start_and_duration_ns(row: Mapping[str, Any]) -> tuple[int | None, Number | None]:
    """Return (start, duration) in ns of the fields "start" and "end"; 0 is no time."""
    start, end = row["start"], row["end"]
    if not start:
        return None, None
    return round(start), None if end is None or end < start else parse_real(str(end - start))


@lru_cache(maxsize=4096)
def strip_kernel_descriptor_suffix(text: str) -> str:
    """Return a kernel's name without the mark of a kernel descriptor."""
    return _ENDING.sub("", text).strip()


def make_kernel(launch: int, device: int | None, row: Mapping[str, Any]) -> Kernel:
    """Return the launch that the fields of LAUNCH or LAUNCH_OF_SYMBOL describe."""
    blocks = [row[f"block_{axis}"] for axis in "xyz"]
    items = [row[f"items_{axis}"] for axis in "xyz"]
    grid = [
        -(-count // size) if count and size and count > 0 and size > 0 else None
        for count, size in zip(items, blocks, strict=True)
    ]
    vgprs, lds = row["vgprs"], row["lds"]
    static, dynamic = lds, 0 if lds == 0 else None
    if "static_lds" in row:
        static = row["static_lds"]
        is_more = lds is not None and static is not None and lds >= static
        dynamic = lds - static if is_more else None
    start, duration = read_start_and_duration_ns(row)
    return Kernel(
        launch,
        strip_kernel_descriptor_suffix(row["name"] or NAMELESS),
        None,
        device_index=device,
        stream=row["stream"],
        **dict(zip(_SIZES, [*grid, *blocks], strict=True)),
        registers=None if vgprs is None else vgprs + (row["accvgprs"] or 0),
        static_shared_bytes=static,
        dynamic_shared_bytes=dynamic,
        correlation=row["correlation"],
        start_ns=start,
        duration_ns=duration,
    )


def make_copy(row: Mapping[str, Any], find_gpu: Callable[[Any], int | None]) -> Copy:
    """Return the copy that the fields of COPY describe. Its kind is HtoD, DtoH, DtoD or HtoH, or
    the tool's own word. ``find_gpu`` returns the ordinal of an agent; None for the host."""
    kind = row["kind"] or NAMELESS
    match = _DIRECTION.search(kind)
    start, duration = read_start_and_duration_ns(row)
    source, target = find_gpu(row["source"]), find_gpu(row["target"])
    return Copy(
        f"{match['source'][0]}to{match['target'][0]}" if match else kind,
        row["bytes"],
        start,
        None if duration is None else round(duration),
        device_index=source if target is None else target,
        stream=row["stream"],
    )


def make_counter(launch: int, name: str, value: object) -> Counter:
    """Return a counter in its base unit; its text if it is no number."""
    number, (unit, scale) = parse_finite_decimal(value), _find_counter_unit(name)
    if number is not None:
        return Counter(launch, name, parse_real(str(number * scale)), unit)
    text = None if value is None else str(value).strip()
    return Counter(launch, name, None, unit, text=text or None)


@lru_cache(maxsize=8192)
def _find_counter_unit(counter: str) -> tuple[str | None, int]:
    """Return the base unit of a counter by AMD's definitions, since the files state none, and its
    scale. The unit of a count or ratio is None."""
    if counter.removesuffix("_sum") in _IN_KIB:
        return "byte", 1024
    if counter in _PERCENT:
        return "%", 1
    return "inst" if counter.startswith("SQ_INSTS_") and "_MOPS_" not in counter else None, 1


def make_scratch_memory_counter(launch: int, row: Mapping[str, Any]) -> Iterator[Counter]:
    """Yield the scratch memory of a work-item, for which a kernel has no field; nothing if it is 0
    or unknown."""
    if row["scratch"]:
        yield Counter(launch, "Scratch_Size", row["scratch"], "byte")


@dataclass(frozen=True, slots=True)
class RereadRecords:
    """Records that are read anew for each iteration."""

    read: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.read()


@dataclass(slots=True)
class RocmRecording:
    """What the files of one report hold, as its reader adds it."""

    path: Path
    form: str
    kernels: Iterable[Kernel] = ()
    counters: Iterable[Counter] = ()
    copies: Iterable[Copy] = ()
    ranges: list[Range] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    """Operations that are no sums of ``calls``."""
    summaries: list[Summary] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    devices: dict[int, Device] = field(default_factory=dict)
    used: set[int | None] = field(default_factory=set)
    """Ordinals of the GPUs that ran kernels."""
    has_counters: bool = False
    times: list[tuple[object, object]] = field(default_factory=list)
    """Start and end of each process in ns."""
    calls: dict[tuple[str, str], tuple[int, int | None]] = field(default_factory=dict)
    """API and function -> number of calls, ns on the host; in order of appearance."""
    broken: set[Path] = field(default_factory=set)
    """Files beside the launches that cannot be read to their end; each is a gap."""
    unplaced: int = 0
    """ROCTx ranges without a start."""

    def add_gpu(self, index: int, facts: Mapping[str, Any]) -> None:
        """Add a GPU, unless a process before has added it. ``facts`` are those of its agent, by
        HSA's and the KFD's names."""
        memory, name = facts.get("mem_banks"), facts.get("name")
        # the KFD's heap types 1 and 2 are public and private memory of the device itself
        sizes = [
            parse_integer(bank.get("size_in_bytes", bank.get("size"))) or 0
            for bank in (memory if isinstance(memory, list) else ())
            if isinstance(bank, dict) and bank.get("heap_type") in (1, 2)
        ]
        mhz = parse_integer(facts.get("max_engine_clk_fcompute"))
        gpu = Device(
            name=str(facts.get("product_name") or "") or None,
            kind="gpu",
            index=index,
            compute_capability=name if isinstance(name, str) and _GFX.match(name) else None,
            sm_count=parse_integer(facts.get("cu_count")) or None,
            memory_bytes=sum(sizes) or None,
            clock_hz=mhz * 10**6 if mhz else None,
        )
        self.devices.setdefault(index, gpu)

    def add_api_calls(
        self, category: str, name: str, duration_ns: float | None, calls: int = 1
    ) -> None:
        """Add calls of a category such as HIP_RUNTIME_API_EXT to the sums of their function."""
        lower = category.lower()
        apis = (api for api in API_DOMAINS if lower.startswith(api.removesuffix("_api")))
        key = next(apis, lower), name
        count, total = self.calls.get(key, (0, 0))
        if total is not None:
            total = None if duration_ns is None else total + round(duration_ns)
        self.calls[key] = count + calls, total

    def add_roctx_range(self, name: str, row: Mapping[str, Any], thread: int | None) -> None:
        """Add a ROCTx range with the fields of TIMES."""
        start, duration = read_start_and_duration_ns(row)
        if start is None:
            self.unplaced += 1
        else:
            number, length = len(self.ranges), None if duration is None else round(duration)
            self.ranges.append(Range(number, name, "roctx", start, length, thread, None, None))

    def make_report(self) -> Report:
        """Return the report."""
        if self.unplaced:
            reason = f"{self.unplaced:,} ROCTx ranges have no start and were skipped"
            self.gaps.append(Gap("range", "unreadable", reason))
        gpus = sorted(
            self.devices.values(), key=lambda gpu: (gpu.index not in self.used, gpu.index)
        )
        spans = [
            (start, end)
            for start, end in self.times
            if isinstance(start, int) and isinstance(end, int) and 0 < start < end
        ]
        operations = [
            Operation(name, api, calls, total, None, None, None, None)
            for (api, name), (calls, total) in self.calls.items()
        ]
        return Report(
            tool=ROCPROFV3,
            path=self.path,
            form=self.form,
            devices=tuple(gpus),
            environment=self.environment,
            kernels=self.kernels,
            counters=self.counters,
            copies=self.copies,
            ranges=self.ranges,
            operations=[*operations, *self.operations],
            summaries=tuple(self.summaries),
            gaps=(*self.gaps, *self._describe_unrecorded_data()),
            diagnostics=(*((_SERIAL,) if self.has_counters else ()), *self.diagnostics),
            duration_ns=max(end for _, end in spans) - min(start for start, _ in spans)
            if spans
            else None,
        )

    def _describe_unrecorded_data(self) -> Iterator[Gap]:
        """Yield what was not recorded, with the option of rocprofv3 that records it."""
        if not self.kernels:
            reason = "no launch was recorded (rocprofv3 --kernel-trace)"
            yield Gap("kernel", "not_collected", reason)
        else:
            reason = "perfctl does not assign kernels to the ROCTx ranges of this format"
            if not self.ranges:
                reason = (
                    "no ROCTx range was recorded (rocprofv3 --marker-trace), so perfctl cannot "
                    "assign kernels to layers"
                )
            yield Gap("kernel.layer", "not_available", reason)
            if not self.has_counters:
                reason = "no counter was recorded (rocprofv3 --pmc)"
                yield Gap("counter", "not_collected", reason)
        if not self.copies:
            reason = "no copy was recorded: none ran, or rocprofv3 ran without --memory-copy-trace"
            yield Gap("copy", "not_collected", reason)
