"""The overview of several run groups: a row for each, and the curves of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.prepared import MODES, format_study_heading
from perfctl.orchestrator.ledger.usage.inference import (
    LIGHTEST_FIRST,
    list_latencies,
    pick_least_profiled,
)
from perfctl.orchestrator.ledger.usage.readings import UsageShare
from perfctl.orchestrator.report.charts.charts import (
    Chart,
    ChartLine,
    LegendEntry,
    draw_batch_chart,
)
from perfctl.orchestrator.report.charts.study import make_study_label
from perfctl.orchestrator.report.ledger.page import build_total_ratio_cell
from perfctl.orchestrator.report.numbers import (
    drop_trailing_zeros,
    format_all_digits,
    format_rate,
    format_step_times,
)
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.usage import usage_share_cell
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    build_table,
    count_cell,
    missing_cell,
    rate_cell,
    text_cell,
    text_columns,
    time_cell,
    time_column,
)
from perfctl.orchestrator.report.view import View

COLOURS = (0, 1, 2, 3, 4, 5, 6, 9)
"""Numbers of the colors of curves; further studies are in the table only."""
WIDE = 20.0
"""Curves whose values lie further apart are drawn on a log axis."""


@dataclass(frozen=True, slots=True)
class _OverviewEntry:
    """A run group of the overview, at the batch size with the most samples per second."""

    key: str
    analysis: Analysis
    rates: Mapping[int, float]
    """Batch size -> samples per second, ascending."""

    @property
    def batch(self) -> int | None:
        """The fastest batch size; without times the only one."""
        if self.rates:
            return max(self.rates, key=lambda size: self.rates[size])
        sizes = self.analysis.study.batches
        return sizes[0] if len(sizes) == 1 else None

    @property
    def names(self) -> tuple[str | None, ...]:
        """Model, mode, precision, device and profiler."""
        study = self.analysis.study
        return (
            format_study_heading(study) if study.workload is None else make_study_label(study),
            MODES.get(study.mode or "", study.mode),
            study.precision,
            about.describe_study_device(study),
            about.describe_tools(study.runs),
        )


def build_overview(analyses: Sequence[tuple[str, Analysis]]) -> View:
    """Return one row for each run group, which leads there, and one chart with the curves of all;
    nothing for fewer than two.

    analyses: (key of the run group in the report, its analysis), in the report's order.
    """
    if len(analyses) < 2:
        return View()
    entries = [
        _OverviewEntry(key, analysis, _list_sample_rates(analysis)) for key, analysis in analyses
    ]
    columns = [
        *text_columns("model or report", "mode", "precision", "device", "profiler", "batch"),
        Column(
            "fastest batch",
            note="with the most samples per second; the columns to the right refer to this batch "
            "size",
        ),
        time_column("time per step", "median over the measured steps"),
        Column(
            "samples/s",
            note="batch / median step; for inference images/s: batch / mean step, with loading",
        ),
        Column("executed / estimated", note="sum over all layers for which both are known"),
        Column(
            "GPU busy", note="share of the time with a kernel running; otherwise the driver's value"
        ),
    ]
    rows = build_table("Overview", columns, map(_build_overview_row, entries), tools=False)
    tables = tuple(filter(None, [rows]))
    drawn = [entry for entry in entries if entry.rates][: len(COLOURS)]
    if len(drawn) < 2 or len({batch for entry in drawn for batch in entry.rates}) < 2:
        return View(tables=tables)
    names = _make_distinct_names(drawn)
    omitted = sum(bool(entry.rates) for entry in entries) - len(drawn)
    note = f"the first {len(COLOURS)}; the table has {omitted} more" if omitted else ""
    return View(tables=tables, charts=_draw_rate_chart(drawn, names, note))


def _list_sample_rates(analysis: Analysis) -> dict[int, float]:
    """Return samples per second by batch size, ascending: images/s of inference over images, or
    from the median step."""
    answers = sorted(
        pick_least_profiled(list_latencies(analysis.study.runs)), key=lambda latency: latency.batch
    )
    if answers:
        return {latency.batch: latency.images_per_second for latency in answers}
    return {
        point.batch: 1e9 / each
        for point in analysis.points
        if isinstance(point.batch, int) and (each := point.per_sample) and point.is_complete
    }


def _build_overview_row(entry: _OverviewEntry) -> list[Cell | str | None]:
    analysis, batch, study = entry.analysis, entry.batch, entry.analysis.study
    ledger_rows = [row for row in analysis.ledger.rows if row.batch == batch or not study.batches]
    point = next((point for point in analysis.points if point.batch == batch), None)
    problems = (text for point in analysis.points for text in point.problems)
    reason = next(problems, "no run timed complete steps")
    step = time_cell(None, reason)
    if point is not None and point.step is not None:
        note = f"{format_all_digits(point.step.median, 'ns')}; {point.basis}"
        step = Cell(format_step_times(point.step), note, value=point.step.median)
    fastest = entry.rates.get(batch) if batch is not None else None
    model, *names = entry.names
    return [
        replace(text_cell(model), href=entry.key),
        *names,
        " ".join(map(str, study.points)) or missing_cell("the report does not state it"),
        count_cell(None if fastest is None else batch, reason),
        step,
        rate_cell(fastest, "samples/s", reason),
        build_total_ratio_cell(ledger_rows),
        usage_share_cell(_find_busy_share(analysis, batch)),
    ]


def _find_busy_share(analysis: Analysis, batch: int | None) -> UsageShare:
    study = analysis.study
    runs = study.recorded(batch) if study.batches else list(study.prepared_runs)
    runs.sort(key=lambda item: LIGHTEST_FIRST.get(item.run.profiler, len(LIGHTEST_FIRST)))
    ways = [item.usage.ways for item in runs]
    shares = [*(way.kernels for way in ways), *(way.nvml for way in ways)]
    shares.append(UsageShare(None, "no run at this batch size"))
    return next((share for share in shares if share.value is not None), shares[0])


def _draw_rate_chart(
    entries: Sequence[_OverviewEntry], names: Sequence[str], note: str
) -> tuple[Chart, ...]:
    lines = [
        ChartLine(name, entry.rates, colour)
        for name, entry, colour in zip(names, entries, COLOURS, strict=False)
    ]
    values = [value for line in lines for value in line.points.values()]
    chart = draw_batch_chart(
        "overview-rate",
        "Samples per second, by batch size",
        lines,
        lambda rate: drop_trailing_zeros(format_rate(rate)),
        note,
        decades=max(values) > WIDE * min(values),
        up="samples/s",
    )
    legend = (
        LegendEntry(name, colour, entry.key)
        for name, colour, entry in zip(names, COLOURS, entries, strict=False)
    )
    return () if chart is None else (replace(chart, legend=tuple(legend)),)


def _make_distinct_names(entries: Sequence[_OverviewEntry]) -> list[str]:
    """Return short names: of model, mode, precision, device and tools what differs between the
    run groups."""
    columns = zip(*(entry.names for entry in entries), strict=True)
    differing = [column for column in columns if len(set(column)) > 1]
    names = [", ".join(filter(None, values)) for values in zip(*differing, strict=True)] or [
        ""
    ] * len(entries)
    often = Counter(names)
    return [
        f"{name} {number}".strip() if often[name] > 1 or not name else name
        for number, name in enumerate(names, 1)
    ]
