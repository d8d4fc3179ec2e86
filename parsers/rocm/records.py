"""What the reports of rocprofv3 share: records from fields, agents as devices, units of counters,
sums of API calls. Its CSV, JSON and database declare which column is which field.

HIP and HSA state a grid in work-items, not in work-groups (CUDA's blocks): each size is divided by
that of the work-group and rounded up, since a grid need not be a multiple of it. Registers are
vector registers of a work-item (VGPRs) with the accumulation registers (AccVGPRs), which share one
file since CDNA 2. Devices have compute units (CUs) where NVIDIA's have SMs, and their gfx name
("gfx942") stands where NVIDIA's compute capability does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from perfctl.parsers.common.doubts import words
from perfctl.parsers.common.numbers import read_exact, read_integer, read_real
from perfctl.records.report import Copy, Counter, Device, Diagnostic, Gap, Kernel, Operation

ROCPROFV3 = "rocprofv3"
"""Name of the tool, which ROCm 6.2 and later have."""
AGAIN = "Copy it again, or let the profiler write it again"
_GFX = re.compile(r"gfx[0-9a-f]{3,5}\Z")
_IN_KIB = ("FETCH_SIZE", "WRITE_SIZE", "FetchSize", "WriteSize")
"""Derived counters in kilobytes of 1024 bytes: rocprofiler's definitions divide bytes by 1024
(metrics.xml, counter_defs.yaml: ``FETCH_SIZE``, "the total kilobytes fetched from the
video memory")."""
_PERCENT = words(
    "L2CacheHit OccupancyPercent MemUnitBusy MemUnitStalled WriteUnitStalled LDSBankConflict "
    "ALUStalledByLDS GPUBusy GPU_UTIL CU_UTILIZATION CU_OCCUPANCY MfmaUtil VALUUtilization "
    "VALUBusy SALUBusy ValuPipeIssueUtil SIMD_UTILIZATION"
)
_ENDING = re.compile(r"(?: \[clone )?[ (]?\.kd[\])]?\Z")
"""The mark of a kernel descriptor: "mul(...) [clone .kd]", "mul(...) (.kd)", "fill.kd"."""
_COPY = re.compile(
    "(?:MEMORY_COPY_|Copy)?(?P<source>HOST|DEVICE|Host|Device)_?(?:TO_|To|2)(?P<target>HOST|"
    "DEVICE|Host|Device)"
)
API_DOMAINS = ("hip_api", "hsa_api", "rccl_api", "rocdecode_api", "rocjpeg_api")
SERIAL = Diagnostic(
    "info",
    "perfctl",
    "times may be of passes that collect counters, in which kernels run one by one: a run without "
    "counters may differ",
)


@lru_cache(maxsize=4096)
def clean_name(text: str) -> str:
    """Return a kernel's name without the mark of a kernel descriptor."""
    return _ENDING.sub("", text).strip()


def read_stamp(value: object) -> int | Decimal | None:
    """Return a time in ns; some versions write a fraction, which a float would lose."""
    whole = read_integer(value)
    return read_exact(value) if whole is None else whole


def read_span(row: Mapping[str, Any]) -> tuple[int | None, int | float | None]:
    """Return (start, duration) in ns of the fields "start" and "end"; 0 is no time."""
    start, end = row["start"], row["end"]
    if not start:
        return None, None
    return round(start), None if end is None or end < start else read_real(str(end - start))


def make_kernel(launch: int, name: str, device: int | None, row: Mapping[str, Any]) -> Kernel:
    """Return the launch that these fields describe: items_x..z (of the grid), block_x..z, vgprs,
    accvgprs, lds, stream, start, end; static_lds if the report tells it from the dynamic one."""
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
    start, duration = read_span(row)
    return Kernel(
        launch,
        clean_name(name),
        None,
        device_index=device,
        stream=row["stream"],
        grid_x=grid[0],
        grid_y=grid[1],
        grid_z=grid[2],
        block_x=blocks[0],
        block_y=blocks[1],
        block_z=blocks[2],
        registers=None if vgprs is None else vgprs + (row["accvgprs"] or 0),
        static_shared_bytes=static,
        dynamic_shared_bytes=dynamic,
        start_ns=start,
        duration_ns=duration,
    )


def make_copy(kind: str, target: int | None, source: int | None, row: Mapping[str, Any]) -> Copy:
    """Return the copy between two devices (None: the host) that these fields describe: bytes,
    stream, start, end. Its kind is HtoD, DtoH, DtoD or HtoH, or the tool's own word."""
    match = _COPY.search(kind)
    start, duration = read_span(row)
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
    number, (unit, scale) = read_exact(value), counter_unit(name)
    if number is None:
        text = "" if value is None else str(value).strip()
        return Counter(launch, name, None, unit, text=text or None)
    return Counter(launch, name, read_real(str(number * scale)), unit)


@lru_cache(maxsize=8192)
def counter_unit(name: str) -> tuple[str | None, int]:
    """Return the base unit of a counter by AMD's definitions, since the files state none, and its
    scale. The unit of a count or ratio is None."""
    if name.removesuffix("_sum") in _IN_KIB:
        return "byte", 1024
    if name in _PERCENT:
        return "%", 1
    return "inst" if name.startswith("SQ_INSTS_") and "_MOPS_" not in name else None, 1


def make_scratch(launch: int, size: int | None) -> Iterator[Counter]:
    """Yield the scratch memory of a work-item, for which a kernel has no field; nothing if it is 0
    or unknown."""
    if size:
        yield Counter(launch, "Scratch_Size", size, "byte")


def make_device(index: int, name: object, product: object, facts: Mapping[str, object]) -> Device:
    """Return a GPU from an agent: ``name`` is its gfx name, ``facts`` are the agent's own (HSA's
    and the KFD's)."""
    memory = facts.get("mem_banks")
    banks = [bank for bank in memory if isinstance(bank, dict)] if isinstance(memory, list) else []
    # the KFD's heap types 1 and 2 are public and private memory of the device itself
    sizes = [
        read_integer(bank.get("size_in_bytes", bank.get("size"))) or 0
        for bank in banks
        if bank.get("heap_type") in (1, 2)
    ]
    mhz = read_integer(facts.get("max_engine_clk_fcompute"))
    return Device(
        name=str(product) if product else None,
        kind="gpu",
        index=index,
        compute_capability=name if isinstance(name, str) and _GFX.match(name) else None,
        sm_count=read_integer(facts.get("cu_count")) or None,
        memory_bytes=sum(sizes) or None,
        clock_hz=mhz * 10**6 if mhz else None,
    )


def order_devices(devices: Mapping[int, Device], used: set[int | None]) -> tuple[Device, ...]:
    """Return the GPUs, those that ran kernels first."""
    return tuple(sorted(devices.values(), key=lambda gpu: (gpu.index not in used, gpu.index)))


class Rows:
    """Records that are read anew for each iteration."""

    def __init__(self, read: Callable[[], Iterator[Any]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[Any]:
        return self._read()


class Calls:
    """Sums of API calls by domain and name, in order of appearance."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], list[int]] = {}

    def add(self, category: str, name: str, duration_ns: int, calls: int = 1) -> None:
        """Add calls of a category such as HIP_RUNTIME_API_EXT."""
        lower = category.lower()
        domain = next(
            (domain for domain in API_DOMAINS if lower.startswith(domain.removesuffix("_api"))),
            lower,
        )
        sums = self._sums.setdefault((domain, name), [0, 0])
        sums[0] += calls
        sums[1] += duration_ns

    def operations(self) -> list[Operation]:
        """Return one record for each function: calls and time on the host."""
        return [
            Operation(name, domain, calls, total, None, None, None, None)
            for (domain, name), (calls, total) in self._sums.items()
        ]


def measure_span(times: Iterable[tuple[object, object]]) -> int | None:
    """Return the ns from the first process's start to the last one's end."""
    spans = [
        (start, end)
        for start, end in times
        if isinstance(start, int) and isinstance(end, int) and 0 < start < end
    ]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else None


def find_missing(
    *, has_kernels: bool, has_ranges: bool, has_copies: bool, has_counters: bool
) -> Iterator[Gap]:
    """Yield what was not recorded, with the option of rocprofv3 that records it."""
    if not has_kernels:
        yield Gap("kernel", "not_collected", "no launch was recorded (rocprofv3 --kernel-trace)")
    elif has_ranges:
        reason = "kernels are not assigned to the ROCTx ranges of this format"
        yield Gap("kernel.layer", "not_available", reason)
    else:
        reason = (
            "no ROCTx range was recorded, so no kernel can be assigned to a layer (rocprofv3 "
            "--marker-trace)"
        )
        yield Gap("kernel.layer", "not_available", reason)
    if has_kernels and not has_counters:
        yield Gap("counter", "not_collected", "no counter was recorded (rocprofv3 --pmc)")
    if not has_copies:
        reason = "no copy was recorded: none ran, or rocprofv3 ran without --memory-copy-trace"
        yield Gap("copy", "not_collected", reason)
