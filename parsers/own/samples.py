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
from perfctl.parsers.text.doubts import not_understood, others
from perfctl.records import checksum
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Gap, Report, Sample, Summary

TOOL, AGAIN = "sampler", "Run this batch size again"
MARK = "# perfctl samples "
VERSION = 1
SMI_SUFFIX = ".nvidia-smi.csv"
_REALS = (
    "gpu_utilisation",
    "power_w",
    "temperature_c",
    "energy_j",
    "process_utilisation",
    "host_cpu",
)
_NOT_READ = ("at_ns", "device_index", "allocated_bytes", "reserved_bytes")
_GPU_FIELDS = tuple(name for name in Sample._fields if name not in _NOT_READ and "host" not in name)


@dataclass(slots=True)
class _Read:
    facts: dict[str, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    rows: int = 0
    checksum: str = "0"
    """Of the lines that are no notes."""
    is_cut: bool = False


def sniff(path: Path, head: bytes) -> bool:
    return head.startswith(MARK.encode())


def parse(path: Path) -> Report:
    """Read the file, and nvidia-smi's log of the same run. Raises ReportError when it is damaged or
    of a newer perfctl."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            found = _read(file, path)
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(path, TOOL, f"it cannot be read ({error})", AGAIN) from error
    log = path.with_name(path.stem + SMI_SUFFIX)
    gaps = _gaps(found)
    if log.is_file() and log.stat().st_size:
        more, why = _from_nvidia_smi(log, found.facts.get("nvidia_smi_first_ns"))
        found.samples = sorted([*found.samples, *more], key=lambda sample: sample.at_ns)
        gaps += why
    source = Diagnostic("info", TOOL, f"readings of GPUs: {found.facts.get('gpu', '')}")
    return Report(
        tool=TOOL,
        path=path,
        form=f"perfctl samples, version {VERSION}",
        samples=found.samples,
        summaries=tuple(_summaries(found)),
        gaps=tuple(gaps),
        diagnostics=(source, *not_understood({"columns": others(found.columns, Sample._fields)})),
    )


def _read(lines: Iterable[str], path: Path) -> _Read:
    found = _Read()
    names: list[str] = []
    readers: list[Callable[[str], object]] = []
    number = 0
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            found.is_cut = True
            continue
        if line.startswith("#"):
            _note(found, line, number, path)
            continue
        found.checksum = checksum.of_text(line, found.checksum)
        if not names:
            names = line.strip().split(",")
            if "at_ns" not in names:
                raise ReportError(path, TOOL, f"line {number}: no column at_ns", AGAIN)
            found.columns = names
            readers = [_reader(name) for name in names]
        else:
            found.rows += 1
            found.samples.append(_sample(next(csv.reader([line])), names, readers, number, path))
    if not number:
        raise ReportError(path, TOOL, "the file is empty", AGAIN)
    return found


def _note(found: _Read, line: str, number: int, path: Path) -> None:
    if number > 1:
        key, _, value = line[1:].strip().partition(": ")
        found.facts[key] = value
    elif (version := line.removeprefix(MARK).strip()) != str(VERSION):
        reason = f"samples of version {version[:20]}, this perfctl reads {VERSION}"
        raise ReportError(path, TOOL, reason, "Install a newer perfctl")


def _sample(
    cells: list[str],
    names: list[str],
    readers: list[Callable[[str], object]],
    number: int,
    path: Path,
) -> Sample:
    if len(cells) != len(names):
        raise ReportError(
            path,
            TOOL,
            f"line {number}: {len(cells)} cells for {len(names)} columns",
            "Run it again",
        )
    try:
        values = {
            name: read(cell) if cell else None
            for name, read, cell in zip(names, readers, cells, strict=True)
        }
    except ValueError as error:
        raise ReportError(path, TOOL, f"line {number}: {error}", AGAIN) from error
    if values["at_ns"] is None:
        raise ReportError(path, TOOL, f"line {number}: the reading has no time", AGAIN)
    return Sample(**{name: values.get(name) for name in Sample._fields})  # type: ignore[arg-type]


def _reader(name: str) -> Callable[[str], object]:
    if name == "throttle_reasons" or name not in Sample._fields:
        return str
    return _real if name in _REALS else int


def _real(cell: str) -> float:
    value = float(cell)
    if not isfinite(value):
        raise ValueError(f"{cell} is not a number")
    return value


def _gaps(found: _Read) -> list[Gap]:
    source = found.facts.get("gpu", "")
    notes = {
        key.removeprefix("missing "): value
        for key, value in found.facts.items()
        if key.startswith("missing ")
    }
    gaps = [
        Gap(f"sample.{quantity}", "not_available", reason) for quantity, reason in notes.items()
    ]
    if source.startswith("none"):
        reason = f"no GPU was read: {source.removeprefix('none, ')}"
        gaps.append(Gap("sample.gpu_utilisation", "not_collected", reason))
    stated = found.facts.get("rows", "")
    if stated.isdecimal() and int(stated) != found.rows:
        gaps.append(
            Gap(
                "sample",
                "unreadable",
                f"the file has {found.rows} rows of readings, and says that it has {stated}",
            )
        )
    elif found.facts.get(checksum.FIELD) not in (None, found.checksum):
        gaps.append(
            Gap(
                "sample",
                "unreadable",
                "the readings are not as perfctl wrote them: they were edited or damaged",
            )
        )
    if found.is_cut or "readings" not in found.facts:
        gaps.append(
            Gap(
                "sample",
                "unreadable",
                "sampling was cut off: readings from the end of the run are missing",
            )
        )
    return gaps


def _from_nvidia_smi(log: Path, first_ns: str | None) -> tuple[list[Sample], list[Gap]]:
    """Samples of the log on the run's clock: its timestamps are local time, shifted by when the
    first one arrived."""
    try:
        report = parse_report(log)
        samples = list(report.samples)
    except ReportError as error:
        return [], [Gap("sample", "unreadable", str(error))]
    gaps = [gap for gap in report.gaps if gap.quantity != "sample.at_ns"]
    seen = {gap.quantity for gap in gaps}
    for name in _GPU_FIELDS:
        if f"sample.{name}" not in seen and all(
            getattr(sample, name) is None for sample in samples
        ):
            gaps.append(Gap(f"sample.{name}", "not_collected", "nvidia-smi was not asked for it"))
    if first_ns is None or not first_ns.isdecimal():
        return [], [
            *gaps,
            Gap("sample", "ambiguous", "nvidia-smi's times cannot be converted to the run's clock"),
        ]
    shift = int(first_ns) - samples[0].at_ns
    order = {
        number: place
        for place, number in enumerate(dict.fromkeys(sample.device_index for sample in samples))
    }
    moved = [
        sample._replace(at_ns=sample.at_ns + shift, device_index=order[sample.device_index])
        for sample in samples
    ]
    return moved, gaps


def _summaries(found: _Read) -> Iterable[Summary]:
    """The cost of sampling itself."""
    for key, name, unit in (
        ("readings", "sampling: readings", None),
        ("cost_ns", "sampling: CPU time", "ns"),
    ):
        if found.facts.get(key, "").isdecimal():
            yield Summary(name, float(found.facts[key]), unit)
