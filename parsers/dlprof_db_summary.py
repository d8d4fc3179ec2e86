"""Figures of DLProf's database about the whole run: those of the summary report under the same names,
unrounded, devices, versions, advice, and the CUDA calls."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

from perfctl.parsers import dlprof_records
from perfctl.parsers.records import Device, Diagnostic, Gap, Summary
from perfctl.parsers.text.sqlite import Database

_VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")
_FACTS = {
    "framework": "framework",
    "cuda_version": "cuda",
    "cudnn_version": "cudnn",
    "nsys_version": "nsys",
    "dlprof_version": "dlprof",
    "dlprof_build": "dlprof_build",
    "cpu_model": "cpu_model",
    "driver_version": "driver_version",
    "mode_string": "dlprof_mode",
}
_MODEL = {
    "wall_time": ("Wall Clock Time", "ns"),
    "tc_utilization": ("Tensor Core Kernel Utilization", "%"),
    "gpu_utilization": ("GPU Utilization", "%"),
    "tc_duration_pct": ("Tensor Core Kernel Duration", "%"),
    "non_tc_duration_pct": ("Non-Tensor Core Kernel Duration", "%"),
    "memory_duration_pct": ("Memory Duration", "%"),
    "dataloader_duration_pct": ("Dataloader Duration", "%"),
    "io_duration_pct": ("IO Duration", "%"),
    "cpu_duration_pct": ("CPU Duration", "%"),
    "other_duration_pct": ("Other Duration", "%"),
    "iter_total": ("Total Iterations", None),
    "iter_aggregated": ("Aggregated Iterations", None),
    "iter_start": ("Start Iteration", None),
    "iter_stop": ("Stop Iteration", None),
    "avg_iteration_time": ("Average Iteration Time", "ns"),
    "iteration_time_std_dev": ("Iteration Time Standard Deviation", "ns"),
}
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


def facts(database: Database) -> Facts:
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
    return (
        {name: str(value) for name, value in zip(columns, rows[0], strict=True) if value not in (None, "")}
        if rows
        else {}
    )


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
        reason = (
            "gpu_memories does not say which size belongs to which device"
            if totals
            else "the table gpu_memories is empty"
        )
        gaps.append(Gap("device.memory_bytes", "ambiguous" if totals else "not_available", reason))
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
