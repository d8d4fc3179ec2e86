"""Values at the store's door: a time, count or share that cannot be is not stored, and a gap
says so."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from perfctl.orchestrator.store import shape
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
_REFERRING = {"range": (("range", "parent"), ("kernel_launch", "range_id"))}
"""Table -> columns that refer to its rows."""


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
    "graph_launch": _counts("kernels", "kernel_ns", "matched", "matched_ns"),
    "derived_value": _counts("value"),
    "source_counter": _counts("address", "inst_executed", "thread_inst_executed", "samples"),
}
"""Table -> column -> the smallest and the largest value that there can be."""


def of_device(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A device's row without counts that cannot be."""
    counts = ("sm_count", "memory_bytes", "memory_bandwidth_bps", "clock_hz")

    def is_possible(name: str, value: Any) -> bool:
        return name not in counts or (isinstance(value, (int, float)) and 0 <= value <= most(name))

    return {name: value if is_possible(name, value) else None for name, value in facts.items()}


def refuse_impossible(connection: sqlite3.Connection, new_rows: Mapping[str, str]) -> list[Gap]:
    """Values of a run that cannot be, or are no numbers, become NULL; where a column has to have a
    value, the row goes. The gaps that say so.

    ``new_rows``: table -> SQL that finds its new rows, without its index where there are many.
    """
    gaps: list[Gap] = []
    for table, mine in new_rows.items():
        columns = connection.execute(f"PRAGMA main.table_info({table})").fetchall()
        types = {row[1].lower(): row[2] for row in columns}
        needed = {row[1].lower() for row in columns if row[3]}
        checked = {
            column: between
            for column, between in POSSIBLE[table].items()
            if shape.affinity(types[column]) != "TEXT"
        }
        wrong = {
            column: f"{column} NOT BETWEEN {low!r} AND {high!r}"
            for column, (low, high) in checked.items()
        }  # text is larger than any number
        found = (
            f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {mine} AND "
            f"({' OR '.join(wrong.values()) or 'FALSE'}))"
        )
        if not connection.execute(found).fetchone()[0]:
            continue
        for column, impossible in wrong.items():
            low, high = checked[column]
            above = (
                f"{column} > {high!r} AND {column} < 9e999 AND typeof({column}) IN ('integer', "
                "'real')"
            )
            below = (
                "infinite or not a number" if low == -FINITE else f"below {low:,} or not a number"
            )
            for condition, why in (
                (above, f"above {high:,}, more than there can be"),
                (impossible, below),
            ):
                rows = f"{table} WHERE {mine} AND {condition}"
                if column in needed:
                    _unlink(connection, table, rows)
                    count = connection.execute(f"DELETE FROM {rows}").rowcount
                    end = f", so {'that row is' if count == 1 else 'those rows are'} left out"
                else:
                    sql = f"UPDATE {table} SET {column} = NULL WHERE {mine} AND {condition}"
                    count, end = connection.execute(sql).rowcount, ""
                if count:
                    reason = f"{count} {'value is' if count == 1 else 'values are'} {why}{end}"
                    gaps.append(Gap(f"{_VIEWED.get(table, table)}.{column}", "unreadable", reason))
    return gaps


def _unlink(connection: sqlite3.Connection, table: str, rows: str) -> None:
    """Nothing refers to these rows any more."""
    if table in _REFERRING and connection.execute(f"SELECT 1 FROM {rows} LIMIT 1").fetchone():
        for other, column in _REFERRING[table]:
            connection.execute(
                f"UPDATE {other} SET {column} = NULL WHERE {column} IN (SELECT id FROM {rows})"
            )
