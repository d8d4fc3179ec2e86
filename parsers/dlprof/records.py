"""Records from the rows of DLProf's tables, by column name; the same for CSV, JSON and database.

Numbers stay as printed: a percentage of 0.0 may be up to 0.05, since DLProf rounds to one decimal.
An op name such as
"/module/net::_call_impl/net::forward/Conv2d::_call_impl[2]/Conv2d::forward/conv2d" is a path of
classes in which calls of modules are numbered within their parent: the layer is called Conv2d_2
then. A range "conv2:forward" in it, or a dotted module path, says more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from perfctl.parsers.common.doubts import newer, not_understood, numbering, others
from perfctl.parsers.common.tables import Column, read_object, read_text
from perfctl.parsers.dlprof.tables import KNOWN, figure
from perfctl.records.ranges import RangeName, read_range_name
from perfctl.records.report import Diagnostic, Gap, Kernel, Operation, Report, Summary

Row = Mapping[str, str]
"""Normalised column name (dlprof_tables.column) -> cell."""

DIRECTIONS = {"fprop": "forward", "fwd": "forward", "bprop": "backward", "bwd": "backward"}
_SUMMED = (
    ("op_type", "detail", "op type", "# calls"),
    ("group_op", "detail", "name", "num calls aggregated"),
    ("kernel", "iteration", "kernel name", "calls"),
)
"""Report of sums by name, the finer report that makes it needless, its columns of names and
of calls."""
_TIMES = (("total cpu time (ns)", "CPU Time", "ns"), ("total gpu time (ns)", "GPU Time", "ns"))
_MODULE_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)+\Z")
_CALL = re.compile(r"([A-Za-z_]\w*)::(?:_call_impl|__call__)(?:\[(\d+)\])?\Z")
_SINGLE_OPERATION = re.compile(
    "(Lazy)?(Conv|Linear|Bilinear|Embedding|BatchNorm|LayerNorm|GroupNorm|InstanceNorm|MaxPool|"
    "AvgPool|Adaptive|ReLU|GELU|SiLU|Sigmoid|Tanh|Softmax|LogSoftmax|Dropout|Flatten)"
)
"""Modules of torch that run a single operation of the same name."""
_REPEATED = re.compile(r"\[\d+\]\Z")
_MISSING = {
    "iteration": ("kernel", "single launches"),
    "detail": ("operation", "operations"),
    "summary": ("summary", "utilisation and iteration figures, versions and devices"),
}
_OP_ID = re.compile(r"(.+)_(\d{1,6})")
"""Ops are called CONV2D_1, CONV2D_2, ...; forward and backward share a number."""
NEWEST = "1.8"

SIZES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_LAUNCH = (
    Column("op name", field="op", read=read_text),
    Column("direction", read=read_text),
    Column("kernel name", field="short", read=read_text),
    Column("long kernel name", field="long", read=read_text),
    Column("iteration", field="step"),
    Column("device id", field="device"),
    *(Column(name.replace("_", " "), field=name) for name in SIZES),
    Column("gpu start time (ns)", "ns", "start"),
    Column("gpu duration (ns)", "ns", "duration"),
)
_OPERATION = (
    Column("op name", field="op", read=str),
    Column("op type", field="type", read=read_text),
    Column("direction", read=read_text),
    Column("no calls", field="calls"),
    Column("total cpu time (ns)", "ns", "cpu"),
    Column("total gpu time (ns)", "ns", "gpu"),
)


def kernel_records(rows: Iterable[Row]) -> list[Kernel]:
    """Return one record per launch, in the order of the iteration report."""
    return [
        make_kernel(launch, read_object(_LAUNCH, row), nameless="")
        for launch, row in enumerate(rows)
    ]


def make_kernel(launch: int, fields: Mapping[str, Any], nameless: str) -> Kernel:
    """Return the launch that these fields describe: op, direction, step, short and long (its
    names), device, grid_x..z, block_x..z, start, duration."""
    layer, direction, step, source = place_op(fields["op"], fields["direction"], fields["step"])
    return Kernel(
        launch,
        fields["long"] or fields["short"] or nameless,
        fields["short"],
        layer,
        direction,
        step,
        source,
        device_index=fields["device"],
        **{size: fields[size] for size in SIZES},
        start_ns=fields["start"],
        duration_ns=fields["duration"],
    )


def operations(rows: Iterable[Row]) -> list[Operation]:
    """Return one record per row of the detail report: each op of the model, summed over its
    calls."""
    return make_operations(read_object(_OPERATION, row) for row in rows)


def make_operations(rows: Iterable[Mapping[str, Any]]) -> list[Operation]:
    """Return the ops that these fields describe: op, type, direction, calls, cpu, gpu. One without
    a number of calls is none."""
    records = []
    for row in rows:
        if row["calls"] is not None:
            layer, direction, *_ = place_op(row["op"], row["direction"])
            figures = (row["calls"], row["cpu"], None, row["gpu"], None, None)
            records.append(Operation(row["op"], row["type"], *figures, layer, direction))
    return records


def place_op(
    op_name: str | None, direction: object, iteration: int | None = None
) -> tuple[str | None, str | None, int | None, str | None]:
    """Return (layer, direction, step, how the layer was found) by the name of an op, else by
    DLProf's own columns."""
    place, source = layer_of(op_name or "")
    step = place.step if place.step is not None else iteration
    return place.layer, place.direction or DIRECTIONS.get(str(direction)), step, source


def table_summaries(tables: Mapping[str, Collection[Row]]) -> list[Summary]:
    """Figures without a record of their own: sums by name where the finer report is missing, and
    use of tensor cores."""
    summaries = []
    for row in tables.get("tensor_core", ()):
        op = row.get("op id") or row["op name"]
        summaries.append(figure(f"TC Utilization: {op}", row["tc utilization (%)"], "%"))
    for kind, finer, label, calls in _SUMMED:
        for row in tables.get(kind, ()) if finer not in tables else ():
            name = f"{kind}: {row[label]}"
            if kind == "kernel":
                name += f" in {row.get('op id') or row['op name']}"
            for key, what, unit in ((calls, "Calls", None), *_TIMES):
                if key in row:
                    summaries.append(figure(f"{name}: {what}", row[key], unit))
    return summaries


def gaps_of(kinds: Collection[str], found: Collection[Kernel]) -> list[Gap]:
    """Gaps of reports of these kinds ("iteration", "detail", "summary", ...); ``found`` are
    their launches."""
    gaps = []
    for kind, (quantity, what) in _MISSING.items():
        if kind not in kinds:
            reason = f"no {kind} report, so no {what}: add {kind} to dlprof's --reports"
            gaps.append(Gap(quantity, "not_collected", reason))
    reason = (
        "DLProf's reports list no memcpy or memset, and no streams, registers or shared memory of "
        "kernels"
    )
    gaps.append(Gap("copy", "not_available", reason))
    if "iteration" in kinds:
        gaps += [*never(reason), *layer_gap(found)]
    return [*gaps, *(operation_gaps() if "detail" in kinds else ())]


def never(reason: str) -> list[Gap]:
    """Gaps of what no form of DLProf says about kernels."""
    fields = ("stream", "registers", "static_shared_bytes", "dynamic_shared_bytes")
    return [Gap(f"kernel.{name}", "not_available", reason) for name in fields]


def layer_gap(found: Collection[Kernel]) -> list[Gap]:
    """One gap when launches could not be assigned to a layer."""
    unplaced = sum(kernel.layer is None for kernel in found)
    reason = f"{unplaced} of {len(found)} launches have an op name outside every module"
    return [Gap("kernel.layer", "not_collected", reason)] if unplaced else []


def operation_gaps() -> list[Gap]:
    """Gaps of operations that every form of DLProf has."""
    reason = "DLProf reports neither memory, FLOPs nor CPU time without children"
    return [
        Gap(f"operation.{name}", "not_available", reason)
        for name in ("memory_bytes", "flops", "self_cpu_ns")
    ]


def feedback(problems: Iterable[tuple[str, str]]) -> list[Diagnostic]:
    """Expert systems feedback: (problem, recommendation) each."""
    return [
        Diagnostic("info", "DLProf expert systems", f"{problem}. {advice}")
        for problem, advice in problems
    ]


def layer_of(op_name: str) -> tuple[RangeName, str | None]:
    """(layer, direction and step, how they were found) that an op name gives; all None where it
    lies in no module's call."""
    names = [read_range_name(_REPEATED.sub("", part)) for part in reversed(op_name.split("/"))]
    step = next((name.step for name in names if name.step is not None), None)
    if layer := next((name for name in names if name.layer is not None), None):
        return layer._replace(step=step), "range"
    path = op_name if _MODULE_PATH.match(op_name) else _called(op_name)
    return RangeName(layer=path, step=step), None if path is None else "operation"


def _called(op_name: str) -> str | None:
    """The modules whose calls an op lies in, below the outermost one, which itself goes by its
    class; None without any.

    DLProf 1.8 puts a functional operation into the module that ran before it (max_pool2d into
    Conv2d): then it belongs to the module around that.
    """
    calls = [match for part in op_name.split("/") if (match := _CALL.match(part))]
    if not calls:
        return None
    names = [f"{match[1]}_{match[2] or 1}" for match in calls[1:]]
    last, operation = calls[-1][1], op_name.rpartition("/")[2].replace("_", "").lower()
    if (
        names
        and _SINGLE_OPERATION.match(last)
        and not last.removeprefix("Lazy").lower().startswith(operation)
    ):
        names.pop()
    return ".".join(names) or calls[0][1]


def describe_tables(
    tables: Mapping[str, Sequence[Row]], version: str | None
) -> tuple[Diagnostic, ...]:
    """Return what is not known in the tables of CSV or JSON reports ("kind.column"), and which
    ops are missing."""
    unknown = [
        f"{kind}.{name}"
        for kind, rows in tables.items()
        for name in others(rows[0] if rows else (), KNOWN["columns"].get(kind, ()), KNOWN["sums"])
    ]
    numbers: dict[str, set[int]] = {}
    for row in tables.get("detail", ()):
        if match := _OP_ID.fullmatch(row.get("op id", "")):
            numbers.setdefault(match[1], set()).add(int(match[2]))
    return (
        *not_understood({"columns": unknown}),
        *newer("DLProf", version, NEWEST),
        *(
            note
            for name, ids in numbers.items()
            for note in numbering(f"ops of the type {name[:60]} with the numbers", ids, first=1)
        ),
    )


def report(
    path: Path,
    form: str,
    tables: Mapping[str, Sequence[Row]],
    summary: Report | None,
    files: Collection[Path],
    notes: Iterable[Diagnostic],
) -> Report:
    """Return the report of these tables (kind -> rows) and the facts of a summary. ``files``: those
    that were read; ``notes``: on the form."""
    facts = summary or Report("dlprof", path, "")
    kinds = sorted([*tables, "summary"] if summary else tables)
    kernels = kernel_records(tables.get("iteration", ()))
    advice = ((row["problem"], row["recommendation"]) for row in tables.get("expert_systems", ()))
    beside = [
        entry.name
        for entry in (sorted(path.iterdir()) if path.is_dir() else [])
        if entry not in files and entry.name[0] != "." and entry.is_file()
    ]
    unread = [name for name in beside if form == "CSV" and fnmatch(name, "dlprof_*.csv")]
    shown = ", ".join(beside[:10])
    text = f"read as one DLProf report; other files in the folder were not read: {shown}"
    return replace(
        facts,
        path=path,
        form=f"DLProf {form}: {', '.join(kinds)}",
        kernels=kernels,
        operations=operations(tables.get("detail", ())),
        summaries=(*facts.summaries, *table_summaries(tables)),
        gaps=(
            *gaps_of(kinds, kernels),
            *(
                Gap(name, "unreadable", f"{name} is empty or not a DLProf report")
                for name in unread
            ),
            *facts.gaps,
        ),
        diagnostics=(
            *notes,
            *([Diagnostic("info", "perfctl", text)] if beside else ()),
            *feedback(advice),
            *facts.diagnostics,
            *describe_tables(tables, facts.tool_version),
        ),
    )
