"""The implementation of :class:`perfctl.workloads.tracing.recorder.Recorder`: dispatch mode, hooks, notes. Imports torch."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
import torch.nn.functional
from torch._guards import TracingContext
from torch.nn.parameter import is_lazy
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode

from perfctl.records.paper import OpShape
from perfctl.workloads.tracing.composites import (
    Call,
    ModuleHooks,
    describe_attention,
    describe_rnn,
    is_compiled,
    is_recurrent,
    is_wrapper,
    prepare_for_compiled,
)
from perfctl.workloads.tracing.gradients import current_task
from perfctl.workloads.tracing.layers import Frame, Names, Places, sequence
from perfctl.workloads.tracing.memory import Live
from perfctl.workloads.tracing.operations import OpPlan, first_shape, modules_seen, op_shapes, plan_for
from perfctl.workloads.tracing.recorder import ModuleSeen

_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


class Patches:
    """Global module hooks, optimizer hooks, attention as one call, and the encoder's fast path disabled."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.handles: list[Any] = []
        self.module_hooks = ModuleHooks(watch.enter, watch.leave, with_kwargs=True)
        self.attention: Any = None
        self.fast_path = True

    def apply(self) -> None:
        watch = self.watch
        self.module_hooks.install()
        self.handles = [
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]
        # The fused encoder path exists only on CPU and GPU in eval: disable it, so that all devices run the same operators.
        self.fast_path = torch.backends.mha.get_fastpath_enabled()
        if watch.model is not None:  # a user's script must give the same results to the bit
            torch.backends.mha.set_fastpath_enabled(False)
        self.attention = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = self._attend

    def undo(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.module_hooks.remove()
        torch.backends.mha.set_fastpath_enabled(self.fast_path)
        torch.nn.functional.scaled_dot_product_attention = self.attention

    def _attend(self, *args: Any, **kwargs: Any) -> Any:
        watch, places = self.watch, self.watch.places
        above = places.top
        if above.call is not None:
            return self.attention(*args, **kwargs)
        call = Call()
        recompute = above.recompute or torch._C._current_graph_task_id() != -1
        frame = Frame(above.layer, above.kind, above.leaf, recompute, call, above.module)
        places.push(frame)
        output = None
        try:
            output = self.attention(*args, **kwargs)
        finally:
            places.pop()
            # Checkpointing ends a recomputation once everything saved exists again: on the math path in the middle of
            # attention, on a fused path after it. Attention is one operation, so it counts as a whole.
            if output is not None or recompute:
                describe_attention(call, {**dict(zip(_ATTENTION, args, strict=False)), **kwargs}, output)
                watch.note_call(frame, call)
        return output

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.watch.busy = True
        if self.watch.live is not None and self.watch.model is not None:
            self.watch.live.mark_gradients(self.watch.model)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.watch.busy = False
        op = f"optim.{type(optimizer).__name__}"
        for group in optimizer.param_groups:
            settings = tuple(
                (name, value)
                for name, value in sorted(group.items())
                if name in ("momentum", "weight_decay", "nesterov", "amsgrad", "centered", "dampening")
                and isinstance(value, (bool, int, float))
            )
            for tensor in group["params"]:
                if tensor.grad is not None:
                    self.watch.note_update(self.watch.names.holder(tensor) or "", op, tensor, settings)


COPIES = frozenset({"aten.copy_", "aten.detach"})
"""Used to accumulate a gradient whose memory layout differs from the parameter's: depends on the device only."""


class Dispatch(TorchDispatchMode):
    """Passes every operator to the watch after it ran."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch
        self.plans: dict[Any, OpPlan] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Lets torch.compile work in this mode; otherwise it would give up on the function for good."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if TracingContext.try_get() is not None:  # torch.compile is tracing: nothing is computed
            return func(*args, **kwargs)
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
        self.watch.numbered = sequence()
        if self.watch.live is not None:
            self.watch.live.see(result, *self.watch.place(), plan.name)
        return result


class Watch:
    """Everything recorded of the step so far."""

    def __init__(self, model: torch.nn.Module | None, live: Live | None = None, names: Names | None = None) -> None:
        self.model = model
        self.live = live
        self.names = names or Names(model, own="")
        self.places = Places(self.names, roots=model is None)
        self.modules: list[tuple[str, torch.nn.Module]] = []
        self.regions: dict[str, None] = {}
        """Names of the compiled regions that ran."""
        self.region: torch.nn.Module | None = None
        """The running compiled region, whose operations are not recorded."""
        self.outputs: dict[str, tuple[int, ...] | None] = {}
        self.failed_in: str | None = None
        self.parameters: dict[str, int] = {}
        self.counted: set[int] = set()
        """Ids of the parameters counted in ``parameters``."""
        self.nodes: dict[int, tuple[str, bool]] = {}
        self.weights: dict[int, Any] = {}
        self.seen: dict[tuple[Any, ...], list[int]] = {}
        self.dynamic: dict[str, None] = {}
        self.busy = False
        self.numbered = sequence()
        """The next autograd node's number after the last operator."""
        self.own: int | None = None
        """The newest node's number of a torch.autograd.Function."""
        self.dispatch = Dispatch(self)
        self.patches = Patches(self)

    def start(self) -> None:
        """Start recording."""
        self.names.follow(self._learn)
        self.places.mark(self.places.outside)
        prepare_for_compiled(self.enter, self.leave)
        self.patches.apply()
        self.dispatch.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        if self.region is None:
            self.dispatch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.patches.undo()
        self.names.unfollow(self._learn)
        del self.places.stack[1:]

    def _learn(self, name: str, module: torch.nn.Module) -> None:
        """Add a named module."""
        self.places.learn(name, module)
        self.modules.append((name, module))
        own = [tensor for tensor in module.parameters(recurse=False) if id(tensor) not in self.counted]
        self.counted.update(id(tensor) for tensor in own)
        self.parameters[name] = self.parameters.get(name, 0) + sum(map(_elements, own))
        self.weights.update((tensor.untyped_storage()._cdata, None) for tensor in own if not is_lazy(tensor))

    def enter(self, module: torch.nn.Module, args: Any) -> None:
        """Global forward pre-hook."""
        if torch.compiler.is_compiling():
            return
        self.places.push(self.places.frame_for(module))
        if self.region is None and is_compiled(module):
            # In a dispatch mode, torch.compile would compile a separate variant of the region.
            self.region = module
            self.regions[self.places.top.layer or type(module).__name__] = None
            self.dispatch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            if is_wrapper(module):
                self.patches.module_hooks.hide(module)

    def leave(self, module: torch.nn.Module, args: Any, *rest: Any) -> None:
        """Global forward hook; ``rest``: (kwargs, output), or (None,) after an exception."""
        if torch.compiler.is_compiling():
            return
        if self.region is module:
            self.region = None
            self.dispatch.__enter__()  # type: ignore[no-untyped-call]
        kwargs, output = rest if len(rest) == 2 else ({}, rest[0])
        if len(self.places.stack) == 1:
            return
        path = self.names.known(module)
        if len(rest) == 2:
            self.failed_in = None
        elif self.failed_in is None:
            self.failed_in = path if path is not None else self.places.top.layer
        frame = self.places.pop()
        cut_short = len(rest) == 1 and frame.recompute
        if frame.call is not None and self.places.top is not frame and is_recurrent(module) and (
            output is not None or cut_short
        ):  # fmt: skip
            describe_rnn(frame.call, module, args, kwargs, output)
            self.note_call(frame, frame.call)
        if path is not None and path not in self.outputs:
            self.outputs[path] = first_shape(output)

    def note(self, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record one operator, unless it is part of a composite call."""
        if self.busy:
            return
        frame, direction, key = self.places.now()
        if frame.call is not None:
            self._inside(frame, frame.call, plan, direction)
            return
        if direction == "backward" and key is None and (plan.name in COPIES or frame.layer in self.places.recurrent):
            return
        if plan.dynamic:
            self.dynamic[plan.name] = None
        shapes: list[tuple[int, ...] | None] = []
        types: list[Any] = []
        weights = self._read(args, shapes, types)
        outputs: list[tuple[int, ...] | None] = []
        self._read(result if isinstance(result, (tuple, list)) else (result,), outputs, types, count_weights=False)
        forward = plan.name
        role = None
        if direction == "forward":
            self._claim(plan.name, weights > 0)
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

    def _claim(self, name: str, weights: bool) -> None:
        """Note which operator created the newest autograd node: the one that increased the number.

        Operators without gradients right after a new node are the forward of a torch.autograd.Function; the first of them
        with a parameter represents it.
        """
        number = sequence() - 1
        if torch.is_grad_enabled():
            if number >= self.numbered:
                self.nodes.setdefault(number, (name, weights))
        elif number >= self.numbered or (number == self.own and weights and not self.nodes[number][1]):
            self.own = number
            self.nodes[number] = (name, weights)

    def place(self) -> tuple[str, str]:
        """(layer, direction) of the running code, for the memory trace."""
        if self.busy:
            return "", "optimizer"
        frame, direction, _ = self.places.now()
        return frame.layer, direction

    def _add(self, record: tuple[Any, ...]) -> None:
        entry = self.seen.get(record)
        if entry is None:
            self.seen[record] = [len(self.seen), 1]
        else:
            entry[1] += 1

    def note_call(self, frame: Frame, call: Call, direction: str = "forward") -> None:
        """Record one composite call."""
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
        """Record an optimizer's update of one parameter."""
        shape = tuple(tensor.shape)
        kind = self.places.frames_of[layer].kind if layer in self.places.frames_of else ""
        self._add(
            (layer, kind, None, op, "optimizer", None, False, (shape,), (shape,), (tensor.dtype,) * 2, attributes)
        )

    def _inside(self, frame: Frame, call: Call, plan: OpPlan, direction: str) -> None:
        call.note_operator(plan.name)
        task = current_task()
        if direction == "backward" and task not in call.tasks and call.op:
            call.tasks.add(task)
            self.note_call(frame, call, "backward")

    def _read(self, values: Any, shapes: list[Any], types: list[Any], count_weights: bool = True) -> int:
        """Append shapes and dtypes of the tensors; returns how many are parameters, or derived from parameters only."""
        weights = 0
        for value in values:
            if isinstance(value, torch.Tensor):
                shapes.append(tuple(value.shape))
                types.append(value.dtype)
                if count_weights and value.untyped_storage()._cdata in self.weights:
                    weights += 1
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
                weights += self._read(value, shapes, types, count_weights)
            else:
                shapes.append(None)
        return weights

    def _derive(self, result: Any) -> None:
        """Count a tensor derived from parameters only (a cast under autocast, weight norm) as a parameter."""
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                key = storage._cdata
                if key not in self.weights:
                    self.weights[key] = weakref.ref(storage, partial(_forget, self.weights, key))

    def _role(self, key: int | None, name: str, weights: bool) -> tuple[str, str]:
        """(forward operator, direction) of a backward operator, from the operator that created its autograd node."""
        forward, had_weight = self.nodes.get(key, (name, False)) if key is not None else (name, True)
        if key is None:
            return forward, "grad_weight"
        if not had_weight or weights:
            return forward, "grad_input"
        adds = ("aten.add", "aten.addmm", "aten.baddbmm", "aten.add_", "aten.sub")
        if name == "aten.sum" and forward in adds:
            return forward, "grad_bias"
        return forward, "grad_weight" if forward not in adds[3:] else "grad_input"

    def op_shapes(self) -> tuple[OpShape, ...]:
        """The recorded operations."""
        return op_shapes(self.seen, self.parameters)

    def modules_seen(self) -> tuple[ModuleSeen, ...]:
        """The named modules, with their output shapes."""
        return modules_seen(self.modules, self.outputs)


def _elements(tensor: torch.Tensor) -> int:
    return 0 if is_lazy(tensor) else tensor.numel()


def _forget(weights: dict[int, Any], key: int, _: Any) -> None:
    weights.pop(key, None)
