"""DLProf's CSV reports: a folder of them, or one alone.

Numbers are taken as printed: a percentage of 0.0 may be up to 0.05, since DLProf rounds to one decimal.
An op name such as "/module/net::forward/Conv2d::forward/conv2d" is a path of classes, not of modules, so it
gives no layer; a range "conv2:forward" in it, or a dotted module path, does.
"""

from __future__ import annotations

import re
from pathlib import Path

from perfctl.parsers.dlprof_summary import read_summary
from perfctl.parsers.dlprof_tables import Table, kind_of, members, read_table
from perfctl.parsers.errors import ReportError
from perfctl.parsers.records import (
    Diagnostic,
    Gap,
    Kernel,
    Operation,
    RangeName,
    Report,
    Summary,
    read_range_name,
)

_DIRECTIONS = {"fprop": "forward", "fwd": "forward", "bprop": "backward", "bwd": "backward"}
_TOTALS = (("total cpu time (ns)", "CPU Time"), ("total gpu time (ns)", "GPU Time"))
_MODULE_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)+\Z")
_REPEATED = re.compile(r"\[\d+\]\Z")
_NEVER = ("stream", "registers", "static_shared_bytes", "dynamic_shared_bytes")
_MISSING = {
    "iteration": ("kernel", "launches one by one", "iteration"),
    "detail": ("operation", "operations", "detail"),
    "summary": ("summary", "utilisation and iteration figures, versions and devices", "summary"),
}


def sniff(path: Path, head: bytes) -> bool:
    """A CSV whose title or columns are DLProf's, or a folder that is one DLProf report."""
    return bool(members(path)) if path.is_dir() else kind_of(head) is not None


def parse(path: Path) -> Report:
    """Read one folder or file. Raises ReportError when a file in it is cut off or broken."""
    files = _files(path)
    tables = {kind: read_table(file, kind) for kind, file in files.items() if kind != "summary"}
    summary = read_summary(files["summary"]) if "summary" in files else None
    summaries = list(summary.summaries) if summary else []
    found_kernels = _kernels(tables["iteration"]) if "iteration" in tables else []
    return Report(
        tool="dlprof",
        path=path,
        form="DLProf CSV: " + ", ".join(sorted(files)),
        tool_version=summary.tool_version if summary else None,
        devices=summary.devices if summary else (),
        environment=summary.environment if summary else {},
        kernels=found_kernels,
        operations=_operations(tables["detail"]) if "detail" in tables else (),
        summaries=tuple(summaries + _table_summaries(tables)),
        gaps=tuple(_gaps(files, path, found_kernels) + (list(summary.gaps) if summary else [])),
        diagnostics=tuple(_diagnostics(tables, files, path)),
        duration_ns=summary.wall_clock_ns if summary else None,
    )


def _files(path: Path) -> dict[str, Path]:
    if path.is_dir():
        found = members(path)
    else:
        with path.open("rb") as file:
            kind = kind_of(file.read(4096))
        found = {kind: path} if kind else {}
    if not found:
        raise ReportError(
            path, "dlprof", "no CSV report of DLProf", "Give the folder that dlprof's --output_path named"
        )
    return found


def _kernels(table: Table) -> list[Kernel]:
    """One record a launch, in the order of the iteration report."""
    found = []
    for launch, row in enumerate(table.rows):
        place, source = _layer(row["op name"])
        short = row["kernel name"]
        step = place.step if place.step is not None else _whole(row["iteration"])
        found.append(
            Kernel(
                launch=launch,
                name=row.get("long kernel name") or short,
                short_name=short or None,
                layer=place.layer,
                direction=place.direction or _DIRECTIONS.get(row.get("direction", "")),
                step=step,
                layer_source=source,
                device_index=_whole(row.get("device id")),
                grid_x=_whole(row.get("grid x")),
                grid_y=_whole(row.get("grid y")),
                grid_z=_whole(row.get("grid z")),
                block_x=_whole(row.get("block x")),
                block_y=_whole(row.get("block y")),
                block_z=_whole(row.get("block z")),
                start_ns=_whole(row["gpu start time (ns)"]),
                duration_ns=_whole(row.get("gpu duration (ns)")),
            )
        )
    return found


def _operations(table: Table) -> list[Operation]:
    """One record a row of the detail report: each op of the model by itself, summed over its calls."""
    found = []
    for row in table.rows:
        place, _ = _layer(row["op name"])
        calls = _whole(row["no calls"])
        if calls is None:
            continue
        found.append(
            Operation(
                name=row["op name"],
                category=row["op type"] or None,
                calls=calls,
                cpu_ns=_whole(row["total cpu time (ns)"]),
                self_cpu_ns=None,
                device_ns=_whole(row.get("total gpu time (ns)")),
                memory_bytes=None,
                flops=None,
                layer=place.layer,
                direction=place.direction or _DIRECTIONS.get(row.get("direction", "")),
            )
        )
    return found


def _table_summaries(tables: dict[str, Table]) -> list[Summary]:
    """What no kernel or operation record holds: sums by name, where the finer report is absent; tensor core use."""
    found = []
    for row in tables["tensor_core"].rows if "tensor_core" in tables else ():
        op = row.get("op id") or row["op name"]
        found.append(_figure(f"TC Utilization: {op}", row["tc utilization (%)"], "%"))
    sums: list[str] = [kind for kind in ("op_type", "group_op") if kind in tables and "detail" not in tables]
    if "kernel" in tables and "iteration" not in tables:
        sums.append("kernel")
    for kind in sums:
        label, calls = {
            "op_type": ("op type", "# calls"),
            "group_op": ("name", "num calls aggregated"),
            "kernel": ("kernel name", "calls"),
        }[kind]
        for row in tables[kind].rows:
            name = f"{kind}: {row[label]}" + (f" in {row.get('op id') or row['op name']}" if kind == "kernel" else "")
            if calls in row:
                found.append(_figure(f"{name}: Calls", row[calls], None))
            found += [_figure(f"{name}: {text}", row[total], "ns") for total, text in _TOTALS if total in row]
    return found


def _gaps(files: dict[str, Path], path: Path, kernels: list[Kernel]) -> list[Gap]:
    gaps = []
    for kind, (quantity, what, option) in _MISSING.items():
        if kind not in files:
            reason = f"no {kind} report here, so no {what}: run dlprof with --reports={option},..."
            gaps.append(Gap(quantity, "not_collected", reason))
    reason = "DLProf's CSV reports list no memcpy or memset, and no streams, registers or shared memory of kernels"
    gaps.append(Gap("copy", "not_available", reason))
    if "iteration" in files:
        gaps += [Gap(f"kernel.{name}", "not_available", reason) for name in _NEVER]
        unplaced = sum(kernel.layer is None for kernel in kernels)
        if unplaced:
            reason = f"{unplaced} of {len(kernels)} launches have an op name that is no module path (a path of classes)"
            gaps.append(Gap("kernel.layer", "not_collected", reason))
    if "detail" in files:
        reason = "DLProf reports neither memory, FLOPs nor CPU time without children"
        gaps += [Gap(f"operation.{name}", "not_available", reason) for name in ("memory_bytes", "flops", "self_cpu_ns")]
    if path.is_dir():
        for file in sorted(path.glob("dlprof_*.csv")):
            if file not in files.values():
                gaps.append(Gap(file.name, "unreadable", f"{file.name} is empty or no report of DLProf"))
    return gaps


def _diagnostics(tables: dict[str, Table], files: dict[str, Path], path: Path) -> list[Diagnostic]:
    found = []
    beside = sorted(file.name for file in path.iterdir() if file.is_file()) if path.is_dir() else []
    beside = [name for name in beside if name not in {file.name for file in files.values()} and name[0] != "."]
    if beside:
        text = f"read as one DLProf report; other files in the folder were not read: {', '.join(beside[:10])}"
        found.append(Diagnostic("info", "perfctl", text))
    for row in tables["expert_systems"].rows if "expert_systems" in tables else ():
        found.append(Diagnostic("info", "DLProf expert systems", f"{row['problem']}. {row['recommendation']}"))
    if "summary" in files:
        text = "DLProf rounds percentages to one decimal in CSV: 0.0 % is anything below 0.05 %"
        found.append(Diagnostic("info", "perfctl", text))
    return found


def _layer(op_name: str) -> tuple[RangeName, str | None]:
    """(layer, direction and step, how they were found) that an op name gives; all None for a path of classes."""
    layer = RangeName()
    step = None
    for part in op_name.split("/"):
        name = read_range_name(_REPEATED.sub("", part))
        layer = name if name.layer is not None else layer
        step = name.step if name.step is not None else step
    if layer.layer is not None:
        return layer._replace(step=step), "range"
    if _MODULE_PATH.match(op_name):
        return RangeName(layer=op_name, step=step), "operation"
    return RangeName(step=step), None


def _figure(name: str, text: str, unit: str | None) -> Summary:
    try:
        return Summary(name, float(text), unit)
    except ValueError:
        return Summary(name, None, unit, text)


def _whole(text: str | None) -> int | None:
    """An integer, or a whole number printed with ".0"; None for all else."""
    try:
        return int(text or "")
    except ValueError:
        pass
    try:
        number = float(text or "")
    except ValueError:
        return None
    return int(number) if number.is_integer() else None
