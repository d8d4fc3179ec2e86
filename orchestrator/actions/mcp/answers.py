"""What an agent may ask a store, one function each. Every figure is made where the commands make
it; nothing is written.

Each takes the store and who is told of what was left out, and returns the answer's own part: rows,
their units, and the runs that they come from. ``tools`` says the rest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.actions.mcp.text import for_agents
from perfctl.orchestrator.actions.messages import Messages
from perfctl.orchestrator.errors import StoreError, UsageError
from perfctl.orchestrator.outputs import to_json
from perfctl.orchestrator.store import database, query, read
from perfctl.records.run import Run

if TYPE_CHECKING:
    from perfctl.orchestrator.ledger.analysis import Analysis
    from perfctl.orchestrator.report.tables import Table

Answer = dict[str, Any]
LEDGER = "ledger"
"""Not a table of the store, but described like one."""
_RUN = (
    "id",
    "sweep_id",
    "sweep_name",
    "profiler",
    "profiler_version",
    "workload",
    "variant",
    "batch_size",
    "mode",
    "precision",
    "device_name",
    "status",
    "reason",
    "origin",
    "started_at",
    "duration_ns",
    "clock",
    "artifact",
    "rank",
    "world_size",
    "kernels",
    "ranges",
    "copies",
    "operations",
    "counters",
)
_TABLE_OF = {
    "kernels": "kernel",
    "ranges": "range",
    "copies": "copy",
    "operations": "operation",
    "counters": "counter",
}
"""Column of a list of runs -> the table whose rows it counts."""
_ROW_COUNTS = (
    "kernels",
    "counters",
    "copies",
    "ranges",
    "operations",
    "samples",
    "steps",
    "memory",
    "summaries",
    "advice",
    "ops",
)
"""Fields of a report whose rows are counted."""
_KERNELS = 5
"""Kernels of a row of the ledger."""
_NCU_TIMES = "durations under ncu: locked clocks and cold caches, so they are not times to trust"
_STATES = {"est": "estimated", "der": "derived", "refused": "refused"}
"""Style of a cell -> what is said of its value."""

_COUNTED = dict.fromkeys(_TABLE_OF, "rows")

_TIMES = {
    "step_median_ns": "no steps were timed",
    "kernel_time_ns": "kernels without times, or none",
}


def list_runs(
    store: Path, messages: Messages, *, limit: int, offset: int, workload: str | None = None
) -> Answer:
    """The newest runs first, with how many rows each has."""
    with database.reading(store) as connection:
        found = [
            row
            for row in reversed(read.run_rows(connection))
            if workload in (None, row["workload"])
        ]
        chosen = found[offset : offset + limit]
        reasons = {row["id"]: dict(_reasons(connection, row["id"])) for row in chosen}
        times = {row["id"]: _times_of(connection, row["id"]) for row in chosen}
    rows = [{name: row[name] for name in _RUN} | times[row["id"]] for row in chosen]
    for row in rows:
        said = reasons[row["id"]]
        row["why_null"] = {name: _why(name, said) for name, value in row.items() if value is None}
        if "clock" in row["why_null"] and row["step_median_ns"] is not None:
            row["why_null"]["clock"] = "the report's own: its steps are ranges on the host"
    return {
        "rows": rows,
        "rows_total": len(found),
        "order": "newest run first",
        "units": _units("run") | _COUNTED | dict.fromkeys(_TIMES, "ns"),
        "how": (
            "duration_ns is of the whole capture. step_median_ns is of the measured steps, by the "
            "clock in 'clock'. kernel_time_ns is the sum over all kernels, those outside of the "
            "steps too; under ncu, clocks are locked and caches cold."
        ),
        "sources": [{"table": "run", "counted_from": sorted(_TABLE_OF.values())}],
    }


def _times_of(connection: sqlite3.Connection, run: int) -> dict[str, float | None]:
    """Median of the measured steps and sum of the kernels' durations, in ns; None where one is
    not known."""
    steps = connection.execute(
        "SELECT duration_ns FROM step WHERE run_id = ? AND phase = 'step'", (run,)
    )
    taken = [ns for (ns,) in steps if ns is not None]
    sums = (
        "SELECT CASE WHEN count(duration_ns) = count(*) THEN sum(duration_ns) END FROM "
        "kernel_launch WHERE run_id = ?"
    )
    return {
        "step_median_ns": median(taken) if taken else None,
        "kernel_time_ns": connection.execute(sums, (run,)).fetchone()[0],
    }


def _reasons(connection: sqlite3.Connection, run: int) -> Iterator[tuple[str, str]]:
    """(quantity, reason) of the gaps of a run as a whole."""
    yield from connection.execute(
        "SELECT quantity, reason FROM gap WHERE run_id = ? AND scope IS NULL", (run,)
    )


def _why(column: str, reasons: Mapping[str, str]) -> str:
    """Why a column of a run is NULL: as its gap says, else as the schema does."""
    table = _TABLE_OF.get(column, column)
    if said := reasons.get(table) or (
        reasons.get("kernel.duration_ns") if column == "kernel_time_ns" else None
    ):
        return said
    if column in _TIMES:
        return _TIMES[column]
    meant = next((one.null for one, _ in query.columns_of("run") if one.name == column), None)
    return meant or "not known"


def run(store: Path, messages: Messages, *, run: int) -> Answer:
    """One run: facts, devices, libraries, steps, how many rows of each kind, and every gap with
    its reason."""
    found, analysis = _analysed(store, run)
    report = found.report
    facts = {name: getattr(found, name) for name in Run.JSON_KEYS}
    reasons = {gap.quantity: gap.reason for gap in report.gaps if gap.scope is None}
    why = {name: _why(name, reasons) for name, value in facts.items() if value is None}
    counted = {name: len(getattr(report, name)) for name in _ROW_COUNTS}
    steps = [
        {
            "batch": point.batch,
            "clock": point.basis,
            "samples_per_step": point.samples,
            "step": None
            if point.step is None
            else {
                "median_ns": point.step.median,
                "low_ns": point.step.low,
                "high_ns": point.step.high,
                "steps": point.step.count,
            },
            "memory_bytes": dict(point.memory),
            "problems": list(point.problems),
        }
        for point in analysis.points
    ]
    return {
        "run": facts | {"form": report.form, "why_null": why},
        "devices": [asdict(device) for device in report.devices],
        "environment": report.environment,
        "row_counts": counted,
        "steps": steps,
        "rows": [gap._asdict() for gap in report.gaps],
        "rows_are": "gaps: why a figure is null",
        "rows_total": len(report.gaps),
        "diagnostics": [one._asdict() for one in report.diagnostics],
        "units": _units("run")
        | _units("device")
        | {
            "row_counts": "rows",
            "median_ns": "ns",
            "low_ns": "ns",
            "high_ns": "ns",
            "memory_bytes": "byte",
        },
        "sources": [_source(found)],
    }


def gaps(
    store: Path,
    messages: Messages,
    *,
    limit: int,
    offset: int,
    run: int | None = None,
    quantity: str | None = None,
) -> Answer:
    """Why figures are NULL: of the whole store, one run, or one quantity."""
    with database.reading(store) as connection:
        ids = [run] if run is not None else None
        if run is not None and run not in read.run_ids(connection):
            raise StoreError(
                f"there is no run {run} in this store", "list_runs names those there are"
            )
        names = [column.name for column, _ in query.columns_of("gap")]
        found = [
            dict(zip(names, row, strict=True)) for row in query.table_rows(connection, "gap", ids)
        ]
    found = [row for row in found if quantity is None or quantity in str(row["quantity"])]
    return {
        "rows": found[offset : offset + limit],
        "rows_total": len(found),
        "units": {},
        "sources": [{"table": "gap", "runs": sorted({row["run_id"] for row in found})}],
    }


def ledger(
    store: Path,
    messages: Messages,
    *,
    limit: int,
    offset: int,
    layer: str | None = None,
    batch: int | None = None,
) -> Answer:
    """Counted against paper FLOPs per layer, direction and batch size, and why they differ."""
    from perfctl.orchestrator.actions.ledger import Ledgers
    from perfctl.orchestrator.report.ledger import rows as export

    sizes = () if batch is None else (batch,)
    ledgers = Ledgers(store, layer, sizes, messages=messages)
    found = [analysis for group in ledgers.each(list) for analysis in group]
    rows = list(export.ledger_rows(found))
    chosen = rows[offset : offset + limit]
    for row in chosen:
        if (left := len(row["kernels"]) - _KERNELS) > 0:
            row["kernels"], row["kernels_left_out"] = row["kernels"][:_KERNELS], left
    units = {name: unit for name, (_, unit, _) in export.column_facts().items() if unit != "-"}
    return {
        "rows": chosen,
        "rows_total": len(rows),
        "sweep_verdicts": to_json(export.sweep_verdicts(found)),
        "units": units,
        "sources": [_source(run) for one in found for run in one.study.runs],
        "how": (
            "paper_flops come from the layers' shapes, and paper_state 'counted' means that all "
            "are known. counted_state: counted by hardware counters, derived from kernel names, "
            "grids and shapes, or estimated; counted_rule is the arithmetic. clock is what timed "
            "time_ns. Times, FLOPs and bytes are of one step; *_why says why a value beside it is "
            "null"
        ),
    }


def findings(
    store: Path, messages: Messages, *, limit: int, offset: int, run: int | None = None
) -> Answer:
    """What the page of the store says first: sentences that its figures prove, largest gaps first,
    then warnings."""
    from perfctl.orchestrator.actions.stored_runs import analysed
    from perfctl.orchestrator.actions.tables import newest_runs
    from perfctl.orchestrator.ledger.analysis import analyse_all
    from perfctl.orchestrator.ledger.prepared import heading, studies
    from perfctl.orchestrator.report import findings as views
    from perfctl.orchestrator.report.studies.ranks import rank_findings, talks
    from perfctl.parsers import no_collection

    with no_collection():
        runs = newest_runs(store) if run is None else [_analysed(store, run)[0]]
        found = analysed(
            runs, lambda some: [(one, views.findings(one)) for one in analyse_all(studies(some))]
        )
        of_jobs = [(talk, rank_findings(talk)) for talk in talks(runs)]
    rows: list[dict[str, Any]] = [
        {
            "study": f"job of {len(talk.job.ranks)} ranks",
            "runs": [use.run.id for use in talk.job.ranks],
            "text": said.text,
            "is_warning": said.warning,
            "proved_in": said.evidence,
        }
        for talk, sentences in of_jobs
        for said in sentences
    ]
    rows += [
        {
            "study": heading(one.study),
            "runs": [run.id for run in one.study.runs],
            "text": said.text,
            "is_warning": said.warning,
            "proved_in": said.evidence,
        }
        for one, sentences in found
        for said in sentences
    ]
    used = {number for row in rows for number in row["runs"]}
    return {
        "rows": rows[offset : offset + limit],
        "rows_total": len(rows),
        "units": {"text": "stated in each sentence"},
        "sources": [_source(run) for one, _ in found for run in one.study.runs if run.id in used],
    }


def kernels(
    store: Path, messages: Messages, *, run: int, limit: int, offset: int, name: str | None = None
) -> Answer:
    """The kernels of one run by name, those with the most time first."""
    from perfctl.orchestrator.report.page.kernels import summary

    found, analysis = _analysed(store, run)
    table = summary(analysis.study.prepared_runs, names=analysis.names)
    rows: list[dict[str, Any]] = []
    units: dict[str, str] = {}
    if table is not None:
        rows, units = _table(table)
    rows = [row for row in rows if name is None or name.lower() in str(row.get("kernel")).lower()]
    for row in rows:  # a column without any value is not in the table
        for column, why in _no_column(found, analysis).items():
            if column not in row:
                row[column], row["why_null"][column] = None, why
    answer: Answer = {
        "rows": rows[offset : offset + limit],
        "rows_total": len(rows),
        "units": units,
        "sources": [_source(found)],
        "how": (
            "executed, fp32, fp64, fp16, tensor: from hardware counters, all launches of the name; "
            "null where none were collected, and why_null says so. One launch with its counters "
            "and derived counts: tool kernel"
        ),
    }
    if table is None:
        reasons = [gap.reason for gap in found.report.gaps if gap.quantity in ("kernel", "kernels")]
        answer["why_no_rows"] = reasons[0] if reasons else "the report names no kernel"
    elif table.hidden:
        answer["names_not_reached"] = table.hidden
    return answer


def _no_column(found: Run, analysis: Analysis) -> dict[str, str]:
    """Column of the table of kernels -> why the run has no value for it, where it has none."""
    from perfctl.orchestrator.report.findings import lacking_flops

    timed = next(
        (gap.reason for gap in found.report.gaps if gap.quantity == "kernel.duration_ns"), None
    )
    no_time = timed or "this report has no durations"
    lacking = lacking_flops(analysis.study.prepared_runs[0])
    no_flops = f"{lacking[0]}: {lacking[1]}" if lacking else "not collected"
    return {"time": no_time, "share": no_time, "executed": no_flops}


def _table(table: Table) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """(rows, unit of each column) of a table of the page: full values, with the state or the reason
    of each beside them."""
    rows: list[dict[str, Any]] = []
    for cells in table.rows:
        row: dict[str, Any] = {}
        states, reasons = {}, {}
        for column, cell in zip(table.columns, cells, strict=True):
            name = column.label
            row[name] = (
                None
                if cell.style in ("no", "refused")
                else cell.text
                if cell.value is None
                else cell.value
            )
            if row[name] is None:
                reasons[name] = cell.title or "not known"
            if cell.style in _STATES:
                states[name] = _STATES[cell.style]
            if cell.is_lower_bound:
                states[name] = "lower bound"
        rows.append(row | {"states": states, "why_null": reasons})
    units = {
        column.label: column.base or column.unit
        for column in table.columns
        if column.base or column.unit
    }
    return rows, units | (
        {"share": "0..1"} if any(column.label == "share" for column in table.columns) else {}
    )


def kernel(
    store: Path,
    messages: Messages,
    *,
    run: int,
    launch: int,
    limit: int,
    offset: int,
    counter: str | None = None,
) -> Answer:
    """One launch: its facts, its counters, and what rules derive where no counter measured."""
    with database.reading(store) as connection:
        found = _rows(connection, "kernel", "run_id = ? AND launch = ?", (run, launch))
        if not found:
            raise StoreError(
                f"run {run} has no launch {launch}", "Tool kernels, or query, shows which there are"
            )
        facts = found[0]
        counters = _rows(connection, "counter", "kernel_id = ?", (facts["id"],))
        derived = _rows(connection, "derived_count", "kernel_id = ?", (facts["id"],))
        reasons = dict(_reasons(connection, run))
        (source,) = _rows(connection, "run", "id = ?", (run,))
    nulls = {one.name: one.null for one, _ in query.columns_of("kernel")}
    why = {
        name: reasons.get(f"kernel.{name}") or nulls.get(name) or "not known"
        for name, value in facts.items()
        if value is None
    }
    counters = [
        row for row in counters if counter is None or counter.lower() in str(row["name"]).lower()
    ]
    which = "" if counter is None else f" with {counter!r} in their names"
    for row in counters:
        if row["value"] is None and row["text"] is None:
            row["why_null"] = reasons.get(f"counter:{row['name']}", "printed as n/a, or as text")
    return {
        "kernel": facts | {"why_null": why},
        "rows": counters[offset : offset + limit],
        "rows_total": len(counters),
        "rows_are": f"counters of the launch{which}: counted, each in the unit beside it",
        "derived": derived,
        "units": _units("kernel")
        | {"derived": "instructions; tensor FLOP in FLOP", "value": "in the row's unit"},
        "sources": [
            {
                "run": run,
                **{
                    name: source[name]
                    for name in ("profiler", "profiler_version", "artifact", "origin", "status")
                },
                "times": _times(source["profiler"]),
            }
        ],
    }


def compare(
    store: Path,
    messages: Messages,
    *,
    a: str,
    b: str,
    gate: float,
    anyway: bool,
    every_row: bool,
    limit: int,
    offset: int,
) -> Answer:
    """Two runs or sweeps of the store side by side: what became slower or faster, what is new
    or gone."""
    from perfctl.orchestrator.actions.sides import compare_sides
    from perfctl.orchestrator.compare.compared import BETTER, NEWS, WORSE
    from perfctl.orchestrator.report.compare.output import compare_output

    found = compare_sides(
        a, b, gate=gate, anyway=anyway, store=store, messages=messages, files=False
    )
    whole = to_json(compare_output(found))
    for said in ("findings", "warnings"):
        whole[said] = [for_agents(text) for text in whole[said]]
    rows = [
        {"pair": pair["heading"], "batch": pair["batch_b"], **row}
        for pair in whole.pop("pairs")
        for row in pair["rows"]
    ]
    counting = {*WORSE, *BETTER, *NEWS}
    chosen = rows if every_row else [row for row in rows if row["verdict"] in counting]
    return {
        **whole,
        "rows": chosen[offset : offset + limit],
        "rows_total": len(chosen),
        "rows_compared": len(rows),
        "units": {
            "quantity": "time in ns, memory in byte, FLOPs in FLOP",
            "change": "B over A less 1",
            "gate": "0..1",
            "interval": "of change, 95%",
        },
        "sources": [
            {"side": side, **_source(run)}
            for side, one in (("a", found.a), ("b", found.b))
            for run in one.runs
        ],
    }


def sql(store: Path, messages: Messages, *, sql: str, limit: int, seconds: float) -> Answer:
    """The rows of one SELECT."""
    from perfctl.orchestrator.report.files.tables import json_value, unique

    with query.answers(store, sql, seconds) as (columns, found):
        names = unique(columns)
        rows = [dict(zip(names, map(json_value, row), strict=True)) for row in islice(found, limit)]
        has_more = next(found, None) is not None
    units: dict[str, set[str]] = {}
    for table in query.table_names():
        for one, _ in query.columns_of(table):
            units.setdefault(one.name, set()).add(one.unit)
    answer: Answer = {
        "rows": rows,
        "rows_total": None if has_more else len(rows),
        "has_more": has_more,
        "units": {
            name: " or ".join(sorted(units[name]))
            for name in names
            if name in units and units[name] != {"-"}
        },
        "units_are": "by the names of columns; an expression or another alias has none",
        "sources": [{"sql": sql, "tables": "tool tables says what each column means"}],
    }
    if any(value is None for row in rows for value in row.values()):
        answer["null_reasons"] = _null_reasons(store, {row.get("run_id") for row in rows})
    return answer


def _null_reasons(store: Path, runs: Iterable[Any]) -> Any:
    """The gaps of the runs in an answer, or where to ask for them."""
    numbers = sorted(run for run in runs if isinstance(run, int))[:5]
    if not numbers:
        return (
            "tool gaps gives the reason, by run and quantity; tool tables says what null means in "
            "a column"
        )
    with database.reading(store) as connection:
        return {str(run): dict(_reasons(connection, run)) for run in numbers}


def tables(store: Path, messages: Messages, *, table: str | None = None) -> Answer:
    """The tables of the store, or the columns of one with meaning, unit and what NULL means."""
    from perfctl.orchestrator.report.ledger.rows import column_facts
    from perfctl.orchestrator.store import schema

    about = schema.tables() | schema.views()
    if table is None:
        rows: list[Answer] = [
            {"table": name, "one_row_is": about[name][0]} for name in query.table_names()
        ]
        rows.append({"table": LEDGER, "one_row_is": "a row of tool ledger; not in SQL"})
    elif table == LEDGER:
        rows = [
            {"column": name, "unit": unit, "meaning": said}
            for name, (_, unit, said) in column_facts().items()
        ]
    elif table in query.table_names():
        rows = [
            {
                "column": one.name,
                "type": kind,
                "meaning": one.meaning,
                "unit": one.unit,
                "null_means": one.null,
            }
            for one, kind in query.columns_of(table)
        ]
    else:
        raise UsageError(
            f"`table`: there is no table '{table}'",
            f"There are {', '.join((*query.table_names(), LEDGER))}",
        )
    return {
        "rows": rows,
        "rows_total": len(rows),
        "units": {},
        "sources": [{"schema": "the store's own"}],
    }


def _analysed(store: Path, run: int) -> tuple[Run, Analysis]:
    """One run, and its study by itself."""
    from perfctl.orchestrator.actions import stored_runs
    from perfctl.orchestrator.ledger.analysis import analyse
    from perfctl.orchestrator.ledger.prepared import studies

    with database.reading(store) as connection:
        found = stored_runs.only_run(connection, run)
    return found, stored_runs.shown(found, lambda: analyse(studies([found])[0]))


def _source(run: Run) -> dict[str, Any]:
    """Where figures come from."""
    facts = (
        "profiler",
        "profiler_version",
        "workload",
        "batch_size",
        "status",
        "origin",
        "artifact",
        "artifact_sha256",
    )
    return {
        "run": run.id,
        **{name: getattr(run, name) for name in facts},
        "times": _times(run.profiler),
    }


def _times(profiler: str) -> str:
    return _NCU_TIMES if profiler == "ncu" else f"durations as {profiler} recorded them"


def _units(table: str) -> dict[str, str]:
    return {one.name: one.unit for one, _ in query.columns_of(table) if one.unit != "-"}


def _rows(
    connection: sqlite3.Connection, table: str, where: str, bound: Sequence[Any]
) -> list[dict[str, Any]]:
    """Rows of one of the store's tables, by column."""
    names = [column.name for column, _ in query.columns_of(table)]
    columns = ", ".join(f"[{name}]" for name in names)
    found = connection.execute(f"SELECT {columns} FROM {table} WHERE {where}", tuple(bound))
    return [dict(zip(names, row, strict=True)) for row in found]
