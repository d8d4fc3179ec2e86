"""Columns of inference at low batch: what a table shows of one model at one batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perfctl.orchestrator.ledger.usage.inference import InferencePoint, Latency
from perfctl.orchestrator.ledger.usage.readings import UsageShare
from perfctl.orchestrator.report.charts.inference import host_cores_of
from perfctl.orchestrator.report.numbers import per_second, percent
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    count,
    decimal_cell,
    name_cell,
    nothing,
    rate,
    share_cell,
    size_cell,
    table,
    text_cell,
    time_cell,
)

ROWS_MAX = 3000
"""Rows of a table."""


class Field(NamedTuple):
    """A column of tables with one row per model and batch size."""

    column: Column
    read: Callable[[InferencePoint], object]


def _timed(label: str, read: Callable[[Latency], object], **column: Any) -> Field:
    """Return a field of the timed run, which gives a dash with the reason if there is none."""

    def read_point(point: InferencePoint) -> object:
        if point.latency is not None:
            return read(point.latency)
        return nothing(next(iter(point.problems), "no run timed its steps"))

    return Field(Column(label, **column), read_point)


def usage_cell(share: UsageShare) -> Cell:
    """Return the share; its title names the tool that measured it."""
    cell = share_cell(share.value, share.reason)
    return cell if share.value is None else replace(cell, title=share.reason)


def _idle_cell(point: InferencePoint) -> Cell:
    if point.gpu.value is None:
        return nothing(point.gpu.reason)
    idle = 1 - point.gpu.value if point.gpu_way == "kernels" else None
    return share_cell(idle, "an idle share needs kernels with start times")


def _host_cell(point: InferencePoint) -> Cell:
    cores = host_cores_of(point)
    if cores is None:
        return nothing(point.uses[0].ways.host_reason)
    return Cell(f"{cores:.3g}", value=round(cores, 4))


def _interval_cell(item: Latency) -> Cell:
    if item.too_wide:
        return Cell(f"needs {item.too_wide.further}", item.too_wide.reason, "no", value="unknown")
    return text_cell(" to ".join(map(percent, item.top1_interval)))


def explain_missing(item: Latency, figure: str) -> str:
    """Return why the run has no such figure."""
    return item.why.get(figure, "no run recorded it")


def _unreadable_cell(point: InferencePoint) -> Cell:
    """Return the number of images that could not be read, with their names in its title."""
    skipped = point.latency.figures.get("images_skipped") if point.latency is not None else None
    if skipped is None:
        return nothing("no run recorded it")
    return Cell(f"{int(skipped):,}", "; ".join(list_unreadable(point)) or None, value=int(skipped))


def list_unreadable(point: InferencePoint) -> list[str]:
    """Return the names of images that could not be read, with the reasons."""
    gaps = (gap for run in point.runs[:1] for gap in run.report.gaps)
    return [gap.reason for gap in gaps if gap.quantity == "images" and gap.state == "unreadable"]


def _time(part: int) -> Field:
    return _timed(
        f"p{part}",
        lambda item: time_cell(item.percentiles[part], item.why[f"p{part}"]),
        base="ns",
    )


def rate_range(item: Latency) -> str:
    """Return images per second of the slowest and the fastest step: "198 to 240"; "" if they are
    the same."""
    ends = [per_second(item.batch * 1e9 / end) for end in sorted(item.steps, reverse=True) if end]
    return f"{ends[0]} to {ends[-1]}" if ends and ends[0] != ends[-1] else ""


def _figure(label: str, name: str, cell: Callable[..., Cell], note: str | None = None) -> Field:
    return _timed(
        label, lambda item: cell(item.figures.get(name), explain_missing(item, name)), note=note
    )


FIELDS = {
    field.column.label: field
    for field in (
        _timed("batches", lambda item: item.count, note="full batches that were timed"),
        *map(_time, (50, 95, 99)),
        _timed("longest", lambda item: item.longest, base="ns"),
        _timed(
            "p50 per image",
            lambda item: item.percentiles[50] and item.percentiles[50] / item.batch,
            base="ns",
        ),
        _timed(
            "measured by",
            lambda item: "CPU timer" if item.profiler == "none" else f"under {item.profiler}",
            style="text",
        ),
        _timed(
            "images/s",
            lambda item: rate(item.images_per_second, "images/s"),
            note="of full batches / time of their steps, with loading",
        ),
        _timed(
            "slowest to fastest",
            lambda item: rate_range(item) or nothing("every step is as fast"),
            style="text",
            note="images/s of the slowest and the fastest step",
        ),
        _timed("mean step", lambda item: item.step, base="ns"),
        _timed("loading", lambda item: item.load, base="ns"),
        _timed("copies", lambda item: item.copy, base="ns"),
        _timed("compute", lambda item: item.compute, base="ns"),
        Field(Column("GPU busy"), lambda point: usage_cell(point.gpu)),
        Field(Column("GPU idle", note="1 - busy; only kernels give it"), _idle_cell),
        Field(
            Column("by", style="text", note="sampled: the driver's value, approximate"),
            lambda point: point.gpu_way or nothing(point.gpu.reason),
        ),
        Field(Column("tensor cores"), lambda point: usage_cell(point.tensor)),
        Field(
            Column("memory in use", note="highest sample / memory of the GPU"),
            lambda point: usage_cell(point.memory),
        ),
        Field(Column("host cores busy"), _host_cell),
        Field(Column("peak memory", base="B"), lambda point: size_cell(point.peak, point.peak_of)),
        _figure("top-1", "top1", share_cell),
        _timed("95% interval", _interval_cell, style="text", note="Wilson, for this many images"),
        _figure("top-5", "top5", share_cell),
        _figure("loss", "loss", decimal_cell, "mean cross-entropy in nats"),
        _timed(
            "images",
            lambda item: count(item.images or None, explain_missing(item, "images")),
            note="that were read and scored",
        ),
        Field(
            Column("unreadable", note="not scored: a blank image took their place"),
            _unreadable_cell,
        ),
        Field(Column("status", style="text"), lambda point: "; ".join(point.problems) or "ok"),
    )
}
"""Label -> column."""


def rows_table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[tuple[InferencePoint, Sequence[object]]],
    *,
    is_complete: bool = False,
) -> Table | None:
    """Return a table that begins with model and batch size; None if nothing else is known."""
    cells = [
        [
            name_cell(point.model),
            count(point.batch, "the report does not state its batch size"),
            *values,
        ]
        for point, values in rows
    ]
    heads = [Column("model", style="code"), Column("batch"), *columns]
    drawn = table(caption, heads, cells, limit=ROWS_MAX, is_complete=is_complete)
    return drawn if drawn is not None and len(drawn.columns) > 2 else None


def fields_table(
    caption: str, points: Iterable[InferencePoint], *labels: str, is_complete: bool = False
) -> Table | None:
    """Return a table of the fields with these labels, one row per point."""
    fields = [FIELDS[label] for label in labels]
    rows = ((point, [field.read(point) for field in fields]) for point in points)
    return rows_table(caption, [field.column for field in fields], rows, is_complete=is_complete)
