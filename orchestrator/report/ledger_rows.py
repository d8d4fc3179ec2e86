"""The ledger as plain rows, full values, units in the names: what ``--json`` prints and the DataFrame holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from perfctl.orchestrator.analyse.analysis import Analysis
from perfctl.orchestrator.analyse.ledger import LedgerRow, Unattributed
from perfctl.orchestrator.analyse.roofline import RooflinePoint
from perfctl.orchestrator.analyse.roofline_study import Roofline
from perfctl.orchestrator.report.numbers import why
from perfctl.orchestrator.report.roofline_view import spoken


def ledger_rows(analyses: Sequence[Analysis]) -> Iterator[dict[str, Any]]:
    """One row a layer, direction and batch size, then what no layer explains. None is not known; 0 is zero."""
    for found in analyses:
        for row in found.ledger.rows:
            yield _row(found, row)
        for rest in found.ledger.unattributed:
            yield _rest(found, rest)


def sweep_verdicts(analyses: Sequence[Analysis]) -> list[dict[str, Any]]:
    """Verdicts about sweeps as a whole, with the study they are about."""
    return [{**_study(found), **asdict(verdict)} for found in analyses for verdict in found.judgement.sweep]


def _study(found: Analysis) -> dict[str, Any]:
    study = found.study
    return {name: getattr(study, name) for name in ("workload", "variant", "mode", "precision", "device")}


def _row(found: Analysis, row: LedgerRow) -> dict[str, Any]:
    judged = found.judgement.at(row.batch, row.layer, row.direction)
    point = found.roofline.of(row.batch, row.layer, row.direction)
    return {
        **_study(found),
        "batch": row.batch,
        "layer": row.place,
        "kind": row.kind,
        "direction": row.direction,
        "paper_flops": row.paper.value,
        "paper_state": row.paper.state,
        "counted_flops": row.counted.value,
        "counted_state": row.counted.state,
        "counted_why": why(row.counted) or None,
        "counted_rule": row.counted.rule,
        "counted_is_lower_bound": row.counted.lower_bound,
        "ratio": row.ratio,
        "verdicts": [asdict(verdict) for verdict in judged.verdicts],
        "unexplained": judged.unexplained,
        "time_ns": row.time.median if row.time else None,
        "time_low_ns": row.time.low if row.time else None,
        "time_high_ns": row.time.high if row.time else None,
        "time_why": row.time_reason,
        "clock": row.basis,
        "clock_trusted": row.trusted if row.time else None,
        "share": row.share,
        "share_of": row.whole,
        "paper_flops_per_s": row.achieved,
        **_roofs(point, found.roofline),
        "guessed": row.guessed,
        "kernels": [asdict(use) for use in row.kernels],
    }


def _roofs(point: RooflinePoint | None, roofline: Roofline) -> dict[str, Any]:
    """Where a row stands below the roofs; None throughout where the roofline has no point for it."""
    return {
        "dram_bytes": point.traffic.dram.value if point else None,
        "flops_per_byte": point.intensity if point else None,
        "roof": point.path if point else None,
        "peak_flops_per_s": point.peak if point else None,
        "attainable_flops_per_s": point.attainable if point else None,
        "of_attainable": point.reached if point else None,
        "mfu": point.mfu if point else None,
        "mfu_refused": point.mfu_refused if point else None,
        "hfu": point.hfu if point else None,
        "bound": point.bound if point and not point.refused else None,
        "bound_why": spoken(point, roofline) if point else None,
    }


def _rest(found: Analysis, rest: Unattributed) -> dict[str, Any]:
    empty = dict.fromkeys(_row_names(found), None)
    return {
        **empty,
        **_study(found),
        "batch": rest.batch,
        "layer": "not attributed",
        "counted_flops": rest.counted.value,
        "counted_state": rest.counted.state,
        "counted_why": why(rest.counted) or None,
        "counted_rule": rest.counted.rule,
        "counted_is_lower_bound": rest.counted.lower_bound,
        "time_ns": rest.time.median,
        "time_low_ns": rest.time.low,
        "time_high_ns": rest.time.high,
        "clock": rest.basis,
        "share": rest.share,
        "share_of": rest.whole,
        "verdicts": [],
        "kernels": [],
    }


def _row_names(found: Analysis) -> list[str]:
    """The columns; there is always a row when something is left over."""
    return list(_row(found, found.ledger.rows[0])) if found.ledger.rows else []
