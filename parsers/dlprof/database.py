"""DLProf's own database, ``dlprof_dldb.sqlite`` (1.8.0 was seen).

It has the figures of the CSV reports, unrounded, and also copies, device memory and CUDA calls. Its tables are read and
joined here; its views, which join the same names, are not used, since a view in somebody else's
file is a program. Where the database was aggregated several times, the last aggregation counts.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path

from perfctl.parsers.dlprof import records as dlprof_records
from perfctl.parsers.text.cupti import COPY_KINDS
from perfctl.parsers.text.sqlite import Database, check_whole, connect
from perfctl.records.errors import ReportError
from perfctl.records.report import Copy, Device, Diagnostic, Gap, Kernel, Operation, Report, Step, Summary
from perfctl.records.sqlite_header import is_sqlite

_VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")
_FACTS = {
    "framework": "framework", "cuda_version": "cuda", "cudnn_version": "cudnn", "nsys_version": "nsys",
    "dlprof_version": "dlprof", "dlprof_build": "dlprof_build", "cpu_model": "cpu_model",
    "driver_version": "driver_version", "mode_string": "dlprof_mode",
}  # fmt: skip
_MODEL = {
    "wall_time": ("Wall Clock Time", "ns"), "tc_utilization": ("Tensor Core Kernel Utilization", "%"),
    "gpu_utilization": ("GPU Utilization", "%"), "tc_duration_pct": ("Tensor Core Kernel Duration", "%"),
    "non_tc_duration_pct": ("Non-Tensor Core Kernel Duration", "%"), "memory_duration_pct": ("Memory Duration", "%"),
    "dataloader_duration_pct": ("Dataloader Duration", "%"), "io_duration_pct": ("IO Duration", "%"),
    "cpu_duration_pct": ("CPU Duration", "%"), "other_duration_pct": ("Other Duration", "%"),
    "iter_total": ("Total Iterations", None), "iter_aggregated": ("Aggregated Iterations", None),
    "iter_start": ("Start Iteration", None), "iter_stop": ("Stop Iteration", None),
    "avg_iteration_time": ("Average Iteration Time", "ns"),
    "iteration_time_std_dev": ("Iteration Time Standard Deviation", "ns"),
}  # fmt: skip
_OPS = {
    "nodes_total_id": "All ops",
    "nodes_using_tc_id": "Ops using TC",
    "nodes_tc_eligible_id": "Ops eligible for TC but not using",
    "nodes_other_id": "All other ops",
}
_SETTINGS = (
    "num_workers", "pin_memory", "cudnn_benchmark_disabled", "detect_anomaly", "gradcheck", "gradgradcheck",
    "autograd_profile", "emit_nvtx", "amp_enabled",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Facts:
    """The fields of Report of the same names."""

    db_version: str | None
    tool_version: str | None
    devices: tuple[Device, ...]
    environment: dict[str, str]
    summaries: tuple[Summary, ...]
    gaps: tuple[Gap, ...]
    diagnostics: tuple[Diagnostic, ...]
    wall_clock_ns: int | None


def summary_facts(database: Database) -> Facts:
    """Raises sqlite3.Error when the database is damaged."""
    config = _first(database, "read_only_system_config", (*_FACTS, "num_gpus"))
    model = _last_models(database)
    version = _VERSION.match(config.get("dlprof_version", ""))
    devices, gaps = _devices(database, config)
    summaries = [figure for row in model for figure in _model_figures(database, row, len(model) > 1)]
    wall = next((figure.value for figure in summaries if figure.name == "Wall Clock Time"), None)
    advice = database.rows("expert_systems_feedback", "aggr_id", "problem", "recommendation")
    last = _last_aggregation(advice)
    advice_pairs = ((str(problem), str(do)) for aggregation, problem, do in advice if aggregation == last)
    return Facts(
        db_version=_first(database, "db_version", ("current_version",)).get("current_version"),
        tool_version=version[1] if version else config.get("dlprof_version"),
        devices=devices,
        environment=_environment(database, config),
        summaries=(*summaries, *_tensor_core(database), *_calls(database), *_memory(database)),
        gaps=tuple(gaps),
        diagnostics=tuple(dlprof_records.feedback(advice_pairs)),
        wall_clock_ns=None if wall is None else int(wall),
    )


def _first(database: Database, table: str, columns: tuple[str, ...]) -> dict[str, str]:
    """The filled cells of a table's first row, as text."""
    rows = database.rows(table, *columns)
    cells = zip(columns, rows[0], strict=True) if rows else ()
    return {name: str(value) for name, value in cells if value not in (None, "")}


def _last_aggregation(rows: list[tuple[object, ...]]) -> int | None:
    return max((row[0] for row in rows if isinstance(row[0], int)), default=None)


def _last_models(database: Database) -> list[dict[str, object]]:
    """model_summary of the last aggregation: one row a domain."""
    names = ("aggr_id", "domain_id", *_MODEL, *_OPS)
    rows = database.rows("model_summary", *names)
    last = _last_aggregation(rows)
    return [dict(zip(names, row, strict=True)) for row in rows if row[0] == last]


def _model_figures(database: Database, row: dict[str, object], several: bool) -> list[Summary]:
    prefix = f"{_domain(database, row['domain_id'])}: " if several else ""
    found = [_figure(prefix + name, row[column], unit) for column, (name, unit) in _MODEL.items()]
    for column, label in _OPS.items():
        found += _category(database, f"{prefix}All Ops: {label}", row[column], "# Ops")
    kernels = _of_domain(
        database, "kernel_summary_metrics", row, ("kernels_total_id", "kernels_using_tc_id", "kernels_non_tc_id")
    )
    memory = _of_domain(database, "memory_summary_metrics", row, ("memory_time_id",))
    parts = [("Kernels using TC", kernels[1]), ("Memory", memory[0]), ("All other kernels", kernels[2])]
    # the report's first line is the table's total and the copies together (1.8.0: 308960 + 43040 = 352000 ns)
    both = [_category(database, f"{prefix}All Kernels: All kernels", n, "# Kernels") for n in (kernels[0], memory[0])]
    found += [
        Summary(one.name, one.value + two.value, one.unit)
        for one, two in zip(*both, strict=False)
        if one.value is not None and two.value is not None
    ]
    for label, number in parts:
        found += _category(database, f"{prefix}All Kernels: {label}", number, "# Kernels")
    return found


def _of_domain(database: Database, table: str, row: dict[str, object], columns: tuple[str, ...]) -> tuple[object, ...]:
    for aggregation, domain, *values in database.rows(table, "aggr_id", "domain_id", *columns):
        if (aggregation, domain) == (row["aggr_id"], row["domain_id"]):
            return tuple(values)
    return (None,) * len(columns)


def _category(database: Database, label: str, number: object, count_name: str) -> list[Summary]:
    for key, gpu_ns, cpu_ns, count in database.rows("category_summary", "id", "gpu_time", "cpu_time", "count"):
        if key == number:
            return [
                _figure(f"{label}: GPU Time", gpu_ns, "ns"),
                _figure(f"{label}: CPU Time", cpu_ns, "ns"),
                _figure(f"{label}: {count_name}", count, None),
            ]
    return []


def _domain(database: Database, number: object) -> str:
    for key, word in database.rows("read_only_domains", "id", "domain_name_id"):
        if key == number:
            found = database.connection.execute("SELECT string FROM dictionary WHERE id = ?", (word,)).fetchone()
            return str(found[0]) if found else f"domain {number}"
    return f"domain {number}"


def _tensor_core(database: Database) -> list[Summary]:
    """Share of each op's kernel time that used tensor cores, as in the tensor core report."""
    columns = ("read_only_ops_id", "uses_tc", "gpu_start", "gpu_stop")
    if not database.has("read_only_kernels", *columns) or not database.has("read_only_ops", "op_id"):
        return []
    rows = database.connection.execute(
        "SELECT o.op_id, sum(CASE WHEN k.uses_tc THEN k.gpu_stop - k.gpu_start ELSE 0 END), sum(k.gpu_stop - k.gpu_start)"
        " FROM read_only_kernels k JOIN read_only_ops o ON o.id = k.read_only_ops_id GROUP BY o.id ORDER BY o.id"
    )
    return [_figure(f"TC Utilization: {op}", 100 * used / total, "%") for op, used, total in rows if total]


def _calls(database: Database) -> list[Summary]:
    """CUDA calls that launched nothing, by name: count and host time."""
    found = []
    for table, word in (("read_only_cuda_calls", "CUDA call"), ("read_only_cuda_syncs", "CUDA synchronisation")):
        if not database.has(table, "name_id", "api_start", "api_stop"):
            continue
        rows = database.connection.execute(
            "SELECT coalesce((SELECT string FROM dictionary WHERE id = name_id), 'without a name'), count(*),"
            f" sum(api_stop - api_start) FROM {table} GROUP BY name_id ORDER BY 1"
        )
        for name, count, time in rows:
            found += [_figure(f"{word}: {name}: Calls", count, None), _figure(f"{word}: {name}: CPU Time", time, "ns")]
    return found


def _memory(database: Database) -> list[Summary]:
    rows = database.rows("gpu_memories", "used")
    several = len(rows) > 1
    return [
        _figure(f"GPU {n}: Memory Used" if several else "GPU Memory Used", row[0], "byte") for n, row in enumerate(rows)
    ]


def _devices(database: Database, config: dict[str, str]) -> tuple[tuple[Device, ...], list[Gap]]:
    """GPUs by CUDA ordinal, then the CPU. Memory sizes do not name their device, so they are used only where all are equal."""
    columns = ("device_id", "gpu_name", "compute_capability_major", "compute_capability_minor", "sm_count")
    rows = database.rows("read_only_gpu_infos", *columns)
    totals = [row[0] for row in database.rows("gpu_memories", "total")]
    size = totals[0] if len(set(totals)) == 1 and len(totals) == len(rows) and isinstance(totals[0], int) else None
    gaps = []
    if size is None and rows:
        unsure = "ambiguous", "gpu_memories does not say which size belongs to which device"
        gaps.append(
            Gap("device.memory_bytes", *(unsure if totals else ("not_available", "the table gpu_memories is empty")))
        )
    gpus = [
        Device(
            name=str(name) if name else None,
            kind="gpu",
            index=number if isinstance(number, int) else order,
            compute_capability=f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else None,
            sm_count=count if isinstance(count, int) else None,
            memory_bytes=size,
            driver_version=config.get("driver_version"),
        )
        for order, (number, name, major, minor, count) in enumerate(rows)
    ]
    cpu = [Device(config["cpu_model"], "cpu")] if config.get("cpu_model") else []
    return (*gpus, *cpu), gaps


def _environment(database: Database, config: dict[str, str]) -> dict[str, str]:
    """Versions and settings of the model, without the command line and the names of user and host."""
    found = {name: config[column] for column, name in _FACTS.items() if column in config}
    product, _, version = config.get("framework", "").partition(" ")
    if product == "PyTorch" and version:
        found["torch"] = version
    return found | _first(database, "read_only_model_config", _SETTINGS)


def _figure(name: str, value: object, unit: str | None) -> Summary:
    if isinstance(value, (int, float)) and isfinite(value):
        return Summary(name, float(value), unit)
    return Summary(name, None, unit, str(value) if value is not None else None)


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
        facts = summary_facts(database)
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
            diagnostics=(*facts.diagnostics, *dlprof_records.of_database(database, facts.tool_version)),
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
            grid_x=size[0], grid_y=size[1], grid_z=size[2], block_x=size[3], block_y=size[4], block_z=size[5],
            start_ns=_number(start),
            duration_ns=_duration(start, stop),
        )  # fmt: skip


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
