"""Tables of a store as pandas DataFrames: :func:`kernels`, :func:`counters`, :func:`layer_calls`.

Columns and units are those of docs/schema.md, with ``profiler``, ``workload`` and ``batch_size`` of the run beside
them. What is not known is missing (``pd.NA`` or NaN), never 0. FLOPs count 1 multiply-add as 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_TYPES = {"INTEGER": "Int64", "REAL": "float64", "NUMERIC": "float64"}


def kernels(store: Path | str = "perfctl.db", runs: Iterable[int] | None = None) -> pd.DataFrame:
    """One row a launch. ``runs``: ids of these runs only. Raises StoreError when there is no store."""
    return _with_run(_table(store, "kernel", runs), store)


def counters(store: Path | str = "perfctl.db", runs: Iterable[int] | None = None) -> pd.DataFrame:
    """One row a metric of a launch, with the launch's run, kernel, layer and direction beside it."""
    kept = list(runs) if runs is not None else None
    launches = _table(store, "kernel", kept)[["id", "run_id", "launch", "name", "layer", "direction", "step"]]
    launches = launches.rename(columns={"id": "kernel_id", "name": "kernel"})
    return _with_run(_table(store, "counter", kept).merge(launches, on="kernel_id"), store)


def layer_calls(store: Path | str = "perfctl.db", runs: Iterable[int] | None = None) -> pd.DataFrame:
    """Pen and paper: one row a layer and direction, for one step."""
    return _with_run(_table(store, "layer_call", runs), store)


def _table(store: Path | str, name: str, runs: Iterable[int] | None) -> pd.DataFrame:
    import pandas as pd

    from perfctl.orchestrator.store import database, query

    kept = list(runs) if runs is not None else None
    with database.reading(Path(store)) as connection:
        shape = query.table_shape(name)
        columns = [column.name for column in shape.columns]
        frame = pd.DataFrame(list(query.table_rows(connection, name, kept)), columns=columns)
    return frame.astype(
        {column: _TYPES[kind] for column, kind in zip(columns, shape.types, strict=True) if kind in _TYPES}
    )


def _with_run(frame: pd.DataFrame, store: Path | str) -> pd.DataFrame:
    """The run's profiler, workload and batch size in front."""
    about = _table(store, "run", None)[["id", "profiler", "workload", "batch_size"]].rename(columns={"id": "run_id"})
    found = frame.merge(about, on="run_id", how="left")
    first = ["run_id", "profiler", "workload", "batch_size"]
    return found[[*first, *(column for column in found.columns if column not in first)]]
