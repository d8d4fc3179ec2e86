"""Inference over images: latency and accuracy as tables and as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.usage.inference import Latency, latencies, latency, least_watched
from perfctl.orchestrator.report.numbers import per_second, percent, time
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import (
    Column,
    Table,
    count,
    decimal_cell,
    rate,
    share_cell,
    table,
    text_cell,
    time_cell,
)
from perfctl.records.run import Run

FIGURES = ("images", "top1", "top5", "loss")
MUCH_WAITING, LONG_TAIL = 0.2, 1.5
"""Larger values are reported: the share of a step that waits for images, and p95 over
the median."""


def answered(study: Study) -> bool:
    """Whether the study is inference over images, with times of its batches."""
    return not study.foreign and any(latency(run) is not None for run in study.runs)


def inference_tables(runs: Sequence[Run]) -> tuple[Table, ...]:
    """Return latency, then parts of a step and accuracy; empty if no run is inference over
    images."""
    found = latencies(runs)
    model, tool = (
        len({getattr(item, name) for item in found}) > 1 for name in ("model", "profiler")
    )
    heads = [Column("batch"), *([Column("profiler", style="text")] if tool else [])]
    heads[:0] = [Column("model", style="code")] if model else []
    columns = [
        *heads,
        Column("batches", is_optional=True, note="timed full batches"),
        Column("images/s", note="of complete steps, including the wait for images"),
        *(
            Column(f"p{part}", base="ns", note=f"{part}% of the batches take at most this time")
            for part in (50, 95, 99)
        ),
        Column("longest", base="ns"),
    ]
    parts = [
        *heads,
        Column("loading", base="ns", note="mean wait for images in a step"),
        Column("copies", base="ns", note="mean, to the device and back"),
        Column("compute", base="ns", note="mean"),
        Column("images", is_optional=True, note="that the run read"),
        Column("top-1"),
        Column("top-5"),
        Column("loss", is_optional=True, note="mean cross-entropy in nats"),
    ]
    times, shares = [], []
    for item in found:
        head = [
            *([text_cell(item.model)] if model else []),
            item.batch,
            *([item.profiler] if tool else []),
        ]
        tail = (time_cell(item.percentiles[part], item.why[f"p{part}"]) for part in (50, 95, 99))
        times.append(
            [*head, item.count, rate(item.images_per_second, "images/s"), *tail, item.longest]
        )
        figures = {
            name: (item.figures.get(name), item.why.get(name, "not recorded")) for name in FIGURES
        }
        images, why = figures["images"]
        shares.append(
            [
                *head,
                item.load,
                item.copy,
                item.compute,
                count(None if images is None else int(images), why),
                share_cell(*figures["top1"]),
                share_cell(*figures["top5"]),
                decimal_cell(*figures["loss"]),
            ]
        )
    title = "Latency of a batch: copies and computation, images ready"
    latency_table = table(title, columns, times, tools=False)
    part_table = table("Parts of the time of a step, and accuracy", parts, shares, tools=False)
    return tuple(filter(None, (latency_table, part_table)))


def inference_findings(runs: Sequence[Run]) -> list[Finding]:
    """Throughput from the smallest to the largest batch, tails, waiting for images, accuracy; in
    this order."""
    by_model: dict[str, list[Latency]] = {}
    for item in least_watched(latencies(runs)):
        by_model.setdefault(item.model, []).append(item)
    parts = (_throughput, _tail, _waiting, _accuracy)
    return [
        Finding(f"{text}.", "inference")
        for items in by_model.values()
        for part in parts
        for text in part(items)
    ]


def _throughput(items: Sequence[Latency]) -> Iterator[str]:
    first, last = items[0], items[-1]
    median, at_end = (time(item.percentiles[50] or 0) for item in (first, last))
    rates = {item.batch: per_second(item.images_per_second) for item in items}
    text = (
        f"{first.model} has a latency of {median} at batch {first.batch} (median, without loading)"
    )
    said = f"{rates[first.batch]} images/s"
    if last is not first:
        text += f", and {at_end} at batch {last.batch}"
        said += f" at batch {first.batch}, {rates[last.batch]} at {last.batch}"
        best = max(items, key=lambda item: item.images_per_second)
        if best not in (first, last):
            said += f", and most at {best.batch}: {rates[best.batch]}"
    yield f"{text}; with loading, {said}"


def _tail(items: Sequence[Latency]) -> Iterator[str]:
    ratios = [((item.percentiles[95] or 0) / (item.percentiles[50] or 1), item) for item in items]
    ratio, worst = max(ratios, key=lambda pair: pair[0])
    if ratio >= LONG_TAIL:
        yield (
            f"The latency of {worst.model} varies at batch {worst.batch}: p95 is "
            f"{time(worst.percentiles[95] or 0)}, {ratio:.1f} times the median"
        )


def _waiting(items: Sequence[Latency]) -> Iterator[str]:
    """Of real images: made ones say nothing about reading and decoding."""
    worst = max(
        (item for item in items if not item.synthetic),
        key=lambda item: item.load_share,
        default=None,
    )
    if worst is None or worst.load_share < MUCH_WAITING:
        return
    text = (
        f"{worst.model} waits for images during {percent(worst.load_share)} of a step at batch "
        f"{worst.batch}"
    )
    if worst.workers is not None:
        now = (
            "the computing process loads them"
            if worst.workers == 0
            else f"{worst.workers} processes load them"
        )
        text += (
            f": {now}; --dataloader-workers {max(2, worst.workers * 2)} loads more of them during "
            "the computation"
        )
    yield text


def _accuracy(items: Sequence[Latency]) -> Iterator[str]:
    scored = [item for item in items if item.figures.get("top1") is not None]
    if not scored:
        return
    first = scored[0]
    top1 = [item.figures["top1"] or 0 for item in scored]
    top5 = first.figures.get("top5")
    images = int(first.figures.get("images") or 0)
    among = f", and the top-5 accuracy is {percent(top5)}" if top5 is not None else ""
    yield (f"The top-1 accuracy of {first.model} is {percent(top1[0])} on {images:,} images{among}")
    if max(top1) != min(top1) and len({item.figures.get("images") for item in scored}) == 1:
        low, high = f"{min(top1) * 100:.3f}", f"{max(top1) * 100:.3f}%"
        yield (
            f"The top-1 accuracy of {first.model} differs between batch sizes on the same images: "
            f"{low} to {high}. Different kernels round differently, but a difference of more than "
            "a few images is an error"
        )
