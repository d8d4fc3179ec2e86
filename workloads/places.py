"""Where a step is: which module runs, and whose forward made the autograd node that runs. Imports torch.

Seen with torch 2.4 to 2.15: ``torch.autograd._get_sequence_nr``, ``torch._C._current_autograd_node`` and
``torch._C._current_graph_task_id`` are not public, but are what torch's own tracers use.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import torch

from perfctl.workloads.composites import Call, is_recurrent

ACCUMULATE = 2**64 - 1
"""Sequence number of every AccumulateGrad node."""

sequence: Any = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""Number that the next autograd node of this thread gets."""
current_node = torch._C._current_autograd_node
current_task = torch._C._current_graph_task_id


@dataclass(slots=True, eq=False)
class Frame:
    """One module that is running, or one composite call inside it."""

    layer: str
    kind: str
    leaf: bool
    """The module is one layer: its forward is torch's own and it has no layers of its own inside."""
    recompute: bool = False
    """It runs during backward: activation checkpointing computes it again."""
    call: Call | None = None


class Places:
    """The stack of running modules, and which autograd nodes each of them made."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.names: dict[int, tuple[str, str, bool]] = {}
        self.owners: dict[int, str] = {}
        self.recurrent: set[str] = set()
        for path, module in model.named_modules():
            self.names[id(module)] = (path, type(module).__name__, is_leaf(module))
            if is_recurrent(module):
                self.recurrent.add(path)
            for tensor in module.parameters(recurse=False):
                self.owners.setdefault(id(tensor), path)
        self.frames_of = {known[0]: Frame(*known) for known in self.names.values()}
        self.outside = Frame("", "", False)
        self.stack: list[Frame] = [self.outside]
        self.starts: list[int] = [0]
        self.made_by: list[Frame] = [self.outside]
        self.task_grad: dict[int, bool] = {}

    @property
    def top(self) -> Frame:
        """What runs now."""
        return self.stack[-1]

    def mark(self, frame: Frame) -> None:
        """Autograd nodes made from now on belong to ``frame``."""
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

    def path(self, module: torch.nn.Module) -> str | None:
        """Dotted path of a module of the model; None for others."""
        known = self.names.get(id(module))
        return known[0] if known is not None else None

    def frame_for(self, module: torch.nn.Module) -> Frame:
        """The frame of a module that is about to run: its own, or that of the layer it is part of."""
        known, above = self.names.get(id(module)), self.top
        if above.call is not None:
            return above
        recompute = current_task() != -1
        if known is None:
            kind = type(module).__name__ if above is self.outside else above.kind
            frame = Frame(above.layer, kind, above.leaf or above is self.outside, recompute)
        elif above.leaf and above is not self.outside:
            frame = Frame(above.layer, above.kind, True, recompute)
        else:
            frame = Frame(*known, recompute)
        if is_recurrent(module):
            frame.call = Call()
        return frame

    def now(self) -> tuple[Frame, str, int | None]:
        """Frame, direction, and (in backward) the sequence number of the node that runs."""
        node = current_node()
        return (self.top, "forward", None) if node is None else self._in_backward(node)

    def _in_backward(self, node: Any) -> tuple[Frame, str, int | None]:
        if self.top.recompute:
            return self.top, "forward", None
        grad = torch.is_grad_enabled()
        again = grad and not self.task_grad.setdefault(current_task(), grad)
        number = node._sequence_nr()
        if number == ACCUMULATE:
            layer = self.owners.get(id(node.variable), "")
            return self.frames_of.get(layer, self.outside), "backward", None
        frame = self.made_by[bisect_right(self.starts, number) - 1]
        if again:
            return Frame(frame.layer, frame.kind, frame.leaf, True, frame.call), "forward", None
        return frame, "backward", number


def is_leaf(module: torch.nn.Module) -> bool:
    """One layer: torch's own forward, and nothing of the model's inside (attention's projections are its own)."""
    forward = getattr(type(module).forward, "__module__", "") or ""
    if not forward.startswith("torch.nn.modules."):
        return False
    return isinstance(module, torch.nn.MultiheadAttention) or next(module.children(), None) is None
