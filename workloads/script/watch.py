"""Watch a user's script: count its steps, record one during the warm-up, open and close the window.

Before the window only the code that counts steps is active; after the window nothing is.
Imports torch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial, wraps
from typing import Any

import torch
from torch import nn

from perfctl.records.ranges import RANGE_PREFIX
from perfctl.records.report import Gap
from perfctl.workloads.run.annotate import LayerRangeAnnotator
from perfctl.workloads.run.clock import (
    CpuWaitMeter,
    OwnRanges,
    RangeBackend,
    explain_unusable_window,
    make_device_clock,
    make_measured_window,
    make_range_backend,
)
from perfctl.workloads.run.memory import MemoryWatch
from perfctl.workloads.run.options import replace_fields_by_flags
from perfctl.workloads.run.record import WorkloadRecord
from perfctl.workloads.script.counting import LeadThread, SampleCounter, StepEndDetector
from perfctl.workloads.script.facts import (
    SCRIPTS_OWN,
    ScriptFacts,
    ScriptProfilerWatch,
    read_rank_and_world_size,
)
from perfctl.workloads.script.graphs import GraphCaptureWatch
from perfctl.workloads.script.options import ScriptOptions
from perfctl.workloads.script.phases import OptimizerWatch, PhaseRanges
from perfctl.workloads.script.record import ScriptRecordWriter, explain_fewer_steps, print_to_stderr
from perfctl.workloads.script.shapes import StepShapeRecorder, list_tensor_shapes
from perfctl.workloads.spec import (
    START_VARIABLE,
    STOPPED_AFTER,
    WorkloadError,
    get_first_error_line,
)
from perfctl.workloads.tracing.composites import (
    CompiledRegion,
    GlobalModuleHooks,
    exclude_hooks_from_compilation,
    is_torch_compile_wrapper,
    patch_compile_to_wrap_regions,
)
from perfctl.workloads.tracing.gradients import iterate_tensors
from perfctl.workloads.tracing.layers import ModuleNames
from perfctl.workloads.tracing.versions import (
    current_task,
    is_capturing_cuda_graph,
    is_compiling,
    patch_to_call_after,
    track_backward_passes,
)


class MeasuredSteps:
    """The window; opened and closed at ends of steps, by the thread that runs them."""

    def __init__(
        self,
        options: ScriptOptions,
        ranges: RangeBackend,
        names: ModuleNames,
        lead: LeadThread,
        device: str,
    ) -> None:
        self._ranges, self._lead, self._device = OwnRanges(ranges), lead, device
        self._make_window = partial(
            make_measured_window,
            options.window,
            device,
            options.trace,
            lead.is_multithreaded_or_not_main or options.duration is not None,
        )
        self._gaps = explain_unusable_window(options.window, device)
        self._memory = MemoryWatch(device)
        self._memory.record_memory_amounts("before")
        self._clock = make_device_clock(device)
        self._stack = ExitStack()
        self._began: Any = None
        self._step: Any = None
        """Marks of the clock: when the first step and the current one began."""
        self.phases = PhaseRanges(self._ranges, self._clock)
        self.annotator = (
            None if options.annotate == "none" else LayerRangeAnnotator(ranges, None, names)
        )
        self.done = 0

    def start_measuring(self) -> None:
        """Start measuring. Raises WorkloadError or RuntimeError when the profiler cannot
        be notified."""
        self._stack.enter_context(self._make_window())
        self._ranges.push(_WINDOW)
        self._stack.callback(self._ranges.pop)
        self.phases.wrap_torch_functions_in_phases(
            self._device == "cuda", self._lead.is_or_becomes_lead_thread
        )
        self._stack.callback(self.phases.unwrap_torch)
        if self.annotator is not None:
            self._stack.enter_context(self.annotator)
        self._wait = CpuWaitMeter()
        self._began = self._clock.record_mark()
        self._begin_step()

    def continue_in_this_thread(self, was_idle: bool) -> None:
        """The thread that ran the steps has ended, or ``was_idle``: then its step did not, and
        begins anew in this one."""
        self.phases.close_open_phases()
        self._ranges.push(_WINDOW)
        if was_idle:
            self._begin_step()
        else:
            self._ranges.push(f"{RANGE_PREFIX}step:{self.done}")

    def end_step_and_begin_next(self) -> None:
        """End a step and begin the next. Open phases belong to the one that ended."""
        self._close_leftover_layers_and_phases()
        self._end_step()
        self._begin_step()

    def finish_measuring(self, record: WorkloadRecord, is_complete: bool) -> None:
        """End measuring and fill in the record; ``is_complete``: the current step ended. Raises
        WorkloadError for the trace."""
        self._close_leftover_layers_and_phases()
        if is_complete:
            end = self._end_step()
        else:
            end = self._step
            self._ranges.pop()
        waited = self._wait.summarize_cpu_wait_shares() if self.done else []
        try:
            self._stack.close()
        finally:
            record.steps += [
                row for row in self.phases.build_phase_rows() if row.number < self.done
            ]
            record.summaries += waited
            record.clock = self._clock.kind
            record.duration_ns = (
                self._clock.measure_ns_between(self._began, end) if self.done else None
            )
            self._memory.record_peak_memory()
            self._memory.fill_record(record)
            # Peaks are not reset: the script may print them.
            record.environment["host_peak_covers"] = record.environment["device_peak_covers"] = (
                "whole process"
            )
            record.gaps += self._gaps
            record.gaps += self.annotator.compiled_region_gaps if self.annotator is not None else []

    def _close_leftover_layers_and_phases(self) -> None:
        if self.annotator is not None:
            self.annotator.close_leftover_ranges()
        self.phases.close_open_phases()

    def _begin_step(self) -> None:
        self.phases.number = self.done
        self._ranges.push(f"{RANGE_PREFIX}step:{self.done}")
        self._step = self._clock.record_mark()

    def _end_step(self) -> Any:
        end = self._clock.record_mark()
        self.phases.add_step_marks(self._step, end)
        self._ranges.pop()
        self.done += 1
        return end


_WINDOW = f"{RANGE_PREFIX}window"
NO_STEP = "no step ended in the time window. Use a longer --for"
UNRECORDED = 8
"""Steps after the warm-up until the window opens even though no complete step could be recorded."""


def _never_fail_script(event: Callable[..., None]) -> Callable[..., None]:
    """Return an event that never fails the script: after an error of perfctl's own, the script runs
    on unwatched."""

    @wraps(event)
    def call_or_give_up(watch: ScriptWatch, *args: Any) -> None:
        try:
            event(watch, *args)
        except Exception as error:
            watch.stop_after_internal_error(error)

    return call_or_give_up


class ScriptWatch:
    """perfctl's part of a script's process once torch is imported."""

    def __init__(self, options: ScriptOptions, keeper: ScriptRecordWriter) -> None:
        self._options, self._keeper, self._record = options, keeper, keeper.record
        self._facts = ScriptFacts()
        self._names = ModuleNames()
        self._optimizers = OptimizerWatch(
            lambda: self._call_if_window_open(lambda phases: phases.open_phase("optimizer")),
            lambda: self._call_if_window_open(PhaseRanges.close_phase),
            self._on_optimizer_step_end,
        )
        self._marker = self._make_step_end_detector()
        self._recorder = StepShapeRecorder(self._names)
        self._others = ScriptProfilerWatch(self._close_window_for_script_profiler)
        self._samples = SampleCounter()
        self._gave_way = False
        """Steps were not measured because the script was profiling."""
        self._ranges = RangeBackend()
        self._hooks = GlobalModuleHooks(
            self._on_module_call_begin, self._on_module_call_end, with_kwargs=True, outermost=True
        )
        self._undo: list[Callable[[], None]] = []
        """Ends the watching, in this order; empty before the start and after the end."""
        self._lead = LeadThread(self._on_lead_thread_change)
        self._window: MeasuredSteps | None = None
        self._times: tuple[float, float] | None = None
        """Start and end of the time window, on the monotonic clock; None: steps are measured."""
        if options.duration is not None:
            begin = float(os.environ[START_VARIABLE]) + options.after
            self._times = begin, begin + options.duration
        self._measured = False
        self._filled = False
        self._broken: str | None = None
        """Why perfctl stopped watching before its time; None as long as it did not."""

    def _make_step_end_detector(self) -> StepEndDetector:
        kind, _, class_name = self._options.step_marker.partition(":")
        return StepEndDetector(kind, class_name or None, self._optimizers.count_live_optimizers)

    def start(self, *optimizers: torch.optim.Optimizer) -> None:
        """Called when torch was imported, before the script continues. ``optimizers``: those that
        exist already."""
        try:
            self._ranges = make_range_backend(self._options.annotate)
        except WorkloadError as error:
            self._record_missing_data("layer ranges", error)
        if self._times is not None:
            hasattr(torch, "_inductor")  # torch.profiler imports it at its start, for seconds
        hooks = ScriptWatch._on_module_call_begin, ScriptWatch._on_module_call_end
        exclude_hooks_from_compilation(*hooks, *(hook.__wrapped__ for hook in hooks))  # type: ignore[attr-defined]
        self._optimizers.start(*optimizers)
        self._hooks.install()
        captures = GraphCaptureWatch(
            self._options,
            self._ranges,
            self._names,
            lambda: self._window is not None or self._measured,
        )
        captures.start()
        if self._options.window == "torch":
            self._others.start()
        watched = track_backward_passes()
        self._undo = [
            self._recorder.stop,
            self._optimizers.stop,
            captures.stop,
            patch_to_call_after(torch.autograd, "backward", self._on_backward_end),
            watched,
            patch_compile_to_wrap_regions(),
            self._hooks.remove,
            self._others.stop,
        ]
        os.register_at_fork(after_in_child=self._stop_in_forked_child)

    def end_and_explain_missing_steps(self) -> str:
        """Note the end of the script. Returns why there are too few steps; "" for enough."""
        if self._window is not None:
            self._close_window(is_complete=False)
        self._undo_patches()
        if self._times is not None:
            return ""
        if not self._filled:
            self._fill_record()
        if self._broken is not None:
            return self._broken
        done = sum(row.phase == "step" for row in self._record.steps)
        if self._gave_way and done < self._options.steps:
            return f"{self._keeper.name}: {SCRIPTS_OWN}"
        return explain_fewer_steps(self._keeper.name, self._options, self._marker, done)

    # Events in the script

    @_never_fail_script
    def _on_module_call_begin(self, module: nn.Module, arguments: Any) -> None:
        if is_compiling() or current_task() != -1:
            return
        calls = self._lead.here.running_modules
        calls.append(module)
        if not self._lead.is_or_becomes_lead_thread(
            called=len(calls) == 1 and self._is_complete_model_call(module)
        ):
            return
        if is_torch_compile_wrapper(module):
            self._hooks.hide_during_forward(module)
        if len(calls) > 1:
            return
        if self._window is None:
            if self._should_open_window_before_call(module):
                self._open_window()
                if self._window is not None and self._window.annotator is not None:
                    # torch collected this call's hooks before
                    self._window.annotator._before(module, arguments)
            elif (
                _is_model_or_compiled_region(module)
                and not self._recorder.is_recording
                and self._recorder.needs_recording(arguments)
            ):
                self._marker.reset_event_counts()
                self._recorder.start(module, arguments)
        if self._window is not None:
            self._window.phases.open_phase("forward" if torch.is_grad_enabled() else "inference")

    def _should_open_window_before_call(self, module: nn.Module) -> bool:
        if self._measured or self._times is None:
            return self._options.warmup == 0 and not self._measured
        trains = self._marker.optimizers.order or self._marker.ends_with_backward
        return self._is_within_time_window() and not trains and _is_model_or_compiled_region(module)

    def _is_within_time_window(self) -> bool:
        return self._times is not None and self._times[0] <= time.monotonic() < self._times[1]

    @_never_fail_script
    def _on_module_call_end(self, module: nn.Module, arguments: Any, *hook_arguments: Any) -> None:
        """``hook_arguments``: (kwargs, result), or (None,) after an exception."""
        calls = self._lead.here.running_modules
        if is_compiling() or all(running is not module for running in calls):
            return
        while calls.pop() is not module:
            pass
        leads = self._lead.is_or_becomes_lead_thread()
        if (
            not calls
            and _is_model_or_compiled_region(module)
            and (leads or (self._lead.fixed and self._is_complete_model_call(module)))
        ):
            self._samples.count_model_call(
                iterate_tensors((arguments, hook_arguments[0] if hook_arguments[0] else None)),
                torch.is_grad_enabled(),
                id(module),
            )
        if not leads:
            return
        if not calls:
            if self._window is not None:
                self._window.phases.close_open_phases()
            shapes = tuple(list_tensor_shapes((arguments, hook_arguments[0])))
            self._facts.observe_model_call(
                module, shapes, None if self._window is None else self._window.done
            )
            if _is_model_or_compiled_region(module):
                self._recorder.add_model_call_shapes(shapes)
        ends = self._marker.count_and_check_module_call(type(module).__name__)
        if not calls and _is_model_or_compiled_region(module):
            ends = self._marker.count_and_check_model_call(id(module)) or ends
        if ends:
            self._on_step_end()

    def _is_complete_model_call(self, module: nn.Module) -> bool:
        """Return whether it is a call of a model, not of a part of one that a wrapper runs in
        threads of its own."""
        return (
            _is_model_or_compiled_region(module)
            and "_is_replica" not in module.__dict__
            and not self._names.is_part_of_model(module)
        )

    @_never_fail_script
    def _call_if_window_open(self, action: Callable[[PhaseRanges], None]) -> None:
        if self._window is not None and self._lead.is_or_becomes_lead_thread():
            action(self._window.phases)

    @_never_fail_script
    def _on_optimizer_step_end(self, source: int, name: str) -> None:
        if not self._lead.is_or_becomes_lead_thread(trains=True):
            return
        self._facts.trained = True
        self._samples.note_optimizer_step()
        if self._marker.count_and_check_optimizer_step(source, name):
            self._on_step_end()

    @_never_fail_script
    def _on_backward_end(self, *_: object) -> None:
        self._facts.trained = True
        # -1: not within another (checkpointing)
        if current_task() != -1 or not self._lead.is_or_becomes_lead_thread(trains=True):
            return
        self._samples.count_backward_pass()
        if self._marker.ends_with_backward and self._window is not None:
            self._window.phases.close_open_phases()
        if self._marker.count_and_check_backward_end():
            self._on_step_end()

    @_never_fail_script
    def _close_window_for_script_profiler(self) -> None:
        if self._window is not None:
            self._gave_way = True
            self._close_window(is_complete=False)

    def _on_lead_thread_change(self, old_lead_ended: bool) -> None:
        """Another thread leads from now on. What a thread that still lives did was not the
        script's steps."""
        if not old_lead_ended:
            self._samples.drop_calls_since_step()
        if self._window is not None:
            self._window.continue_in_this_thread(was_idle=not old_lead_ended)
            return
        self._recorder.stop()
        if not old_lead_ended:
            self._marker = self._make_step_end_detector()

    # Reactions

    def _on_step_end(self) -> None:
        """The only place that opens the window, advances it to the next step, and closes it."""
        if is_capturing_cuda_graph():
            return
        self._recorder.finish_step(
            self._marker.has_single_step, is_measured=self._window is not None
        )
        self._samples.finish_step(
            self._window is not None,
            len(self._marker.optimizers.order),
            self._optimizers.closure_calls,
        )
        if self._window is None:
            if self._measured:
                self._finish_record_if_shapes_complete()
                return
            late = self._marker.steps - self._options.warmup
            is_warm = late >= UNRECORDED or (late >= 0 and not self._recorder.has_no_recorded_step)
            if self._is_within_time_window() or (is_warm and self._times is None):
                self._open_window()
            elif self._recorder.has_no_recorded_step and not self._marker.calls:
                # a script without modules: nothing else shows the start of a step
                self._marker.reset_event_counts()
                self._recorder.start()
        elif self._is_within_time_window() or (
            self._window.done + 1 < self._options.steps and self._times is None
        ):
            self._window.end_step_and_begin_next()
        else:
            self._close_window(is_complete=True)

    def _open_window(self) -> None:
        self._recorder.stop()
        if self._others.is_profiler_running:
            self._gave_way = True
            return
        self._marker.freeze_rule()
        device = "cuda" if self._facts.device_kind == "cuda" else "cpu"
        try:
            if self._times is not None:
                self._options = self._keeper.claim_free_rank_files()
                # an idle program has no step whose end could close the window
                seconds = 2 * self._times[1] - self._times[0] - time.monotonic()
                closing = threading.Timer(seconds, self._close_window_on_timeout)
                closing.daemon = True
                closing.start()
            window = MeasuredSteps(self._options, self._ranges, self._names, self._lead, device)
            with self._others.ignore_profilers_in_block():
                window.start_measuring()
            self._window, self._lead.fixed = window, True
        except (RuntimeError, OSError) as error:
            self._measured = True
            self._record_missing_data(f"window:{self._options.window}", error)

    @_never_fail_script
    def _close_window_on_timeout(self) -> None:
        if self._window is not None:
            self._close_window(is_complete=False)

    def _close_window(self, is_complete: bool) -> None:
        window, self._window = self._window, None
        self._measured, self._lead.fixed = True, False
        if window is None:
            return
        try:
            with self._others.ignore_profilers_in_block():
                window.finish_measuring(self._record, is_complete)
        except (RuntimeError, OSError) as error:
            self._record_missing_data(f"window:{self._options.window}", error)
        if is_complete or self._times is not None:
            self._finish_record_if_shapes_complete()

    def _finish_record_if_shapes_complete(self) -> None:
        is_timed, name = self._times is not None, self._keeper.name
        if not self._filled and (
            is_timed or not self._recorder.should_wait_for_unrecorded_shapes()
        ):
            self._undo_patches()
            self._fill_record()
            lacks_step = is_timed and not self._record.steps
            self._keeper.set_status(None, f"{name}: {NO_STEP}" if lacks_step else "")
            is_last = self._options.stop and can_stop_script_here()
            if is_last:
                self._record.environment[STOPPED_AFTER] = str(self._marker.steps)
            self._keeper.write()
            if is_last:
                print_to_stderr(
                    f"{name} stopped after {self._marker.steps} steps; --to-end runs on"
                )
                self._stop_again()
                raise SystemExit(0)  # of the script's own frames, so its handlers run

    def _stop_again(self) -> None:
        """Stop a script that catches SystemExit and runs on, at its next calls: once more by
        SystemExit, then without its handlers."""
        is_raised = False

        def stop(*_: object) -> None:
            nonlocal is_raised
            # while the script handles the exception, it may call models (a final evaluation)
            if isinstance(sys.exc_info()[1], SystemExit) or not can_stop_script_here():
                return
            if is_raised:
                print_to_stderr(f"{self._keeper.name} caught the stop and ran on: perfctl ended it")
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
            is_raised = True
            raise SystemExit(0)

        exclude_hooks_from_compilation(stop)
        handle = nn.modules.module.register_module_forward_pre_hook(stop)
        self._undo = [handle.remove, patch_to_call_after(torch.autograd, "backward", stop)]

    def _fill_record(self) -> None:
        self._filled = True
        record = self._record
        self._recorder.fill_record(record)
        record.gaps += self._lead.gaps()
        self._samples.fill_record(record)
        record.environment.update(
            {"step_ends_with": self._marker.describe_step_end_rule(), **read_rank_and_world_size()}
        )
        self._facts.fill_record(record)
        record.parameters = dict(self._names.parameters)

    def _undo_patches(self) -> None:
        while self._undo:
            with suppress(Exception):
                self._undo.pop(0)()

    def stop_after_internal_error(self, error: Exception) -> None:
        """Stop watching because of an error of perfctl's own, which is no fault of the script's."""
        if self._broken is not None:
            return
        self._broken = (
            f"perfctl stopped watching {self._keeper.name}, which continued: internal error "
            f"({type(error).__name__}: {get_first_error_line(error)})"
        )
        if self._window is not None:
            with suppress(Exception):
                self._close_window(is_complete=False)
        self._undo_patches()

    def _stop_in_forked_child(self) -> None:
        """Do not watch a forked child (a DataLoader's worker), unless a time window is to come."""
        if self._times is not None and self._window is None and not self._measured:
            self._keeper.process = os.getpid()
            self._recorder.stop()
            return
        if self._window is not None:
            self._window.phases.unwrap_torch()
        self._window, self._measured = None, True
        self._undo_patches()

    def _record_missing_data(self, quantity: str, error: Exception) -> None:
        reason = replace_fields_by_flags(get_first_error_line(error))
        self._record.gaps.append(Gap(quantity, "not_available", reason))
        print_to_stderr(reason)


def can_stop_script_here() -> bool:
    """Return whether the script may end here: in the main thread, and without other ranks, which
    would wait for it."""
    distributed = torch.distributed
    is_alone = not (distributed.is_available() and distributed.is_initialized()) or (
        distributed.get_world_size() == 1
    )
    return (
        is_alone
        and read_rank_and_world_size().get("world_size", "1") == "1"
        and threading.current_thread() is threading.main_thread()
    )


def _is_model_or_compiled_region(module: nn.Module) -> bool:
    """Return whether its call counts as one of a model: not for a loss; yes for a compiled
    function, which may be one."""
    return next(module.parameters(), None) is not None or isinstance(module, CompiledRegion)
