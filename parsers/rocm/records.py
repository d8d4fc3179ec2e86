"""What the reports of AMD's profilers share: grids in work-groups, agents as devices, units of
counters, sums of API calls.

HIP and HSA state a grid in work-items, not in work-groups (CUDA's blocks): each size is divided by
that of the work-group and rounded up, since a grid need not be a multiple of it. Registers are
vector registers of a work-item (VGPRs) with the accumulation registers (AccVGPRs), which share one
file since CDNA 2. Devices have compute units (CUs) where NVIDIA's have SMs, and their gfx name
("gfx942") stands where NVIDIA's compute capability does.

CSV files are read as rows of named cells, one at a time.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.text.doubts import repeated, words
from perfctl.parsers.text.lines import encoding_of
from perfctl.records.errors import ReportError, readable
from perfctl.records.report import Counter, Device, Diagnostic, Gap, Kernel, Operation

_LONGEST_CELL = 1 << 20
"""Characters; names of kernels in Composable Kernel have some ten thousand."""

ROCPROFV3 = "rocprofv3"
"""Name of the tool, which ROCm 6.2 and later have."""
AGAIN = "Copy it again, or let the profiler write it again"
_LARGEST = 2**63 - 1
_SURELY_64_BIT = 19
"""Digits: a number with fewer fits into 64 bits."""
_EXACT = 2**53
"""Floats below it hold every integer."""
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
_COPY = re.compile(
    "(?:MEMORY_COPY_|Copy)?(?P<source>HOST|DEVICE|Host|Device)_?(?:TO_|To|2)(?P<target>HOST|"
    "DEVICE|Host|Device)"
)
_API = (
    ("HIP", "hip_api"),
    ("HSA", "hsa_api"),
    ("RCCL", "rccl_api"),
    ("ROCDECODE", "rocdecode_api"),
    ("ROCJPEG", "rocjpeg_api"),
)

ONE_SIZE = Gap(
    "kernel.grid_y",
    "not_available",
    "the file gives only the product of a grid's three sizes: grid_x is the number of work-groups "
    "in all, block_x that of work-items in one",
)
SERIAL = Diagnostic(
    "info",
    "perfctl",
    "times may be of passes that collect counters, in which kernels run one by one: a run without "
    "counters may differ",
)
LDS = Gap(
    "kernel.dynamic_shared_bytes",
    "ambiguous",
    "the file gives static and dynamic LDS as one sum, which stands in static_shared_bytes",
)


@lru_cache(maxsize=4096)
def kernel_name(text: str) -> str:
    """Without the mark of a kernel descriptor: "vecCopy(...) [clone .kd]", "vecCopy(...)
    (.kd)", "fill.kd"."""
    return _ENDING.sub("", text).strip()


def whole(value: object) -> int | None:
    """An integer of 64 bits, or the text of one ("24576", "16384.0"); None for anything else."""
    if type(value) is str and value.isdecimal() and value.isascii() and len(value) < _SURELY_64_BIT:
        return int(value)
    number = exact(value)
    return int(number) if number is not None and number == int(number) else None


def exact(value: object) -> Decimal | None:
    """A number without rounding to a float first; None for anything that is none, is not finite or
    exceeds 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value).strip()
    if not text or len(text) > 64:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() and -_LARGEST <= number <= _LARGEST else None


def plain(number: Decimal) -> int | float:
    """An int where the number is whole."""
    return int(number) if number == number.to_integral_value() else float(number)


def span(begin: object, end: object) -> tuple[int | None, int | float | None]:
    """(start, duration) in ns of two stamps."""
    start, stop = whole(begin), whole(end)
    if start and stop is not None:
        return start, stop - start if stop >= start else None
    first, last = exact(begin), exact(end)  # some versions write stamps with a fraction
    if first is None or not first:
        return None, None
    return round(first), plain(last - first) if last is not None and last >= first else None


def launched(launch: int, name: str, *numbers: Any) -> Kernel:
    """A kernel without layer and range; ``numbers`` are its fields from ``device_index`` on."""
    return Kernel(launch, kernel_name(name), None, None, None, None, None, None, *numbers)


def groups(items: int | None, size: int | None) -> int | None:
    """Work-groups along one axis; None where a size is missing or 0."""
    return -(-items // size) if items and size and items > 0 and size > 0 else None


def registers(vgprs: int | None, accumulation: int | None) -> int | None:
    """VGPRs and AccVGPRs of a work-item together; None where the first is unknown."""
    return None if vgprs is None else vgprs + (accumulation or 0)


def counter(launch: int, name: str, text: object) -> Counter:
    """A counter in its base unit; its text where it is no number."""
    if type(text) is float and text.is_integer() and abs(text) < _EXACT:
        value = int(text)
        return Counter(launch, name, value * 1024 if _in_kib(name) else value, unit_of(name))
    number = exact(text)
    if number is None:
        shown = str(text).strip() if text is not None else ""
        return Counter(launch, name, None, unit_of(name), text=shown or None)
    return Counter(launch, name, plain(number * 1024 if _in_kib(name) else number), unit_of(name))


@lru_cache(maxsize=8192)
def _in_kib(name: str) -> bool:
    return name.removesuffix("_sum") in _IN_KIB


@lru_cache(maxsize=8192)
def unit_of(name: str) -> str | None:
    """Unit of a counter by AMD's definitions: the files state none. None for a count or ratio."""
    if _in_kib(name) or name == "Scratch_Size":
        return "byte"
    if name in _PERCENT:
        return "%"
    return "inst" if name.startswith("SQ_INSTS_") and "_MOPS_" not in name else None


def copy_kind(name: str) -> str:
    """HtoD, DtoH, DtoD or HtoH; the tool's own word for other copies."""
    found = _COPY.search(name)
    return f"{found['source'][0]}to{found['target'][0]}" if found else name


def gfx(name: object) -> str | None:
    """ "gfx942", which stands for the compute capability; None for other names."""
    return name if isinstance(name, str) and _GFX.match(name) else None


def device(index: int, name: object, product: object, facts: Mapping[str, object]) -> Device:
    """A GPU from an agent of rocprofv3: ``name`` is its gfx name, ``facts`` are the agent's own
    (HSA's and the KFD's)."""
    memory = facts.get("mem_banks")
    banks = [bank for bank in memory if isinstance(bank, dict)] if isinstance(memory, list) else []
    # the KFD's heap types 1 and 2 are public and private memory of the device itself
    own = [
        whole(bank.get("size_in_bytes", bank.get("size"))) or 0
        for bank in banks
        if bank.get("heap_type") in (1, 2)
    ]
    mhz = whole(facts.get("max_engine_clk_fcompute"))
    return Device(
        name=str(product) if product else None,
        kind="gpu",
        index=index,
        compute_capability=gfx(name),
        sm_count=whole(facts.get("cu_count")) or None,
        memory_bytes=sum(own) or None,
        clock_hz=mhz * 10**6 if mhz else None,
    )


def api_domain(category: str) -> str:
    """ "hip_api" of "HIP_RUNTIME_API_EXT"; other domains in lower case."""
    return next(
        (domain for start, domain in _API if category.upper().startswith(start)), category.lower()
    )


class Calls:
    """Sums of API calls by domain and name, in order of appearance."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[int]] = {}
        self.count = 0

    def add(self, domain: str, name: str, duration_ns: int, calls: int = 1) -> None:
        """One call, or several that were summed already."""
        self.count += calls
        sums = self._found.setdefault((domain, name), [0, 0])
        sums[0] += calls
        sums[1] += duration_ns

    def operations(self) -> Iterator[Operation]:
        """One record for each function: calls and time on the host."""
        for (domain, name), (calls, total) in self._found.items():
            yield Operation(name, domain, calls, total, None, None, None, None)


def no_layers(ranges: bool) -> Gap:
    """The gap of every report with kernels; ``ranges``: whether ROCTx ranges were recorded."""
    reason = (
        "no ROCTx range was recorded, so no kernel can be assigned to a layer (rocprofv3 "
        "--marker-trace)"
    )
    if ranges:
        reason = "kernels are not assigned to the ROCTx ranges of this format"
    return Gap("kernel.layer", "not_available", reason)


def no_kernels(what: str) -> Gap:
    """``what`` says what the report has instead."""
    return Gap(
        "kernel", "not_collected", f"{what}: run rocprofv3 --kernel-trace for single launches"
    )


def shared(lds: int | None) -> tuple[int | None, int | None]:
    """(static, dynamic) bytes of LDS, of which the file gives the sum."""
    return lds, 0 if lds == 0 else None


def scratch(launch: int, size: int | None) -> Iterator[Counter]:
    """Scratch memory of a work-item, for which a kernel has no field; nothing where it is 0
    or unknown."""
    if size:
        yield Counter(launch, "Scratch_Size", size, "byte")


class Cells(NamedTuple):
    """One row: cells in the order of the header, and where each column stands."""

    row: list[str]
    at: Mapping[str, int]

    def text(self, *names: str) -> str:
        """The cell of the first of these columns that the file has; "" for none."""
        for name in names:
            if name in self.at:
                return self.row[self.at[name]]
        return ""


@lru_cache(maxsize=2)
def header_of(head: bytes) -> list[str]:
    """Names of the columns, from the first bytes of a file; [] where the first line is no CSV."""
    line = head.decode(encoding_of(head), "replace").splitlines()[:1]
    try:
        return next(csv.reader(line, strict=True), [])
    except csv.Error:
        return []


def read_header(path: Path) -> list[str]:
    """The same of a file; its first line may be long."""
    with path.open("rb") as file:
        return header_of(file.read(1 << 18))


def rows_of(path: Path) -> Iterator[Cells]:
    """Every row below the header. Raises ReportError, with the line, for a row that does not fit
    the header."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    with readable(path, ROCPROFV3), path.open("rb") as raw:
        encoding = encoding_of(raw.read(4096))
        raw.seek(-1, 2)
        whole = raw.read() in (b"\n", b"\r", b'"', b"\0")
    with (
        readable(path, ROCPROFV3),
        path.open(encoding=encoding, errors="replace", newline="") as file,
    ):
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, [])
            at: dict[str, int] = {}
            for position, name in enumerate(header):
                at.setdefault(name.strip(), position)
            for row in reader:
                if len(row) != len(header):
                    if not any(cell.strip() for cell in row):
                        continue
                    reason = (
                        f"line {reader.line_num} has {len(row)} of {len(header)} columns: the file "
                        "is cut off or damaged"
                    )
                    raise ReportError(path, ROCPROFV3, reason, AGAIN)
                if row == header:
                    raise repeated(path, ROCPROFV3, "the header", reader.line_num)
                yield Cells(row, at)
            if not whole:  # else a number that was cut short would pass for another one
                reason = f"line {reader.line_num}, the last, has no end: the file is cut off"
                raise ReportError(path, ROCPROFV3, reason, AGAIN)
        except csv.Error as error:
            reason = (
                f"line {reader.line_num} is no complete CSV ({error}): the file is cut off or "
                "damaged"
            )
            raise ReportError(path, ROCPROFV3, reason, AGAIN) from error
