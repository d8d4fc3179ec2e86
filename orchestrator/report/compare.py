"""A comparison as the page, the terminal and the Markdown summary show it: the same sentences and the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.compare.records import (
    BETTER,
    DIFFERS,
    GONE,
    MEANING,
    NEW,
    NEWS,
    NOT_JUDGED,
    NOT_SHOWN,
    WORSE,
    Comparison,
    Key,
    Number,
    Pair,
    Row,
)
from perfctl.orchestrator.report.numbers import (
    Cell,
    amount,
    full,
    nothing,
    si,
    size,
    size_cell,
    text_cell,
    time,
    time_cell,
)
from perfctl.orchestrator.report.tables import Column

MINUS = "−"
Counts = tuple[Pair, Row]
"""A row that counts, and where it stands."""


@dataclass(frozen=True, slots=True)
class Said:
    """Everything in sentences."""

    banner: str | None
    """Over everything, where what is not comparable was compared by force."""
    news: tuple[str, ...]
    """What counts, worst first; one sentence where nothing does."""
    evidence: tuple[str | None, ...]
    """The part of the page behind each of ``news``: "layers"; None where there is none."""
    warnings: tuple[str, ...]


def findings(found: Comparison) -> Said:
    """Regressions, improvements, what is new or gone; then what could not be compared."""
    several = len({pair.heading for pair in found.pairs}) > 1
    counted = [*found.regressions, *found.improvements, *found.news]
    groups = _groups(counted)
    nothing = [] if found.regressions or found.improvements else _nothing(found)
    news = [*nothing, *(sentence(group, several) for group in groups)]
    evidence = [*(None for _ in nothing), *(part_of(group[0][1].key) for group in groups)]
    banner = None
    if found.forced and (blocked := reasons(tuple(pair for pair in found.pairs if pair.blocked))):
        banner = f"Not comparable, and compared by force: {'; '.join(blocked)}."
    return Said(banner, tuple(news), tuple(evidence), tuple(_warnings(found)))


def part_of(key: Key) -> str:
    """The part of the page that a row stands in."""
    if key.quantity in ("memory", "flops"):
        return key.quantity
    return {"step": "steps", "layer": "layers"}.get(key.level, "kernels")


def _nothing(found: Comparison) -> list[str]:
    if not any(pair.rows for pair in found.pairs):
        return ["Nothing was compared."]
    if found.judged == 0:
        return ["No time could be judged, so nothing is known to be as fast as it was."]
    return [f"No time or memory figure is shown to have changed by more than {found.gate * 100:g} %."]


def _groups(counted: list[Counts]) -> list[list[Counts]]:
    """Rows of one thing and one verdict, all batch sizes together. A kernel that goes the way of its layer is not said."""
    said = {(id(pair), row.key[3:5], row.verdict) for pair, row in counted if row.key.level == "layer"}
    groups: dict[tuple[object, ...], list[Counts]] = {}
    for pair, row in counted:
        if row.key.level != "kernel" or (id(pair), row.key[3:5], row.verdict) not in said:
            groups.setdefault((pair.heading, row.key, row.verdict), []).append((pair, row))
    return list(groups.values())


def sentence(group: list[Counts], several: bool = False) -> str:
    """What happened to one thing at one or several batch sizes, the weightiest in full.

    "conv2 forward is 20.1 % slower at batch 64 (95 % interval +18.9 % to +21.2 %; 4.12 ms in A, 4.95 ms in B)."
    """
    pair, row = group[0]
    where = _where([pair for pair, _ in group], several)
    at = f" at batch {pair.batch}" if len(group) > 1 and pair.batch else ""
    if row.verdict in (NEW, GONE):
        number = row.b if row.verdict == NEW else row.a
        assert number is not None
        size = f", {amount_of(row, number.median)} a step{at}"
        return (
            f"{row.name} is {row.verdict}{where}: {MEANING[row.verdict]}{size if row.key.quantity == 'time' else ''}."
        )
    assert row.a is not None and row.b is not None
    both = f"{amount_of(row, row.a.median)} in A, {amount_of(row, row.b.median)} in B"
    if row.verdict == DIFFERS:
        of = "a whole step" if row.key.level == "step" else row.name
        return f"Counted FLOPs of {of} differ{where}: {both}{at}."
    spread = f"95 % interval {around(row.interval)}" if row.interval else "the same in every repeat"
    rest = "".join(f", {_much(other)} at {one.batch}" for one, other in group[1:])
    return f"{row.name} is {_much(row)} {row.verdict}{_where([pair], several)} ({spread}; {both}){rest}."


def _much(row: Row) -> str:
    return percent_change(row.change or 0.0).lstrip("+" + MINUS)


def _where(pairs: list[Pair], several: bool) -> str:
    batches = ", ".join(pair.batch for pair in pairs if pair.batch)
    batch = f" at batch {batches}" if batches else ""
    return f"{batch} of {pairs[0].heading}" if several else batch


def _warnings(found: Comparison) -> list[str]:
    said = [f"Not comparable: {reason}. --force compares all the same." for reason in _blocked(found)]
    said += [f"Failed in B: {text}." for text in found.failed]
    for side, alone in (("A", found.only_a), ("B", found.only_b)):
        if alone:
            said.append(f"In {side} only: {'; '.join(alone)}.")
    said += dict.fromkeys(f"{note}." for pair in found.pairs for note in pair.notes)
    left = [(pair, row) for pair in found.pairs for row in pair.rows if row.verdict == NOT_JUDGED]
    if left:
        why: dict[str, int] = {}
        for _, row in left:
            why[row.why] = why.get(row.why, 0) + 1
        reason, count = max(why.items(), key=lambda item: item[1])
        rest = "" if count == len(left) else f", most of them because: {reason}"
        total = sum(len(pair.rows) for pair in found.pairs)
        said.append(f"{len(left)} of {total} rows are not judged{rest or f': {reason}'}.")
    said += _hidden(found)
    warned = dict.fromkeys(one.sentence for pair in found.pairs for one in pair.differences if not one.blocks)
    if warned:
        said.append(f"Also not the same: {'; '.join(warned)}.")
    return said


def _hidden(found: Comparison) -> list[str]:
    """Where the spread is so wide that a change beyond the gate would not be seen: no change shown is then no proof."""
    open_rows = [
        (pair, row)
        for pair in found.pairs
        for row in pair.rows
        if row.key.quantity == "time" and row.verdict == NOT_SHOWN and row.interval is not None
        and max(-row.interval[0], row.interval[1]) > found.gate
    ]  # fmt: skip
    if not open_rows:
        return []
    pair, row = open_rows[0]
    where = f" at batch {pair.batch}" if pair.batch else ""
    return [
        f"A change beyond the gate may hide in the spread of {len(open_rows)} of {found.judged} times: "
        f"{row.name}{where} changed by {around(row.interval)}. More repeats narrow it."
    ]


def _blocked(found: Comparison) -> list[str]:
    """One sentence for all batch sizes that the same facts block."""
    groups: dict[tuple[str, ...], list[Pair]] = {}
    for pair in found.not_comparable:
        groups.setdefault(tuple(f"{one.sentence} ({one.why})" for one in pair.blocked), []).append(pair)
    return [f"{_places(pairs)}: {'; '.join(why)}" for why, pairs in groups.items()]


def _places(pairs: list[Pair]) -> str:
    batches = ", ".join(pair.batch for pair in pairs if pair.batch)
    return f"{pairs[0].heading}, batch {batches}" if batches else pairs[0].heading


def reasons(pairs: tuple[Pair, ...]) -> list[str]:
    """What blocks these pairs, each said once."""
    return list(dict.fromkeys(one.sentence for pair in pairs for one in pair.blocked))


def batch_of(pair: Pair) -> str:
    return pair.batch


def quantity(kind: str, value: float) -> str:
    """A figure of this kind in words: "4.12 ms", "18 MB", "1.36 GFLOP", "3.9 k samples/s"."""
    if kind == "time":
        return time(value)
    if kind == "memory":
        return size(value)
    return si(value, "FLOP") if kind == "flops" else f"{si(value)} samples/s"


def amount_of(row: Row, value: float) -> str:
    """Counts stand in full: their difference may be in the last digit."""
    return full(value, "FLOP") if row.key.quantity == "flops" else quantity(row.key.quantity, value)


def percent_change(change: float) -> str:
    """ "+20.1 %", "−3.0 %", "0.0 %"; from a factor of 10 on "10.5 times"."""
    if change >= 9:
        return f"{si(change + 1)} times"
    text = f"{abs(change) * 100:.1f} %"
    if text == "0.0 %" and change:
        return "< 0.1 %" if change > 0 else f"> {MINUS}0.1 %"
    return text if not change else ("+" if change > 0 else MINUS) + text


def around(ends: tuple[float, float] | None) -> str:
    """ "+18.9 % to +21.2 %"."""
    return "" if ends is None else " to ".join(percent_change(end) for end in ends)


def verdict_of(row: Row) -> Cell:
    """The verdict, with what it means and how sure it is."""
    title = MEANING[row.verdict]
    if row.p is not None and row.adjusted is not None:
        title += f"; p = {row.p:.2g} alone, {row.adjusted:.2g} among all rows of its level"
    return Cell(row.verdict, title, value=row.verdict)


ROWS_SHOWN = 400
"""Rows of one table; those that count come first."""
SENTENCES = 7
"""Findings before "more"."""
BAR_REACH = 0.25
"""The bar beside a change ends at this change, or at the largest one of the table where that is less."""
PARTS = (
    ("steps", "Steps", "step", ("time", "throughput"), "Time of a step and of its phases"),
    ("memory", "Memory", "step", ("memory",), "Memory figures of a run"),
    ("layers", "Layers", "layer", ("time",), "Time per step by layer and direction"),
    ("kernels", "Kernels", "kernel", ("time",), "Time per step by kernel"),
    ("flops", "Counted FLOPs", "", ("flops",), "Counted FLOPs of a step, exact; 1 multiply-add = 2 FLOPs"),
)
"""(key, title, level or "" for all, quantities, caption) of the tables."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Where a change stands on a scale from -reach to +reach, in percent of its width."""

    left: float
    width: float
    middle: float
    style: str
    """worse, better or plain."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table."""

    cells: tuple[Cell, ...]
    bar: Bar | None
    style: str


@dataclass(frozen=True, slots=True)
class CompareTable:
    """One section."""

    key: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    hidden: int
    notes: tuple[str, ...]
    change_at: int
    gate: float
    """Width of the gate on the bars' scale, in percent; 0 for exact counts, which have none."""


@dataclass(frozen=True, slots=True)
class CompareView:
    """The whole page."""

    title: str
    made_at: str
    sides: tuple[tuple[str, str, str], ...]
    """("A", label, what it is), then B."""
    gate: str
    banner: str | None
    findings: tuple[tuple[str, str | None], ...]
    """(sentence, key of the table behind it)."""
    more: tuple[tuple[str, str | None], ...]
    warnings: tuple[str, ...]
    tables: tuple[CompareTable, ...]
    facts: tuple[tuple[str, tuple[tuple[str, str, str, str], ...]], ...]
    """(heading, ((fact, A, B, "", "blocks" or "warns"), ...))."""
    words: tuple[tuple[str, str], ...]
    """(verdict, what it means), those that occur."""


def compare_view(found: Comparison, *, made_at: str) -> CompareView:
    """Everything that the template reads."""
    said = findings(found)
    news = tuple(zip(said.news, said.evidence, strict=True))
    used = dict.fromkeys(row.verdict for pair in found.pairs for row in pair.rows)
    return CompareView(
        f"{found.b.label} against {found.a.label}", made_at, (_side("A", found), _side("B", found)),
        f"{found.gate * 100:g} %", said.banner, news[:SENTENCES], news[SENTENCES:], said.warnings,
        tuple(tables(found)), tuple(_facts(found.pairs)),
        tuple((verdict, meaning) for verdict, meaning in MEANING.items() if verdict in used),
    )  # fmt: skip


def tables(found: Comparison) -> Iterable[CompareTable]:
    """One table a part that has rows; every pair's rows in it, by batch size."""
    several = len({pair.heading for pair in found.pairs}) > 1
    for key, title, level, quantities, caption in PARTS:
        chosen = [
            (pair, row)
            for pair in found.pairs
            for row in pair.rows
            if row.key.quantity in quantities and level in ("", row.key.level)
        ]
        if chosen:
            yield _table(key, title, caption, chosen, found.gate, several)


def _table(
    key: str, title: str, caption: str, chosen: Sequence[tuple[Pair, Row]], gate: float, several: bool
) -> CompareTable:
    if key in ("kernels", "layers"):
        chosen = sorted(chosen, key=lambda item: (_rank(item[1]), -item[1].weight))
    reach = _reach([row for _, row in chosen[:ROWS_SHOWN]], gate)
    heads = [Column("batch")]
    if several:
        heads.insert(0, Column("workload", style="text"))
    style = "code" if key == "kernels" else "text"
    base = "B" if key == "memory" else "FLOP" if key == "flops" else "ns"
    heads += [Column("what", style=style), Column("A", base=base), Column("B", base=base), Column("change")]
    at = len(heads) - 1
    heads += [
        Column("95 % interval", note="of this row alone"),
        Column("verdict", style="text"),
        Column("why", style="text"),
    ]
    reasons = {row.why for _, row in chosen if row.verdict == NOT_JUDGED}
    common = next(iter(reasons)) if len(reasons) == 1 and all(row.verdict == NOT_JUDGED for _, row in chosen) else None
    lines = [_line(pair, row, reach, several, said=common is None) for pair, row in chosen[:ROWS_SHOWN]]
    notes = (f"Not judged: {common}.",) if common else ()
    if common:
        heads = heads[:-1]
    band = 0 if key == "flops" else round(100 * gate / reach, 2)
    hidden = len(chosen) - len(lines)
    return CompareTable(key, title, caption, tuple(heads), tuple(lines), hidden, notes, at, band)


def _rank(row: Row) -> int:
    order = (WORSE, BETTER, NEWS)
    return next(
        (place for place, group in enumerate(order) if row.verdict in group), 4 if row.verdict == NOT_JUDGED else 3
    )


def _line(pair: Pair, row: Row, reach: float, several: bool, *, said: bool) -> Line:
    cells = [text_cell(pair.heading)] if several else []
    cells += [
        text_cell(batch_of(pair) or "–"),
        _name(row),
        _value(row, row.a, "A"),
        _value(row, row.b, "B"),
        _change(row),
    ]
    cells += [text_cell(around(row.interval)) if row.interval else nothing(row.why), verdict_of(row)]
    if said:
        cells.append(text_cell(row.why))
    worse, better = row.verdict in WORSE, row.verdict in BETTER
    style = "worse" if worse else "better" if better else "news" if row.verdict in NEWS else ""
    return Line(tuple(cells), _bar(row, reach, style), style)


def _name(row: Row) -> Cell:
    """The name, with the grids where they are not the same, and launches where their number changed."""
    title = row.basis
    extra = grid_change(row) or launch_change(row)
    return Cell(f"{row.name} ({extra})" if extra else row.name, title, value=row.name)


def grid_change(row: Row) -> str | None:
    """ "grid 16x4x1 in A, 32x4x1 in B"; None where it is the same or not known."""
    if row.a is None or row.b is None or set(row.a.grids) == set(row.b.grids):
        return None
    shown = [", ".join(side.grids[:3]) + (", ..." if len(side.grids) > 3 else "") for side in (row.a, row.b)]
    return f"grid {shown[0] or 'not known'} in A, {shown[1] or 'not known'} in B"


def launch_change(row: Row) -> str | None:
    """ "3 launches in A, 4 in B"; None where the number is the same or not known."""
    if row.a is None or row.b is None or row.a.launches is None or row.b.launches is None:
        return None
    if row.a.launches == row.b.launches:
        return None
    return f"{row.a.launches:g} launches in A, {row.b.launches:g} in B"


def _value(row: Row, number: Number | None, side: str) -> Cell:
    if number is None:
        return nothing(f"not in {side}")
    unit = row.key.quantity
    note = f"median of {number.runs} run{'s' if number.runs > 1 else ''}, {number.steps} values"
    if number.runs > 1:
        note += f"; runs from {quantity(unit, number.low)} to {quantity(unit, number.high)}"
    if number.interval is not None:
        low, high = number.interval
        note += f"; 95 % interval {quantity(unit, low)} to {quantity(unit, high)}"
    if unit == "time":
        return time_cell(number.median, note=note)
    return size_cell(number.median) if unit == "memory" else amount(number.median, "FLOP" if unit == "flops" else "")


def _change(row: Row) -> Cell:
    if row.change is None:
        return nothing(row.why)
    return Cell(percent_change(row.change), value=round(row.change, 6))


def _reach(rows: Sequence[Row], gate: float) -> float:
    ends = [abs(row.change) for row in rows if row.change is not None]
    ends += [abs(end) for row in rows if row.interval for end in row.interval]
    return min(max([*ends, gate * 1.5, 0.001]), max(BAR_REACH, gate * 1.5))


def _bar(row: Row, reach: float, style: str) -> Bar | None:
    if row.change is None:
        return None
    low, high = row.interval or (row.change, row.change)
    left, right, middle = (50 + 50 * min(max(end / reach, -1), 1) for end in (low, high, row.change))
    return Bar(round(left, 2), round(max(right - left, 0), 2), round(middle, 2), style or "plain")


def _side(which: str, found: Comparison) -> tuple[str, str, str]:
    side = found.a if which == "A" else found.b
    used = [run for pair in found.pairs for run in (pair.runs_a if which == "A" else pair.runs_b)]
    devices = dict.fromkeys(run.device.name or run.device.kind for run in used if run.device)
    started = sorted(run.started_at for run in used if run.started_at)
    origins = sorted({run.origin for run in used})
    of = f" of {len(side.runs)}, for the other side has none like it" if side.runs and not used else ""
    parts = [
        f"{len(used)} run{'s' if len(used) != 1 else ''}{of}", ", ".join(devices), started[0][:10] if started else "",
        "" if origins in ([], ["measured"]) else " and ".join(origins),
    ]  # fmt: skip
    return which, side.label, ", ".join(part for part in parts if part)


def _facts(pairs: Sequence[Pair]) -> Iterable[tuple[str, tuple[tuple[str, str, str, str], ...]]]:
    """Every fact, those that differ first; equal tables of several batch sizes once."""
    seen: dict[tuple[tuple[str, str, str, str], ...], list[str]] = {}
    for pair in pairs:
        differ = {found.fact: found for found in pair.differences}
        lines = [(one.fact, one.a, one.b, "not comparable" if one.blocks else "differs") for one in pair.differences]
        lines += [(name, a, b, "") for name, a, b in pair.facts if name not in differ and name != "batch"]
        title = f"{pair.heading}, batch {pair.batch}" if pair.batch else pair.heading
        seen.setdefault(tuple(lines), []).append(title)
    for table, titles in seen.items():
        yield "; ".join(titles), table
