"""Steps of inference over a feed: loading, copying and computing told apart, and what the answers come to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from perfctl.parsers.percentile import PERCENTILES, needed, percentile
from perfctl.parsers.records import Gap, Summary
from perfctl.workloads.clock import Timeline
from perfctl.workloads.precision import autocast
from perfctl.workloads.record import Record
from perfctl.workloads.setup import Setup
from perfctl.workloads.steps import Batch, Phase, infer

REST = "rest"
"""Phase of the batch that is smaller than the others: outside of the window, in no figure of time."""


class Answered(NamedTuple):
    """What came out of one batch."""

    outputs: Any
    targets: Tensor


def answer(setup: Setup, batches: Iterator[Batch], phase: Phase) -> Answered:
    """One batch: waiting for its images (data), the way to the device and back (copy), the model (inference).

    It ends when the answers of a classifier are on the host, and those of other models complete on the device.
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
    setup.clock.settle()
    return Answered(outputs, targets)


def note(setup: Setup, timeline: Timeline, number: int, phase: str, answered: Answered) -> None:
    """Score the answers; loss and accuracy go to the step's row."""
    feed = setup.parts.feed
    assert feed is not None
    timeline.note(number, phase, *feed.take(answered.outputs, answered.targets))


def finish(setup: Setup, timeline: Timeline, batch: Batch) -> None:
    """The batch that is left over: scored like the others."""
    feed = setup.parts.feed
    assert feed is not None
    with timeline.time(feed.steps, REST):
        outputs: Any = infer(setup, batch[0])
        outputs = outputs.to("cpu") if isinstance(outputs, Tensor) else outputs
        setup.clock.settle()
    note(setup, timeline, feed.steps, REST, Answered(outputs, batch[1]))


def close(setup: Setup, record: Record) -> None:
    """Figures over the run, into the record: those of the feed, images per second, percentiles of a batch's time.

    Each that is not known is a gap.
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
            reason = f"{len(times)} full batches were timed; it takes {needed(percent)} to know"
            record.gaps.append(Gap(f"latency_p{percent}", "not_available", reason))
