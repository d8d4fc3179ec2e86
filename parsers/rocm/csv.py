"""CSV files of rocprofv3: ``[PREFIX_]kernel_trace.csv``, ``counter_collection``,
``memory_copy_trace``, ``hip_api_trace`` and the traces of other interfaces, ``agent_info``,
``*_stats``. Files of one prefix in one folder are one report, read from its first file in the order
of KINDS.

``counter_collection`` has one row for each launch and counter, with the launch's times on each. Its
launches and those of ``kernel_trace`` are the same only where dispatch and name agree, as in files
of one process. Seen: ROCm 6.2 to 7.1.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from perfctl.parsers.rocm.agreement import Repeats, of_sums
from perfctl.parsers.rocm.records import (
    AGAIN,
    LDS,
    ONE_SIZE,
    ROCPROFV3,
    SERIAL,
    Calls,
    Cells,
    api_domain,
    copy_kind,
    counter,
    device,
    groups,
    header_of,
    kernel_name,
    launched,
    no_kernels,
    no_layers,
    read_header,
    registers,
    rows_of,
    scratch,
    shared,
    span,
    whole,
)
from perfctl.parsers.text.doubts import numbering
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

R = TypeVar("R")
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
_AGENT = re.compile(r"(?:(?P<kind>Agent|GPU|CPU) )?(?P<number>\d{1,6})\Z")


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the columns are those of one of the kinds."""
    return not path.is_dir() and kind_of(header_of(head)) is not None


def kind_of(header: list[str]) -> str | None:
    """A key of KINDS; None for other columns."""
    return next((kind for kind, columns in KINDS.items() if columns.issubset(header)), None)


def leader(path: Path) -> Path:
    """The file from which the report is read that ``path`` is part of: itself where it
    stands alone."""
    files = _members(path)
    return next((one for kind in KINDS for one in files.get(kind, ())), path)


def _members(path: Path) -> dict[str, list[Path]]:
    """Kind -> files of the same folder and prefix, sorted, ``path`` among them."""
    named = _SUFFIX.match(path.name)
    beside = [path]
    if named:
        others = ((one, _SUFFIX.match(one.name)) for one in sorted(path.parent.iterdir()))
        beside = [
            one
            for one, other in others
            if other and other["prefix"] == named["prefix"] and one.is_file()
        ]
    found: dict[str, list[Path]] = {}
    for one in beside:
        if kind := kind_of(read_header(one)):
            found.setdefault(kind, []).append(one)
    return found


@dataclass(slots=True)
class _Agents:
    """GPUs by the numbers of their agents."""

    devices: dict[int, Device] = field(default_factory=dict)
    by_node: dict[int, int] = field(default_factory=dict)
    by_logical: dict[int, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    """Numbers of agents that ran kernels."""
    known: dict[str, int | None] = field(default_factory=dict)
    """What ``ordinal`` gave."""

    def ordinal(self, text: str) -> int | None:
        """Of "Agent 1", "1" or "GPU 0"; without agent_info.csv the agents that were seen are
        counted from 0."""
        if text not in self.known:
            self.known[text] = self._ordinal(text)
        return self.known[text]

    def _ordinal(self, text: str) -> int | None:
        found = _AGENT.match(text.strip())
        if found is None or found["kind"] == "CPU":
            return None
        number = int(found["number"])
        if found["kind"] == "GPU":
            return number
        if self.devices:
            return self.by_node.get(number, self.by_logical.get(number))
        return sorted(self.seen).index(number) if number in self.seen else None

    def note(self, text: str) -> None:
        """An agent that ran kernels."""
        if (found := _AGENT.match(text.strip())) and found["kind"] != "CPU":
            self.seen.add(int(found["number"]))

    def report(self) -> tuple[Device, ...]:
        """The GPUs, those that ran kernels first."""
        used = {self.ordinal(f"Agent {number}") for number in self.seen}
        found = self.devices or {
            place: Device(None, "gpu", place) for place in range(len(self.seen))
        }
        return tuple(sorted(found.values(), key=lambda one: (one.index not in used, one.index)))


def _agents(files: list[Path]) -> _Agents:
    found = _Agents()
    for path in files:
        for row in rows_of(path):
            node = whole(row.text("Node_Id"))
            if row.text("Agent_Type").upper() != "GPU" or node is None:
                continue
            place = len(found.devices)
            facts = {name.lower(): row.row[at] for name, at in row.at.items()}
            found.devices[place] = device(place, row.text("Name"), row.text("Product_Name"), facts)
            found.by_node[node] = place
            if (logical := whole(row.text("Logical_Node_Id"))) is not None:
                found.by_logical[logical] = place
    return found


class _Launches:
    """The launches of a report: of ``kernel_trace``, else of ``counter_collection``. One pass
    checks all rows."""

    def __init__(self, trace: Path | None, counts: Path | None, agents: _Agents) -> None:
        self.trace, self.counts, self.agents = trace, counts, agents
        self.count = self.unmatched = self.shared = self.scratched = 0
        agents_seen: set[str] = set()
        self.begin: int | None = None
        self.end: int | None = None
        self.repeats = Repeats()
        self.calls: Tally[str] = Tally()
        """Correlation id -> launches."""
        self._numbers: dict[tuple[str, str], int] = {}
        """(dispatch, name) -> launch; of counters alone (process, dispatch) -> launch."""
        for row in self._rows(self.repeats):
            begin, end = row.text("Start_Timestamp"), row.text("End_Timestamp")
            self.repeats.launch(
                row.text("Dispatch_Id"), row.text("Kernel_Id"), row.text("Kernel_Name"), begin, end
            )
            start, duration = span(begin, end)
            if start is not None:
                self.begin = min(start, self.begin if self.begin is not None else start)
                self.end = max(start + round(duration or 0), self.end or 0)
            self.shared += bool(whole(row.text("LDS_Block_Size", "Group_Segment_Size")))
            self.scratched += bool(whole(row.text("Scratch_Size", "Private_Segment_Size")))
            self.calls[row.text("Correlation_Id")] += 1
            agents_seen.add(row.text("Agent_Id"))
            if trace and counts:
                self._numbers[row.text("Dispatch_Id"), row.text("Kernel_Name")] = self.count
            self.count += 1
        for text in agents_seen:
            agents.note(text)
        if trace and counts:
            self.unmatched = sum(self._launch(row) is None for row in rows_of(counts))

    def _rows(self, repeats: Repeats | None = None) -> Iterator[Cells]:
        """One row a launch. ``repeats``: gets the counters of each, where only they name
        the launches."""
        if self.trace:
            yield from rows_of(self.trace)
        elif self.counts:
            for row in rows_of(self.counts):
                key = row.text("Process_Id"), row.text("Dispatch_Id")
                if key not in self._numbers:
                    self._numbers[key] = len(self._numbers)
                    yield row
                if repeats is not None:
                    repeats.counter(self._numbers[key], row.text("Counter_Name"))

    def _launch(self, row: Cells) -> int | None:
        second = "Kernel_Name" if self.trace else "Dispatch_Id"
        return self._numbers.get(
            (row.text("Dispatch_Id" if self.trace else "Process_Id"), row.text(second))
        )

    def kernels(self) -> Iterator[Kernel]:
        if not self.trace:
            self._numbers.clear()
        for launch, row in enumerate(self._rows()):
            if self.trace:
                block = [whole(row.text(f"Workgroup_Size_{axis}")) for axis in "XYZ"]
                grid = [
                    groups(whole(row.text(f"Grid_Size_{axis}")), size)
                    for axis, size in zip("XYZ", block, strict=True)
                ]
            else:
                size = whole(row.text("Workgroup_Size"))
                block, grid = (
                    [size, None, None],
                    [groups(whole(row.text("Grid_Size")), size), None, None],
                )
            yield launched(
                launch,
                row.text("Kernel_Name"),
                self.agents.ordinal(row.text("Agent_Id")),
                whole(row.text("Stream_Id", "Queue_Id")),
                *grid,
                *block,
                registers(whole(row.text("VGPR_Count")), whole(row.text("Accum_VGPR_Count"))),
                *shared(whole(row.text("LDS_Block_Size", "Group_Segment_Size"))),
                *span(row.text("Start_Timestamp"), row.text("End_Timestamp")),
            )

    def counters(self) -> Iterator[Counter]:
        if not self.trace:
            self._numbers.clear()
        for launch, row in enumerate(self._rows()) if self.scratched or not self.trace else ():
            yield from scratch(launch, whole(row.text("Scratch_Size", "Private_Segment_Size")))
        if self.counts:
            for row in rows_of(self.counts):
                if (number := self._launch(row)) is not None:
                    yield counter(number, row.text("Counter_Name"), row.text("Counter_Value"))

    def gaps(self) -> Iterator[Gap]:
        if not self.count:
            yield no_kernels("the files hold no launch")
            return
        if self.shared:
            yield LDS
        if not self.trace:
            yield ONE_SIZE
        if not self.counts:
            yield Gap(
                "counter",
                "not_collected",
                "no counter_collection.csv is here: rocprofv3 ran without counters (--pmc)",
            )
        if self.unmatched:
            reason = (
                f"{self.unmatched} rows of counters are of launches that the trace does not have"
            )
            yield Gap("counter", "not_available", reason)
        if not self.agents.devices:
            reason = (
                "no agent_info.csv is here, so agents are counted from 0; name the GPU with "
                "perfctl ingest --device-name"
            )
            yield Gap("device.name", "not_available", reason)


class _Rows(Generic[R]):
    """Calls ``read`` for each iteration."""

    def __init__(self, read: Callable[[], Iterator[R]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[R]:
        return self._read()


def parse(path: Path) -> Report:
    """Read the file and those of its prefix beside it. Raises ReportError when one is cut off
    or damaged."""
    files = _members(path)
    if leader(path) != path:
        files = {kind: [path] for kind in [kind_of(read_header(path))] if kind}
    if not files:
        raise ReportError(path, ROCPROFV3, "no CSV file of rocprofv3", AGAIN)
    agents = _agents(files.get("agent_info", []))
    trace, counts = (
        next(iter(files.get(kind, [])), None) for kind in ("kernel_trace", "counter_collection")
    )
    launches = _Launches(trace, counts, agents)
    calls, ranges, graphs = Calls(), list[Range](), set[str]()
    of_calls = [
        said for one in files.get("api_trace", []) for said in _calls(one, calls, ranges, graphs)
    ]
    operations, figures = list(calls.operations()), list[Summary]()
    doubts = [*launches.repeats.diagnostics(ordered=trace is None), *of_calls]
    if not launches.count and not operations:
        doubts += _sums(files.get("stats", []), operations, figures)
    said = [one.stem.removeprefix(_prefix(path)) for group in files.values() for one in group]
    return Report(
        tool=ROCPROFV3,
        path=path,
        form=f"rocprofv3 CSV: {', '.join(said)}",
        devices=agents.report(),
        kernels=_Rows(launches.kernels),
        counters=_Rows(launches.counters),
        copies=[
            copy for one in files.get("memory_copy_trace", []) for copy in _copies(one, agents)
        ],
        ranges=ranges,
        operations=operations,
        summaries=tuple(figures),
        gaps=(*launches.gaps(), *_gaps(files, launches.count, ranges)),
        diagnostics=(*_diagnostics(launches, graphs), *doubts),
        duration_ns=None
        if launches.begin is None or launches.end is None
        else launches.end - launches.begin,
    )


def _prefix(path: Path) -> str:
    named = _SUFFIX.match(path.name)
    return named["prefix"] if named else ""


def _calls(path: Path, calls: Calls, ranges: list[Range], graphs: set[str]) -> Iterator[Diagnostic]:
    """Yield what contradicts itself; each call has a correlation ID of its own."""
    ids: list[int] = []
    for row in rows_of(path):
        start, duration = span(row.text("Start_Timestamp"), row.text("End_Timestamp"))
        name, domain = row.text("Function"), row.text("Domain")
        if start is None or duration is None:
            raise ReportError(path, ROCPROFV3, f"a call of {name[:60]} has no times", AGAIN)
        if "MARKER" in domain:
            thread = whole(row.text("Thread_Id"))
            ranges.append(
                Range(len(ranges), name, "roctx", start, round(duration), thread, None, None)
            )
            continue
        calls.add(api_domain(domain), name, round(duration))
        if (number := whole(row.text("Correlation_Id"))) is not None:
            ids.append(number)
        if name == "hipGraphLaunch":
            graphs.add(row.text("Correlation_Id"))
    yield from numbering("calls with the correlation IDs", ids, gaps=False)


def _copies(path: Path, agents: _Agents) -> Iterator[Copy]:
    for row in rows_of(path):
        start, duration = span(row.text("Start_Timestamp"), row.text("End_Timestamp"))
        target, source = (
            agents.ordinal(row.text(f"{end}_Agent_Id")) for end in ("Destination", "Source")
        )
        place = target if target is not None else source
        length = None if duration is None else round(duration)
        size, stream = whole(row.text("Size", "Bytes")), whole(row.text("Stream_Id"))
        yield Copy(copy_kind(row.text("Direction")), size, start, length, None, place, stream)


def _sums(
    files: list[Path], operations: list[Operation], figures: list[Summary]
) -> Iterator[Diagnostic]:
    """Add the rows of the files of sums; yield what contradicts itself."""
    for one in files:
        if one.name.endswith("domain_stats.csv") and len(files) > 1:
            continue
        rows = list(rows_of(one))
        kind = _stats_kind(one, (row.text("Name") for row in rows))
        for row in rows:
            name = kernel_name(row.text("Name"))
            calls, total = whole(row.text("Calls")), whole(row.text("TotalDurationNs"))
            if calls is None or total is None:
                raise ReportError(
                    one,
                    ROCPROFV3,
                    f"the row of {name[:60]} has no whole number of calls or ns",
                    AGAIN,
                )
            host, on_gpu = (total, None) if kind.endswith("_api") else (None, total)
            operations.append(Operation(name, kind, calls, host, None, on_gpu, None, None))
            for column, label in (("MinNs", "Min"), ("MaxNs", "Max"), ("StdDev", "StdDev")):
                if column in row.at:
                    with suppress(ValueError):
                        figures.append(
                            Summary(f"{kind}:{name}:{label}", float(row.text(column)), "ns")
                        )
        yield from of_sums(
            rows, "Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage", "MinNs", "MaxNs"
        )


def _stats_kind(path: Path, names: Iterable[str]) -> str:
    """ "hip_api", "copy" or "kernel" of a table of sums."""
    stem = path.name.lower().removesuffix(".csv").replace(".", "_")
    if found := re.search(
        r"(hip|hsa|marker|rccl|roctx|rocdecode|rocjpeg)(?:_api)?(?:_trace)?_stats", stem
    ):
        return f"{found[1]}_api"
    for kind, ending in (
        ("copy", "copy_stats"),
        ("domain", "domain_stats"),
        ("allocation", "allocation_stats"),
    ):
        if stem.endswith(ending):
            return kind
    listed = list(names)
    return "hip_api" if listed and all(_API_NAME.match(name) for name in listed) else "kernel"


def _gaps(files: dict[str, list[Path]], launches: int, ranges: list[Range]) -> Iterator[Gap]:
    if launches:
        yield no_layers(bool(ranges))
    if "memory_copy_trace" in files:
        if not any(
            "Size" in read_header(one) or "Bytes" in read_header(one)
            for one in files["memory_copy_trace"]
        ):
            yield Gap(
                "copy.bytes",
                "not_available",
                "memory_copy_trace.csv states no sizes; results.db of rocprofv3 does",
            )
    else:
        yield Gap(
            "copy",
            "not_collected",
            "no memory_copy_trace.csv is here (rocprofv3 --memory-copy-trace)",
        )
    for kind, what in _NOT_READ.items():
        for one in files.get(kind, []):
            count = sum(1 for _ in rows_of(one))
            yield Gap(kind, "not_available", f"{what} are not read: {count:,} rows of {one.name}")


def _diagnostics(launches: _Launches, graphs: set[str]) -> Iterator[Diagnostic]:
    if launches.counts:
        yield SERIAL
    of_graphs = sum(launches.calls[call] for call in graphs)
    if launches.trace and of_graphs:
        text = (
            f"{of_graphs:,} of {launches.count:,} launches were launched by hipGraphLaunch (calls: "
            f"{len(graphs)})"
        )
        yield Diagnostic("info", "perfctl", text)
