"""Put a named range around the forward and backward work of each layer of any nn.Module.

Forward ranges come from global module hooks. Backward kernels are launched from autograd's thread,
which a range around ``loss.backward()`` does not cover. So every autograd node that a module's
forward created gets a prehook and a hook, which open and close the layer's range on the thread that
runs the node.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from typing import Any, Callable, Tuple

from torch import Tensor, is_grad_enabled, nn

from perfctl.records.report import Gap
from perfctl.workloads.run.clock import RangeBackend
from perfctl.workloads.tracing.composites import (
    COMPILED,
    GlobalModuleHooks,
    exclude_hooks_from_compilation,
    is_compiled_region,
    is_torch_compile_wrapper,
)
from perfctl.workloads.tracing.gradients import (
    NodeLayers,
    hook_autograd_nodes_between,
    hook_unclaimed_autograd_nodes,
    iterate_output_tensors,
    iterate_tensors,
)
from perfctl.workloads.tracing.layers import ModuleNames
from perfctl.workloads.tracing.versions import HAS_NUMBERS, current_task, is_compiling, next_number

Hook = Callable[..., None]


class _RunningLayer:
    """One module in the stack of running ones; kept for named modules, because modules are
    called often."""

    __slots__ = ("compiled", "forward", "module", "name")

    def __init__(self, module: nn.Module, name: str | None, compiled: bool = False) -> None:
        self.module = weakref.ref(module)
        """A weak reference, to keep nothing alive and to notice a reused id."""
        self.name = name
        """None for a module below no known root: its work counts for the module around it."""
        self.forward = f"{name}:forward"
        self.compiled = compiled


_Node = Tuple[Hook, int, int]
"""A running autograd node: the hook that closes its range, its backward pass, and autograd's
sequence number at its start (later nodes belong to its gradients)."""


class _OpenRangeStack:
    """The ranges open on one thread, outermost first."""

    __slots__ = ("calls", "compiled", "inputs", "makers", "open")

    def __init__(self) -> None:
        self.inputs: list[set[Any]] = []
        """Autograd nodes that made the inputs of each running module; only before torch 2.1, whose
        nodes have no numbers."""
        self.open: list[_RunningLayer | _Node] = []
        self.calls = 0
        self.compiled = 0
        """How many of them are compiled; hooks do nothing inside these."""
        self.makers = NodeLayers()

    def find_innermost_named_layer(self) -> _RunningLayer | None:
        """Return the innermost running module with a name; None without one, or when a node started
        inside it."""
        for item in reversed(self.open):
            if type(item) is tuple:
                return None
            assert isinstance(item, _RunningLayer)
            if item.name is not None:
                return item
        return None

    def find_stack_index(self, target: object) -> int | None:
        """Index in ``open`` of a module, or of the node that a hook closes."""
        levels = range(len(self.open) - 1, -1, -1)
        items = ((level, self.open[level]) for level in levels)
        return next(
            (
                n
                for n, item in items
                if (item.module() if isinstance(item, _RunningLayer) else item[0]) is target
            ),
            None,
        )


class _ThreadRanges(threading.local):
    def __init__(self) -> None:
        self.running = _OpenRangeStack()


class LayerRangeAnnotator:
    """While entered, every module called opens ranges such as "conv1:forward" and
    "layer2.0.conv1:grad_weight".

    Backward ranges name the gradients that an autograd node computes: ``grad_input``,
    ``grad_weight``, or ``backward`` for both. Forward work repeated during backward is
    ``recompute``. Layer names come from :class:`ModuleNames`. Results stay the same to the bit: the
    hooks only look at tensors.
    """

    def __init__(
        self, backend: RangeBackend, root: nn.Module | None = None, names: ModuleNames | None = None
    ) -> None:
        """``root``: the model, if known. ``names``: shared with everything that names layers in
        this process."""
        self._push, self._pop = backend.push, backend.pop
        self._names = names or ModuleNames(root)
        self._module_hooks = GlobalModuleHooks(
            self._before, self._close_range_after_forward, with_kwargs=not HAS_NUMBERS
        )
        self._layers: dict[int, _RunningLayer] = {}
        self._hooks: dict[tuple[str, str], tuple[Hook, Hook]] = {}
        self._regions: dict[str, None] = {}
        self._thread = _ThreadRanges()
        self._epoch = 0
        self._active = False

    @property
    def compiled_region_gaps(self) -> list[Gap]:
        """One gap per compiled region that ran: its layers cannot be told apart."""
        return [Gap("layer ranges", "not_available", COMPILED, name) for name in self._regions]

    def __enter__(self) -> LayerRangeAnnotator:
        self._active = True
        _ENTERED.add(self)
        exclude_hooks_from_compilation(self._before, self._close_range_after_forward)
        self._module_hooks.install()
        return self

    def __exit__(self, *_: object) -> None:
        self._active = False
        _ENTERED.discard(self)
        self._module_hooks.remove()
        self.close_leftover_ranges()

    def close_leftover_ranges(self) -> None:
        """Close the ranges of this thread that an exception left open."""
        self._close_down_to_level(self._thread.running, 0)

    def _close_down_to_level(self, running: _OpenRangeStack, level: int) -> None:
        while len(running.open) > level:
            item = running.open.pop()
            if isinstance(item, _RunningLayer):
                del running.inputs[running.calls - 1 :]
                running.calls -= 1
                running.compiled -= item.compiled
                if item.name is None:
                    continue
            self._pop()

    def _before(self, module: nn.Module, arguments: Any) -> None:
        if is_compiling() or not self._active:
            return
        running = self._thread.running
        if running.compiled:
            return
        recompute = current_task() != -1 or (
            not HAS_NUMBERS and any(type(item) is tuple for item in running.open)
        )
        if not running.calls and not recompute:
            # Outside of modules and backward: open ranges were left by a backward pass that raised.
            self._close_down_to_level(running, 0)
            self._epoch += 1
        if not HAS_NUMBERS:
            self._hook_layer_autograd_nodes(running, iterate_tensors(arguments))
            running.inputs.append({tensor.grad_fn for tensor in iterate_tensors(arguments)})
        layer = self._layers.get(id(module))
        if (
            layer is None
            or layer.module() is not module
            or module.__dict__.get("_compiled_call_impl") is not None
        ):
            layer = self._make_running_layer(module, running, recompute)
        running.calls += 1
        running.open.append(layer)
        if layer.name is not None:
            running.makers.set_next_autograd_nodes_layer(layer.name)
            self._push(f"{layer.name}:recompute" if recompute else layer.forward)

    def _make_running_layer(
        self, module: nn.Module, running: _OpenRangeStack, recompute: bool
    ) -> _RunningLayer:
        """Return the layer of a module called for the first time, or of one that cannot be kept."""
        parent = running.find_innermost_named_layer()
        name = self._names.find_or_assign_name(
            module, None if parent is None else parent.module(), may_become_root=not recompute
        )
        layer = _RunningLayer(module, name, is_compiled_region(module))
        if layer.compiled:
            running.compiled += 1
            self._regions[name or type(module).__name__] = None
            if is_torch_compile_wrapper(module):
                self._module_hooks.hide_during_forward(module)
        elif name is not None and self._names.get_registered_name(module) == name:
            # a replica has the name of its original
            self._layers[id(module)] = layer
        return layer

    def _hook_layer_autograd_nodes(
        self, running: _OpenRangeStack, outputs: Iterable[Tensor]
    ) -> None:
        """Before torch 2.1: the nodes that the innermost running layer made up to here are
        its own."""
        layer = running.find_innermost_named_layer()
        if layer is not None and layer.name is not None and is_grad_enabled():
            inputs = set().union(*running.inputs)
            hook_autograd_nodes_between(
                outputs,
                inputs,
                layer.name,
                self._names.find_layer_of_parameter,
                self._make_autograd_range_hooks,
            )

    def _close_range_after_forward(
        self, module: nn.Module, arguments: Any, *hook_arguments: Any
    ) -> None:
        """``hook_arguments``: (result,); before torch 2.1 (kwargs, result), or (None,) after an
        exception."""
        if is_compiling():
            return
        result = hook_arguments[-1]
        running = self._thread.running
        opened, makers = running.open, running.makers
        if not HAS_NUMBERS and opened and running.inputs and type(opened[-1]) is not tuple:
            running.inputs[-1].update(
                tensor.grad_fn
                for tensor in iterate_tensors(
                    hook_arguments[0] if len(hook_arguments) > 1 else None
                )
            )
            self._hook_layer_autograd_nodes(running, iterate_output_tensors(result))
        if opened and opened[-1] is self._layers.get(id(module)):
            opened.pop()
            del running.inputs[running.calls - 1 :]
            running.calls -= 1
            self._pop()
        else:
            level = running.find_stack_index(module)
            if level is None:
                return
            self._close_down_to_level(running, level)
        if running.calls:
            parent = running.find_innermost_named_layer()
            makers.set_next_autograd_nodes_layer(None if parent is None else parent.name)
            return
        if HAS_NUMBERS and self._active and makers.starts and next_number() > makers.starts[0]:
            outputs = (result,) if isinstance(result, Tensor) else iterate_output_tensors(result)
            hook_unclaimed_autograd_nodes(
                outputs,
                makers,
                self._names.find_layer_of_parameter,
                self._make_autograd_range_hooks,
            )
        makers.clear()

    def _make_autograd_range_hooks(self, layer: str, direction: str) -> tuple[Hook, Hook]:
        """Return (prehook, hook) that open and close a layer's range around an autograd node."""
        hooks = self._hooks.get((layer, direction))
        if hooks is not None:
            return hooks
        text = f"{layer}:{direction}"
        thread, push, pop = self._thread, self._push, self._pop

        def open_layer_range(gradients: Any) -> None:
            if not self._active:
                return
            running, epoch = thread.running, self._epoch
            opened = running.open
            while opened and type(top := opened[-1]) is tuple and top[1] != epoch:
                # An earlier pass raised while this thread was running one of its nodes.
                self._close_down_to_level(running, len(opened) - 1)
            opened.append((close_layer_range, epoch, next_number()))
            push(text)

        def close_layer_range(inputs: Any, outputs: Any) -> None:
            running = thread.running
            opened = running.open
            level = len(opened) - 1
            if (
                level < 0
                or type(top := opened[level]) is not tuple
                or top[0] is not close_layer_range
            ):
                lower = running.find_stack_index(close_layer_range)
                if lower is None:
                    return
                level = lower
            first = opened[level][2]  # type: ignore[index]
            if level == len(opened) - 1:
                opened.pop()
                pop()
            else:
                self._close_down_to_level(running, level)
            # create_graph: the gradients have their own nodes
            if HAS_NUMBERS and is_grad_enabled() and self._active:
                hook_unclaimed_autograd_nodes(
                    iterate_output_tensors(inputs),
                    NodeLayers(layer, first),
                    self._names.find_layer_of_parameter,
                    self._make_autograd_range_hooks,
                )

        self._hooks[layer, direction] = open_layer_range, close_layer_range
        return open_layer_range, close_layer_range


_ENTERED: weakref.WeakSet[LayerRangeAnnotator] = weakref.WeakSet()


def _forget_ranges_after_fork() -> None:  # a DataLoader's workers open no ranges
    for annotator in _ENTERED:
        annotator._active = False
        annotator._thread.running = _OpenRangeStack()


os.register_at_fork(after_in_child=_forget_ranges_after_fork)
