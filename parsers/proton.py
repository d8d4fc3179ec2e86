"""Profiles of Triton's Proton (``.hatchet``): a JSON list of a call tree and the devices.

A node has a frame (its name), metrics and children. Nodes with "time (ns)" and "count" are kernels,
summed over their launches; the others are scopes of the program, whose metrics are what it stated
(``flops8`` to ``flops64`` or ``flops``, and ``bytes``: totals over all calls) or nothing. A kernel
of one name counts once for each scope that launched it; here it is one operation. Proton states no
times of single launches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.text.json import peek, read_whole
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Diagnostic, Gap, Operation, Report, Summary

TOOL = "proton"
TIME, COUNT = "time (ns)", "count"
_FLOPS = re.compile(r"flops(?:8|16|32|64)?\Z")
_KNOWN = {TIME, COUNT, "device_id", "device_type", "bytes", "num_samples", "num_stalled_samples"}
_DEEPEST = 400
_LONGEST = 300
_REMEDY = "Copy it again, or let Proton write it again"
Json = dict[str, Any]


class Node(NamedTuple):
    """One node of the tree."""

    path: tuple[str, ...]
    """Names of the scopes around it and its own, without ROOT."""
    metrics: Json
    is_kernel: bool
    only_kernel: bool
    """A scope directly around one kernel and nothing else: what it states belongs to
    that kernel."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a JSON list of nodes with frames and metrics."""
    if path.is_dir():
        return False
    text = peek(head).lstrip()
    return (
        text.startswith("[") and '"children"' in text and ('"frame"' in text or '"metrics"' in text)
    )


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off or no tree of nodes."""
    content = read_whole(path, TOOL, _REMEDY)
    roots = (
        [one for one in content if isinstance(one, dict) and "frame" in one]
        if isinstance(content, list)
        else []
    )
    if not roots:
        raise ReportError(path, TOOL, "it holds no call tree of Proton", _REMEDY)
    nodes = [node for root in roots for node in _walk(root, (), path)]
    listed = [one for one in content if isinstance(one, dict) and "frame" not in one]
    operations = _operations(nodes)
    figures = tuple(_figures(nodes))
    others = sorted(
        {
            name
            for node in nodes
            for name in node.metrics
            if name not in _KNOWN and not _FLOPS.match(name)
        }
    )
    return Report(
        tool=TOOL,
        path=path,
        form="Proton profile, sums of kernels in a call tree",
        devices=tuple(_devices(listed, nodes)),
        operations=operations,
        summaries=figures,
        gaps=tuple(_gaps(operations, nodes)),
        diagnostics=(
            Diagnostic(
                "info",
                "perfctl",
                f"further metrics of scopes, kept as figures: {', '.join(others)}",
            ),
        )
        if others
        else (),
    )


def _walk(node: Json, above: tuple[str, ...], file: Path) -> Iterator[Node]:
    if len(above) > _DEEPEST:
        raise ReportError(file, TOOL, f"its tree is deeper than {_DEEPEST} scopes", _REMEDY)
    frame, metrics = node.get("frame"), node.get("metrics")
    name = str(frame.get("name", "")) if isinstance(frame, dict) else ""
    below = node.get("children") or []
    if not isinstance(below, list):
        raise ReportError(
            file,
            TOOL,
            f"the children of {name[:80] or 'a node'!r} are {below!r:.40}, no list",
            _REMEDY,
        )
    children = [child for child in below if isinstance(child, dict)]
    found: Json = metrics if isinstance(metrics, dict) else {}
    here = above if not above and name == "ROOT" else (*above, name)
    is_kernel = not children and _number(found, TIME) is not None and name != "ROOT"
    only = len(children) == 1 and not children[0].get("children") and not is_kernel
    if here:
        yield Node(here, found, is_kernel, only)
    for child in children:
        yield from _walk(child, here, file)


def _number(metrics: Json, name: str) -> float | None:
    value = metrics.get(name)
    return (
        value
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63
        else None
    )


def _flops(metrics: Json) -> float | None:
    """FLOPs of all widths together; None where none is stated."""
    stated = [
        value
        for name in metrics
        if _FLOPS.match(name) and (value := _number(metrics, name)) is not None
    ]
    return sum(stated) if stated else None


def _operations(nodes: list[Node]) -> list[Operation]:
    """One for each kernel name: launches, time, and FLOPs where all of its launches have
    them stated."""
    around = {node.path: node.metrics for node in nodes if node.only_kernel}
    sums: dict[str, list[float | None]] = {}
    for node in nodes:
        if not node.is_kernel:
            continue
        flops = _flops(node.metrics)
        flops = _flops(around.get(node.path[:-1], {})) if flops is None else flops
        entry = sums.setdefault(node.path[-1], [0, 0, 0])
        entry[0] = (entry[0] or 0) + (_number(node.metrics, COUNT) or 0)
        entry[1] = (entry[1] or 0) + (_number(node.metrics, TIME) or 0)
        entry[2] = None if flops is None or entry[2] is None else entry[2] + flops
    return [
        Operation(
            name,
            "kernel",
            round(calls or 0),
            None,
            None,
            round(time or 0),
            None,
            None if flops is None else round(flops),
        )
        for name, (calls, time, flops) in sums.items()
    ]


def _figures(nodes: list[Node]) -> Iterator[Summary]:
    """What scopes state, and the time and launches of the kernels in them."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for node in nodes:
        for depth in range(1, len(node.path)) if node.is_kernel else ():
            entry = sums.setdefault(node.path[:depth], [0, 0])
            entry[0] += _number(node.metrics, COUNT) or 0
            entry[1] += _number(node.metrics, TIME) or 0
    for node in nodes:
        if node.is_kernel:
            continue
        label = "scope " + " / ".join(node.path)
        label = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 3]}..."
        launches, time = sums.pop(node.path, (0, 0))
        yield Summary(f"{label}: launches", launches, None)
        yield Summary(f"{label}: time", time, "ns")
        for name in node.metrics:
            if name not in (TIME, COUNT) and (value := _number(node.metrics, name)) is not None:
                unit = "flop" if _FLOPS.match(name) else "byte" if name == "bytes" else None
                yield Summary(f"{label}: {name}", value, unit)


def _devices(listed: list[Json], nodes: list[Node]) -> Iterator[Device]:
    """Devices that ran kernels first; clocks are kHz, the bus is in bits."""
    used = {str(node.metrics.get("device_id")) for node in nodes if node.is_kernel}
    found = [
        (kind, str(number), facts)
        for one in listed
        for kind, devices in one.items()
        if isinstance(devices, dict)
        for number, facts in devices.items()
        if isinstance(facts, dict)
    ]
    for kind, number, facts in sorted(found, key=lambda one: (one[1] not in used, one[1])):
        if number.isdecimal() and len(number) < 9:
            yield _device(kind, int(number), facts)


def _device(kind: str, index: int, facts: Json) -> Device:
    arch, clock = str(facts.get("arch", "")), _number(facts, "clock_rate")
    memory, width = _number(facts, "memory_clock_rate"), _number(facts, "bus_width")
    capability = (
        f"{arch[:-1]}.{arch[-1]}" if kind == "CUDA" and arch.isdecimal() and len(arch) > 1 else None
    )
    if arch.startswith("gfx"):
        capability = arch.split(":")[0]
    sms = _number(facts, "num_sms")
    return Device(
        name=None,
        kind="gpu",
        index=index,
        compute_capability=capability,
        sm_count=round(sms) if sms else None,
        # two transfers a cycle of the memory's clock
        memory_bandwidth_bps=round(2 * memory * 1000 * width / 8)
        if memory and width and kind == "CUDA"
        else None,
        clock_hz=round(clock * 1000) if clock else None,
    )


def _gaps(operations: list[Operation], nodes: list[Node]) -> Iterator[Gap]:
    yield Gap(
        "kernel",
        "not_available",
        "Proton sums kernels over their launches: no single launch, start or grid is in the file",
    )
    yield Gap("copy", "not_available", "Proton records no copies")
    yield Gap(
        "device.name",
        "not_available",
        "Proton names no GPU; give it with perfctl ingest --device-name",
    )
    if not operations:
        yield Gap("operation", "not_collected", "the tree has no kernel")
    stated = sum(operation.flops is not None for operation in operations)
    if stated < len(operations):
        reason = (
            "the program stated none"
            if not stated
            else f"the program stated them for {stated} of {len(operations)} kernels"
        )
        yield Gap(
            "operation.flops",
            "not_available",
            f"{reason} around a kernel alone (proton.scope with flops16=...)",
        )
