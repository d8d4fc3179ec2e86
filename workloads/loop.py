"""Run a workload: warm-up, the measured steps inside the profiler's window, epochs. Fills in the record."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import fields
from itertools import count
from typing import Any

from perfctl.parsers.range_names import RANGE_PREFIX
from perfctl.parsers.records import Gap
from perfctl.workloads import data
from perfctl.workloads.annotate import Annotator
from perfctl.workloads.answers import close, finish, infer_batch, note
from perfctl.workloads.clock import Timeline
from perfctl.workloads.epochs import run_epochs
from perfctl.workloads.failure import Kept
from perfctl.workloads.layer_times import time_layers
from perfctl.workloads.ranges import span
from perfctl.workloads.record import Record
from perfctl.workloads.setup import Setup, prepare
from perfctl.workloads.shapes import Recorder
from perfctl.workloads.spec import LEAST_STEPS, Options, Workload
from perfctl.workloads.steps import Batch, step
from perfctl.workloads.window import make_window


def run(workload: Workload, options: Options, own: argparse.Namespace) -> Record:
    """Run it and write the record. Exceptions are raised again after the record was written.

    Raises WorkloadError (cannot run here), RuntimeError (from torch, such as out of memory), OSError.
    """
    record = Record(
        workload=workload.NAME,
        batch_size=options.batch_size,
        mode=options.mode,
        precision=options.precision,
        seed=options.seed,
        variant=_variant(workload, own, options),
        options=_as_given(options, own),
    )
    with Kept(record, options):
        setup = prepare(workload, options, own, record)
        _warm_up(setup, record)
        setup.memory.reset_peak()
        try:
            _measure(setup, record)
        finally:
            _keep_memory(setup, record)
        if options.layer_steps is not None:
            record.layer_times = time_layers(setup, _batches(setup, options.layer_steps), options.layer_steps)
        run_epochs(setup, record)
        record.gaps += _loss_gaps(record)
    return record


def _batches(setup: Setup, most: int) -> Iterator[Batch]:
    """Endless full batches, made beforehand."""
    if setup.parts.feed is not None:
        return setup.parts.feed.warm_up(most)
    made = data.fixed_batches(setup.parts.train_data, setup.options.batch_size, most)
    return (made[number % len(made)] for number in count())


def _warm_up(setup: Setup, record: Record) -> None:
    """The steps before the window; the first one also records the layers' operations."""
    batches = _batches(setup, setup.options.warmup)
    with Recorder(setup.parts.model) as recorder:
        step(setup, next(batches))
    record.ops = list(recorder.ops)
    if setup.options.compile:
        setup.parts.model.compile()
        _warm_on(
            setup, batches, 1
        )  # compiles for the epochs; the other steps, with hooks, compile for the measured ones
    else:
        _warm_on(setup, batches, setup.options.warmup - 1)


def _measure(setup: Setup, record: Record) -> None:
    """The measured steps. When one raises, the rows of the earlier ones are kept."""
    options, ranges = setup.options, setup.ranges
    timeline = Timeline(setup.clock)
    feed = setup.parts.feed
    batches = _batches(setup, options.steps) if feed is None else feed.batches()
    annotator = Annotator(ranges, setup.parts.model) if options.annotate != "none" else None
    inner: AbstractContextManager[Any] = annotator or nullcontext()
    steps = options.steps if options.within is None else _steps_within(setup, options.within)
    start = setup.clock.mark()
    try:
        with ExitStack() as around:
            if options.compile:  # hooks cause a recompilation: let it happen before the window
                around.enter_context(inner)
                _warm_on(setup, _batches(setup, options.warmup), options.warmup - 2)
                inner = nullcontext()
            for context in (make_window(options), span(ranges, f"{RANGE_PREFIX}window"), inner):
                around.enter_context(context)
            start = setup.clock.mark()
            for number in range(steps if feed is None else feed.steps):
                _measure_step(setup, timeline, number, batches)
            end = setup.clock.mark()
            setup.clock.wait()
        record.duration_ns = setup.clock.between_ns(start, end)
        record.gaps += annotator.gaps if annotator is not None else []
        for rest in batches if feed is not None else ():
            finish(setup, timeline, rest)
    finally:
        record.steps += timeline.rows()
        close(setup, record)


def _steps_within(setup: Setup, seconds: float) -> int:
    """How many measured steps fit into the time, estimated from one extra step."""
    setup.clock.wait()
    began = time.monotonic()
    _warm_on(setup, _batches(setup, 1), 1)
    fit = int(seconds / (time.monotonic() - began))
    return min(setup.options.steps, max(fit, LEAST_STEPS))


def _warm_on(setup: Setup, batches: Iterator[Batch], steps: int) -> None:
    for _ in range(steps):
        step(setup, next(batches))
    setup.clock.wait()


def _measure_step(setup: Setup, timeline: Timeline, number: int, batches: Iterator[Batch]) -> None:
    @contextmanager
    def phase(name: str) -> Iterator[None]:
        with span(setup.ranges, f"{RANGE_PREFIX}phase:{name}"), timeline.time(number, name):
            yield

    step_range = f"{RANGE_PREFIX}step:{number}"
    if setup.parts.feed is not None:
        with span(setup.ranges, step_range), timeline.time(number, "step"):
            inferred = infer_batch(setup, batches, phase)
        note(setup, timeline, number, "step", inferred)
        return
    with span(setup.ranges, step_range), timeline.time(number, "step"):
        with phase("data"):
            batch = next(batches)
        loss = step(setup, batch, phase)
    timeline.note(number, "step", loss)


def _keep_memory(setup: Setup, record: Record) -> None:
    setup.memory.take_peak()
    setup.memory.take("after")
    record.memory = setup.memory.figures
    record.gaps += setup.memory.gaps
    record.environment["host_peak_covers"] = setup.memory.host_peak_covers


def _loss_gaps(record: Record) -> list[Gap]:
    bad = [row for row in record.steps if row.loss is not None and not math.isfinite(row.loss)]
    return [Gap("step.loss", "unreadable", f"the loss was {row.loss}", f"{row.phase} {row.number}") for row in bad]


def _variant(workload: Workload, own: argparse.Namespace, options: Options) -> str | None:
    """Options not at their default, such as "conv2=32,128,5,1": runs that differ here have different models."""
    parser = argparse.ArgumentParser()
    workload.add_options(parser)
    beside = getattr(workload, "SAME_NETWORK", ())
    changed = {
        key: value for key, value in sorted(vars(own).items()) if key not in beside and value != parser.get_default(key)
    }
    words = (
        f"{key}={','.join(map(str, value)) if isinstance(value, tuple) else value}" for key, value in changed.items()
    )
    compiled = ("compile=True",) if options.compile else ()
    return " ".join((*words, *compiled)) or None


def _as_given(options: Options, own: argparse.Namespace) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in fields(options)} | vars(own)
