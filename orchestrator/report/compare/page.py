"""The page of a comparison: every part as a table whose words stand in :mod:`words`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from perfctl.orchestrator.compare.causes import KINDS, SAME, TIMED, Executed, Part
from perfctl.orchestrator.compare.compare import Comparison, Pair
from perfctl.orchestrator.compare.compared import (
    BETTER,
    MEANING,
    NEWS,
    NOT_JUDGED,
    WORSE,
    Number,
    Row,
)
from perfctl.orchestrator.compare.quantities import PER_REPORT
from perfctl.orchestrator.compare.suspects import NOT_RANKED
from perfctl.orchestrator.report.compare.words import (
    ENERGY_UNITS,
    MINUS,
    Counts,
    Explained,
    algorithm_words,
    around,
    explained,
    findings,
    percent_change,
    quantity,
)
from perfctl.orchestrator.report.numbers import DASH, full, ratio, time
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Scale,
    Table,
    amount,
    dash_notes,
    in_one_unit,
    nothing,
    scaled,
    size_cell,
    text_cell,
    time_cell,
    with_values,
)

ROWS_SHOWN, SENTENCES = 400, 7
"""Rows of one table, those that count first; findings before "more"."""
BAR_REACH = 1.0
"""The bar beside a change ends at this change, or at the largest one of the table where that
is less."""
EDGE = 4.0
"""Percent of a bar's width that a mark keeps from its ends."""
STYLES = {"worse": WORSE, "better": BETTER, "news": NEWS}
"""Class of a row -> its verdicts, in the order of the rows."""
NO_LAYERS = "The sides have no layer in common, so kernels are aligned by their family."
PARTS = (
    ("steps", "Steps", "step", ("time",), "Time of a step and of its phases"),
    (
        "throughput",
        "Throughput",
        "step",
        ("throughput",),
        "Samples per second, as the step's time gives them",
    ),
    ("memory", "Memory", "step", ("memory",), "Memory figures of a run"),
    (
        "energy",
        "Energy",
        "step",
        ("energy", "energy-delay product"),
        "Energy of a step, and times its time (EDP), from readings of power",
    ),
    ("layers", "Layers", "layer", ("time",), "Time per step by layer and direction"),
    ("kernels", "Kernels", "kernel", ("time",), "Time per step by kernel"),
    (
        "flops",
        "Counted FLOPs",
        "",
        ("flops",),
        "Counted FLOPs of a step, exact; 1 multiply-add = 2 FLOPs",
    ),
)
"""(key, title, level or "" for all, quantities, caption) of the tables."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A change on a scale from -reach to +reach, in percent of its width."""

    left: float
    width: float
    middle: float
    style: str
    """worse, better, news or plain."""
    over: str = ""
    """ "left", "right" or both: where it goes on beyond the scale; with "far" the change itself
    is there."""


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
    """("A", label, runs and device), then B."""
    gate: str
    banner: str | None
    findings: tuple[Finding, ...]
    more: tuple[Finding, ...]
    warnings: tuple[str, ...]
    why: tuple[Table, ...]
    """Both sides aligned by layer, direction and algorithm."""
    tables: tuple[CompareTable, ...]
    differences: tuple[tuple[str, Table], ...]
    """(heading, the facts that differ, likely causes first)."""
    facts: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """(heading, ((fact, what it is on both sides), ...))."""
    words: tuple[tuple[str, str], ...]
    """(verdict, its meaning), those that occur."""


def compare_view(found: Comparison, *, made_at: str) -> CompareView:
    """The record of templates/compare.html."""
    said = findings(found)
    used = dict.fromkeys(row.result for pair in found.pairs for row in pair.rows)
    pairs = [explained(pair) for pair in found.pairs]
    return CompareView(
        f"{found.b.label} against {found.a.label}",
        made_at,
        (_side("A", found), _side("B", found)),
        f"{found.gate * 100:g} %",
        said.banner,
        said.findings[:SENTENCES],
        said.findings[SENTENCES:],
        said.warnings,
        tuple(_why(pairs)),
        tuple(tables(found)),
        tuple(_differences(pairs)),
        tuple(_facts(found.pairs)),
        tuple((verdict, meaning) for verdict, meaning in MEANING.items() if verdict in used),
    )


def _why(pairs: Sequence[Explained]) -> Iterator[Table]:
    """One table of all pairs that are aligned: what stands behind the change of each place, the
    largest change first."""
    every = [(one, part) for one in pairs for part in one.why.parts]
    every.sort(key=lambda item: -abs(item[1].change or 0.0))
    if not any(part.change or part.kind not in (SAME, TIMED) for _, part in every):
        return  # nothing changed
    columns = (
        Column("workload", style="text"),
        Column("batch"),
        Column("what", style="text"),
        Column("behind it", style="text", note="what the kernels' names, launches and grids say"),
        Column("algorithm", style="text"),
        Column("launches", style="text", note="a step, where its steps are known"),
        Column("A", base="ns"),
        Column("B", base="ns"),
        Column("change", base="ns"),
        Column("FLOPs, B/A", note="counted; 1 multiply-add = 2"),
    )
    rows = [_aligned(one, part) for one, part in every[:ROWS_SHOWN]]
    rows = in_common_unit(rows, (6, 7, 8))
    kept = [
        place
        for place in with_values(rows)
        if place or len({one.pair.heading for one in pairs}) > 1
    ]
    notes = [] if all(one.why.by_layer for one in pairs) else [NO_LAYERS]
    notes += [
        note for note in dash_notes(columns, rows) if not note.startswith(("batch", "workload"))
    ]
    span = "per step" if all(one.why.per_step for one in pairs) else "in the whole report"
    by = (
        "layer, direction and algorithm"
        if any(one.why.by_layer for one in pairs)
        else "kernel family and algorithm"
    )
    if len(every) > ROWS_SHOWN:
        notes.append(f"The first {ROWS_SHOWN} of {len(every)} rows.")
    yield Table(
        tuple(columns[place] for place in kept),
        tuple(tuple(row[place] for place in kept) for row in rows),
        f"Time {span}, both sides aligned by {by}",
        tools=len(rows) > 8,
        notes=tuple(notes),
    )


def _aligned(one: Explained, part: Part) -> tuple[Cell, ...]:
    unknown = "no kernels were recorded" if part.kind == TIMED else "not known"
    sides = (part.a, part.b)
    launches = [
        None if side is None or side.launches is None else f"{side.launches:,.6g}" for side in sides
    ]
    times = [
        time_cell(None if side is None else side.ns, f"not in {which}")
        for which, side in zip("AB", sides, strict=True)
    ]
    counted = nothing("not counted on both sides")
    if part.flops is not None:
        counted = Cell(ratio(part.flops), f"{part.flops:.6g}", value=part.flops)
    return (
        text_cell(one.pair.heading),
        text_cell(one.pair.batch) if one.pair.batch else nothing(unknown),
        text_cell(part.name if part.layer or part.row else part.direction),
        nothing(unknown)
        if part.kind == TIMED
        else Cell(part.kind, KINDS[part.kind], value=part.kind),
        _algorithms(part),
        _both(launches, unknown),
        *times,
        signed_time(part.change),
        counted,
    )


def _algorithms(part: Part) -> Cell:
    """The method, with the arithmetic where that changed; both sides where they differ."""
    words = [None if side is None else _algorithm(side) for side in (part.a, part.b)]
    if words[0] == words[1] and part.a and part.b and part.a.arithmetic != part.b.arithmetic:
        words = [
            " + ".join(side.arithmetic) or word
            for side, word in zip((part.a, part.b), words, strict=True)
        ]
    return _both(
        words, "no kernels were recorded" if part.kind == TIMED else "the kernels' names say none"
    )


def _algorithm(side: Executed) -> str | None:
    return " + ".join(map(algorithm_words, side.algorithms)) or None


def _both(words: Sequence[str | None], reason: str) -> Cell:
    """ "GEMM" where both sides say it, else "GEMM → GEMV"."""
    if words[0] is None and words[1] is None:
        return nothing(reason)
    if words[0] == words[1]:
        return text_cell(words[0])
    return text_cell(" → ".join(word or DASH for word in words))


def signed_time(ns: float | None) -> Cell:
    """ "+0.48 ms"."""
    if ns is None:
        return nothing("not known on both sides")
    mark = "" if not ns else "+" if ns > 0 else MINUS
    return scaled(f"{mark}{full(abs(ns), 'ns')}", ns, Scale(abs(ns) / 1e9, "s", mark))


def in_common_unit(
    rows: Sequence[tuple[Cell, ...]], places: Sequence[int]
) -> list[tuple[Cell, ...]]:
    """The rows with one unit in all cells of these columns together."""
    cells = in_one_unit([row[place] for row in rows for place in places])
    made = []
    for number, row in enumerate(rows):
        changed = dict(zip(places, cells[number * len(places) :], strict=False))
        made.append(tuple(changed.get(place, cell) for place, cell in enumerate(row)))
    return made


def _differences(pairs: Sequence[Explained]) -> Iterator[tuple[str, Table]]:
    """What differs between the sides, likely causes first, no ranking where nothing was compared;
    equal tables of several batch sizes once."""
    seen: dict[tuple[tuple[str, str, str, str, str, str], ...], list[str]] = {}
    for one in pairs:
        lines = tuple(
            (
                found.difference.fact,
                found.difference.a,
                found.difference.b,
                found.level,
                found.why,
                "not comparable" if found.difference.blocks else "",
            )
            for found in one.suspects
        )
        if lines:
            seen.setdefault(lines, []).append(_title(one.pair))
    for lines, titles in seen.items():
        columns = [
            Column(label, style="text")
            for label in ("difference", "A", "B", "as a cause", "why", "effect")
        ]
        ranked, blocks = (
            any(line[3] != NOT_RANKED for line in lines),
            any(line[-1] for line in lines),
        )
        kept = [
            at
            for at in range(len(columns))
            if (ranked or at not in (3, 4)) and (blocks or at != len(columns) - 1)
        ]
        rows = tuple(tuple(text_cell(line[at]) for at in kept) for line in lines)
        yield (
            "; ".join(titles),
            Table(tuple(columns[at] for at in kept), rows, "; ".join(titles), tools=False),
        )


def _title(pair: Pair) -> str:
    return f"{pair.heading}, batch {pair.batch}" if pair.batch else pair.heading


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
    key: str, title: str, caption: str, chosen: Sequence[Counts], gate: float, several: bool
) -> CompareTable:
    if key in ("kernels", "layers"):
        order = [*STYLES.values(), (), (NOT_JUDGED,)]  # the rest is third
        rank = {verdict: place for place, verdicts in enumerate(order) for verdict in verdicts}
        chosen = sorted(chosen, key=lambda item: (rank.get(item[1].result, 3), -item[1].weight))
    shown = chosen[:ROWS_SHOWN]
    ends = [
        abs(end)
        for _, row in shown
        for end in (row.change, *(row.interval or ()))
        if end is not None
    ]
    reach = min(max([*ends, gate * 1.5, 0.001]), max(BAR_REACH, gate * 1.5))
    sized = any(pair.batch for pair, _ in chosen)
    if any(PER_REPORT in (row.basis or "") for _, row in chosen):
        caption = caption.replace("per step", "in the whole report")
    base = "B" if key == "memory" else "FLOP" if key == "flops" else "ns"
    heads = [
        *([Column("workload", style="text")] if several else []),
        *([Column("batch")] if sized else []),
        Column("what", style="code" if key == "kernels" else "text"),
        Column("A", base=base),
        Column("B", base=base),
        Column("change"),
        Column("95 % interval", note="of this row alone"),
        Column("verdict", style="text"),
    ]
    reasons = {row.reason if row.result == NOT_JUDGED else None for _, row in chosen}
    common = reasons.pop() if len(reasons) == 1 else None
    first = 1 + several + sized
    made = [_line(pair, row, reach, several, sized, said=common is None) for pair, row in shown]
    cells = in_common_unit([line.cells for line in made], (first, first + 1))
    lines = tuple(replace(line, cells=row) for line, row in zip(made, cells, strict=True))
    notes = (f"Not judged: {common}.",) if common else ()
    if not common:
        heads.append(Column("why", style="text"))
    band = 0 if key == "flops" else round(100 * gate / reach, 2)
    hidden = len(chosen) - len(lines)
    return CompareTable(key, title, caption, tuple(heads), lines, hidden, notes, first + 2, band)


def _line(pair: Pair, row: Row, reach: float, several: bool, sized: bool, *, said: bool) -> Line:
    meaning = MEANING[row.result]
    if row.p is not None and row.adjusted is not None:
        meaning += f"; p = {row.p:.2g} alone, {row.adjusted:.2g} among all rows of its level"
    cells = [text_cell(pair.heading)] if several else []
    cells += [
        *([text_cell(pair.batch or DASH)] if sized else []),
        Cell(name_of(row), _title_of(row), value=row.name),
        _value(row, row.before, "A"),
        _value(row, row.after, "B"),
        nothing(row.reason)
        if row.change is None
        else Cell(percent_change(row.change), value=round(row.change, 6)),
        text_cell(around(row.interval)) if row.interval else nothing(row.reason),
        Cell(row.result, meaning, value=row.result),
        *([text_cell(row.reason)] if said else []),
    ]
    style = next((style for style, verdicts in STYLES.items() if row.result in verdicts), "")
    return Line(tuple(cells), _bar(row, reach, style), style)


def _title_of(row: Row) -> str | None:
    """The whole name of a kernel, and what the figures were read from."""
    return "; ".join(filter(None, (row.key.kernel[:1000], row.basis))) or None


def name_of(row: Row) -> str:
    """The name, with the grids where they changed, else with the launches where their
    number changed."""
    if row.before is None or row.after is None:
        return row.name
    if set(row.before.grids) != set(row.after.grids):
        a, b = (
            ", ".join(side.grids[:3]) + (", ..." if len(side.grids) > 3 else "")
            for side in (row.before, row.after)
        )
        return f"{row.name} (grid {a or 'not known'} in A, {b or 'not known'} in B)"
    a_many, b_many = row.before.launches, row.after.launches
    if a_many is None or b_many is None or a_many == b_many:
        return row.name
    return f"{row.name} ({a_many:g} launches in A, {b_many:g} in B)"


def _value(row: Row, number: Number | None, side: str) -> Cell:
    if number is None:
        return nothing(f"not in {side}")
    if row.key.quantity == "memory":
        return size_cell(number.median)
    if row.key.quantity in ENERGY_UNITS:
        return Cell(quantity(row.key.quantity, number.median), value=number.median)
    if row.key.quantity != "time":
        return amount(number.median, "FLOP" if row.key.quantity == "flops" else "")
    note = f"median of {number.runs} run{'s' if number.runs > 1 else ''}, {number.steps} values"
    if number.runs > 1:
        note += f"; runs from {time(number.low)} to {time(number.high)}"
    if number.interval is not None:
        note += f"; 95 % interval {time(number.interval[0])} to {time(number.interval[1])}"
    return time_cell(number.median, note=note)


def _bar(row: Row, reach: float, style: str) -> Bar | None:
    """What lies beyond the scale ends in an arrow, so that it does not look like the largest change
    of the scale."""
    if row.change is None:
        return None
    low, high = row.interval or (row.change, row.change)
    left, right, middle = (
        50 + (50 - EDGE) * min(max(end / reach, -1), 1) for end in (low, high, row.change)
    )
    beyond = {"left": low < -reach, "right": high > reach, "far": abs(row.change) > reach}
    over = " ".join(side for side, is_beyond in beyond.items() if is_beyond)
    return Bar(
        round(left, 2), round(max(right - left, 0), 2), round(middle, 2), style or "plain", over
    )


def _side(which: str, found: Comparison) -> tuple[str, str, str]:
    side = found.a if which == "A" else found.b
    used = [run for pair in found.pairs for run in (pair.runs_a if which == "A" else pair.runs_b)]
    devices = dict.fromkeys(run.device.name or run.device.kind for run in used if run.device)
    started = sorted(run.started_at for run in used if run.started_at)
    origins = sorted({run.origin for run in used})
    of = (
        f" of {len(side.runs)}, for the other side has none like it"
        if side.runs and not used
        else ""
    )
    parts = [
        f"{len(used)} run{'s' if len(used) != 1 else ''}{of}",
        ", ".join(devices),
        started[0][:10] if started else "",
        "" if origins in ([], ["measured"]) else " and ".join(origins),
    ]
    return which, side.label, ", ".join(part for part in parts if part)


def _facts(pairs: Sequence[Pair]) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Every fact that is the same on both sides; equal lists of several batch sizes once."""
    seen: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for pair in pairs:
        differ = {found.fact for found in pair.differences}
        lines = [(name, a) for name, a, _ in pair.facts if name not in differ and name != "batch"]
        seen.setdefault(tuple(lines), []).append(_title(pair))
    for table, titles in seen.items():
        if table:
            yield "; ".join(titles), table
