"""A comparison as an HTML report, on the terminal, as Markdown for a pull request, and as JSON; its
sentences are in ``words``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    describe,
    name_algorithm,
    quantity,
)
from perfctl.orchestrator.report.files import documents
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
    whole_table,
)
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Run

TERMINAL_ROWS, MARKDOWN_ROWS = 24, 25
"""Rows of the table on a terminal, and of those of a pull request."""
ROWS_SHOWN, SENTENCES = 400, 7
"""Rows of one table, those that count first; findings before "more"."""
BAR_REACH = 1.0
"""The bar beside a change ends at this change, or at the largest one of the table where that
is less."""
EDGE = 4.0
"""Percent of a bar's width that a mark keeps from its ends."""
NAME_MAX = 300
"""Characters of a name, which may be that of a C++ template."""
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
    "perfctl compares several runs per side by their medians, with Welch's t test on logarithms. "
    "It compares one run with one run by their steps, which depend on each other and do not show "
    "the spread between runs.",
    "It judges all rows of a level (steps, layers, kernels) together: if nothing changed, at most "
    "one comparison of 20 reports a slower or faster row. Bars show the interval; the grey band is "
    "the gate.",
)


def compare_view(comparison: Comparison) -> View:
    """Return the complete comparison: sentences, then a chapter for each kind of quantity."""
    pairs = tuple(map(explain, comparison.pairs))
    chapters = [
        View("Why it changed", tables=tuple(_cause_tables(pairs)), key="why"),
        *_quantities(comparison),
        _differences(comparison, pairs),
        _judgement(comparison),
    ]
    runs = (*comparison.a.runs, *comparison.b.runs)
    newest = max((run.started_at for run in runs if run.started_at), default="")
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
    rows = [item for item in MEANING.items() if item[0] in results]
    tables = [whole_table("", text_columns("result", "meaning"), rows)] if rows else ()
    return View("How perfctl judges", HOW_JUDGED, tuple(tables), key="judged")


def _cause_tables(pairs: Sequence[Why]) -> Iterator[Table]:
    """Yield one table of all pairs that are aligned: what stands behind the change of each row,
    the largest change first."""
    every = [(match, part) for match in pairs for part in match.parts]
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
    used = _vary([match.pair for match in pairs]) + [True] * (len(columns) - 2)
    span = "per step" if all(match.per_step for match in pairs) else "in the complete report"
    by = "layer, pass" if any(match.by_layer for match in pairs) else "kernel family"
    aligned = table(
        f"Time {span}, both sides aligned by {by} and algorithm",
        tuple(compress(columns, used)),
        [tuple(compress(_aligned(*item), used)) for item in every],
        limit=ROWS_SHOWN,
    )
    if aligned is not None:
        notes = () if all(match.by_layer for match in pairs) else (NO_LAYERS,)
        yield replace(aligned, notes=(*notes, *aligned.notes))


def _vary(pairs: Sequence[Pair]) -> list[bool]:
    """Return whether workloads, and batch sizes, of the pairs differ and need a column."""
    return [len({pair.heading for pair in pairs}) > 1, len({pair.batch for pair in pairs}) > 1]


def _aligned(match: Why, part: ComparedWork) -> tuple[Cell, ...]:
    is_timed_only = part.kind == TIMED
    unknown = "the report has no kernels" if is_timed_only else "not known"
    sides = (part.a, part.b)
    launches = [
        f"{side.launches:,.6g}" if side and side.launches is not None else None for side in sides
    ]
    times = (
        time_cell(side.ns if side else None, f"not in {label}")
        for label, side in zip("AB", sides, strict=True)
    )
    counted = nothing("not measured on both sides")
    if part.flops is not None:
        counted = Cell(ratio(part.flops), f"{part.flops:.6g}", value=part.flops)
    return (
        text_cell(match.pair.heading),
        text_cell(match.pair.batch) if match.pair.batch else nothing(unknown),
        text_cell(part.name if part.layer or part.row else part.direction),
        nothing(unknown) if is_timed_only else Cell(part.kind, KINDS[part.kind], value=part.kind),
        _algorithms(part),
        _both(launches, unknown),
        *times,
        _signed_time(part.change),
        counted,
    )


def _algorithms(part: ComparedWork) -> Cell:
    """Return the method, with the arithmetic where that changed; both sides where they differ."""
    sides = (part.a, part.b)
    methods = [" + ".join(map(name_algorithm, side.algorithms)) if side else "" for side in sides]
    if methods[0] == methods[1] and part.a and part.b and part.a.arithmetic != part.b.arithmetic:
        methods = [" + ".join(side.arithmetic) or methods[0] for side in (part.a, part.b)]
    is_timed_only = part.kind == TIMED
    unknown = "the report has no kernels" if is_timed_only else "the kernels' names contain none"
    return _both(methods, unknown)


def _both(texts: Sequence[str | None], reason: str) -> Cell:
    """Return "GEMM" if both sides have it, otherwise "GEMM → GEMV"."""
    distinct = dict.fromkeys(text or DASH for text in texts)
    return nothing(reason) if [*distinct] == [DASH] else text_cell(" → ".join(distinct))


def _signed_time(ns: float | None) -> Cell:
    """Return "+0.48 ms"."""
    if ns is None:
        return nothing("not known on both sides")
    mark = "" if not ns else "+" if ns > 0 else MINUS
    return number_cell(time(abs(ns)), f"{mark}{full(abs(ns), 'ns')}", ns, mark=mark)


def _differences(comparison: Comparison, pairs: Sequence[Why]) -> View:
    """Return what differs between the sides, likely causes first, without a ranking if nothing was
    compared, and folded what is the same; equal tables of several batch sizes once."""
    tables = []
    for rows, group in group_by(pairs, _list_suspects).items():
        used = [True, True, True, *[any(row[3] != NOT_RANKED for row in rows)] * 2]
        used.append(any(row[-1] for row in rows))
        labels = compress(("difference", "A", "B", "as a cause", "why", "effect"), used)
        texts = [compress(row, used) for row in rows]
        tables.append(_texts_table("Differences", [match.pair for match in group], labels, texts))
    equal = [
        _texts_table("Equal on both sides", group, ("fact", "A and B"), rows)
        for rows, group in group_by(comparison.pairs, _list_equal_facts).items()
    ]
    shown_tables, folded = (
        tuple(table for table in group if table.rows) for group in (tables, equal)
    )
    none = () if shown_tables else ("The sides have no recorded difference.",)
    return View("Differences between A and B", none, shown_tables, folded=folded, key="differences")


def _list_suspects(match: Why) -> tuple[tuple[str, ...], ...]:
    pairs = ((suspect, suspect.difference) for suspect in match.suspects)
    return tuple(
        (fact.fact, fact.a, fact.b, item.level, item.why, "not comparable" if fact.blocks else "")
        for item, fact in pairs
    )


def _list_equal_facts(pair: Pair) -> tuple[tuple[str, str], ...]:
    differ = {"batch", *(difference.fact for difference in pair.differences)}
    return tuple((name, a) for name, a, _ in pair.facts if name not in differ)


def _texts_table(
    caption: str, pairs: Iterable[Pair], labels: Iterable[str], rows: Iterable[Iterable[str]]
) -> Table:
    """Return a table of texts about these pairs."""
    titles = "; ".join(map(_title, pairs))
    cells = tuple(tuple(map(text_cell, row)) for row in rows)
    return Table(tuple(text_columns(*labels)), cells, f"{caption}: {titles}", tools=False)


def _title(pair: Pair) -> str:
    return f"{pair.heading}, {pair.axis}{pair.batch}" if pair.batch else pair.heading


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
        factor = Cell(_factor(row.change), value=round(row.change + 1, 6))
    factor = replace(factor, bar=bar)
    if row.interval:
        interval = text_cell(" to ".join(map(_factor, row.interval)))
    is_layer_count = row.key.quantity == "flops" and row.key.level == "layer"
    name = _name(row) + (", FLOPs" if is_layer_count else "")
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


def _factor(change: float) -> str:
    """Return a change of 0.38 as "1.38"."""
    return significant(float(change + 1))


def _name(row: Row) -> str:
    """Return the name, with the grids and the launches where they changed, and then the time of one
    launch."""
    a, b = row.before, row.after
    if a is None or b is None:
        return row.name
    changed = []
    if set(a.grids) != set(b.grids):
        grids = (
            ", ".join((*side.grids[:3], *(["..."] if len(side.grids) > 3 else []))) or "not known"
            for side in (a, b)
        )
        changed.append(f"grid {' in A, '.join(grids)} in B")
    if a.launches and b.launches and a.launches != b.launches:
        changed.append(f"{a.launches:,.6g} launches in A, {b.launches:,.6g} in B")
        if row.key.quantity == "time":
            each = (time(side.median / (side.launches or 1)) for side in (a, b))
            changed.append(f"{' and '.join(each)} each")
    return f"{row.name} ({'; '.join(changed)})" if changed else row.name


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
        start, end, middle = (
            50 + (50 - EDGE) * min(max(end / reach, -1), 1) for end in (low, high, row.change)
        )
        beyond = {"left": low < -reach, "right": high > reach, "far": abs(row.change) > reach}
        yield Bar(
            round(start, 2),
            round(end - start, 2),
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


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One side."""

    label: str
    runs: list[int]
    """Numbers of runs."""


@dataclass(frozen=True, slots=True)
class CompareOutput:
    """Times in ns, memory in bytes, throughput in samples per second, energy in J, energy-delay
    product in J s."""

    JSON_INLINED = ("comparison",)

    comparison: Comparison
    a: ComparedSide
    b: ComparedSide
    regressions: int
    improvements: int
    other_changes: int
    not_comparable: int
    findings: Sequence[str]
    warnings: Sequence[str]
    pairs: Sequence[Why]


def comparison_view(comparison: Comparison) -> View:
    """Return the sides, how the step changed and why, and one table: steps, memory and energy, then
    layers by the size of their change, then kernels and counts that changed. Only the sides if
    nothing may be compared."""
    view = View(properties=describe_sides(comparison), document=partial(compare_view, comparison))
    if comparison.is_refused or not comparison.pairs:
        return view
    sentences = describe(comparison, tuple(map(explain, comparison.pairs)))
    steps = select_rows(comparison, *(("step", name) for name in ("time", "memory", *ENERGY_UNITS)))
    layers = select_rows(comparison, ("layer", "time"))
    rows = list(steps)
    for level, is_short in (
        (layers, False),
        (select_rows(comparison, ("kernel", "time")), layers),
        (select_rows(comparison, ("step", "flops"), ("layer", "flops")), steps),
    ):
        listed = [item for item in level if not is_short or style_of(item[1])]
        rows += sorted(listed, key=lambda item: -item[1].weight)
    table = quantity_table("", rows, without=("95% interval", "reason"), limit=TERMINAL_ROWS)
    notes = [gate_text(comparison)]
    if table.hidden:
        notes.append(f"{table.hidden} more rows: --out FILE.html.")
    return replace(
        sentences,
        findings=sentences.findings[: sentences.open_findings],
        properties=view.properties,
        document=view.document,
        tables=(replace(table, hidden=0, notes=()),) if rows else (),
        notes=(" ".join(notes),),
    )


def markdown(comparison: Comparison) -> str:
    """Return a summary for a pull request: the sentences of the page, and folded tables of the rows
    that count."""
    sentences = describe(comparison, tuple(map(explain, comparison.pairs)))
    worse, better, news = comparison.regressions, comparison.improvements, comparison.news
    steps = select_rows(comparison, ("step", "time"), ("step", "memory"))
    hidden = len(sentences.findings) - SENTENCES
    return documents.markdown(
        replace(
            sentences,
            title=f"perfctl compare: {comparison.b.label} against {comparison.a.label}",
            facts=(
                f"{len(worse)} worse, {len(better)} better, {len(news)} new, gone or different.",
                gate_text(comparison),
            ),
            findings=sentences.findings[:SENTENCES],
            properties=describe_sides(comparison),
            folded=tuple(
                quantity_table(caption, rows, without=("reason",), limit=MARKDOWN_ROWS)
                for caption, rows in (
                    ("Changes", [*worse, *better, *news]),
                    ("Steps and memory", steps),
                )
                if rows
            ),
            notes=(f"perfctl compare --out FILE.html has {hidden} more findings.",)
            if hidden > 0
            else (),
        ),
        level=3,
    )


def compare_output(comparison: Comparison) -> CompareOutput:
    """Return the complete comparison for programs."""
    pairs = tuple(map(explain, comparison.pairs))
    sentences = describe(comparison, pairs)
    a, b = comparison.a.label, comparison.b.label
    return CompareOutput(
        comparison=comparison,
        a=ComparedSide(a, [run.id for pair in comparison.pairs for run in pair.runs_a]),
        b=ComparedSide(b, [run.id for pair in comparison.pairs for run in pair.runs_b]),
        regressions=len(comparison.regressions),
        improvements=len(comparison.improvements),
        other_changes=len(comparison.news),
        not_comparable=len(comparison.not_comparable),
        findings=sentences.stated[0],
        warnings=sentences.warnings,
        pairs=pairs,
    )
