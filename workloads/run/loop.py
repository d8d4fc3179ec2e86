"""Run a workload: warm-up, the measured steps inside the profiler's window, epochs. Fills in the
record. Imports torch.

A step runs in phases, on its device and in its precision. Layers are timed with ranges that read
the clock, in extra steps after the measured ones: the measured steps have no ranges, so that
nothing slows them down; a range adds a few microseconds to its layer.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import fields
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from perfctl.records.ranges import RANGE_PREFIX
from perfctl.records.report import Gap, LayerTime, Summary
from perfctl.records.stats import (
    PERCENTILES,
    compute_percentile,
    count_values_needed_for_percentile,
)
from perfctl.workloads.data import mnist
from perfctl.workloads.interface import Workload
from perfctl.workloads.run.annotate import LayerRangeAnnotator
from perfctl.workloads.run.clock import (
    CpuWaitMeter,
    DeviceClock,
    OpenRanges,
    RangeBackend,
    StepTimeline,
    make_measured_window,
    mark_range,
)
from perfctl.workloads.run.record import WorkloadRecord, write_record_around
from perfctl.workloads.run.setup import WorkloadSetup, make_autocast, set_up_and_build_workload
from perfctl.workloads.spec import LEAST_STEPS, WorkloadOptions
from perfctl.workloads.tracing.watch import Recorder

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, on the host."""
Phase = Callable[[str], AbstractContextManager[object]]
"""Context of one phase of a step: data, copy, forward, backward, optimizer or inference."""
REST = "rest"
"""Phase of the last, smaller batch: outside of the window, and its phases are not timed."""
MODEL = "(model)"
"""Name of the model itself among its layers."""


def run_step(setup: WorkloadSetup, batch: Batch, phase: Phase = nullcontext) -> Tensor | None:
    """One training step, which returns its loss, or one inference step, which returns None."""
    if setup.options.mode == "infer":
        run_inference(setup, batch[0], phase)
        return None
    return run_training_step(setup, batch, phase)


def run_training_step(setup: WorkloadSetup, batch: Batch, phase: Phase = nullcontext) -> Tensor:
    """Forward, backward, optimizer. The loss stays on the device, to avoid waiting for it."""
    options, parts = setup.options, setup.parts
    assert parts.optimizer is not None
    with phase("copy"):
        inputs, targets = (part.to(options.device) for part in batch)
    with phase("forward"), make_autocast(options.precision, options.device):
        loss = parts.loss(parts.model(inputs), targets)
    with phase("backward"):
        setup.scaler.scale(loss).backward()
    with phase("optimizer"):
        setup.scaler.step(parts.optimizer)
        setup.scaler.update()
        parts.optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def run_inference(setup: WorkloadSetup, inputs: Tensor, phase: Phase = nullcontext) -> Any:
    """Return the model's outputs, without gradients; does not change the model's mode (train or
    eval)."""
    options = setup.options
    with torch.inference_mode():
        with phase("copy"):
            inputs = inputs.to(options.device)
        with phase("inference"), make_autocast(options.precision, options.device):
            return setup.parts.model(inputs)


def run_inference_and_wait(setup: WorkloadSetup, inputs: Tensor, phase: Phase = nullcontext) -> Any:
    """Outputs that are on the host (classifiers), or complete on the device (other models)."""
    outputs = run_inference(setup, inputs, phase)
    if isinstance(outputs, Tensor):
        with torch.inference_mode(), phase("copy"):
            outputs = outputs.to("cpu")
    setup.clock.wait_for_marks()
    return outputs


def add_image_feed_summaries(setup: WorkloadSetup, record: WorkloadRecord) -> None:
    """Add summaries to the record: those of the feed, images per second, percentiles of a
    batch's time.

    Unknown ones become gaps.
    """
    feed = setup.parts.feed
    if feed is None:
        return
    steps = [
        row.duration_ns
        for row in record.steps
        if row.phase == "step" and row.duration_ns is not None
    ]
    latency: dict[int, int] = defaultdict(int)
    for row in record.steps:
        if row.phase in ("copy", "inference"):
            latency[row.number] += row.duration_ns or 0
    rate = setup.options.batch_size * len(steps) / (sum(steps) / 1e9) if sum(steps) else None
    record.summaries += [
        *feed.summarize_counts_and_accuracy(),
        Summary("images_per_second", rate, "1/s"),
    ]
    record.gaps += feed.describe_missing_data()
    for percent in PERCENTILES:
        name, value = f"latency_p{percent}", compute_percentile(list(latency.values()), percent)
        record.summaries.append(Summary(name, value, "ns"))
        if value is None:
            reason = (
                f"{len(latency)} full batches were timed; at least "
                f"{count_values_needed_for_percentile(percent)} "
                "are needed"
            )
            record.gaps.append(Gap(name, "not_available", reason))


class TimedRanges(RangeBackend):
    """A backend of the annotator that sets a mark at both ends of each range, without waiting for
    the device."""

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._open = OpenRanges()
        self._ended: list[tuple[str, Any, Any, list[tuple[Any, Any]]]] = []
        """Name, start, end, and (start, end) of the ranges directly inside it."""

    def push(self, name: str) -> None:
        self._open.stack.append((name, self._clock.record_mark(), []))

    def pop(self) -> None:
        name, start, within = self._open.stack.pop()
        end = self._clock.record_mark()
        self._ended.append((name, start, end, within))
        if self._open.stack:
            self._open.stack[-1][2].append((start, end))

    def pop_exclusive_ns_by_name(self) -> dict[str, int]:
        """Nanoseconds per range name since the last call, without inner ranges; waits for
        the device."""
        self._clock.wait_for_marks()
        between = self._clock.measure_ns_between
        times: dict[str, int] = defaultdict(int)
        for name, start, end, within in self._ended:
            times[name] += between(start, end) - sum(between(*ends) for ends in within)
        self._ended.clear()
        return {name: max(spent, 0) for name, spent in times.items()}


def time_layers(setup: WorkloadSetup, batches: Iterator[Batch], steps: int) -> list[LayerTime]:
    """Median, minimum and maximum over ``steps`` steps of each layer and direction, in order of
    first appearance.

    An extra step comes first, in which the annotator creates its hooks.
    """
    model, ranges = setup.parts.model, TimedRanges(setup.clock)
    times: dict[str, list[int]] = defaultdict(list)
    with LayerRangeAnnotator(ranges, model):
        run_step(setup, next(batches))
        ranges.pop_exclusive_ns_by_name()
        for _ in range(steps):
            run_step(setup, next(batches))
            for name, spent in ranges.pop_exclusive_ns_by_name().items():
                times[name].append(spent)
    root = type(model).__name__
    kinds = {path: type(module).__name__ for path, module in model.named_modules()}
    rows = []
    for name, spent_ns in times.items():
        layer, _, direction = name.rpartition(":")
        kind = kinds.get(layer, "")
        if layer == root:
            kind, layer = root, layer if layer in kinds else MODEL
        median = round(statistics.median(spent_ns))
        figures = median, min(spent_ns), max(spent_ns), len(spent_ns)
        rows.append(LayerTime(layer, kind, direction, *figures))
    return rows


def train_and_test_epochs(setup: WorkloadSetup, record: WorkloadRecord) -> None:
    """Per epoch, a row "epoch" with mean loss and accuracy, and a row "test" for the test pass."""
    shuffle = torch.Generator().manual_seed(setup.options.seed)
    for number in range(setup.options.epochs):
        timeline = StepTimeline(setup.clock)
        with timeline.time_block(number, "epoch"):
            loss = _train_epoch(setup, shuffle)
        with timeline.time_block(number, "test"):
            test_loss, accuracy, dice = evaluate_on_test_data(setup)
        timeline.set_loss_and_accuracy(number, "epoch", loss, accuracy)
        timeline.set_loss_and_accuracy(number, "test", test_loss, accuracy)
        record.steps += timeline.build_step_rows()
        if setup.parts.overlap:  # mean Dice over all classes but the first (background)
            record.summaries.append(Summary(f"dice:epoch:{number}", dice, "ratio"))
        if setup.parts.scheduler is not None:
            setup.parts.scheduler.step()


def _train_epoch(setup: WorkloadSetup, shuffle: torch.Generator) -> Tensor:
    """Train on every sample once, in a new order; returns the mean loss over the samples."""
    dataset = setup.parts.train_data
    samples = mnist.count_samples(dataset)
    total = torch.zeros((), device=setup.options.device)
    setup.parts.model.train()
    for indices in torch.randperm(samples, generator=shuffle).split(setup.options.batch_size):
        total += run_training_step(setup, mnist.collate_batch(dataset, indices)) * len(indices)
    return total / samples


def evaluate_on_test_data(setup: WorkloadSetup) -> tuple[Tensor, float, float | None]:
    """Return (mean loss, accuracy 0..1, Dice 0..1 of masks) over the test data; the model's mode
    is restored.

    Accuracy counts every target, images or pixels. Dice is None when outputs are not masks.
    """
    parts, dataset, device = setup.parts, setup.parts.test_data, setup.options.device
    samples, was_training = mnist.count_samples(dataset), parts.model.training
    scored, total = 0, torch.zeros((), device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    counts = torch.zeros(3, parts.overlap, dtype=torch.int64, device=device)
    parts.model.eval()
    for indices in torch.arange(samples).split(setup.options.batch_size):
        inputs, targets = mnist.collate_batch(dataset, indices)
        targets = targets.to(device)
        outputs = run_inference(setup, inputs)
        total += parts.loss(outputs.float(), targets) * len(indices)
        classes = outputs.argmax(dim=1)
        right += (classes == targets).sum()
        scored += targets.numel()
        if parts.overlap:
            counts += count_mask_overlaps(classes, targets, parts.overlap)
    parts.model.train(was_training)
    return total / samples, int(right) / scored, compute_dice(counts) if parts.overlap else None


def count_mask_overlaps(predicted: Tensor, targets: Tensor, classes: int) -> Tensor:
    """3 x classes: pixels of each class that are predicted correctly, predicted, and in
    the target."""
    hits = predicted[predicted == targets]
    return torch.stack(
        [torch.bincount(part.flatten(), minlength=classes) for part in (hits, predicted, targets)]
    )


def compute_dice(counts: Tensor) -> float | None:
    """Mean of 2 x correct / (predicted + target) over all classes but the first; None when all
    are empty.

    Source: L. R. Dice, Ecology 26 (1945). Pixels are summed over all images before the division.
    """
    correct, predicted, target = counts[:, 1:].tolist()
    scores = [2 * a / (b + c) for a, b, c in zip(correct, predicted, target, strict=True) if b + c]
    return sum(scores) / len(scores) if scores else None


def run_workload(
    workload: Workload, options: WorkloadOptions, model_options: Any
) -> WorkloadRecord:
    """Run it and write the record. Exceptions are raised again after the record was written.

    Raises WorkloadError (cannot run here), RuntimeError (from torch, such as out of
    memory), OSError.
    """
    values = {field.name: getattr(options, field.name) for field in fields(options)} | vars(
        model_options
    )
    record = WorkloadRecord(
        workload.NAME,
        options.batch_size,
        options.mode,
        options.precision,
        options.seed,
        variant=_describe_non_default_options(workload, model_options, options),
        options=values,
    )
    with write_record_around(record, options):
        setup = set_up_and_build_workload(workload, options, model_options, record)
        _run_warmup_steps(setup, record)
        setup.memory.reset_peak()
        try:
            try:
                _run_measured_steps(setup, record)
            finally:
                setup.memory.record_peak_memory()
                record.environment["host_peak_covers"] = setup.memory.host_peak_covers
            if options.layer_steps is not None:
                record.layer_times = time_layers(
                    setup, _repeat_batches(setup, options.layer_steps), options.layer_steps
                )
            train_and_test_epochs(setup, record)
        finally:
            setup.memory.fill_record(record)
        for row in record.steps:
            if row.loss is not None and not math.isfinite(row.loss):
                reason = f"the loss was {row.loss}"
                record.gaps.append(
                    Gap("step.loss", "unreadable", reason, f"{row.phase} {row.number}")
                )
    return record


def _repeat_batches(setup: WorkloadSetup, max_batches: int) -> Iterator[Batch]:
    """Endless full batches, made beforehand."""
    if setup.parts.feed is not None:
        return setup.parts.feed.load_warmup_batches(max_batches)
    return cycle(
        mnist.make_fixed_batches(setup.parts.train_data, setup.options.batch_size, max_batches)
    )


def _run_warmup_steps(setup: WorkloadSetup, record: WorkloadRecord) -> None:
    """The steps before the window; the first one also records the layers' operations."""
    batches = _repeat_batches(setup, setup.options.warmup)
    with Recorder(setup.parts.model) as recorder:
        run_step(setup, next(batches))
    record.ops = list(recorder.ops)
    if setup.options.compile:
        # One step compiles for the epochs; the others, with hooks, compile for the measured steps.
        setup.parts.model.compile()
    _run_unmeasured_steps(setup, batches, 1 if setup.options.compile else setup.options.warmup - 1)


def _run_measured_steps(setup: WorkloadSetup, record: WorkloadRecord) -> None:
    """The measured steps. When one raises, the rows of the earlier ones are kept."""
    options, ranges, feed = setup.options, setup.ranges, setup.parts.feed
    timeline = StepTimeline(setup.clock)
    batches = _repeat_batches(setup, options.steps) if feed is None else feed.batches()
    annotator = (
        LayerRangeAnnotator(ranges, setup.parts.model) if options.annotate != "none" else None
    )
    inner: AbstractContextManager[Any] = annotator or nullcontext()
    steps = (
        options.steps if options.within is None else _estimate_steps_within(setup, options.within)
    )
    start = setup.clock.record_mark()
    try:
        with ExitStack() as contexts:
            if options.compile:  # hooks cause a recompilation: let it happen before the window
                contexts.enter_context(inner)
                _run_unmeasured_steps(
                    setup, _repeat_batches(setup, options.warmup), options.warmup - 2
                )
                inner = nullcontext()
            for context in (
                make_measured_window(options.window, options.device, options.trace),
                mark_range(ranges, f"{RANGE_PREFIX}window"),
                inner,
            ):
                contexts.enter_context(context)
            wait = CpuWaitMeter()
            start = setup.clock.record_mark()
            for number in range(steps if feed is None else feed.full_batch_count):
                _measure_step(setup, timeline, number, batches)
            end = setup.clock.record_mark()
            setup.clock.wait_for_marks()
            record.summaries += wait.summarize_cpu_wait_shares()
        record.duration_ns = setup.clock.measure_ns_between(start, end)
        record.gaps += annotator.compiled_region_gaps if annotator is not None else []
        if feed is not None:
            for images, targets in batches:
                with timeline.time_block(feed.full_batch_count, REST):
                    outputs = run_inference_and_wait(setup, images)
                timeline.set_loss_and_accuracy(
                    feed.full_batch_count, REST, *feed.score_batch(outputs, targets)
                )
    finally:
        record.steps += timeline.build_step_rows()
        add_image_feed_summaries(setup, record)


def _estimate_steps_within(setup: WorkloadSetup, seconds: float) -> int:
    """Return how many measured steps fit into the time, estimated from one extra step."""
    setup.clock.wait_for_marks()
    began = time.monotonic()
    _run_unmeasured_steps(setup, _repeat_batches(setup, 1), 1)
    fit = int(seconds / (time.monotonic() - began))
    return min(setup.options.steps, max(fit, LEAST_STEPS))


def _run_unmeasured_steps(setup: WorkloadSetup, batches: Iterator[Batch], steps: int) -> None:
    for _ in range(steps):
        run_step(setup, next(batches))
    setup.clock.wait_for_marks()


def _measure_step(
    setup: WorkloadSetup, timeline: StepTimeline, number: int, batches: Iterator[Batch]
) -> None:
    @contextmanager
    def time_phase(name: str) -> Iterator[None]:
        with (
            mark_range(setup.ranges, f"{RANGE_PREFIX}phase:{name}"),
            timeline.time_block(number, name),
        ):
            yield

    feed = setup.parts.feed
    with (
        mark_range(setup.ranges, f"{RANGE_PREFIX}step:{number}"),
        timeline.time_block(number, "step"),
    ):
        with time_phase("data"):
            batch = next(batches)
        if feed is None:
            scores: tuple[Any, ...] = (run_step(setup, batch, time_phase),)
        else:
            outputs = run_inference_and_wait(setup, batch[0], time_phase)
    if feed is not None:
        scores = feed.score_batch(outputs, batch[1])
    timeline.set_loss_and_accuracy(number, "step", *scores)


def _describe_non_default_options(
    workload: Workload, model_options: Any, options: WorkloadOptions
) -> str | None:
    """Return options not at their default, such as "conv2=32,128,5,1": runs that differ here have
    different models."""
    same_network = getattr(workload, "SAME_NETWORK", ())
    settings = [
        f"{key}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for key, value in sorted(vars(model_options).items())
        if key not in same_network and value != getattr(workload.Own, key)
    ]
    return " ".join([*settings, *(["compile=True"] if options.compile else [])]) or None
