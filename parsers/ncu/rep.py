"""Nsight Compute report files (.ncu-rep, and .nsight-cuprof-report of 2019), through NVIDIA's
``ncu_report`` package, an optional extra, which gives metrics in base units. On a damaged file it
gives fewer results, or aborts: so it runs in a process of its own, and the file's own count of
results is compared with what came."""

from __future__ import annotations

import json
import os
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
from typing import Any, BinaryIO, NamedTuple

from perfctl.parsers.common.doubts import make_newer_version_note
from perfctl.parsers.ncu.builder import LaunchIdentity, ReportBuilder
from perfctl.parsers.ncu.facts import Facts
from perfctl.records.errors import ReportError
from perfctl.records.report import Advice, Diagnostic, Gap, Report, SourceCounter

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


class _ProtobufMessage(NamedTuple):
    """A protobuf message: number of a field -> its value."""

    numbers: dict[int, int]
    texts: defaultdict[int, list[bytes]]
    """Texts, and messages inside this one. A message in several parts is the sum of them."""

    def join_field(self, field: int) -> bytes:
        """Return the value of a field; nothing if there is none."""
        return b"".join(self.texts[field])


@dataclass(slots=True)
class ReportOutline:
    """Facts from the blocks of a report file, without its results."""

    known: bool
    """Whether the file has the layout of 2019 to 2025. If not, nothing else is known."""
    cut_at: int | None = None
    """Byte at which the structure breaks off; None for a whole file."""
    results: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    """Provider -> version: "CUDA Version", "Display Driver Version", ..."""
    tool_version: str | None = None
    """Version of ncu, such as "2023.1.0.0"; None in files of 2019."""
    created_at: str | None = None
    """When the report was made, UTC, ISO 8601."""
    processes: set[int] = field(default_factory=set)
    """Ids of the processes that the results are of; empty in files of 2019."""


def read_outline(path: Path) -> ReportOutline:
    """Return the file's outline, without payloads. Raises OSError when it cannot be read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(len(MAGIC))
        try:
            layout = _read_next_message(file, size).numbers.get(1)
        except ValueError:
            return ReportOutline(known=size < 16, cut_at=file.tell())
        shape = ReportOutline(known=layout == _KNOWN_LAYOUT)
        while shape.known and shape.cut_at is None and (start := file.tell()) < size:
            try:
                payload_bytes = _add_block_returning_payload_size(
                    _read_next_message(file, size), shape
                )
            except ValueError:
                payload_bytes = size
            if file.seek(payload_bytes, os.SEEK_CUR) > size:
                shape.cut_at = start
    return shape


def _read_next_message(file: BinaryIO, size: int) -> _ProtobufMessage:
    """Return the next u32-sized message; ValueError when the file ends before it does."""
    start = file.read(4)
    length = int.from_bytes(start, "little")
    if len(start) < 4 or length > min(size - file.tell(), _HEADER_MAX_BYTES):
        raise ValueError("message is longer than the file")
    return _parse_message_fields(file.read(length))


def _add_block_returning_payload_size(header: _ProtobufMessage, outline: ReportOutline) -> int:
    """Add what the header of a block says; return the bytes of its payload."""
    session = _parse_message_fields(header.join_field(3))
    if 0 < (seconds := session.numbers.get(2, 0)) < _CREATED_MAX:
        outline.created_at = datetime.fromtimestamp(seconds, UTC).isoformat()
    for provider in map(_parse_message_fields, session.texts[8]):
        name, version = (provider.join_field(field).decode("utf-8", "replace") for field in (1, 2))
        outline.versions[name] = version
        if name.startswith("Nsight Compute") and outline.tool_version is None:
            outline.tool_version = version.split(" ", 1)[0]
    if results := header.numbers.get(2, 0):
        outline.results += results
        process = _parse_message_fields(header.join_field(6)).numbers.get(1)
        if process is not None:
            outline.processes.add(process)
    return header.numbers.get(5, 0)


def _parse_message_fields(message: bytes) -> _ProtobufMessage:
    """Return the fields of a message. Raises ValueError where it is none."""
    fields = _ProtobufMessage({}, defaultdict(list))
    offset = 0
    while offset < len(message):
        tag, offset = _parse_varint(message, offset)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            fields.numbers[field], offset = _parse_varint(message, offset)
        elif kind == 2:
            length, offset = _parse_varint(message, offset)
            fields.texts[field].append(message[offset : offset + length])
            offset += length
        else:
            offset += {1: 8, 5: 4}.get(kind, len(message))  # there is no other wire type
    if offset > len(message):
        raise ValueError("field is longer than its message")
    return fields


def _parse_varint(message: bytes, offset: int) -> tuple[int, int]:
    """Return the number at this position, and the position behind it."""
    value = 0
    for count, byte in enumerate(message[offset : offset + 10]):
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value, offset + count + 1
    raise ValueError("number is truncated or too long")


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a report file of Nsight Compute, of any version."""
    return head.startswith(MAGIC)


def parse(path: Path, *, source: bool = False) -> Report:
    """Read the report; ``source``: with counters of each instruction. Raises ReportError when it is
    damaged, holds nothing, or ``ncu_report`` is not installed."""
    shape = read_outline(path)
    export = _EXPORT.format(path=path)
    if shape.known and shape.cut_at is not None:
        reason = f"the report is truncated: its structure breaks at byte {shape.cut_at}"
        raise ReportError(path, "ncu", reason, "Copy it again, or profile again")
    if find_spec("ncu_report") is None:
        remedy = f"Install it with pip install 'perfctl[ncu]'. Or: {export}"
        reason = "reading .ncu-rep files needs NVIDIA's ncu_report package"
        raise ReportError(path, "ncu", reason, remedy)
    results = _ResultCollector(path, shape)
    for record in _read_results_in_subprocess(path, source=source):
        results.add_result(record)
    if not results.builder.launches:
        reason = f"the report ({shape.results} results) is damaged and could not be read"
        if not shape.known:
            reason = "it begins like an ncu report, but has an unknown structure"
        elif shape.results == 0:
            reason = "the report contains no kernels"
            export = "Check ncu's filters and --target-processes, and profile again"
        raise ReportError(path, "ncu", reason, export)
    cuda = shape.versions.get("CUDA Version")
    return results.builder.make_report(
        "ncu report",
        results.describe_missing_data(source=source),
        (*results.diagnostics, *make_newer_version_note("ncu", shape.tool_version, NEWEST)),
        driver_version=shape.versions.get("Display Driver Version"),  # of the profiled machine
        tool_version=shape.tool_version,
        environment={} if cuda is None else {"cuda": cuda},
        started_at=shape.created_at,
        source_counters=results.source,
    )


def _read_results_in_subprocess(path: Path, *, source: bool) -> Iterator[dict[str, Any]]:
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


class _ResultCollector:
    """Takes the results of one report, one by one."""

    def __init__(self, path: Path, shape: ReportOutline) -> None:
        self.builder = ReportBuilder(path, is_printed=False)
        self.diagnostics: list[Diagnostic] = []
        self.source: list[SourceCounter] = []
        self._shape = shape
        is_one = len(shape.processes) == 1
        self._identity: Facts = {"process": min(shape.processes)} if is_one else {}
        self._results = 0
        self._addresses = 0
        """Instructions that have values."""
        self._series: dict[str, None] = {}
        """Metrics with a curve or a series of samples."""

    def add_result(self, record: dict[str, Any]) -> None:
        """Take in one result, as ``rep_worker`` writes it."""
        self._results += 1
        if not record["metrics"]:  # so the package returns a damaged one
            return
        builder, name = self.builder, record["name"]
        ranges, short = tuple(record["ranges"]), record["short"] or None
        launch = builder.add_launch(LaunchIdentity(name, self._identity, ranges, short_name=short))
        names, units, values, sections = zip(*record["metrics"], strict=True)
        builder.add_metric_values(
            launch, list(map(builder.assign_metric_index, names, units, sections)), values
        )
        for rule in record["rules"]:
            builder.add_rule_result(Advice(launch, *rule))
        for offset, opcode, file, *counts in record["source"]:
            opcode, file = opcode and sys.intern(opcode), file and sys.intern(file)
            self.source.append(SourceCounter(launch, offset, opcode, file, *counts))
        self._addresses += record["addresses"]
        self._series |= dict.fromkeys(record["series"])
        if not record["single"]:
            text = (
                f"result {launch} is not a single kernel but a range, graph or command list: {name}"
            )
            self.diagnostics.append(Diagnostic("warning", "ncu", text))

    def describe_missing_data(self, *, source: bool) -> Iterator[Gap]:
        """Yield what the report holds besides, and what it lacks."""
        shape = self._shape
        results = max(shape.results, self._results)
        if lost := results - len(self.builder.launches):
            reason = f"{lost} of {results} results in the report are damaged and could not be read"
            yield Gap("kernel", "unreadable", reason)
        if shape.tool_version is None and shape.processes:
            reason = "the report does not state the version of ncu"
            yield Gap("profiler_version", "not_available", reason)
        if len(shape.processes) != 1:
            reason = (
                f"the report is of {len(shape.processes) or 'unknown'} processes, and NVIDIA's "
                "ncu_report does not separate their launches"
            )
            yield Gap("kernel.process", "not_available", reason)
        if self._series:
            reason = (
                f"{len(self._series)} metrics have a curve or a series of samples, which perfctl "
                f"does not store, such as {next(iter(self._series))}"
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
                f"the report has values of {self._addresses:,} instructions; run perfctl ingest "
                "--source --again to store them"
            )
            yield Gap("source_counter", "not_collected", reason)
