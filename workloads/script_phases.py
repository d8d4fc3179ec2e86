"""Ranges and times for the phases of a script's measured steps: data, copy, forward, backward, optimizer.

Wraps functions of torch while the window is open. Imports torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import dataloader

from perfctl.parsers.range_names import RANGE_PREFIX
from perfctl.parsers.records import Step
from perfctl.workloads.clock import Clock
from perfctl.workloads.ranges import Backend

_WRAPPED: tuple[tuple[Any, str, str], ...] = (
    (torch.autograd, "backward", "backward"),
    (torch.autograd, "grad", "backward"),
    (Optimizer, "zero_grad", "zero_grad"),
    (torch.nn.Module, "zero_grad", "zero_grad"),
    (dataloader._BaseDataLoaderIter, "__next__", "data"),
)
_COPIES = ("to", "cuda", "copy_")
"""Methods of Tensor that may copy from host to device."""


class Phases:
    """Ranges "perfctl:phase:NAME" and times of the phases of each step; a phase nested in itself counts once."""

    def __init__(self, ranges: Backend, clock: Clock) -> None:
        self._ranges = ranges
        self._clock = clock
        self._open: list[tuple[str, int, Any]] = []
        self._spans: list[tuple[int, str, Any, Any]] = []
        self._patched: list[tuple[Any, str, Any]] = []
        self.number = 0
        """The current step."""

    def begin(self, name: str) -> None:
        self._ranges.push(f"{RANGE_PREFIX}phase:{name}")
        self._open.append((name, self.number, self._clock.mark()))

    def end(self) -> None:
        """End the phase that began last."""
        if not self._open:
            return  # already closed with its step
        name, number, start = self._open.pop()
        self._ranges.pop()
        if all(name != around for around, _, _ in self._open):
            self._spans.append((number, name, start, self._clock.mark()))

    def add_step(self, start: Any, end: Any) -> None:
        """Add a whole step, given by two marks of the clock."""
        self._spans.append((self.number, "step", start, end))

    def close_all(self) -> None:
        """Close phases that an exception left open."""
        while self._open:
            self.end()

    def rows(self) -> list[Step]:
        """One row per step and phase with its total time, by start time."""
        self._clock.wait()
        sums: dict[tuple[int, str], list[int]] = {}
        for number, name, start, end in self._spans:
            first, total = sums.setdefault((number, name), [self._clock.start_ns(start), 0])
            sums[number, name] = [first, total + self._clock.between_ns(start, end)]
        rows = [Step(number, name, first, total) for (number, name), (first, total) in sums.items()]
        return sorted(rows, key=lambda row: (row.start_ns or 0, -(row.duration_ns or 0)))

    def wrap(self, on_gpu: bool, mine: Callable[[], bool]) -> None:
        """Wrap torch's functions. ``mine``: whether the calling thread counts."""
        for owner, name, phase in _WRAPPED:
            self._replace(owner, name, self._wrapper(getattr(owner, name), phase, mine, lambda *_: True))
        if on_gpu:
            for name in _COPIES:
                self._replace(torch.Tensor, name, self._wrapper(getattr(torch.Tensor, name), "copy", mine, _to_device))

    def unwrap(self) -> None:
        while self._patched:
            owner, name, before = self._patched.pop()
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        self._patched.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, function)

    def _wrapper(
        self, function: Callable[..., Any], phase: str, mine: Callable[[], bool], counts: Callable[..., bool]
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not mine() or not counts(args, kwargs):
                return function(*args, **kwargs)
            depth = len(self._open)
            self.begin(phase)
            try:
                return function(*args, **kwargs)
            finally:
                while len(self._open) > depth:
                    self.end()

        return wrapped


def _to_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether Tensor.to, cuda or copy_ with these arguments copies from the host to a GPU."""
    first, rest = args[0], args[1:]
    if first.device.type == "cuda":
        return bool(rest) and isinstance(rest[0], torch.Tensor) and rest[0].device.type == "cpu"  # copy_
    target = kwargs.get("device", rest[0] if rest else "cuda")
    if isinstance(target, torch.Tensor):
        target = target.device
    return isinstance(target, int) or str(target).startswith("cuda")
