"""The page of a comparison: every part as a table whose words stand in :mod:`words`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from perfctl.orchestrator.compare.causes import KINDS, NOT_RANKED, SAME, TIMED, Part, Why
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
from perfctl.orchestrator.report.compare.words import (
    ENERGY_UNITS,
    MINUS,
    Counts,
    algorithm_words,
    findings,
    quantity,
)
from perfctl.orchestrator.report.numbers import DASH, full, ratio, significant, time
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount,
    dash_notes,
    nothing,
    number_cell,
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
NO_LAYERS = "A and B have no layer in common, so perfctl aligns kernels by their family."
PARTS = (
    ("steps", "Steps", "step", ("time",), "Time of a step and of its phases"),
    (
        "throughput",
        "Throughput",
        "step",
        ("throughput",),
        "Samples per second, from the step time",
    ),
    ("memory", "Memory", "step", ("memory",), "Memory of a run"),
    (
        "energy",
        "Energy",
        "step",
        ("energy", "energy-delay product"),
        "Energy of a step, and energy x step time (EDP), from power samples",
    ),
    ("layers", "Layers", "layer", ("time",), "Time per step by layer and pass"),
    ("kernels", "Kernels", "kernel", ("time",), "Time per step by kernel"),
    (
        "flops",
        "Executed FLOPs",
        "",
        ("flops",),
        "Executed FLOPs of a step, exact; 1 multiply-add = 2 FLOPs",
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
class CompareTable:
    """One section: rows of quantities, each with its bar and the class of its result."""

    key: str
    title: str
    table: Table
    bars: tuple[Bar | None, ...]
    styles: tuple[str, ...]
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


def compare_view(comparison: Comparison, *, made_at: str) -> CompareView:
    """Return the record of templates/compare.html."""
    said = findings(comparison)
    used = {row.result for pair in comparison.pairs for row in pair.rows}
    return CompareView(
        f"{comparison.b.label} against {comparison.a.label}",
        made_at,
        (describe_side("A", comparison), describe_side("B", comparison)),
        f"{comparison.gate * 100:g}%",
        said.banner,
        said.findings[:SENTENCES],
        said.findings[SENTENCES:],
        said.warnings,
        tuple(_why(said.pairs)),
        tuple(tables(comparison)),
        tuple(_differences(said.pairs)),
        tuple(_facts(comparison.pairs)),
        tuple((result, meaning) for result, meaning in MEANING.items() if result in used),
    )


def _why(pairs: Sequence[Why]) -> Iterator[Table]:
    """Yield one table of all pairs that are aligned: what stands behind the change of each place,
    the largest change first."""
    every = [(why, part) for why in pairs for part in why.parts]
    every.sort(key=lambda item: -abs(item[1].change or 0.0))
    if not any(part.change or part.kind not in (SAME, TIMED) for _, part in every):
        return  # nothing changed
    columns = (
        Column("workload", style="text"),
        Column("batch"),
        Column("what", style="text"),
        Column("behind it", style="text", note="from the kernels' names, launches and grids"),
        Column("algorithm", style="text"),
        Column("launches", style="text", note="per step, if the report states its steps"),
        Column("A", base="ns"),
        Column("B", base="ns"),
        Column("change", base="ns"),
        Column("FLOPs, B/A", note="executed; 1 multiply-add = 2"),
    )
    rows = [_aligned(*item) for item in every[:ROWS_SHOWN]]
    has_several = len({why.pair.heading for why in pairs}) > 1
    shown = [index for index in with_values(rows) if index or has_several]
    notes = [] if all(why.by_layer for why in pairs) else [NO_LAYERS]
    notes += [
        note for note in dash_notes(columns, rows) if not note.startswith(("batch", "workload"))
    ]
    if len(every) > ROWS_SHOWN:
        notes.append(f"The first {ROWS_SHOWN} of {len(every)} rows.")
    span = "per step" if all(why.per_step for why in pairs) else "in the complete report"
    has_layers = any(why.by_layer for why in pairs)
    by = f"{'layer, pass' if has_layers else 'kernel family'} and algorithm"
    yield Table(
        tuple(columns[index] for index in shown),
        tuple(tuple(row[index] for index in shown) for row in rows),
        f"Time {span}, both sides aligned by {by}",
        tools=len(rows) > 8,
        notes=tuple(notes),
    )


def _aligned(why: Why, part: Part) -> tuple[Cell, ...]:
    is_timed_only = part.kind == TIMED
    unknown = "the report has no kernels" if is_timed_only else "not known"
    sides = (part.a, part.b)
    launches = [
        None if side is None or side.launches is None else f"{side.launches:,.6g}" for side in sides
    ]
    times = [
        time_cell(None if side is None else side.ns, f"not in {label}")
        for label, side in zip("AB", sides, strict=True)
    ]
    counted = nothing("not measured on both sides")
    if part.flops is not None:
        counted = Cell(ratio(part.flops), f"{part.flops:.6g}", value=part.flops)
    return (
        text_cell(why.pair.heading),
        text_cell(why.pair.batch) if why.pair.batch else nothing(unknown),
        text_cell(part.name if part.layer or part.row else part.direction),
        nothing(unknown) if is_timed_only else Cell(part.kind, KINDS[part.kind], value=part.kind),
        _algorithms(part),
        _both(launches, unknown),
        *times,
        signed_time(part.change),
        counted,
    )


def _algorithms(part: Part) -> Cell:
    """Return the method, with the arithmetic where that changed; both sides where they differ."""
    words = [
        None if side is None else " + ".join(map(algorithm_words, side.algorithms)) or None
        for side in (part.a, part.b)
    ]
    if words[0] == words[1] and part.a and part.b and part.a.arithmetic != part.b.arithmetic:
        words = [" + ".join(side.arithmetic) or words[0] for side in (part.a, part.b)]
    is_timed_only = part.kind == TIMED
    unknown = "the report has no kernels" if is_timed_only else "the kernels' names contain none"
    return _both(words, unknown)


def _both(words: Sequence[str | None], reason: str) -> Cell:
    """ "GEMM" where both sides say it, else "GEMM → GEMV"."""
    distinct = dict.fromkeys(words)
    if not any(distinct):
        return nothing(reason)
    return text_cell(" → ".join(word or DASH for word in distinct))


def signed_time(ns: float | None) -> Cell:
    """ "+0.48 ms"."""
    if ns is None:
        return nothing("not known on both sides")
    mark = "" if not ns else "+" if ns > 0 else MINUS
    return number_cell(time(abs(ns)), f"{mark}{full(abs(ns), 'ns')}", ns, mark=mark)


def _differences(pairs: Sequence[Why]) -> Iterator[tuple[str, Table]]:
    """Yield what differs between the sides, likely causes first, no ranking where nothing was
    compared; equal tables of several batch sizes once."""
    titles_of: dict[tuple[tuple[str, ...], ...], list[str]] = defaultdict(list)
    for why in pairs:
        table: tuple[tuple[str, ...], ...] = tuple(
            (
                suspect.difference.fact,
                suspect.difference.a,
                suspect.difference.b,
                suspect.level,
                suspect.why,
                "not comparable" if suspect.difference.blocks else "",
            )
            for suspect in why.suspects
        )
        if table:
            titles_of[table].append(_title(why.pair))
    labels = ("difference", "A", "B", "as a cause", "why", "effect")
    for lines, titles in titles_of.items():
        hidden = set() if any(line[3] != NOT_RANKED for line in lines) else {3, 4}
        hidden |= set() if any(line[-1] for line in lines) else {len(labels) - 1}
        shown = [index for index in range(len(labels)) if index not in hidden]
        columns = tuple(Column(labels[index], style="text") for index in shown)
        rows = tuple(tuple(text_cell(line[index]) for index in shown) for line in lines)
        title = "; ".join(titles)
        yield title, Table(columns, rows, f"Differences: {title}", tools=False)


def overview_table(comparison: Comparison, *, is_complete: bool = False) -> Table:
    """Return steps, memory and energy, then layers by the size of their change, then kernels and
    counts that changed (``is_complete``: all of them)."""
    rows = [(pair, row) for pair in comparison.pairs for row in pair.rows]

    def of(level: str, *quantities: str) -> list[Counts]:
        return [
            (pair, row)
            for pair, row in rows
            if row.key.level == level and row.key.quantity in quantities
        ]

    layers, kernels = of("layer", "time"), of("kernel", "time")
    if layers and not is_complete:
        kernels = [item for item in kernels if style_of(item[1])]
    counts = [*of("step", "flops"), *of("layer", "flops")]
    steps = of("step", "time", "memory", *ENERGY_UNITS)
    if steps and not is_complete:
        counts = [item for item in counts if style_of(item[1])]
    by_weight = [
        sorted(level, key=lambda item: -item[1].weight) for level in (layers, kernels, counts)
    ]
    chosen = [*steps, *(item for level in by_weight for item in level)]
    has_batches = len({pair.batch for pair in comparison.pairs}) > 1
    used = [
        len({pair.heading for pair in comparison.pairs}) > 1,
        has_batches,
        *[True] * 4,
        is_complete,
        True,
        is_complete,
    ]
    columns = quantity_columns("", is_code=True)
    cells = [quantity_cells(*item) for item in chosen]
    return Table(
        tuple(compress(columns, used)), tuple(tuple(compress(row, used)) for row in cells), ""
    )


def _title(pair: Pair) -> str:
    return f"{pair.heading}, batch {pair.batch}" if pair.batch else pair.heading


def tables(comparison: Comparison) -> Iterator[CompareTable]:
    """Yield one table for each part that has rows; every pair's rows in it, by batch size."""
    for key, title, level, quantities, caption in PARTS:
        chosen = [
            (pair, row)
            for pair in comparison.pairs
            for row in pair.rows
            if row.key.quantity in quantities and level in ("", row.key.level)
        ]
        if chosen:
            several = len({pair.heading for pair in comparison.pairs}) > 1
            yield _table(key, title, caption, chosen, comparison.gate, several)


def _table(
    key: str, title: str, caption: str, chosen: Sequence[Counts], gate: float, several: bool
) -> CompareTable:
    if key in ("kernels", "layers"):
        order = [*STYLES.values(), (), (NOT_JUDGED,)]  # the rest is third
        rank = {result: index for index, results in enumerate(order) for result in results}
        chosen = sorted(chosen, key=lambda item: (rank.get(item[1].result, 3), -item[1].weight))
    shown = chosen[:ROWS_SHOWN]
    ends = [
        abs(end)
        for _, row in shown
        for end in (row.change, *(row.interval or ()))
        if end is not None
    ]
    reach = min(max([*ends, gate * 1.5, 0.001]), max(BAR_REACH, gate * 1.5))
    if any(PER_REPORT in (row.basis or "") for _, row in chosen):
        caption = caption.replace("per step", "in the complete report")
    columns = quantity_columns({"memory": "B", "flops": "FLOP"}.get(key, "ns"), key == "kernels")
    reasons = {row.reason if row.result == NOT_JUDGED else None for _, row in chosen}
    common = reasons.pop() if len(reasons) == 1 else None
    used = [several, any(pair.batch for pair, _ in chosen), *[True] * 6, common is None]
    rows = [quantity_cells(*item) for item in shown]
    styles = tuple(style_of(row) for _, row in shown)
    return CompareTable(
        key,
        title,
        Table(
            tuple(compress(columns, used)),
            tuple(tuple(compress(cells, used)) for cells in rows),
            caption,
            len(chosen) - len(shown),
            tools=len(shown) > 8,
            notes=(f"Not judged: {common}.",) if common else (),
        ),
        tuple(_bar(row, reach, style) for (_, row), style in zip(shown, styles, strict=True)),
        styles,
        gate=0 if key == "flops" else round(100 * gate / reach, 2),
    )


def quantity_columns(base: str, is_code: bool = False) -> tuple[Column, ...]:
    """Return the columns of :func:`quantity_cells`. ``base``: unit of the figures."""
    return (
        Column("workload", style="text"),
        Column("batch"),
        Column("what", style="code" if is_code else "text"),
        Column("A", base=base),
        Column("B", base=base),
        Column("B/A"),
        Column("95% interval", note="of B/A, for this row only"),
        Column("result", style="text"),
        Column("why", style="text"),
    )


def style_of(row: Row) -> str:
    """Return the class of a result; "" for what does not count."""
    return next((style for style, results in STYLES.items() if row.result in results), "")


def quantity_cells(pair: Pair, row: Row) -> tuple[Cell, ...]:
    """Return one quantity on both sides, its factor and its result."""
    meaning = MEANING[row.result]
    if row.p is not None and row.adjusted is not None:
        meaning += (
            f"; p = {row.p:.2g} for this row only, {row.adjusted:.2g} among all rows of its level"
        )
    factor = interval = nothing(row.reason)
    if row.change is not None:
        factor = Cell(factor_text(row.change), value=round(row.change + 1, 6))
    if row.interval:
        interval = text_cell(" to ".join(map(factor_text, row.interval)))
    is_layer_count = row.key.quantity == "flops" and row.key.level == "layer"
    of_flops = ", FLOPs" if is_layer_count else ""
    # the complete name of a kernel, and what the figures were read from
    title = "; ".join(filter(None, (row.key.kernel[:1000], row.basis))) or None
    return (
        text_cell(pair.heading),
        text_cell(pair.batch or DASH),
        Cell(name_of(row) + of_flops, title, value=row.name),
        _value(row, row.before, "A"),
        _value(row, row.after, "B"),
        factor,
        interval,
        Cell(row.result, meaning, style_of(row), row.result),
        text_cell(row.reason),
    )


def factor_text(change: float) -> str:
    """Return a change of 0.38 as "1.38"."""
    return significant(float(change + 1))


def name_of(row: Row) -> str:
    """Return the name, with the grids where they changed, else with the launches where their number
    changed."""
    a, b = row.before, row.after
    if a is None or b is None:
        return row.name
    if set(a.grids) != set(b.grids):
        grids_a, grids_b = (
            (", ".join(side.grids[:3]) or "not known") + (", ..." if len(side.grids) > 3 else "")
            for side in (a, b)
        )
        return f"{row.name} (grid {grids_a} in A, {grids_b} in B)"
    if a.launches is None or b.launches is None or a.launches == b.launches:
        return row.name
    return f"{row.name} ({a.launches:g} launches in A, {b.launches:g} in B)"


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
        note += f"; 95% interval {time(number.interval[0])} to {time(number.interval[1])}"
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


def describe_side(label: str, comparison: Comparison) -> tuple[str, str, str]:
    """Return ("A", "run 12", "batch 64, H100, 2026-11-20")."""
    side = comparison.a if label == "A" else comparison.b
    used = [
        run for pair in comparison.pairs for run in (pair.runs_a if label == "A" else pair.runs_b)
    ]
    batches = sorted({run.batch_size for run in used if run.batch_size is not None})
    count = f"{len(used)} run{'s' if len(used) != 1 else ''}"
    if side.runs and not used:
        count += f" of {len(side.runs)}, because the other side has no matching runs"
    devices = dict.fromkeys(run.device.name or run.device.kind for run in used if run.device)
    started = min((run.started_at[:10] for run in used if run.started_at), default="")
    origins = sorted({run.origin for run in used})
    facts = (
        "" if len(used) == 1 and side.label.startswith("run ") else count,
        f"batch {', '.join(map(str, batches))}" if batches else "",
        ", ".join(devices),
        started,
        "" if origins == ["measured"] else " and ".join(origins),
    )
    return label, side.label, ", ".join(filter(None, facts))


def _facts(pairs: Sequence[Pair]) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Yield every fact that is the same on both sides; equal lists of several batch sizes once."""
    titles_of: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for pair in pairs:
        differ = {"batch", *(difference.fact for difference in pair.differences)}
        facts = tuple((name, a) for name, a, _ in pair.facts if name not in differ)
        titles_of[facts].append(_title(pair))
    return (("; ".join(titles), facts) for facts, titles in titles_of.items() if facts)
