"""Reads DLProf's summary report by its labels.

Its lines have no fixed numbers: "cuDNN Version" is in NGC's 1.7.0 and not in pip's 1.8.0, so that
line 15 is GPU Utilization in one and Tensor Core Kernel Utilization in the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from perfctl.parsers.dlprof_tables import Block, read_blocks
from perfctl.parsers.errors import ReportError
from perfctl.parsers.records import Device, Gap, Summary

_UNIT = re.compile(r"(?P<name>.*?)\s*(?:\((?P<time>ns|us|ms)\)|(?P<percent>%))\Z")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")
_CONFIG = "system config"
_FACTS = {
    "framework": "framework",
    "cuda version": "cuda",
    "cudnn version": "cudnn",
    "nsys version": "nsys",
    "dlprof version": "dlprof",
    "dlprof build": "dlprof_build",
    "cpu model": "cpu_model",
    "gpu driver version": "driver_version",
}


@dataclass(frozen=True, slots=True)
class SummaryReport:
    """Contents of the summary; fields as in Report."""

    tool_version: str | None
    devices: tuple[Device, ...]
    environment: dict[str, str]
    summaries: tuple[Summary, ...]
    gaps: tuple[Gap, ...]
    wall_clock_ns: int | None


def read_summary(path: Path) -> SummaryReport:
    """Raises ReportError when no line of it is a label and a value."""
    blocks = read_blocks(path)
    if not any(block.lines for block in blocks):
        raise ReportError(path, "dlprof", "the summary has no lines with a label and a value", "Run DLProf again")
    if _ends_in_a_line(path):
        return summary_of(blocks)
    # the last number may be cut: DLProf ends every line
    label, values = blocks[-1].lines[-1] if blocks[-1].lines else ("", ("",))
    if blocks[-1].lines:
        blocks[-1].lines[-1] = (label, (*values[:-1], ""))
    cut = Gap("summary", "unreadable", f"the last line is incomplete: the last cell of '{label}' was left out")
    found = summary_of(blocks)
    return replace(found, gaps=(*found.gaps, cut))


def _ends_in_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-min(4, path.stat().st_size), 2)
        return file.read().rstrip(b"\0")[-1:] in (b"\r", b"\n")  # UTF-16 may have a NUL behind it


def summary_of(blocks: list[Block]) -> SummaryReport:
    """Build the summary from its blocks."""
    config = {
        label.lower(): values[0] for block in blocks if block.title.lower() == _CONFIG for label, values in block.lines
    }
    summaries = tuple(figure for block in blocks for figure in _figures(block))
    version = _VERSION.match(config.get("dlprof version", ""))
    wall = next(
        (figure.value for figure in summaries if figure.name == "Wall Clock Time" and figure.unit == "ns"), None
    )
    devices, gaps = _devices(config)
    if config and "cudnn version" not in config:
        reason = "this DLProf's summary has no line 'cuDNN Version' (pip's 1.8.0 leaves it out)"
        gaps.append(Gap("environment.cudnn", "not_available", reason))
    return SummaryReport(
        tool_version=version[1] if version else config.get("dlprof version"),
        devices=devices,
        environment=_environment(config),
        summaries=summaries,
        gaps=tuple(gaps),
        wall_clock_ns=None if wall is None or abs(wall) > 2**62 else int(wall),
    )


def _figures(block: Block) -> list[Summary]:
    """One figure a line; in the Ops and Kernels blocks one a cell, named "All Kernels: Memory: GPU Time"."""
    if block.columns:
        return [
            _figure(f"{block.title}: {label}: {name}", value)
            for label, values in block.lines
            for name, value in zip(block.columns, values, strict=False)
        ]
    in_config = block.title.lower() == _CONFIG
    return [_figure(label, values[0], is_text=in_config and label != "GPU Count") for label, values in block.lines]


def _figure(label: str, value: str, *, is_text: bool = False) -> Summary:
    """Versions and names are texts, even "11.6"."""
    match = _UNIT.match(label)
    name = match["name"] if match else label
    unit = (match["time"] or match["percent"]) if match else None
    if label == "Iteration Time Standard Deviation":
        unit = "ns"  # printed without a unit, below an average that has one
    try:
        number = float(value)
    except ValueError:
        return Summary(name, None, unit, value or None)
    if is_text or not isfinite(number):
        return Summary(name, None, unit, value)
    return Summary(name, number, unit)


def _environment(config: dict[str, str]) -> dict[str, str]:
    found = {name: config[label] for label, name in _FACTS.items() if config.get(label)}
    product, _, version = config.get("framework", "").partition(" ")
    if product == "PyTorch" and version:
        found["torch"] = version
    return found


def _devices(config: dict[str, str]) -> tuple[tuple[Device, ...], list[Gap]]:
    """GPU names are separated by commas without quotes; the count shows whether they were split correctly."""
    names = [name.strip() for name in config.get("gpu name(s)", "").split(",") if name.strip()]
    count = config.get("gpu count", "")
    gaps = []
    if names and count.isdecimal() and int(count) != len(names):
        reason = f"the summary counts {count} GPUs and names {len(names)}: {', '.join(names)}"
        gaps.append(Gap("device.name", "ambiguous", reason))
        names = []
    driver = config.get("gpu driver version") or None
    gpus = [Device(name, "gpu", index, driver_version=driver) for index, name in enumerate(names)]
    cpu = [Device(config["cpu model"], "cpu")] if config.get("cpu model") else []
    return tuple(gpus + cpu), gaps
