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

from perfctl.parsers.common.json import decode_head, list_json_objects, read_json_file
from perfctl.parsers.common.numbers import Number, parse_real
from perfctl.parsers.common.tables import FieldColumn, read_json_fields
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Diagnostic, Gap, Operation, Report, Summary

TOOL = "proton"
TIME, COUNT = "time (ns)", "count"
_OLD_NAMES = {
    "Time (ns)": TIME,
    "Count": COUNT,
    "DeviceId": "device_id",
    "DeviceType": "device_type",
}
"""Spelling of 2024 -> spelling since."""
_FLOPS = re.compile(r"flops(?:8|16|32|64)?\Z")
_KNOWN = {TIME, COUNT, "device_id", "device_type", "bytes", "num_samples", "num_stalled_samples"}
_DEVICE = (
    FieldColumn("arch", read=str),
    FieldColumn("num_sms", field="sms"),
    FieldColumn("clock_rate", "kHz", "clock", parse_real),
    FieldColumn("memory_clock_rate", "kHz", "memory_clock", parse_real),
    FieldColumn("bus_width", "bit", "width", parse_real),
)
_DEEPEST = 400
_LONGEST = 300
_REMEDY = "Copy it again, or let Proton write it again"
Json = dict[str, Any]


class TreeNode(NamedTuple):
    """One node of the tree."""

    path: tuple[str, ...]
    """Names of the scopes around it and its own, without ROOT."""
    metrics: Json
    is_kernel: bool
    flops: Number | None
    """FLOPs of all widths together, of a kernel without any those of a scope around nothing else;
    None if none is stated."""

    def get_metric_or_zero(self, name: str) -> int | float:
        """Return a metric; 0 if it is not stated."""
        return parse_real(self.metrics.get(name)) or 0


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a JSON list of nodes with frames and metrics."""
    text = "" if path.is_dir() else decode_head(head).lstrip()
    has_nodes = '"children"' in text and ('"frame"' in text or '"metrics"' in text)
    return text.startswith("[") and has_nodes


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off or no tree of nodes."""
    content = read_json_file(path, TOOL, _REMEDY)
    items = list_json_objects(content)
    roots = [item for item in items if "frame" in item]
    if not roots:
        raise ReportError(path, TOOL, "it contains no call tree of Proton", _REMEDY)
    nodes = [node for root in roots for node in _walk_tree(root, (), path)]
    operations = list(_sum_launches_by_kernel(nodes))
    names = {name for node in nodes for name in node.metrics}
    other_metrics = sorted(name for name in names if name not in _KNOWN and not _FLOPS.match(name))
    text = f"other metrics of scopes, stored as summary values: {', '.join(other_metrics)}"
    return Report(
        tool=TOOL,
        path=path,
        form="Proton profile, sums of kernels in a call tree",
        devices=tuple(_read_devices([item for item in items if "frame" not in item], nodes)),
        operations=operations,
        summaries=tuple(_summarize_scopes(nodes)),
        gaps=tuple(_describe_missing_data(operations)),
        diagnostics=(Diagnostic("info", "perfctl", text),) if other_metrics else (),
    )


def _walk_tree(
    node: Json, outer_scopes: tuple[str, ...], file: Path, flops_around: Number | None = None
) -> Iterator[TreeNode]:
    if len(outer_scopes) > _DEEPEST:
        raise ReportError(file, TOOL, f"its tree is deeper than {_DEEPEST} scopes", _REMEDY)
    frame, metrics, below = node.get("frame"), node.get("metrics"), node.get("children") or []
    name = str(frame.get("name", "")) if isinstance(frame, dict) else ""
    if not isinstance(below, list):
        reason = f"the children of {name[:80] or 'a node'!r} are {below!r:.40}, not a list"
        raise ReportError(file, TOOL, reason, _REMEDY)
    children = list_json_objects(below)
    here = outer_scopes if not outer_scopes and name == "ROOT" else (*outer_scopes, name)
    stated: Json = metrics if isinstance(metrics, dict) else {}
    stated = {_OLD_NAMES.get(name, name): value for name, value in stated.items()}
    is_timed = all(parse_real(stated.get(metric)) is not None for metric in (TIME, COUNT))
    is_kernel = not children and is_timed and name != "ROOT"
    widths = [parse_real(value) for metric, value in stated.items() if _FLOPS.match(metric)]
    numbers = [value for value in widths if value is not None]
    flops = sum(numbers) if numbers else flops_around if is_kernel else None
    if here:
        yield TreeNode(here, stated, is_kernel, flops)
    has_one_kernel = bool(here) and len(children) == 1 and not children[0].get("children")
    for child in children:
        yield from _walk_tree(child, here, file, flops if has_one_kernel else None)


def _sum_launches_by_kernel(nodes: list[TreeNode]) -> Iterator[Operation]:
    """Yield one for each kernel name: launches, time, and FLOPs if all of its launches have
    them stated."""
    kernels: dict[str, list[TreeNode]] = {}
    for node in nodes:
        if node.is_kernel:
            kernels.setdefault(node.path[-1], []).append(node)
    for name, launches in kernels.items():
        stated = [node.flops for node in launches]
        flops = None if None in stated else round(sum(filter(None, stated)))
        calls, time = (
            round(sum(node.get_metric_or_zero(key) for node in launches)) for key in (COUNT, TIME)
        )
        yield Operation(name, "kernel", calls, None, None, time, None, flops)


def _summarize_scopes(nodes: list[TreeNode]) -> Iterator[Summary]:
    """Yield what scopes state, and the time and launches of the kernels in them."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for node in nodes:
        for depth in range(1, len(node.path)) if node.is_kernel else ():
            entry = sums.setdefault(node.path[:depth], [0, 0])
            entry[0] += node.get_metric_or_zero(COUNT)
            entry[1] += node.get_metric_or_zero(TIME)
    for node in nodes:
        if node.is_kernel:
            continue
        label = "scope " + " / ".join(node.path)
        label = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 3]}..."
        if node.path in sums:  # a scope without a kernel may have one that states no time
            launches, time = sums.pop(node.path)
            yield Summary(f"{label}: launches", launches, None)
            yield Summary(f"{label}: time", time, "ns")
        for name, stated in node.metrics.items():
            value = parse_real(stated) if name not in (TIME, COUNT) else None
            unit = "flop" if _FLOPS.match(name) else "byte" if name == "bytes" else None
            if value is not None:
                yield Summary(f"{label}: {name}", value, unit)


def _read_devices(listed: list[Json], nodes: list[TreeNode]) -> Iterator[Device]:
    """Yield the devices, those that ran kernels first."""
    used = {str(node.metrics.get("device_id")) for node in nodes if node.is_kernel}
    devices = [
        (str(number), kind, facts)
        for item in listed
        for kind, group in item.items()
        if isinstance(group, dict)
        for number, facts in group.items()
        if isinstance(facts, dict) and str(number).isdecimal() and len(str(number)) < 9
    ]
    for number, kind, facts in sorted(devices, key=lambda entry: (entry[0] not in used, entry[0])):
        fields = read_json_fields(_DEVICE, facts)
        arch, clock = fields["arch"], fields["clock"]
        memory_clock, width = fields["memory_clock"], fields["width"]
        capability = arch.split(":")[0] if arch.startswith("gfx") else None
        if kind == "CUDA" and arch.isdecimal() and len(arch) > 1:
            capability = f"{arch[:-1]}.{arch[-1]}"
        yield Device(
            name=None,
            kind="gpu",
            index=int(number),
            compute_capability=capability,
            sm_count=fields["sms"] or None,
            # two transfers a cycle of the memory's clock; the bus is in bits
            memory_bandwidth_bps=round(2 * memory_clock * 1000 * width / 8)
            if memory_clock and width and kind == "CUDA"
            else None,
            clock_hz=round(clock * 1000) if clock else None,
        )


def _describe_missing_data(operations: list[Operation]) -> Iterator[Gap]:
    reason = "Proton sums kernels over their launches, without single launches, starts or grids"
    yield Gap("kernel", "not_available", reason)
    yield Gap("copy", "not_available", "Proton records no copies")
    reason = "Proton names no GPU; set it with perfctl ingest --device-name"
    yield Gap("device.name", "not_available", reason)
    if not operations:
        reason = f"no node states the time and the launches of a kernel ({TIME!r}, {COUNT!r})"
        yield Gap("operation", "not_available", reason)
    stated = sum(operation.flops is not None for operation in operations)
    if stated < len(operations):
        reason = (
            f"{stated} of {len(operations)} kernels have them: the program states them by a "
            "proton.scope with flops16=... around a single kernel"
        )
        yield Gap("operation.flops", "not_available", reason)
