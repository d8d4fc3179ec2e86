"""Watch a user's script: count its steps, record one during the warm-up, open and close the window.

Before the window only the code that counts steps is active; after the window nothing is. Imports torch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from perfctl.records.ranges import RANGE_PREFIX
from perfctl.records.report import Gap
from perfctl.workloads.run.annotate import Annotator
from perfctl.workloads.run.clock import Backend, make_backend, make_clock, make_window, span, window_gaps
from perfctl.workloads.run.memory import MemoryWatch
from perfctl.workloads.run.options import as_flags
from perfctl.workloads.run.record import Record
from perfctl.workloads.script.facts import SCRIPTS_OWN, Facts, OtherProfilers, ranks
from perfctl.workloads.script.options import ScriptOptions
from perfctl.workloads.script.phases import Optimizers, Phases, call_after, is_capturing
from perfctl.workloads.script.record import Keeper, say, why_fewer
from perfctl.workloads.script.shapes import StepRecorder, shapes_in
from perfctl.workloads.script.steps import StepMarker
from perfctl.workloads.spec import Options, WorkloadError, first_line
from perfctl.workloads.tracing.composites import ModuleHooks, Region, is_wrapper, prepare_for_compiled, watch_compile
from perfctl.workloads.tracing.gradients import current_task
from perfctl.workloads.tracing.layers import Names


class MeasuredSteps:
    """The window; opened and closed at ends of steps, by the thread that runs them."""

    def __init__(
        self, options: ScriptOptions, ranges: Backend, names: Names, mine: Callable[[], bool], device: str
    ) -> None:
        self._ranges, self._mine, self._device = ranges, mine, device
        self._options = Options(options.batch_size or 1, window=options.window, trace=options.trace, device=device)
        self._memory = MemoryWatch(device)
        self._memory.take("before")
        self._clock = make_clock(device)
        self._stack = ExitStack()
        self._began: Any = None
        self._step: Any = None
        """Marks of the clock: when the first step and the current one began."""
        self.phases = Phases(ranges, self._clock)
        self.annotator = None if options.annotate == "none" else Annotator(ranges, None, names)
        self.done = 0

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
        if whole:
            end = self._end_step()
        else:
            end = self._step
            self._ranges.pop()
        try:
            self._stack.close()
        finally:
            record.steps += [row for row in self.phases.rows() if row.number < self.done]
            record.clock = self._clock.kind
            record.duration_ns = self._clock.between_ns(self._began, end) if self.done else None
            self._memory.fill(record)
            # Peaks are not reset: the script may print them.
            record.environment["host_peak_covers"] = record.environment["device_peak_covers"] = "whole process"
            record.gaps += window_gaps(self._options)
            record.gaps += self.annotator.gaps if self.annotator is not None else []

    def _close_ranges(self) -> None:
        if self.annotator is not None:
            self.annotator.close_ranges()
        self.phases.close_all()

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


UNRECORDED = 8
"""Steps after the warm-up until the window opens even though no complete step could be recorded."""


class ScriptWatch:
    """perfctl's part of a script's process once torch is imported."""

    def __init__(self, options: ScriptOptions, keeper: Keeper) -> None:
        self._options, self._keeper, self._record = options, keeper, keeper.record
        self._facts = Facts()
        self._names = Names()
        self._names.follow(self._facts.note_name)
        self._optimizers = Optimizers(
            lambda: self._in_window(lambda phases: phases.begin("optimizer")),
            lambda: self._in_window(Phases.end),
            self._optimizer_ended,
        )
        self._marker = StepMarker(options.marker, options.marker_class, self._optimizers.count)
        self._recorder = StepRecorder(self._names)
        self._others = OtherProfilers(self._other_begins)
        self._gave_way = False
        """Steps were not measured because the script was profiling."""
        self._ranges = Backend()
        self._hooks = ModuleHooks(self._before_call, self._after_call, with_kwargs=True, outermost=True)
        self._undo: list[Callable[[], None]] = []
        self._calls: list[nn.Module] = []
        self._thread: int | None = None
        """The thread whose events count: that of the first event."""
        self._window: MeasuredSteps | None = None
        self._measured = False
        self._filled = False

    def start(self) -> None:
        """Called when torch was imported, before the script continues."""
        try:
            self._ranges = make_backend(self._options.annotate)
        except WorkloadError as error:
            self._note("layer ranges", error)
        prepare_for_compiled(ScriptWatch._before_call, ScriptWatch._after_call)
        self._optimizers.start()
        self._hooks.install()
        if self._options.window == "torch":
            self._others.start()
        self._undo = [call_after(torch.autograd, "backward", self._backward_ended), watch_compile()]
        os.register_at_fork(after_in_child=self._forked)

    def end(self) -> str:
        """Note the end of the script. Returns why there are too few steps; "" for enough."""
        if self._window is not None:
            self._close(whole=False)
        self._stop()
        if not self._filled:
            self._fill()
        done = sum(row.phase == "step" for row in self._record.steps)
        if self._gave_way and done < self._options.steps:
            return f"{self._keeper.name}: {SCRIPTS_OWN}"
        return why_fewer(self._keeper.name, self._options, self._marker, done)

    # Events in the script

    def _before_call(self, module: nn.Module, arguments: Any) -> None:
        if torch.compiler.is_compiling() or not self._mine() or current_task() != -1:
            return
        self._calls.append(module)
        if is_wrapper(module):
            self._hooks.hide(module)
        if len(self._calls) > 1:
            return
        if self._window is None:
            if self._options.warmup == 0 and not self._measured:
                self._open()
                if self._window is not None and self._window.annotator is not None:
                    self._window.annotator._before(module, arguments)  # torch collected this call's hooks before
            elif _is_model(module) and not self._recorder.running and self._recorder.is_new(arguments):
                self._marker.listen()
                self._recorder.start(module, arguments)
        if self._window is not None:
            self._window.phases.begin("forward" if torch.is_grad_enabled() else "inference")

    def _after_call(self, module: nn.Module, arguments: Any, *rest: Any) -> None:
        """``rest``: (kwargs, result), or (None,) after an exception."""
        if torch.compiler.is_compiling() or not self._mine() or all(running is not module for running in self._calls):
            return
        while self._calls.pop() is not module:
            pass
        if not self._calls:
            if self._window is not None:
                self._window.phases.close_all()
            shapes = tuple(shapes_in((arguments, rest[0])))
            self._facts.note_call(module, shapes, None if self._window is None else self._window.done)
            if _is_model(module):
                self._recorder.note_call(shapes)
        ends = self._marker.module_called(type(module).__name__)
        if not self._calls and _is_model(module):
            ends = self._marker.model_called(id(module)) or ends
        if ends:
            self._step_ended()

    def _in_window(self, then: Callable[[Phases], None]) -> None:
        if self._window is not None and self._mine():
            then(self._window.phases)

    def _optimizer_ended(self, source: int, name: str) -> None:
        if not self._mine():
            return
        self._facts.trained = True
        if self._marker.optimizer_stepped(source, name):
            self._step_ended()

    def _backward_ended(self, *_: object) -> None:
        self._facts.trained = True
        if self._marker.ends_with_backward and self._window is not None:
            self._window.phases.close_all()
        if self._mine() and self._marker.backward_ended():
            self._step_ended()

    def _other_begins(self) -> None:
        if self._window is not None:
            self._gave_way = True
            self._close(whole=False)

    # Reactions

    def _step_ended(self) -> None:
        """The only place that opens the window, advances it to the next step, and closes it."""
        if is_capturing():
            return
        self._recorder.step_ended(self._marker.is_whole, measured=self._window is not None)
        if self._window is None:
            if self._measured:
                self._finish()
                return
            late = self._marker.steps - self._options.warmup
            if late >= UNRECORDED or (late >= 0 and not self._recorder.wanted):
                self._open()
            elif self._recorder.wanted and not self._marker.calls:
                self._marker.listen()  # a script without modules: nothing else shows the start of a step
                self._recorder.start()
        elif self._window.done + 1 < self._options.steps:
            self._window.next_step()
        else:
            self._close(whole=True)

    def _open(self) -> None:
        self._recorder.stop()
        if self._others.running:
            self._gave_way = True
            return
        self._marker.freeze()
        weights = self._facts.device
        device = "cuda" if weights is not None and weights.type == "cuda" else "cpu"
        try:
            window = MeasuredSteps(self._options, self._ranges, self._names, self._mine, device)
            with self._others.ours():
                window.open()
            self._window = window
        except (RuntimeError, OSError) as error:
            self._measured = True
            self._note(f"window:{self._options.window}", error)

    def _close(self, whole: bool) -> None:
        window, self._window = self._window, None
        self._measured = True
        if window is None:
            return
        try:
            with self._others.ours():
                window.close(self._record, whole)
        except (RuntimeError, OSError) as error:
            self._note(f"window:{self._options.window}", error)
        if whole:
            self._finish()

    def _finish(self) -> None:
        if not self._filled and not self._recorder.is_waiting():
            self._stop()
            self._fill()
            self._keeper.judge(None, "")
            self._keeper.write()

    def _fill(self) -> None:
        self._filled = True
        record = self._record
        self._recorder.fill(record)
        record.environment |= {"step_ends_with": self._marker.in_words()} | ranks()
        self._facts.fill(record)

    def _stop(self) -> None:
        self._recorder.stop()
        self._optimizers.stop()
        while self._undo:
            self._undo.pop()()
        self._hooks.remove()
        self._others.stop()

    def _forked(self) -> None:
        """Do not watch a forked child (a DataLoader's worker)."""
        if self._window is not None:
            self._window.phases.unwrap()
        self._window, self._measured = None, True
        self._stop()

    def _mine(self) -> bool:
        """Whether this is the thread that trains: that of the first event."""
        here = threading.get_ident()
        self._thread = self._thread or here
        return self._thread == here

    def _note(self, quantity: str, error: Exception) -> None:
        reason = as_flags(first_line(error))
        self._record.gaps.append(Gap(quantity, "not_available", reason))
        say(reason)


def _is_model(module: nn.Module) -> bool:
    """Whether its call counts as one of a model: not for a loss; yes for a compiled function, which may be one."""
    return next(module.parameters(), None) is not None or isinstance(module, Region)
