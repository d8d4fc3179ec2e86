"""What stands on one page together, side by side: the overview of all studies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.counts.figure import total_of
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.prepared import MODES, heading
from perfctl.orchestrator.ledger.usage.inference import (
    LIGHTEST_FIRST,
    Latency,
    latencies,
    least_watched,
)
from perfctl.orchestrator.ledger.usage.readings import UsageShare
from perfctl.orchestrator.report.charts.charts import Chart, Series, against_batch
from perfctl.orchestrator.report.charts.study import label
from perfctl.orchestrator.report.numbers import full, per_second, ratio, rounded, short, time
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.records import Overview
from perfctl.orchestrator.report.page.usage import usage_cell
from perfctl.orchestrator.report.tables import (
    ROWS_SHOWN,
    Cell,
    Column,
    count,
    mark,
    nothing,
    rate,
    style_of,
    table,
    text_cell,
    time_cell,
)

COLOURS = (0, 1, 2, 3, 4, 5, 6, 9)
"""Numbers of the colors of curves; further studies are in the table only."""
WIDE = 20.0
"""Curves whose values lie further apart are drawn on a log axis."""


@dataclass(frozen=True, slots=True)
class _Speed:
    """A study at the batch size with the most samples a second."""

    batch: int | None
    step_ns: float | None = None
    per_second: float | None = None
    note: str | None = None
    why: str = "no run timed complete steps"


def overview(found: Sequence[tuple[str, Analysis]]) -> Overview | None:
    """One row a study, and the curves of all of them in one drawing each; None for fewer than two.

    found: (key of the study on the page, its analysis), in the page's order.
    """
    if len(found) < 2:
        return None
    each = [(key, one, _answers(one)) for key, one in found]
    columns = [
        Column("model or report", style="text"),
        Column("mode", style="text"),
        Column("precision", style="text"),
        Column("device", style="text"),
        Column("profiler", style="text"),
        Column("batch", style="text"),
        Column(
            "fastest batch",
            note="with the most samples per second; the columns to the right refer to this batch "
            "size",
        ),
        Column("time per step", base="ns", note="median over the measured steps"),
        Column(
            "samples/s",
            note="batch / median step; for inference images/s: batch / mean step, with loading",
        ),
        Column("executed / estimated", note="sum over all layers for which both are known"),
        Column(
            "GPU busy", note="share of the time with a kernel running; otherwise the driver's value"
        ),
    ]
    made = table(
        "Overview", columns, [_overview_row(one, answers) for _, one, answers in each], tools=False
    )
    assert made is not None
    curves = _curves(each)
    return Overview(made, tuple(key for key, _ in found)[:ROWS_SHOWN], *curves)


def _answers(one: Analysis) -> tuple[Latency, ...]:
    return least_watched(latencies(one.study.runs))


def _overview_row(one: Analysis, answers: Sequence[Latency]) -> list[Cell | str | None]:
    study, speed = one.study, _speed(one, answers)
    batches = " ".join(map(str, study.batches))
    return [
        text_cell(_model(one)),
        MODES.get(study.mode or "", study.mode),
        study.precision,
        about.device_text(study),
        about.tools(study.runs),
        batches or nothing("the report does not state it"),
        count(None if speed.per_second is None else speed.batch, speed.why),
        time_cell(speed.step_ns, speed.why, speed.note),
        rate(speed.per_second, "samples/s", speed.why),
        _executed_cell(one, speed.batch),
        usage_cell(_busy(one, speed.batch)),
    ]


def _model(one: Analysis) -> str:
    return heading(one.study) if one.study.workload is None else label(one.study)


def _speed(one: Analysis, answers: Sequence[Latency]) -> _Speed:
    """Of the fastest batch size; of a study without times, of its only batch size."""
    at = {point.batch: point for point in one.points}
    rates = _rates(one, answers)
    if not rates:
        problems = next((text for point in one.points for text in point.problems), None)
        only = one.study.batches[0] if len(one.study.batches) == 1 else None
        point = at.get(only) if only is not None else None
        step = point.step.median if point is not None and point.step is not None else None
        return _Speed(only, step, why=problems or _Speed(None).why)
    batch = max(rates, key=lambda size: rates[size])
    point = at.get(batch)
    if point is None or point.step is None:
        return _Speed(batch, None, rates[batch])
    return _Speed(
        batch, point.step.median, rates[batch], f"median of {point.step.count} steps; {point.basis}"
    )


def _rates(one: Analysis, answers: Sequence[Latency]) -> dict[int, float]:
    """Batch size -> samples a second, ascending: images/s of inference over images, else from the
    median step."""
    if answers:
        return {
            item.batch: item.images_per_second
            for item in sorted(answers, key=lambda item: item.batch)
        }
    return {
        point.batch: 1e9 / each
        for point in one.points
        if (each := point.per_sample) and point.is_complete
    }


def _executed_cell(one: Analysis, batch: int | None) -> Cell:
    """Counted over paper of all layers with both, at one batch size; of a report without one, of
    all of it."""
    rows = [row for row in one.ledger.rows if row.batch == batch or not one.study.batches]
    known = [row for row in rows if row.ratio is not None]
    if not known:
        reasons = dict.fromkeys(row.counted.reason for row in rows if row.counted.reason)
        return nothing(next(iter(reasons), None) or "no layer has executed FLOPs and a formula")
    executed, paper = (
        total_of(row.counted for row in known),
        sum(row.paper.value or 0 for row in known),
    )
    share = (executed.value or 0) / paper
    title = f"{full(executed.value or 0)} / {full(paper)} FLOP in {len(known)} rows of the ledger"
    return Cell(mark(executed) + ratio(share), title, style_of(executed), rounded(share))


def _busy(one: Analysis, batch: int | None) -> UsageShare:
    runs = [
        item
        for item in one.study.prepared_runs
        if item.run.batch_size == batch or not one.study.batches
    ]
    runs.sort(key=lambda item: LIGHTEST_FIRST.get(item.run.profiler, len(LIGHTEST_FIRST)))
    ways = [item.usage.ways for item in runs]
    shares = [*(way.kernels for way in ways), *(way.nvml for way in ways)]
    unknown = shares[0] if shares else UsageShare(None, "no run at this batch size")
    return next((share for share in shares if share.value is not None), unknown)


def _curves(
    each: Sequence[tuple[str, Analysis, tuple[Latency, ...]]],
) -> tuple[tuple[Chart, ...], tuple[tuple[str, int, str], ...]]:
    """(drawings, (name, colour, key) of their lines); nothing where fewer than two studies were
    timed at a batch size."""
    timed = [(key, one, rates) for key, one, answers in each if (rates := _rates(one, answers))]
    drawn, left = timed[: len(COLOURS)], len(timed) - len(COLOURS)
    if len(drawn) < 2 or len({batch for _, _, rates in drawn for batch in rates}) < 2:
        return (), ()
    names = _told_apart([one for _, one, _ in drawn])
    note = f"the first {len(COLOURS)}; the table has {left} more" if left > 0 else ""
    charts = []
    kinds: tuple[tuple[str, str, str, Callable[[float], float], Callable[[float], str]], ...] = (
        (
            "sample",
            "Time per sample",
            "time per sample",
            lambda rate: 1 / rate,
            lambda s: short(time(s * 1e9)),
        ),
        (
            "rate",
            "Samples per second",
            "samples/s",
            lambda rate: rate,
            lambda rate: short(per_second(rate)),
        ),
    )
    for key, title, up, value, show in kinds:
        lines = [
            Series(name, tuple(rates), tuple(map(value, rates.values())), colour=COLOURS[place])
            for place, (name, (_, _, rates)) in enumerate(zip(names, drawn, strict=True))
        ]
        values = [value for line in lines for value in line.values]
        said = "; ".join(
            f"{line.label} {show(line.values[-1])} at batch {line.batches[-1]}" for line in lines
        )
        svg = against_batch(
            f"overview-{key}",
            f"{title} over batch size. {said}",
            lines,
            show,
            decades=max(values) > WIDE * min(values),
            up=up,
        )
        charts.append(Chart(f"{title}, by batch size", svg, note))
    legend = [
        (name, COLOURS[place], key)
        for place, (name, (key, _, _)) in enumerate(zip(names, drawn, strict=True))
    ]
    return tuple(charts), tuple(legend)


def _told_apart(found: Sequence[Analysis]) -> list[str]:
    """Short names of studies: of model, mode, precision, device and tools what differs
    between them."""
    facts = [
        (
            _model(one),
            MODES.get(one.study.mode or "", one.study.mode),
            one.study.precision,
            about.device_text(one.study),
            about.tools(one.study.runs),
        )
        for one in found
    ]
    telling = [len(set(values)) > 1 for values in zip(*facts, strict=True)]
    names = [
        ", ".join(fact for fact, tells in zip(values, telling, strict=True) if tells and fact)
        for values in facts
    ]
    often = Counter(names)
    return [
        f"{name} {place}".strip() if often[name] > 1 or not name else name
        for place, name in enumerate(names, 1)
    ]
