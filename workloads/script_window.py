"""Measure the steps of a script: the profiler's window, ranges and times of steps, layer ranges. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from perfctl.parsers.range_names import RANGE_PREFIX
from perfctl.workloads.annotate import Annotator
from perfctl.workloads.clock import make_clock
from perfctl.workloads.memory import MemoryWatch
from perfctl.workloads.names import Names
from perfctl.workloads.ranges import Backend, span
from perfctl.workloads.record import Record
from perfctl.workloads.script_arguments import ScriptOptions
from perfctl.workloads.script_phases import Phases
from perfctl.workloads.spec import Options
from perfctl.workloads.window import make_window, window_gaps


class MeasuredSteps:
    """The window; opened and closed at ends of steps, by the thread that runs them."""

    def __init__(
        self, options: ScriptOptions, ranges: Backend, names: Names, mine: Callable[[], bool], device: str
    ) -> None:
        self._ranges = ranges
        self._device = device
        self._options = Options(
            batch_size=options.batch_size or 1, window=options.window, trace=options.trace, device=device
        )
        self._memory = MemoryWatch(device)
        self._memory.take("before")
        self._clock = make_clock(device)
        self._mine = mine
        self._stack = ExitStack()
        self._step: Any = None
        self._began: Any = None
        self.phases = Phases(ranges, self._clock)
        self.annotator = None if options.annotate == "none" else Annotator(ranges, None, names)
        self.done = 0
        """Measured steps that ended."""

    def open(self) -> None:
        """Start measuring. Raises WorkloadError or RuntimeError when the profiler cannot be notified."""
        self._stack.enter_context(make_window(self._options))
        self._stack.enter_context(span(self._ranges, f"{RANGE_PREFIX}window"))
        self.phases.wrap(self._device == "cuda", self._mine)
        self._stack.callback(self.phases.unwrap)
        if self.annotator is not None:
            self._stack.enter_context(self.annotator)
        self._began = self._clock.mark()
        self._begin_step()

    def next_step(self) -> None:
        """End a step and begin the next. Open phases belong to the one that ended."""
        self._close_ranges()
        self._end_step()
        self._begin_step()

    def close(self, record: Record, whole: bool) -> None:
        """End measuring and fill in the record; ``whole``: the current step ended. Raises WorkloadError for the trace."""
        self._close_ranges()
        end = self._step
        if whole:
            end = self._end_step()
        else:
            self._ranges.pop()
        try:
            self._stack.close()
        finally:
            self._fill(record, end)

    def _close_ranges(self) -> None:
        if self.annotator is not None:
            self.annotator.close_ranges()
        self.phases.close_all()

    def _fill(self, record: Record, end: Any) -> None:
        rows = self.phases.rows()
        record.steps += [row for row in rows if row.number < self.done]
        record.clock = self._clock.kind
        record.duration_ns = self._clock.between_ns(self._began, end) if self.done else None
        self._memory.take_peak()
        self._memory.take("after")
        record.memory = self._memory.figures
        # Peaks are not reset: the script may print them.
        record.environment["host_peak_covers"] = record.environment["device_peak_covers"] = "whole process"
        record.gaps += self._memory.gaps + window_gaps(self._options)
        if self.annotator is not None:
            record.gaps += self.annotator.gaps

    def _begin_step(self) -> None:
        self.phases.number = self.done
        self._ranges.push(f"{RANGE_PREFIX}step:{self.done}")
        self._step = self._clock.mark()

    def _end_step(self) -> Any:
        end = self._clock.mark()
        self.phases.add_step(self._step, end)
        self._ranges.pop()
        self.done += 1
        return end


def device_in_use(weights: torch.device | None) -> str:
    """cuda for a model on a GPU, else cpu."""
    return "cuda" if weights is not None and weights.type == "cuda" else "cpu"
