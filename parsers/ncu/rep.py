"""Nsight Compute report files (.ncu-rep, and .nsight-cuprof-report of 2019), through NVIDIA's
``ncu_report`` package, an optional extra, which gives metrics in base units. On a damaged file it
gives fewer results, or aborts: so it runs in a process of its own, and the file's own count of
results is compared with what came."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
from array import array
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, BinaryIO

from perfctl.parsers.ncu.advice import Rules
from perfctl.parsers.ncu.facts import (
    FACT_NAMES,
    KERNEL_FACTS,
    Facts,
    Value,
    counts_flops,
    device_of,
    innermost,
    kernel_fields,
    kernel_of,
    with_steps,
    worked_out,
)
from perfctl.parsers.ncu.log import kernel_gaps, no_values
from perfctl.parsers.text.doubts import newer, not_understood
from perfctl.parsers.text.lines import readable
from perfctl.parsers.text.numbers import Number, Unit, base_unit, to_base
from perfctl.records.errors import ReportError
from perfctl.records.report import Counter, Device, Diagnostic, Gap, Kernel, Report, SourceCounter

MAGIC = b"NVR\0"
_KNOWN_LAYOUT = 7
_HEADER_LIMIT = 2**28
_LATEST = 2**32

READER = "perfctl.parsers.ncu.rep_worker"
READER_SECONDS = 1800
"""Seconds after which the reading process counts as hung; a report of 1000 kernels and 1600 metrics
takes a few."""
NEWEST = "2025.1"
_EXPORT = (
    "Export it with 'ncu --import {path} --csv --page raw --print-units base' and read that CSV"
)


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
        own = (
            version
            for provider, version in self.versions.items()
            if provider.startswith("Nsight Compute")
        )
        return next((version.split(" ", 1)[0] for version in own), None)

    @property
    def created_at(self) -> str | None:
        """When the report was made, UTC, ISO 8601."""
        if self.created is None or not 0 < self.created < _LATEST:
            return None
        return datetime.fromtimestamp(self.created, UTC).isoformat()


def outline(path: Path) -> Outline:
    """Walk the blocks of the file. Raises OSError when it cannot be read; never reads a payload."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(len(MAGIC))
        try:
            layout = next((value for key, value in _fields(_sized(file, size)) if key == 1), None)
        except ValueError:
            return Outline(known=size < 16, cut_at=file.tell())
        found = Outline(known=layout == _KNOWN_LAYOUT)
        while found.known and file.tell() < size:
            at = file.tell()
            try:
                end = _block(_sized(file, size), found) + file.tell()
            except ValueError:
                end = size + 1
            if end > size:
                found.cut_at = at
                break
            file.seek(end)
    return found


def _sized(file: BinaryIO, size: int) -> bytes:
    """The next u32-sized piece; ValueError when the file ends before it does."""
    start = file.read(4)
    if len(start) < 4:
        raise ValueError("no size")
    length = struct.unpack("<I", start)[0]
    if length > min(size - file.tell(), _HEADER_LIMIT):
        raise ValueError("piece is longer than the file")
    return file.read(length)


def _block(header: bytes, found: Outline) -> int:
    block = {(key, type(value)): value for key, value in _fields(header)}
    for key, value in _fields(block.get((3, bytes), b"")):
        if key == 2 and isinstance(value, int):
            found.created = value
        elif key == 8 and isinstance(value, bytes):
            pair = {
                part: text.decode("utf-8", "replace")
                for part, text in _fields(value)
                if isinstance(text, bytes)
            }
            found.versions[pair.get(1, "")] = pair.get(2, "")
    results = block.get((2, int), 0)
    found.results += results
    if results:  # field 6: process id, host and program
        own = (
            value
            for key, value in _fields(block.get((6, bytes), b""))
            if key == 1 and isinstance(value, int)
        )
        found.processes.update(own)
    payload: int = block.get((5, int), 0)
    return payload


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value: int or bytes) of a protobuf message; ValueError where it is none."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError("no such wire type")
        length, at = _varint(message, at) if kind == 2 else (8 if kind == 1 else 4, at)
        if at + length > len(message):
            raise ValueError("field is longer than its message")
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(message[at : at + 10]):
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
        raise ReportError(
            path, "ncu", "reading .ncu-rep files needs NVIDIA's ncu_report package", remedy
        )
    results = _Results()
    for record in _read(path, source=source):
        results.add(record)
    if not results.kernels:
        raise ReportError(path, "ncu", *_why_empty(path, shape))
    driver = shape.versions.get("Display Driver Version")  # of the profiled machine
    return Report(
        tool="ncu",
        path=path,
        form="ncu report",
        tool_version=shape.tool_version,
        devices=tuple(
            replace(device, driver_version=driver) for _, device in sorted(results.devices.items())
        ),
        environment={"cuda": shape.versions["CUDA Version"]}
        if "CUDA Version" in shape.versions
        else {},
        kernels=with_steps(_of_process(results.kernels, shape.processes)),
        counters=results,
        gaps=(*_gaps(results, shape), *_not_stored(results, shape, source=source)),
        diagnostics=(
            *results.diagnostics,
            *not_understood({"metrics with a new type of value": results.unknown_metrics}),
            *newer("ncu", shape.tool_version, NEWEST),
        ),
        started_at=shape.created_at,
        advice=results.rules.ordered(range(len(results.kernels))),
        source_counters=results.source,
    )


def _read(path: Path, *, source: bool) -> Iterator[dict[str, Any]]:
    """Every result of the report, from the reading process; ReportError when that fails."""
    command = [
        sys.executable,
        "-P",
        "-m",
        READER,
        str(path.absolute()),
        *(["source"] if source else []),
    ]
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
    if not shape.known:
        return "it begins like an ncu report, but has an unknown structure", _EXPORT.format(
            path=path
        )
    if shape.results == 0:
        return (
            "the report holds no kernels",
            "Check ncu's filters and --target-processes, and profile again",
        )
    written = f"written by ncu {shape.tool_version}, " if shape.tool_version else ""
    return (
        f"the report ({written}{shape.results} results) is damaged and could not be read",
        _EXPORT.format(path=path),
    )


def _gaps(results: _Results, shape: Outline) -> Iterator[Gap]:
    for name, count in results.missing.items():
        yield Gap(
            f"counter:{name}",
            "not_available",
            f"the report has no value for it in {count} launches",
        )
    held = max(shape.results, len(results.kernels) + results.damaged)
    lost = held - len(results.kernels)
    if lost:
        yield Gap(
            "kernel",
            "unreadable",
            f"{lost} of {held} results in the report are damaged and could not be read",
        )
    if shape.known and shape.tool_version is None and shape.processes:
        yield Gap(
            "profiler_version", "not_available", "the report does not state the version of ncu"
        )
    no_grid = "the report has only the total grid size (ncu before 2020)"
    times = next((name for name in KERNEL_FACTS["duration_ns"] if results.missing[name]), None)
    printed = {"duration_ns": (times, "no number")} if times else {}
    yield from kernel_gaps(results.kernels, no_grid, printed, results.failed)
    yield from worked_out(results.kernels, results.metrics())
    yield from no_values(*results.counts(), "no value")


def _of_process(kernels: list[Kernel], processes: set[int]) -> list[Kernel]:
    """The launches with their process, where the report is of one."""
    if len(processes) != 1:
        return kernels
    (process,) = processes
    return [kernel._replace(process=process) for kernel in kernels]


def _not_stored(results: _Results, shape: Outline, *, source: bool) -> Iterator[Gap]:
    """What the report holds besides, and what it lacks."""
    yield from results.rules.gaps()
    if count := len(shape.processes) - 1:
        held = (
            f"{count + 1} processes, and NVIDIA's ncu_report does not tell their launches apart"
            if count > 0
            else "none"
        )
        yield Gap("kernel.process", "not_available", f"process ids in the report: {held}")
    if results.series:
        some = ", ".join(list(results.series)[:3])
        reason = (
            f"{len(results.series)} metrics have a curve or a series of samples in the report, "
            "which are not stored: "
        )
        yield Gap(
            "counter:instances",
            "not_collected",
            f"{reason}{some}{', ...' if len(results.series) > 3 else ''}",
        )
    if source and not results.source:
        reason = (
            "the report has no values by instruction; profile with --set full, or with --section "
            "SourceCounters"
        )
        yield Gap("source_counter", "not_available", reason)
    elif results.addresses and not source:
        reason = (
            f"the report has values of {results.addresses:,} instructions; perfctl ingest --source "
            "--again stores them"
        )
        yield Gap("source_counter", "not_collected", reason)


class _Results:
    """Launches and metric values of one report; iterating gives the counters, as often
    as wanted."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.devices: dict[int, Device] = {}
        self.diagnostics: list[Diagnostic] = []
        self.missing: Tally[str] = Tally()
        """Metric -> in how many launches it has no value."""
        self.unknown_metrics: dict[str, None] = {}
        """Metrics whose value has an unknown type."""
        self.failed: list[str] = []
        """Kernels whose launch failed: their grid has 0 blocks."""
        self.damaged = 0
        """Results without any metric, which is how the package returns a damaged one."""
        self.rules = Rules()
        self.source: list[SourceCounter] = []
        self.addresses = 0
        self.series: dict[str, None] = {}
        self._keys: list[tuple[str, Unit, str | None]] = []
        self._key_ids: dict[tuple[str, str, str | None], int] = {}
        self._launch, self._key = array("L"), array("L")
        self._value: list[Value] = []

    def metrics(self) -> Iterator[str]:
        """Names of the metrics that some result has."""
        return (name for name, *_ in self._keys)

    def add(self, record: dict[str, Any]) -> None:
        """Take in one result."""
        if not record["metrics"]:
            self.damaged += 1
            return
        launch = len(self.kernels)
        self.unknown_metrics.update(dict.fromkeys(record["strange"]))
        facts, counted = self._metrics(launch, record["metrics"], record["sections"])
        for name, unit, instance, value in record["instances"]:
            self._value_of(launch, f"{name}[{instance}]", unit, record["sections"].get(name), value)
        for rule in record["rules"]:
            self.rules.add(launch, *rule)
        for offset, opcode, file, *others in record["source"]:
            code, place = opcode and sys.intern(opcode), file and sys.intern(file)
            self.source.append(SourceCounter(launch, offset, code, place, *others))
        self.addresses += record["addresses"]
        self.series.update(dict.fromkeys(record["series"]))
        place, fields = innermost(record["ranges"]), kernel_fields(facts)
        kernel = kernel_of(
            launch, record["name"], place, fields, record["short"] or None, counted=counted
        )
        self.kernels.append(kernel)
        if facts.get("launch__grid_dim_x", (None, None))[0] == 0:
            self.failed.append(kernel.name)
        at = kernel.device_index or 0
        if at not in self.devices:
            self.devices[at] = device_of(at, None, facts)
        if not record["single"]:
            text = (
                f"result {launch} is not a single kernel but a range, graph or command list: "
                f"{kernel.name}"
            )
            self.diagnostics.append(Diagnostic("warning", "ncu", text))

    def _metrics(
        self, launch: int, metrics: list[tuple[str, str, Value]], sections: dict[str, str]
    ) -> tuple[Facts, bool]:
        """The launch's facts, and whether instructions were counted that FLOPs are made from."""
        facts: Facts = {}
        counted = False
        for name, unit, printed in metrics:
            value, base = self._value_of(launch, name, unit, sections.get(name), printed)
            if value is None:
                self.missing[name] += 1
            if name in FACT_NAMES:
                facts[name] = (value, base.name)
            counted = counted or (value is not None and counts_flops(name))
        return facts, counted

    def _value_of(
        self, launch: int, name: str, unit: str, section: str | None, value: Value
    ) -> tuple[Value, Unit]:
        key = self._key_ids.setdefault((name, unit, section), len(self._keys))
        if key == len(self._keys):
            self._keys.append((name, base_unit(unit), section))
        base = self._keys[key][1]
        if isinstance(value, int):
            value = to_base(Number(value, 0), base.scale)
        elif isinstance(value, float):
            value *= base.scale
        self._launch.append(launch)
        self._key.append(key)
        self._value.append(value)
        return value, base

    def counts(self) -> tuple[int, int]:
        """(metric values of all launches, how many of them are missing)"""
        return len(self._value), self.missing.total()

    def __iter__(self) -> Iterator[Counter]:
        for launch, key, value in zip(self._launch, self._key, self._value, strict=True):
            name, unit, section = self._keys[key]
            number, text = (None, value) if isinstance(value, str) else (value, None)
            yield Counter(launch, name, number, unit.name, section, text)
