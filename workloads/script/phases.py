"""Phases of a script's step: optimizers, loaders and copies are wrapped. Imports torch."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import dataloader

from perfctl.records.ranges import RANGE_PREFIX
from perfctl.records.report import Step
from perfctl.workloads.run.clock import DeviceClock, RangeBackend, sort_steps_by_start
from perfctl.workloads.tracing.versions import (
    Args,
    Kwargs,
    is_capturing_cuda_graph,
    is_compiling,
    patch_to_call_after,
    replace_attribute,
)

_WRAPPED: tuple[tuple[Any, str, str], ...] = (
    (torch.autograd, "backward", "backward"),
    (torch.autograd, "grad", "backward"),
    (Optimizer, "zero_grad", "zero_grad"),
    (nn.Module, "zero_grad", "zero_grad"),
    (dataloader._BaseDataLoaderIter, "__next__", "data"),
)
_COPIES = ("to", "cuda", "copy_")
"""Methods of Tensor that may copy from host to device."""


class PhaseRanges:
    """Ranges "perfctl:phase:NAME" and times of the phases of each step; a phase nested in itself
    counts once."""

    def __init__(self, ranges: RangeBackend, clock: DeviceClock) -> None:
        self._ranges, self._clock = ranges, clock
        self._open: list[tuple[str, int, Any]] = []
        self._spans: list[tuple[int, str, Any, Any]] = []
        self._undo = ExitStack()
        self.number = 0

    def open_phase(self, name: str) -> None:
        """A phase that is captured into a CUDA graph has no time: its events would become nodes of
        the graph."""
        self._ranges.push(f"{RANGE_PREFIX}phase:{name}")
        self._open.append(
            (name, self.number, None if is_capturing_cuda_graph() else self._clock.record_mark())
        )

    def close_phase(self) -> None:
        if not self._open:
            return  # already closed with its step
        name, number, start = self._open.pop()
        self._ranges.pop()
        if (
            start is not None
            and not is_capturing_cuda_graph()
            and all(name != name_of_open for name_of_open, _, _ in self._open)
        ):
            self._spans.append((number, name, start, self._clock.record_mark()))

    def add_step_marks(self, start_mark: Any, end_mark: Any) -> None:
        self._spans.append((self.number, "step", start_mark, end_mark))

    def close_open_phases(self) -> None:
        while self._open:
            self.close_phase()

    def build_phase_rows(self) -> list[Step]:
        """One row per step and phase with its total time, by start time."""
        self._clock.wait_for_marks()
        sums: dict[tuple[int, str], list[int]] = {}
        for number, name, start, end in self._spans:
            first, total = sums.setdefault((number, name), [self._clock.get_mark_time_ns(start), 0])
            sums[number, name] = [first, total + self._clock.measure_ns_between(start, end)]
        return sort_steps_by_start(Step(*key, first, total) for key, (first, total) in sums.items())

    def wrap_torch_functions_in_phases(
        self, on_gpu: bool, is_lead_thread: Callable[[], bool]
    ) -> None:
        """Wrap torch's functions. ``is_lead_thread``: whether the calling thread counts."""
        copies = [(Tensor, name, "copy") for name in _COPIES] if on_gpu else []
        for owner, name, phase in (*_WRAPPED, *copies):
            wrapped = self._wrap_in_phase(getattr(owner, name), phase, is_lead_thread)
            self._undo.callback(replace_attribute(owner, name, wrapped))

    def unwrap_torch(self) -> None:
        self._undo.close()

    def _wrap_in_phase(
        self, function: Callable[..., Any], phase: str, is_lead_thread: Callable[[], bool]
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if (
                is_compiling()
                or not is_lead_thread()
                or (phase == "copy" and not _is_host_to_gpu_copy(args, kwargs))
            ):
                return function(*args, **kwargs)
            depth = len(self._open)
            self.open_phase(phase)
            try:
                return function(*args, **kwargs)
            finally:
                while len(self._open) > depth:
                    self.close_phase()

        return wrapped


def _is_host_to_gpu_copy(args: Args, kwargs: Kwargs) -> bool:
    """Return whether Tensor.to, cuda or copy_ with these arguments copies from the host to a
    GPU."""
    first, arguments = args[0], args[1:]
    if first.device.type == "cuda":
        # copy_
        return (
            bool(arguments)
            and isinstance(arguments[0], Tensor)
            and arguments[0].device.type == "cpu"
        )
    target = kwargs.get("device", arguments[0] if arguments else "cuda")
    if isinstance(target, Tensor):
        target = target.device
    return isinstance(target, int) or str(target).startswith("cuda")


class _PhaseDepth(threading.local):
    steps = 0


class OptimizerWatch:
    """Watches all optimizers: those that exist (in a notebook) and later ones.

    This wraps the step of each class, outside of torch's own wrapper. torch's step hooks do not
    work here: perfctl removes hooks at the end of a step, which torch forbids while it calls them.
    """

    def __init__(
        self,
        on_begin: Callable[[], None],
        on_leave: Callable[[], None],
        on_end: Callable[[int, str], None],
    ) -> None:
        """Call ``on_begin`` before a step, ``on_leave`` after it even if it raised, then
        ``on_end`` with the optimizer's id and class."""
        self._began, self._left, self._ended = on_begin, on_leave, on_end
        self._made: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._inner: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Those stepped by another one (sharded optimizers)."""
        self._depth = _PhaseDepth()
        self._captured: list[str] = []
        """Classes of those that stepped during the capture of a CUDA graph, whose replays call no
        Python code."""
        self._active = self._exist = False
        self.closure_calls = 0
        """Calls of the closure in the last step: each computes the loss of the same batch."""
        self._undo = ExitStack()

    def start(self, *existing: Optimizer) -> None:
        """``existing``: optimizers that were created before. Which of them the script still uses is
        not known, so they count as one."""
        self._active, self._exist = True, bool(existing)
        for optimizer in existing:
            self._wrap_optimizer_class_step(type(optimizer))
        self._undo.callback(patch_to_call_after(Optimizer, "__init__", self._watch_new_optimizer))

    def _watch_new_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        self._made.add(optimizer)
        self._wrap_optimizer_class_step(type(optimizer))

    def _wrap_optimizer_class_step(self, kind: Any) -> None:
        if getattr(kind.step, "perfctl", None) is not self:
            step = self._wrap_step(kind.step)
            step.perfctl = self  # type: ignore[attr-defined]
            self._undo.callback(replace_attribute(kind, "step", step))

    def stop(self) -> None:
        self._active = False
        self._undo.close()

    def count_live_optimizers(self) -> int:
        """Return number of live optimizers that are not stepped by another one."""
        return len(self._made) - len(self._inner) + self._exist

    def _wrap_step(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def step(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self._active:
                return inner(*args, **kwargs)
            if self._depth.steps:
                self._inner.add(args[0])
            else:
                self._began()
                self.closure_calls = 0
                if len(args) > 1:
                    args = args[0], self._wrap_closure(args[1]), *args[2:]
                elif "closure" in kwargs:
                    kwargs["closure"] = self._wrap_closure(kwargs["closure"])
            self._depth.steps += 1
            try:
                result = inner(*args, **kwargs)
            finally:
                self._depth.steps -= 1
                if not self._depth.steps:
                    self._left()
            if not self._depth.steps:
                self._report_step_end(args[0])
            return result

        return step

    def _wrap_closure(self, closure: Any) -> Any:
        """Return ``closure``, which computes the loss, with the optimizer's phase ended around
        it."""
        if not callable(closure) or isinstance(closure, nn.Module):
            return closure

        @functools.wraps(closure)
        def call_outside_phase() -> Any:
            self.closure_calls += 1
            self._left()
            try:
                return closure()
            finally:
                self._began()

        return call_outside_phase

    def _report_step_end(self, optimizer: Optimizer) -> None:
        name = type(optimizer).__name__
        if not is_capturing_cuda_graph():
            self._ended(id(optimizer), name)
            return
        if not self._captured:
            replayed = patch_to_call_after(
                torch.cuda.CUDAGraph,
                "replay",
                lambda graph: self._ended(id(graph), self._captured[0]),
            )
            self._undo.callback(replayed)
        self._captured.append(name)
