"""The first sentences of a page: what holds for the whole sweep, then the largest gaps with their reasons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import log
from typing import NamedTuple

from perfctl.orchestrator.analyse.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.analyse.verdicts.records import Judgement, Place, Verdict
from perfctl.orchestrator.analyse.verdicts.rule import is_news, percent, times

GAPS = 3
SWITCH = "algorithm switch"
_NO_NUMBER = ("FADD alone", "counter not collected", "constant moves")
WORTH = 1.1
"""A ratio nearer to 1 than this makes no headline."""


class Headline(NamedTuple):
    sentence: str
    place: Place | None
    """The ledger row that proves it; None for the sweep as a whole."""
    rules: tuple[str, ...]


def headlines(judgement: Judgement, ledger: Ledger) -> tuple[Headline, ...]:
    """What is wrong with the sweep, then the three largest gaps with the rules that explain them, then what changes."""
    sweep = [Headline(item.sentence, None, (item.rule,)) for item in judgement.sweep if item.rule != SWITCH]
    groups: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in ledger.rows:
        if _gap(row) > log(WORTH) and (not row.counted.lower_bound or (row.ratio or 1) > 1):
            groups[row.name].append(row)
    ranked = sorted(groups.values(), key=lambda rows: -max(map(_gap, rows)))
    known = {item.rule for item in judgement.sweep}
    gaps = []
    for rows in ranked:
        row = max(rows, key=_gap)
        judged = judgement.at(row.batch, row.layer, row.direction)
        new = [item for item in judged.verdicts if item.rule not in known]
        if new or not judged.verdicts:
            rules = tuple(item.rule for item in judged.verdicts)
            sentence = _sentence(row, rows, new, judged.unexplained)
            gaps.append(Headline(sentence, (row.batch, row.layer, row.direction), rules))
    switches = [item for item in judgement.sweep if item.rule == SWITCH]
    others = len(switches) - 1
    more = f" {others} more {'rows change their' if others > 1 else 'row changes its'} algorithm." if others else ""
    first = [Headline(f"{item.sentence}{more}", None, (item.rule,)) for item in switches[:1]]
    return (*sweep, *gaps[:GAPS], *first, *_without_number(judgement))


def _gap(row: LedgerRow) -> float:
    return abs(log(row.ratio)) if row.ratio else 0.0


def _sentence(row: LedgerRow, rows: Iterable[LedgerRow], verdicts: Iterable[Verdict], left: float | None) -> str:
    ratio = row.ratio or 1
    sure = ("at least " if row.counted.lower_bound else "") + ("about " if row.counted.state == "estimated" else "")
    others = ", ".join(str(other.batch) for other in rows if other.batch != row.batch)
    also = f" (more than 10 % off at batch {others} too)" if others else ""
    text = (
        f"{row.name} executed {sure}{times(ratio)} {'of' if ratio < 1 else 'times'} the FLOPs on paper "
        f"at batch {row.batch}{also}"
    )
    reasons = [
        f"{item.rule} explains {times(item.factor)}" for item in verdicts if item.factor and is_news(item.factor)
    ]
    if not reasons:
        return f"{text}; no rule explains it."
    rest = f"; {percent(left)} of the gap stays unexplained" if left is not None and left >= 0.02 else ""
    return f"{text}: {', '.join(reasons)}{rest}."


def _without_number(judgement: Judgement) -> list[Headline]:
    found: dict[str, list[tuple[Place, Verdict]]] = defaultdict(list)
    known = {item.rule for item in judgement.sweep}
    for place, judged in judgement.rows.items():
        for item in judged.verdicts:
            if item.factor is None and item.rule in _NO_NUMBER and item.rule not in known:
                found[item.rule].append((place, item))
    return [
        Headline(f"{rows[0][1].sentence}{f' The same in {len(rows) - 1} more rows.' if len(rows) > 1 else ''}",
                 rows[0][0], (rule,))
        for rule, rows in found.items()
    ]  # fmt: skip
