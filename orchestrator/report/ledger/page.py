"""The ledger on the page: one group a layer and direction, one line a batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import log, log2

from perfctl.orchestrator.counts.kernels.layers import SHARED_OUT
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.causes.judge import Judgement
from perfctl.orchestrator.ledger.causes.rule import Cause
from perfctl.orchestrator.ledger.ledger import (
    KernelUse,
    Ledger,
    LedgerRow,
    Unattributed,
    explain_unattributed,
)
from perfctl.orchestrator.ledger.timing import ALL_STEPS, KERNELS_OF_CAPTURE, covers_capture
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from perfctl.orchestrator.report.ledger.roofline import bound_cell
from perfctl.orchestrator.report.numbers import full, percent, ratio, rounded, significant, time
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    amount,
    estimated,
    figure_cell,
    mark,
    nothing,
    share_cell,
    style_of,
    text_cell,
    time_cell,
    why,
    with_carried,
    with_values,
)

MINOR_SHARE, FOLD_FROM = 0.01, 3
"""Groups without multiply-adds below this share are folded; fewer groups than the second are not
worth it."""
RATIO = "ratio"
CAUSE_RATIO_MIN = 1.02
"""Ratio, or its reciprocal, from which on the table names causes; the reasons name all."""
EXPLAINED_MIN = 0.25
"""Share of a gap from which on the table names a cause; the reasons have all."""


def formulas(rows: Sequence[LedgerRow]) -> tuple[tuple[str, str], ...]:
    """(which, worked text): one batch size worked out where the rest follows by the rule of three,
    else every one."""
    each = {
        divmod(row.paper.value, row.batch) if row.paper.value is not None and row.batch else None
        for row in rows
    }
    # (FLOPs a sample, rest), the same at every batch size where the rule holds
    (first, *others) = each
    shown = (
        rows[:1] if len(rows) > 1 and not others and first is not None and first[1] == 0 else rows
    )
    found = []
    for row in shown:
        for call in row.calls[:8]:
            if call.formula:
                direction = f", {call.direction}" if call.direction != row.direction else ""
                layer = "" if row.layer else f", {call.layer}"
                found.append((f"{_at(row)}{direction}{layer}", call.formula))
    if found and len(shown) < len(rows):
        value = rows[0].paper.value
        least = "at least " if rows[0].paper.lower_bound else ""
        every = (
            f"in proportion, {least}{full(value // rows[0].size)} per sample"
            if value
            else "the same"
        )
        found.append((f"batch {', '.join(str(row.batch) for row in rows[1:])}", every))
    return tuple(found)


def _at(row: LedgerRow) -> str:
    return "as recorded" if row.batch is None else f"batch {row.batch}"


def kernels(rows: Sequence[LedgerRow], names: Mapping[str, str]) -> tuple[str, ...]:
    """The kernels of a group, by batch where they differ."""

    def said(use: KernelUse) -> str:
        often = significant(use.per_step if use.per_step % 1 else int(use.per_step))
        kind = use.algorithm or use.family
        return f"{often} × {names.get(use.name, use.name)}" + (f" ({kind})" if kind else "")

    lists = {row.batch: tuple(map(said, row.kernels[:12])) for row in rows if row.kernels}
    if len(set(lists.values())) <= 1:
        return next(iter(lists.values()), ())
    return tuple(f"batch {batch}: {'; '.join(names)}" for batch, names in lists.items())


@dataclass(frozen=True, slots=True)
class Reason:
    """One rule's reason for a layer and direction, at the batch size where the gap is widest."""

    rule: str
    sentence: str
    numbers: str
    """ "predicts 3.60 of paper, explains 98.2% of the gap"; "" for a rule without a number of
    that kind."""
    todo: str
    kernels: tuple[str, ...]
    elsewhere: str
    """ "also at batch 16, 32 (predicts 1.06 to 2.10)"; "" when it holds at one batch size only."""
    confidence: str = "plausible"
    """observed, predicted and matched, or plausible."""


def reasons(rows: Sequence[LedgerRow], judgement: Judgement) -> tuple[Reason, ...]:
    """The reasons of one layer and direction, the strongest first."""
    by_rule: dict[str, list[tuple[LedgerRow | None, Cause]]] = {}
    for row in sorted(rows, key=lambda row: -gap(row)):
        for cause in judgement.at(row.batch, row.layer, row.direction).causes:
            by_rule.setdefault(cause.rule, []).append((row, cause))
    return tuple(map(reason, by_rule.values()))


def reason(cases: Sequence[tuple[LedgerRow | None, Cause]]) -> Reason:
    """The first case in full, with the batch sizes of the others."""
    first = cases[0][1]
    others = sorted(row.size for row, _ in cases[1:] if row)
    elsewhere = f"also at batch {', '.join(map(str, others))}" if others else ""
    factors = [cause.factor for _, cause in cases if cause.factor is not None]
    if elsewhere and factors and ratio(min(factors)) != ratio(max(factors)):
        elsewhere += f" (predicts {ratio(min(factors))} to {ratio(max(factors))})"
    numbers = (
        [f"predicts {ratio(first.factor)} times the estimate"] if first.factor is not None else []
    )
    numbers += (
        [f"explains {percent(first.explained)} of the difference"]
        if first.explained is not None
        else []
    )
    return Reason(
        first.rule,
        describe_cause(first),
        ", ".join(numbers),
        describe_fix(first),
        first.kernels,
        elsewhere,
        first.confidence,
    )


def explain_reason(item: Reason, name: str = "") -> str:
    """Return the sentence of a reason, its rule with numbers, and after an arrow what to do.
    ``name``: layer and direction, where the sentence does not state them."""
    numbers = f": {item.numbers}" if item.numbers else ""
    rule = f"{item.rule}{numbers} ({item.confidence})."
    rest = [rule, *([f"{item.elsewhere}."] if item.elsewhere else [])]
    sentences = [item.sentence, *(text[:1].upper() + text[1:] for text in rest)]
    text = " ".join(filter(None, sentences))
    if name and name not in item.sentence:
        text = f"{name}: {text}"
    return f"{text} \u2192 {item.todo}" if item.todo else text


def gap(row: LedgerRow) -> float:
    """How far counted lies from paper, on a scale where half and double are as far; 0 without
    a ratio."""
    return abs(log(row.ratio)) if row.ratio else 0.0


def still_open(rows: Sequence[LedgerRow], judgement: Judgement) -> str | None:
    """The part of the gap that no cause explains, over the batch sizes; None where nothing
    is judged."""
    judged = {
        row.size: judgement.at(row.batch, row.layer, row.direction).unexplained for row in rows
    }
    shares = {batch: share for batch, share in judged.items() if share is not None}
    if not shares or max(shares.values()) < 0.0005:
        return None
    low, high = percent(min(shares.values())), percent(max(shares.values()))
    if low != high:
        return f"Unexplained: {low} to {high} of the difference over {len(shares)} batch sizes."
    at = f" at batch {min(shares)}" if len(shares) == 1 and len(rows) > 1 else ""
    return f"Unexplained: {high} of the difference{at}."


@dataclass(frozen=True, slots=True)
class Line:
    """One batch size of a group."""

    cells: tuple[Cell, ...]
    bar: tuple[float, float] | None
    """Left edge and width in percent of the ratio's bar, which starts at 1 in the middle; None
    without a ratio."""
    batch: int | None
    share: float | None
    """Of the time of all steps."""
    gap: float = 0.0
    """How far executed is from the estimate, as a logarithm."""
    causes: tuple[str, ...] = ()
    """Rules that explain a part of the gap, or why there is no count."""


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
    """The unexplained part of the gap in a sentence; None when nothing is left or nothing
    was judged."""
    minor: bool = False
    """No multiply-adds and hardly any time: folded away until asked for."""
    is_left_over: bool = False
    """What no layer explains."""


@dataclass(frozen=True, slots=True)
class LedgerView:
    """The whole table; ``ratio_at`` is the column with the bar, -1 where there is none."""

    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    ratio_at: int
    basis: str
    """What the figures are of, in a line."""
    notes: tuple[str, ...]
    sweep: tuple[Reason, ...] = ()
    fold: str | None = None
    """The folded groups in words; None when nothing is folded."""


def ledger_view(found: Analysis, *, details: bool = True) -> LedgerView | None:
    """Columns without any value are left out; the notes give the reasons. ``details``: groups have
    formulas and kernels."""
    ledger = found.ledger
    if not ledger.rows:
        return None
    groups = _once(
        [
            _group(list(rows), found, details)
            for _, rows in groupby(ledger.rows, key=lambda row: (row.place, row.direction))
        ]
    )
    groups += _left_over(found)
    if not FOLD_FROM <= sum(group.minor for group in groups) < len(groups):
        groups = [replace(group, minor=False) for group in groups]
    wholes = sorted({row.whole for row in ledger.rows if row.whole})
    whole, minor = " or ".join(wholes), [group for group in groups if group.minor]
    untimed = any(line.share is None for group in minor for line in group.lines)
    below = (
        f"below {MINOR_SHARE * 100:.0f}% of the {whole}{' or without a time' if untimed else ''}"
    )
    fold = (
        f"{len(minor)} rows without multiply-adds and {below if whole else 'without a time'}"
        if minor
        else None
    )
    basis = _basis(found)
    columns = _columns(found, whole, basis)
    lines = [line for group in groups for line in group.lines]
    kept = with_values([line.cells for line in lines])
    groups = [
        replace(group, lines=tuple(_narrowed(line, kept) for line in group.lines))
        for group in groups
    ]
    columns = tuple(
        with_carried(columns[place], (line.cells[place] for line in lines)) for place in kept
    )
    sweep = tuple(reason([(None, cause)]) for cause in found.judgement.sweep)
    ratio_at = next((place for place, column in enumerate(columns) if column.label == RATIO), -1)
    mark = " ~ approximate." if any(row.shared for row in ledger.rows) else ""
    basis = f"{basis}. 1 multiply-add = 2 FLOPs.{mark}"
    return LedgerView(columns, tuple(groups), ratio_at, basis, tuple(_notes(found)), sweep, fold)


def _narrowed(line: Line, kept: Sequence[int]) -> Line:
    return replace(line, cells=tuple(line.cells[place] for place in kept))


def _columns(found: Analysis, whole: str, basis: str) -> tuple[Column, ...]:
    """The columns with their definitions. ``whole``: the total of the shares; "" when nothing is
    timed; ``basis``: what the times are."""
    is_unknown, lacking = found.roofline.peaks.reason, _not_counted(found.ledger)
    executed = None if lacking else "executed, from SASS counters (ncu), per step"
    compared = None if lacking else "1 means that the hardware executed the estimated FLOPs"
    bound = "compute, memory or launch, and the share of the attainable rate"
    return (
        Column("batch"),
        Column(
            "estimate",
            "FLOP",
            note="from the shapes of each layer; 1 multiply-add = 2 FLOPs; without elementwise "
            "work",
        ),
        Column("executed", "FLOP", note=executed),
        Column(RATIO, note=compared),
        Column("time", base="ns", note=basis),
        Column("share", note=f"of the {whole or ALL_STEPS}"),
        Column(
            "achieved",
            "FLOP/s",
            note="estimated FLOPs / time, not executed FLOPs / time",
        ),
        Column("bound", style="text", note=None if is_unknown else bound),
    )


def _basis(found: Analysis) -> str:
    """Return what the times are: "Median per step: kernels, torch (CUPTI)"."""
    rows = found.ledger.rows
    bases = "; ".join(sorted({row.basis for row in rows if row.basis}))
    steps = max((row.time.over for row in rows if row.time), default=1)
    if any(covers_capture(run) for run in found.study.runs):
        statistic = "Complete capture, without steps"
    elif not bases:
        return "Per step, without times"
    else:
        statistic = "Median per step"
        if steps > 1:
            statistic = f"Mean of {steps} steps, because no launch states its step"
    return f"{statistic}: {bases or 'not timed'}"


def _notes(found: Analysis) -> Iterator[str]:
    """Yield where the figures come from, and why others are missing."""
    rows = found.ledger.rows
    if any(run.batch_size is None for run in found.study.runs) and any(row.calls for row in rows):
        yield (
            "Estimated FLOPs come from the operators' shapes in the report; a row without a module "
            "is named by its operator."
        )
    if lacking := _not_counted(found.ledger):
        yield f"Executed FLOPs: {lacking}."
    rules = (row.counted.rule for row in rows if row.counted.value is not None)
    if parts := dict.fromkeys(part for rule in rules if rule for part in rule.split("; ")):
        yield f"Rules of the executed FLOPs: {'; '.join(parts)}."
    if any(row.shared for row in rows):
        yield f"~ marks approximate values: {SHARED_OUT}."
    if unknown := found.roofline.peaks.reason:
        yield f"Bound unknown: {unknown}."


def _not_counted(ledger: Ledger) -> str | None:
    if ledger.any_counted:
        return None
    figures = [row.counted for row in ledger.rows if row.counted.reason]
    reasons = sorted({figure.reason for figure in figures if figure.reason})
    states = sorted({figure.state.replace("_", " ") for figure in figures})
    return f"{' or '.join(states)}: {'; '.join(reasons[:2])}"


def _group(rows: Sequence[LedgerRow], found: Analysis, details: bool) -> Group:
    first, causes = rows[0], reasons(rows, found.judgement)
    notes = ["no formula: this module only calls others"] if not first.calls and first.layer else []
    if unknown := dict.fromkeys(
        call.formula or call.kind for row in rows for call in row.calls if call.flops is None
    ):
        least = "the estimate is a lower bound: " if first.paper.lower_bound else ""
        notes.append(f"{least}{'; '.join(unknown)}")
    if guessed := max(row.guessed for row in rows):
        notes.append(f"perfctl guessed the layer for {percent(guessed)} of its launches")
    if shared := max(row.shared for row in rows):
        notes.append(
            f"{percent(shared)} of its launches are parts of fused kernels, divided by their "
            "operations (approximate)"
        )
    worked, ran = (formulas(rows), kernels(rows, found.names)) if details else ((), ())
    small = all(
        row.paper.value == 0 and not row.counted.value and (row.share or 0) < MINOR_SHARE
        for row in rows
    )
    return Group(
        first.place,
        "" if first.place == first.direction else first.direction,
        first.kind,
        tuple(_line(row, found) for row in rows),
        worked,
        ran,
        "; ".join(notes) or None,
        causes,
        still_open(rows, found.judgement),
        small and not causes,
    )


def _once(groups: Sequence[Group]) -> list[Group]:
    """A rule without a number that holds in many groups is explained in the first and named in
    the others."""
    first: dict[str, str] = {}
    found = []
    for group in groups:
        name = f"{group.layer} {group.direction}".strip()
        shown = []
        for item in group.reasons:
            home = first.setdefault(item.rule, name)
            shown.append(
                item
                if item.numbers or home == name
                else replace(item, sentence=f"As {home}.", todo="")
            )
        found.append(replace(group, reasons=tuple(shown)))
    return found


def _line(row: LedgerRow, found: Analysis) -> Line:
    reason = row.time_reason or "not collected"
    took, share = nothing(reason), share_cell(row.share, reason)
    if row.time:
        took = time_cell(row.time.median, note=_statistic(row))
        if not row.trusted:
            took, share = _distrusted(took), _distrusted(share)
        if row.shared:
            took, share = estimated(took, SHARED_OUT), estimated(share, SHARED_OUT)
    unrated = "no estimate" if row.paper.value is None else "the estimate is 0 FLOPs"
    if row.paper.lower_bound:
        unrated = "the estimate is a lower bound"
    if row.time is None:
        unrated = row.time_reason or "not timed"
    elif not row.trusted:
        unrated = "the only time is under ncu, at locked clocks"
    paper, extra = (
        figure_cell(row.paper, "FLOP"),
        sum(call.elementwise_flops or 0 for call in row.calls),
    )
    if row.paper.value is not None and extra:
        paper = replace(paper, title=f"{paper.title}; plus {full(extra)} elementwise")
    cells = (
        _batch_cell(row.batch),
        paper,
        _counted_cell(row),
        ratio_cell(row),
        took,
        share,
        amount(row.achieved, "FLOP/s", unrated),
        bound_cell(found.roofline.of(row.batch, row.layer, row.direction), found.roofline),
    )
    bar = None
    if row.ratio:  # from 1/4 (left edge) over 1 (middle) to 4 (right edge)
        reach = max(-2.0, min(2.0, log2(row.ratio))) * 25
        bar = (round(50 + min(reach, 0), 1), round(abs(reach), 1))
    is_open = row.counted.lower_bound and (row.ratio or 0) < 1  # more may have been executed
    distance = 0.0 if is_open else gap(row)
    return Line(cells, bar, row.batch, row.share, distance, _causes(row, found.judgement))


def _causes(row: LedgerRow, judgement: Judgement) -> tuple[str, ...]:
    """Return the rules that explain most of a gap; without a known gap, those that say why."""
    causes = judgement.at(row.batch, row.layer, row.direction).causes
    if row.ratio is None:
        return tuple(cause.rule for cause in causes)
    if gap(row) < log(CAUSE_RATIO_MIN):
        return ()
    explaining = [cause.rule for cause in causes if (cause.explained or 0) >= EXPLAINED_MIN]
    return tuple(explaining or (cause.rule for cause in causes if cause.factor is None))


def _statistic(row: LedgerRow) -> str:
    """What the time of a row is of its steps."""
    took = row.time
    assert took is not None
    if row.whole == KERNELS_OF_CAPTURE:
        return "complete capture"
    if took.over > 1:
        return f"mean of {took.over} steps"
    return (
        "one step"
        if took.count == 1
        else f"{time(took.low)} to {time(took.high)} over {took.count} steps"
    )


def _batch_cell(batch: int | None) -> Cell:
    return nothing("the report does not say") if batch is None else text_cell(batch)


def _counted_cell(row: LedgerRow) -> Cell:
    """What was executed; beside a count, what its kernels' rules say."""
    cell, derived = figure_cell(row.counted, "FLOP"), row.derived
    if (
        derived is None
        or derived.value is None
        or row.counted.state == "derived"
        or not row.counted.value
    ):
        return cell
    off = (
        ""
        if derived.lower_bound
        else f", {derived.value / row.counted.value - 1:+.1%} of the executed FLOPs"
    )
    said = f"derived {mark(derived)}{full(derived.value, 'FLOP')}{off}: {why(derived)}"
    return replace(cell, title="; ".join(filter(None, (cell.title, said))))


def ratio_cell(row: LedgerRow) -> Cell:
    if row.ratio is not None:
        text = mark(row.counted) + ratio(row.ratio)
        title = (
            f"{full(row.counted.value or 0)} / {full(row.paper.value or 0)} = "
            f"{significant(row.ratio, 5)}"
        )
        return Cell(text, title, style_of(row.counted), rounded(row.ratio))
    if row.counted.value is None:
        return nothing(row.counted.reason or "not counted")
    if (most := row.ratio_at_most) is not None:
        title = (
            f"{full(row.counted.value)} / at least {full(row.paper.value or 0)} = at most "
            f"{significant(most, 5)}"
        )
        return Cell(f"≤ {ratio(most)}", f"{title}; {why(row.paper)}", "est", rounded(most))
    if row.paper.lower_bound:
        return nothing("executed and estimated FLOPs are lower bounds, so there is no ratio")
    return nothing(
        "no estimate to compare with"
        if row.paper.value is None
        else "the estimate is 0, so there is no ratio"
    )


def _distrusted(cell: Cell) -> Cell:
    title = f"{cell.title or ''} under ncu at locked clocks: not a realistic time".strip()
    return replace(cell, title=title, style="est")


def _left_over(found: Analysis) -> list[Group]:
    rest = found.ledger.unattributed
    if not rest:
        return []
    none = nothing("not a layer")
    lines = tuple(
        Line(
            (
                _batch_cell(item.batch),
                none,
                figure_cell(item.counted, "FLOP"),
                none,
                time_cell(item.time.median, note=item.basis),
                Cell(percent(item.share), value=item.share),
                none,
                none,
            ),
            None,
            item.batch,
            item.share,
        )
        for item in rest
    )
    note = (
        f"the part of the {rest[0].whole} that is not attributed to a "
        f"layer{''.join(_causes_at(item, found) for item in rest)}"
    )
    return [Group("not attributed", "", None, lines, (), (), note, is_left_over=True)]


def _causes_at(item: Unattributed, found: Analysis) -> str:
    """ "; batch 32: autograd 3.0%", with the shares that findings name; "" where no cause
    is known."""
    run = found.study.at(item.batch).timing
    said = [
        f"{one.text} {percent(one.share * item.share)}{_often(one.launches)}"
        for one in (explain_unattributed(run) if run else ())
    ]
    at = "" if item.batch is None else f"batch {item.batch}: "
    return f"; {at}{', '.join(said)}" if said else ""


def _often(launches: int | None) -> str:
    return (
        "" if launches is None else f" in {launches:,} launches" if launches > 1 else " in 1 launch"
    )
