"""Values are checked where rows are written: a time, count or share that cannot be is NULL, and a
gap says so."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

from perfctl.orchestrator.store import schema
from perfctl.records.possible import FINITE, HOTTEST_C, LATEST_NS, LONGEST_NS, MOST_WATTS, most
from perfctl.records.report import CompiledKernel, Gap
from perfctl.records.serving import ServedStep

_Between = tuple[float, float]
_START = (-LONGEST_NS, LATEST_NS)
"""``start_ns`` and ``at_ns`` lie on a report's own clock, which may count from 1970 or from
somewhere inside the run."""
_SHARE = (0, 1)
_ANY = (-FINITE, FINITE)
_VIEWED = {
    "kernel_launch": "kernel",
    "op_instance": "op_call",
    "derived_value": "derived_count",
    "metric_value": "counter",
}
"""Table -> the view through which it is read."""
IMPOSSIBLE = -(1 << 63)
"""A whole number that no column may have."""


def _counts(*columns: str) -> dict[str, _Between]:
    return {column: (0, most(column)) for column in columns}


POSSIBLE: Mapping[str, Mapping[str, _Between]] = {
    "run": _counts("duration_ns", "rank", "world_size", "effective_batch", "batch_size"),
    "range": {"start_ns": _START, **_counts("duration_ns", "gpu_ns", "gpu_span_ns", "depth")},
    "kernel_launch": {
        "start_ns": _START,
        **_counts(
            "grid_x",
            "grid_y",
            "grid_z",
            "block_x",
            "block_y",
            "block_z",
            "duration_ns",
            "occupancy",
        ),
        **_counts(
            "registers",
            "static_shared_bytes",
            "dynamic_shared_bytes",
            "cluster_x",
            "cluster_y",
            "cluster_z",
        ),
    },
    "metric_value": {"value": (0, FINITE)},
    "copy": {"start_ns": _START, **_counts("bytes", "duration_ns")},
    "operation": {
        # what it gave back is below 0
        "memory_bytes": (-most("memory_bytes"), most("memory_bytes")),
        **_counts("calls", "cpu_ns", "self_cpu_ns", "device_ns", "flops"),
    },
    "sample": {
        "at_ns": _START,
        "gpu_utilisation": _SHARE,
        "process_utilisation": _SHARE,
        "power_w": (0, MOST_WATTS),
        "temperature_c": (-HOTTEST_C, HOTTEST_C),
        "energy_j": (0, FINITE),
        "host_cpu": (0, FINITE),
        **_counts(
            "memory_used_bytes",
            "memory_total_bytes",
            "sm_clock_hz",
            "memory_clock_hz",
            "host_memory_bytes",
        ),
        **_counts("allocated_bytes", "reserved_bytes", "process_memory_bytes"),
    },
    "memory": _counts("bytes"),
    "step": {
        "start_ns": _START,
        "loss": _ANY,
        "accuracy": _SHARE,
        **_counts("number", "duration_ns"),
    },
    "summary": {"value": _ANY},
    "expectation": _counts("flops", "bytes"),
    "counter_sample": {"at_ns": _START, "value": _ANY},
    "layer_call": _counts(
        "macs",
        "flops",
        "parameters",
        "read_bytes",
        "write_bytes",
        "output_elements",
        "elementwise_flops",
        "calls",
    ),
    "layer_time": _counts("duration_ns", "low_ns", "high_ns", "steps"),
    "feature": {"value": _ANY},
    "api_call": _counts("calls", "total_ns", "min_ns", "max_ns"),
    "op_instance": {"start_ns": _START, **_counts("duration_ns", "device_ns")},
    "collective": {
        "start_ns": _START,
        **_counts("group_size", "bytes", "duration_ns", "exposed_ns"),
    },
    "compiled_kernel": _counts(*CompiledKernel._fields[CompiledKernel._fields.index("calls") :]),
    "kernel_part": {"share": _SHARE, **_counts("origins")},
    "served_step": _counts(*ServedStep._fields[3:]),
    "graph_launch": _counts("kernels", "kernel_ns", "matched"),
    "derived_value": _counts("value"),
    "source_counter": _counts("address", "inst_executed", "thread_inst_executed", "samples"),
}
"""Table -> column -> the smallest and the largest value that there can be."""


def clean_device(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device's row without counts that cannot be."""
    counts = ("sm_count", "memory_bytes", "memory_bandwidth_bps", "clock_hz")

    def is_possible(name: str, value: Any) -> bool:
        return name not in counts or (isinstance(value, (int, float)) and 0 <= value <= most(name))

    return {name: value if is_possible(name, value) else None for name, value in facts.items()}


def fit_type(table: str, column: str, values: Sequence[Any]) -> list[Any]:
    """Return a column's values as a STRICT table takes them: fractions of a whole number are
    rounded, and what is no number becomes one that ``refuse_impossible`` refuses."""
    declared = schema.columns(table)[column]
    if declared == "TEXT":
        return [repr(value) if isinstance(value, bytes) else value for value in values]
    is_integer = declared == "INTEGER"
    refused = IMPOSSIBLE if is_integer else -inf
    impossible = refused if column in POSSIBLE.get(table, {}) else None

    def fitted(value: Any) -> Any:
        if isinstance(value, float) and (isfinite(value) or not is_integer):
            return round(value) if is_integer else value
        return value if value is None or isinstance(value, int) else impossible

    return list(map(fitted, values))


def refuse_impossible(connection: sqlite3.Connection, new_rows: Mapping[str, str]) -> list[Gap]:
    """Replace values of a run that cannot be by NULL; where a column has to have a value, delete
    the row. Return the gaps that say so.

    ``new_rows``: table -> SQL that finds its new rows, without its index where there are many.
    """
    gaps: list[Gap] = []
    for table, mine in new_rows.items():
        checked = POSSIBLE[table]
        wrong = " OR ".join(
            f"{column} NOT BETWEEN {low!r} AND {high!r}" for column, (low, high) in checked.items()
        )
        seek = f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {mine} AND ({wrong}))"
        if not connection.execute(seek).fetchone()[0]:
            continue
        needed = {
            row[1] for row in connection.execute(f"PRAGMA main.table_info({table})") if row[3]
        }
        for column, (low, high) in checked.items():
            above = f"{column} > {high!r} AND {column} < 9e999 AND typeof({column}) <> 'text'"
            below = f"{column} NOT BETWEEN {low!r} AND {high!r}"
            too_low = (
                "infinite or not a number" if low == -FINITE else f"below {low:,} or not a number"
            )
            for condition, why in (
                (above, f"above {high:,}, more than there can be"),
                (below, too_low),
            ):
                rows = f"{table} WHERE {mine} AND {condition}"
                left_out = ""
                if column in needed:
                    if table == "range":
                        _unlink_ranges(connection, rows)
                    count = connection.execute(f"DELETE FROM {rows}").rowcount
                    left_out = f", so {'that row is' if count == 1 else 'those rows are'} left out"
                else:
                    sql = f"UPDATE {table} SET {column} = NULL WHERE {mine} AND {condition}"
                    count = connection.execute(sql).rowcount
                if count:
                    values = "1 value is" if count == 1 else f"{count} values are"
                    quantity = f"{_VIEWED.get(table, table)}.{column}"
                    gaps.append(Gap(quantity, "unreadable", f"{values} {why}{left_out}"))
    return gaps


def _unlink_ranges(connection: sqlite3.Connection, rows: str) -> None:
    """Let nothing refer to these ranges any more."""
    if connection.execute(f"SELECT 1 FROM {rows} LIMIT 1").fetchone():
        for table, column in (("range", "parent"), ("kernel_launch", "range_id")):
            connection.execute(
                f"UPDATE {table} SET {column} = NULL WHERE {column} IN (SELECT id FROM {rows})"
            )
