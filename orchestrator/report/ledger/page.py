"""The ledger as the page shows it: one group a layer and direction, one line a batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import log, log2

from perfctl.orchestrator.analyse.analysis import Analysis
from perfctl.orchestrator.analyse.ledger.ledger import KernelUse, Ledger, LedgerRow, Unattributed
from perfctl.orchestrator.analyse.verdicts.records import Judgement, Verdict
from perfctl.orchestrator.report.ledger.roofline import bound_cell
from perfctl.orchestrator.report.numbers import (
    Cell,
    amount,
    figure_cell,
    full,
    mark,
    nothing,
    percent,
    ratio,
    rounded,
    share_cell,
    significant,
    text_cell,
    time,
    time_cell,
)
from perfctl.orchestrator.report.tables import Column


def formulas(rows: Sequence[LedgerRow]) -> list[tuple[str, str]]:
    """(which, worked text): one batch size worked out where the rest follows by the rule of three, else every one."""
    shown = rows[:1] if len(rows) > 1 and _in_proportion(rows) else rows
    found = [
        (
            f"batch {row.batch}"
            + (f", {call.direction}" if call.direction != row.direction else "")
            + ("" if row.layer else f", {call.layer}"),
            call.formula,
        )
        for row in shown
        for call in row.calls[:8]
        if call.formula
    ]
    if found and len(shown) < len(rows):
        others = ", ".join(str(row.batch) for row in rows[1:])
        every = (
            "the same"
            if not rows[0].paper.value
            else f"in proportion, {full(rows[0].paper.value // rows[0].batch)} a sample"
        )
        found.append((f"batch {others}", every))
    return found


def _in_proportion(rows: Sequence[LedgerRow]) -> bool:
    """True when the paper count of every row is a whole number a sample, the same at every batch size."""
    values = [(row.paper.value, row.batch) for row in rows]
    return all(value is not None and batch and value % batch == 0 for value, batch in values) and (
        len({value // batch for value, batch in values if value is not None}) == 1
    )


def kernels(rows: Sequence[LedgerRow]) -> tuple[str, ...]:
    """The kernels behind a group, by batch where they differ."""
    lists = {row.batch: tuple(_use(use) for use in row.kernels[:12]) for row in rows if row.kernels}
    if len(set(lists.values())) <= 1:
        return next(iter(lists.values()), ())
    return tuple(f"batch {batch}: {'; '.join(names)}" for batch, names in lists.items())


def _use(use: KernelUse) -> str:
    often = f"{significant(use.per_step if use.per_step % 1 else int(use.per_step))} × "
    return f"{often}{use.name[:200]}" + (f" ({use.algorithm or use.family})" if use.algorithm or use.family else "")


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


MINOR_SHARE = 0.01
FOLD_FROM = 3
"""Fewer groups than this are not worth folding."""
SHARE_AT = 5


@dataclass(frozen=True, slots=True)
class Line:
    """One batch size of a group."""

    cells: tuple[Cell, ...]
    bar: tuple[float, float] | None
    """Left edge and width in percent of the ratio's bar, which starts at 1 in the middle; None without a ratio."""


@dataclass(frozen=True, slots=True)
class Group:
    """One layer in one direction."""

    layer: str
    direction: str
    kind: str | None
    lines: tuple[Line, ...]
    formulas: tuple[tuple[str, str], ...]
    """(batch and direction, worked text)."""
    kernels: tuple[str, ...]
    note: str | None = None
    reasons: tuple[Reason, ...] = ()
    open: str | None = None
    """What no verdict explains, in a sentence; None when nothing is left or nothing was judged."""
    minor: bool = False
    """No multiply-adds and hardly any time: folded away until asked for."""


@dataclass(frozen=True, slots=True)
class LedgerView:
    """The whole table; ``ratio_at`` is where the column with the bar stands, -1 when it is left out."""

    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    ratio_at: int
    notes: tuple[str, ...]
    sweep: tuple[Reason, ...] = ()
    """Verdicts about the sweep as a whole."""
    fold: str | None = None
    """What is folded, in words; None when nothing is."""


def ledger_view(found: Analysis) -> LedgerView | None:
    """Columns that are empty for one and the same reason keep their head and plain dashes; a note says the reason."""
    ledger = found.ledger
    if not ledger.rows:
        return None
    groups = [_group(list(rows), found) for _, rows in groupby(ledger.rows, key=lambda row: (row.place, row.direction))]
    groups = [replace(group, reasons=told) for group, told in zip(groups, _once(groups), strict=True)]
    groups += _left_over(ledger.unattributed)
    if not FOLD_FROM <= sum(group.minor for group in groups) < len(groups):
        groups = [replace(group, minor=False) for group in groups]
    columns, notes = _heads(found)
    sweep = tuple(reason(verdict) for verdict in found.judgement.sweep)
    return LedgerView(columns, tuple(groups), 3, notes, sweep, _fold(groups, _wholes(ledger)))


def _wholes(ledger: Ledger) -> list[str]:
    """What shares are of."""
    return sorted({row.whole for row in ledger.rows if row.whole})


def _heads(found: Analysis) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """The columns, and the notes below the table."""
    ledger = found.ledger
    bases = "; ".join(sorted({row.basis for row in ledger.rows if row.basis}))
    lacking, unknown = _not_counted(ledger), found.roofline.peaks.reason
    notes = ["FLOPs and times are for one step. 1 multiply-add = 2 FLOPs."]
    if bases:
        notes.append(f"Time: {bases}. Times are medians over the measured steps; shares are of all steps together.")
    if lacking:
        notes.append(f"Counted FLOPs: {lacking}.")
    elif rules := _rules(ledger):
        notes.append(f"Counted by these rules: {'; '.join(rules)}.")
    if unknown:
        notes.append(f"Bound: not known, {unknown}.")
    whole = " or ".join(_wholes(ledger)) or "step"
    return _columns(bases or "not timed", whole, counted=not lacking, bound=not unknown), tuple(notes)


def _columns(basis: str, whole: str, *, counted: bool, bound: bool) -> tuple[Column, ...]:
    """``counted`` and ``bound``: whether any row has one; a column without keeps its head."""
    return (
        Column("batch"),
        Column(
            "paper",
            "FLOP",
            note="from the shapes each layer saw; 1 multiply-add = 2 FLOPs; elementwise work is not in it",
        ),
        Column(
            "counted",
            "FLOP",
            note="executed, from SASS counters (ncu), per step" if counted else None,
            empty=not counted,
        ),
        Column(
            "counted / paper",
            note="1 means that the hardware executed what the formula says" if counted else None,
            empty=not counted,
        ),
        Column("time", base="ns", note=f"median over the measured steps: {basis}"),
        Column("share", note=f"of the {whole}, all measured steps together"),
        Column("achieved", "FLOP/s", note="paper FLOPs / time: what the arithmetic asked for, not what was executed"),
        Column(
            "bound",
            style="text",
            note="compute, memory or launch, and the share of what is attainable there" if bound else None,
            empty=not bound,
        ),
    )


def _fold(groups: Sequence[Group], wholes: Sequence[str]) -> str | None:
    minor = [group for group in groups if group.minor]
    if not minor:
        return None
    untimed = any(line.cells[SHARE_AT].value is None for group in minor for line in group.lines)
    below = f"below {MINOR_SHARE * 100:.0f} % of the {' or '.join(wholes)}"
    said = f"each {below} or not timed" if untimed and wholes else f"each {below}" if wholes else "not timed"
    return f"{len(minor)} layers and directions without multiply-adds, {said}"


def _not_counted(ledger: Ledger) -> str | None:
    """Why no row has a count; None when one has."""
    if ledger.any_counted:
        return None
    figures = [row.counted for row in ledger.rows if row.counted.reason]
    reasons = sorted({figure.reason for figure in figures if figure.reason})
    states = sorted({figure.state.replace("_", " ") for figure in figures})
    return f"{' or '.join(states)}: {'; '.join(reasons[:2])}"


def _rules(ledger: Ledger) -> list[str]:
    """How counted figures are made of counters, each rule once."""
    rules = [row.counted.rule for row in ledger.rows if row.counted.rule and row.counted.value is not None]
    return list(dict.fromkeys(part for rule in rules for part in rule.split("; ")))


def _group(rows: Sequence[LedgerRow], found: Analysis) -> Group:
    first = rows[0]
    named = first.place
    why = reasons(rows, found.judgement)
    return Group(
        named, "" if named == first.direction else first.direction, first.kind,
        tuple(_line(row, found) for row in rows), tuple(formulas(rows)), kernels(rows), _note(rows),
        why, still_open(rows, found.judgement),
        all(row.paper.value == 0 and not row.counted.value and (row.share or 0) < MINOR_SHARE for row in rows) and not why,
    )  # fmt: skip


def _once(groups: Sequence[Group]) -> list[tuple[Reason, ...]]:
    """A rule without a number that holds in many groups is told in the first and named in the others."""
    first: dict[str, str] = {}
    found = []
    for group in groups:
        told = []
        for item in group.reasons:
            home = first.setdefault(item.rule, f"{group.layer} {group.direction}".strip())
            here = home == f"{group.layer} {group.direction}".strip()
            told.append(item if item.numbers or here else replace(item, sentence=f"As {home}.", todo=""))
        found.append(tuple(told))
    return found


def _note(rows: Sequence[LedgerRow]) -> str | None:
    """What a reader must know before the numbers of a group."""
    notes = []
    if not rows[0].calls and rows[0].layer:
        notes.append("no formula: this module only calls others")
    if guessed := max(row.guessed for row in rows):
        notes.append(f"layer guessed for {percent(guessed)} of its launches")
    return "; ".join(notes) or None


def _line(row: LedgerRow, found: Analysis) -> Line:
    reason = row.time_reason or "not collected"
    cells = (
        text_cell(row.batch),
        _paper_cell(row),
        figure_cell(row.counted, "FLOP"),
        _ratio_cell(row),
        time_cell(row.time.median, note=_spread_note(row)) if row.time else nothing(reason),
        share_cell(row.share, reason),
        amount(row.achieved, "FLOP/s", _achieved_reason(row)),
        bound_cell(found.roofline.of(row.batch, row.layer, row.direction), found.roofline),
    )
    if row.time and not row.trusted:
        cells = (*cells[:4], _distrusted(cells[4]), _distrusted(cells[5]), *cells[6:])
    return Line(cells, _bar(row.ratio))


def _paper_cell(row: LedgerRow) -> Cell:
    cell = figure_cell(row.paper, "FLOP")
    extra = sum(call.elementwise_flops or 0 for call in row.calls)
    if row.paper.value is not None and extra:
        return replace(cell, title=f"{cell.title}; beside it {full(extra)} elementwise")
    return cell


def _ratio_cell(row: LedgerRow) -> Cell:
    if row.ratio is not None:
        text = mark(row.counted) + ratio(row.ratio)
        title = f"{full(row.counted.value or 0)} / {full(row.paper.value or 0)} = {significant(row.ratio, 5)}"
        return Cell(text, title, "est" if row.counted.state == "estimated" else "", rounded(row.ratio))
    if row.counted.value is None:
        return nothing(row.counted.reason or "not counted")
    return nothing("nothing on paper to compare with" if row.paper.value is None else "0 on paper: there is no ratio")


def _achieved_reason(row: LedgerRow) -> str:
    if row.time is None:
        return row.time_reason or "not timed"
    if not row.trusted:
        return "the only time is under ncu, at locked clocks"
    return "nothing on paper" if row.paper.value is None else "0 FLOPs on paper"


def _spread_note(row: LedgerRow) -> str:
    if row.time is None:
        return ""
    if row.time.count < 2:
        return "one step"
    return f"{time(row.time.low)} to {time(row.time.high)} over {row.time.count} steps"


def _distrusted(cell: Cell) -> Cell:
    title = f"{cell.title or ''} under ncu, locked clocks: not a time to trust".strip()
    return replace(cell, title=title, style="est")


def _bar(ratio: float | None) -> tuple[float, float] | None:
    """log2 of the ratio, from 1/4 (left edge) over 1 (middle) to 4 (right edge)."""
    if ratio is None or ratio <= 0:
        return None
    reach = max(-2.0, min(2.0, log2(ratio))) * 25
    return (round(50 + min(reach, 0), 1), round(abs(reach), 1))


def _left_over(rest: Sequence[Unattributed]) -> list[Group]:
    if not rest:
        return []
    lines = tuple(
        Line(
            (
                text_cell(item.batch), nothing("not a layer"), figure_cell(item.counted, "FLOP"), nothing("not a layer"),
                time_cell(item.time.median, note=item.basis), Cell(percent(item.share), value=item.share),
                nothing("not a layer"), nothing("not a layer"),
            ),
            None,
        )
        for item in rest
    )  # fmt: skip
    return [Group("not attributed", "", None, lines, (), (), f"the part of the {rest[0].whole} that no layer explains")]
