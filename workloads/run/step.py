"""Run one step in phases, on its device and in its precision; score what inference gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from perfctl.records.report import Gap, Summary
from perfctl.records.stats import PERCENTILES, needed, percentile
from perfctl.workloads.run.clock import Timeline
from perfctl.workloads.run.record import Record
from perfctl.workloads.run.setup import Setup, autocast

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, on the host."""
Phase = Callable[[str], AbstractContextManager[None]]
"""Context of one phase of a step: data, copy, forward, backward, optimizer or inference."""
REST = "rest"
"""Phase of the last, smaller batch: outside of the window, and its phases are not timed."""


def unmarked(name: str) -> AbstractContextManager[None]:
    """A phase without ranges or times."""
    return nullcontext()


def step(setup: Setup, batch: Batch, phase: Phase = unmarked) -> Tensor | None:
    """One training step, which returns its loss, or one inference step, which returns None."""
    if setup.options.mode == "infer":
        infer(setup, batch[0], phase)
        return None
    return train_step(setup, batch, phase)


def train_step(setup: Setup, batch: Batch, phase: Phase = unmarked) -> Tensor:
    """Forward, backward, optimizer. The loss stays on the device, to avoid waiting for it."""
    options, parts = setup.options, setup.parts
    assert parts.optimizer is not None
    with phase("copy"):
        inputs, targets = (part.to(options.device) for part in batch)
    with phase("forward"), autocast(options.precision, options.device):
        loss = parts.loss(parts.model(inputs), targets)
    with phase("backward"):
        setup.scaler.scale(loss).backward()
    with phase("optimizer"):
        setup.scaler.step(parts.optimizer)
        setup.scaler.update()
        parts.optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def infer(setup: Setup, inputs: Tensor, phase: Phase = unmarked) -> Any:
    """The model's outputs, without gradients; does not change the model's mode (train or eval)."""
    options = setup.options
    with torch.inference_mode():
        with phase("copy"):
            inputs = inputs.to(options.device)
        with phase("inference"), autocast(options.precision, options.device):
            return setup.parts.model(inputs)


def infer_fully(setup: Setup, inputs: Tensor, phase: Phase = unmarked) -> Any:
    """Outputs that are on the host (classifiers), or complete on the device (other models)."""
    outputs = infer(setup, inputs, phase)
    if isinstance(outputs, Tensor):
        with torch.inference_mode(), phase("copy"):
            outputs = outputs.to("cpu")
    setup.clock.wait()
    return outputs


def finish(setup: Setup, timeline: Timeline, batch: Batch) -> None:
    feed = setup.parts.feed
    assert feed is not None
    with timeline.time(feed.steps, REST):
        outputs = infer_fully(setup, batch[0])
    timeline.note(feed.steps, REST, *feed.take(outputs, batch[1]))


def summarise(setup: Setup, record: Record) -> None:
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
    rate = setup.options.batch_size * len(steps) / (sum(steps) / 1e9) if sum(steps) else None
    record.summaries += [*feed.summaries(), Summary("images_per_second", rate, "1/s")]
    record.gaps += feed.gaps()
    for percent in PERCENTILES:
        name, value = f"latency_p{percent}", percentile(list(latency.values()), percent)
        record.summaries.append(Summary(name, value, "ns"))
        if value is None:
            reason = f"{len(latency)} full batches were timed; at least {needed(percent)} are needed"
            record.gaps.append(Gap(name, "not_available", reason))
