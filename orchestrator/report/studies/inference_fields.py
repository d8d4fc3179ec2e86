"""Columns of inference at low batch: what a table shows of one model at one batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perfctl.orchestrator.ledger.usage.inference import InferenceLatency, InferencePoint
from perfctl.orchestrator.ledger.usage.readings import UsageShare
from perfctl.orchestrator.report.charts.inference import find_host_cores
from perfctl.orchestrator.report.numbers import format_percent, format_rate
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_table,
    count_cell,
    decimal_cell,
    missing_cell,
    name_cell,
    name_column,
    rate_cell,
    share_cell,
    size_cell,
    size_column,
    text_cell,
    text_column,
    time_cell,
)

ROWS_MAX = 3000
"""Rows of a table."""


class InferenceField(NamedTuple):
    """A column of tables with one row per model and batch size."""

    column: Column
    read: Callable[[InferencePoint], object]


def _build_timed_field(
    label: str, read: Callable[[InferenceLatency], object], **column: Any
) -> InferenceField:
    """Return a field of the timed run, which gives a dash with the reason if there is none."""

    def read_latency_of_point(point: InferencePoint) -> object:
        if point.latency is not None:
            return read(point.latency)
        return missing_cell(next(iter(point.problems), "no run timed its steps"))

    return InferenceField(Column(label, **column), read_latency_of_point)


def build_usage_cell(share: UsageShare) -> Cell:
    """Return the share; its title names the tool that measured it."""
    cell = share_cell(share.value, share.reason)
    return cell if share.value is None else replace(cell, title=share.reason)


def _build_gpu_idle_cell(point: InferencePoint) -> Cell:
    if point.gpu.value is None:
        return missing_cell(point.gpu.reason)
    idle = 1 - point.gpu.value if point.gpu_way == "kernels" else None
    return share_cell(idle, "an idle share needs kernels with start times")


def _build_host_cores_cell(point: InferencePoint) -> Cell:
    cores = find_host_cores(point)
    if cores is None:
        return missing_cell(point.uses[0].ways.host_reason)
    return Cell(f"{cores:.3g}", value=round(cores, 4))


def _build_top1_interval_cell(item: InferenceLatency) -> Cell:
    if item.too_wide:
        return Cell(
            f"needs {item.too_wide.steps_needed_text}", item.too_wide.reason, "no", value="unknown"
        )
    return text_cell(" to ".join(map(format_percent, item.top1_interval)))


def explain_missing_figure(item: InferenceLatency, figure: str) -> str:
    """Return why the run has no such figure."""
    return item.why.get(figure, "no run recorded it")


def _build_unreadable_images_cell(point: InferencePoint) -> Cell:
    """Return the number of images that could not be read, with their names in its title."""
    skipped = point.latency.figures.get("images_skipped") if point.latency is not None else None
    if skipped is None:
        return missing_cell("no run recorded it")
    return Cell(
        f"{int(skipped):,}", "; ".join(list_unreadable_images(point)) or None, value=int(skipped)
    )


def list_unreadable_images(point: InferencePoint) -> list[str]:
    """Return the names of images that could not be read, with the reasons."""
    gaps = (gap for run in point.runs[:1] for gap in run.report.gaps)
    return [gap.reason for gap in gaps if gap.quantity == "images" and gap.state == "unreadable"]


def _build_percentile_field(part: int) -> InferenceField:
    return _build_timed_field(
        f"p{part}", lambda item: time_cell(item.percentiles[part], item.why[f"p{part}"]), base="ns"
    )


def format_rate_range(item: InferenceLatency) -> str:
    """Return images per second of the slowest and the fastest step: "198 to 240"; "" if they are
    the same."""
    ends = [format_rate(item.batch * 1e9 / end) for end in sorted(item.steps, reverse=True) if end]
    return f"{ends[0]} to {ends[-1]}" if ends and ends[0] != ends[-1] else ""


def _build_figure_field(
    label: str, name: str, cell: Callable[..., Cell], note: str | None = None
) -> InferenceField:
    return _build_timed_field(
        label,
        lambda item: cell(item.figures.get(name), explain_missing_figure(item, name)),
        note=note,
    )


FIELDS = {
    field.column.label: field
    for field in (
        _build_timed_field("batches", lambda item: item.count, note="full batches that were timed"),
        *map(_build_percentile_field, (50, 95, 99)),
        _build_timed_field("longest", lambda item: item.longest, base="ns"),
        _build_timed_field(
            "p50 per image",
            lambda item: item.percentiles[50] and item.percentiles[50] / item.batch,
            base="ns",
        ),
        _build_timed_field(
            "measured by",
            lambda item: "CPU timer" if item.profiler == "none" else f"under {item.profiler}",
            style="text",
        ),
        _build_timed_field(
            "images/s",
            lambda item: rate_cell(item.images_per_second, "images/s"),
            note="of full batches / time of their steps, with loading",
        ),
        _build_timed_field(
            "slowest to fastest",
            lambda item: format_rate_range(item) or missing_cell("every step is as fast"),
            style="text",
            note="images/s of the slowest and the fastest step",
        ),
        _build_timed_field("mean step", lambda item: item.step, base="ns"),
        _build_timed_field("loading", lambda item: item.load, base="ns"),
        _build_timed_field("copies", lambda item: item.copy, base="ns"),
        _build_timed_field("compute", lambda item: item.compute, base="ns"),
        InferenceField(Column("GPU busy"), lambda point: build_usage_cell(point.gpu)),
        InferenceField(
            Column("GPU idle", note="1 - busy; only kernels give it"), _build_gpu_idle_cell
        ),
        InferenceField(
            text_column("by", "sampled: the driver's value, approximate"),
            lambda point: point.gpu_way or missing_cell(point.gpu.reason),
        ),
        InferenceField(Column("tensor cores"), lambda point: build_usage_cell(point.tensor)),
        InferenceField(
            Column("memory in use", note="highest sample / memory of the GPU"),
            lambda point: build_usage_cell(point.memory),
        ),
        InferenceField(Column("host cores busy"), _build_host_cores_cell),
        InferenceField(
            size_column("peak memory"), lambda point: size_cell(point.peak, point.peak_of)
        ),
        _build_figure_field("top-1", "top1", share_cell),
        _build_timed_field(
            "95% interval",
            _build_top1_interval_cell,
            style="text",
            note="Wilson, for this many images",
        ),
        _build_figure_field("top-5", "top5", share_cell),
        _build_figure_field("loss", "loss", decimal_cell, "mean cross-entropy in nats"),
        _build_timed_field(
            "images",
            lambda item: count_cell(item.images or None, explain_missing_figure(item, "images")),
            note="that were read and scored",
        ),
        InferenceField(
            Column("unreadable", note="not scored: a blank image took their place"),
            _build_unreadable_images_cell,
        ),
        InferenceField(text_column("status"), lambda point: "; ".join(point.problems) or "ok"),
    )
}
"""Label -> column."""


def build_inference_table(
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
            count_cell(point.batch, "the report does not state its batch size"),
            *values,
        ]
        for point, values in rows
    ]
    heads = [name_column("model"), Column("batch"), *columns]
    drawn = build_table(caption, heads, cells, limit=ROWS_MAX, is_complete=is_complete)
    return drawn if drawn is not None and len(drawn.columns) > 2 else None


def build_fields_table(
    caption: str, points: Iterable[InferencePoint], *labels: str, is_complete: bool = False
) -> Table | None:
    """Return a table of the fields with these labels, one row per point."""
    fields = [FIELDS[label] for label in labels]
    rows = ((point, [field.read(point) for field in fields]) for point in points)
    return build_inference_table(
        caption, [field.column for field in fields], rows, is_complete=is_complete
    )
