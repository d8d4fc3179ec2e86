"""Track where a step is: the running module, and the module whose forward created the running autograd node. Imports torch.

Seen with torch 2.4 to 2.15: ``torch.autograd._get_sequence_nr``, ``torch._C._current_autograd_node`` and
``torch._C._current_graph_task_id`` are not public, but torch's own tracers use them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import torch

from perfctl.workloads.composites import Call, is_recurrent
from perfctl.workloads.gradients import LEAF as ACCUMULATE
from perfctl.workloads.gradients import current_task
from perfctl.workloads.names import Names

sequence: Any = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""The number of this thread's next autograd node."""
current_node = torch._C._current_autograd_node


@dataclass(slots=True, eq=False)
class Frame:
    """One running module, or one composite call inside it."""

    layer: str
    kind: str
    leaf: bool
    """The module is a single layer of torch, without layers inside."""
    recompute: bool = False
    """It runs during backward, repeated by activation checkpointing."""
    call: Call | None = None
    module: torch.nn.Module | None = None
    """The innermost running module with a name."""


class Places:
    """The stack of running modules, and the autograd nodes that each of them created."""

    def __init__(self, names: Names, roots: bool) -> None:
        """``roots``: whether a module called outside of others gets a name."""
        self.names = names
        self.roots = roots
        self.recurrent: set[str] = set()
        self.frames_of: dict[str, Frame] = {}
        self.outside = Frame("", "", False)
        self.stack: list[Frame] = [self.outside]
        self.starts: list[int] = [0]
        self.made_by: list[Frame] = [self.outside]
        self.task_grad: dict[int, bool] = {}

    def learn(self, name: str, module: torch.nn.Module) -> None:
        """Add a named module."""
        self.frames_of.setdefault(name, _frame(name, module))
        if is_recurrent(module):
            self.recurrent.add(name)

    @property
    def top(self) -> Frame:
        """The frame that runs now."""
        return self.stack[-1]

    def mark(self, frame: Frame) -> None:
        """Autograd nodes created from now on belong to ``frame``."""
        now = sequence()
        if now == self.starts[-1]:
            self.made_by[-1] = frame
        elif now > self.starts[-1]:
            self.starts.append(now)
            self.made_by.append(frame)

    def push(self, frame: Frame) -> None:
        self.stack.append(frame)
        self.mark(frame)

    def pop(self) -> Frame:
        frame = self.stack.pop()
        self.mark(self.stack[-1])
        return frame

    def frame_for(self, module: torch.nn.Module) -> Frame:
        """The frame of a module about to run: its own, or one of the layer that it is part of."""
        above = self.top
        if above.call is not None:
            return above
        recompute = current_task() != -1
        name = self.names.find(module, above.module, self.roots and above is self.outside and not recompute)
        if name is None:
            kind = type(module).__name__ if above is self.outside else above.kind
            frame = Frame(above.layer, kind, above.leaf or above is self.outside, recompute, None, above.module)
        elif above.leaf and above is not self.outside:
            frame = Frame(above.layer, above.kind, True, recompute, None, above.module)
        else:
            frame = _frame(name, module, recompute)
        if is_recurrent(module):
            frame.call = Call()
        return frame

    def now(self) -> tuple[Frame, str, int | None]:
        """(frame, direction, sequence number of the running node or None outside of backward)."""
        node = current_node()
        return (self.top, "forward", None) if node is None else self._in_backward(node)

    def _in_backward(self, node: Any) -> tuple[Frame, str, int | None]:
        if self.top.recompute:
            return self.top, "forward", None
        grad = torch.is_grad_enabled()
        again = grad and not self.task_grad.setdefault(current_task(), grad)
        number = node._sequence_nr()
        if number == ACCUMULATE:
            layer = self.names.holder(node.variable) or ""
            return self.frames_of.get(layer, self.outside), "backward", None
        frame = self.made_by[bisect_right(self.starts, number) - 1]
        if again:
            return Frame(frame.layer, frame.kind, frame.leaf, True, frame.call, frame.module), "forward", None
        return frame, "backward", number


def _frame(name: str, module: torch.nn.Module, recompute: bool = False) -> Frame:
    return Frame(name, type(module).__name__, is_leaf(module), recompute, None, module)


def is_leaf(module: torch.nn.Module) -> bool:
    """Whether it is a single layer: torch's own forward, without submodules (attention may have its projections)."""
    if isinstance(module, torch.jit.ScriptModule):
        return False
    forward = getattr(type(module).forward, "__module__", "") or ""
    if not forward.startswith("torch.nn.modules."):
        return False
    return isinstance(module, torch.nn.MultiheadAttention) or next(module.children(), None) is None
