"""Nsight Compute report files (.ncu-rep, and .nsight-cuprof-report of 2019), through NVIDIA's
``ncu_report`` package, an optional extra, which gives metrics in base units. On a damaged file it
gives fewer results, or aborts: so it runs in a process of its own, and the file's own count of
results is compared with what came."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, BinaryIO

from perfctl.parsers.ncu.builder import Launch, ReportBuilder
from perfctl.parsers.text.doubts import newer, not_understood
from perfctl.parsers.text.lines import readable
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Gap, Report, SourceCounter

MAGIC = b"NVR\0"
_KNOWN_LAYOUT = 7
_HEADER_MAX_BYTES = 2**28
_CREATED_MAX = 2**32

READER = "perfctl.parsers.ncu.rep_worker"
READER_SECONDS = 1800
"""Seconds after which the reading process counts as hung; a report of 1000 kernels and 1600 metrics
takes a few."""
NEWEST = "2025.1"
_EXPORT = (
    "Export it with 'ncu --import {path} --csv --page raw --print-units base' and read that CSV"
)
_SERIES_SHOWN = 3


@dataclass(slots=True)
class Outline:
    """Facts from the blocks of a report file, without its results."""

    known: bool
    """Whether the file has the layout of 2019 to 2025. If not, nothing else is known."""
    cut_at: int | None = None
    """Byte at which the structure breaks off; None for a whole file."""
    results: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    """Provider -> version: "CUDA Version", "Display Driver Version", "Nsight Compute Target
    ...", ..."""
    created: int | None = None
    processes: set[int] = field(default_factory=set)
    """Ids of the processes that the results are of; empty in files of 2019."""

    @property
    def tool_version(self) -> str | None:
        """Version of ncu, such as "2023.1.0.0"; None in files of 2019."""
        for provider, version in self.versions.items():
            if provider.startswith("Nsight Compute"):
                return version.split(" ", 1)[0]
        return None

    @property
    def created_at(self) -> str | None:
        """When the report was made, UTC, ISO 8601."""
        if self.created is None or not 0 < self.created < _CREATED_MAX:
            return None
        return datetime.fromtimestamp(self.created, UTC).isoformat()


def outline(path: Path) -> Outline:
    """Walk the blocks of the file. Raises OSError when it cannot be read; never reads a payload."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(len(MAGIC))
        try:
            layout = _read_message(file, size).numbers.get(1)
        except ValueError:
            return Outline(known=size < 16, cut_at=file.tell())
        shape = Outline(known=layout == _KNOWN_LAYOUT)
        while shape.known and file.tell() < size:
            start = file.tell()
            try:
                payload_bytes = _add_block(_read_message(file, size), shape)
            except ValueError:
                payload_bytes = size
            if file.tell() + payload_bytes > size:
                shape.cut_at = start
                break
            file.seek(payload_bytes, 1)
    return shape


def _read_message(file: BinaryIO, size: int) -> _Message:
    """Return the next u32-sized message; ValueError when the file ends before it does."""
    start = file.read(4)
    length = int.from_bytes(start, "little")
    if len(start) < 4 or length > min(size - file.tell(), _HEADER_MAX_BYTES):
        raise ValueError("message is longer than the file")
    return _Message(file.read(length))


def _add_block(header: _Message, shape: Outline) -> int:
    """Add what the header of a block says; return the bytes of its payload."""
    session = header.child(3)
    shape.created = session.numbers.get(2, shape.created)
    for piece in session.pieces[8]:
        provider = _Message(piece)
        shape.versions[provider.text(1)] = provider.text(2)
    if results := header.numbers.get(2, 0):
        shape.results += results
        if (process := header.child(6).numbers.get(1)) is not None:
            shape.processes.add(process)
    return header.numbers.get(5, 0)


class _Message:
    """Fields of a protobuf message by their number. Raises ValueError where it is none."""

    def __init__(self, content: bytes) -> None:
        self.numbers: dict[int, int] = {}
        self.pieces: defaultdict[int, list[bytes]] = defaultdict(list)
        at = 0
        while at < len(content):
            tag, at = _read_varint(content, at)
            kind, field_number = tag & 7, tag >> 3
            if kind == 0:
                self.numbers[field_number], at = _read_varint(content, at)
                continue
            if kind not in (1, 2, 5):
                raise ValueError("no such wire type")
            length, at = _read_varint(content, at) if kind == 2 else (8 if kind == 1 else 4, at)
            if at + length > len(content):
                raise ValueError("field is longer than its message")
            self.pieces[field_number].append(content[at : at + length])
            at += length

    def child(self, number: int) -> _Message:
        """Return the last message in a field; an empty one where there is none."""
        return _Message(b"".join(self.pieces[number][-1:]))

    def text(self, number: int) -> str:
        """Return the last text in a field; "" where there is none."""
        return b"".join(self.pieces[number][-1:]).decode("utf-8", "replace")


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the number at this position, and the position behind it."""
    value = 0
    for count, byte in enumerate(content[at : at + 10]):
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value, at + count + 1
    raise ValueError("number is cut off or too long")


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a report file of Nsight Compute, of any version."""
    return head.startswith(MAGIC)


def parse(path: Path, *, source: bool = False) -> Report:
    """Read the report; ``source``: with counters of each instruction. Raises ReportError when it is
    damaged, holds nothing, or ``ncu_report`` is not installed."""
    with readable(path, "ncu"):
        shape = outline(path)
    if shape.known and shape.cut_at is not None:
        reason = f"the report is cut off: its structure breaks at byte {shape.cut_at}"
        raise ReportError(path, "ncu", reason, "Copy it again, or profile again")
    if find_spec("ncu_report") is None:
        remedy = f"Install it with pip install 'perfctl[ncu]'. Or: {_EXPORT.format(path=path)}"
        reason = "reading .ncu-rep files needs NVIDIA's ncu_report package"
        raise ReportError(path, "ncu", reason, remedy)
    results = _Results(path, shape)
    for record in _read(path, source=source):
        results.add(record)
    builder = results.builder
    if not builder.launches:
        raise ReportError(path, "ncu", *_why_empty(path, shape))
    cuda = shape.versions.get("CUDA Version")
    return builder.report(
        "ncu report",
        results.gaps(source=source),
        (
            *results.diagnostics,
            *not_understood({"metrics with a new type of value": results.unknown_metrics}),
            *newer("ncu", shape.tool_version, NEWEST),
        ),
        driver_version=shape.versions.get("Display Driver Version"),  # of the profiled machine
        tool_version=shape.tool_version,
        environment={} if cuda is None else {"cuda": cuda},
        started_at=shape.created_at,
        source_counters=results.source,
    )


def _read(path: Path, *, source: bool) -> Iterator[dict[str, Any]]:
    """Yield every result of the report, from the reading process; ReportError when that fails."""
    command = [sys.executable, "-P", "-m", READER, str(path.absolute())]
    if source:
        command.append("source")
    with subprocess.Popen(command, stdout=PIPE, stderr=DEVNULL, stdin=DEVNULL) as process:
        watchdog = threading.Timer(READER_SECONDS, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            for line in process.stdout or ():
                # the last line of a process that was killed may be cut off
                if line.endswith(b"\n"):
                    yield json.loads(line)
            code = process.wait()
        finally:
            watchdog.cancel()
            process.kill()
    if code:
        ended = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        reason = f"the report is damaged: NVIDIA's ncu_report {ended} while reading it"
        raise ReportError(path, "ncu", reason, _EXPORT.format(path=path))


def _why_empty(path: Path, shape: Outline) -> tuple[str, str]:
    """Return (reason, remedy) for a report of which no result could be read."""
    export = _EXPORT.format(path=path)
    if not shape.known:
        return "it begins like an ncu report, but has an unknown structure", export
    if shape.results == 0:
        remedy = "Check ncu's filters and --target-processes, and profile again"
        return "the report holds no kernels", remedy
    written = f"written by ncu {shape.tool_version}, " if shape.tool_version else ""
    return f"the report ({written}{shape.results} results) is damaged and could not be read", export


class _Results:
    """Takes the results of one report, one by one."""

    def __init__(self, path: Path, shape: Outline) -> None:
        self.builder = ReportBuilder(path, is_printed=False)
        self.diagnostics: list[Diagnostic] = []
        self.unknown_metrics: dict[str, None] = {}
        """Metrics whose value has an unknown type."""
        self.source: list[SourceCounter] = []
        self._shape = shape
        self._process = str(*shape.processes) if len(shape.processes) == 1 else ""
        self._damaged = 0
        """Results without any metric, which is how the package returns a damaged one."""
        self._addresses = 0
        """Instructions that have values."""
        self._series: dict[str, None] = {}
        """Metrics with a curve or a series of samples."""

    def add(self, record: dict[str, Any]) -> None:
        """Take in one result, as ``rep_worker`` writes it."""
        if not record["metrics"]:
            self._damaged += 1
            return
        builder, name = self.builder, record["name"]
        order, ranges = len(builder.launches), tuple(record["ranges"])
        launch = builder.add_launch(
            Launch(
                order,
                name,
                process=self._process,
                push_pop=ranges,
                short_name=record["short"] or None,
            )
        )
        rows = [*record["metrics"], *record["instances"]]
        sections = record["sections"]
        metrics = [
            builder.number_metric(metric, unit, sections.get(metric.partition("[")[0]))
            for metric, unit, _ in rows
        ]
        builder.add_values(launch, metrics, [builder.value_numbers[row[2]] for row in rows])
        for rule in record["rules"]:
            builder.rules.add(launch, *rule)
        for offset, opcode, file, *counts in record["source"]:
            opcode, file = opcode and sys.intern(opcode), file and sys.intern(file)
            self.source.append(SourceCounter(launch, offset, opcode, file, *counts))
        self.unknown_metrics.update(dict.fromkeys(record["strange"]))
        self._addresses += record["addresses"]
        self._series.update(dict.fromkeys(record["series"]))
        if not record["single"]:
            text = (
                f"result {launch} is not a single kernel but a range, graph or command list: {name}"
            )
            self.diagnostics.append(Diagnostic("warning", "ncu", text))

    def gaps(self, *, source: bool) -> Iterator[Gap]:
        """Yield what the report holds besides, and what it lacks."""
        shape, launches = self._shape, len(self.builder.launches)
        results = max(shape.results, launches + self._damaged)
        if lost := results - launches:
            reason = f"{lost} of {results} results in the report are damaged and could not be read"
            yield Gap("kernel", "unreadable", reason)
        if shape.tool_version is None and shape.processes:
            reason = "the report does not state the version of ncu"
            yield Gap("profiler_version", "not_available", reason)
        if len(shape.processes) != 1:
            processes = (
                f"{len(shape.processes)} processes, and NVIDIA's ncu_report does not tell their "
                "launches apart"
            )
            reason = f"process ids in the report: {processes if shape.processes else 'none'}"
            yield Gap("kernel.process", "not_available", reason)
        if self._series:
            names = list(self._series)
            more = ", ..." if len(names) > _SERIES_SHOWN else ""
            reason = (
                f"{len(names)} metrics have a curve or a series of samples in the report, which "
                f"are not stored: {', '.join(names[:_SERIES_SHOWN])}{more}"
            )
            yield Gap("counter:instances", "not_collected", reason)
        if source and not self.source:
            reason = (
                "the report has no values by instruction; profile with --set full, or with "
                "--section SourceCounters"
            )
            yield Gap("source_counter", "not_available", reason)
        elif self._addresses and not source:
            reason = (
                f"the report has values of {self._addresses:,} instructions; perfctl ingest "
                "--source --again stores them"
            )
            yield Gap("source_counter", "not_collected", reason)
