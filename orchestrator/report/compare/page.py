"""The page of a comparison: every part as a table whose words stand in :mod:`words`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress

from perfctl.orchestrator.compare.causes import (
    KINDS,
    NOT_RANKED,
    SAME,
    TIMED,
    ComparedWork,
    Why,
    explain,
)
from perfctl.orchestrator.compare.compare import Comparison, Pair, Side
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
    describe,
    quantity,
)
from perfctl.orchestrator.report.numbers import DASH, full, ratio, significant, time
from perfctl.orchestrator.report.tables import (
    Bar,
    Cell,
    Column,
    Table,
    amount,
    nothing,
    number_cell,
    size_cell,
    table,
    text_cell,
    text_columns,
    time_cell,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run

ROWS_SHOWN, SENTENCES = 400, 7
"""Rows of one table, those that count first; findings before "more"."""
BAR_REACH = 1.0
"""The bar beside a change ends at this change, or at the largest one of the table where that
is less."""
EDGE = 4.0
"""Percent of a bar's width that a mark keeps from its ends."""
NAME_MAX = 300
"""Characters of a name, which may be that of a C++ template."""
Rows = dict[tuple[tuple[str, ...], ...], list[str]]
"""Rows of words -> the pairs that have them."""
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


HOW_JUDGED = (
    "perfctl compares several runs per side by their medians, with Student's t on logarithms. It "
    "compares one run with one run by their steps, which depend on each other and do not show the "
    "spread between runs.",
    "It judges all rows of a level (steps, layers, kernels) together: if nothing changed, at most "
    "one comparison of 20 reports a slower or faster row. Bars show the interval; the grey band is "
    "the gate.",
)


def compare_view(comparison: Comparison) -> View:
    """Return the complete comparison: sentences, then a chapter for each kind of quantity."""
    pairs = tuple(map(explain, comparison.pairs))
    chapters = [
        View("Why it changed", tables=tuple(_why(pairs)), key="why"),
        *_quantities(comparison),
        _differences(comparison, pairs),
        _judgement(comparison),
    ]
    newest = max(
        (
            run.started_at
            for side in (comparison.a, comparison.b)
            for run in side.runs
            if run.started_at
        ),
        default="",
    )
    return replace(
        describe(comparison, pairs),
        title=f"{comparison.b.label} against {comparison.a.label}",
        facts=(
            *([f"Newest run {newest[:16].replace('T', ' ')} UTC."] if newest else []),
            gate_text(comparison),
        ),
        open_findings=SENTENCES,
        command="compare",
        properties=describe_sides(comparison),
        chapters=[chapter for chapter in chapters if chapter.tables or chapter.facts],
    )


def gate_text(comparison: Comparison) -> str:
    """Return from which change on perfctl reports one."""
    return f"A change is reported if it exceeds {comparison.gate * 100:g}% and the spread."


def _judgement(comparison: Comparison) -> View:
    results = {row.result for pair in comparison.pairs for row in pair.rows}
    rows = [
        (text_cell(result), text_cell(meaning))
        for result, meaning in MEANING.items()
        if result in results
    ]
    meanings = Table(tuple(text_columns("result", "meaning")), tuple(rows), "", tools=False)
    return View("How perfctl judges", HOW_JUDGED, (meanings,) if rows else (), key="judged")


def _why(pairs: Sequence[Why]) -> Iterator[Table]:
    """Yield one table of all pairs that are aligned: what stands behind the change of each row,
    the largest change first."""
    every = [(why, part) for why in pairs for part in why.parts]
    every.sort(key=lambda item: -abs(item[1].change or 0.0))
    if not any(part.change or part.kind not in (SAME, TIMED) for _, part in every):
        return  # nothing changed
    columns = (
        Column("workload", style="text"),
        Column("batch"),
        Column("name", style="text"),
        Column("cause", style="text", note="from the kernels' names, launches and grids"),
        Column("algorithm", style="text"),
        Column("launches", style="text", note="per step, if the report states its steps"),
        Column("A", base="ns"),
        Column("B", base="ns"),
        Column("change", base="ns"),
        Column("FLOPs, B/A", note="executed; 1 multiply-add = 2"),
    )
    used = _vary([why.pair for why in pairs]) + [True] * (len(columns) - 2)
    span = "per step" if all(why.per_step for why in pairs) else "in the complete report"
    by = "layer, pass" if any(why.by_layer for why in pairs) else "kernel family"
    aligned = table(
        f"Time {span}, both sides aligned by {by} and algorithm",
        tuple(compress(columns, used)),
        [tuple(compress(_aligned(*item), used)) for item in every],
        limit=ROWS_SHOWN,
    )
    if aligned is not None:
        notes = () if all(why.by_layer for why in pairs) else (NO_LAYERS,)
        yield replace(aligned, notes=(*notes, *aligned.notes))


def _vary(pairs: Sequence[Pair]) -> list[bool]:
    """Return whether workloads, and batch sizes, of the pairs differ and need a column."""
    return [len({pair.heading for pair in pairs}) > 1, len({pair.batch for pair in pairs}) > 1]


def _aligned(why: Why, part: ComparedWork) -> tuple[Cell, ...]:
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


def _algorithms(part: ComparedWork) -> Cell:
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


def _differences(comparison: Comparison, pairs: Sequence[Why]) -> View:
    """Return what differs between the sides, likely causes first, without a ranking if nothing was
    compared, and folded what is the same; equal tables of several batch sizes once."""
    labels = ("difference", "A", "B", "as a cause", "why", "effect")
    differences: Rows = defaultdict(list)
    for why in pairs:
        suspects = tuple(
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
        differences[suspects].append(_title(why.pair))
    equal: Rows = defaultdict(list)
    for pair in comparison.pairs:
        differ = {"batch", *(difference.fact for difference in pair.differences)}
        facts = tuple((name, a) for name, a, _ in pair.facts if name not in differ)
        equal[facts].append(_title(pair))
    tables: list[Table] = []
    for rows, titles in differences.items():
        hidden = set() if any(row[3] != NOT_RANKED for row in rows) else {3, 4}
        hidden |= set() if any(row[-1] for row in rows) else {len(labels) - 1}
        shown = [index for index in range(len(labels)) if index not in hidden]
        texts = [[row[index] for index in shown] for row in rows]
        tables += _texts("Differences", titles, [labels[index] for index in shown], texts)
    return View(
        "Differences between A and B",
        () if tables else ("The sides have no recorded difference.",),
        tuple(tables),
        folded=tuple(
            table
            for rows, titles in equal.items()
            for table in _texts("Equal on both sides", titles, ("fact", "A and B"), rows)
        ),
        key="differences",
    )


def _texts(
    caption: str, titles: Sequence[str], labels: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[Table]:
    """Yield a table of words, if it has rows."""
    if rows:
        cells = tuple(tuple(map(text_cell, row)) for row in rows)
        yield Table(
            tuple(text_columns(*labels)), cells, f"{caption}: {'; '.join(titles)}", tools=False
        )


def _title(pair: Pair) -> str:
    return f"{pair.heading}, batch {pair.batch}" if pair.batch else pair.heading


def _quantities(comparison: Comparison) -> Iterator[View]:
    """Yield a chapter for each part that has rows; every pair's rows in it, by batch size."""
    for key, title, level, quantities, caption in PARTS:
        chosen = select_rows(comparison, *((level, quantity) for quantity in quantities))
        if not chosen:
            continue
        if key in ("kernels", "layers"):
            order = [*STYLES.values(), (), (NOT_JUDGED,)]  # the rest is third
            rank = {result: index for index, results in enumerate(order) for result in results}
            chosen.sort(key=lambda item: (rank.get(item[1].result, 3), -item[1].weight))
        if any(PER_REPORT in (row.basis or "") for _, row in chosen):
            caption = caption.replace("per step", "in the complete report")
        base = {"memory": "B", "flops": "FLOP"}.get(key, "ns")
        gate = 0.0 if key == "flops" else comparison.gate  # an exact count has none
        yield View(title, tables=(quantity_table(caption, chosen, base, gate=gate),), key=key)


def select_rows(comparison: Comparison, *kinds: tuple[str, str]) -> list[Counts]:
    """Return the rows of these (level, quantity); the level "" stands for all."""
    return [
        (pair, row)
        for kind in kinds
        for pair in comparison.pairs
        for row in pair.rows
        if row.key.quantity == kind[1] and kind[0] in ("", row.key.level)
    ]


def quantity_table(
    caption: str,
    chosen: Sequence[Counts],
    base: str = "",
    *,
    without: Sequence[str] = (),
    gate: float | None = None,
    limit: int = ROWS_SHOWN,
) -> Table:
    """Return quantities on both sides, each with its factor and its result.

    base: unit of the figures. without: labels of columns. gate: None for a table without bars.
    """
    reasons = {row.reason if row.result == NOT_JUDGED else None for _, row in chosen[:limit]}
    common = reasons.pop() if len(reasons) == 1 else None
    columns = (
        Column("workload", style="text"),
        Column("batch"),
        Column("name", style="code" if any(row.key.kernel for _, row in chosen) else "text"),
        Column("A", base=base),
        Column("B", base=base),
        Column("B/A"),
        Column("95% interval", note="of B/A, for this row only"),
        Column("result", style="text"),
        Column("reason", style="text"),
    )
    used = _vary([pair for pair, _ in chosen])
    used += [column.label not in without for column in columns[2:]]
    used[-1] = used[-1] and common is None
    bars = [None] * len(chosen) if gate is None else _bars([row for _, row in chosen], gate)
    rows = [
        tuple(compress(_quantity_cells(*item, bar), used))
        for item, bar in zip(chosen[:limit], bars, strict=False)
    ]
    return Table(
        tuple(compress(columns, used)),
        tuple(rows),
        caption,
        len(chosen) - len(rows),
        tools=len(rows) > 8,
        notes=(f"Not judged: {common}.",) if common else (),
    )


def style_of(row: Row) -> str:
    """Return the class of a result; "" for what does not count."""
    return next((style for style, results in STYLES.items() if row.result in results), "")


def _quantity_cells(pair: Pair, row: Row, bar: Bar | None) -> tuple[Cell, ...]:
    meaning = MEANING[row.result]
    if row.p is not None and row.adjusted is not None:
        meaning += (
            f"; p = {row.p:.2g} for this row only, {row.adjusted:.2g} among all rows of its level"
        )
    factor = interval = nothing(row.reason)
    if row.change is not None:
        factor = Cell(factor_text(row.change), value=round(row.change + 1, 6))
    factor = replace(factor, bar=bar)
    if row.interval:
        interval = text_cell(" to ".join(map(factor_text, row.interval)))
    is_layer_count = row.key.quantity == "flops" and row.key.level == "layer"
    name = name_of(row) + (", FLOPs" if is_layer_count else "")
    # the complete name of a kernel, and what the figures were read from
    title = "; ".join(filter(None, (row.key.kernel[:1000], row.basis))) or None
    return (
        text_cell(pair.heading),
        text_cell(pair.batch or DASH),
        Cell(name[: NAME_MAX - 1] + "…" if len(name) > NAME_MAX else name, title, value=row.name),
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


def _bars(rows: Sequence[Row], gate: float) -> Iterator[Bar]:
    """Yield each change on one scale. What lies beyond it ends in an arrow, so that it does not
    look like the largest change of the scale."""
    ends = [end for row in rows for end in (row.change, *(row.interval or ())) if end is not None]
    least = max(gate * 1.5, 0.001)
    reach = min(max([least, *map(abs, ends)]), max(BAR_REACH, least))
    for row in rows:
        if row.change is None:
            yield Bar()
            continue
        low, high = row.interval or (row.change, row.change)
        left, right, middle = (
            50 + (50 - EDGE) * min(max(end / reach, -1), 1) for end in (low, high, row.change)
        )
        beyond = {"left": low < -reach, "right": high > reach, "far": abs(row.change) > reach}
        yield Bar(
            round(left, 2),
            round(right - left, 2),
            round(middle, 2),
            style_of(row) or "plain",
            " ".join(side for side, is_beyond in beyond.items() if is_beyond),
            round(100 * gate / reach, 2),
        )


def describe_sides(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Return ("A", "run 12: batch 64, H100, 2026-11-20"), and the same of B."""
    return tuple(
        (label, f"{side.label}: {_describe_runs(side, used)}")
        for label, side, used in (
            ("A", comparison.a, [run for pair in comparison.pairs for run in pair.runs_a]),
            ("B", comparison.b, [run for pair in comparison.pairs for run in pair.runs_b]),
        )
    )


def _describe_runs(side: Side, used: Sequence[Run]) -> str:
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
    return ", ".join(filter(None, facts))
