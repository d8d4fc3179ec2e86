"""Reports of rocprof (versions 1 and 2): ``*.stats.csv``, ``results.csv``, ``results.db`` and ``results.json``.

The sums of kernels, copies and API calls have one and the same header, so the file's name or the functions' names tell
which it is. ``results.db`` (SQLite) has kernels in OPS; KERN, which seems to, may be empty. ``results.json`` is a Chrome
trace whose numbers are texts; its times are the arguments BeginNs and EndNs, since ``ts`` and ``dur`` are cut to whole
microseconds. In the database an operation has the number of the HIP call that started it, whose arguments state grids and
sizes; the trace joins them only by arrows, which can start in another call.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfctl.parsers.rocm.agreement import ChromeTimes, of_sums
from perfctl.parsers.rocm.records import (
    AGAIN,
    ROCPROF,
    Calls,
    copy_kind,
    kernel_name,
    launched,
    no_kernels,
    no_layers,
    span,
    whole,
)
from perfctl.parsers.rocm.tables import Cells, header_of, rows_of
from perfctl.parsers.text.doubts import contradictions
from perfctl.parsers.text.json import JsonStream, peek
from perfctl.parsers.text.lines import readable
from perfctl.parsers.text.sqlite import Database, check_whole, connect, opened
from perfctl.parsers.text.sqlite_checks import check
from perfctl.records.errors import ReportError
from perfctl.records.report import Copy, Device, Diagnostic, Gap, Kernel, Operation, Report, Summary
from perfctl.records.sqlite_header import is_sqlite

STATS = ("Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage")
"""The columns of sums; rocprofv3 adds MinNs, MaxNs and StdDev."""
_TABLES = {"OPS", "COPY", "HIP"}
_API_NAME = re.compile(r"(__)?hip[A-Z]\w*\Z|hsa_\w+\Z|roctx\w+\Z|nccl[A-Z]\w*\Z|rccl\w*\Z")
_THREE = r"\(?\{{z\((\d+)\) y\((\d+)\) x\((\d+)"
_GRID = re.compile(r"numBlocks" + _THREE.format())
_BLOCK = re.compile(r"dimBlocks" + _THREE.format())
_SHARED = re.compile(r"sharedMemBytes\((\d+)\)")
_BYTES = re.compile(r"sizeBytes\((\d+)\)")
_COPY_CALL = re.compile(r"hipMemcpy\w*\Z")
_MOVED = re.compile(r"sizeBytes\((\d{7,18})\) kind\([12]\)")
"""Arguments of a call that moves a megabyte or more between host and GPU; the CPU may move less by itself."""
_LAUNCH_CALL = re.compile(r"hip(?:Ext)?(?:Module)?Launch(?:Cooperative)?Kernel\Z")
_NOT_KERNELS = re.compile(r"<?(barrier|marker)[\w ]*>?\Z", re.IGNORECASE)
_GPU = re.compile(r"GPU(\d+)\Z")


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is one of the four."""
    if is_sqlite(head):
        return _is_database(path, head)
    if path.is_dir():
        return False
    text = peek(head).lstrip()
    if text.startswith("{"):
        return '"traceEvents"' in text and '"BeginNs"' in text
    return header_of(head) == list(STATS)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off or damaged."""
    with readable(path, ROCPROF, "Check its permissions"), path.open("rb") as file:
        head = file.read(1 << 16)
    if is_sqlite(head):
        return _database(path)
    return _trace(path) if peek(head).lstrip().startswith("{") else _stats(path)


def _is_database(path: Path, head: bytes) -> bool:
    try:
        with closing(connect(path)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not names >= _TABLES:
                return False
            columns = {row[1] for row in connection.execute('PRAGMA table_info("OPS")')}
            return {"BeginNs", "EndNs"} <= columns
    except (sqlite3.Error, OSError, UnicodeError):
        return b'"BeginNs" INTEGER' in head and b"CREATE TABLE" in head


def stats_kind(path: Path, names: Iterable[str]) -> str:
    """ "hip_api", "copy" or "kernel" of a table of sums."""
    stem = path.name.lower().removesuffix(".csv").replace(".", "_")
    if found := re.search(r"(hip|hsa|marker|rccl|roctx|rocdecode|rocjpeg)(?:_api)?(?:_trace)?_stats", stem):
        return f"{found[1]}_api"
    for kind, ending in (("copy", "copy_stats"), ("domain", "domain_stats"), ("allocation", "allocation_stats")):
        if stem.endswith(ending):
            return kind
    listed = list(names)
    return "hip_api" if listed and all(_API_NAME.match(name) for name in listed) else "kernel"


def sums(path: Path, tool: str) -> tuple[str, list[Operation], list[Summary], tuple[Diagnostic, ...]]:
    """(kind, operations, further figures, what contradicts itself) of a file of sums. Raises ReportError."""
    rows = list(rows_of(path, tool))
    kind = stats_kind(path, (row.text("Name") for row in rows))
    operations, figures = [], []
    for row in rows:
        name, calls, total = kernel_name(row.text("Name")), whole(row.text("Calls")), whole(row.text("TotalDurationNs"))
        if calls is None or total is None:
            raise ReportError(path, tool, f"the row of {name[:60]} has no whole number of calls or ns", AGAIN)
        host, device = (total, None) if kind.endswith("_api") else (None, total)
        operations.append(Operation(name, kind, calls, host, None, device, None, None))
        for column, label in (("MinNs", "Min"), ("MaxNs", "Max"), ("StdDev", "StdDev")):
            if column in row.at and (value := _figure(row, column)) is not None:
                figures.append(Summary(f"{kind}:{name}:{label}", value, "ns"))
    said = of_sums(rows, "Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage", "MinNs", "MaxNs")
    return kind, operations, figures, said


def _figure(row: Cells, column: str) -> float | None:
    try:
        return float(row.text(column))
    except ValueError:
        return None


def _stats(path: Path) -> Report:
    kind, operations, figures, said = sums(path, ROCPROF)
    what = {"kernel": "kernels", "copy": "copies"}.get(kind, f"{kind.removesuffix('_api').upper()} API calls")
    return Report(
        tool=ROCPROF,
        path=path,
        form=f"rocprof stats CSV, sums of {what}",
        operations=operations,
        summaries=tuple(figures),
        gaps=(
            no_kernels("the file has only sums by name"),
            Gap("copy", "not_collected", "the file has only sums by name"),
            Gap("device", "not_available", "the file names no GPU; give it with perfctl ingest --device-name"),
        ),
        diagnostics=said,
    )


class _Found:
    """Kernels, copies and calls of a trace, the operations sorted by their begin."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.arguments: dict[int, str] = {}
        """Number of an API call -> its arguments."""
        self._works: dict[str, set[int]] = {"kernel": set(), "copy": set()}
        """Numbers of the calls that start one."""
        self.work: list[tuple[int, int | float | None, str, int | None, int | None, int | None, bool]] = []
        """(start, duration, name, device, stream, number of its call, whether it is a copy)"""
        self.unread = 0
        self.others = 0

    def call(self, name: str, begin: object, end: object, number: object, arguments: object) -> None:
        start, duration = span(begin, end)
        if start is None or duration is None:
            self.unread += 1
            return
        self.calls.add("hip_api" if not name.startswith("hsa_") else "hsa_api", name, round(duration))
        if (key := whole(number)) is not None and isinstance(arguments, str):
            self.arguments[key] = arguments
            if _LAUNCH_CALL.match(name):
                self._works["kernel"].add(key)
            elif _COPY_CALL.match(name) and _MOVED.search(arguments):
                self._works["copy"].add(key)

    def operation(self, row: Mapping[str, Any], number: object, copy: bool) -> None:
        """A kernel or copy from BeginNs, EndNs, Name, dev-id, queue-id and stream-id."""
        start, duration = span(row.get("BeginNs"), row.get("EndNs"))
        name = row.get("Name")
        if start is None or not isinstance(name, str):
            self.unread += 1
        elif not copy and _NOT_KERNELS.match(name):
            self.others += 1
        else:
            place = whole(row.get("dev-id")), whole(row.get("stream-id")), whole(number)
            copy = copy or name.startswith(("CopyHost", "CopyDevice"))
            self.work.append((start, duration, name, *place, copy))

    def report(self, path: Path, form: str, gpus: Iterable[int] = ()) -> Report:
        self.work.sort(key=lambda one: one[0])
        kernels = [one for one in self.work if not one[-1]]
        used = {one[3] for one in self.work if one[3] is not None}
        indices = sorted(used | set(gpus), key=lambda index: (index not in used, index))
        gaps = [Gap("device.name", "not_available", "rocprof names no GPU; give it with perfctl ingest --device-name")]
        if kernels:
            gaps += no_layers(ranges=False)
            reason = "rocprof's trace has no registers"
            gaps.append(Gap("kernel.registers", "not_available", reason))
        else:
            gaps.append(Gap("kernel", "not_collected", "the trace has no kernel"))
        numbers = [number for *_, number, _ in self.work if number is not None]
        if lost := sum(number not in self.arguments for number in numbers):
            reason = f"{lost} of {len(self.work)} kernels and copies name a HIP call that is not in the file"
            gaps.append(Gap("rocprof row", "unreadable", f"{reason}, which would tell their sizes"))
        for what, calls in self._works.items():
            if numbers and (without := calls.difference(numbers)):
                reason = f"{len(without)} of {len(calls)} calls that start a {what} have none in the file"
                gaps.append(Gap(what, "not_available", f"{reason}: it ended after the profiler did, or was lost"))
        if self.unread:
            gaps.append(Gap("rocprof row", "unreadable", f"{self.unread} rows have no name or no times"))
        if self.others:
            gaps.append(
                Gap("barrier", "not_available", f"{self.others} barriers and markers are no kernels and were left out")
            )
        return Report(
            tool=ROCPROF,
            path=path,
            form=form,
            devices=tuple(Device(None, "gpu", index) for index in indices),
            kernels=[self._kernel(launch, *one[:6]) for launch, one in enumerate(kernels)],
            copies=[self._copy(*one[:6]) for one in self.work if one[-1]],
            operations=tuple(self.calls.operations()),
            gaps=tuple(gaps),
        )

    def _kernel(
        self, launch: int, start: int, duration: int | float | None, name: str, device: int | None, stream: int | None,
        number: int | None,
    ) -> Kernel:  # fmt: skip
        said = self.arguments.get(number, "") if number is not None else ""
        grid, block = _sizes(_GRID, said), _sizes(_BLOCK, said)
        shared = _SHARED.search(said)
        return launched(
            launch, name, device, stream, *grid, *block, None, None,
            int(shared[1]) if shared else None, start, duration,
        )  # fmt: skip

    def _copy(
        self, start: int, duration: int | float | None, name: str, device: int | None, stream: int | None,
        number: int | None,
    ) -> Copy:  # fmt: skip
        said = _BYTES.search(self.arguments.get(number, "")) if number is not None else None
        size = int(said[1]) if said and len(said[1]) < 19 else None
        length = None if duration is None else round(duration)
        return Copy(copy_kind(name), size, start, length, None, device, stream)


def _sizes(pattern: re.Pattern[str], text: str) -> tuple[int | None, int | None, int | None]:
    """x, y, z of "{z(1) y(1) x(3906250}": rocprof writes them backwards."""
    found = pattern.search(text)
    if not found or any(len(part) > 10 for part in found.groups()):
        return None, None, None
    return int(found[3]), int(found[2]), int(found[1])


def _database(path: Path) -> Report:
    with readable(path, ROCPROF, "Check its permissions"):
        check_whole(path, ROCPROF, AGAIN)
    found = _Found()
    with opened(path, ROCPROF, AGAIN) as database:
        columns = ("Name", "BeginNs", "EndNs", "dev-id", "stream-id", "Index")
        always = {
            "HIP": ("Name", "BeginNs", "EndNs", "Index", "args"),
            "OPS": columns,
            "COPY": ("Name", "BeginNs", "EndNs"),
        }
        damage = tuple(check(database, ("HIP", "OPS", "COPY"), always=always))
        for name, begin, end, number, arguments in _select(
            database, "HIP", "Name", "BeginNs", "EndNs", "Index", "args"
        ):
            found.call(str(name), begin, end, number, arguments)
        for table in ("OPS", "COPY"):
            for row in _select(database, table, *columns):
                found.operation(dict(zip(columns, row, strict=True)), row[-1], table == "COPY")
        doubts = _doubts(database)
    report = found.report(path, "rocprof database")
    return replace(report, gaps=(*damage, *report.gaps), diagnostics=doubts)


def _doubts(database: Database) -> tuple[Diagnostic, ...]:
    """Each row has its length beside its begin and end."""
    found = [database.deleted()]
    for table in sorted(_TABLES):
        if database.has(table, "BeginNs", "EndNs", "DurationNs"):
            query = f'SELECT count(*) FROM "{table}" WHERE EndNs - BeginNs <> DurationNs'
            (wrong,) = database.connection.execute(query).fetchone()
            found.append(f"{wrong} rows of {table} do not last from begin to end" if wrong else None)
    return contradictions([text for text in found if text])


def _select(database: Database, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Names with hyphens are quoted; what this version does not have reads as NULL."""
    wanted = (f'"{column}"' if database.has(table, column) else "NULL" for column in columns)
    yield from database.connection.execute(f'SELECT {", ".join(wanted)} FROM "{table}"')


def _trace(path: Path) -> Report:
    found = _Found()
    gpus: dict[str, int] = {}
    calls: set[str] = set()
    copies: set[str] = set()
    waiting: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    times = ChromeTimes()
    for key, event in JsonStream(path, ROCPROF, "traceEvents").members():
        if key != "traceEvents" or not isinstance(event, dict):
            continue
        process, arguments = str(event.get("pid")), event.get("args")
        if event.get("name") == "process_name" and isinstance(arguments, dict):
            times.row(event)
            label = str(arguments.get("name"))
            if gpu := _GPU.match(label):
                gpus[process] = int(gpu[1])
            (copies if label == "COPY" else calls if "API" in label else set()).add(process)
        elif event.get("ph") == "X" and isinstance(arguments, dict) and "BeginNs" in arguments:
            waiting.append((process, event, arguments))
        elif event.get("cat") == "DataFlow" and event.get("ph") in ("s", "t"):
            times.arrow(event)
        elif event:
            times.other(event)
    for process, event, row in waiting:
        name = row.get("Name")
        times.event(event, row, process in gpus or process in copies, gpus.get(process))
        if process in calls:
            found.call(str(name), row.get("BeginNs"), row.get("EndNs"), None, row.get("args"))
        elif process in gpus or process in copies:
            found.operation(row, None, process in copies)
        else:
            found.unread += 1
    report = found.report(path, "rocprof JSON trace", gpus.values())
    reason = "the trace does not say which call started an operation; results.db of the same run does"
    unknown = [Gap("copy.bytes", "not_available", reason)] if report.copies else []
    unknown += [Gap("kernel.grid", "not_available", reason)] if report.kernels else []
    return replace(report, gaps=(*report.gaps, *unknown), diagnostics=times.diagnostics())
