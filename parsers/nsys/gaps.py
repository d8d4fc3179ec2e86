"""What an nsys export does not hold, or holds in a form that perfctl does not read, as gaps and
warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perfctl.parsers.attribution import NEVER, NOBODY
from perfctl.parsers.common.doubts import (
    make_newer_version_note,
    make_unknown_names_warning,
    split_words,
)
from perfctl.parsers.common.sqlite import Database, list_unreadable_column_gaps
from perfctl.parsers.nsys import calls, tables
from perfctl.parsers.nsys.kernels import TableLaunches
from perfctl.parsers.nsys.machine import read_nsys_and_schema_versions
from perfctl.parsers.nsys.ranges import PUSH_POP, RangeTable
from perfctl.parsers.nsys.tables import (
    COUNTED,
    GRAPH,
    KERNEL,
    KNOWN,
    MEMCPY,
    MEMSET,
    RUNTIME,
    STRINGS,
)
from perfctl.records.report import ApiCall, Diagnostic, Gap, pluralize_count

NEWEST_SCHEMA = "3.24"
"""Of nsys 2026.1.1."""
_LAYOUTS = ("1.", "2.", "3.")
"""Schemas with these majors differ in tables and columns, not in meaning."""
OTHER_TABLES = split_words(KNOWN["sqlite"]["other_tables"])
"""Known by name. Those without a reader hold what perfctl does not show (samples, system calls,
sums that ``nsys stats`` left in the file)."""
OTHER_FAMILIES = tuple(KNOWN["sqlite"]["other_families"])
"""Beginnings of tables of other interfaces than CUDA and NVTX, and of enumerations."""

READ = {
    KERNEL,
    MEMCPY,
    MEMSET,
    RUNTIME,
    GRAPH,
    tables.NVTX,
    STRINGS,
    tables.OSRT,
    tables.SYNC,
    tables.GPU_METRICS,
    *calls.OF_LIBRARIES,
    *calls.OF_MPI,
    *COUNTED,
    "MemcpyOperationStrings",
    "DomainStrings",
}
"""Tables whose rows are in the report's records, one by one or summed."""
CHECKED = {
    *READ,
    "EXPORT_META_DATA",
    "META_DATA_EXPORT",
    "TARGET_INFO_SYSTEM_ENV",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_GPU",
    "TARGET_INFO_CUDA_DEVICE",
    "ThreadNames",
    "ANALYSIS_DETAILS",
    "TARGET_INFO_SESSION_START_TIME",
    "DIAGNOSTIC_EVENT",
}
"""These, and the tables that facts about the machine are in."""
BOOKKEEPING = split_words(KNOWN["sqlite"]["bookkeeping"])
BOOKKEEPING_FAMILIES = tuple(KNOWN["sqlite"]["bookkeeping_families"])
"""Tables of the profiler's own affairs: versions, names, what ``nsys stats`` left in the file."""

COLUMNS = {table: split_words(names) for table, names in KNOWN["sqlite"]["columns"].items()}
ALWAYS: dict[str, frozenset[str]] = {
    table: split_words(names) for table, names in KNOWN["sqlite"]["always"].items()
}
"""Table -> columns that it had in all exports that were seen (2020.3 to 2026.1)."""
_LAUNCH = re.compile(
    "(?:cudaLaunch(?:Cooperative)?Kernel|cuLaunch(?:Cooperative)?Kernel|hipLaunchKernel)"
    r"(?:Ex)?C?(?:_v\d+|_ptsz)*\Z"
)
_COPY = re.compile(r"(?:cuda|cu|hip)Mem(?:cpy(?!Batch)|set)\w*\Z")
"""Names of calls that move or set memory; others of the kind move several pieces at once."""


def find_unreadable_tables_and_columns(database: Database) -> tuple[Gap, ...]:
    """Return a gap for each column and table that cannot be read whole. Raises sqlite3.Error."""
    # nsys leaves out tables without rows, but for that of the strings
    always = {name: ALWAYS[name] for name in ALWAYS if name in {STRINGS, *database.tables}}
    return tuple(list_unreadable_column_gaps(database, CHECKED, always))


def explain_unknown_gpu_time(
    database: Database, kernels: TableLaunches, calls: Sequence[ApiCall]
) -> str | None:
    """Return why the GPU time of ranges is not known; None if it is."""
    kernel_count = len(kernels.around.innermost)
    if not database.has_row_or_value(RUNTIME):
        reason = "the report has no CUDA calls"
    elif database.has_row_or_value(GRAPH) or kernel_count > kernels.unlaunched:
        return None
    elif kernel_count or _count_calls(calls, _LAUNCH):
        reason = "no launch call has its kernel in the report"
    else:
        return None
    return f"{reason}, so perfctl cannot assign GPU time to ranges"


def _count_calls(calls: Sequence[ApiCall], name: re.Pattern[str]) -> int:
    return sum(call.calls or 0 for call in calls if call.domain == "cuda" and name.match(call.name))


def describe_missing_data(
    database: Database, ranges: RangeTable, kernels: TableLaunches, unknown_gpu_time: str | None
) -> Iterator[Gap]:
    """Yield one Gap per reason."""
    count = len(kernels.around.innermost)
    if read_nsys_and_schema_versions(database)[0] is None:
        yield Gap(
            "profiler_version",
            "not_available",
            "nsys exports up to 2021.3 do not state the version",
        )
    yield from _explain_missing_kernels_and_copies(database, count)
    if not len(ranges.kind):
        reason = (
            "no NVTX range was recorded: the program has no annotations, or NVTX was not traced"
        )
        yield Gap("range", "not_collected", f"{reason} (nsys profile --trace=nvtx,...)")
    if unended := int((ranges.spans.end == NEVER).sum()):
        reason = f"{unended} of {len(ranges.kind)} ranges never ended in the capture"
        yield Gap("range:duration", "not_available", reason)
    if count:
        yield from _explain_missing_layers_and_steps(database, ranges, kernels)
    if database.has_row_or_value(tables.NVTX, "binaryData"):
        reason = (
            "the program passed values in a binary form (NVTX_PAYLOAD_SCHEMAS), which perfctl "
            "does not read"
        )
        yield Gap("range:payload", "not_available", reason)
    if len(ranges.kind) and unknown_gpu_time:
        yield Gap("range:gpu_ns", "not_collected", unknown_gpu_time)


def find_lost_kernels_and_copies(
    kernels: TableLaunches,
    copy_count: int,
    calls: Sequence[ApiCall],
    has_unexpanded_graph_launches: bool,
) -> Iterator[Gap]:
    """Yield a gap where calls launched kernels or, though all kernels are there, started copies
    that the report does not have."""
    if has_unexpanded_graph_launches:
        return
    count = len(kernels.around.innermost) - kernels.unlaunched
    launches, moved = _count_calls(calls, _LAUNCH), _count_calls(calls, _COPY)
    if count and launches > count:
        which = f"{launches - count:,} of {launches:,} launch calls"
        reason = f"{which} have no kernel in the report: it ended after the capture, or was lost"
        yield Gap("kernel", "not_available", reason)
    elif launches == count and 0 < copy_count < moved:
        reason = (
            f"{moved - copy_count:,} of {moved:,} calls that copy or set memory have no matching "
            "operation in the report: it had no bytes, or was lost"
        )
        yield Gap("copy", "not_available", reason)


def _explain_missing_kernels_and_copies(database: Database, kernel_count: int) -> Iterator[Gap]:
    traced, reason = database.has_row_or_value(RUNTIME), ""
    if database.has_row_or_value(GRAPH):
        reason = (
            "CUDA graphs were recorded as one unit, without their kernels. Record with "
            "--cuda-graph-trace=node"
        )
    elif not kernel_count and traced:
        reason = _explain_no_kernel(database)
    elif not kernel_count:
        reason = (
            "no CUDA activity was recorded: the program did not use a GPU, CUDA was not traced, or "
            "the tracing failed (see the messages of nsys)"
        )
    if reason:
        yield Gap("kernel", "not_collected", reason)
    if not (kernel_count or any(map(database.has_row_or_value, (RUNTIME, MEMCPY, MEMSET)))):
        yield Gap("copy", "not_collected", "no CUDA activity was recorded, and therefore no copies")


def _explain_no_kernel(database: Database) -> str:
    """Return why an export with CUDA calls has no kernel, by what the launching calls returned."""
    results: dict[int | None, int] = {}
    if database.has_table_with_columns(
        RUNTIME, "nameId", "returnValue"
    ) and database.has_table_with_columns(STRINGS, "id", "value"):
        rows = database.connection.execute(
            f"SELECT value, returnValue, count(*) FROM {RUNTIME} JOIN {STRINGS} ON id = nameId "
            "GROUP BY value, returnValue"
        )
        for name, result, calls in rows:
            if _LAUNCH.match(str(name)):
                results[result] = results.get(result, 0) + calls
    launches = sum(results.values())
    if not launches:
        return "CUDA calls were traced, but none of them launched a kernel"
    succeeded, unknown = results.pop(0, 0), results.pop(None, 0)
    if succeeded or unknown:
        calls = f"{succeeded or unknown:,} of {launches:,} calls launched a kernel"
        calls += " and returned 0" if succeeded else ""
        return f"{calls}, but the report has no GPU rows, because the recording failed or was lost"
    errors = ", ".join(f"error {error} ({calls:,} times)" for error, calls in results.items())
    return f"no kernel ran: the launching calls returned {errors}"


def _explain_missing_layers_and_steps(
    database: Database, ranges: RangeTable, kernels: TableLaunches
) -> Iterator[Gap]:
    count, unlaunched = len(kernels.around.innermost), kernels.unlaunched
    if not database.has_row_or_value(RUNTIME):
        reason = (
            "the report has no CUDA calls, so perfctl cannot assign kernels to ranges (nsys "
            "profile --trace=cuda,nvtx)"
        )
        yield Gap("layer", "not_collected", reason)
        return
    if unlaunched:
        yield Gap(
            "layer",
            "not_available",
            f"{unlaunched} of {count} kernels have no launch call in the report",
        )
    if not (ranges.kind == PUSH_POP).any():
        reason = (
            "the report has no push/pop NVTX range, so perfctl cannot assign launches to layers"
        )
        yield Gap("layer", "not_collected", reason)
    elif not any(label.layer for label in ranges.labels):
        reason = (
            'no range names a layer in the form of perfctl ("conv2:forward"): record the program '
            "with perfctl"
        )
        yield Gap("layer", "not_collected", reason)
    elif (outside := int((kernels.around.layer == NOBODY).sum()) - unlaunched) > 0:
        reason = f"{outside} of {count} kernels were launched outside of every layer's range"
        yield Gap(
            "layer",
            "not_available",
            f"{reason}{_describe_uncaptured_graph_kernels(database, kernels)}",
        )
    if not any(label.step is not None for label in ranges.labels):
        yield Gap(
            "step",
            "not_collected",
            'no range names a step in the form of perfctl ("perfctl:step:3")',
        )


def _describe_uncaptured_graph_kernels(database: Database, kernels: TableLaunches) -> str:
    """How many of the kernels are of graphs whose capture the report does not have."""
    if kernels.graphs:
        lost = sum(launch.kernels - launch.matched for launch in kernels.graphs)
    elif database.has_table_with_columns(KERNEL, "graphNodeId"):
        (lost,) = database.connection.execute(
            f"SELECT count(*) FROM {KERNEL} WHERE graphNodeId > 0"
        ).fetchone()
    else:
        lost = 0
    explanation = "which were captured before the recording began. Also record the capture"
    return f"; {lost} of all are of CUDA graphs, {explanation}" if lost else ""


def warn_unknown_tables_and_schema(database: Database) -> tuple[Diagnostic, ...]:
    """Return diagnostics for unknown tables and columns that hold data, and for a newer schema."""
    version, schema = read_nsys_and_schema_versions(database)
    schemas = [schema] if schema and re.match(r"\d+\.", schema) else []
    schemas = [schema for schema in schemas if not schema.startswith(_LAYOUTS)]
    unknown = database.find_unknown_tables_and_columns(COLUMNS, OTHER_TABLES, OTHER_FAMILIES)
    warnings = make_unknown_names_warning({"schema version": schemas, **unknown})
    product = f"nsys {version}, schema" if version else "nsys schema"
    notes = () if schemas else make_newer_version_note(product, schema, NEWEST_SCHEMA)
    return (*warnings, *notes)


def find_unread_tables(database: Database) -> Iterator[Gap]:
    """One Gap for each table with rows that are not read."""
    for table in sorted(database.tables.keys() - READ):
        if (
            table in BOOKKEEPING
            or table.startswith(BOOKKEEPING_FAMILIES)
            or not (count := database.count_rows(table))
        ):
            continue
        rows = pluralize_count(count, "row", "is", "are")
        yield Gap(f"table:{table}", "not_available", f"{table}: {rows} not read")
