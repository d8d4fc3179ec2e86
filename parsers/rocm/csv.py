"""CSV files of rocprofv3: ``[PREFIX_]kernel_trace.csv``, ``counter_collection``,
``memory_copy_trace``, ``hip_api_trace`` and the traces of other interfaces, ``agent_info``,
``*_stats``. Files of one prefix in one folder are one report, read from its first file in the order
of KINDS.

``counter_collection`` has one row for each launch and counter, with the launch's times on each. Its
launches and those of ``kernel_trace`` are the same only where dispatch and name agree, as in files
of one process. Launches are read anew for each iteration. Seen: ROCm 6.2 to 7.1.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any

from perfctl.parsers.common.doubts import SOURCE, numbering, repeated
from perfctl.parsers.common.numbers import read_real
from perfctl.parsers.common.tables import Column, Table, ends_with_line, read_csv, read_header
from perfctl.parsers.rocm.records import (
    AGAIN,
    ROCPROFV3,
    SERIAL,
    Calls,
    Rows,
    clean_name,
    find_missing,
    make_copy,
    make_counter,
    make_device,
    make_kernel,
    make_scratch,
    order_devices,
    read_span,
    read_stamp,
)
from perfctl.records.errors import ReportError
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

STATS = ("Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage")
"""The first columns of sums; MinNs, MaxNs and StdDev follow."""
KINDS: dict[str, frozenset[str]] = {
    "kernel_trace": frozenset(("Kernel_Name", "Start_Timestamp", "End_Timestamp", "Grid_Size_X")),
    "counter_collection": frozenset(
        ("Dispatch_Id", "Kernel_Name", "Counter_Name", "Counter_Value")
    ),
    "memory_copy_trace": frozenset(
        ("Kind", "Direction", "Source_Agent_Id", "Destination_Agent_Id")
    ),
    "api_trace": frozenset(
        ("Domain", "Function", "Process_Id", "Start_Timestamp", "End_Timestamp")
    ),
    "memory_allocation_trace": frozenset(("Kind", "Operation", "Allocation_Size")),
    "scratch_memory_trace": frozenset(("Kind", "Operation", "Alloc_Flags")),
    "stats": frozenset((*STATS, "MinNs", "MaxNs")),
    "agent_info": frozenset(("Node_Id", "Logical_Node_Id", "Agent_Type")),
}
"""Kind of file -> columns that only it has together."""
_NOT_READ = {
    "memory_allocation_trace": "allocations of memory",
    "scratch_memory_trace": "allocations of scratch memory",
}
_SUFFIX = re.compile(
    "(?P<prefix>(?:.*_)?)(?:kernel_trace|counter_collection|memory_copy_trace|(?:hip|hsa|marker|"
    "rccl|rocdecode|rocjpeg|ompt)_api_trace|memory_allocation_trace|scratch_memory_trace|agent_info"
    "|(?:kernel|domain|memory_copy|memory_allocation|(?:hip|hsa|marker|rccl|rocdecode|rocjpeg)"
    r"_api)_stats)\.csv\Z"
)
_API_NAME = re.compile(r"(__)?hip[A-Z]\w*\Z|hsa_\w+\Z|roctx\w+\Z|nccl[A-Z]\w*\Z|rccl\w*\Z")
_STATS_API = re.compile(
    r"(hip|hsa|marker|rccl|roctx|rocdecode|rocjpeg)(?:_api)?(?:_trace)?_stats\Z"
)
_AGENT = re.compile(r"(?:(?P<kind>Agent|GPU|CPU) )?(?P<number>\d{1,6})\Z")

_TIMES = (
    Column("Start_Timestamp", "ns", "start", read_stamp),
    Column("End_Timestamp", "ns", "end", read_stamp),
    Column("Correlation_Id", field="correlation", read=str),
    Column("Process_Id", field="process", read=str),
)
_LAUNCH = (
    *_TIMES,
    Column("Dispatch_Id", field="dispatch"),
    Column("Kernel_Name", field="name", read=str),
    Column("Agent_Id", field="agent", read=str),
    Column("Stream_Id", field="stream", also=("Queue_Id",)),
    # counter_collection has only the product of the three sizes
    Column("Grid_Size_X", field="items_x", also=("Grid_Size",)),
    Column("Grid_Size_Y", field="items_y"),
    Column("Grid_Size_Z", field="items_z"),
    Column("Workgroup_Size_X", field="block_x", also=("Workgroup_Size",)),
    Column("Workgroup_Size_Y", field="block_y"),
    Column("Workgroup_Size_Z", field="block_z"),
    Column("VGPR_Count", field="vgprs"),
    Column("Accum_VGPR_Count", field="accvgprs"),
    Column("LDS_Block_Size", "byte", "lds", also=("Group_Segment_Size",)),
    Column("Scratch_Size", "byte", "scratch", also=("Private_Segment_Size",)),
    Column("Counter_Name", field="counter", read=str),
    Column("Counter_Value", field="value", read=str),
)
_CALL = (
    *_TIMES,
    Column("Domain", field="domain", read=str),
    Column("Function", field="name", read=str),
    Column("Thread_Id", field="thread"),
)
_COPY = (
    *_TIMES,
    Column("Direction", field="kind", read=str),
    Column("Source_Agent_Id", field="source", read=str),
    Column("Destination_Agent_Id", field="target", read=str),
    Column("Stream_Id", field="stream"),
    Column("Size", "byte", "bytes", also=("Bytes",)),
)
_SUM = (
    Column("Name", field="name", read=str),
    Column("Calls", field="calls"),
    Column("TotalDurationNs", "ns", "total"),
    Column("MinNs", "ns", "Min", read_real),
    Column("MaxNs", "ns", "Max", read_real),
    Column("StdDev", "ns", "StdDev", read_real),
)
_AGENT_INFO = (
    Column("Node_Id", field="node"),
    Column("Logical_Node_Id", field="logical"),
    Column("Agent_Type", field="type", read=str),
    Column("Name", field="name", read=str),
    Column("Product_Name", field="product", read=str),
    Column("Cu_Count", field="cu_count"),
    Column("Max_Engine_Clk_Fcompute", field="max_engine_clk_fcompute"),
)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the columns are those of one of the kinds."""
    return not path.is_dir() and kind_of(read_header(head)) is not None


def kind_of(header: Iterable[str]) -> str | None:
    """Return a key of KINDS; None for other columns."""
    names = set(header)
    return next((kind for kind, columns in KINDS.items() if columns <= names), None)


def leader(path: Path) -> Path:
    """Return the file from which the report is read that ``path`` is part of."""
    files = _group(_find_siblings(path))
    return next((file for kind in KINDS for file in files[kind]), path)


def _find_siblings(path: Path) -> list[Path]:
    """Return the files of the same folder and prefix, ``path`` among them."""
    prefix = _read_prefix(path)
    if prefix is None:
        return [path]
    return [file for file in path.parent.iterdir() if _read_prefix(file) == prefix]


def _read_prefix(path: Path) -> str | None:
    match = _SUFFIX.match(path.name)
    return match["prefix"] if match else None


def _group(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Return each kind with its files, sorted."""
    files: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in sorted(paths):
        if path.is_file():
            with path.open("rb") as file:
                kind = kind_of(read_header(file.read(1 << 18)))
            if kind:
                files[kind].append(path)
    return files


def read_rows(path: Path, columns: Iterable[Column]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, fields) of every row below the header. Raises ReportError, with the line, for a
    row that does not fit the header."""
    rows = read_csv(path, ROCPROFV3, AGAIN)
    line, header = next(rows, (0, []))
    table = Table(columns, header)
    for line, cells in rows:
        if len(cells) != len(header):
            reason = f"line {line} has {len(cells)} of {len(header)} columns: the file is cut off"
            raise ReportError(path, ROCPROFV3, reason, AGAIN)
        if cells == header:
            raise repeated(path, ROCPROFV3, "the header", line)
        yield line, table.read(cells)
    if not ends_with_line(path, b'"'):  # else a number that was cut short would pass for another
        reason = f"line {line}, the last, has no end: the file is cut off"
        raise ReportError(path, ROCPROFV3, reason, AGAIN)


class _Agents:
    """The GPUs, and the agents that ran kernels."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.devices: dict[int, Device] = {}
        """GPUs by index, from agent_info.csv."""
        self.seen: set[int] = set()
        """Numbers of agents that ran kernels."""
        nodes, logical = dict[int, int](), dict[int, int]()
        for file in files:
            for _, row in read_rows(file, _AGENT_INFO):
                if row["type"].upper() == "GPU" and row["node"] is not None:
                    index = nodes[row["node"]] = logical[row["logical"]] = len(self.devices)
                    self.devices[index] = make_device(index, row["name"], row["product"], row)
        self._by_number = logical | nodes

    def add(self, agent: str | None) -> None:
        """Note an agent that ran kernels."""
        match = _AGENT.match((agent or "").strip())
        if match and match["kind"] != "CPU":
            self.seen.add(int(match["number"]))

    def ordinal(self, agent: str | None) -> int | None:
        """Return the device of "Agent 1", "1" or "GPU 0"; without agent_info.csv the agents that
        were seen are counted from 0."""
        match = _AGENT.match((agent or "").strip())
        if match is None or match["kind"] == "CPU":
            return None
        number = int(match["number"])
        if match["kind"] == "GPU":
            return number
        if self.devices:
            return self._by_number.get(number)
        return sorted(self.seen).index(number) if number in self.seen else None

    def order(self) -> tuple[Device, ...]:
        """Return the devices, those that ran kernels first."""
        used = {self.ordinal(f"Agent {number}") for number in self.seen}
        unnamed = {index: Device(None, "gpu", index) for index in range(len(self.seen))}
        return order_devices(self.devices or unnamed, used)


class _Launches:
    """The launches of ``kernel_trace``, else of ``counter_collection``. A first pass checks all
    rows."""

    def __init__(self, trace: list[Path], counts: list[Path], agents: _Agents) -> None:
        self.trace, self.counts, self.agents = trace[:1], counts[:1], agents
        self.count = 0
        self.has_lds = self.has_scratch = False
        self._dispatches: list[int] = []
        self._numbers: dict[tuple[object, object], int] = {}
        """Key of a row -> launch; of files with counters."""
        self._counters_of: Tally[int | None] = Tally()
        """Launch -> its counters; None for rows of no launch."""
        first, last = inf, -inf
        for row in self._rows():
            start, duration = read_span(row)
            if start is not None:
                first, last = min(first, start), max(last, start + round(duration or 0))
            self.has_lds |= bool(row["lds"])
            self.has_scratch |= bool(row["scratch"])
            agents.add(row["agent"])
            if row["dispatch"] is not None:
                self._dispatches.append(row["dispatch"])
            if counts:
                self._numbers[self._key(row)] = self.count
            self.count += 1
        self.duration_ns = round(last - first) if last >= first else None
        for file in self.counts:
            for _, row in read_rows(file, _LAUNCH):
                self._counters_of[self._numbers.get(self._key(row))] += 1

    def _key(self, row: dict[str, Any]) -> tuple[object, object]:
        return row["dispatch"], row["name" if self.trace else "process"]

    def _rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per launch."""
        seen: set[object] = set()
        for file in self.trace or self.counts:
            for _, row in read_rows(file, _LAUNCH):
                if self.trace:
                    yield row
                elif (key := self._key(row)) not in seen:
                    seen.add(key)
                    yield row

    def kernels(self) -> Iterator[Kernel]:
        for launch, row in enumerate(self._rows()):
            yield make_kernel(launch, row["name"], self.agents.ordinal(row["agent"]), row)

    def counters(self) -> Iterator[Counter]:
        for launch, row in enumerate(self._rows()) if self.has_scratch else ():
            yield from make_scratch(launch, row["scratch"])
        for file in self.counts:
            for _, row in read_rows(file, _LAUNCH):
                if (number := self._numbers.get(self._key(row))) is not None:
                    yield make_counter(number, row["counter"], row["value"])

    def gaps(self) -> Iterator[Gap]:
        if self.has_lds:
            reason = "the file gives static and dynamic LDS as one sum, kept as the static one"
            yield Gap("kernel.dynamic_shared_bytes", "ambiguous", reason)
        if self.count and not self.trace:
            reason = (
                "the file gives only the product of a grid's three sizes: grid_x is the number of "
                "work-groups in all, block_x that of work-items in one"
            )
            yield Gap("kernel.grid_y", "not_available", reason)
        if unmatched := self._counters_of[None]:
            reason = f"{unmatched} rows of counters are of launches that the trace does not have"
            yield Gap("counter", "not_available", reason)
        if self.count and not self.agents.devices:
            reason = (
                "no agent_info.csv is here, so agents are counted from 0; name the GPU with "
                "perfctl ingest --device-name"
            )
            yield Gap("device.name", "not_available", reason)

    def diagnostics(self) -> Iterator[Diagnostic]:
        """Yield which launches are missing, and which have fewer counters than most."""
        if self.counts:
            yield SERIAL
        why = "left out by a filter of the profiler, or lost"
        yield from numbering("launches with the dispatch IDs", self._dispatches, why=why)
        if self._counters_of and not self.trace:
            usual, _ = Tally(self._counters_of.values()).most_common(1)[0]
            fewer = [launch for launch, count in self._counters_of.items() if count < usual]
            if fewer:
                text = (
                    f"{len(fewer)} launches have fewer counters than the others ({usual}), first "
                    f"launch {fewer[0]}"
                )
                yield Diagnostic("warning", SOURCE, text)


def parse(path: Path) -> Report:
    """Read the file and those of its prefix beside it. Raises ReportError when one is cut off
    or malformed."""
    files = _group(_find_siblings(path) if leader(path) == path else [path])
    names = [file.stem for group in files.values() for file in group]
    if not names:
        raise ReportError(path, ROCPROFV3, "no CSV file of rocprofv3", AGAIN)
    agents = _Agents(files["agent_info"])
    launches = _Launches(files["kernel_trace"], files["counter_collection"], agents)
    operations, ranges = _read_calls(files["api_trace"])
    figures: list[Summary] = []
    if not launches.count and not operations:
        operations, figures = _read_sums(files["stats"])
    copies = [
        make_copy(row["kind"], agents.ordinal(row["target"]), agents.ordinal(row["source"]), row)
        for file in files["memory_copy_trace"]
        for _, row in read_rows(file, _COPY)
    ]
    prefix = _read_prefix(path) or ""
    return Report(
        tool=ROCPROFV3,
        path=path,
        form=f"rocprofv3 CSV: {', '.join(name.removeprefix(prefix) for name in names)}",
        devices=agents.order(),
        kernels=Rows(launches.kernels),
        counters=Rows(launches.counters),
        copies=copies,
        ranges=ranges,
        operations=operations,
        summaries=tuple(figures),
        gaps=(
            *launches.gaps(),
            *find_missing(
                has_kernels=launches.count > 0,
                has_ranges=bool(ranges),
                has_copies=bool(copies),
                has_counters=bool(launches.counts),
            ),
            *_find_left_out(files, copies),
        ),
        diagnostics=tuple(launches.diagnostics()),
        duration_ns=launches.duration_ns,
    )


def _read_calls(files: Iterable[Path]) -> tuple[list[Operation], list[Range]]:
    """Return the sums of API calls, and the ROCTx ranges."""
    calls, ranges = Calls(), list[Range]()
    for file in files:
        for line, row in read_rows(file, _CALL):
            start, duration = read_span(row)
            name, domain = row["name"], row["domain"]
            if start is None or duration is None:
                reason = f"line {line}: a call of {name[:60]} has no times"
                raise ReportError(file, ROCPROFV3, reason, AGAIN)
            length, thread = round(duration), row["thread"]
            if "MARKER" in domain:
                ranges.append(Range(len(ranges), name, "roctx", start, length, thread, None, None))
            else:
                calls.add(domain, name, length)
    return calls.operations(), ranges


def _read_sums(files: list[Path]) -> tuple[list[Operation], list[Summary]]:
    """Return the rows of the files of sums; those of whole domains only if there is nothing
    else."""
    operations, figures = list[Operation](), list[Summary]()
    for file in files:
        if file.name.endswith("domain_stats.csv") and len(files) > 1:
            continue
        rows = list(read_rows(file, _SUM))
        kind = _find_stats_kind(file, [row["name"] for _, row in rows])
        for line, row in rows:
            name, calls, total = clean_name(row["name"]), row["calls"], row["total"]
            if calls is None or total is None:
                reason = f"line {line}: {name[:60]} has no whole number of calls or ns"
                raise ReportError(file, ROCPROFV3, reason, AGAIN)
            host, on_gpu = (total, None) if kind.endswith("_api") else (None, total)
            operations.append(Operation(name, kind, calls, host, None, on_gpu, None, None))
            for label in ("Min", "Max", "StdDev"):
                if (value := row[label]) is not None:
                    figures.append(Summary(f"{kind}:{name}:{label}", float(value), "ns"))
    return operations, figures


def _find_stats_kind(path: Path, names: list[str]) -> str:
    """Return "hip_api", "copy" or "kernel" of a table of sums."""
    stem = path.name.lower().removesuffix(".csv").replace(".", "_")
    if match := _STATS_API.search(stem):
        return f"{match[1]}_api"
    for kind in ("copy", "domain", "allocation"):
        if stem.endswith(f"{kind}_stats"):
            return kind
    return "hip_api" if names and all(map(_API_NAME.match, names)) else "kernel"


def _find_left_out(files: dict[str, list[Path]], copies: list[Copy]) -> Iterator[Gap]:
    if copies and all(copy.bytes is None for copy in copies):
        reason = "memory_copy_trace.csv states no sizes; results.db of rocprofv3 does"
        yield Gap("copy.bytes", "not_available", reason)
    for kind, what in _NOT_READ.items():
        for file in files[kind]:
            count = sum(1 for _ in read_rows(file, ()))
            reason = f"{what} are not read: {count:,} rows of {file.name}"
            yield Gap(kind, "not_available", reason)
