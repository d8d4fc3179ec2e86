"""Verdicts in the words that page, terminal and exports share: one reason a rule, its numbers, what stays open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from perfctl.orchestrator.analyse.ledger import LedgerRow
from perfctl.orchestrator.analyse.verdict_records import Judgement, Verdict
from perfctl.orchestrator.report.numbers import percent, ratio


@dataclass(frozen=True, slots=True)
class Reason:
    """One rule's reason for a layer and direction, at the batch size where the gap is widest."""

    rule: str
    sentence: str
    numbers: str
    """ "predicts 3.60 of paper, explains 98.2 % of the gap"; "" for a rule without a number of that kind."""
    todo: str
    kernels: tuple[str, ...]
    elsewhere: str
    """ "also at batch 16, 32 (predicts 1.06 to 2.10)"; "" when it holds at one batch size only."""


def reasons(rows: Sequence[LedgerRow], judgement: Judgement) -> tuple[Reason, ...]:
    """The reasons of one layer and direction, the strongest first."""
    found: dict[str, list[tuple[LedgerRow, Verdict]]] = {}
    for row in sorted(rows, key=lambda row: -gap(row)):
        for verdict in judgement.at(row.batch, row.layer, row.direction).verdicts:
            found.setdefault(verdict.rule, []).append((row, verdict))
    return tuple(_reason(cases) for cases in found.values())


def reason(verdict: Verdict) -> Reason:
    """One verdict by itself, as those about a whole sweep are."""
    return Reason(verdict.rule, verdict.sentence, _numbers(verdict), verdict.todo, verdict.kernels, "")


def gap(row: LedgerRow) -> float:
    """How far counted lies from paper, on a scale where half and double are as far; 0 without a ratio."""
    return abs(log(row.ratio)) if row.ratio else 0.0


def still_open(rows: Sequence[LedgerRow], judgement: Judgement) -> str | None:
    """What no verdict explains, in percent of the gap, over the batch sizes; None where nothing is judged."""
    left = [
        (row.batch, judged.unexplained)
        for row in rows
        if (judged := judgement.at(row.batch, row.layer, row.direction)).unexplained is not None
    ]
    shares = [share for _, share in left if share is not None]
    if not shares or max(shares) < 0.0005:
        return None
    low, high = percent(min(shares)), percent(max(shares))
    if low == high:
        where = f" at batch {left[0][0]}" if len(left) == 1 and len(rows) > 1 else ""
        return f"Unexplained: {high} of the gap{where}."
    return f"Unexplained: {low} to {high} of the gap over {len(left)} batch sizes."


def _reason(cases: Sequence[tuple[LedgerRow, Verdict]]) -> Reason:
    _, first = cases[0]
    others = sorted(row.batch for row, _ in cases[1:])
    elsewhere = f"also at batch {', '.join(map(str, others))}" if others else ""
    factors = [verdict.factor for _, verdict in cases if verdict.factor is not None]
    if elsewhere and factors and ratio(min(factors)) != ratio(max(factors)):
        elsewhere += f" (predicts {ratio(min(factors))} to {ratio(max(factors))})"
    return Reason(first.rule, first.sentence, _numbers(first), first.todo, first.kernels, elsewhere)


def _numbers(verdict: Verdict) -> str:
    said = []
    if verdict.factor is not None:
        said.append(f"predicts {ratio(verdict.factor)} of paper")
    if verdict.explained is not None:
        said.append(f"explains {percent(verdict.explained)} of the gap")
    return ", ".join(said)
