"""Puts a named range around what each layer of any nn.Module does, forwards and backwards.

Forward ranges come from global module hooks. Backward kernels are started from autograd's own thread, where
a range around ``loss.backward()`` does not reach: so every autograd node that a module's forward created
carries a prehook and a hook which open and close "<layer>:backward" on the thread that runs it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from perfctl.workloads.ranges import Backend

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_CLAIMED = "perfctl"
"""Key in a node's own metadata that says: a layer has it already."""
_LEAF = 2**64 - 1
"""Sequence number of AccumulateGrad, the node that adds to a parameter's gradient: it has none of its own."""
_next_node: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""The sequence number that this thread's next autograd node will get."""


class _Call(NamedTuple):
    """A module's forward that is under way on this thread."""

    module: nn.Module
    name: str | None
    """None for a module that belongs to no known root: its work counts for the module around it."""
    first: int
    """Autograd's sequence number when it began: nodes from here on are its own."""
    claimed: int
    """How many nodes this thread's layers had been given when it began."""


class _Thread(threading.local):
    """What is under way on one thread."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.claimed = 0


class Annotator:
    """While entered, every module called puts ranges down: "conv1:forward", "layer2.0.conv1:backward".

    Names are dotted paths below ``root``; the root itself goes by its class. Without a root, the outermost
    module that is called becomes one, so an unedited script works too. Results do not change by a bit:
    the hooks look at tensors and hand nothing back. Eager mode; compiled graphs call no hooks.
    """

    def __init__(self, backend: Backend, root: nn.Module | None = None) -> None:
        self._backend = backend
        self._names: dict[int, str] = {}
        self._owners: dict[int, str] = {}
        self._roots: list[nn.Module] = []
        self._handles: list[RemovableHandle] = []
        self._hooks: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {}
        self._open: list[list[int]] = []
        """Threads in which a backward range is open now, one list a layer."""
        self._thread = _Thread()
        self._active = False
        if root is not None:
            self._know(root)

    def __enter__(self) -> Annotator:
        self._active = True
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._before),
            module_hooks.register_module_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._active = False
        for handle in self._handles:
            handle.remove()
        calls = self._thread.calls
        while calls:
            if calls.pop().name is not None:
                self._backend.pop()
        for opened in self._open:
            # Left by a backward pass that raised: only this thread's ranges can be closed from here.
            while threading.get_ident() in opened:
                opened.remove(threading.get_ident())
                self._backend.pop()

    def _know(self, root: nn.Module) -> None:
        """Remember the names below ``root``; holding it keeps the ids valid."""
        self._roots.append(root)
        for path, module in root.named_modules():
            name = path or type(root).__name__
            self._names.setdefault(id(module), name)
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(id(parameter), name)

    def _before(self, module: nn.Module, arguments: Any) -> None:
        thread = self._thread
        if not thread.calls and id(module) not in self._names:
            self._know(module)
        name = self._names.get(id(module))
        thread.calls.append(_Call(module, name, _next_node(), thread.claimed))
        if name is not None:
            self._backend.push(f"{name}:forward")

    def _after(self, module: nn.Module, arguments: Any, result: Any) -> None:
        thread = self._thread
        if not thread.calls or thread.calls[-1].module is not module:
            return
        call = thread.calls.pop()
        if call.name is None:
            return
        self._backend.pop()
        if _next_node() - call.first > thread.claimed - call.claimed:
            for tensor in _tensors(result):
                thread.claimed += self._claim(tensor, call.name, call.first)

    def _claim(self, output: Tensor, name: str, first: int) -> int:
        """Give the nodes that led to ``output`` since ``first`` to layer ``name``, where no child has them; how many.

        A parameter's own node goes to the layer that holds the parameter, and is not counted.
        """
        waiting: list[Any] = [output.grad_fn]
        seen: set[Any] = set()
        claimed = 0
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            number = node._sequence_nr()
            if number < first:
                continue
            owner = self._owners.get(id(node.variable)) if number == _LEAF else name
            metadata = node.metadata
            if owner is not None and _CLAIMED not in metadata:
                metadata[_CLAIMED] = owner
                claimed += number != _LEAF
                before, after = self._hooks.get(owner) or self._make_hooks(owner)
                node.register_prehook(before)
                node.register_hook(after)
            waiting.extend(below for below, _ in node.next_functions)
        return claimed

    def _make_hooks(self, owner: str) -> tuple[Callable[..., None], Callable[..., None]]:
        """(prehook, hook) that open and close the backward range of layer ``owner`` around a node of autograd."""
        text = f"{owner}:backward"
        opened: list[int] = []

        def before(gradients: Any) -> None:
            if self._active:
                self._backend.push(text)
                opened.append(threading.get_ident())

        def after(inputs: Any, outputs: Any) -> None:
            if opened:
                opened.pop()
                self._backend.pop()

        self._open.append(opened)
        self._hooks[owner] = before, after
        return before, after


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in what a module returned: tuples, lists, dictionaries and dataclasses of them, nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))
