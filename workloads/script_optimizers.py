"""Watch the optimizers of a script: their number, and their steps, also in CUDA graphs. Imports torch."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


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
