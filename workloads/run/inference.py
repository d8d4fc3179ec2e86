"""Inference steps over a feed, with times for loading, copying and computing, and scores of the outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from perfctl.records.report import Gap, Summary
from perfctl.records.stats import PERCENTILES, needed, percentile
from perfctl.workloads.run.clock import Timeline
from perfctl.workloads.run.record import Record
from perfctl.workloads.run.setup import Setup, autocast
from perfctl.workloads.run.step import Batch, Phase, infer

REST = "rest"
"""Phase of the last, smaller batch: outside of the window, and not timed."""


class Inferred(NamedTuple):
    """The outputs and targets of one batch."""

    outputs: Any
    targets: Tensor


def infer_batch(setup: Setup, batches: Iterator[Batch], phase: Phase) -> Inferred:
    """One batch, in phases: waiting for images (data), to the device and back (copy), the model (inference).

    It ends when the outputs are on the host (classifiers) or complete on the device (other models).
    """
    options = setup.options
    with phase("data"):
        inputs, targets = next(batches)
    with torch.inference_mode():
        with phase("copy"):
            inputs = inputs.to(options.device)
        with phase("inference"), autocast(options.precision, options.device):
            outputs: Any = setup.parts.model(inputs)
        if isinstance(outputs, Tensor):
            with phase("copy"):
                outputs = outputs.to("cpu")
    setup.clock.wait()
    return Inferred(outputs, targets)


def note(setup: Setup, timeline: Timeline, number: int, phase: str, inferred: Inferred) -> None:
    """Score the outputs; loss and accuracy go into the step's row."""
    feed = setup.parts.feed
    assert feed is not None
    timeline.note(number, phase, *feed.take(inferred.outputs, inferred.targets))


def finish(setup: Setup, timeline: Timeline, batch: Batch) -> None:
    """Run and score the last, smaller batch."""
    feed = setup.parts.feed
    assert feed is not None
    with timeline.time(feed.steps, REST):
        outputs: Any = infer(setup, batch[0])
        outputs = outputs.to("cpu") if isinstance(outputs, Tensor) else outputs
        setup.clock.wait()
    note(setup, timeline, feed.steps, REST, Inferred(outputs, batch[1]))


def close(setup: Setup, record: Record) -> None:
    """Add summaries to the record: those of the feed, images per second, percentiles of a batch's time.

    Unknown ones become gaps.
    """
    feed = setup.parts.feed
    if feed is None:
        return
    steps = [row.duration_ns for row in record.steps if row.phase == "step" and row.duration_ns is not None]
    latency: dict[int, int] = defaultdict(int)
    for row in record.steps:
        if row.phase in ("copy", "inference"):
            latency[row.number] += row.duration_ns or 0
    times = list(latency.values())
    rate = setup.options.batch_size * len(steps) / (sum(steps) / 1e9) if sum(steps) else None
    found = {f"latency_p{percent}": percentile(times, percent) for percent in PERCENTILES}
    record.summaries += feed.summaries()
    record.summaries.append(Summary("images_per_second", rate, "1/s"))
    record.summaries += [Summary(name, value, "ns") for name, value in found.items()]
    record.gaps += feed.gaps()
    for percent in PERCENTILES:
        if found[f"latency_p{percent}"] is None:
            reason = f"{len(times)} full batches were timed; at least {needed(percent)} are needed"
            record.gaps.append(Gap(f"latency_p{percent}", "not_available", reason))
