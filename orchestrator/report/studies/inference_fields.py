"""Inference at low batch: the columns of its tables, a row for a model at a batch size, and
sentences about each quantity that compare the models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perfctl.orchestrator.compare.sides import explain_cpu_contention
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.usage.inference import (
    PAYS,
    InferenceLatency,
    InferencePoint,
    ModelBusyBatch,
    compute_image_inference_latency,
    find_throughput_saturation_batch,
    list_image_inference_latencies,
    pick_least_slowed_latency_per_batch,
)
from perfctl.orchestrator.ledger.usage.readings import BUSY, UsageShare
from perfctl.orchestrator.report.charts.inference import find_busy_host_cores
from perfctl.orchestrator.report.numbers import format_percent, format_rate, format_time
from perfctl.orchestrator.report.page.records import LONGEST, Finding
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_table,
    count_cell,
    four_decimals_cell,
    missing_cell,
    name_column,
    rate_cell,
    share_cell,
    size_cell,
    size_column,
    text_cell,
    text_column,
    time_cell,
)
from perfctl.orchestrator.statistics import (
    FEWEST_STEPS,
    RatioInterval,
    UntestedRatio,
    compute_b_over_a_interval,
    group_by,
)
from perfctl.records.run import Run

ROWS_MAX = 3000
"""Rows of a table."""
UNEVEN_MIN = 1.5
"""Smallest p95 / median that is reported as an uneven latency."""
WAITING_MIN = 0.2
"""Smallest share of a step that is reported as waiting for images."""
BUSY_WAYS = {"kernels": "its kernels", "sampled": "sampling", "DLProf": "DLProf's summary"}
Timed = Mapping[str, Sequence[InferenceLatency]]
"""Model -> its timed batch sizes, ascending."""


class InferenceField(NamedTuple):
    """A column of tables with one row per model and batch size."""

    column: Column
    read: Callable[[InferencePoint], object]


def _build_latency_field(
    label: str, read_value: Callable[[InferenceLatency], object], **column: Any
) -> InferenceField:
    """Return a field of the timed run, which gives a dash with the reason if there is none."""

    def read_latency_of_point(point: InferencePoint) -> object:
        if point.latency is not None:
            return read_value(point.latency)
        return missing_cell(next(iter(point.problems), "no run timed its steps"))

    return InferenceField(Column(label, **column), read_latency_of_point)


def build_usage_share_cell(share: UsageShare) -> Cell:
    """Return the share; its title names the tool that measured it."""
    cell = share_cell(share.value, share.reason)
    return cell if share.value is None else replace(cell, title=share.reason)


def _build_gpu_idle_cell(point: InferencePoint) -> Cell:
    if point.gpu.value is None:
        return missing_cell(point.gpu.reason)
    idle = 1 - point.gpu.value if point.gpu_way == "kernels" else None
    return share_cell(idle, "an idle share needs kernels with start times")


def _build_host_cores_cell(point: InferencePoint) -> Cell:
    cores = find_busy_host_cores(point)
    if cores is None:
        return missing_cell(point.uses[0].utilization_by_source.host_reason)
    return Cell(f"{cores:.3g}", value=round(cores, 4))


def _build_top1_interval_cell(item: InferenceLatency) -> Cell:
    if item.top1_interval_too_wide:
        return Cell(
            f"needs {item.top1_interval_too_wide.additional_values_text}",
            item.top1_interval_too_wide.reason,
            "no",
            value="unknown",
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


def _build_percentile_field(percentile: int) -> InferenceField:
    return _build_latency_field(
        f"p{percentile}",
        lambda item: time_cell(item.percentiles[percentile], item.why[f"p{percentile}"]),
        base="ns",
    )


def format_images_per_second_range(item: InferenceLatency) -> str:
    """Return images per second of the slowest and the fastest step: "198 to 240"; "" if they are
    the same."""
    ends = [format_rate(item.batch * 1e9 / end) for end in sorted(item.steps, reverse=True) if end]
    return f"{ends[0]} to {ends[-1]}" if ends and ends[0] != ends[-1] else ""


def _build_recorded_figure_field(
    label: str, figure_key: str, make_cell: Callable[..., Cell], note: str | None = None
) -> InferenceField:
    return _build_latency_field(
        label,
        lambda item: make_cell(
            item.figures.get(figure_key), explain_missing_figure(item, figure_key)
        ),
        note=note,
    )


FIELDS = {
    field.column.label: field
    for field in (
        _build_latency_field(
            "batches", lambda item: item.count, note="full batches that were timed"
        ),
        *map(_build_percentile_field, (50, 95, 99)),
        _build_latency_field("longest", lambda item: item.longest, base="ns"),
        _build_latency_field(
            "p50 per image",
            lambda item: item.percentiles[50] and item.percentiles[50] / item.batch,
            base="ns",
        ),
        _build_latency_field(
            "measured by",
            lambda item: "CPU timer" if item.profiler == "none" else f"under {item.profiler}",
            style="text",
        ),
        _build_latency_field(
            "images/s",
            lambda item: rate_cell(item.images_per_second, "images/s"),
            note="of full batches / time of their steps, with loading",
        ),
        _build_latency_field(
            "slowest to fastest",
            lambda item: (
                format_images_per_second_range(item) or missing_cell("every step is as fast")
            ),
            style="text",
            note="images/s of the slowest and the fastest step",
        ),
        _build_latency_field("mean step", lambda item: item.step, base="ns"),
        _build_latency_field("loading", lambda item: item.load, base="ns"),
        _build_latency_field("copies", lambda item: item.copy, base="ns"),
        _build_latency_field("compute", lambda item: item.compute, base="ns"),
        InferenceField(Column("GPU busy"), lambda point: build_usage_share_cell(point.gpu)),
        InferenceField(
            Column("GPU idle", note="1 - busy; only kernels give it"), _build_gpu_idle_cell
        ),
        InferenceField(
            text_column("by", "sampled: the driver's value, approximate"),
            lambda point: point.gpu_way or missing_cell(point.gpu.reason),
        ),
        InferenceField(Column("tensor cores"), lambda point: build_usage_share_cell(point.tensor)),
        InferenceField(
            Column("memory in use", note="highest sample / memory of the GPU"),
            lambda point: build_usage_share_cell(point.memory),
        ),
        InferenceField(Column("host cores busy"), _build_host_cores_cell),
        InferenceField(
            size_column("peak memory"), lambda point: size_cell(point.peak, point.peak_of)
        ),
        _build_recorded_figure_field("top-1", "top1", share_cell),
        _build_latency_field(
            "95% interval",
            _build_top1_interval_cell,
            style="text",
            note="Wilson, for this many images",
        ),
        _build_recorded_figure_field("top-5", "top5", share_cell),
        _build_recorded_figure_field(
            "loss", "loss", four_decimals_cell, "mean cross-entropy in nats"
        ),
        _build_latency_field(
            "images",
            lambda item: count_cell(
                item.scored_images or None, explain_missing_figure(item, "images")
            ),
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
    keep_empty_columns: bool = False,
) -> Table | None:
    """Return a table that begins with model and batch size; None if nothing else is known."""
    cells = [
        [
            point.model,
            count_cell(point.batch, "the report does not state its batch size"),
            *values,
        ]
        for point, values in rows
    ]
    heads = [name_column("model"), Column("batch"), *columns]
    drawn = build_table(
        caption, heads, cells, max_rows=ROWS_MAX, keep_empty_columns=keep_empty_columns
    )
    return drawn if drawn is not None and len(drawn.columns) > 2 else None


def build_inference_fields_table(
    caption: str, points: Iterable[InferencePoint], *labels: str, keep_empty_columns: bool = False
) -> Table | None:
    """Return a table of the fields with these labels, one row per point."""
    fields = [FIELDS[label] for label in labels]
    rows = ((point, [field.read(point) for field in fields]) for point in points)
    return build_inference_table(
        caption, [field.column for field in fields], rows, keep_empty_columns=keep_empty_columns
    )


def is_timed_image_inference(study: Study) -> bool:
    """Return whether the study is inference over images, with times of its batches."""
    return not study.is_foreign and any(
        compute_image_inference_latency(run) is not None for run in study.runs
    )


def list_inference_findings(runs: Iterable[Run]) -> list[Finding]:
    """Return the findings of all quantities that the steps of the runs give; empty if no run is
    inference over images."""
    runs = list(runs)
    timed = group_by(
        pick_least_slowed_latency_per_batch(list_image_inference_latencies(runs)),
        lambda item: item.model,
    )
    texts = (
        *judge_unless_cpu_was_busy(describe_throughput, timed, runs),
        *judge_unless_cpu_was_busy(describe_latency, timed, runs),
        *describe_accuracy(timed),
        *describe_unreadable_images(timed),
    )
    return [Finding(text, "inference") for text in dict.fromkeys(texts)]


def judge_unless_cpu_was_busy(
    judge: Callable[[Timed], Iterator[str]], timed: Timed, runs: Iterable[Run]
) -> Iterator[str]:
    """Yield what ``judge`` says of the times, unless other programs kept the CPU busy."""
    busy = explain_cpu_contention(runs)
    if busy is None:
        yield from judge(timed)
    elif timed:
        yield f"Times of the models cannot be compared: {busy}."


def join_as_many_facts_as_fit(lead: str, facts: Sequence[str]) -> Iterator[str]:
    """Yield one sentence with as many models as fit; nothing without facts."""
    for number in range(len(facts), 0, -1):
        ending = " and others" if number < len(facts) else ""
        text = f"{lead} {'; '.join(facts[:number])}{ending}."
        if len(text) <= LONGEST or number == 1:
            yield text
            return


def describe_throughput(timed: Timed) -> Iterator[str]:
    """Yield the fastest model, the most images per second of each, the batch size from which a
    larger one hardly pays, and what waits for images."""
    best = {
        model: max(items, key=lambda item: item.images_per_second) for model, items in timed.items()
    }
    fastest = sorted(best.items(), key=lambda pair: -pair[1].images_per_second)
    if len(fastest) > 1:
        yield _compare_two_fastest_models(*fastest[:2])
    most, pays, waits, workers = [], [], [], 0
    for model, items in timed.items():
        rates = {item.batch: item.images_per_second for item in items}
        top, last = best[model].batch, max(rates)
        details = []
        if steps := format_images_per_second_range(best[model]):
            details.append(f"{steps} in {best[model].count} batches")
        if top != min(rates):
            details.append(f"{rates[top] / rates[min(rates)]:.1f}x batch {min(rates)}")
        ending = f" ({', '.join(details)})" if details else ""
        most.append(f"{model} {format_rate(rates[top])} at batch {top}{ending}")
        if len(rates) > 1:
            since = find_throughput_saturation_batch(rates)
            pays.append(f"{model} none up to {last}" if since == last else f"{model} {since}")
        real = [item for item in items if not item.synthetic]
        worst = max(real, key=lambda item: item.data_load_share, default=None)
        if worst is not None and worst.data_load_share >= WAITING_MIN:
            waits.append(f"{model} {format_percent(worst.data_load_share)} at batch {worst.batch}")
            workers = max(workers, 2, (worst.workers or 0) * 2)
    yield from join_as_many_facts_as_fit("The most images/s are:", most)
    share = f"under {PAYS * 100:.0f}%"
    yield from join_as_many_facts_as_fit(
        f"A larger batch gives {share} more images/s from these batch sizes on:", pays
    )
    lead = f"Steps wait for images (--dataloader-workers {workers} loads more at once):"
    yield from join_as_many_facts_as_fit(lead, waits)


def _compare_two_fastest_models(
    first: tuple[str, InferenceLatency], second: tuple[str, InferenceLatency]
) -> str:
    (model, best), (other_model, other) = first, second
    rate, other_rate = (
        f"{format_rate(item.images_per_second)} images/s at batch {item.batch}"
        for item in (best, other)
    )
    fewest = min(best.count, other.count)
    result = compute_b_over_a_interval(
        *([[step / item.batch for step in item.steps]] for item in (best, other))
    )
    if isinstance(result, RatioInterval) and result.low <= 1 <= result.high:
        pair = f"{model} from {other_model}"
        return f"perfctl cannot distinguish {pair}: at best {rate} and {other_rate}."
    if isinstance(result, UntestedRatio) and fewest < FEWEST_STEPS:
        return (
            f"{model} was the fastest ({rate}; {other_model} {other_rate}), but {fewest} timed "
            "batches are too few to be sure."
        )
    factor = format_times_as_many(best.images_per_second / other.images_per_second)
    return f"{model} is the fastest: {rate}, {factor} {other_model} at its best ({other_rate})."


def format_times_as_many(factor: float) -> str:
    """Return "2.8 times as many as", or "about as many as"."""
    return "about as many as" if factor < 1.05 else f"{factor:.1f} times as many as"


def describe_latency(timed: Timed) -> Iterator[str]:
    """Yield the median latency of each model, and the most uneven one."""
    medians, uneven = [], []
    for model, items in timed.items():
        ends = (items[0], *items[1:][-1:])
        medians.append(f"{model} {', '.join(map(_describe_median_latency, ends))}")
        for item in items:
            middle, high = item.percentiles[50], item.percentiles[95]
            if middle and high and high / middle >= UNEVEN_MIN:
                uneven.append(
                    (high / middle, f"{model} at batch {item.batch}: p95 is {format_time(high)}")
                )
    yield from join_as_many_facts_as_fit("The median latency is:", medians)
    if uneven:
        factor, subject = max(uneven)
        ending = "; others vary too" if uneven[1:] else ""
        yield f"The latency varies most for {subject}, {factor:.1f} times the median{ending}."


def _describe_median_latency(item: InferenceLatency) -> str:
    """Return "51.0 ms at batch 5 (p95 56.0 ms, 40 batches)"; without a p95 the longest."""
    high = item.percentiles[95]
    end = f"longest {format_time(item.longest)}" if high is None else f"p95 {format_time(high)}"
    median = format_time(item.percentiles[50] or 0)
    return f"{median} at batch {item.batch} ({end}, {item.count} batches)"


def describe_gpu_busy_batches(
    points: Sequence[InferencePoint], busy: Sequence[ModelBusyBatch]
) -> Iterator[str]:
    """Yield the batch size from which on the GPU is busy, by each way that shows it."""
    for way, how in BUSY_WAYS.items():
        facts, gpus = [], 1
        for item in (item for item in busy if item.way == way):
            batch, share = item.measured[-1]
            only = ", the only one" if len(item.measured) == 1 else ""
            none = f"none ({format_percent(share)} at {batch}{only})"
            facts.append(f"{item.model} {none if only or not item.batch else item.batch}")
            gpus = max(gpus, *(p.gpu.gpus for p in points if p.model == item.model))
        mean = f" (mean of {gpus})" if gpus > 1 else ""
        lead = f"By {how}, the GPU{mean} is busy ({BUSY * 100:.0f}% or more) from batch:"
        yield from join_as_many_facts_as_fit(lead, facts)


def describe_accuracy(timed: Timed) -> Iterator[str]:
    """Yield top-1 and top-5 of each model, and whether batch sizes differ on the same images."""
    facts, differing = [], []
    for model, items in timed.items():
        scored = [item for item in items if item.top1 is not None]
        if not scored:
            continue
        first, top5 = scored[0], scored[0].figures.get("top5")
        low, high = first.top1_interval
        ends = (
            "interval unknown"
            if first.top1_interval_too_wide
            else f"{format_percent(low)} to {format_percent(high)}"
        )
        also = f", top-5 {format_percent(top5)}" if top5 is not None else ""
        facts.append(
            f"{model} {format_percent(first.top1 or 0)} ({ends}) of {first.scored_images:,} "
            f"images{also}"
        )
        kinds = {(item.top1, item.scored_images) for item in scored}
        if len(kinds) > 1 and len({images for _, images in kinds}) == 1:
            differing.append(model)
    yield from join_as_many_facts_as_fit("The top-1 accuracy is:", facts)
    lead = (
        "Top-1 differs between batch sizes on the same images, because kernels round differently:"
    )
    yield from join_as_many_facts_as_fit(lead, differing)


def describe_unreadable_images(timed: Timed) -> Iterator[str]:
    """Yield how many images could not be read."""
    skipped = [
        int(item.figures.get("images_skipped") or 0) for items in timed.values() for item in items
    ]
    if most := max(skipped, default=0):
        images = "1 image" if most == 1 else f"{most:,} images"
        yield f"{images} could not be read and did not count; the last table names the files."
