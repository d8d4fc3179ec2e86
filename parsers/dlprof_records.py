"""Records from the rows of DLProf's tables, by column name; the same for CSV, JSON and database.

Numbers stay as printed: a percentage of 0.0 may be up to 0.05, since DLProf rounds to one decimal.
An op name such as "/module/net::_call_impl/net::forward/Conv2d::_call_impl[2]/Conv2d::forward/conv2d" is a path of
classes in which calls of modules are numbered within their parent: the layer is called Conv2d_2 then. A range
"conv2:forward" in it, or a dotted module path, says more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from math import isfinite

from perfctl.parsers.range_names import RangeName, read_range_name
from perfctl.parsers.records import Diagnostic, Gap, Kernel, Operation, Summary

Row = Mapping[str, str]
"""Normalised column name (dlprof_tables.column) -> cell."""

DIRECTIONS = {"fprop": "forward", "fwd": "forward", "bprop": "backward", "bwd": "backward"}
_TOTALS = (("total cpu time (ns)", "CPU Time"), ("total gpu time (ns)", "GPU Time"))
_MODULE_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)+\Z")
_CALL = re.compile(r"([A-Za-z_]\w*)::(?:_call_impl|__call__)(?:\[(\d+)\])?\Z")
_SINGLE_OPERATION = re.compile(
    r"(Lazy)?(Conv|Linear|Bilinear|Embedding|BatchNorm|LayerNorm|GroupNorm|InstanceNorm|MaxPool|AvgPool|Adaptive|ReLU|GELU"
    r"|SiLU|Sigmoid|Tanh|Softmax|LogSoftmax|Dropout|Flatten)"
)
"""Modules of torch that run a single operation of the same name."""
_REPEATED = re.compile(r"\[\d+\]\Z")
_NEVER = ("stream", "registers", "static_shared_bytes", "dynamic_shared_bytes")
_MISSING = {
    "iteration": ("kernel", "single launches", "iteration"),
    "detail": ("operation", "operations", "detail"),
    "summary": ("summary", "utilisation and iteration figures, versions and devices", "summary"),
}
_LARGEST = 2**63 - 1


def kernels(rows: Iterable[Row]) -> list[Kernel]:
    """One record a launch, in the order of the iteration report."""
    found = []
    for launch, row in enumerate(rows):
        place, source = layer_of(row["op name"])
        short = row["kernel name"]
        step = place.step if place.step is not None else whole(row["iteration"])
        found.append(
            Kernel(
                launch=launch,
                name=row.get("long kernel name") or short,
                short_name=short or None,
                layer=place.layer,
                direction=place.direction or DIRECTIONS.get(row.get("direction", "")),
                step=step,
                layer_source=source,
                device_index=whole(row.get("device id")),
                grid_x=whole(row.get("grid x")),
                grid_y=whole(row.get("grid y")),
                grid_z=whole(row.get("grid z")),
                block_x=whole(row.get("block x")),
                block_y=whole(row.get("block y")),
                block_z=whole(row.get("block z")),
                start_ns=whole(row["gpu start time (ns)"]),
                duration_ns=whole(row.get("gpu duration (ns)")),
            )
        )
    return found


def operations(rows: Iterable[Row]) -> list[Operation]:
    """One record a row of the detail report: each op of the model by itself, summed over its calls."""
    found = []
    for row in rows:
        place, _ = layer_of(row["op name"])
        calls = whole(row["no calls"])
        if calls is None:
            continue
        found.append(
            Operation(
                name=row["op name"],
                category=row["op type"] or None,
                calls=calls,
                cpu_ns=whole(row["total cpu time (ns)"]),
                self_cpu_ns=None,
                device_ns=whole(row.get("total gpu time (ns)")),
                memory_bytes=None,
                flops=None,
                layer=place.layer,
                direction=place.direction or DIRECTIONS.get(row.get("direction", "")),
            )
        )
    return found


def table_summaries(tables: Mapping[str, Collection[Row]]) -> list[Summary]:
    """Figures without a record of their own: sums by name where the finer report is missing, and use of tensor cores."""
    found = []
    for row in tables.get("tensor_core", ()):
        op = row.get("op id") or row["op name"]
        found.append(figure(f"TC Utilization: {op}", row["tc utilization (%)"], "%"))
    sums: list[str] = [kind for kind in ("op_type", "group_op") if kind in tables and "detail" not in tables]
    if "kernel" in tables and "iteration" not in tables:
        sums.append("kernel")
    for kind in sums:
        label, calls = {
            "op_type": ("op type", "# calls"),
            "group_op": ("name", "num calls aggregated"),
            "kernel": ("kernel name", "calls"),
        }[kind]
        for row in tables[kind]:
            name = f"{kind}: {row[label]}" + (f" in {row.get('op id') or row['op name']}" if kind == "kernel" else "")
            if calls in row:
                found.append(figure(f"{name}: Calls", row[calls], None))
            found += [figure(f"{name}: {text}", row[total], "ns") for total, text in _TOTALS if total in row]
    return found


def gaps_of(kinds: Collection[str], found: Collection[Kernel]) -> list[Gap]:
    """Gaps of reports of these kinds ("iteration", "detail", "summary", ...); ``found`` are their launches."""
    gaps = []
    for kind, (quantity, what, option) in _MISSING.items():
        if kind not in kinds:
            reason = f"no {kind} report, so no {what}: run dlprof with --reports={option},..."
            gaps.append(Gap(quantity, "not_collected", reason))
    reason = "DLProf's reports list no memcpy or memset, and no streams, registers or shared memory of kernels"
    gaps.append(Gap("copy", "not_available", reason))
    if "iteration" in kinds:
        gaps += [Gap(f"kernel.{name}", "not_available", reason) for name in _NEVER]
        gaps += layer_gap(found)
    if "detail" in kinds:
        gaps += operation_gaps()
    return gaps


def layer_gap(found: Collection[Kernel]) -> list[Gap]:
    """One gap when launches could not be assigned to a layer."""
    unplaced = sum(kernel.layer is None for kernel in found)
    if not unplaced:
        return []
    reason = f"{unplaced} of {len(found)} launches have an op name outside every module"
    return [Gap("kernel.layer", "not_collected", reason)]


def operation_gaps() -> list[Gap]:
    """Gaps of operations that every form of DLProf has."""
    reason = "DLProf reports neither memory, FLOPs nor CPU time without children"
    return [Gap(f"operation.{name}", "not_available", reason) for name in ("memory_bytes", "flops", "self_cpu_ns")]


def feedback(problems: Iterable[tuple[str, str]]) -> list[Diagnostic]:
    """Expert systems feedback: (problem, recommendation) each."""
    return [Diagnostic("info", "DLProf expert systems", f"{problem}. {advice}") for problem, advice in problems]


def layer_of(op_name: str) -> tuple[RangeName, str | None]:
    """(layer, direction and step, how they were found) that an op name gives; all None where it lies in no module's call."""
    layer = RangeName()
    step = None
    for part in op_name.split("/"):
        name = read_range_name(_REPEATED.sub("", part))
        layer = name if name.layer is not None else layer
        step = name.step if name.step is not None else step
    if layer.layer is not None:
        return layer._replace(step=step), "range"
    path = op_name if _MODULE_PATH.match(op_name) else _called(op_name)
    if path is not None:
        return RangeName(layer=path, step=step), "operation"
    return RangeName(step=step), None


def _called(op_name: str) -> str | None:
    """The modules whose calls an op lies in, below the outermost one, which itself goes by its class; None without any.

    DLProf 1.8 puts a functional operation into the module that ran before it (max_pool2d into Conv2d): then it belongs
    to the module around that.
    """
    calls = [match for part in op_name.split("/") if (match := _CALL.match(part))]
    if not calls:
        return None
    names = [f"{match[1]}_{match[2] or 1}" for match in calls[1:]]
    last, operation = calls[-1][1], op_name.rpartition("/")[2].replace("_", "").lower()
    if names and _SINGLE_OPERATION.match(last) and not last.removeprefix("Lazy").lower().startswith(operation):
        names.pop()
    return ".".join(names) or calls[0][1]


def figure(name: str, text: str, unit: str | None) -> Summary:
    """A summary from a printed number; any other text is kept as text."""
    try:
        number = float(text)
    except ValueError:
        return Summary(name, None, unit, text)
    return Summary(name, number, unit) if isfinite(number) else Summary(name, None, unit, text)


def whole(text: str | None) -> int | None:
    """An integer of 64 bits, or a whole number printed with ".0"; None for anything else."""
    try:
        number = int(text or "")
    except ValueError:
        try:
            value = float(text or "")
        except ValueError:
            return None
        if not value.is_integer():
            return None
        number = int(value)
    return number if abs(number) <= _LARGEST else None
