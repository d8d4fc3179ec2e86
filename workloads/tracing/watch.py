"""Record the operations of a step with a dispatch mode and hooks. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional
from torch import Tensor, nn
from torch._guards import TracingContext
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode

from perfctl.records.paper import OpShape, TracedModule
from perfctl.records.report import Gap
from perfctl.workloads.tracing import composites, operations
from perfctl.workloads.tracing.composites import CompositeCall, GlobalModuleHooks, is_recurrent
from perfctl.workloads.tracing.gradients import iterate_tensors
from perfctl.workloads.tracing.layers import LayerFrame, ModuleNames, current_node
from perfctl.workloads.tracing.memory import LiveStorages, get_storage_or_none
from perfctl.workloads.tracing.notes import ENTRY, SCALAR, OperationNotes
from perfctl.workloads.tracing.operations import OperatorPlan, is_nested_tensor
from perfctl.workloads.tracing.versions import (
    current_task,
    is_compiling,
    next_number,
    replace_attribute,
)

if TYPE_CHECKING:  # of estimates alone: not in what runs inside a profiled process
    from perfctl.workloads.tracing.autocast import TracedAutocast
    from perfctl.workloads.tracing.traffic import ReadTrafficCounter

# attention of jagged tensors looks for it in a dispatch mode (torch 2.14)
with suppress(ImportError):
    import torch.utils.flop_counter

_SETTINGS = ("momentum", "weight_decay", "nesterov", "amsgrad", "centered", "dampening")
"""Settings of an optimizer that change its work."""
_VALUES_ONLY = ("svdvals", "eigvalsh", "matrix_norm", "norm", "cond", "matrix_rank")
"""Functions of torch.linalg that take singular values or eigenvalues, and vectors only for
a gradient.

torch 2.14 makes the vectors in any dispatch mode (_may_require_fw_or_bw_grad), so a trace would see
work that no run does.
"""
_READ_OUT = ("numpy", "tolist", "__dlpack__")
"""Methods of a tensor whose values leave torch; numpy.asarray calls the first."""
OUTSIDE = "its values leave torch, and work outside of torch is not visible"
_WITHOUT_MODE = ("cond", "scan", "switch")
"""Higher-order operators that refuse to run inside a dispatch mode (torch 2.14)."""
_LOOPS = (*_WITHOUT_MODE, "while_loop", "map_impl")
"""Higher-order operators of control flow."""

# another name before torch 2.2
_tracing_context: Any = getattr(TracingContext, "try_get", TracingContext.get)
ELSEWHERE = (
    "another thread runs its forward (as in DataParallel), and perfctl records operators of one "
    "thread only"
)


class OperatorDispatchMode(TorchDispatchMode):
    """Passes every operator to the recorder after it ran."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.plans: dict[Any, OperatorPlan] = {}
        self.ended = False
        """The recorder ended in another thread than it began, where this mode cannot be removed."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Lets torch.compile work in this mode; otherwise it would give up on the function
        for good."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # torch.compile is tracing: nothing is computed
        if self.ended or _tracing_context() is not None:
            return func(*args, **kwargs)
        recorder = self.recorder
        if isinstance(func, HigherOrderOperator):
            recorder.dispatched += 1
            return self._run_higher_order_operator(func, args, kwargs)
        # shapes that DTensor works out before it computes: the next mode answers
        if FakeTensor in types:
            return func(*args, **kwargs)
        # a tensor made of tensors: the operators on those come here
        if operations.has_dispatching_subclass(types):
            return NotImplemented
        plan = self.plans.get(func)
        if plan is None:
            plan = self.plans[func] = operations.classify_operator(func)
        if plan.composite and not any(map(is_nested_tensor, args)):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = operations.run_operator_or_meta_substitute(func, plan.name, args, kwargs)
        recorder.dispatched += 1
        if plan.name in (SCALAR, ENTRY):
            recorder.record_value_crossing_torch(plan.name, args[0])
        if not plan.free:
            recorder.record_operator_or_name_only(plan, args, kwargs, result)
        recorder.numbered = next_number()
        if recorder.live is not None:
            from perfctl.workloads.tracing import as_cuda

            live, layer_and_direction = recorder.live, recorder.get_running_layer_and_direction()
            node = current_node()
            if node is not None:
                live.enter_node(node._sequence_nr())
            live.track_result_storages(result, *layer_and_direction, plan.name)
            if func is torch.ops.aten.add.Tensor and node is not None:
                live.note_gradient_sum(args[0], args[1], result)
            live.record_scratch_allocation(
                as_cuda.estimate_attention_backward_scratch_bytes(plan.name, args),
                *layer_and_direction,
                plan.name,
            )
        if recorder.watch is not None:
            recorder.watch.count_operator_reads(
                plan, args, kwargs, result, recorder.get_running_layer_and_direction()[0]
            )
        return result

    def _run_higher_order_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """FlexAttention is one operation, as attention is; of the others, the operators
        inside count."""
        if func.name() in ("flex_attention", "flex_attention_backward"):
            return self.recorder.record_flex_attention_and_run(func, args, kwargs)
        kernel = func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if func.name() in _LOOPS:
            self.recorder.record_control_flow_operator(func.name())
        if kernel is not None and func.name() in _WITHOUT_MODE:
            return kernel(*map(self._wrap_callable_in_mode, args), **kwargs)
        if kernel is not None:
            with self:
                return kernel(*args, **kwargs)
        result = func(*args, **kwargs)
        self.recorder.add_unknown_operation(
            f"higher_order.{func.name()}", "its operators are not visible"
        )
        return result

    def _wrap_callable_in_mode(self, value: Any) -> Any:
        """Return a function that runs in this mode; anything else unchanged."""
        if not callable(value):
            return value

        def run(*args: Any) -> Any:
            with self:
                return value(*args)

        return run


class Recorder(OperationNotes):
    """Context manager that records the operations inside it. Does not change results.

    Works with tensors of any device, in train or eval, with or without gradients. Attention and
    nn.LSTM, GRU, RNN are recorded as one operation each, the same on every device. Use it for a
    single step: identical calls add up.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        live: LiveStorages | None = None,
        names: ModuleNames | None = None,
        uncompiled: bool = False,
        autocast: TracedAutocast | None = None,
    ) -> None:
        """``model``: layers are named by their path below it; without it, modules are named when
        they are called.

        ``live``: also trace the lifetimes of storages. ``names``: shared with a
        LayerRangeAnnotator, for equal names. ``uncompiled``: what torch.compile or torch.jit made
        runs operator by operator, and so is recorded. ``autocast``: casts as on a GPU, entered by
        the caller."""
        super().__init__(names or ModuleNames(model, root_name=""), model is None, autocast)
        self._uncompiled = uncompiled
        self.dispatched = 0
        """Operators that ran so far, views too."""
        self._before: list[int] = []
        """``dispatched`` at the start of each running module."""
        self.model = model
        self.live = live
        self.watch: ReadTrafficCounter | None = None
        """Counts what is read of weights and of a cache; None: nothing does."""
        self.failed_in: str | None = None
        """Dotted path of the innermost module that raised an exception; None without one."""
        self._named: list[tuple[str, nn.Module]] = []
        self._regions: dict[str, None] = {}
        self._region: nn.Module | None = None
        """The running compiled region, whose operations are not recorded."""
        self._outputs: dict[str, tuple[int, ...] | None] = {}
        self._parameters: dict[str, int] = {}
        self._counted: set[int] = set()
        """Ids of the parameters counted in ``_parameters``."""
        self._dispatch = OperatorDispatchMode(self)
        self._elsewhere: dict[str, None] = {}
        """Parts of the running model whose forward another thread runs."""
        self._hooks = GlobalModuleHooks(
            self.on_module_call_begin, self.on_module_call_end, with_kwargs=True
        )
        self._undo = ExitStack()

    @property
    def ops(self) -> tuple[OpShape, ...]:
        """The recorded operations, in order of first call; identical calls are one record with
        a count."""
        return operations.build_op_shapes(self._seen, self._parameters)

    @property
    def modules(self) -> tuple[TracedModule, ...]:
        """Every module of the model, in the model's order; without a model, every module that
        was called."""
        return operations.list_traced_modules(self._named, self._outputs)

    @property
    def unrecorded_part_gaps(self) -> list[Gap]:
        """One gap per part whose operations cannot be recorded: compiled regions, and what other
        threads run."""
        reasons = {
            **dict.fromkeys(self._regions, composites.COMPILED),
            **dict.fromkeys(self._elsewhere, ELSEWHERE),
        }
        return [
            Gap("layer shapes", "not_available", reason, name) for name, reason in reasons.items()
        ]

    @property
    def data_dependent_operators(self) -> tuple[str, ...]:
        """Operations whose output sizes depend on the data: later records are valid for this
        input only."""
        return tuple(self._dynamic)

    def __enter__(self) -> Recorder:
        self.names.add_naming_listener(self._register_module)
        self.places.set_next_autograd_nodes_creator(self.places.outside)
        composites.exclude_hooks_from_compilation(
            self.on_module_call_begin, self.on_module_call_end
        )
        self._hooks.install()
        self._undo.callback(
            optimizers.register_optimizer_step_pre_hook(self._on_optimizer_step_begin).remove
        )
        self._undo.callback(
            optimizers.register_optimizer_step_post_hook(self._on_optimizer_step_end).remove
        )
        # The fused encoder path exists only on CPU and GPU in eval: disable it, so that all devices
        # run the same operators; a user's script must give the same results to the bit.
        if self.model is not None and hasattr(torch.backends, "mha"):  # torch 2.2 and later
            mha = torch.backends.mha
            self._undo.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
            mha.set_fastpath_enabled(False)
        replacements: list[tuple[Any, str, Callable[[Any], Any]]] = [
            (
                torch.nn.functional,
                "scaled_dot_product_attention",
                partial(self._wrap_as_single_operation, composites.fill_attention_call),
            ),
            (
                torch.linalg,
                "vecdot",
                partial(self._wrap_as_single_operation, composites.fill_vecdot_call),
            ),
            *((Tensor, name, self._wrap_value_reading_method) for name in _READ_OUT),
        ]
        if self._uncompiled:
            replacements += [
                (torch.linalg, name, self._wrap_values_only_function) for name in _VALUES_ONLY
            ]
        for owner, name, wrap in replacements:
            function = getattr(owner, name)
            self._undo.callback(
                replace_attribute(owner, name, update_wrapper(wrap(function), function))
            )
        self._patch_autograd_functions()
        self._dispatch.__enter__()  # type: ignore[no-untyped-call]
        self._thread.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        """May be called in another thread than ``__enter__``, which may have ended."""
        if not self._thread.entered:
            self._dispatch.ended = True
        elif self._region is None:
            self._dispatch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._hooks.remove()
        self._undo.close()
        self.names.remove_naming_listener(self._register_module)
        del self.places.stack[1:]

    def _patch_autograd_functions(self) -> None:
        """Also record each torch.autograd.Function as one operation, "autograd.NAME", and its
        backward, "autograd.NAMEBackward". What runs in it has the attribute ``function``.

        A program may have stored ``NAME.apply``, so perfctl waits for the node that this makes
        before it looks up ``forward``."""
        node = torch.autograd.function.BackwardCFunction
        backward = node.apply

        def patch_context_forward(context: Any) -> None:
            owner = type(context)._forward_cls
            forward = owner.forward

            def run(*args: Any, **kwargs: Any) -> Any:
                undo()
                has_context = bool(args) and args[0] is context
                call = partial(forward, context) if has_context else forward
                return self._record_autograd_function(
                    call, owner.__name__, args[has_context:], kwargs
                )

            undo = replace_attribute(owner, "forward", staticmethod(run))

        def run_node(owner: Any, *args: Any) -> Any:
            edges = [edge for edge, _ in owner.next_functions if edge is not None]
            weights = {isinstance(getattr(edge, "variable", None), nn.Parameter) for edge in edges}
            role = "grad_weight" if True in weights else "grad_input"
            role = "backward" if len(weights) > 1 else role
            call, name = partial(backward, owner), type(owner).__name__
            return self._record_autograd_function(call, name, args, {}, role)

        for name, wrapper in (("__init__", patch_context_forward), ("apply", run_node)):
            self._undo.callback(replace_attribute(node, name, wrapper))

    def _record_autograd_function(
        self, call: Any, name: str, args: Any, kwargs: Any, role: str | None = None
    ) -> Any:
        if self._function is not None or is_compiling() or not self._is_recorded_thread():
            return call(*args, **kwargs)
        self._function = name
        try:
            output = call(*args, **kwargs)
            frame, direction, _ = self.places.find_running_frame_and_direction()
            shapes: list[tuple[int, ...] | None] = []
            outputs: list[tuple[int, ...] | None] = []
            types: list[Any] = []
            self._append_shapes_and_count_weights(args, shapes, types)
            results = output if isinstance(output, (tuple, list)) else (output,)
            self._append_shapes_and_count_weights(results, outputs, types, count_weights=False)
            op = f"autograd.{name}"
            functional = None if frame.leaf else op
            self._count_operation(
                frame,
                op,
                direction,
                tuple(shapes),
                tuple(outputs),
                tuple(types),
                (),
                functional=functional,
                role=role,
            )
        finally:
            self._function = None
        return output

    def _wrap_as_single_operation(self, fill_call: Any, function: Any) -> Any:
        """Return a function of torch that is recorded as one operation; ``fill_call`` fills its
        Call."""

        def run_as_one(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self._is_recorded_thread():
                return function(*args, **kwargs)
            above = self.places.top
            if above.call is not None or any(map(is_nested_tensor, (*args, *kwargs.values()))):
                return function(*args, **kwargs)
            call = CompositeCall()
            recompute = above.recompute or current_task() != -1
            frame = LayerFrame(above.layer, above.kind, above.leaf, recompute, call, above.module)
            self.places.push(frame)
            output = None
            try:
                output = function(*args, **kwargs)
            finally:
                self.places.pop()
                # Checkpointing ends a recomputation once everything saved exists again: on the math
                # path in the middle of attention, on a fused path after it. Attention is one
                # operation, so it counts as a whole.
                if output is not None or recompute:
                    fill_call(call, args, kwargs, output, above.module)
                    self._add_autocast_forward_call(frame, call)
            return output

        return run_as_one

    def _wrap_values_only_function(self, function: Any) -> Any:
        """Return a function of _VALUES_ONLY; without a gradient it is recorded as it runs outside
        of a trace, without vectors."""

        def run(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            self._values_only = not (torch.is_grad_enabled() and tensor.requires_grad)
            try:
                return function(tensor, *args, **kwargs)
            finally:
                self._values_only = False

        return run

    def _wrap_value_reading_method(self, method: Any) -> Any:
        """Return a method of _READ_OUT that also notes the values that leave torch."""

        def read_out(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # without this mode, torch prints a tensor, or a compiled region runs
            if torch._C._len_torch_dispatch_stack() and self._is_numeric_value_leaving_torch(
                tensor
            ):
                self.add_unknown_operation(f"Tensor.{method.__name__}", OUTSIDE)
            return method(tensor, *args, **kwargs)

        return read_out

    def _on_optimizer_step_begin(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizing = True
        if self.live is not None and self.model is not None:
            self.live.mark_gradient_storages(self.model)

    def _on_optimizer_step_end(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizing = False
        op = f"optim.{type(optimizer).__name__}"
        for group in optimizer.param_groups:
            settings = tuple(
                (name, value)
                for name, value in sorted(group.items())
                if name in _SETTINGS and isinstance(value, (bool, int, float))
            )
            for tensor in group["params"]:
                if tensor.grad is not None:
                    layer, shapes = (
                        self.names.find_layer_of_parameter(tensor) or "",
                        (tuple(tensor.shape),),
                    )
                    frame = self.places.frames_of.get(layer) or LayerFrame(layer, "", True)
                    types = (tensor.dtype, tensor.dtype)
                    self._count_operation(frame, op, "optimizer", shapes, shapes, types, settings)

    def _register_module(self, name: str, module: nn.Module) -> None:
        self.places.register_layer(name, module)
        if not composites.is_torch_compile_wrapper(module):  # the module inside has the same name
            self._named.append((name, module))
        parameters = [
            tensor for tensor in module.parameters(recurse=False) if id(tensor) not in self._counted
        ]
        self._counted.update(map(id, parameters))
        counted = [tensor for tensor in parameters if not is_lazy(tensor)]
        self._parameters[name] = self._parameters.get(name, 0) + sum(
            tensor.numel() for tensor in (*counted, *composites.unpack_quantized_parameters(module))
        )
        storages = filter(None, map(get_storage_or_none, counted))
        self._weights.update((storage._cdata, None) for storage in storages)

    def on_module_call_begin(self, module: nn.Module, args: Any) -> None:
        if is_compiling():
            return
        if not self._is_recorded_thread():
            self._thread.depth += 1
            if self._thread.depth == 1 and (
                "_is_replica" in module.__dict__ or self.names.is_part_of_model(module)
            ):
                self._elsewhere[
                    self.names.find_or_assign_name(module, None, may_become_root=False)
                    or type(module).__name__
                ] = None
            return
        self.places.push(self.places.make_frame(module))
        self._before.append(self.dispatched)
        if self._region is None and not self._uncompiled and composites.is_compiled_region(module):
            # In a dispatch mode, torch.compile would compile a separate variant of the region.
            self._region = module
            self._regions[self.places.top.layer or type(module).__name__] = None
            if isinstance(module, composites.CompiledRegion):
                self._record_compiled_function_call(type(module).__name__, args)
            self._dispatch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            if composites.is_torch_compile_wrapper(module):
                self._hooks.hide_during_forward(module)

    def on_module_call_end(self, module: nn.Module, args: Any, *hook_arguments: Any) -> None:
        """Global forward hook; ``hook_arguments``: (kwargs, output), or (None,) after an
        exception."""
        if is_compiling():
            return
        if not self._is_recorded_thread():
            self._thread.depth -= 1
            return
        if self._region is module:
            self._region = None
            self._dispatch.__enter__()  # type: ignore[no-untyped-call]
        raised = len(hook_arguments) == 1
        kwargs, output = ({}, hook_arguments[0]) if raised else hook_arguments
        if len(self.places.stack) == 1:
            return
        path = self.names.get_registered_name(module)
        if not raised:
            self.failed_in = None
        elif self.failed_in is None:
            self.failed_in = path if path is not None else self.places.top.layer
        frame = self.places.pop()
        if (
            self._before
            and self._before.pop() == self.dispatched
            and not frame.recompute
            and not self._optimizing
        ):
            self._record_invisible_module_work(module, frame, args, output)
        described = output is not None or (raised and frame.recompute)
        if (
            frame.call is not None
            and self.places.top is not frame
            and is_recurrent(module)
            and described
        ):
            composites.fill_rnn_call(frame.call, module, args, kwargs, output)
            self._add_autocast_forward_call(frame, frame.call)
        if path is not None and path not in self._outputs:
            self._outputs[path] = next(
                map(operations.get_dense_equivalent_shape, iterate_tensors(output)), None
            )

    def _record_invisible_module_work(
        self, module: nn.Module, frame: LayerFrame, args: Any, output: Any
    ) -> None:
        """A module that gave a new tensor without any operator that could be seen: its work is
        unknown, not 0."""
        if frame.call is not None or self._region is not None:
            return
        inputs = {
            id(tensor)
            for tensor in (*iterate_tensors(args), *module.parameters(), *module.buffers())
        }
        if (
            any(id(tensor) not in inputs for tensor in iterate_tensors(output))
            and next(module.parameters(), None) is not None
        ):
            self.add_unknown_operation(
                f"module.{type(module).__name__}", "no visible operator", frame
            )
