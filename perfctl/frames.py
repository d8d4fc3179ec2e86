"""Tables of a store and its ledger as pandas DataFrames.

Columns and units are those of docs/reference/schema.md. What is not known is missing (``pd.NA`` or
NaN), never 0. FLOPs count 1 multiply-add as 2. Every function raises StoreError when there is no
store.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.store import DEFAULT_STORE

if TYPE_CHECKING:
    import pandas as pd

    from perfctl.records.run import Run

_TYPES = {"INTEGER": "Int64", "REAL": "float64", "NUMERIC": "float64"}


def ledger(store: Path | str | Iterable[Run] = DEFAULT_STORE) -> pd.DataFrame:
    """Return one row per layer, direction and batch size: estimated and executed FLOPs, their
    ratio, causes, time and bound.

    ``store`` is a results database (then its newest run of each kind), or runs from
    ``perfctl.runs``. The columns are those of ``perfctl ledger --json``, with the unit at the end
    of the name; shares are 0 to 1. Missing values are NA, and ``executed_state`` and
    ``executed_reason`` have the reason. ``causes`` is a list of dictionaries, ``explanation`` has
    their sentences in one text. Raises StoreError if there is no database.
    """
    import pandas as pd

    from perfctl.orchestrator.commands.export import compute_ledger_rows
    from perfctl.orchestrator.ledger.prepared import group_into_studies
    from perfctl.orchestrator.stored_runs import (
        load_latest_runs_per_configuration,
        run_work_per_group,
        run_work_without_failing_runs,
    )

    runs = (
        load_latest_runs_per_configuration(Path(store))
        if isinstance(store, str | Path)
        else list(store)
    )
    groups = (
        study.runs
        for study in run_work_without_failing_runs(
            runs, lambda some: list(group_into_studies(some))
        )
    )
    rows = list(chain.from_iterable(run_work_per_group(groups, compute_ledger_rows)))
    for row in rows:
        row["explanation"] = " ".join(cause["sentence"] for cause in row["causes"]) or None
    frame = pd.DataFrame(rows)
    floats = ("estimated_flops", "executed_flops", "ratio", "unexplained", "time_ns", "share")
    return frame.astype({name: "float64" for name in floats if name in frame})


def kernels(store: Path | str = DEFAULT_STORE, runs: Iterable[int] | None = None) -> pd.DataFrame:
    """Return one row per kernel launch, with profiler, workload and batch size of its run.
    ``runs``: only the runs with these ids."""
    return _add_run_columns(_read_table_frame(store, "kernel", runs), store)


def counters(store: Path | str = DEFAULT_STORE, runs: Iterable[int] | None = None) -> pd.DataFrame:
    """Return one row per metric of a kernel launch, with run, kernel, layer and direction of the
    launch."""
    run_ids = list(runs) if runs is not None else None
    launches = _read_table_frame(store, "kernel", run_ids)[
        ["id", "run_id", "launch", "name", "layer", "direction", "step"]
    ]
    launches = launches.rename(columns={"id": "kernel_id", "name": "kernel"})
    return _add_run_columns(
        _read_table_frame(store, "counter", run_ids).merge(launches, on="kernel_id"), store
    )


def layer_calls(
    store: Path | str = DEFAULT_STORE, runs: Iterable[int] | None = None
) -> pd.DataFrame:
    """Return the estimated FLOPs: one row per layer and direction, for one step."""
    return _add_run_columns(_read_table_frame(store, "layer_call", runs), store)


def _read_table_frame(store: Path | str, name: str, runs: Iterable[int] | None) -> pd.DataFrame:
    import pandas as pd

    from perfctl.orchestrator.store import database, query

    columns = query.list_table_columns(name)
    with database.open_store_for_reading(Path(store)) as connection:
        rows = list(
            query.read_table_rows(connection, name, list(runs) if runs is not None else None)
        )
    frame = pd.DataFrame(rows, columns=[column.name for column, _ in columns])
    return frame.astype({column.name: _TYPES[kind] for column, kind in columns if kind in _TYPES})


def _add_run_columns(frame: pd.DataFrame, store: Path | str) -> pd.DataFrame:
    about = _read_table_frame(store, "run", None)[
        ["id", "profiler", "workload", "batch_size"]
    ].rename(columns={"id": "run_id"})
    merged = frame.merge(about, on="run_id", how="left")
    return merged[[*about, *(column for column in merged if column not in about)]]
