"""Which layers a predicted step's time goes to."""

from __future__ import annotations

from collections.abc import Mapping

from perfctl.orchestrator.analyse.predict_records import Share
from perfctl.orchestrator.analyse.step_parts import BESIDE, PARTS, PLACE, parts, parts_of_work
from perfctl.orchestrator.analyse.step_records import StepFitted
from perfctl.orchestrator.analyse.work_records import Case, Machine

OPTIMIZER, STEP = "(optimizer)", "(step)"
"""Rows that belong to no layer."""
LIMITS = {
    "bytes": "bytes", "weights": "bytes", "window": "bytes", "spilled": "bytes", "overflow": "bytes", "adam": "bytes",
    "operations": "operations", "tensors": "operations", "step": "operations",
}  # fmt: skip


def fitted_shares(fit: StepFitted, case: Case, machine: Machine, seconds: float) -> tuple[Share, ...]:
    """By the fit's costs of each part, scaled so that all rows add up to ``seconds``."""
    return _shares(dict(zip(PARTS, fit.costs, strict=True)), case, machine, seconds)


def roofline_shares(case: Case, machine: Machine, seconds: float) -> tuple[Share, ...]:
    """By arithmetic and bytes at the machine's peaks, scaled so that all rows add up to ``seconds``."""
    return _shares({name: 0.0 if name.startswith(BESIDE) else 1.0 for name in PARTS}, case, machine, seconds)


def _shares(costs: Mapping[str, float], case: Case, machine: Machine, seconds: float) -> tuple[Share, ...]:
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for work in case.works:
        row = rows.setdefault((work.layer, work.kind), {})
        for name, part in parts_of_work(work, case, machine):
            key = (OPTIMIZER, "optimizer") if name.endswith("optimizer") else None
            into = rows.setdefault(key, {}) if key else row
            into[limit_of(name)] = into.get(limit_of(name), 0.0) + costs[name] * part
    whole = parts(case, machine)
    whole_step = ("bytes optimizer", "adam optimizer", "overflow optimizer")
    for name, key in (*((name, (OPTIMIZER, "optimizer")) for name in whole_step), ("step forward", (STEP, "overhead"))):
        into = rows.setdefault(key, {})
        into[limit_of(name)] = into.get(limit_of(name), 0.0) + costs[name] * whole[PLACE[name]]
    total = sum(sum(row.values()) for row in rows.values())
    if total <= 0:
        return ()
    found = [
        Share(
            layer, kind, seconds * sum(row.values()) / total, sum(row.values()) / total, max(row, key=lambda n: row[n])
        )
        for (layer, kind), row in rows.items()
        if sum(row.values()) > 0
    ]
    return tuple(sorted(found, key=lambda share: -share.seconds))


def limit_of(part: str) -> str:
    """arithmetic, bytes or operations, from the name of a part."""
    first = "bytes" if " bytes " in part else part.split(" ")[0]
    return LIMITS.get(first, "arithmetic")
