"""``samples.csv``: readings of GPUs and processes that perfctl took during a run; with nvidia-smi's
log beside it, where that read the GPUs. Lines that begin with "#" say how readings were taken and
what was not available. A file of a killed run lacks the last of them, and the row that was
being written."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from perfctl.parsers import parse as parse_report
from perfctl.parsers.common.doubts import not_understood, others
from perfctl.parsers.common.tables import Column, Table
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Gap, Report, Sample, Summary

TOOL, AGAIN = "sampler", "Run this batch size again"
MARK = "# perfctl samples "
VERSION = 1
SMI_SUFFIX = ".nvidia-smi.csv"
_NOT_OF_GPU = ("at_ns", "device_index", "allocated_bytes", "reserved_bytes")
_GPU_FIELDS = [name for name in Sample._fields if name not in _NOT_OF_GPU and "host" not in name]


def _read_integer(cell: str) -> int | None:
    return int(cell) if cell else None


def _read_real(cell: str) -> float | None:
    value = float(cell) if cell else None
    if value is not None and not isfinite(value):
        raise ValueError(f"{cell} is not a number")
    return value


def _read_text(cell: str) -> str | None:
    return cell or None


_READERS: dict[str, Callable[[str], object]] = {
    "gpu_utilisation": _read_real,
    "power_w": _read_real,
    "temperature_c": _read_real,
    "energy_j": _read_real,
    "process_utilisation": _read_real,
    "host_cpu": _read_real,
    "throttle_reasons": _read_text,
}
_COLUMNS = [Column(name, read=_READERS.get(name, _read_integer)) for name in Sample._fields]
"""One column per field of Sample; a cell that cannot be read raises ValueError."""


@dataclass(slots=True)
class _File:
    facts: dict[str, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    is_cut: bool = False


def sniff(path: Path, head: bytes) -> bool:
    return head.startswith(MARK.encode())


def parse(path: Path) -> Report:
    """Read the file, and nvidia-smi's log of the same run. Raises ReportError when it is malformed
    or of a newer perfctl."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            file = _read(lines, path)
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(path, TOOL, f"it cannot be read ({error})", AGAIN) from error
    log = path.with_name(path.stem + SMI_SUFFIX)
    gaps = list(_gaps(file))
    if log.is_file() and log.stat().st_size:
        samples, log_gaps = _from_nvidia_smi(log, file.facts.get("nvidia_smi_first_ns"))
        file.samples = sorted([*file.samples, *samples], key=lambda sample: sample.at_ns)
        gaps += log_gaps
    costs = (("readings", "sampling: readings", None), ("cost_ns", "sampling: CPU time", "ns"))
    source = Diagnostic("info", TOOL, f"readings of GPUs: {file.facts.get('gpu', '')}")
    return Report(
        tool=TOOL,
        path=path,
        form=f"perfctl samples, version {VERSION}",
        samples=file.samples,
        summaries=tuple(
            Summary(name, float(file.facts[key]), unit)
            for key, name, unit in costs
            if file.facts.get(key, "").isdecimal()
        ),
        gaps=tuple(gaps),
        diagnostics=(source, *not_understood({"columns": others(file.columns, Sample._fields)})),
    )


def _read(lines: Iterable[str], path: Path) -> _File:
    file = _File()
    table: Table | None = None
    number = 0
    for number, line in enumerate(lines, 1):
        place = f"line {number}"
        if not line.endswith("\n"):
            file.is_cut = True
        elif line.startswith("#"):
            if number == 1 and (version := line.removeprefix(MARK).strip()) != str(VERSION):
                reason = f"samples of version {version[:20]}, this perfctl reads {VERSION}"
                raise ReportError(path, TOOL, reason, "Install a newer perfctl")
            key, _, value = line[1:].strip().partition(": ")
            file.facts[key] = value
        elif table is None:
            file.columns = line.strip().split(",")
            if "at_ns" not in file.columns:
                raise ReportError(path, TOOL, f"{place}: no column at_ns", AGAIN)
            table = Table(_COLUMNS, file.columns)
        else:
            cells = next(csv.reader([line]))
            if len(cells) != len(file.columns):
                reason = f"{place}: {len(cells)} cells for {len(file.columns)} columns"
                raise ReportError(path, TOOL, reason, AGAIN)
            try:
                sample = Sample(**table.read(cells))
            except ValueError as error:
                raise ReportError(path, TOOL, f"{place}: {error}", AGAIN) from error
            if sample.at_ns is None:
                raise ReportError(path, TOOL, f"{place}: the reading has no time", AGAIN)
            file.samples.append(sample)
    if not number:
        raise ReportError(path, TOOL, "the file is empty", AGAIN)
    return file


def _gaps(file: _File) -> Iterable[Gap]:
    for key, reason in file.facts.items():
        if key.startswith("missing "):
            yield Gap(f"sample.{key.removeprefix('missing ')}", "not_available", reason)
    source, stated = file.facts.get("gpu", ""), file.facts.get("rows", "")
    if source.startswith("none"):
        reason = f"no GPU was read: {source.removeprefix('none, ')}"
        yield Gap("sample.gpu_utilisation", "not_collected", reason)
    if stated.isdecimal() and int(stated) != len(file.samples):
        rows = f"{len(file.samples)} rows of readings, and says that it has {stated}"
        yield Gap("sample", "unreadable", f"the file has {rows}")
    if file.is_cut or "readings" not in file.facts:
        reason = "sampling was cut off: readings from the end of the run are missing"
        yield Gap("sample", "unreadable", reason)


def _from_nvidia_smi(log: Path, first_ns: str | None) -> tuple[list[Sample], list[Gap]]:
    """Return samples of the log on the run's clock, and gaps: its timestamps are local time,
    shifted by when the first one arrived."""
    try:
        report = parse_report(log)
        samples = list(report.samples)
    except ReportError as error:
        return [], [Gap("sample", "unreadable", str(error))]
    gaps = [gap for gap in report.gaps if gap.quantity != "sample.at_ns"]
    seen = {gap.quantity for gap in gaps}
    for name in _GPU_FIELDS:
        is_empty = all(getattr(sample, name) is None for sample in samples)
        if is_empty and f"sample.{name}" not in seen:
            gaps.append(Gap(f"sample.{name}", "not_collected", "nvidia-smi was not asked for it"))
    if first_ns is None or not first_ns.isdecimal():
        reason = "nvidia-smi's times cannot be converted to the run's clock"
        return [], [*gaps, Gap("sample", "ambiguous", reason)]
    shift = int(first_ns) - samples[0].at_ns
    devices = list(dict.fromkeys(sample.device_index for sample in samples))
    return [
        sample._replace(at_ns=sample.at_ns + shift, device_index=devices.index(sample.device_index))
        for sample in samples
    ], gaps
