"""Records from the rows of DLProf's tables, by column name; the same for CSV, JSON and database.

Numbers stay as printed: a percentage of 0.0 may be up to 0.05, since DLProf rounds to one decimal.
An op name such as
"/module/net::_call_impl/net::forward/Conv2d::_call_impl[2]/Conv2d::forward/conv2d" is a path of
classes in which calls of modules are numbered within their parent: the layer is called Conv2d_2
then. A range "conv2:forward" in it, or a dotted module path, says more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from math import isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.common.doubts import (
    list_unknown_names,
    make_missing_numbers_warning,
    make_newer_version_note,
    make_unknown_names_warning,
)
from perfctl.parsers.common.tables import FieldColumn, nonempty_text_or_none, read_json_fields
from perfctl.records.ranges import RangeName, parse_range_name
from perfctl.records.report import Device, Diagnostic, Gap, Kernel, Operation, Report, Summary

KNOWN: Any = json.loads(Path(__file__).with_name("known.json").read_text())
"""Columns of the reports, tables and columns of the database, read or not, and how its figures
are called."""
HEADERS: dict[str, list[str]] = KNOWN["headers"]
"""Kind of report -> columns that only it has together."""
SUMMARY_WORDS = frozenset(KNOWN["summary_words"])
"""Titles and labels of the summary; two of them tell it from other files."""
NEWEST = "1.8"
Row = Mapping[str, str]
"""Normalised column name -> cell."""


class SummaryBlock(NamedTuple):
    """One titled block of the summary."""

    title: str
    columns: tuple[str, ...]
    """Names of the value columns; empty where each line is a label and one value."""
    lines: list[tuple[str, tuple[str, ...]]]
    """(label, values)"""


_DIRECTIONS = {"fprop": "forward", "fwd": "forward", "bprop": "backward", "bwd": "backward"}
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
    "summary": ("summary", "utilization and iteration values, versions and devices"),
}
_OP_ID = re.compile(r"(.+)_(\d{1,6})")
"""Ops are called CONV2D_1, CONV2D_2, ...; forward and backward share a number."""
_UNIT = re.compile(r"(?P<name>.*?)\s*(?:\((?P<time>ns|us|ms)\)|(?P<percent>%))\Z")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")
_SIZES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
LAUNCH = (
    FieldColumn("op name", field="op", read=nonempty_text_or_none),
    FieldColumn("direction", read=nonempty_text_or_none),
    FieldColumn("kernel name", field="short", read=nonempty_text_or_none),
    FieldColumn("long kernel name", field="long", read=nonempty_text_or_none),
    FieldColumn("iteration", field="step"),
    FieldColumn("device id", field="device"),
    *(FieldColumn(name.replace("_", " "), field=name) for name in _SIZES),
    FieldColumn("gpu start time (ns)", "ns", "start"),
    FieldColumn("gpu duration (ns)", "ns", "duration"),
)
OPERATION = (
    FieldColumn("op name", field="op", read=str),
    FieldColumn("op type", field="type", read=nonempty_text_or_none),
    FieldColumn("direction", read=nonempty_text_or_none),
    FieldColumn("no calls", field="calls"),
    FieldColumn("total cpu time (ns)", "ns", "cpu"),
    FieldColumn("total gpu time (ns)", "ns", "gpu"),
)


def normalize_column_name(name: str) -> str:
    """Return a column's name as tables are read by: "Avg. CPU Time (ns)" is "avg cpu time (ns)"."""
    return " ".join(name.strip().lower().replace(".", "").split())


def find_report_kind_by_columns(columns: Iterable[str]) -> str | None:
    """Return the kind of report that has these columns."""
    names = set(columns)
    return next((kind for kind, header in HEADERS.items() if names.issuperset(header)), None)


def make_kernel(launch: int, fields: Mapping[str, Any]) -> Kernel:
    """Return the launch that the fields of LAUNCH describe."""
    range_name, source = find_layer_of_op_and_evidence(
        fields["op"] or "", fields["direction"], fields["step"]
    )
    return Kernel(
        launch,
        fields["long"] or fields["short"] or "",
        fields["short"],
        range_name.layer,
        range_name.direction,
        range_name.step,
        source,
        device_index=fields["device"],
        **{size: fields[size] for size in _SIZES},
        start_ns=fields["start"],
        duration_ns=fields["duration"],
    )


def make_operations(rows: Iterable[Mapping[str, Any]]) -> Iterator[Operation]:
    """Yield the ops that the fields of OPERATION describe, each summed over its calls. One
    without a number of calls is none."""
    for row in rows:
        if row["calls"] is not None:
            range_name, _ = find_layer_of_op_and_evidence(row["op"], row["direction"])
            figures = (row["calls"], row["cpu"], None, row["gpu"], None, None)
            yield Operation(
                row["op"], row["type"], *figures, range_name.layer, range_name.direction
            )


def make_sums_and_tensor_core_summaries(tables: Mapping[str, Collection[Row]]) -> Iterator[Summary]:
    """Yield figures without a record of their own: sums by name where the finer report is missing,
    and use of tensor cores."""
    for row in tables.get("tensor_core", ()):
        op = row.get("op id") or row["op name"]
        yield make_summary(f"TC Utilization: {op}", row["tc utilization (%)"], "%")
    for kind, finer, label, calls in _SUMMED:
        for row in tables.get(kind, ()) if finer not in tables else ():
            name = f"{kind}: {row[label]}"
            if kind == "kernel":
                name += f" in {row.get('op id') or row['op name']}"
            for key, column, unit in ((calls, "Calls", None), *_TIMES):
                if key in row:
                    yield make_summary(f"{name}: {column}", row[key], unit)


def list_missing_kernel_field_gaps(kernels: Collection[Kernel], reason: str) -> Iterator[Gap]:
    """Yield the fields of launches that no form of DLProf has, for this reason, and how many
    launches have no layer."""
    for name in ("stream", "registers", "static_shared_bytes", "dynamic_shared_bytes"):
        yield Gap(f"kernel.{name}", "not_available", reason)
    if unplaced := sum(kernel.layer is None for kernel in kernels):
        reason = f"{unplaced} of {len(kernels)} launches have an op name outside of all modules"
        yield Gap("kernel.layer", "not_collected", reason)


def list_missing_operation_field_gaps() -> Iterator[Gap]:
    """Yield the fields of operations that no form of DLProf has."""
    reason = "DLProf reports neither memory, FLOPs nor CPU time without children"
    for name in ("memory_bytes", "flops", "self_cpu_ns"):
        yield Gap(f"operation.{name}", "not_available", reason)


def list_missing_report_gaps(kinds: Collection[str], kernels: Collection[Kernel]) -> Iterator[Gap]:
    """Yield the gaps of reports of these kinds ("iteration", "detail", "summary", ...), which have
    these launches."""
    for kind, (quantity, label) in _MISSING.items():
        if kind not in kinds:
            reason = f"no {kind} report, so no {label}: add {kind} to dlprof's --reports"
            yield Gap(quantity, "not_collected", reason)
    reason = (
        "DLProf's reports list no memcpy or memset, and no streams, registers or shared memory of "
        "kernels"
    )
    yield Gap("copy", "not_available", reason)
    if "iteration" in kinds:
        yield from list_missing_kernel_field_gaps(kernels, reason)
    if "detail" in kinds:
        yield from list_missing_operation_field_gaps()


def make_advice_diagnostic(problem: object, recommendation: object) -> Diagnostic:
    """Return one entry of the expert systems feedback."""
    return Diagnostic("info", "DLProf expert systems", f"{problem}. {recommendation}")


def find_layer_of_op_and_evidence(
    op_name: str, direction: str | None = None, iteration: int | None = None
) -> tuple[RangeName, str | None]:
    """Return layer, direction and step of an op by its name, else by DLProf's own columns, and how
    the layer was found. An op outside of every module's call has no layer."""
    names = [parse_range_name(_REPEATED.sub("", part)) for part in reversed(op_name.split("/"))]
    step = next((name.step for name in names if name.step is not None), iteration)
    direction = _DIRECTIONS.get(direction or "")
    if range_name := next((name for name in names if name.layer is not None), None):
        return range_name._replace(direction=range_name.direction or direction, step=step), "range"
    path = op_name if _MODULE_PATH.match(op_name) else _find_module_path(op_name)
    return RangeName(path, direction, step), None if path is None else "operation"


def _find_module_path(op_name: str) -> str | None:
    """Return the modules whose calls an op lies in, below the outermost one, which itself goes by
    its class; None without any.

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


def make_unknown_column_missing_op_notes(
    tables: Mapping[str, Sequence[Row]], version: str | None
) -> tuple[Diagnostic, ...]:
    """Return what is not known in the tables of CSV or JSON reports ("kind.column"), and which
    ops are missing."""
    unknown = [
        f"{kind}.{name}"
        for kind, rows in tables.items()
        for name in list_unknown_names(
            rows[0] if rows else (), KNOWN["columns"].get(kind, ()), KNOWN["sums"]
        )
    ]
    numbers: dict[str, set[int]] = {}
    for row in tables.get("detail", ()):
        if match := _OP_ID.fullmatch(row.get("op id", "")):
            numbers.setdefault(match[1], set()).add(int(match[2]))
    return (
        *make_unknown_names_warning({"columns": unknown}),
        *make_newer_version_note("DLProf", version, NEWEST),
        *(
            note
            for name, ids in numbers.items()
            for note in make_missing_numbers_warning(
                f"ops of the type {name[:60]} with the numbers", ids, expected_first=1
            )
        ),
    )


def build_environment_from_config(config: Mapping[str, str]) -> dict[str, str]:
    """Return versions by the names of Report.environment. ``config``: cells of the system config by
    the database's column names."""
    facts = {name: config[column] for column, name in KNOWN["config"].items() if config.get(column)}
    product, _, version = facts.get("framework", "").partition(" ")
    return facts | ({"torch": version} if product == "PyTorch" and version else {})


def parse_dlprof_version(environment: Mapping[str, str]) -> str | None:
    """Return DLProf's own version, without what follows its numbers."""
    version = _VERSION.match(environment.get("dlprof", ""))
    return version[1] if version else environment.get("dlprof")


def make_summary(name: str, value: object, unit: str | None) -> Summary:
    """Return a finite number, also a printed one, as such; anything else as text."""
    try:
        number = float(str(value))
    except ValueError:
        number = nan
    if isfinite(number):
        return Summary(name, number, unit)
    return Summary(name, None, unit, None if value is None else str(value))


def make_tables_report(
    path: Path,
    form: str,
    tables: Mapping[str, Sequence[Row]],
    blocks: Iterable[SummaryBlock],
    files: Collection[Path],
    notes: Iterable[Diagnostic],
    gaps: Iterable[Gap] = (),
) -> Report:
    """Return the report of these tables (kind -> rows) and the blocks of a summary. ``files``:
    those that were read; ``notes`` and ``gaps``: on the form."""
    config, figures = _parse_config_and_figures(blocks)
    environment = build_environment_from_config(config)
    version = parse_dlprof_version(environment)
    devices, config_gaps = _read_configured_devices(config, environment)
    walls = [entry for entry in figures if entry.name == "Wall Clock Time"]
    wall = walls[0].value if walls and walls[0].unit == "ns" else None
    kinds = sorted([*tables, "summary"] if figures else tables)
    rows = tables.get("iteration", ())
    kernels = [
        make_kernel(launch, read_json_fields(LAUNCH, row)) for launch, row in enumerate(rows)
    ]
    ops = (read_json_fields(OPERATION, row) for row in tables.get("detail", ()))
    unread, unread_notes = _list_unread_file_gaps_and_notes(path, form, files)
    advice = tables.get("expert_systems", ())
    return Report(
        tool="dlprof",
        path=path,
        form=f"DLProf {form}: {', '.join(kinds)}",
        tool_version=version,
        devices=devices,
        environment=environment,
        kernels=kernels,
        operations=list(make_operations(ops)),
        summaries=(*figures, *make_sums_and_tensor_core_summaries(tables)),
        gaps=(*list_missing_report_gaps(kinds, kernels), *unread, *config_gaps, *gaps),
        diagnostics=(
            *notes,
            *unread_notes,
            *(make_advice_diagnostic(row["problem"], row["recommendation"]) for row in advice),
            *make_unknown_column_missing_op_notes(tables, version),
        ),
        duration_ns=None if wall is None or abs(wall) > 2**62 else int(wall),
    )


def _list_unread_file_gaps_and_notes(
    path: Path, form: str, files: Collection[Path]
) -> tuple[list[Gap], list[Diagnostic]]:
    """Return gaps for CSV files of DLProf's in a folder that were not read, and a note on all files
    that were not."""
    names = [
        entry.name
        for entry in (sorted(path.iterdir()) if path.is_dir() else ())
        if entry not in files and entry.name[0] != "." and entry.is_file()
    ]
    listed = ", ".join(names[:10])
    text = f"read as one DLProf report; perfctl skipped the other files in the folder: {listed}"
    gaps = [
        Gap(name, "unreadable", f"{name} is empty or not a DLProf report")
        for name in names
        if form == "CSV" and fnmatch(name, "dlprof_*.csv")
    ]
    return gaps, [Diagnostic("info", "perfctl", text)] if names else []


def _parse_config_and_figures(
    blocks: Iterable[SummaryBlock],
) -> tuple[dict[str, str], list[Summary]]:
    """Return the system config, by the database's column names, and the figures of a summary."""
    config: dict[str, str] = {}
    figures: list[Summary] = []
    for block in blocks:
        is_config = block.title.lower() == "system config"
        for label, values in block.lines:
            if is_config:
                config[label.lower().replace(" ", "_").removeprefix("gpu_")] = values[0]
            if is_config and label != "GPU Count":
                # versions and names are texts, even "11.6"
                figures.append(Summary(label, None, None, values[0] or None))
            elif block.columns:
                for name, value in zip(block.columns, values, strict=False):
                    figures.append(_read_labeled_figure(f"{block.title}: {label}: {name}", value))
            else:
                figures.append(_read_labeled_figure(label, values[0]))
    return config, figures


def _read_labeled_figure(label: str, value: str) -> Summary:
    """Return a figure without the unit in its label."""
    match = _UNIT.match(label)
    name, unit = (match["name"], match["time"] or match["percent"]) if match else (label, None)
    if label == "Iteration Time Standard Deviation":
        unit = "ns"  # printed without a unit, below an average that has one
    return make_summary(name, value or None, unit)


def _read_configured_devices(
    config: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[tuple[Device, ...], list[Gap]]:
    """Return the GPUs, whose names are separated by commas without quotes, and the CPU. The count
    shows whether the names were split correctly."""
    names = [name.strip() for name in config.get("name(s)", "").split(",") if name.strip()]
    count = config.get("count", "")
    gaps = []
    if names and count.isdecimal() and int(count) != len(names):
        reason = f"the summary counts {count} GPUs and names {len(names)}: {', '.join(names)}"
        gaps.append(Gap("device.name", "ambiguous", reason))
        names = []
    if config and "cudnn_version" not in config:
        reason = "this DLProf's summary has no line 'cuDNN Version' (pip's 1.8.0 omits it)"
        gaps.append(Gap("environment.cudnn", "not_available", reason))
    driver = environment.get("driver_version")
    devices = [Device(name, "gpu", n, driver_version=driver) for n, name in enumerate(names)]
    if "cpu_model" in environment:
        devices.append(Device(environment["cpu_model"], "cpu"))
    return tuple(devices), gaps
