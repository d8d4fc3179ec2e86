"""``samples.csv``: readings of GPUs and processes that perfctl took during a run; with nvidia-smi's
log beside it, where that read the GPUs. Lines that begin with "#" say how readings were taken and
what was not available. A file of a killed run lacks the last of them, and the row that was
being written."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import get_type_hints

from perfctl.parsers import parse as parse_report
from perfctl.parsers.common.doubts import list_unknown_names, make_unknown_names_warning
from perfctl.parsers.common.tables import (
    FieldColumn,
    RowReader,
    nonempty_text_or_none,
    split_csv_line,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Gap, Report, Sample, Summary

TOOL, AGAIN = "sampler", "Run this batch size again"
MARK = "# perfctl samples "
VERSION = 1
SMI_SUFFIX = ".nvidia-smi.csv"
_NOT_OF_GPU = ("at_ns", "device_index", "allocated_bytes", "reserved_bytes")
_GPU_FIELDS = [name for name in Sample._fields if name not in _NOT_OF_GPU and "host" not in name]


def _parse_cell_integer(cell: str) -> int | None:
    return int(cell) if cell else None


def _parse_cell_float(cell: str) -> float | None:
    value = float(cell) if cell else None
    if value is not None and not isfinite(value):
        raise ValueError(f"{cell} is not a number")
    return value


_READERS = {float | None: _parse_cell_float, str | None: nonempty_text_or_none}
_COLUMNS = [
    FieldColumn(name, read=_READERS.get(hint, _parse_cell_integer))
    for name, hint in get_type_hints(Sample).items()
]
"""One column per field of Sample; a cell that cannot be read raises ValueError."""


def sniff(path: Path, head: bytes) -> bool:
    return head.startswith(MARK.encode())


def parse(path: Path) -> Report:
    """Read the file, and nvidia-smi's log of the same run. Raises ReportError when it is malformed
    or of a newer perfctl."""
    try:
        *lines, last_line = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ReportError(path, TOOL, f"it cannot be read ({error})", AGAIN) from error
    facts = dict(line[1:].strip().partition(": ")[::2] for line in lines if line.startswith("#"))
    if not lines:
        raise ReportError(path, TOOL, "the file is empty", AGAIN)
    if (version := lines[0].removeprefix(MARK).strip()) != str(VERSION):
        reason = f"samples of version {version[:20]}, but this perfctl reads {VERSION}"
        raise ReportError(path, TOOL, reason, "Install a newer perfctl")
    columns, samples = _read_sample_rows(path, lines)
    gaps = list(_describe_missing_data(facts, len(samples), is_cut=bool(last_line)))
    log = path.with_name(path.stem + SMI_SUFFIX)
    if log.is_file() and log.stat().st_size:
        of_gpus, log_gaps = _read_clock_aligned_smi_log(log, facts.get("nvidia_smi_first_ns", ""))
        samples = sorted([*samples, *of_gpus], key=lambda sample: sample.at_ns)
        gaps += log_gaps
    costs = (("readings", "sampling: readings", None), ("cost_ns", "sampling: CPU time", "ns"))
    source = Diagnostic("info", TOOL, f"readings of GPUs: {facts.get('gpu', '')}")
    return Report(
        tool=TOOL,
        path=path,
        form=f"perfctl samples, version {VERSION}",
        samples=samples,
        summaries=tuple(
            Summary(name, float(facts[key]), unit)
            for key, name, unit in costs
            if facts.get(key, "").isdecimal()
        ),
        gaps=tuple(gaps),
        diagnostics=(
            source,
            *make_unknown_names_warning({"columns": list_unknown_names(columns, Sample._fields)}),
        ),
    )


def _read_sample_rows(path: Path, lines: list[str]) -> tuple[list[str], list[Sample]]:
    """Return the names of the columns, and the rows below them."""
    rows = [(n, line) for n, line in enumerate(lines, 1) if not line.startswith("#")]
    if not rows:
        return [], []
    columns = rows[0][1].strip().split(",")
    if "at_ns" not in columns:
        raise ReportError(path, TOOL, f"line {rows[0][0]}: no column at_ns", AGAIN)
    table = RowReader(_COLUMNS, columns)
    samples = []
    for number, line in rows[1:]:
        cells = split_csv_line(line)
        try:
            if len(cells) != len(columns):
                raise ValueError(f"{len(cells)} cells for {len(columns)} columns")
            samples.append(Sample(**table.convert_row(cells)))
            if samples[-1].at_ns is None:
                raise ValueError("the sample has no time")
        except ValueError as error:
            raise ReportError(path, TOOL, f"line {number}: {error}", AGAIN) from error
    return columns, samples


def _describe_missing_data(facts: dict[str, str], rows: int, *, is_cut: bool) -> Iterator[Gap]:
    for key, reason in facts.items():
        if key.startswith("missing "):
            yield Gap(f"sample.{key.removeprefix('missing ')}", "not_available", reason)
    source, stated = facts.get("gpu", ""), facts.get("rows", "")
    if source.startswith("none"):
        reason = f"no GPU was sampled: {source.removeprefix('none, ')}"
        yield Gap("sample.gpu_utilisation", "not_collected", reason)
    if stated.isdecimal() and int(stated) != rows:
        reason = f"the file has {rows} rows of samples, but states {stated}"
        yield Gap("sample", "unreadable", reason)
    if is_cut or "readings" not in facts:
        reason = "sampling ended early: samples from the end of the run are missing"
        yield Gap("sample", "unreadable", reason)


def _read_clock_aligned_smi_log(log: Path, first_arrival_ns: str) -> tuple[list[Sample], list[Gap]]:
    """Return samples of the log on the run's clock, and gaps: its timestamps are local time,
    shifted by when the first one arrived."""
    try:
        report = parse_report(log)
        samples = list(report.samples)
    except ReportError as error:
        return [], [Gap("sample", "unreadable", str(error))]
    other = {"sample.at_ns", "kernel", "copy", "range", "operation"}  # of the run, known here
    gaps = [gap for gap in report.gaps if gap.quantity not in other]
    named_quantities = {gap.quantity for gap in gaps}
    for name in _GPU_FIELDS:
        is_empty = all(getattr(sample, name) is None for sample in samples)
        if is_empty and f"sample.{name}" not in named_quantities:
            gaps.append(Gap(f"sample.{name}", "not_collected", "nvidia-smi was not queried for it"))
    if not first_arrival_ns.isdecimal():
        reason = "nvidia-smi's times cannot be converted to the run's clock"
        return [], [*gaps, Gap("sample", "ambiguous", reason)]
    shift = int(first_arrival_ns) - samples[0].at_ns
    devices = list(dict.fromkeys(sample.device_index for sample in samples))
    return [
        sample._replace(at_ns=sample.at_ns + shift, device_index=devices.index(sample.device_index))
        for sample in samples
    ], gaps
