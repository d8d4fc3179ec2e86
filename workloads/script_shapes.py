"""Records what the layers of a script saw: one whole step for each new shape of its models' inputs, outside the measured steps.

Imports torch. Inside the measured steps only the shapes of what the models are given are kept, a few microseconds a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _python_dispatch as dispatch

from perfctl.parsers.paper import OpShape
from perfctl.parsers.records import Gap
from perfctl.workloads.names import Names
from perfctl.workloads.record import Record
from perfctl.workloads.shapes import Recorder

MOST = 8
"""Shapes that are recorded at most: a step takes several times as long meanwhile."""
AFTERWARDS = 32
"""Steps after the measured ones in which a shape that was first seen in them is waited for."""

Shapes = tuple[tuple[int, ...], ...]
"""Of the tensors that one call of a model got, in order."""
Step = tuple[Shapes, ...]
"""Of all calls of models in a step, in order: what tells the work of one step from that of another."""


@dataclass(frozen=True, slots=True)
class _Recording:
    ops: tuple[OpShape, ...]
    gaps: tuple[Gap, ...]


class StepRecorder:
    """From the first call of a model in a step to the step's end."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._running: Recorder | None = None
        self._kept: dict[Step, _Recording] = {}
        self._passed_by: set[Shapes | None] = set()
        """First calls of steps whose shapes were new and that were not recorded, for that was known too late."""
        self._calls: list[Shapes] = []
        self._measured: list[Step] = []
        self._waited = 0

    @property
    def running(self) -> bool:
        return self._running is not None

    @property
    def wanted(self) -> bool:
        """No step has been recorded yet."""
        return not self._kept

    def is_new(self, arguments: Any) -> bool:
        """Is a step of interest that begins with a call of a model with these arguments?"""
        if not self._kept:
            return True
        if self._calls or len(self._kept) >= MOST:
            return False  # it is not the first call
        first = tuple(shapes_in(arguments))
        if self._measured:
            return any(step[:1] and step[0][: len(first)] == first for step in self._missing())
        return first in self._passed_by or all(not step or step[0][: len(first)] != first for step in self._kept)

    def start(self, module: nn.Module | None = None, arguments: Any = ()) -> None:
        """``module``: is being called; its hooks have been collected already, so it is introduced by hand."""
        if self._running is not None or dispatch._get_current_dispatch_mode() is not None:
            return  # a mode of the script's own may end before the step does
        self._running = Recorder(None, names=self._names)
        self._running.__enter__()
        if module is not None:
            self._running._watch.enter(module, arguments)

    def saw_call(self, shapes: Shapes) -> None:
        """A model was called in the step that runs."""
        self._calls.append(shapes)

    def step_ended(self, whole: bool, measured: bool) -> None:
        """``whole``: what ran since ``start`` was one step. ``measured``: the step was, and nothing was recorded."""
        step, self._calls = tuple(self._calls), []
        if measured:
            self._measured.append(step)
            return
        running, self._running = self._running, None
        if running is not None:
            running.__exit__(None, None, None)
            if step:
                self._passed_by.discard(step[0])
            if whole:
                self._kept.setdefault(step, _Recording(tuple(running.ops), (*running.gaps, *_unsure(running))))
        elif step and step not in self._kept:
            self._passed_by.add(step[0])

    def stop(self) -> None:
        """Forget what runs."""
        running, self._running = self._running, None
        self._calls = []
        if running is not None:
            running.__exit__(None, None, None)

    def is_waiting(self) -> bool:
        """Asked at the end of each step after the measured ones: is a shape of theirs still to be recorded?"""
        self._waited += 1
        return not self._kept or (bool(self._missing()) and self._waited <= AFTERWARDS and len(self._kept) < MOST)

    def _missing(self) -> list[Step]:
        return [step for step in dict.fromkeys(self._measured) if step not in self._kept]

    def fill(self, record: Record) -> None:
        """The layers of the shape that most measured steps had go into the record, and which steps had another."""
        if not self._kept:
            reason = "no whole step came outside the measured ones (--warmup 1 or more records one)"
            record.gaps.append(Gap("layer_call", "not_collected", reason))
            return
        steps = {step: [n for n, other in enumerate(self._measured) if other == step] for step in self._kept}
        best = max(steps, key=lambda step: len(steps[step]))
        record.ops = list(self._kept[best].ops)
        record.gaps += self._kept[best].gaps
        if self._measured:
            record.environment["layer_calls_of_steps"] = _ranges(steps[best]) or "none"
        others = [n for n, step in enumerate(self._measured) if step != best]
        if others:
            record.gaps.append(Gap("layer_call", "ambiguous", self._why(best, steps[best], others)))

    def _why(self, best: Step, own: list[int], others: list[int]) -> str:
        seen = "; ".join(
            f"{_ranges([n for n in others if self._measured[n] == step])}: {_in_words(step)}"
            for step in list(dict.fromkeys(self._measured[n] for n in others))[:MOST]
        )
        missing = self._missing()
        never = " (first seen inside the window, and not again after it)" if missing else ""
        if own:
            return (
                f"pen and paper is for measured steps {_ranges(own)} with inputs {_in_words(best)}; others had other "
                f"inputs{never}: {seen}"
            )
        return (
            f"pen and paper is for a step with inputs {_in_words(best)}, and no measured step had them{never}: {seen}. "
            "More --warmup may see one of these before"
        )


def shapes_in(value: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of the tensors in a call's arguments, in order."""
    if isinstance(value, torch.Tensor):
        yield tuple(value.shape)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from shapes_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from shapes_in(item)


def _unsure(running: Recorder) -> tuple[Gap, ...]:
    if not running.data_dependent:
        return ()
    names = ", ".join(running.data_dependent)
    reason = f"sizes that depend on the data ({names}): other steps may have computed more or less"
    return (Gap("layer_call", "ambiguous", reason),)


def _in_words(step: Step) -> str:
    """ "8x3x32x32", of several calls with "then" between."""
    calls = [", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) or "no tensor" for shapes in step]
    return " then ".join(calls[:4]) + (" then more" if len(calls) > 4 else "") or "of no model"


def _ranges(numbers: list[int]) -> str:
    """ "0-3, 5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
