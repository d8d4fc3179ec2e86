"""Which layers a predicted step's time goes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfctl.orchestrator.analyse.predict_records import Share
from perfctl.orchestrator.analyse.step_parts import BESIDE, PARTS, PLACE, group_of, parts, parts_of_work
from perfctl.orchestrator.analyse.step_records import StepFitted
from perfctl.orchestrator.analyse.work_records import Machine, StepSpec

OPTIMIZER, STEP = "(optimizer)", "(step)"
"""Rows that belong to no layer."""
LIMITS = {
    "bytes": "bytes", "weights": "bytes", "window": "bytes", "spilled": "bytes", "overflow": "bytes", "adam": "bytes",
    "fresh": "bytes",
    "operations": "operations", "tensors": "operations", "step": "operations",
}  # fmt: skip


def fitted_shares(
    fit: StepFitted, case: StepSpec, machine: Machine, seconds: float, phases: Mapping[str, float] | None = None
) -> tuple[Share, ...]:
    """By the fit's costs of each part, scaled so that all rows add up to ``seconds``, and those of a phase to its share.

    phases: measured seconds of each; None: those that the fit predicts (``step_model.phases_of``).
    """
    return _shares(_costs(fit), case, machine, seconds, phases)


def _costs(fit: StepFitted) -> dict[str, float]:
    costs = fit.costs
    if fit.phases:  # each part belongs to one phase; the others' costs of it are 0
        costs = tuple(sum(each) for each in zip(*fit.phases.values(), strict=True))
    return dict(zip(PARTS, costs, strict=True))


def fitted_amounts(fit: StepFitted, case: StepSpec, machine: Machine) -> Iterator[tuple[str, str, float]]:
    """(group of work, part, seconds before they are scaled to the step) of every operation, the optimizer and the step.

    The groups are those of ``step_parts.group_of``, and "optimizer" and "overhead".
    """
    for (_, kind), group, part, seconds in _amounts(_costs(fit), case, machine):
        yield group or kind, part, seconds


def roofline_shares(
    case: StepSpec, machine: Machine, seconds: float, phases: Mapping[str, float] | None = None
) -> tuple[Share, ...]:
    """By arithmetic and bytes at the machine's peaks, scaled so that all rows add up to ``seconds``."""
    costs = {name: 0.0 if name.startswith(BESIDE) else 1.0 for name in PARTS}
    return _shares(costs, case, machine, seconds, phases)


def _shares(
    costs: Mapping[str, float], case: StepSpec, machine: Machine, seconds: float, phases: Mapping[str, float] | None
) -> tuple[Share, ...]:
    amounts = list(_amounts(costs, case, machine))
    by_phase: dict[str, float] = {}
    for _, _, part, amount in amounts:
        by_phase[_phase_of(part)] = by_phase.get(_phase_of(part), 0.0) + amount
    total = sum(by_phase.values())
    if total <= 0:
        return ()
    factors = dict.fromkeys(by_phase, seconds / total)
    if phases and all(phases.get(name, 0.0) > 0 or not amount for name, amount in by_phase.items()):
        known = {name: phases[name] for name, amount in by_phase.items() if amount}
        factors |= {name: seconds * known[name] / sum(known.values()) / by_phase[name] for name in known}
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for key, _, part, amount in amounts:
        into = rows.setdefault(key, {})
        into[limit_of(part)] = into.get(limit_of(part), 0.0) + amount * factors[_phase_of(part)]
    found = [
        Share(layer, kind, sum(row.values()), sum(row.values()) / seconds, max(row, key=lambda limit: row[limit]))
        for (layer, kind), row in rows.items()
        if sum(row.values()) > 0
    ]
    return tuple(sorted(found, key=lambda share: -share.seconds))


def _amounts(
    costs: Mapping[str, float], case: StepSpec, machine: Machine
) -> Iterator[tuple[tuple[str, str], str, str, float]]:
    """((layer, kind), group or "", part, how much of it) of each operation, the optimizer and the step."""
    for work in case.works:
        for name, part in parts_of_work(work, case, machine):
            optimizer = _phase_of(name) == "optimizer"
            key = (OPTIMIZER, "optimizer") if optimizer else (work.layer, work.kind)
            yield key, "" if optimizer else group_of(work), name, costs[name] * part
    whole = parts(case, machine)
    for name in ("bytes optimizer", "adam optimizer", "overflow optimizer"):
        yield (OPTIMIZER, "optimizer"), "", name, costs[name] * whole[PLACE[name]]
    yield (STEP, "overhead"), "", "step forward", costs["step forward"] * whole[PLACE["step forward"]]


def _phase_of(part: str) -> str:
    return part.rpartition(" ")[2]


def limit_of(part: str) -> str:
    """arithmetic, bytes or operations, from the name of a part."""
    first = "bytes" if " bytes " in part else part.split(" ")[0]
    return LIMITS.get(first, "arithmetic")
