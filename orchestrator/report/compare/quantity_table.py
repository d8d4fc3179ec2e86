"""The table of a comparison: a quantity per row, with both sides, the factor and the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfctl.orchestrator.compare.compare import ComparedPair, Comparison
from perfctl.orchestrator.compare.quantities import (
    BETTER,
    MEANING,
    NEWS,
    NOT_JUDGED,
    PHASES,
    WORSE,
    ComparedRow,
    SideFigure,
)
from perfctl.orchestrator.report.compare.why import (
    ENERGY_UNITS,
    format_change_as_factor,
    format_quantity,
)
from perfctl.orchestrator.report.compare.words import PairAndRow
from perfctl.orchestrator.report.numbers import DASH, format_time
from perfctl.orchestrator.report.tables import (
    Cell,
    ChangeBar,
    Column,
    Table,
    amount_cell,
    build_table,
    join_notes,
    missing_cell,
    size_cell,
    text_cell,
    text_column,
    time_cell,
)
from perfctl.records.report import pluralize_count

ROWS_SHOWN = 400
"""Rows of one table, those that count first."""

BAR_REACH = 1.0
"""The bar beside a change ends at this change, or at the largest one of the table where that
is less."""

EDGE = 4.0
"""Percent of a bar's width that a mark keeps from its ends."""

NAME_MAX = 300
"""Characters of a name, which may be that of a C++ template."""

STYLES = {"worse": WORSE, "better": BETTER, "news": NEWS}
"""Class of a row -> its verdicts, in the order of the rows."""


def list_columns_equal_across_pairs(pairs: Sequence[ComparedPair]) -> list[str]:
    """Return "workload" and "batch" if they are equal in all pairs, and need no column."""
    values = {
        "workload": {pair.heading for pair in pairs},
        "batch": {pair.batch_label for pair in pairs},
    }
    return [label for label, distinct in values.items() if len(distinct) < 2]


def select_quantity_rows(
    comparison: Comparison, *levels_and_quantities: tuple[str, str]
) -> list[PairAndRow]:
    """Return the rows of these (level, quantity); the level "" stands for all."""
    return [
        (pair, row)
        for kind in levels_and_quantities
        for pair in comparison.pairs
        for row in pair.rows
        if row.key.quantity == kind[1] and kind[0] in ("", row.key.level)
    ]


def build_quantity_table(
    caption: str,
    chosen: Sequence[PairAndRow],
    base_unit: str = "",
    *,
    omitted_columns: Sequence[str] = (),
    change_threshold: float | None = None,
    max_rows: int = ROWS_SHOWN,
) -> Table | None:
    """Return quantities on both sides, each with its factor and its result; None without any.

    base_unit: unit of the figures. omitted_columns: labels of columns. change_threshold: None for a
    table without bars.
    """
    reasons = {row.reason if row.result == NOT_JUDGED else None for _, row in chosen[:max_rows]}
    common = reasons.pop() if len(reasons) == 1 else None
    columns = (
        text_column("workload"),
        Column("batch"),
        Column("name", style="code" if any(row.key.kernel for _, row in chosen) else "text"),
        Column("A", base=base_unit),
        Column("B", base=base_unit),
        Column("B/A"),
        Column("95% interval", note="of B/A, for this row only"),
        text_column("result"),
        text_column("reason"),
    )
    bars = (
        [None] * len(chosen)
        if change_threshold is None
        else _build_change_bars([row for _, row in chosen], change_threshold)
    )
    omitted = [*omitted_columns, *list_columns_equal_across_pairs([pair for pair, _ in chosen])]
    return build_table(
        caption,
        columns,
        [_build_quantity_cells(*item, bar) for item, bar in zip(chosen, bars, strict=True)],
        (f"Not judged: {common}.",) if common else (),
        max_rows=max_rows,
        keep_empty_columns=True,
        omitted_columns=omitted if common is None else [*omitted, "reason"],
    )


def choose_result_css_class(row: ComparedRow) -> str:
    """Return the class of a result; "" for what does not count."""
    return next((style for style, results in STYLES.items() if row.result in results), "")


def _build_quantity_cells(
    pair: ComparedPair, row: ComparedRow, bar: ChangeBar | None
) -> tuple[object, ...]:
    meaning = MEANING[row.result]
    if row.p is not None and row.adjusted is not None:
        meaning += (
            f"; p = {row.p:.2g} for this row only, {row.adjusted:.2g} among all rows of its level"
        )
    factor = interval = missing_cell(row.reason)
    if row.change is not None:
        factor = Cell(format_change_as_factor(row.change), value=round(row.change + 1, 6))
    factor = replace(factor, bar=bar)
    if row.interval:
        interval = text_cell(" to ".join(map(format_change_as_factor, row.interval)))
    is_layer_count = row.key.quantity == "flops" and row.key.level == "layer"
    name = _format_row_name_with_launch_changes(row) + (", FLOPs" if is_layer_count else "")
    # the complete name of a kernel, and what the figures were read from
    title = join_notes(row.key.kernel[:1000], row.basis) or None
    return (
        pair.heading,
        text_cell(pair.batch_label or DASH),
        Cell(name[: NAME_MAX - 1] + "…" if len(name) > NAME_MAX else name, title, value=row.name),
        _build_side_value_cell(row, row.before, "A"),
        _build_side_value_cell(row, row.after, "B"),
        factor,
        interval,
        Cell(row.result, meaning, choose_result_css_class(row), row.result),
        text_cell(row.reason),
    )


def _format_row_name_with_launch_changes(row: ComparedRow) -> str:
    """Return the name, with the grids and the launches where they changed, and then the time of one
    launch. The phases of a step differ from rows of the ledger of the same name."""
    a, b = row.before, row.after
    name = f"{row.name} phase" if row.key.item in PHASES else row.name
    if a is None or b is None:
        return name
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
            each = (format_time(side.median / (side.launches or 1)) for side in (a, b))
            changed.append(f"{' and '.join(each)} each")
    return f"{name} ({'; '.join(changed)})" if changed else name


def _build_side_value_cell(row: ComparedRow, number: SideFigure | None, side: str) -> Cell:
    if number is None:
        return missing_cell(f"not in {side}")
    if row.key.quantity == "memory":
        return size_cell(number.median)
    if row.key.quantity in ENERGY_UNITS:
        return Cell(format_quantity(row.key.quantity, number.median), value=number.median)
    if row.key.quantity != "time":
        return amount_cell(number.median, "FLOP" if row.key.quantity == "flops" else "")
    note = f"median of {pluralize_count(number.runs, 'run')}, {number.steps} values"
    if number.runs > 1:
        note += f"; runs from {format_time(number.low)} to {format_time(number.high)}"
    if number.interval is not None:
        note += (
            f"; 95% interval {format_time(number.interval[0])} to {format_time(number.interval[1])}"
        )
    return time_cell(number.median, note=note)


def _build_change_bars(rows: Sequence[ComparedRow], change_threshold: float) -> Iterator[ChangeBar]:
    """Yield each change on one scale. What lies beyond it ends in an arrow, so that it does not
    look like the largest change of the scale."""
    ends = [end for row in rows for end in (row.change, *(row.interval or ())) if end is not None]
    least = max(change_threshold * 1.5, 0.001)
    reach = min(max([least, *map(abs, ends)]), max(BAR_REACH, least))
    for row in rows:
        if row.change is None:
            yield ChangeBar()
            continue
        low, high = row.interval or (row.change, row.change)
        start, end, middle = (
            50 + (50 - EDGE) * min(max(end / reach, -1), 1) for end in (low, high, row.change)
        )
        beyond = {"left": low < -reach, "right": high > reach, "far": abs(row.change) > reach}
        yield ChangeBar(
            round(start, 2),
            round(end - start, 2),
            round(middle, 2),
            choose_result_css_class(row) or "plain",
            " ".join(side for side, is_beyond in beyond.items() if is_beyond),
            round(100 * change_threshold / reach, 2),
        )
