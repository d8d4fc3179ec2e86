"""Decide which events end a step of a user's script. Independent of torch.

An optimizer's step ends a step. With two optimizers (a GAN), a step ends with the last one before the first steps again:
five steps of the critic and one of the generator are one step. Without an optimizer of torch, each backward pass ends a
step; without training, each call of a model does.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import dataloader

from perfctl.records.ranges import RANGE_PREFIX
from perfctl.records.report import Step
from perfctl.workloads.run.clock import Backend, Clock

PATIENCE = 12
"""How often the first optimizer may step while one that has never stepped is waited for."""


@dataclass(slots=True)
class Cycle:
    """Learns which of several sources of events is the last of a round."""

    expected: Callable[[], int] | None = None
    """Number of sources; None when only a second round can tell."""
    order: list[int] = field(default_factory=list)
    """Sources in the order of their first event."""
    last: int | None = None
    """The source that ends a round; None while unknown."""
    frozen: bool = False
    """No more learning: the window is open."""
    _rounds: int = 0

    def event(self, source: int) -> bool:
        """Note an event of ``source``. Whether it ends a round, as far as is known."""
        if source not in self.order and not self.frozen:
            self.order.append(source)
            self.last, self._rounds = None, 0
            if self.expected is not None and len(self.order) >= self.expected():
                self.last = source
        elif self.last is None and source in self.order[:1]:
            self._rounds += 1
            if self.expected is None or self._rounds >= PATIENCE:
                self.last = self.order[-1]
        return source == self.last


@dataclass(slots=True)
class StepMarker:
    """Turns a script's events into ends of steps, by the requested rule."""

    kind: str
    """auto, optimizer, forward or backward."""
    named: str | None
    """Only events of this class; None for any."""
    optimizers_alive: Callable[[], int]
    """Number of the script's optimizers that are not stepped by another one."""
    optimizers: Cycle = field(init=False)
    models: Cycle = field(default_factory=Cycle)
    steps: int = 0
    """Number of steps that ended."""
    optimizer_steps: int = 0
    calls: int = 0
    """Number of outermost calls of models."""
    _by_backward: bool = False
    """The script trains without an optimizer of torch: each backward pass ends a step."""
    _heard: dict[int, int] = field(default_factory=dict)
    _ender: int = 0

    def __post_init__(self) -> None:
        self.optimizers = Cycle(self.optimizers_alive)

    def optimizer_stepped(self, source: int, name: str) -> bool:
        """Note a step of an optimizer. Whether this ends a step of the script; likewise below."""
        self.optimizer_steps += 1
        if self.kind not in ("auto", "optimizer") or self.named not in (None, name):
            return False
        if (
            self.kind == "auto"
            and (self.models.order or self._by_backward)
            and not self.optimizers.order
            and not self.optimizers.frozen
        ):
            self.steps = 0  # calls before the first optimizer's step were not steps
        if not self.optimizers.frozen:
            self._by_backward = False
        self._hear(source)
        return self._count(self.named is not None or self.optimizers.event(source))

    def model_called(self, source: int) -> bool:
        """Note the end of an outermost call of a model."""
        self.calls += 1
        if self.named is not None or self.kind not in ("auto", "forward"):
            return False
        if self.kind == "auto" and (self._by_backward or self.optimizers_alive() or self.optimizers.order):
            return False
        self._hear(source)
        return self._count(self.models.event(source))

    def module_called(self, name: str) -> bool:
        """Note the end of a call of any module."""
        return self._count(self.kind == "forward" and self.named == name)

    def backward_ended(self) -> bool:
        """Note the end of a backward pass."""
        if self.kind == "auto" and not self.models.frozen:
            alone = not (self.optimizers_alive() or self.optimizers.order)
            if alone != self._by_backward:
                self.steps = 0  # earlier calls were not steps, nor were passes before there was an optimizer
            self._by_backward = alone
        return self._count(self.ends_with_backward)

    @property
    def ends_with_backward(self) -> bool:
        """Whether each backward pass ends a step."""
        return self.kind == "backward" or self._by_backward

    def listen(self) -> None:
        """Start observing for ``is_whole``."""
        self._heard.clear()

    @property
    def is_whole(self) -> bool:
        """Whether exactly one step passed since ``listen``: its last source had a single event."""
        return self._heard.get(self._ender, 1) == 1

    def freeze(self) -> None:
        """Keep the rule from now on, if there is one: the window opens."""
        self.optimizers.frozen = self.models.frozen = self.steps > 0

    def in_words(self) -> str:
        """What ends a step, for the record."""
        if self.ends_with_backward:
            return "a backward pass"
        if self.named is not None:
            return f"each step of {self.named}" if self.kind == "optimizer" else f"each call of {self.named}"
        if self.kind == "forward" or (self.kind == "auto" and not self.optimizers.order):
            return "an outermost call of the model"
        several = len(self.optimizers.order) > 1
        return f"the last of {len(self.optimizers.order)} optimizers' steps" if several else "the optimizer's step"

    def _hear(self, source: int) -> None:
        self._heard[source] = self._heard.get(source, 0) + 1
        self._ender = source

    def _count(self, ends: bool) -> bool:
        self.steps += ends
        return ends


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


class Optimizers:
    """Watches all optimizers, including later ones.

    torch wraps the step of each class once, when the first instance is created; this adds a wrapper around it. torch's
    step hooks do not work here: perfctl removes hooks at the end of a step, which torch forbids while it calls them.
    """

    def __init__(self, began: Callable[[], None], left: Callable[[], None], ended: Callable[[int, str], None]) -> None:
        """Calls ``began`` before a step, ``left`` after it even if it raised, then ``ended`` with the optimizer's id and class."""
        self._began = began
        self._left = left
        self._ended = ended
        self._made: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._inner: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Those stepped by another one (sharded optimizers)."""
        self._depth = 0
        self._captured: list[str] = []
        """Classes of those that stepped during the capture of a CUDA graph, whose replays call no Python code."""
        self._active = False
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        self._active = True
        hook_step = Optimizer.profile_hook_step
        Optimizer.profile_hook_step = staticmethod(lambda step: self._around(hook_step(step)))  # type: ignore[assignment]
        self._undo += [
            lambda: setattr(Optimizer, "profile_hook_step", staticmethod(hook_step)),
            call_after(Optimizer, "__init__", lambda made, *_: self._made.add(made)),
        ]

    def stop(self) -> None:
        self._active = False
        while self._undo:
            self._undo.pop()()

    def count(self) -> int:
        """Number of live optimizers that are not stepped by another one."""
        return len(self._made) - len(self._inner)

    def _around(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def step(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._active:
                return inner(*args, **kwargs)
            if self._depth:
                self._inner.add(args[0])
            else:
                self._began()
            self._depth += 1
            try:
                result = inner(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._left()
            if not self._depth:
                self._stepped(args[0])
            return result

        return step

    def _stepped(self, optimizer: Optimizer) -> None:
        name = type(optimizer).__name__
        if not is_capturing():
            self._ended(id(optimizer), name)
            return
        if not self._captured:
            self._undo.append(call_after(torch.cuda.CUDAGraph, "replay", self._replayed))
        self._captured.append(name)

    def _replayed(self, graph: object) -> None:
        self._ended(id(graph), self._captured[0])


def call_after(owner: Any, name: str, then: Callable[..., object]) -> Callable[[], None]:
    """Call ``then`` with the same arguments after every call of a function. The returned function undoes it."""
    before = getattr(owner, name)

    @functools.wraps(before)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = before(*args, **kwargs)
        then(*args)
        return result

    def undo() -> None:
        if getattr(owner, name) is wrapped:
            setattr(owner, name, before)

    setattr(owner, name, wrapped)
    return undo


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured, when waiting and measuring are impossible."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
