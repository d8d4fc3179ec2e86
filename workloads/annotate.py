"""Puts a named range around what each layer of any nn.Module does, forwards and backwards.

Forward ranges come from global module hooks. Backward kernels are started from autograd's own thread, where
a range around ``loss.backward()`` does not reach: so every autograd node that a module's forward created
carries a prehook and a hook which open and close its layer's range on the thread that runs it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import nn

from perfctl.parsers.records import Gap
from perfctl.workloads.compiled import COMPILED, ModuleHooks, is_compiled, is_wrapper, prepare_for_compiled
from perfctl.workloads.gradients import Makers, claim, current_task, next_number, tensors
from perfctl.workloads.names import Names
from perfctl.workloads.ranges import Backend

Hook = Callable[..., None]


class _Open(NamedTuple):
    """One range that is open on a thread, or a module that runs without one."""

    what: object
    """The module, or for a node of autograd its layer's and direction's pair of hooks."""
    named: bool
    """False for a module that belongs to no known root: its work counts for the module around it."""
    name: str
    epoch: int
    """Which backward pass it belongs to, for a node."""
    first: int = 0
    """Autograd's sequence number when a node began: nodes from here on are those of its gradients."""
    compiled: bool = False


class _Thread(threading.local):
    """What is open on one thread, outermost first."""

    def __init__(self) -> None:
        self.open: list[_Open] = []
        self.calls = 0
        """How many of them are modules."""
        self.makers = Makers()
        self.compiled = 0
        """How many of them are compiled: no hook acts within."""

    def around(self) -> _Open | None:
        """The innermost module with a name that is running; None where there is none, or a node began after it."""
        for item in reversed(self.open):
            if item.named:
                return item if isinstance(item.what, nn.Module) else None
        return None


class Annotator:
    """While entered, every module called puts ranges down: "conv1:forward", "layer2.0.conv1:grad_weight".

    Backward ranges say which gradients an autograd node computes: ``grad_input``, ``grad_weight``, or ``backward`` where
    one node computes both. What runs again during backward is ``recompute``. Names are those of :class:`Names`.
    Results do not change by a bit: the hooks look at tensors and hand nothing back.
    """

    def __init__(self, backend: Backend, root: nn.Module | None = None, names: Names | None = None) -> None:
        """``root``: the model where it is known. ``names``: shared with what else names layers in this process."""
        self._backend = backend
        self._names = names or Names(root)
        self._module_hooks = ModuleHooks(self._before, self._after)
        self._hooks: dict[tuple[str, str], tuple[Hook, Hook]] = {}
        self._regions: dict[str, None] = {}
        self._thread = _Thread()
        self._epoch = 0
        self._active = False

    @property
    def gaps(self) -> list[Gap]:
        """What could not be told apart: one for each compiled region that ran."""
        return [Gap("layer ranges", "not_available", COMPILED, name) for name in self._regions]

    def __enter__(self) -> Annotator:
        self._active = True
        _ENTERED.add(self)
        prepare_for_compiled(self._before, self._after)
        self._module_hooks.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._active = False
        _ENTERED.discard(self)
        self._module_hooks.remove()
        self.settle()

    def settle(self) -> None:
        """Close what is open on this thread: an exception may have left ranges of a backward pass behind."""
        self._close_to(self._thread, 0)

    def _close_to(self, thread: _Thread, level: int) -> None:
        while len(thread.open) > level:
            item = thread.open.pop()
            if isinstance(item.what, nn.Module):
                thread.calls -= 1
                thread.compiled -= item.compiled
            if item.named:
                self._backend.pop()

    def _before(self, module: nn.Module, arguments: Any) -> None:
        if torch.compiler.is_compiling() or not self._active:
            return
        thread = self._thread
        if thread.compiled:
            return
        recompute = current_task() != -1
        if not thread.calls and not recompute:
            # No module runs and no backward: what is still open was left by a backward pass that raised.
            self._close_to(thread, 0)
            self._epoch += 1
        around = thread.around()
        name = self._names.find(module, around and around.what, roots=not recompute)  # type: ignore[arg-type]
        compiled = is_compiled(module)
        if compiled:
            thread.compiled += 1
            self._regions[name or type(module).__name__] = None
            if is_wrapper(module):
                self._module_hooks.hide(module)
        thread.calls += 1
        thread.open.append(_Open(module, name is not None, name or "", self._epoch, compiled=compiled))
        if name is not None:
            thread.makers.mark(name)
            self._backend.push(f"{name}:recompute" if recompute else f"{name}:forward")

    def _after(self, module: nn.Module, arguments: Any, result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        thread = self._thread
        level = _level_of(module, thread.open)
        if level is None:
            return
        self._close_to(thread, level)
        if thread.calls:
            around = thread.around()
            thread.makers.mark(around and around.name)
            return
        makers = thread.makers
        if self._active and next_number() > makers.first:
            claim(tensors(result), makers.first, makers.of, self._names.holder, self._give)
        makers.clear()

    def _give(self, node: Any, layer: str, direction: str) -> None:
        before, after = self._hooks.get((layer, direction)) or self._make_hooks(layer, direction)
        node.register_prehook(before)
        node.register_hook(after)

    def _make_hooks(self, layer: str, direction: str) -> tuple[Hook, Hook]:
        """(prehook, hook) that open and close a layer's range around a node of autograd."""
        text = f"{layer}:{direction}"

        def before(gradients: Any) -> None:
            if not self._active:
                return
            opened = self._thread.open
            while opened and opened[-1].epoch != self._epoch and not isinstance(opened[-1].what, nn.Module):
                # A pass before this one raised while this thread was running one of its nodes.
                self._close_to(self._thread, len(opened) - 1)
            opened.append(_Open(after, True, layer, self._epoch, next_number()))
            self._backend.push(text)

        def after(inputs: Any, outputs: Any) -> None:
            thread = self._thread
            opened = thread.open
            if opened and opened[-1].what is after:
                first = opened.pop().first
                self._backend.pop()
            else:
                level = _level_of(after, opened)
                if level is None:
                    return
                first = opened[level].first
                self._close_to(thread, level)
            if self._active and torch.is_grad_enabled():  # create_graph: the gradients have nodes of their own
                claim(tensors(inputs), first, lambda _: layer, self._names.holder, self._give)

        self._hooks[layer, direction] = before, after
        return before, after


def _level_of(what: object, opened: list[_Open]) -> int | None:
    for level in range(len(opened) - 1, -1, -1):
        if opened[level].what is what:
            return level
    return None


_ENTERED: weakref.WeakSet[Annotator] = weakref.WeakSet()


def _forget_after_fork() -> None:
    """Processes forked from this one (a DataLoader's workers) put nothing down."""
    for annotator in _ENTERED:
        annotator._active = False
        annotator._thread.open.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
