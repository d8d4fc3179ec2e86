"""The measured steps of a script: the profiler's window, a range and a time for each step, layer ranges. Imports torch."""

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
    """Open while steps are measured. Opened and closed at the ends of steps, by the thread that runs them."""

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
        """Measured steps that have ended."""

    def open(self) -> None:
        """Raises WorkloadError or RuntimeError when the profiler cannot be told."""
        self._stack.enter_context(make_window(self._options))
        self._stack.enter_context(span(self._ranges, f"{RANGE_PREFIX}window"))
        self.phases.wrap(self._device == "cuda", self._mine)
        self._stack.callback(self.phases.unwrap)
        if self.annotator is not None:
            self._stack.enter_context(self.annotator)
        self._began = self._clock.mark()
        self._begin_step()

    def next_step(self) -> None:
        """A step has ended, and another begins. What is still open was begun in the one that ended."""
        self._settle()
        self._end_step()
        self._begin_step()

    def close(self, record: Record, whole: bool) -> None:
        """``whole``: the step that runs has ended. Fills in steps, times, memory. Raises WorkloadError for the trace."""
        self._settle()
        end = self._step
        if whole:
            end = self._end_step()
        else:
            self._ranges.pop()
        try:
            self._stack.close()
        finally:
            self._fill(record, end)

    def _settle(self) -> None:
        if self.annotator is not None:
            self.annotator.settle()
        self.phases.settle()

    def _fill(self, record: Record, end: Any) -> None:
        rows = self.phases.rows()
        record.steps += [row for row in rows if row.number < self.done]
        record.clock = self._clock.kind
        record.duration_ns = self._clock.between_ns(self._began, end) if self.done else None
        self._memory.take_peak()
        self._memory.take("after")
        record.memory = self._memory.figures
        # Peaks are not reset: the script may print them itself.
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
    """cuda where the model is, else cpu."""
    return "cuda" if weights is not None and weights.type == "cuda" else "cpu"
