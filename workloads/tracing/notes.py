"""Record what one operator does: its layer, direction, shapes, types and what its formula needs.
Imports torch."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from perfctl.workloads.spec import get_first_error_line
from perfctl.workloads.tracing import composites, operations
from perfctl.workloads.tracing.composites import CompositeCall
from perfctl.workloads.tracing.layers import LayerFrame, LayerStack, ModuleNames
from perfctl.workloads.tracing.memory import get_storage_or_none
from perfctl.workloads.tracing.operations import OperatorPlan
from perfctl.workloads.tracing.versions import Args, Kwargs, current_task, next_number

if TYPE_CHECKING:  # of estimates alone: not in what runs inside a profiled process
    from perfctl.workloads.tracing.autocast import TracedAutocast

_ADDS = ("aten.add", "aten.addmm", "aten._scaled_mm", "aten.baddbmm", "aten.add_", "aten.sub")
_CAST = "aten._to_copy"
COPIES = frozenset({"aten.copy_", "aten.detach"})
"""Used to accumulate a gradient whose memory layout differs from the parameter's: depends on the
device only."""
SCALAR, ENTRY = "aten._local_scalar_dense", "aten.lift_fresh"
"""The operators of Tensor.item, and of torch.tensor and torch.from_numpy."""
RETURNED = "its values come from outside of torch, where work is not visible"


class _RecordedThread(threading.local):
    entered = False
    depth = 0
    """Modules that another thread than the recorded one is calling."""


class OperationNotes:
    """The operations that a step runs, each with its layer, direction, shapes and types."""

    def __init__(self, names: ModuleNames, roots: bool, autocast: TracedAutocast | None) -> None:
        """``roots``: whether a module called outside of others gets a name."""
        self.names = names
        self.places = LayerStack(names, roots)
        self._autocast = autocast
        if autocast is not None:
            autocast.in_linear = lambda: isinstance(self.places.top.module, nn.Linear)
        self._zeros: dict[int, Any] = {}
        """Storages of zeros that stand for tangents that are zero (torch.func.jvp)."""
        self._has_zeros = False
        self.numbered = next_number()
        """The next autograd node's number after the last operator."""
        self._nodes: dict[int, tuple[str, bool]] = {}
        self._weights: dict[int, Any] = {}
        self._seen: dict[operations.Note, list[int]] = {}
        self._dynamic: dict[str, None] = {}
        self._optimizing = False
        self._read_out: set[str] = set()
        """Layers that took a floating-point number out of torch with ``item``."""
        self._own: int | None = None
        """The newest node's number of a torch.autograd.Function."""
        self._values_only = False
        self._function: str | None = None
        """Name of the outermost running torch.autograd.Function; in backward, of its node."""
        self._thread = _RecordedThread()
        """Whether this is the thread that is recorded: modes and the stack of modules belong
        to one."""

    def _is_recorded_thread(self) -> bool:
        """Return whether this is the recorded thread, or autograd's, which repeats forward work of
        checkpointing."""
        return self._thread.entered or current_task() != -1

    def _is_numeric_value_leaving_torch(self, tensor: Tensor) -> bool:
        """Return whether numbers to compute with cross the border of torch in a forward or a
        backward. Integers are sizes and indices; a single number may only be logged."""
        inside = len(self.places.stack) > 1 or current_task() != -1
        return (
            inside
            and not self._optimizing
            and self._is_recorded_thread()
            and (tensor.is_floating_point() or tensor.is_complex())
            and tensor.numel() > 1
        )

    def record_value_crossing_torch(self, name: str, tensor: Tensor) -> None:
        """Note a number that leaves torch, and values of Python or NumPy that come in: of NumPy, or
        in a layer that took a number out before."""
        layer = self.places.find_running_frame_and_direction()[0].layer
        if name == SCALAR and tensor.is_floating_point():
            self._read_out.add(layer)
        elif name == ENTRY and self._is_numeric_value_leaving_torch(tensor):
            # memory of NumPy cannot grow; before torch 2.2, a storage may not tell
            can_grow = getattr(get_storage_or_none(tensor), "resizable", lambda: True)
            if not can_grow():
                self.add_unknown_operation("torch.from_numpy", RETURNED)
            elif layer in self._read_out:
                self.add_unknown_operation("torch.tensor", RETURNED)

    def record_flex_attention_and_run(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """FlexAttention: the scores of the blocks that its mask keeps; its own operators are not
        recorded."""
        if self.places.top.call is None:
            call = composites.describe_flex_attention(args)
            if func.name() == "flex_attention":
                self._add_composite_call(self.places.top, call)
            else:
                call.attributes["needs"], call.backend = (True, True, True), "flash"
                self._add_composite_call(
                    self.places.find_running_frame_and_direction()[0], call, "backward"
                )
        return func(*args, **kwargs)

    def _record_compiled_function_call(self, name: str, args: Args) -> None:
        """Note a call of a compiled function, whose work is unknown, not 0. FlexAttention compiles
        itself, and its forward follows from its arguments."""
        if name == composites.FLEX_REGION:
            self._add_composite_call(self.places.top, composites.describe_flex_attention(args))
        else:
            self.add_unknown_operation(f"torch.compile.{name}", composites.COMPILED)
        if torch.is_grad_enabled():
            frame, reason = self.places.top, composites.COMPILED
            self.add_unknown_operation(f"torch.compile.{name}", reason, frame, "backward")

    def record_control_flow_operator(self, name: str) -> None:
        """Note that a branch or loop may depend on data, and that its gradients are of its operands
        only."""
        if name not in ("scan", "map_impl"):
            self._dynamic[f"higher_order.{name}"] = None
        frame, direction, _ = self.places.find_running_frame_and_direction()
        if torch.is_grad_enabled() or direction == "backward":
            reason = "the gradients of tensors that its functions close over are not visible"
            self.add_unknown_operation(f"higher_order.{name}", reason, frame, "backward")

    def add_unknown_operation(
        self, op: str, reason: str, frame: LayerFrame | None = None, direction: str = "forward"
    ) -> None:
        """Count an operation about which nothing is known but its name. ``frame``, ``direction``:
        where it ran, if not here and now."""
        here = frame
        if here is None:
            here, direction, _ = self.places.find_running_frame_and_direction()
        self._count_operation(here, op, direction, (), (), (), (("missed", reason),), functional=op)

    def record_operator_or_name_only(
        self, plan: OperatorPlan, args: Args, kwargs: Kwargs, result: Any
    ) -> None:
        """``record_operator``; an operation that it cannot read is counted by name only."""
        try:
            self.record_operator(plan, args, kwargs, result)
        except Exception as error:
            self.add_unknown_operation(
                plan.name, f"{type(error).__name__}: {get_first_error_line(error)}"
            )

    def record_operator(self, plan: OperatorPlan, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Record one operator, unless it is part of a composite call."""
        if self._optimizing:
            return
        frame, direction, key = self.places.find_running_frame_and_direction()
        if (call := frame.call) is not None and not self._is_autocast_cast(plan.name, key):
            call.set_flash_backend_if_fused(plan.name)
            task = current_task()
            if direction == "backward" and task not in call.tasks and call.op:
                call.tasks.add(task)
                self._add_composite_call(frame, call, "backward")
            return
        if (
            direction == "backward"
            and key is None
            and (plan.name in COPIES or frame.layer in self.places.recurrent)
        ):
            return
        if plan.dynamic and operations.has_data_dependent_size(plan.name, args):
            self._dynamic[plan.name] = None
        if plan.name == "aten._efficientzerotensor":
            self._has_zeros = True
        elif self._has_zeros and plan.name == "aten.zeros" and result.dim() == 0:
            self._remember_storage_while_alive(self._zeros, result)
        shapes: list[tuple[int, ...] | None] = []
        types: list[Any] = []
        weights = self._append_shapes_and_count_weights(args, shapes, types)
        outputs: list[tuple[int, ...] | None] = []
        self._append_shapes_and_count_weights(
            result if isinstance(result, (tuple, list)) else (result,),
            outputs,
            types,
            count_weights=False,
        )
        forward, role = plan.name, None
        if direction == "forward":
            self._record_newest_node_operator(plan.name, weights > 0)
            if weights and weights == len(types) - sum(shape is not None for shape in outputs):
                self._remember_derived_weights(result)
        else:
            forward, role = self._find_forward_operator_and_role(key, plan.name, weights > 0)
        attributes = plan.attributes(args, kwargs) if plan.attributes else ()
        if self._has_zeros and any(self._is_zero_tangent(value) for value in args):
            attributes = (*attributes, ("zero", True))
        if self._values_only:
            attributes = (*attributes, ("compute_uv", False), ("compute_v", False))
        if stored := operations.count_sparse_values_and_pairs(args):
            attributes = (*attributes, *stored)
            self._dynamic[plan.name] = None
        for each in operations.split_nested_tensor_products(
            plan.name, args, result, shapes, outputs
        ):
            self._count_operation(
                frame,
                plan.name,
                direction,
                *each,
                tuple(types),
                attributes,
                functional=None if frame.leaf else forward,
                role=role,
            )

    def _is_zero_tangent(self, value: Any) -> bool:
        storage = get_storage_or_none(value) if isinstance(value, Tensor) else None
        return storage is not None and storage._cdata in self._zeros and not any(value.stride())

    def _record_newest_node_operator(self, name: str, has_weights: bool) -> None:
        """Note which operator created the newest autograd node: the one that increased the number.

        Operators without gradients right after a new node are the forward of a
        torch.autograd.Function; the first of them with a parameter represents it.
        """
        number = next_number() - 1
        if torch.is_grad_enabled():
            if number >= self.numbered:
                self._nodes.setdefault(number, (name, has_weights))
        elif number >= self.numbered or (
            number == self._own and has_weights and not self._nodes[number][1]
        ):
            self._own = number
            self._nodes[number] = (name, has_weights)

    def get_running_layer_and_direction(self) -> tuple[str, str]:
        """Return (layer, direction) of the running code, for the memory trace."""
        if self._optimizing:
            return "", "optimizer"
        frame, direction, _ = self.places.find_running_frame_and_direction()
        return frame.layer, direction

    def _count_operation(
        self,
        frame: LayerFrame,
        op: str,
        direction: str,
        *shapes_types_attributes: Any,
        functional: str | None = None,
        role: str | None = None,
    ) -> None:
        """Count one operation, as an ``operations.Note``."""
        recompute = frame.recompute and direction == "forward"
        if self._function is not None:
            *shapes_types, attributes = shapes_types_attributes
            shapes_types_attributes = (*shapes_types, (*attributes, ("function", self._function)))
        start = frame.layer, frame.kind, functional, op, direction, role, recompute
        entry = self._seen.setdefault((*start, *shapes_types_attributes), [len(self._seen), 0])
        entry[1] += 1

    def _add_composite_call(
        self, frame: LayerFrame, call: CompositeCall, direction: str = "forward"
    ) -> None:
        forward = direction == "forward"
        attributes = tuple(sorted(call.attributes.items()))
        self._count_operation(
            frame,
            call.op if forward else f"{call.op}_backward",
            direction,
            call.inputs,
            call.outputs,
            call.dtypes,
            attributes if forward else (*attributes, ("backend", call.backend)),
            functional=None if frame.leaf else call.op,
        )

    def _add_autocast_forward_call(self, frame: LayerFrame, call: CompositeCall) -> None:
        """A forward call that autocast runs in its own type; the casts are operations before it."""
        if self._autocast is not None:
            call.dtypes = self._autocast.convert_dtypes_to_autocast(call.dtypes)
        self._add_composite_call(frame, call)

    def _is_autocast_cast(self, name: str, node_number: int | None) -> bool:
        """Return whether the operator is a cast of autocast, or its gradient, and so no part of a
        composite call."""
        if self._autocast is None or name != _CAST:
            return False
        return self._autocast.casting or (
            node_number is not None and self._nodes.get(node_number, ("", False))[0] == _CAST
        )

    def _append_shapes_and_count_weights(
        self, values: Any, shapes: list[Any], types: list[Any], count_weights: bool = True
    ) -> int:
        """Append shapes and dtypes of the tensors; returns how many are parameters, or derived from
        parameters only."""
        weights = 0
        for value in values:
            if isinstance(value, Tensor):
                shapes.append(operations.get_dense_equivalent_shape(value))
                types.append(value.dtype)
                storage = get_storage_or_none(value) if count_weights else None
                if storage is not None and storage._cdata in self._weights:
                    weights += 1
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
                weights += self._append_shapes_and_count_weights(
                    value, shapes, types, count_weights
                )
            else:
                shapes.append(None)
        return weights

    def _remember_derived_weights(self, result: Any) -> None:
        """Count a tensor derived from parameters only (a cast under autocast, weight norm) as
        a parameter."""
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, Tensor):
                self._remember_storage_while_alive(self._weights, value)

    def _remember_storage_while_alive(self, storages: dict[int, Any], tensor: Tensor) -> None:
        """Keep the tensor's storage among ``storages`` while it lives."""
        storage = get_storage_or_none(tensor)
        if storage is not None and storage._cdata not in storages:
            key = storage._cdata
            storages[key] = weakref.ref(storage, lambda _: storages.pop(key, None))

    def _find_forward_operator_and_role(
        self, node_number: int | None, name: str, has_weights: bool
    ) -> tuple[str, str]:
        """Return (forward operator, direction) of a backward operator, from the operator that
        created its autograd node."""
        if node_number is None:
            return name, "grad_weight"
        forward, had_weight = self._nodes.get(node_number, (name, False))
        if not had_weight or has_weights:
            return forward, "grad_input"
        if name == "aten.sum" and forward in _ADDS:
            return forward, "grad_bias"
        return forward, "grad_weight" if forward not in _ADDS[4:] else "grad_input"
