"""Columns and tables of DLProf 1.0 to 1.8 (the last version): those that are read, and those that are known and skipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perfctl.parsers.records import Diagnostic
from perfctl.parsers.text.sqlite import Database
from perfctl.parsers.unknown import newer, not_understood, others, words

NEWEST = "1.8"

_SUMS = frozenset(
    f"{figure} {what} (ns)"
    for figure in ("total", "avg", "min", "max")
    for what in ("cpu time", "gpu time", "cpu overhead", "gpu idle", "api time")
)
_OP = ("op id", "op name", "direction", "op type", "tc eligible", "using tc", "uses tc", "origin", "layer name")
_SHAPES = ("data type", "data types", "input shapes", "output shapes", "parameters", "stack trace")
COLUMNS: Mapping[str, frozenset[str]] = {
    "iteration": frozenset(_OP + _SHAPES)
    | {"iteration", "kernel name", "long kernel name", "device id", "gpu start time (ns)", "gpu duration (ns)"}
    | {"api call start (ns)", "api call time (ns)", "grid x", "grid y", "grid z", "block x", "block y", "block z"},
    "detail": frozenset(_OP + _SHAPES) | {"no calls"},
    "group_op": frozenset(("name", "num calls aggregated", "num tc eligible ops", "num ops using tc")),
    "op_type": frozenset(("op type", "# ops", "# calls", "# tc eligible ops", "# ops using tc")),
    "tensor_core": frozenset(_OP)
    | {"tc utilization (%)", "total gpu time (ns)", "tc gpu time (ns)", "non-tc gpu time (ns)", "total kernel count"}
    | {"tc kernel count", "tc kernel names", "non-tc kernel count", "non-tc kernel names"},
    "kernel": frozenset(_OP) | {"kernel name", "long kernel name", "calls", "# calls"},
    "expert_systems": frozenset(("problem", "recommendation")),
}
"""Kind of report -> its columns as ``dlprof_tables.column`` spells them; sums of time may be in any."""

TABLES: Mapping[str, frozenset[str]] = {
    "read_only_ops": words(
        "id domain_id op_id_id op_id op_name op_type_id device_id tc_support_status data_type_id data_format_id"
        " output_format_id parameters_format_id direction_id stack_trace"
    ),
    "read_only_kernels": words(
        "id read_only_ops_id op_instance name_id long_name_id uses_tc api_start api_stop gpu_start gpu_stop"
        " grid_id block_id device_id process_id thread_id"
    ),
    "read_only_memcpys": words(
        "id read_only_ops_id op_instance name_id api_start api_stop gpu_start gpu_stop num_bytes copy_kind"
        " device_id process_id thread_id"
    ),
    "read_only_memsets": words(
        "id read_only_ops_id op_instance name_id api_start api_stop gpu_start gpu_stop num_bytes device_id"
        " process_id thread_id"
    ),
    "op_nodes": words(
        "id aggr_id read_only_ops_id node_time_metrics_id kernel_time_metrics_id num_calls kernel_calls"
        " tc_eligible using_tc is_bad_data_type"
    ),
    "dictionary": frozenset(("id", "string")),
}
"""Tables of the database that are read row by row -> their columns, read or not."""

OTHER_TABLES = words(
    "read_only_grid_block read_only_model_info read_only_gpu_infos gpu_memories read_only_system_config db_version"
    " read_only_model_config read_only_domains read_only_sub_ops read_only_op_instances read_only_cuda_syncs"
    " read_only_cuda_calls aggregations category_summary metric node_time_metrics kernel_time_metrics"
    " expert_systems_feedback iteration_key iteration_list iteration_aggregation_list model_summary"
    " device_gpu_utilizations group_ops kernel_summaries kernel_iteration_node kernel_iteration_stats"
    " kernel_summary_metrics memory_summary_metrics op_type_metrics sqlite_sequence sqlite_stat1"
)


def of_tables(tables: Mapping[str, Sequence[Mapping[str, str]]], version: str | None) -> tuple[Diagnostic, ...]:
    """Unknown columns in the tables of CSV or JSON reports, as "kind.column"."""
    found: list[str] = []
    for kind, rows in tables.items():
        names: Iterable[str] = dict.fromkeys(name for row in rows[:1] for name in row)
        found += [f"{kind}.{name}" for name in others(names, COLUMNS.get(kind, frozenset()), _SUMS)]
    return (*not_understood({"columns": found}), *newer("DLProf", version, NEWEST))


def of_database(database: Database, version: str | None) -> tuple[Diagnostic, ...]:
    """Unknown tables and columns of ``dlprof_dldb.sqlite`` that hold data."""
    tables = [name for name in others(database.tables, TABLES, OTHER_TABLES) if database.holds(name)]
    columns = [
        f"{table}.{name}"
        for table, known in TABLES.items()
        for name in others(sorted(database.tables.get(table, ())), known)
        if database.holds(table, name)
    ]
    return (*not_understood({"tables": tables, "columns": columns}), *newer("DLProf", version, NEWEST))
