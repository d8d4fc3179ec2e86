"""Record the layers of a script: one complete step per shape of its models' inputs, outside the
measured steps.

Inside the measured steps only the shapes of the models' inputs are noted, in a few microseconds per
call. Imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Tuple

import torch
from torch import nn

from perfctl.records.paper import OpShape
from perfctl.records.report import Gap
from perfctl.workloads.run.record import WorkloadRecord
from perfctl.workloads.tracing.gradients import iterate_tensors
from perfctl.workloads.tracing.layers import ModuleNames

try:
    from torch.utils import _python_dispatch as dispatch

    from perfctl.workloads.tracing.watch import Recorder
except (ImportError, AttributeError):  # before torch 2.1, operators cannot be observed
    Recorder = None  # type: ignore[assignment,misc]

MOST = 8
"""Most shapes to record: recording makes a step several times slower."""
AFTERWARDS = 32
"""Steps after the measured ones to wait for a shape that first occurred in them."""

Shapes = Tuple[Tuple[int, ...], ...]
"""Shapes of the input tensors of one call of a model, in order."""
Step = Tuple[Shapes, ...]
"""Shapes of all calls of models in a step, in order, which identify the work of the step."""


class StepShapeRecorder:
    """Records from the first call of a model in a step to the step's end."""

    def __init__(self, names: ModuleNames) -> None:
        self._names = names
        self._running: Recorder | None = None
        self._kept: dict[Step, tuple[tuple[OpShape, ...], list[Gap]]] = {}
        """Operations and gaps of the recorded steps."""
        self._passed_by: set[Shapes | None] = set()
        """First calls of steps with new shapes that were not recorded, because that was noticed
        too late."""
        self._calls: list[Shapes] = []
        self._measured: list[Step] = []
        self._waited = 0

    @property
    def is_recording(self) -> bool:
        return self._running is not None

    @property
    def has_no_recorded_step(self) -> bool:
        """Whether no step was recorded yet."""
        return not self._kept and Recorder is not None

    def needs_recording(self, arguments: Any) -> bool:
        """Return whether to record a step that begins with a call of a model with these
        arguments."""
        if Recorder is None:
            return False
        if not self._kept:
            return True
        if self._calls or len(self._kept) >= MOST:
            return False  # it is not the first call
        first = tuple(list_tensor_shapes(arguments))
        if self._measured:
            return any(
                step[:1] and step[0][: len(first)] == first
                for step in self._list_unrecorded_measured_steps()
            )
        return first in self._passed_by or all(
            not step or step[0][: len(first)] != first for step in self._kept
        )

    def start(self, module: nn.Module | None = None, arguments: Any = ()) -> None:
        """``module``: is being called already, so its pre-hook is called by hand."""
        if self._running is not None or dispatch._get_current_dispatch_mode() is not None:
            return  # a dispatch mode of the script may end before the step
        self._running = Recorder(None, names=self._names)
        self._running.__enter__()
        if module is not None:
            self._running.on_module_call_begin(module, arguments)

    def add_model_call_shapes(self, shapes: Shapes) -> None:
        self._calls.append(shapes)

    def finish_step(self, is_complete: bool, is_measured: bool) -> None:
        """``is_complete``: exactly one step ran since ``start``. ``is_measured``: it was a measured
        step, which is not recorded."""
        step, self._calls = tuple(self._calls), []
        if is_measured:
            self._measured.append(step)
            return
        running, self._running = self._running, None
        if running is not None:
            running.__exit__(None, None, None)
            if step:
                self._passed_by.discard(step[0])
            if is_complete:
                gaps = running.unrecorded_part_gaps
                if running.data_dependent_operators:
                    names = ", ".join(running.data_dependent_operators)
                    reason = (
                        f"sizes depend on the data ({names}): other steps may compute more or less"
                    )
                    gaps.append(Gap("layer_call", "ambiguous", reason))
                self._kept.setdefault(step, (running.ops, gaps))
        elif step and step not in self._kept:
            self._passed_by.add(step[0])

    def stop(self) -> None:
        """Discard the current recording."""
        running, self._running = self._running, None
        self._calls = []
        if running is not None:
            running.__exit__(None, None, None)

    def should_wait_for_unrecorded_shapes(self) -> bool:
        """Return whether a shape of the measured steps is still to be recorded; called at the end
        of each later step."""
        self._waited += 1
        return self.has_no_recorded_step or (
            bool(self._list_unrecorded_measured_steps())
            and self._waited <= AFTERWARDS
            and len(self._kept) < MOST
        )

    def _list_unrecorded_measured_steps(self) -> list[Step]:
        return [step for step in dict.fromkeys(self._measured) if step not in self._kept]

    def fill_record(self, record: WorkloadRecord) -> None:
        """Add the layers for the most frequent shape of the measured steps, and a gap about the
        other steps."""
        if Recorder is None:
            reason = f"shapes of layers need torch 2.1 or later; this is {torch.__version__}"
            record.gaps.append(Gap("layer_call", "not_available", reason))
            return
        if not self._kept:
            reason = (
                "there was no complete step outside of the measured ones (--warmup 1 or more "
                "records one)"
            )
            record.gaps.append(Gap("layer_call", "not_collected", reason))
            return
        steps = {
            step: [n for n, other in enumerate(self._measured) if other == step]
            for step in self._kept
        }
        best = max(steps, key=lambda step: len(steps[step]))
        ops, gaps = self._kept[best]
        record.ops = list(ops)
        record.gaps += gaps
        if self._measured:
            record.environment["layer_calls_of_steps"] = (
                _format_number_ranges(steps[best]) or "none"
            )
        other_steps = [n for n, step in enumerate(self._measured) if step != best]
        if other_steps:
            record.gaps.append(
                Gap(
                    "layer_call",
                    "ambiguous",
                    self._describe_other_shapes(best, steps[best], other_steps),
                )
            )

    def _describe_other_shapes(
        self, best: Step, own_steps: list[int], other_steps: list[int]
    ) -> str:
        listed = "; ".join(
            f"{_format_number_ranges([n for n in other_steps if self._measured[n] == step])}: "
            f"{_format_step_shapes(step)}"
            for step in list(dict.fromkeys(self._measured[n] for n in other_steps))[:MOST]
        )
        never = (
            " (they first occurred in the measured steps, and not after them)"
            if self._list_unrecorded_measured_steps()
            else ""
        )
        inputs = f"with inputs {_format_step_shapes(best)}"
        if own_steps:
            return (
                f"the estimate is for measured steps {_format_number_ranges(own_steps)} {inputs}; "
                f"others had other inputs{never}: {listed}"
            )
        return (
            f"the estimate is for a step {inputs}, which no measured step had{never}: {listed}. "
            "A larger --warmup may record one of these"
        )


def list_tensor_shapes(value: Any) -> Iterator[tuple[int, ...]]:
    """Yield shapes of the tensors in ``value``, in order."""
    return (tuple(tensor.shape) for tensor in iterate_tensors(value))


def _format_step_shapes(step: Step) -> str:
    """Return text such as "8x3x32x32"; several calls are joined by "then"."""
    calls = [
        ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) or "no tensor"
        for shapes in step
    ]
    return " then ".join(calls[:4]) + (" then more" if len(calls) > 4 else "") or "of no model"


def _format_number_ranges(numbers: list[int]) -> str:
    """Return text such as "0-3, 5"."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), lambda item: item[1] - item[0])
    ]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
