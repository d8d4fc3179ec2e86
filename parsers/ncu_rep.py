"""Nsight Compute report files (.ncu-rep, and .nsight-cuprof-report of 2019), through NVIDIA's ``ncu_report`` package.

The package is an optional extra. It reads reports of every version from 2019 on and gives metrics in base units. On a
damaged file it gives fewer results, or none, or aborts: so it runs in a process of its own
(:mod:`perfctl.parsers.ncu_rep_reader`), and the file's own count of results is compared with what came
(:mod:`perfctl.parsers.ncu_rep_file`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from array import array
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perfctl.parsers.errors import ReportError
from perfctl.parsers.ncu_facts import FACT_NAMES, Value, device_of, kernel_fields
from perfctl.parsers.ncu_nvtx import innermost, with_steps
from perfctl.parsers.ncu_rep_file import MAGIC, Outline, outline
from perfctl.parsers.records import Counter, Device, Diagnostic, Gap, Kernel, Report
from perfctl.parsers.units import Number, base_unit, to_base
from perfctl.parsers.unknown import newer, not_understood

READER = "perfctl.parsers.ncu_rep_reader"
READER_SECONDS = 1800
"""Seconds after which the reading process counts as hung; a report of 1000 kernels and 1600 metrics takes a few."""
NEWEST = "2025.1"
"""Newest ncu whose reports were tested."""
_EXPORT = "Export it with 'ncu --import {path} --csv --page raw --print-units base' and read that CSV"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a report file of Nsight Compute, of any version."""
    return head.startswith(MAGIC)


def parse(path: Path) -> Report:
    """Read the report. Raises ReportError when it is damaged, holds nothing, or ``ncu_report`` is not installed."""
    try:
        shape = outline(path)
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
        raise ReportError(path, "ncu", reason, "Check the path and its permissions") from error
    if shape.known and shape.cut_at is not None:
        reason = f"the report is cut off: its structure breaks at byte {shape.cut_at}"
        raise ReportError(path, "ncu", reason, "Copy it again, or profile again")
    if find_spec("ncu_report") is None:
        remedy = f"Install it with pip install 'perfctl[ncu]'. Or: {_EXPORT.format(path=path)}"
        raise ReportError(path, "ncu", "reading .ncu-rep files needs NVIDIA's ncu_report package", remedy)
    results = _Results()
    for record in _read(path):
        results.add(record)
    if not results.kernels:
        raise ReportError(path, "ncu", *_why_empty(path, shape))
    return Report(
        tool="ncu",
        path=path,
        form="ncu report",
        tool_version=shape.tool_version,
        devices=results.devices_with(shape.versions.get("Display Driver Version")),
        environment={"cuda": shape.versions["CUDA Version"]} if "CUDA Version" in shape.versions else {},
        kernels=with_steps(results.kernels),
        counters=results,
        gaps=tuple(_gaps(results, shape)),
        diagnostics=(
            *results.diagnostics,
            *not_understood({"metrics with a new type of value": results.unknown_metrics}),
            *newer("ncu", shape.tool_version, NEWEST),
        ),
        started_at=shape.created_at,
    )


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """Every result of the report, from the reading process; ReportError when that fails."""
    command = [sys.executable, "-P", "-m", READER, str(path.absolute())]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    ) as process:
        watchdog = threading.Timer(READER_SECONDS, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            for line in process.stdout or ():
                if line.endswith(b"\n"):  # the last line of a process that was killed may be cut off
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
    """(reason, remedy) for a report from which nothing could be read."""
    if not shape.known:
        return "it begins like an ncu report, but has an unknown structure", _EXPORT.format(path=path)
    if shape.results == 0:
        return "the report holds no kernels", "Check ncu's filters and --target-processes, and profile again"
    written = f"written by ncu {shape.tool_version}, " if shape.tool_version else ""
    return f"the report ({written}{shape.results} results) is damaged and could not be read", _EXPORT.format(path=path)


def _gaps(results: _Results, shape: Outline) -> Iterator[Gap]:
    for name, count in results.missing.items():
        yield Gap(f"counter:{name}", "not_available", f"the report has no value for it in {count} launches")
    held = max(shape.results, len(results.kernels) + results.damaged)
    lost = held - len(results.kernels)
    if lost:
        yield Gap("kernel", "unreadable", f"{lost} of {held} results in the report are damaged and could not be read")
    if all(kernel.duration_ns is None for kernel in results.kernels):
        yield Gap("kernel.duration_ns", "not_collected", "gpu__time_duration.sum is not among the metrics")
    if all(kernel.grid_x is None for kernel in results.kernels):
        yield Gap("kernel.grid_x", "not_available", "the report has only the total grid size (ncu before 2020)")


class _Results:
    """Launches and metric values of one report; iterating gives the counters, as often as wanted."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.devices: dict[int, Device] = {}
        self.diagnostics: list[Diagnostic] = []
        self.missing: Tally[str] = Tally()
        """Metric -> in how many launches it has no value."""
        self.unknown_metrics: dict[str, None] = {}
        """Metrics whose value has an unknown type."""
        self.damaged = 0
        """Results without any metric, which is how the package returns a damaged one."""
        self._keys: list[tuple[str, str | None]] = []
        self._scales: list[int] = []
        self._key_ids: dict[tuple[str, str], int] = {}
        self._launch = array("L")
        self._key = array("L")
        self._value: list[Value] = []

    def add(self, record: dict[str, Any]) -> None:
        """Take in one result."""
        if not record["metrics"]:
            self.damaged += 1
            return
        launch = len(self.kernels)
        self.unknown_metrics.update(dict.fromkeys(record["strange"]))
        facts = self._metrics(launch, record["metrics"])
        place = innermost(record["ranges"])
        kernel = Kernel(
            launch,
            record["name"],
            record["short"] or None,
            layer=place.layer,
            direction=place.direction,
            step=place.step,
            layer_source="range" if place.layer is not None else None,
        )._replace(**kernel_fields(facts))  # type: ignore[arg-type]  # the keys are KERNEL_FACTS'
        self.kernels.append(kernel)
        at = kernel.device_index or 0
        if at not in self.devices:
            self.devices[at] = device_of(at, None, facts)
        if not record["single"]:
            text = f"result {launch} is not a single kernel but a range, graph or command list: {kernel.name}"
            self.diagnostics.append(Diagnostic("warning", "ncu", text))

    def _metrics(self, launch: int, metrics: list[tuple[str, str, Value]]) -> dict[str, tuple[Value, str | None]]:
        """Store the metrics of one launch; return those that are facts about it."""
        facts: dict[str, tuple[Value, str | None]] = {}
        for name, unit, printed in metrics:
            key = self._key_of(name, unit)
            value = printed
            if isinstance(value, int):
                value = to_base(Number(value, 0), self._scales[key])
            elif isinstance(value, float):
                value *= self._scales[key]
            elif value is None:
                self.missing[name] += 1
            if name in FACT_NAMES:
                facts[name] = (value, self._keys[key][1])
            self._launch.append(launch)
            self._key.append(key)
            self._value.append(value)
        return facts

    def _key_of(self, name: str, unit: str) -> int:
        key = self._key_ids.setdefault((name, unit), len(self._keys))
        if key == len(self._keys):
            base = base_unit(unit)
            self._keys.append((name, base.name))
            self._scales.append(base.scale)
        return key

    def __iter__(self) -> Iterator[Counter]:
        for launch, key, value in zip(self._launch, self._key, self._value, strict=True):
            name, unit = self._keys[key]
            if isinstance(value, str):
                yield Counter(launch, name, None, unit, None, value)
            else:
                yield Counter(launch, name, value, unit)

    def devices_with(self, driver: str | None) -> tuple[Device, ...]:
        """The devices in the order of their index; the driver is the one of the profiled machine."""
        return tuple(replace(self.devices[at], driver_version=driver) for at in sorted(self.devices))
