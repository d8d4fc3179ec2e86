"""The machinery behind :class:`perfctl.workloads.shapes.Recorder`: dispatch mode, module hooks, notes.

Imports torch. Seen with torch 2.4 to 2.15: ``torch.autograd._get_sequence_nr``, ``torch._C._current_autograd_node``
and ``torch._C._current_graph_task_id`` are not public, but are what torch's own tracers use.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfctl.parsers.records import OpShape
from perfctl.workloads.composites import Call, describe_rnn, is_recurrent
from perfctl.workloads.live import Live
from perfctl.workloads.patches import Patches
from perfctl.workloads.seen_ops import Plan, plan_for
from perfctl.workloads.shapes import ModuleSeen, layer_parameters

ACCUMULATE = 2**64 - 1
"""Sequence number of every AccumulateGrad node."""

COPIES = frozenset({"aten.copy_", "aten.detach"})
"""What accumulating a gradient does where its memory layout is not the parameter's: of the device, not of the model."""

_sequence = torch.autograd._get_sequence_nr
_node = torch._C._current_autograd_node
_task = torch._C._current_graph_task_id
_Tensor = torch.Tensor


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


class Dispatch(TorchDispatchMode):
    """Hands every operator to the watch, after it has run."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        self.plans: dict[Any, Plan] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plan = self.plans.get(func)
        if plan is None:
            plan = self.plans[func] = plan_for(func)
        if plan.composite:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if not plan.free:
            self.watch.note(plan, args, kwargs, result)
        if self.watch.live is not None:
            self.watch.live.see(result, *self.watch.place(), plan.name)
        return result


class Watch:
    """Everything that is known about the step so far."""

    def __init__(self, model: torch.nn.Module, live: Live | None = None) -> None:
        self.model = model
        self.live = live
        self.names: dict[int, tuple[str, str, bool]] = {}
        self.owners: dict[int, str] = {}
        self.outputs: dict[str, tuple[int, ...] | None] = {}
        self.failed_in: str | None = None
        for path, module in model.named_modules():
            self.names[id(module)] = (path, type(module).__name__, is_leaf(module))
            for tensor in module.parameters(recurse=False):
                self.owners.setdefault(id(tensor), path)
        self.frames_of = {known[0]: Frame(*known) for known in self.names.values()}
        self.recurrent = {path for path, module in model.named_modules() if is_recurrent(module)}
        self.parameters = layer_parameters(model)
        self.outside = Frame("", "", False)
        self.stack: list[Frame] = [self.outside]
        self.starts: list[int] = [0]
        self.frames: list[Frame] = [self.outside]
        self.nodes: dict[int, tuple[str, bool]] = {}
        self.weights: dict[int, Any] = {}
        self.task_grad: dict[int, bool] = {}
        self.seen: dict[tuple[Any, ...], list[int]] = {}
        self.dynamic: dict[str, None] = {}
        self.busy = False
        self.dispatch = Dispatch(self)
        self.patches = Patches(self)

    def start(self) -> None:
        """From here on everything is seen."""
        self.weights = {tensor.untyped_storage()._cdata: None for tensor in self.model.parameters()}
        self._mark(self.outside)
        self.patches.apply()
        self.dispatch.__enter__()

    def stop(self) -> None:
        self.dispatch.__exit__(None, None, None)
        self.patches.undo()
        del self.stack[1:]

    # Where we are

    def _mark(self, frame: Frame) -> None:
        """Autograd nodes made from now on belong to ``frame``."""
        now = _sequence()
        if now == self.starts[-1]:
            self.frames[-1] = frame
        elif now > self.starts[-1]:
            self.starts.append(now)
            self.frames.append(frame)

    def push(self, frame: Frame) -> None:
        self.stack.append(frame)
        self._mark(frame)

    def pop(self) -> Frame:
        frame = self.stack.pop()
        self._mark(self.stack[-1])
        return frame

    def enter(self, module: torch.nn.Module, args: Any) -> None:
        """Global forward pre-hook."""
        known = self.names.get(id(module))
        above = self.stack[-1]
        recompute = _task() != -1
        if above.call is not None:
            self.push(above)
            return
        if known is None:
            kind = type(module).__name__ if above is self.outside else above.kind
            frame = Frame(above.layer, kind, above.leaf or above is self.outside, recompute)
        elif above.leaf and above is not self.outside:
            frame = Frame(above.layer, above.kind, True, recompute)
        else:
            frame = Frame(*known, recompute)
        if is_recurrent(module):
            frame.call = Call()
        self.push(frame)

    def leave(self, module: torch.nn.Module, args: Any, *rest: Any) -> None:
        """Global forward hook: (kwargs, output), or after an exception (None,) alone."""
        kwargs, output = rest if len(rest) == 2 else ({}, rest[0])
        if len(self.stack) == 1:
            return
        if len(rest) == 2:
            self.failed_in = None
        elif self.failed_in is None:
            self.failed_in = self.names.get(id(module), (self.stack[-1].layer, "", False))[0]
        frame = self.pop()
        call = frame.call
        if call is not None and is_recurrent(module) and self.stack[-1] is not frame and output is not None:
            describe_rnn(call, module, args, kwargs, output)
            self.note_call(frame, call)
        known = self.names.get(id(module))
        if known is not None and known[0] not in self.outputs:
            self.outputs[known[0]] = first_shape(output)

    # What happened

    def note(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Write one operator down, or pass over it when it is part of a composite call."""
        if self.busy:
            return
        node = _node()
        if node is None:
            frame, direction, key = self.stack[-1], "forward", None
        else:
            frame, direction, key = self._backward_place(node)
        if frame.call is not None:
            self._inside(frame, frame.call, plan, direction)
            return
        if direction == "backward" and key is None and (plan.name in COPIES or frame.layer in self.recurrent):
            return
        if plan.dynamic:
            self.dynamic[plan.name] = None
        shapes: list[tuple[int, ...] | None] = []
        types: list[Any] = []
        weights = self._read(args, shapes, types)
        outputs: list[tuple[int, ...] | None] = []
        self._read(result if isinstance(result, (tuple, list)) else (result,), outputs, types, look=False)
        forward = plan.name
        role = None
        if direction == "forward":
            if torch.is_grad_enabled():
                self.nodes.setdefault(_sequence() - 1, (plan.name, weights > 0))
            if weights and weights == len(types) - sum(shape is not None for shape in outputs):
                self._derive(result)
        else:
            forward, role = self._role(key, plan.name, weights > 0)
        attributes = plan.attributes(args, kwargs) if plan.attributes else ()
        record = (
            frame.layer, frame.kind, None if frame.leaf else forward, plan.name, direction, role,
            frame.recompute and direction == "forward", tuple(shapes), tuple(outputs), tuple(types), attributes,
        )  # fmt: skip
        self._add(record)

    def place(self) -> tuple[str, str]:
        """(layer, direction) of what runs now, for the memory trace."""
        if self.busy:
            return "", "optimizer"
        node = _node()
        if node is None:
            return self.stack[-1].layer, "forward"
        frame, direction, _ = self._backward_place(node)
        return frame.layer, direction

    def _add(self, record: tuple[Any, ...]) -> None:
        entry = self.seen.get(record)
        if entry is None:
            self.seen[record] = [len(self.seen), 1]
        else:
            entry[1] += 1

    def note_call(self, frame: Frame, call: Call, direction: str = "forward") -> None:
        """Write one composite call down."""
        attributes = tuple(sorted(call.attributes.items()))
        if direction == "backward":
            attributes += (("backend", call.backend),)
        op = call.op if direction == "forward" else call.op + "_backward"
        functional = None if frame.leaf else call.op
        recompute = frame.recompute and direction == "forward"
        types = tuple(call.dtypes)
        self._add(
            (frame.layer, frame.kind, functional, op, direction, None, recompute, call.inputs, call.outputs, types,
             attributes)
        )  # fmt: skip

    def note_update(self, layer: str, op: str, tensor: torch.Tensor, attributes: tuple[tuple[str, Any], ...]) -> None:
        """Write down that an optimizer stepped one parameter."""
        shape = tuple(tensor.shape)
        kind = self.frames_of[layer].kind if layer in self.frames_of else ""
        self._add(
            (layer, kind, None, op, "optimizer", None, False, (shape,), (shape,), (tensor.dtype,) * 2, attributes)
        )

    def _inside(self, frame: Frame, call: Call, plan: Plan, direction: str) -> None:
        call.saw(plan.name)
        task = _task()
        if direction == "backward" and task not in call.tasks and call.op:
            call.tasks.add(task)
            self.note_call(frame, call, "backward")

    def _backward_place(self, node: Any) -> tuple[Frame, str, int | None]:
        """Frame, direction and sequence number for an operator that runs while autograd does."""
        top = self.stack[-1]
        if top.recompute:
            return top, "forward", None
        task = _task()
        grad = torch.is_grad_enabled()
        again = grad and not self.task_grad.setdefault(task, grad)
        number = node._sequence_nr()
        if number == ACCUMULATE:
            layer = self.owners.get(id(node.variable), "")
            return self.frames_of.get(layer, self.outside), "backward", None
        frame = self.frames[bisect_right(self.starts, number) - 1]
        if again:
            return Frame(frame.layer, frame.kind, frame.leaf, True, frame.call), "forward", None
        return frame, "backward", number

    def _read(self, values: Any, shapes: list[Any], types: list[Any], look: bool = True) -> int:
        """Append shapes and dtypes of the tensors; how many of them are parameters, or made of parameters only."""
        weights = 0
        for value in values:
            if isinstance(value, _Tensor):
                shapes.append(tuple(value.shape))
                types.append(value.dtype)
                if look and value.untyped_storage()._cdata in self.weights:
                    weights += 1
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], _Tensor):
                weights += self._read(value, shapes, types, look)
            else:
                shapes.append(None)
        return weights

    def _derive(self, result: Any) -> None:
        """A tensor made of parameters alone (a cast under autocast, weight norm) counts as one of them."""

        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, _Tensor):
                storage = value.untyped_storage()
                key = storage._cdata
                if key not in self.weights:
                    self.weights[key] = weakref.ref(storage, partial(_forget, self.weights, key))

    def _role(self, key: int | None, name: str, weights: bool) -> tuple[str, str]:
        """(forward operator, direction) of a backward operator, from what its autograd node went forward with."""
        forward, had_weight = self.nodes.get(key, (name, False)) if key is not None else (name, True)
        if key is None:
            return forward, "grad_weight"
        if not had_weight or weights:
            return forward, "grad_input"
        adds = ("aten.add", "aten.addmm", "aten.baddbmm", "aten.add_", "aten.sub")
        if name == "aten.sum" and forward in adds:
            return forward, "grad_bias"
        return forward, "grad_weight" if forward not in adds[3:] else "grad_input"

    # What comes out

    def op_shapes(self) -> tuple[OpShape, ...]:
        own = self._own_parameters()
        return tuple(_op_shape(record, entry, own) for record, entry in self.seen.items())

    def _own_parameters(self) -> dict[str, int]:
        """Parameters per layer that ran; those of modules that never run themselves go to the next one above."""
        ran = {record[0] for record in self.seen}
        own: dict[str, int] = {}
        for path, count in self.parameters.items():
            while path and path not in ran:
                path = path.rpartition(".")[0]
            own[path] = own.get(path, 0) + count
        return own

    def modules_seen(self) -> tuple[ModuleSeen, ...]:
        seen: set[int] = set()
        found = []
        for path, module in self.model.named_modules():
            own = [tensor for tensor in module.parameters(recurse=False) if id(tensor) not in seen]
            seen.update(id(tensor) for tensor in own)
            buffers = list(module.buffers(recurse=False))
            found.append(
                ModuleSeen(
                    path=path,
                    kind=type(module).__name__,
                    depth=path.count(".") + 1 if path else 0,
                    output=self.outputs.get(path),
                    parameters=sum(tensor.numel() for tensor in own),
                    trainable=sum(tensor.numel() for tensor in own if tensor.requires_grad),
                    parameter_bytes=sum(tensor.numel() * tensor.element_size() for tensor in own),
                    buffer_bytes=sum(tensor.numel() * tensor.element_size() for tensor in buffers),
                    called=path in self.outputs,
                )
            )
        return tuple(found)


def _forget(weights: dict[int, Any], key: int, _: Any) -> None:
    weights.pop(key, None)


def is_leaf(module: torch.nn.Module) -> bool:
    """One layer: torch's own forward, and nothing of the model's inside (attention's projections are its own)."""
    forward = getattr(type(module).forward, "__module__", "") or ""
    if not forward.startswith("torch.nn.modules."):
        return False
    return isinstance(module, torch.nn.MultiheadAttention) or next(module.children(), None) is None


def first_shape(output: Any) -> tuple[int, ...] | None:
    """Shape of the first tensor in a module's output."""
    if isinstance(output, torch.Tensor):
        return tuple(output.shape)
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((shape for shape in map(first_shape, output) if shape is not None), None)
    data = getattr(output, "data", None)
    return tuple(data.shape) if isinstance(data, torch.Tensor) else None


def _json(value: Any) -> Any:
    return [_json(item) for item in value] if isinstance(value, tuple) else value


def _op_shape(record: tuple[Any, ...], entry: list[int], own: dict[str, int]) -> OpShape:
    layer, kind, functional, op, direction, role, recompute, inputs, outputs, types, attributes = record
    extra: dict[str, object] = {name: _json(value) for name, value in attributes}
    if functional is not None:
        extra["functional"] = functional
    if role is not None:
        extra["role"] = role
    if recompute:
        extra["recompute"] = True
    return OpShape(
        layer=layer,
        kind=kind,
        op=op,
        direction=direction,
        inputs=inputs,
        outputs=outputs,
        dtypes=tuple(str(dtype).removeprefix("torch.") for dtype in types),
        attributes=extra,
        parameters=own.get(layer, 0) if kind else 0,
        calls=entry[1],
        position=entry[0],
    )
