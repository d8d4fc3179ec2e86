"""The rule about formulas of the user's: what common mistakes make of the right one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from perfctl.orchestrator.estimate.sheets.layers import ManualCheckFacts as SheetFacts
from perfctl.orchestrator.estimate.sheets.layers import WorkedWay
from perfctl.orchestrator.estimate.sheets.sheet import SheetFigure
from perfctl.orchestrator.estimate.sheets.slips import (
    ALTERNATIVES_MAX,
    APART,
    StatedValue,
    apply_mistakes,
)
from perfctl.orchestrator.ledger.causes.rule import Cause, deviates_from_one
from perfctl.orchestrator.ledger.expected import FORMULA
from perfctl.orchestrator.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Parameter

ERROR = Fraction(1, 200)
"""Share of the estimate by which the executed FLOPs may differ from what a mistake gives: loops and
epilogues add some."""
COST_MAX = 2.8
"""Of the mistakes together; what costs more is a coincidence."""


def find_formula_slips(study: Study, ledger: Ledger) -> dict[int, Cause]:
    """Return the formulas of the user's that may be wrong.

    Evidence  the executed FLOPs, and the mistakes that hand values are checked for: multiply-adds
              instead of FLOPs, a parameter left out or once too often, all launches instead of one.
    Factor    the ratio, which is the same mistake at every value of the parameters.
    Silent    if no common mistake gives the estimate at every value, or FLOPs may be missing.
    Fix       correct the formula.

    The keys are the ``id`` of the ledger rows.
    """
    rows = [row for row in ledger.rows if row.kind == FORMULA and row.ratio]
    slips: dict[int, Cause] = {}
    for same in group_by(rows, lambda row: row.layer).values():
        parameters = [study.at(row.batch).runs[0].run.parameters for row in same]
        texts = _find_common_mistakes(same, parameters)
        if not texts:
            continue
        over = _format_varying_parameters(parameters)
        for row in same:
            facts = {
                "formula": (row.calls[0].formula or "").partition(" at ")[0],
                "ratio": row.ratio,
                "mistakes": ", or from ".join(texts),
                "over": over,
            }
            name = row.name + ("" if over else row.at)
            slips[id(row)] = Cause("wrong formula", row.ratio, facts, row=name)
    return slips


def _find_common_mistakes(
    rows: Sequence[LedgerRow], parameters: Sequence[Sequence[Parameter]]
) -> list[str]:
    """Return the mistakes that give the estimates of all these rows, the most plausible first."""
    costs: list[Mapping[str, float]] = [
        dict(_list_fitting_mistakes(row, parameters_))
        for row, parameters_ in zip(rows, parameters, strict=True)
    ]
    common = [text for text in costs[0] if all(text in cost for cost in costs)]
    ranked = sorted(common, key=lambda text: costs[0][text])
    return [text for text in ranked if costs[0][text] <= costs[0][ranked[0]] + APART][
        :ALTERNATIVES_MAX
    ]


def _list_fitting_mistakes(
    row: LedgerRow, parameters: Sequence[Parameter]
) -> Iterator[tuple[str, float]]:
    """Yield (mistake, cost) of those that make the estimate of the executed FLOPs."""
    executed, estimate = round(row.executed.value or 0), Fraction(row.whole_estimate or 0)
    may_be_more = row.executed.lower_bound and (row.ratio or 0) < 1
    if executed < 2 or not estimate or not deviates_from_one(row.ratio or 0) or may_be_more:
        return
    macs = executed // 2
    ways = [WorkedWay((), ((macs,),), 0)]
    for parameter in parameters:
        if parameter.number and parameter.number > 1:
            size = round(parameter.number)
            ways.append(WorkedWay((f"a factor {parameter.name} left out",), ((macs // size,),), 0))
            ways.append(WorkedWay((f"a factor {parameter.name} too many",), ((macs * size,),), 0))
    launches = round(sum(use.per_step for use in row.kernels))
    if launches > 1:
        text = f"all {launches:,} launches together, not one"
        ways.append(WorkedWay((text,), ((macs * launches,),), 0, about="kernel"))
    facts = SheetFacts(1, 0, 0, False, tuple(ways))
    stated = StatedValue("", estimate, estimate * ERROR, "FLOP")
    right = SheetFigure("forward", executed, "FLOP", "")
    for candidate in apply_mistakes(stated, facts, right, ()):
        text = " and ".join(candidate.slips)
        if (
            stated.matches(candidate.value)
            and candidate.cost <= COST_MAX
            and "backward" not in text
        ):
            yield text, candidate.cost


def _format_varying_parameters(parameters: Sequence[Sequence[Parameter]]) -> str:
    """Return "every N (1024, 2048)" of the parameters that vary; "" if none does."""
    values: dict[str, dict[str, None]] = {}
    for item in (item for row_parameters in parameters for item in row_parameters):
        values.setdefault(item.name, {})[item.value] = None
    varied = {name: list(distinct) for name, distinct in values.items() if len(distinct) > 1}
    return " and ".join(
        f"every {name} ({', '.join(distinct)})" for name, distinct in varied.items()
    )
