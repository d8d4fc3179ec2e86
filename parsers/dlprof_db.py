"""DLProf's own database, ``dlprof_dldb.sqlite`` (1.8.0 was seen).

It has the figures of the CSV reports, unrounded, and also copies, device memory and CUDA calls. Its tables are read and
joined here; its views, which join the same names, are not used, since a view in somebody else's
file is a program. Where the database was aggregated several times, the last aggregation counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from perfctl.parsers import dlprof_db_summary, dlprof_known, dlprof_records
from perfctl.parsers.errors import ReportError
from perfctl.parsers.records import Copy, Gap, Kernel, Operation, Report, Step
from perfctl.parsers.text.cupti import COPY_KINDS
from perfctl.parsers.text.sqlite import Database, check_whole, connect
from perfctl.sqlite_header import is_sqlite

TOOL = "dlprof"
KERNEL = "read_only_kernels"
MEMCPY = "read_only_memcpys"
MEMSET = "read_only_memsets"
OP = "read_only_ops"
_MARKERS = {OP, KERNEL, "dictionary"}
_AGAIN = "Copy it again, or let dlprof make it again (dlprof --force=true ...)"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is an SQLite file with DLProf's tables; a damaged one is recognised by table names in its head."""
    if not is_sqlite(head):
        return False
    try:
        with closing(connect(path)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    except (sqlite3.Error, OSError, UnicodeError):  # a message about a damaged schema need not be UTF-8
        return OP.encode() in head and b"TABLE dictionary" in head
    return {name for (name,) in rows} >= _MARKERS


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it is cut off or damaged, or lacks the tables that all others refer to."""
    with _opened(path) as database:
        facts = dlprof_db_summary.facts(database)
        found = list(_kernels(database))
        return Report(
            tool=TOOL,
            path=path,
            form=f"DLProf database, version {facts.db_version}" if facts.db_version else "DLProf database",
            tool_version=facts.tool_version,
            devices=facts.devices,
            environment=facts.environment,
            kernels=found,
            copies=list(_copies(database)),
            operations=list(_operations(database)),
            steps=tuple(_steps(database)),
            summaries=facts.summaries,
            gaps=(*facts.gaps, *_gaps(database, found)),
            diagnostics=(*facts.diagnostics, *dlprof_known.of_database(database, facts.tool_version)),
            duration_ns=facts.wall_clock_ns,
        )


@contextmanager
def _opened(path: Path) -> Iterator[Database]:
    """Open it read-only, leaving nothing beside the file. Raises ReportError for every SQLite error."""
    try:
        check_whole(path, TOOL, _AGAIN)
        with closing(connect(path)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA temp_store = MEMORY")
            database = Database(connection)
            if not set(database.tables) >= _MARKERS:
                raise ReportError(path, TOOL, "DLProf's tables are missing", _AGAIN)
            yield database
    except OSError as error:
        raise ReportError(path, TOOL, f"it cannot be read ({error.strerror})", "Check its permissions") from error
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        shown = " ".join(str(error).split())
        raise ReportError(path, TOOL, f"the database is damaged or cut off ({shown[:200]})", _AGAIN) from error


def _word(column: str) -> str:
    """SQL for the dictionary's string of an id."""
    return f"(SELECT string FROM dictionary WHERE id = {column})"


def _of(database: Database, table: str, alias: str, name: str) -> str:
    """SQL for a column of a joined table; NULL where this version does not have it."""
    return f"{alias}.{name}" if database.has(table, name) else "NULL"


def _kernels(database: Database) -> Iterator[Kernel]:
    """Yield one record per launch, in the order of the database."""
    of_kernel = partial(_of, database, KERNEL, "k")
    sizes = [
        f"(SELECT {axis} FROM read_only_grid_block WHERE id = {of_kernel(name)})" if has_sizes else "NULL"
        for has_sizes in [database.has("read_only_grid_block", "id", "x", "y", "z")]
        for name in ("grid_id", "block_id")
        for axis in "xyz"
    ]
    columns = [
        *(_word(of_kernel("name_id")), _word(of_kernel("long_name_id")), _of(database, OP, "o", "op_name")),
        *(_word(_of(database, OP, "o", "direction_id")), _iteration(database), of_kernel("device_id")),
        *(*sizes, of_kernel("gpu_start"), of_kernel("gpu_stop")),
    ]
    op = of_kernel("read_only_ops_id")
    rows = database.connection.execute(
        f"SELECT {', '.join(columns)} FROM {KERNEL} k LEFT JOIN {OP} o ON o.id = {op} ORDER BY k.id"
    )
    for launch, (short, long, op, direction, step, device, *grid, start, stop) in enumerate(rows):
        place, source = dlprof_records.layer_of(_text(op) or "")
        size = [_number(axis) for axis in grid]
        yield Kernel(
            launch=launch,
            name=_text(long) or _text(short) or "(no name in the database)",
            short_name=_text(short),
            layer=place.layer,
            direction=place.direction or dlprof_records.DIRECTIONS.get(str(direction)),
            step=place.step if place.step is not None else _number(step),
            layer_source=source,
            device_index=_number(device),
            grid_x=size[0],
            grid_y=size[1],
            grid_z=size[2],
            block_x=size[3],
            block_y=size[4],
            block_z=size[5],
            start_ns=_number(start),
            duration_ns=_duration(start, stop),
        )


def _iteration(database: Database) -> str:
    """SQL for the iteration of a kernel in the last aggregation."""
    if not database.has("kernel_iteration_node", "aggr_id", "read_only_kernel_id", "iter_value"):
        return "NULL"
    # a temporary index: the file has none on that column and must not be changed
    database.connection.execute(
        "CREATE TEMP TABLE kernel_step AS SELECT read_only_kernel_id AS kernel, min(iter_value) AS step"
        " FROM kernel_iteration_node WHERE aggr_id = (SELECT max(aggr_id) FROM kernel_iteration_node) GROUP BY 1"
    )
    database.connection.execute("CREATE INDEX temp.kernel_step_by_kernel ON kernel_step(kernel)")
    return "(SELECT step FROM temp.kernel_step WHERE kernel = k.id)"


def _copies(database: Database) -> Iterator[Copy]:
    """Yield copies in the order of their table, then memsets in theirs."""
    for table in (MEMCPY, MEMSET):
        columns = ("copy_kind", "num_bytes", "gpu_start", "gpu_stop", "device_id")
        for kind, size, start, stop, device in database.rows(table, *columns):
            word = "memset" if table == MEMSET else COPY_KINDS.get(kind, str(kind))
            yield Copy(word, _number(size), _number(start), _duration(start, stop), device_index=_number(device))


def _operations(database: Database) -> Iterator[Operation]:
    """Yield one record per op of the model, summed over its calls, from the last aggregation."""
    if not (
        database.has("op_nodes", "aggr_id", "read_only_ops_id", "node_time_metrics_id", "num_calls")
        and database.has("node_time_metrics", "id", "cpu_time_metric_id", "gpu_time_metric_id")
        and database.has("metric", "id", "sum")
    ):
        return
    of_op = partial(_of, database, OP, "o")
    words = f"{of_op('op_name')}, {_word(of_op('op_type_id'))}, {_word(of_op('direction_id'))}"
    rows = database.connection.execute(
        f"SELECT {words}, n.num_calls, c.sum, g.sum FROM op_nodes n"
        f" LEFT JOIN {OP} o ON o.id = n.read_only_ops_id"
        " LEFT JOIN node_time_metrics t ON t.id = n.node_time_metrics_id"
        " LEFT JOIN metric c ON c.id = t.cpu_time_metric_id LEFT JOIN metric g ON g.id = t.gpu_time_metric_id"
        " WHERE n.aggr_id = (SELECT max(aggr_id) FROM op_nodes) ORDER BY n.id"
    )
    for name, kind, way, calls, cpu_ns, gpu_ns in rows:
        if _number(calls) is None:
            continue
        place, _ = dlprof_records.layer_of(_text(name) or "")
        yield Operation(
            name=_text(name) or "(no name in the database)",
            category=_text(kind),
            calls=int(calls),
            cpu_ns=_number(cpu_ns),
            self_cpu_ns=None,
            device_ns=_number(gpu_ns),
            memory_bytes=None,
            flops=None,
            layer=place.layer,
            direction=place.direction or dlprof_records.DIRECTIONS.get(str(way)),
        )


def _steps(database: Database) -> Iterator[Step]:
    """The iterations of the last aggregation, whether aggregated or not."""
    rows = database.rows("iteration_list", "aggr_id", "iter_value", "start_time", "stop_time")
    last = max((aggregation for aggregation, *_ in rows if isinstance(aggregation, int)), default=None)
    for aggregation, number, start, stop in rows:
        if aggregation == last and isinstance(number, int):
            yield Step(number, "step", _number(start), _duration(start, stop))


def _gaps(database: Database, found: list[Kernel]) -> Iterator[Gap]:
    reason = "DLProf's database has no streams, registers or shared memory of kernels"
    for name in ("stream", "registers", "static_shared_bytes", "dynamic_shared_bytes"):
        yield Gap(f"kernel.{name}", "not_available", reason)
    if not found:
        yield Gap("kernel", "not_collected", "no kernel ran while DLProf recorded, or nsys could not trace CUDA")
    for table, quantity in ((MEMCPY, "copy"), ("op_nodes", "operation")):
        if table not in database.tables:
            yield Gap(quantity, "not_available", f"the database has no table {table}")
    yield from dlprof_records.layer_gap(found)
    yield from dlprof_records.operation_gaps()
    if unstepped := sum(kernel.step is None for kernel in found):
        reason = f"{unstepped} of {len(found)} launches are outside the iterations that DLProf aggregated"
        yield Gap("kernel.step", "not_collected", reason)


def _duration(start: object, stop: object) -> int | None:
    """Return None also where stop is before start: DLProf writes 0 for unknown times."""
    if isinstance(start, int) and isinstance(stop, int) and stop >= start and stop:
        return stop - start
    return None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
