"""The database back into records. Nothing here writes."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

from perfctl.orchestrator.errors import StoreError
from perfctl.orchestrator.store import schema
from perfctl.orchestrator.store.connection import REPLACING
from perfctl.records import report as records
from perfctl.records.paper import LayerCall, OpShape, parse_op_shape
from perfctl.records.report import CODE, DerivedCount
from perfctl.records.run import Expectation, Parameter, Run
from perfctl.records.serving import GraphLaunch, ServedStep

PARAMETERS = (
    "(SELECT group_concat(pair, ', ') FROM (SELECT name || '=' || value AS pair FROM parameter "
    "WHERE run_id = run.id ORDER BY name))"
)
"""Parameters of a run, its batch size among them: "N=256, batch=16"; NULL without any."""
_SAME_SOFTWARE = ("torch", "cuda", "cudnn", "tf32_conv", "tf32_matmul")
_SAME = (
    "sweep_id",
    "profiler",
    "workload",
    "variant",
    "batch_size",
    "mode",
    "precision",
    "device_id",
)

OF_REPORT = (
    *("workload", "batch_size", "mode", "precision", "started_at", "duration_ns", "variant"),
    *("rank", "world_size", "host", "phase", "effective_batch"),
)
"""Columns of run that are fields of Report under the same name."""

_FIRST_RANGE = "(SELECT coalesce(min(id), 0) FROM range WHERE run_id = :run)"
_RANGE_NUMBERS = {
    "range": {"number": f"id - {_FIRST_RANGE}", "parent": f"parent - {_FIRST_RANGE}"},
    "kernel": {"range_number": f"range_id - {_FIRST_RANGE}"},
}
"""Table -> numbers of a run's ranges, which in the database go on from run to run."""
_ONE_OF_EACH_KIND = """
AND id IN (SELECT min(id) FROM kernel_launch WHERE run_id = :run GROUP BY
    name_id, layer_id, grid_x, grid_y, grid_z, block_x, block_y, block_z, step IS NULL,
    duration_ns IS NULL,
    range_id IN (SELECT id FROM range WHERE run_id = :run AND phase = 'optimizer'))
"""
_STEPS_AND_OPTIMIZER = "AND (phase = 'optimizer' OR name LIKE 'perfctl:step:%')"

WAITING = (
    *("aten::copy_", "aten::_local_scalar_dense", "aten::nonzero"),
    *records.WAITS,
    *records.ALLOCATIONS,
)
"""Operators that may convert values, or wait for the GPU, and calls that do or manage memory."""

_OP_CALLS = (
    "SELECT "
    + ", ".join(
        "stack.text" if field == "stack" else f"op_call.{field}" for field in records.OpCall._fields
    )
    + " FROM op_call LEFT JOIN stack ON stack.id = stack_id WHERE op_call.run_id = ?"
)
_LONGEST = (
    "AND op_call.start_ns + op_call.duration_ns IS NOT NULL "
    "ORDER BY op_call.duration_ns DESC, op_call.rowid LIMIT ?"
)
_WAITING = (
    f"AND name IN ({', '.join('?' * len(WAITING))}) "
    "AND (device_ns > 0 OR op_call.duration_ns >= 5000) "
    "AND EXISTS (SELECT 1 FROM kernel_launch WHERE run_id = ?) ORDER BY op_call.rowid"
)
"""Calls of WAITING that launched a kernel or waited, of a run with kernels."""
_COUNTERS = """
SELECT kernel.launch, counter.name, counter.value, counter.unit, counter.section, counter.text
FROM kernel JOIN counter ON counter.kernel_id = kernel.id
WHERE kernel.run_id = ? ORDER BY kernel.id, counter.rowid
"""
_SOURCE_LINES = """
SELECT name, short_name, file, line, min(address), count(*), sum(inst_executed),
       sum(thread_inst_executed), sum(samples), opcode, stall,
       max(coalesce(samples, inst_executed, 0))
FROM (SELECT n.name, n.short_name, f.name AS file, c.line, c.address, c.opcode,
             sum(c.inst_executed) AS inst_executed,
             sum(c.thread_inst_executed) AS thread_inst_executed, sum(c.samples) AS samples,
             c.stall, max(coalesce(c.samples, c.inst_executed, 0))
      FROM kernel_launch AS l JOIN source_counter AS c ON c.kernel_id = l.id
      JOIN kernel_name AS n ON n.id = l.name_id
      LEFT JOIN source_file AS f ON f.id = c.file_id
      WHERE l.run_id = ? GROUP BY n.id, f.id, c.line, c.address)
GROUP BY name, short_name, file, line, CASE WHEN line IS NULL THEN address END
ORDER BY coalesce(sum(samples), 0) DESC, coalesce(sum(inst_executed), 0) DESC, name, min(address)
"""
"""SQLite takes the columns without an aggregate from the row of max()."""

_STEP_LENGTHS = """
SELECT run_id, sum(CASE phase WHEN 'step' THEN duration_ns
                              WHEN 'data' THEN -duration_ns WHEN 'copy' THEN -duration_ns END)
FROM step WHERE phase IN ('step', 'data', 'copy') GROUP BY run_id, number
"""
"""A step without the phases that bring its samples, as everywhere where times of steps are
learned from."""
_BENCH_POINTS = """
SELECT run.id, variant, batch_size, mode, precision, device_id, environment.value
FROM run LEFT JOIN environment ON environment.run_id = run.id AND environment.key = 'threads'
WHERE workload = 'families' AND profiler = 'none' AND status = 'ok' ORDER BY run.id
"""


class BadStoredRecord(Exception):
    """A cell that perfctl fills with a record of its own holds something else; the message
    says which."""


R = TypeVar("R", bound=NamedTuple)
TABLES: dict[str, tuple[str, type[Any]]] = {
    "steps": ("step", records.Step),
    "memory": ("memory", records.MemoryFigure),
    "summaries": ("summary", records.Summary),
    "layer_times": ("layer_time", records.LayerTime),
    "features": ("feature", records.Feature),
    "gaps": ("gap", records.Gap),
    "diagnostics": ("diagnostic", records.Diagnostic),
    "copies": ("copy", records.Copy),
    "operations": ("operation", records.Operation),
    "samples": ("sample", records.Sample),
    "api_calls": ("api_call", records.ApiCall),
    "collectives": ("collective", records.Collective),
    "advice": ("advice", records.Advice),
    "threads": ("thread", records.Thread),
    "compiled_kernels": ("compiled_kernel", records.CompiledKernel),
    "kernel_parts": ("kernel_part", records.KernelPart),
    "served_steps": ("served_step", ServedStep),
    "graph_launches": ("graph_launch", GraphLaunch),
    "counter_samples": ("counter_sample", records.CounterSample),
}
"""Field of Report -> (its table, the record of one row), where both have the same names."""
LONGEST_TEXT = 65_536
"""Characters of a text that are read, as many as perfctl keeps of a text in a report."""

_SHORT = (
    f"CASE WHEN length({{0}}) > {LONGEST_TEXT} THEN substr({{0}}, 1, {LONGEST_TEXT}) || '... (cut: "
    "it has ' || length({0}) || ' characters)' ELSE {0} END AS {0}"
)
_PROSE = {name: _SHORT.format(name) for name in ("quantity", "reason", "text")}
"""Column -> SQL of what perfctl shows of it: texts that stand on a page as they are."""
_LISTS = (
    *("copies", "operations", "samples", "api_calls", "collectives", "advice"),
    *("compiled_kernels", "kernel_parts", "served_steps", "graph_launches", "counter_samples"),
)
"""Fields of a report that are lists when it is read."""
_COMPLETENESS = {"ok": 2, "partial": 1}
"""run.status -> how much of the run there is, 0 for a failed one."""
SHAPE_COLUMNS = ("position", "layer", "op", "direction")
"""Fields of OpShape that are columns; the others are in one record."""


def list_run_ids(
    connection: sqlite3.Connection,
    *,
    sweep: int | None = None,
    artifact_folder: str = "",
    latest_per_configuration: bool = False,
) -> list[int]:
    """Ids of runs, oldest first; only of one sweep where it is given, without the runs whose
    reports lie outside of ``artifact_folder`` (a path as the database has them).

    ``latest_per_configuration`` leaves out runs that a later one of the same profiler, workload,
    variant, parameters, mode, precision and device has replaced; a partial run replaces no complete
    one, and a failed run neither. Runs of unknown workload or without any parameter are never left
    out.
    """
    rows = connection.execute(
        f"SELECT id, profiler, workload, {PARAMETERS}, mode, precision, device_id, variant, "
        "status FROM run WHERE (:sweep IS NULL OR sweep_id = :sweep) "
        "AND (artifact IS NULL OR substr(artifact, 1, length(:folder)) = :folder) ORDER BY id",
        {"sweep": sweep, "folder": artifact_folder},
    )
    newest: dict[tuple[Any, ...], tuple[int, int]] = {}
    for number, *key, status in rows:
        has_identity = latest_per_configuration and None not in key[1:3]
        kind = tuple(key) if has_identity else (number,)
        completeness = _COMPLETENESS.get(status, 0)
        if kind not in newest or completeness >= newest[kind][0]:
            newest[kind] = (completeness, number)
    return sorted(number for _, number in newest.values())


def list_repeat_ids(connection: sqlite3.Connection, run_id: int) -> list[int]:
    """The whole runs that repeat this one, oldest first, itself left out.

    They belong to its sweep, and are of the same profiler, workload, variant, parameters, mode,
    precision and device; one that was made with other libraries (--again after an upgrade) is
    no repeat.
    """
    same = " AND ".join(f"other.{column} IS run.{column}" for column in _SAME)
    rows = connection.execute(
        f"SELECT other.id FROM run JOIN run AS other ON {same} WHERE run.id = ? AND other.id <> "
        f"run.id AND other.status = 'ok' AND run.workload IS NOT NULL AND {PARAMETERS} = "
        f"{PARAMETERS.replace('run.id', 'other.id')} AND NOT EXISTS "
        "(SELECT 1 FROM environment AS mine JOIN environment AS its ON its.key = mine.key AND "
        "its.value <> mine.value WHERE mine.run_id = run.id AND its.run_id = "
        f"other.id AND mine.key IN {_SAME_SOFTWARE}) ORDER BY other.id",
        (run_id,),
    )
    return [number for (number,) in rows]


def list_sweeps(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Every sweep and ingest with how many runs it has, oldest first."""
    return _select_dicts(
        connection,
        f"SELECT {schema.format_select_list('sweep')}, count(run.id) AS runs FROM sweep LEFT JOIN "
        "run ON run.sweep_id = sweep.id GROUP BY sweep.id ORDER BY sweep.id",
    )


def list_run_summaries(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """One line a run, with the sizes of what it holds; the bulk rows stay where they are."""
    # NULL if the table was not collected: none seen is not the same as none
    counts = ", ".join(
        "(SELECT CASE WHEN count(*) = 0 AND (run.status <> 'ok' OR run.profiler = 'none' OR "
        "EXISTS (SELECT 1 FROM gap "
        f"WHERE gap.run_id = run.id AND gap.quantity = '{table}')) THEN NULL ELSE count(*) END"
        f" FROM {table} WHERE {table}.run_id = run.id) AS {name}"
        for table, name in (
            ("kernel", "kernels"),
            ("range", "ranges"),
            ("copy", "copies"),
            ("operation", "operations"),
        )
    )
    counters = (
        "(SELECT count(*) FROM metric_value JOIN kernel_launch ON kernel_launch.id = kernel_id"
        " WHERE kernel_launch.run_id = run.id)"
    )
    other_parameters = PARAMETERS.replace("WHERE", "WHERE name <> 'batch' AND")
    rows = _select_dicts(
        connection,
        f"SELECT {schema.format_select_list('run')}, sweep.name AS sweep_name, "
        f"device.name AS device_name, {counts}, {counters} AS counters, {other_parameters} AS "
        "parameters "
        "FROM run LEFT JOIN sweep ON sweep.id = sweep_id LEFT JOIN device ON device.id = device_id "
        "ORDER BY run.id",
    )
    served = _describe_served_steps_by_run(connection)
    return [{**row, "serving": served.get(row["id"])} for row in rows]


def _describe_served_steps_by_run(connection: sqlite3.Connection) -> dict[int, str]:
    """Return run -> its steps of text generation in words: "mixed, 8,192 tokens"; of several phases
    all, with the tokens of all."""
    phases: dict[int, list[str]] = {}
    tokens: dict[int, list[int | None]] = {}
    rows = connection.execute(  # one unknown makes the sum unknown
        "SELECT run_id, phase, CASE WHEN count(prompt_tokens + decode_tokens) = count(*) THEN "
        "sum(prompt_tokens + decode_tokens) END FROM served_step GROUP BY run_id, phase ORDER BY "
        "run_id, min(number)"
    )
    for run_id, phase, count in rows:
        phases.setdefault(run_id, []).append(phase)
        tokens.setdefault(run_id, []).append(count)
    served = {}
    for run_id, counts in tokens.items():
        known_counts = [count for count in counts if count is not None]
        is_known = len(known_counts) == len(counts)
        text = records.pluralize_count(sum(known_counts), "token") if is_known else "tokens unknown"
        served[run_id] = f"{' + '.join(phases[run_id])}, {text}"
    return served


def load_run(connection: sqlite3.Connection, run_id: int, max_op_calls: int = 0) -> Run:
    """Return a whole run, with the ``max_op_calls`` longest operators and calls. Raises StoreError
    if it is not there.

    Only a run with a text that is no UTF-8 is read with tolerance, which takes a quarter longer.
    """
    before = connection.text_factory
    try:
        connection.text_factory = str
        return _load_run_with_report_rows(connection, run_id, max_op_calls)
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):
            raise
        connection.text_factory = REPLACING
        return _load_run_with_report_rows(connection, run_id, max_op_calls)
    finally:
        connection.text_factory = before


def load_run_without_report_rows(connection: sqlite3.Connection, run_id: int) -> Run:
    """Return one run with its devices, and no row of its report: enough to tell which study it
    is of. Raises StoreError if it is not there."""
    rows = _select_dicts(
        connection,
        f"SELECT {schema.format_select_list('run')}, sweep.name AS sweep_name, "
        "sweep.command AS sweep_command, iif(sweep.kind = 'ingest', NULL, sweep.host) AS "
        "sweep_host "
        "FROM run LEFT JOIN sweep ON sweep.id = run.sweep_id WHERE run.id = ?",
        run_id,
    )
    if not rows:
        raise StoreError(
            f"run {run_id} not found in {_find_store_path(connection)}",
            "Run 'perfctl runs' to list the runs",
        )
    (row,) = rows
    report = records.Report(
        tool=row["profiler"],
        path=Path(row["artifact"] or ""),
        form=row["form"] or "",
        tool_version=row["profiler_version"],
        devices=_read_devices(connection, run_id, row["device_id"]),
        **{name: row[name] for name in OF_REPORT},
    )
    common_fields = row.keys() & {field.name for field in fields(Run)} - {"host", "command"}
    return Run(
        **{name: row[name] for name in common_fields},
        host=row["host"] or row["sweep_host"],
        device=next(iter(report.devices), None),
        report=report,
        command=_parse_command(row["command"]),
        parameters=tuple(read_run_table_rows(connection, Parameter, "parameter", run_id)),
        expectations=tuple(read_run_table_rows(connection, Expectation, "expectation", run_id)),
    )


def load_run_with_distinct_launches(connection: sqlite3.Connection, run_id: int) -> Run:
    """Return a run with what derived counts follow from, and with one launch of each kind: name,
    grid, layer and part of the step tell kinds apart."""
    run = load_run_without_report_rows(connection, run_id)
    report = replace(
        run.report,
        environment=_read_environment(connection, run_id),
        kernels=read_run_table_rows(
            connection, records.Kernel, "kernel", run_id, _ONE_OF_EACH_KIND
        ),
        ranges=read_run_table_rows(
            connection, records.Range, "range", run_id, _STEPS_AND_OPTIMIZER
        ),
        steps=tuple(read_run_table_rows(connection, records.Step, "step", run_id)),
        ops=tuple(read_op_shapes(connection, run_id)),
    )
    return replace(run, report=report)


def _find_store_path(connection: sqlite3.Connection) -> str:
    """Return the path of the connection's database, below the working folder if it is there."""
    path = Path(connection.execute("PRAGMA database_list").fetchone()[2] or "the database")
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _parse_command(text: str | None) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads(text or "[]")))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadStoredRecord("run.command is not a JSON list") from error


def _load_run_with_report_rows(
    connection: sqlite3.Connection, run_id: int, max_op_calls: int
) -> Run:
    run = load_run_without_report_rows(connection, run_id)
    tables: dict[str, Any] = {}
    for name, (table, record) in TABLES.items():
        rows = read_run_table_rows(connection, record, table, run_id)
        tables[name] = rows if name in _LISTS else tuple(rows)
    counters = connection.execute(_COUNTERS, (run_id,))
    report = replace(
        run.report,
        environment=_read_environment(connection, run_id),
        kernels=read_run_table_rows(connection, records.Kernel, "kernel", run_id),
        counters=list(map(records.Counter._make, counters)),
        ranges=read_run_table_rows(connection, records.Range, "range", run_id),
        ops=tuple(read_op_shapes(connection, run_id)),
        waiting_calls=tuple(_select_op_calls(connection, _WAITING, run_id, *WAITING, run_id)),
        op_calls=tuple(_select_op_calls(connection, _LONGEST, run_id, max_op_calls)),
        **tables,
    )
    return replace(
        run,
        report=report,
        layer_calls=tuple(read_run_table_rows(connection, LayerCall, "layer_call", run_id)),
        # no rule can compute again what perfctl 1.0.0 read from the machine code of kernels
        code_counts=tuple(read_derived_counts(connection, run_id, f"{CODE}%")),
        repeats=tuple(
            tuple(read_run_table_rows(connection, records.Step, "step", other))
            for other in list_repeat_ids(connection, run_id)
        ),
    )


def _read_environment(connection: sqlite3.Connection, run_id: int) -> dict[str, str]:
    return dict(
        connection.execute("SELECT key, value FROM environment WHERE run_id = ?", (run_id,))
    )


def _select_dicts(
    connection: sqlite3.Connection, sql: str, *parameters: Any
) -> list[dict[str, Any]]:
    """Return some rows, by column."""
    cursor = connection.execute(sql, parameters)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def read_run_table_rows(
    connection: sqlite3.Connection,
    record: type[R],
    table: str,
    run_id: int,
    sql_condition: str = "",
) -> list[R]:
    """Return a table's rows of one run, all or those that ``sql_condition`` selects; its columns
    are named as the record's fields, except for numbers of ranges."""
    rows = connection.execute(
        _build_run_rows_select_sql(record._fields, table, sql_condition), {"run": run_id}
    )
    return list(map(partial(tuple.__new__, record), rows))


@cache
def _build_run_rows_select_sql(fields: tuple[str, ...], table: str, sql_condition: str) -> str:
    """Return the same text for every run, so that SQLite need not compile it again."""
    replacements = _RANGE_NUMBERS.get(table, {}) | _PROSE
    columns = ", ".join(
        replacements.get(field) or schema.format_column_list([field]) for field in fields
    )
    order = "id" if table == "kernel" else "rowid"
    return f"SELECT {columns} FROM {table} WHERE run_id = :run {sql_condition} ORDER BY {order}"


def read_op_calls(connection: sqlite3.Connection, run_id: int) -> Iterator[records.OpCall]:
    """Yield every operator of a run in the order of its report, one by one: there may be
    millions."""
    yield from _select_op_calls(connection, "ORDER BY op_call.rowid", run_id)


def _select_op_calls(
    connection: sqlite3.Connection, sql_ending: str, *values: object
) -> Iterator[records.OpCall]:
    return map(records.OpCall._make, connection.execute(f"{_OP_CALLS} {sql_ending}", values))


def read_derived_counts(
    connection: sqlite3.Connection, run_id: int, rule_pattern: str = "%"
) -> list[DerivedCount]:
    """What rules say that launches of a run executed, in the order of its launches; only of rules
    that are LIKE ``rule_pattern``."""
    sql = (
        "SELECT launch, instruction, value, rule, verified_error FROM kernel_launch"
        " JOIN derived_count ON kernel_id = kernel_launch.id WHERE run_id = :run"
        " AND rule LIKE :rules AND EXISTS"
        " (SELECT 1 FROM derived_rule WHERE run_id = :run AND rule LIKE :rules)"
        " ORDER BY kernel_launch.id, derived_count.rowid"
    )
    rows = connection.execute(sql, {"run": run_id, "rules": rule_pattern})
    return list(map(DerivedCount._make, rows))


def read_source_lines(connection: sqlite3.Connection, run_id: int) -> list[records.SourceLine]:
    """The source lines of a run, those with the most samples first, then those with the most
    instructions."""
    return [records.SourceLine(*row[:-1]) for row in connection.execute(_SOURCE_LINES, (run_id,))]


def _read_devices(
    connection: sqlite3.Connection, run_id: int, main_device_id: int | None
) -> tuple[records.Device, ...]:
    columns = ", ".join(
        "device_index" if field.name == "index" else f"device.{field.name}"
        for field in fields(records.Device)
    )
    rows = connection.execute(
        f"SELECT {columns} FROM run_device JOIN device ON device.id = device_id WHERE run_id = ?"
        " ORDER BY device.id IS NOT ?, device_index",
        (run_id, main_device_id),
    )
    return tuple(records.Device(*row) for row in rows)


def read_op_shapes(connection: sqlite3.Connection, run_id: int) -> Iterable[OpShape]:
    sql = (
        f"SELECT {', '.join(SHAPE_COLUMNS)}, record FROM op_shape WHERE run_id = ? ORDER BY "
        "position, rowid"
    )
    for *columns, record in connection.execute(sql, (run_id,)):
        try:
            shapes = json.loads(record) | dict(zip(SHAPE_COLUMNS, columns, strict=True))
            yield parse_op_shape(shapes)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadStoredRecord(
                f"op_shape.record at position {columns[0]!r} is not one that perfctl writes"
            ) from error


def find_newest_ingest_time(connection: sqlite3.Connection) -> str:
    """When the newest run was written, UTC; so that the same database gives the same page."""
    return str(connection.execute("SELECT coalesce(max(ingested_at), '') FROM run").fetchone()[0])


def list_bench_run_ids(connection: sqlite3.Connection) -> list[int]:
    """Whole runs of networks of the families, without a profiler, oldest first."""
    return [number for number, *_ in connection.execute(_BENCH_POINTS)]


def split_fastest_bench_runs(connection: sqlite3.Connection) -> tuple[list[int], list[int]]:
    """(the fastest run of each point, all others of it), by the median of their steps.

    What disturbs a run makes it slower, never faster.
    """
    lengths: dict[int, list[int]] = defaultdict(list)
    for run_id, length in connection.execute(_STEP_LENGTHS):
        if length:
            lengths[run_id].append(length)
    points: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for run_id, *point in connection.execute(_BENCH_POINTS):
        if run_id in lengths:
            points[tuple(point)].append(run_id)
    fastest = {min(runs, key=lambda run: median(lengths[run])) for runs in points.values()}
    return sorted(fastest), sorted({*chain.from_iterable(points.values())} - fastest)
