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
from pathlib import Path
from typing import Any

from perfctl.parsers.common.doubts import (
    SOURCE,
    SeveralRunsError,
    make_missing_numbers_warning,
    make_repeated_part_error,
    split_words,
)
from perfctl.parsers.common.numbers import parse_integer, parse_real
from perfctl.parsers.common.tables import (
    FieldColumn,
    RowReader,
    has_complete_last_line,
    iterate_csv_rows,
    nonempty_text_or_none,
    read_csv_header,
)
from perfctl.parsers.rocm.records import (
    AGAIN,
    COPY,
    LAUNCH,
    ROCPROFV3,
    TIMES,
    RereadRecords,
    RocmRecording,
    make_copy,
    make_counter,
    make_kernel,
    make_scratch_memory_counter,
    read_start_and_duration_ns,
    strip_kernel_descriptor_suffix,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import (
    Counter,
    Device,
    Diagnostic,
    Gap,
    Kernel,
    Operation,
    Report,
    Summary,
    pluralize_count,
)

STATS = ("Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage")
"""The first columns of sums; MinNs, MaxNs and StdDev follow."""
KINDS = {
    "kernel_trace": split_words("Kernel_Name Start_Timestamp End_Timestamp Grid_Size_X"),
    "counter_collection": split_words("Dispatch_Id Kernel_Name Counter_Name Counter_Value"),
    "memory_copy_trace": split_words("Kind Direction Source_Agent_Id Destination_Agent_Id"),
    "api_trace": split_words("Domain Function Process_Id Start_Timestamp End_Timestamp"),
    "memory_allocation_trace": split_words("Kind Operation Allocation_Size"),
    "scratch_memory_trace": split_words("Kind Operation Alloc_Flags"),
    "stats": frozenset((*STATS, "MinNs", "MaxNs")),
    "agent_info": split_words("Node_Id Logical_Node_Id Agent_Type"),
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
_STATS_KIND = re.compile(
    r"(domain|copy|allocation|(?:hip|hsa|marker|rccl|rocdecode|rocjpeg)_api)_stats\.csv\Z"
)
_AGENT = re.compile(r"(?:Agent |(?P<is_gpu>GPU ))?(?P<number>\d{1,6})\Z")
_PRODUCTS = {"Grid_Size": "Grid_Size_X", "Workgroup_Size": "Workgroup_Size_X"}
"""Columns of counter_collection, which has only the product of the three sizes."""

_COUNTED = (
    *LAUNCH,
    FieldColumn("Process_Id", field="process", read=str),
    FieldColumn("Counter_Name", field="counter", read=str),
    FieldColumn("Counter_Value", field="value", read=str),
)
_CALL = (
    *TIMES,
    FieldColumn("Domain", field="domain", read=str),
    FieldColumn("Function", field="name", read=str),
    FieldColumn("Thread_Id", field="thread"),
)
_SUM = (
    FieldColumn("Name", field="name", read=str),
    FieldColumn("Calls", field="calls"),
    FieldColumn("TotalDurationNs", "ns", "total"),
    FieldColumn("MinNs", "ns", "Min", parse_real),
    FieldColumn("MaxNs", "ns", "Max", parse_real),
    FieldColumn("StdDev", "ns", "StdDev", parse_real),
)
_AGENT_INFO = tuple(
    FieldColumn(name, field=name.lower(), read=nonempty_text_or_none)
    for name in (
        "Node_Id",
        "Logical_Node_Id",
        "Agent_Type",
        "Name",
        "Product_Name",
        "Cu_Count",
        "Max_Engine_Clk_Fcompute",
    )
)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the columns are those of one of the kinds."""
    return not path.is_dir() and find_kind_by_header(read_csv_header(head)) is not None


def find_kind_by_header(header: Iterable[str]) -> str | None:
    """Return a key of KINDS; None for other columns."""
    names = set(header)
    return next((kind for kind, columns in KINDS.items() if columns <= names), None)


def find_leading_file(path: Path) -> Path:
    """Return the file from which the report is read that ``path`` is part of."""
    files = _find_files_of_report(path)
    return next((file for kind in KINDS for file in files[kind]), path)


def _find_files_of_report(path: Path) -> dict[str, list[Path]]:
    """Return each kind with its files of the same folder and prefix, sorted; ``path`` is among
    them."""
    prefix = _parse_report_prefix(path)
    paths = [path] if prefix is None else sorted(path.parent.iterdir())
    return _group_files_by_kind(file for file in paths if _parse_report_prefix(file) == prefix)


def _parse_report_prefix(path: Path) -> str | None:
    match = _SUFFIX.match(path.name)
    return match["prefix"] if match else None


def _group_files_by_kind(paths: Iterable[Path]) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in filter(Path.is_file, paths):
        with path.open("rb") as file:
            kind = find_kind_by_header(read_csv_header(file.read(1 << 18)))
        if kind:
            files[kind].append(path)
    return files


def iterate_row_fields(
    path: Path, columns: Iterable[FieldColumn]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, fields) of every row below the header; of a file without a line end the last
    cell is left out, because a number that was cut short would pass for another. Raises
    ReportError, with the line, for a row that does not fit the header."""
    rows = iterate_csv_rows(path, ROCPROFV3, AGAIN)
    line, header = next(rows, (0, []))
    table = RowReader(columns, [_PRODUCTS.get(name, name) for name in header])
    following = next(rows, None)
    while following is not None:
        (line, cells), following = following, next(rows, None)
        if following is None and not has_complete_last_line(path, b'"'):
            cells = [*cells[:-1], ""]
        if len(cells) != len(header):
            reason = f"line {line} has {len(cells)} of {len(header)} columns: the file is truncated"
            raise ReportError(path, ROCPROFV3, reason, AGAIN)
        if cells == header:
            raise make_repeated_part_error(path, ROCPROFV3, "the header", line)
        yield line, table.convert_row(cells)


def _iterate_rows_or_record_gap(
    path: Path, columns: Iterable[FieldColumn], recording: RocmRecording
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file beside the launches. What is wrong with it becomes a gap: the
    launches are right all the same."""
    try:
        for _, row in iterate_row_fields(path, columns):
            yield row
    except ReportError as error:
        if isinstance(error, SeveralRunsError) and path == recording.path:
            raise  # the outputs that it holds are read one by one
        recording.broken.add(path)
        recording.gaps.append(Gap("rocprofv3 row", "unreadable", f"{path.name}: {error.reason}"))


class _AgentOrdinals:
    """Finds the ordinals of GPUs, which the files name by the number of their agent."""

    def __init__(self, files: Iterable[Path], recording: RocmRecording) -> None:
        self._recording = recording
        logical, nodes = dict[int | None, int](), dict[int | None, int]()
        for file in files:
            for row in _iterate_rows_or_record_gap(file, _AGENT_INFO, recording):
                if str(row["agent_type"]).upper() == "GPU":
                    index = len(recording.devices)
                    logical[parse_integer(row["logical_node_id"])] = index
                    nodes[parse_integer(row["node_id"])] = index
                    recording.add_gpu(index, row)
        self._ordinals = logical | nodes

    def register_agents_with_kernels(self, agents: Iterable[str]) -> None:
        """Note the agents that ran kernels; without agent_info.csv they are counted from 0."""
        if not self._recording.devices:
            numbers = sorted(int(match["number"]) for match in map(_AGENT.match, agents) if match)
            self._ordinals = {number: index for index, number in enumerate(numbers)}
        for agent in agents:
            if (index := self.find_gpu_ordinal(agent)) is not None:
                self._recording.devices.setdefault(index, Device(None, "gpu", index))
                self._recording.used.add(index)

    def find_gpu_ordinal(self, agent: str | None) -> int | None:
        """Return the ordinal of "Agent 1", "1" or "GPU 0"."""
        match = _AGENT.match((agent or "").strip())
        if match is None:
            return None
        number = int(match["number"])
        return number if match["is_gpu"] else self._ordinals.get(number)


class _LaunchFiles:
    """The launches of ``kernel_trace``, else of ``counter_collection``, and their counters. They
    are read anew for each iteration; a first pass checks all rows."""

    def __init__(self, trace: list[Path], counts: list[Path], agents: _AgentOrdinals) -> None:
        self._trace, self._counts, self._agents = trace, counts, agents
        self._numbers: dict[object, int] = {}
        """Key of a row -> launch; of files with counters."""
        self._dispatches: list[int] = []
        self.count = 0
        self._has_lds = self._has_scratch = False
        self._untimed = self.start = self.end = 0
        """First start and last end in ns."""
        used = set[str]()
        for row in self._iterate_launch_rows():
            start, duration = read_start_and_duration_ns(row)
            if start is not None:
                self.start = min(self.start or start, start)
                self.end = max(self.end, start + round(duration or 0))
            self._untimed += duration is None
            self._has_lds |= bool(row["lds"])
            self._has_scratch |= bool(row["scratch"])
            used.add((row["agent"] or "").strip())
            if row["dispatch"] is not None:
                self._dispatches.append(row["dispatch"])
            self.count += 1
        agents.register_agents_with_kernels(used)
        self._counters_of = Tally(number for number, _ in self._iterate_counter_rows())
        """Launch -> number of its counters; None for rows of no launch."""

    def _get_launch_key(self, row: dict[str, Any]) -> object:
        return row["dispatch"], row["name" if self._trace else "process"]

    def _iterate_launch_rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per launch."""
        launch = 0
        for file in self._trace or self._counts:
            for _, row in iterate_row_fields(file, _COUNTED):
                number = launch
                if self._counts:
                    number = self._numbers.setdefault(self._get_launch_key(row), launch)
                if self._trace or number == launch:
                    launch += 1
                    yield row

    def read_kernels(self) -> Iterator[Kernel]:
        for launch, row in enumerate(self._iterate_launch_rows()):
            yield make_kernel(launch, self._agents.find_gpu_ordinal(row["agent"]), row)

    def _iterate_counter_rows(self) -> Iterator[tuple[int | None, dict[str, Any]]]:
        """Yield the launch of each row of counters; None if the trace does not have it."""
        for file in self._counts:
            for _, row in iterate_row_fields(file, _COUNTED):
                yield self._numbers.get(self._get_launch_key(row)), row

    def read_counters(self) -> Iterator[Counter]:
        for launch, row in enumerate(self._iterate_launch_rows()) if self._has_scratch else ():
            yield from make_scratch_memory_counter(launch, row)
        for number, row in self._iterate_counter_rows():
            if number is not None:
                yield make_counter(number, row["counter"], row["value"])

    def describe_missing_data(self) -> Iterator[Gap]:
        if self._has_lds:
            reason = "the file states static and dynamic LDS as one sum, stored as static LDS"
            yield Gap("kernel.dynamic_shared_bytes", "ambiguous", reason)
        if self.count and not self._trace:
            reason = (
                "the file gives only the product of a grid's three sizes: grid_x is the number of "
                "work-groups in all, block_x that of work-items in one"
            )
            yield Gap("kernel.grid_y", "not_available", reason)
        if self._untimed:
            reason = (
                f"{self._untimed:,} of {self.count:,} launches have no start and end in whole ns "
                "(a spreadsheet rounds them to 3.42E+14)"
            )
            yield Gap("kernel.duration_ns", "not_available", reason)
        if unmatched := self._counters_of[None]:
            rows = pluralize_count(unmatched, "row")
            reason = f"{rows} of counters for launches that the trace does not have"
            yield Gap("counter", "not_available", reason)

    def warn_missing_launches_and_counters(self) -> Iterator[Diagnostic]:
        """Yield which launches are missing, and which have fewer counters than most."""
        reason = "excluded by a filter of the profiler, or lost"
        yield from make_missing_numbers_warning(
            "launches with the dispatch IDs", self._dispatches, reason=reason
        )
        if self._counters_of and not self._trace:
            usual, _ = Tally(self._counters_of.values()).most_common(1)[0]
            fewer = [launch for launch, count in self._counters_of.items() if count < usual]
            if fewer:
                launches = pluralize_count(len(fewer), "launch", "has", "have")
                text = (
                    f"{launches} fewer counters than the others ({usual}), first launch {fewer[0]}"
                )
                yield Diagnostic("warning", SOURCE, text)


def parse(path: Path) -> Report:
    """Read the file and those of its prefix beside it. Raises ReportError when one is cut off
    or malformed."""
    files = (
        _find_files_of_report(path)
        if find_leading_file(path) == path
        else _group_files_by_kind([path])
    )
    prefix = _parse_report_prefix(path) or ""
    names = [file.stem.removeprefix(prefix) for group in files.values() for file in group]
    if not names:
        raise ReportError(path, ROCPROFV3, "no CSV file of rocprofv3", AGAIN)
    recording = RocmRecording(path, f"rocprofv3 CSV: {', '.join(names)}")
    agents = _AgentOrdinals(files["agent_info"], recording)
    launches = _LaunchFiles(files["kernel_trace"], files["counter_collection"], agents)
    recording.kernels = RereadRecords(launches.read_kernels) if launches.count else ()
    recording.counters = RereadRecords(launches.read_counters)
    recording.has_counters = bool(files["counter_collection"])
    recording.times.append((launches.start, launches.end))
    recording.copies = [
        make_copy(row, agents.find_gpu_ordinal)
        for file in files["memory_copy_trace"]
        for row in _iterate_rows_or_record_gap(file, COPY, recording)
    ]
    for file in files["api_trace"]:
        for row in _iterate_rows_or_record_gap(file, _CALL, recording):
            if "MARKER" in row["domain"]:
                recording.add_roctx_range(row["name"], row, row["thread"])
            else:
                recording.add_api_calls(
                    row["domain"], row["name"], read_start_and_duration_ns(row)[1]
                )
    for file in files["stats"] if not launches.count and not recording.calls else ():
        # sums of whole domains count only if there is nothing else
        if not file.name.endswith("domain_stats.csv") or len(files["stats"]) == 1:
            _add_summed_operations(file, recording)
    recording.gaps += launches.describe_missing_data()
    recording.gaps += _describe_missing_and_unread_files(files, recording)
    recording.diagnostics += launches.warn_missing_launches_and_counters()
    return recording.make_report()


def _add_summed_operations(file: Path, recording: RocmRecording) -> None:
    """Add the rows of a file of sums."""
    match = _STATS_KIND.search(file.name)
    kind = match[1] if match else "kernel"
    for line, row in iterate_row_fields(file, _SUM):
        name, calls, total = strip_kernel_descriptor_suffix(row["name"]), row["calls"], row["total"]
        if calls is None or total is None:
            reason = f"line {line}: {name[:60]} has no whole number of calls or ns"
            raise ReportError(file, ROCPROFV3, reason, AGAIN)
        host, on_gpu = (total, None) if kind.endswith("_api") else (None, total)
        operation = Operation(name, kind, calls, host, None, on_gpu, None, None)
        recording.operations.append(operation)
        recording.summaries += [
            Summary(f"{kind}:{name}:{label}", float(row[label]), "ns")
            for label in ("Min", "Max", "StdDev")
            if row[label] is not None
        ]


def _describe_missing_and_unread_files(
    files: dict[str, list[Path]], recording: RocmRecording
) -> Iterator[Gap]:
    if recording.kernels and not files["agent_info"]:
        reason = (
            "agent_info.csv is missing, so agents are counted from 0. Name the GPU with perfctl "
            "ingest --device-name"
        )
        yield Gap("device.name", "not_available", reason)
    if recording.copies and all(copy.bytes is None for copy in recording.copies):
        reason = "memory_copy_trace.csv states no sizes; use results.db of rocprofv3 for sizes"
        yield Gap("copy.bytes", "not_available", reason)
    for file in [file for group in files.values() for file in group]:
        if not has_complete_last_line(file, b'"') and file not in recording.broken:
            reason = (
                f"{file.name} ends without a line end: perfctl skipped its last number, which may "
                "go on"
            )
            yield Gap("rocprofv3 row", "not_available", reason)
    for kind, label in _NOT_READ.items():
        for file in files[kind]:
            count = sum(1 for _ in _iterate_rows_or_record_gap(file, (), recording))
            reason = f"perfctl does not read {label}: {count:,} rows of {file.name}"
            yield Gap(kind, "not_available", reason)
