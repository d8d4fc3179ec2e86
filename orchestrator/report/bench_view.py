"""What a bench measured, as tables: the points, and what their time goes with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfctl.orchestrator.analyse.correlate import Correlation, figures
from perfctl.orchestrator.report.numbers import Cell, amount, count, nothing, plain, share_cell, time_cell
from perfctl.orchestrator.report.tables import ROWS_SHOWN, Column, Table, table
from perfctl.parsers.bench_points import BenchPoint

_TOO_FEW = "fewer than three points, or one value everywhere"


def points_table(points: Sequence[BenchPoint], runs: Sequence[int] = (), limit: int = ROWS_SHOWN) -> Table | None:
    """A row a network and batch size; --json has the phases of a step, too. ``runs``: the run of each, for a page."""
    columns = [
        *([Column("run")] if runs else []),
        Column("network", look="code"),
        Column("batch"),
        Column("FLOP", note="of a step; 1 multiply-add is 2 FLOPs"),
        Column("step", note="median"),
        Column("spread", note="between quartiles, against the median"),
    ]
    rows = [
        (
            *([plain(runs[place])] if runs else []),
            plain(point.model),
            count(point.batch),
            amount(flops(point), ""),
            time_cell(point.step_ns[0]),
            share_cell(point.spread),
        )
        for place, point in enumerate(points)
    ]
    return table("Points", columns, rows, limit=limit)


def correlation_table(family: str, found: Sequence[Correlation]) -> Table | None:
    """The figures of one family, the closest by rank first."""
    columns = [
        Column("time against", look="text"),
        Column("points"),
        Column("Spearman"),
        Column("Pearson"),
        Column("Pearson, log"),
        Column("exponent", note="of the power law: 1 where time is proportional"),
    ]
    rows = [
        (
            plain(one.feature), count(one.points), _number(one.spearman), _number(one.pearson),
            _number(one.pearson_log), _number(one.slope_log),
        )
        for one in found
    ]  # fmt: skip
    return table(f"{family}: what the time of a step goes with", columns, rows)


def flops(point: BenchPoint) -> float | None:
    """Of one step, forward and backward; None where pen and paper is not with the point."""
    parts = [point.features[name] for name in ("flops:forward", "flops:backward") if name in point.features]
    return sum(parts) if parts else None


def as_json(points: Sequence[BenchPoint], found: Sequence[Correlation]) -> dict[str, Any]:
    """Every point and every coefficient; times in nanoseconds."""
    rows = [
        {
            "model": point.model, "family": point.family, "batch": point.batch, "mode": point.mode,
            "precision": point.precision, "device": point.machine.device, "threads": point.machine.threads,
            "steps": point.steps, "step_ns": point.step_ns, "phase_ns": dict(point.phase_ns),
            "memory_bytes": dict(point.memory_bytes), "features": figures(point),
        }
        for point in points
    ]  # fmt: skip
    slots = Correlation.__slots__
    return {"points": rows, "correlations": [{name: getattr(one, name) for name in slots} for one in found]}


def _number(value: float | None) -> Cell:
    return nothing(_TOO_FEW) if value is None else plain(f"{value:.3f}")
