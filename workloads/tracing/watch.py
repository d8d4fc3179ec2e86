"""The recorder itself: a dispatch mode, hooks, notes. Imports torch."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional
from torch._guards import TracingContext
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode

from perfctl.records.paper import OpShape, TracedModule
from perfctl.records.report import Gap
from perfctl.workloads.spec import get_first_error_line
from perfctl.workloads.tracing import composites, operations
from perfctl.workloads.tracing.composites import CompositeCall, GlobalModuleHooks, is_recurrent
from perfctl.workloads.tracing.gradients import iterate_tensors
from perfctl.workloads.tracing.layers import LayerFrame, LayerStack, ModuleNames
from perfctl.workloads.tracing.memory import LiveStorages, get_storage
from perfctl.workloads.tracing.operations import OperatorPlan, is_nested
from perfctl.workloads.tracing.versions import current_task, is_compiling, next_number

if TYPE_CHECKING:  # of estimates alone: not in what runs inside a profiled process
    from perfctl.workloads.tracing.autocast import TracedAutocast
    from perfctl.workloads.tracing.traffic import ReadTrafficCounter

# attention of jagged tensors looks for it in a dispatch mode (torch 2.14)
with suppress(ImportError):
    import torch.utils.flop_counter

_SETTINGS = ("momentum", "weight_decay", "nesterov", "amsgrad", "centered", "dampening")
"""Settings of an optimizer that change its work."""
_ADDS = ("aten.add", "aten.addmm", "aten._scaled_mm", "aten.baddbmm", "aten.add_", "aten.sub")
_CAST = "aten._to_copy"
_VALUES_ONLY = ("svdvals", "eigvalsh", "matrix_norm", "norm", "cond", "matrix_rank")
"""Functions of torch.linalg that take singular values or eigenvalues, and vectors only for
a gradient.

torch 2.14 makes the vectors in any dispatch mode (_may_require_fw_or_bw_grad), so a trace would see
work that no run does.
"""
COPIES = frozenset({"aten.copy_", "aten.detach"})
"""Used to accumulate a gradient whose memory layout differs from the parameter's: depends on the
device only."""


_READ_OUT = ("numpy", "tolist", "__dlpack__")
"""Methods of a tensor whose values leave torch; numpy.asarray calls the first."""
_SCALAR, _ENTRY = "aten._local_scalar_dense", "aten.lift_fresh"
"""The operators of Tensor.item, and of torch.tensor and torch.from_numpy."""
OUTSIDE = "its values leave torch, and work outside of torch is not visible"
RETURNED = "its values come from outside of torch, where work is not visible"
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


class _RecordedThread(threading.local):
    entered = False
    depth = 0
    """Modules that another thread than the recorded one is calling."""


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
            return self._run_higher_order(func, args, kwargs)
        # shapes that DTensor works out before it computes: the next mode answers
        if FakeTensor in types:
            return func(*args, **kwargs)
        # a tensor made of tensors: the operators on those come here
        if operations.has_own_dispatch(types):
            return NotImplemented
        plan = self.plans.get(func)
        if plan is None:
            plan = self.plans[func] = operations.plan_operator(func)
        if plan.composite and not any(map(is_nested, args)):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = operations.run(func, plan.name, args, kwargs)
        recorder.dispatched += 1
        if plan.name in (_SCALAR, _ENTRY):
            recorder.note_value_crossing_torch(plan.name, args[0])
        if not plan.free:
            recorder.note_operator_safely(plan, args, kwargs, result)
        recorder.numbered = next_number()
        if recorder.live is not None:
            recorder.live.see(result, *recorder.get_running_layer(), plan.name)
            from perfctl.workloads.tracing import as_cuda

            recorder.live.note_scratch(
                as_cuda.count_scratch_bytes(plan.name, args),
                *recorder.get_running_layer(),
                plan.name,
            )
        if recorder.watch is not None:
            recorder.watch.see(plan, args, kwargs, result, recorder.get_running_layer()[0])
        return result

    def _run_higher_order(self, func: Any, args: Any, kwargs: Any) -> Any:
        """FlexAttention is one operation, as attention is; of the others, the operators
        inside count."""
        if func.name() in ("flex_attention", "flex_attention_backward"):
            return self.recorder.flex_attend(func, args, kwargs)
        kernel = func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if func.name() in _LOOPS:
            self.recorder.note_control_flow(func.name())
        if kernel is not None and func.name() in _WITHOUT_MODE:
            return kernel(*map(self._make_visible, args), **kwargs)
        if kernel is not None:
            with self:
                return kernel(*args, **kwargs)
        result = func(*args, **kwargs)
        self.recorder.add_unknown_operation(
            f"higher_order.{func.name()}", "its operators are not visible"
        )
        return result

    def _make_visible(self, value: Any) -> Any:
        """A function that runs in this mode; anything else unchanged."""
        if not callable(value):
            return value

        def run(*args: Any) -> Any:
            with self:
                return value(*args)

        return run


class Recorder:
    """Context manager that records the operations inside it. Does not change results.

    Works with tensors of any device, in train or eval, with or without gradients. Attention and
    nn.LSTM, GRU, RNN are recorded as one operation each, the same on every device. Use it for a
    single step: identical calls add up.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        live: LiveStorages | None = None,
        names: ModuleNames | None = None,
        uncompiled: bool = False,
        autocast: TracedAutocast | None = None,
    ) -> None:
        """``model``: layers are named by their path below it; without it, modules are named when
        they are called.

        ``live``: also trace the lifetimes of storages. ``names``: shared with an Annotator, for
        equal names. ``uncompiled``: what torch.compile or torch.jit made runs operator by operator,
        and so is recorded. ``autocast``: casts as on a GPU, entered by the caller.
        """
        self._uncompiled = uncompiled
        self._autocast = autocast
        if autocast is not None:
            autocast.in_linear = lambda: isinstance(self.places.top.module, torch.nn.Linear)
        self.dispatched = 0
        """Operators that ran so far, views too."""
        self._before: list[int] = []
        """``dispatched`` at the start of each running module."""
        self._zeros: dict[int, Any] = {}
        """Storages of zeros that stand for tangents that are zero (torch.func.jvp)."""
        self._has_zeros = False
        self.model = model
        self.live = live
        self.watch: ReadTrafficCounter | None = None
        """Counts what is read of weights and of a cache; None: nothing does."""
        self.names = names or ModuleNames(model, root_name="")
        self.places = LayerStack(self.names, roots=model is None)
        self.failed_in: str | None = None
        """Dotted path of the innermost module that raised an exception; None without one."""
        self.numbered = next_number()
        """The next autograd node's number after the last operator."""
        self._named: list[tuple[str, torch.nn.Module]] = []
        self._regions: dict[str, None] = {}
        self._region: torch.nn.Module | None = None
        """The running compiled region, whose operations are not recorded."""
        self._outputs: dict[str, tuple[int, ...] | None] = {}
        self._parameters: dict[str, int] = {}
        self._counted: set[int] = set()
        """Ids of the parameters counted in ``_parameters``."""
        self._nodes: dict[int, tuple[str, bool]] = {}
        self._weights: dict[int, Any] = {}
        self._seen: dict[operations.Note, list[int]] = {}
        self._dynamic: dict[str, None] = {}
        self._optimizing = False
        self._read_out: set[str] = set()
        """Layers that took a floating-point number out of torch with ``item``."""
        self._own: int | None = None
        """The newest node's number of a torch.autograd.Function."""
        self._dispatch = OperatorDispatchMode(self)
        self._thread = _RecordedThread()
        """Whether this is the thread that is recorded: modes and the stack of modules belong
        to one."""
        self._elsewhere: dict[str, None] = {}
        """Parts of the running model whose forward another thread runs."""
        self._hooks = GlobalModuleHooks(self.enter, self.leave, with_kwargs=True)
        self._handles: list[Any] = []
        self._attention: Any = None
        self._vecdot: Any = None
        self._methods: dict[str, Any] = {}
        self._linalg: dict[str, Any] = {}
        self._values_only = False
        self._fast_path = True
        self._function: str | None = None
        """Name of the outermost running torch.autograd.Function; in backward, of its node."""

    @property
    def ops(self) -> tuple[OpShape, ...]:
        """The recorded operations, in order of first call; identical calls are one record with
        a count."""
        return operations.build_op_shapes(self._seen, self._parameters)

    @property
    def modules(self) -> tuple[TracedModule, ...]:
        """Every module of the model, in the model's order; without a model, every module that
        was called."""
        return operations.list_seen_modules(self._named, self._outputs)

    @property
    def gaps(self) -> list[Gap]:
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
    def data_dependent(self) -> tuple[str, ...]:
        """Operations whose output sizes depend on the data: later records are valid for this
        input only."""
        return tuple(self._dynamic)

    def __enter__(self) -> Recorder:
        self.names.add_listener(self._learn)
        self.places.mark(self.places.outside)
        composites.exclude_hooks_from_compilation(self.enter, self.leave)
        self._hooks.install()
        self._handles = [
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]
        # The fused encoder path exists only on CPU and GPU in eval: disable it, so that all devices
        # run the same operators.
        if hasattr(torch.backends, "mha"):  # torch 2.2 and later
            self._fast_path = torch.backends.mha.get_fastpath_enabled()
        if self.model is not None and hasattr(
            torch.backends, "mha"
        ):  # a user's script must give the same results to the bit
            torch.backends.mha.set_fastpath_enabled(False)
        self._attention = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = self._run_attention_as_one
        self._vecdot = torch.linalg.vecdot
        torch.linalg.vecdot = self._run_vecdot_as_one
        self._methods = {name: getattr(torch.Tensor, name) for name in _READ_OUT}
        for name, method in self._methods.items():
            setattr(torch.Tensor, name, self._watch_method(method))
        if self._uncompiled:  # torch.compile looks up the functions of torch.linalg
            self._linalg = {name: getattr(torch.linalg, name) for name in _VALUES_ONLY}
        for name, function in self._linalg.items():
            setattr(
                torch.linalg,
                name,
                update_wrapper(partial(self._run_without_vectors, function), function),
            )
        self._dispatch.__enter__()  # type: ignore[no-untyped-call]
        self._thread.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        """May be called in another thread than ``__enter__``, which may have ended."""
        if not self._thread.entered:
            self._dispatch.ended = True
        elif self._region is None:
            self._dispatch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()
        self._hooks.remove()
        if hasattr(torch.backends, "mha"):
            torch.backends.mha.set_fastpath_enabled(self._fast_path)
        torch.nn.functional.scaled_dot_product_attention = self._attention
        torch.linalg.vecdot = self._vecdot
        for name, method in self._methods.items():
            setattr(torch.Tensor, name, method)
        for name, function in self._linalg.items():
            setattr(torch.linalg, name, function)
        self.names.remove_listener(self._learn)
        del self.places.stack[1:]

    @contextmanager
    def mark_functions(self) -> Iterator[None]:
        """In the block, also record each torch.autograd.Function as one operation, "autograd.NAME",
        and its backward, "autograd.NAMEBackward". What runs in it has the attribute
        ``function``."""
        function, node = torch.autograd.Function, torch.autograd.function.BackwardCFunction
        forward, backward = function.__dict__.get("apply"), node.__dict__.get("apply")
        if forward is None or backward is None:  # another version of torch
            yield
            return

        def run(owner: Any, *args: Any, **kwargs: Any) -> Any:
            return self._run_function(forward.__get__(None, owner), owner.__name__, args, kwargs)

        def run_node(owner: Any, *args: Any) -> Any:
            name = type(owner).__name__
            return self._run_function(partial(backward, owner), name, args, {})

        function.apply, node.apply = classmethod(run), run_node  # type: ignore[method-assign]
        try:
            yield
        finally:
            function.apply, node.apply = forward, backward  # type: ignore[method-assign]

    def _run_function(self, call: Any, name: str, args: Any, kwargs: Any) -> Any:
        if self._function is not None or is_compiling() or not self._is_recorded_here():
            return call(*args, **kwargs)
        self._function = name
        try:
            output = call(*args, **kwargs)
            frame, direction, _ = self.places.now()
            shapes: list[tuple[int, ...] | None] = []
            outputs: list[tuple[int, ...] | None] = []
            types: list[Any] = []
            self._read(args, shapes, types)
            results = output if isinstance(output, (tuple, list)) else (output,)
            self._read(results, outputs, types, count_weights=False)
            op = f"autograd.{name}"
            self._add(
                frame.layer,
                frame.kind,
                None if frame.leaf else op,
                op,
                direction,
                None,
                frame.recompute and direction == "forward",
                tuple(shapes),
                tuple(outputs),
                tuple(types),
                (),
            )
        finally:
            self._function = None
        return output

    def _run_attention_as_one(self, *args: Any, **kwargs: Any) -> Any:
        describe = partial(composites.fill_attention_call, module=self.places.top.module)
        return self._run_as_one(self._attention, describe, args, kwargs)

    def _run_vecdot_as_one(self, *args: Any, **kwargs: Any) -> Any:
        return self._run_as_one(self._vecdot, composites.fill_vecdot_call, args, kwargs)

    def _run_as_one(self, function: Any, describe: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of torch as one operation; ``describe`` fills its Call."""
        if is_compiling() or not self._is_recorded_here():
            return function(*args, **kwargs)
        above = self.places.top
        if above.call is not None or any(map(is_nested, (*args, *kwargs.values()))):
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
            # path in the middle of attention, on a fused path after it. Attention is one operation,
            # so it counts as a whole.
            if output is not None or recompute:
                describe(call, args, kwargs, output)
                self._add_forward_call(frame, call)
        return output

    def _run_without_vectors(self, function: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """A function of _VALUES_ONLY; without a gradient it is recorded as it runs outside of a
        trace, without vectors."""
        self._values_only = not (torch.is_grad_enabled() and tensor.requires_grad)
        try:
            return function(tensor, *args, **kwargs)
        finally:
            self._values_only = False

    def _watch_method(self, method: Any) -> Any:
        """A method of _READ_OUT that also notes the values that leave torch."""

        def read_out(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # without this mode, torch prints a tensor, or a compiled region runs
            if torch._C._len_torch_dispatch_stack() and self._leaves_torch(tensor):
                self.add_unknown_operation(f"Tensor.{method.__name__}", OUTSIDE)
            return method(tensor, *args, **kwargs)

        return update_wrapper(read_out, method)

    def _leaves_torch(self, tensor: torch.Tensor) -> bool:
        """Whether numbers to compute with cross the border of torch in a forward or a backward.
        Integers are sizes and indices; a single number may only be logged."""
        inside = len(self.places.stack) > 1 or current_task() != -1
        return (
            inside
            and not self._optimizing
            and self._is_recorded_here()
            and (tensor.is_floating_point() or tensor.is_complex())
            and tensor.numel() > 1
        )

    def note_value_crossing_torch(self, name: str, tensor: torch.Tensor) -> None:
        """Note a number that leaves torch, and values of Python or NumPy that come in: of NumPy, or
        in a layer that took a number out before."""
        layer = self.places.now()[0].layer
        if name == _SCALAR and tensor.is_floating_point():
            self._read_out.add(layer)
        elif name == _ENTRY and self._leaves_torch(tensor):
            # memory of NumPy cannot grow; before torch 2.2, a storage may not tell
            can_grow = getattr(get_storage(tensor), "resizable", lambda: True)
            if not can_grow():
                self.add_unknown_operation("torch.from_numpy", RETURNED)
            elif layer in self._read_out:
                self.add_unknown_operation("torch.tensor", RETURNED)

    def flex_attend(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """FlexAttention: the scores of the blocks that its mask keeps; its own operators are not
        recorded."""
        if self.places.top.call is None:
            call = composites.describe_flex_attention(args)
            if func.name() == "flex_attention":
                self._add_composite_call(self.places.top, call)
            else:
                call.attributes["needs"], call.backend = (True, True, True), "flash"
                self._add_composite_call(self.places.now()[0], call, "backward")
        return func(*args, **kwargs)

    def _note_function_region(self, name: str, args: tuple[Any, ...]) -> None:
        """Note a call of a compiled function, whose work is unknown, not 0. FlexAttention compiles
        itself, and its forward follows from its arguments."""
        if name == composites.FLEX_REGION:
            self._add_composite_call(self.places.top, composites.describe_flex_attention(args))
        else:
            self.add_unknown_operation(f"torch.compile.{name}", composites.COMPILED)
        if torch.is_grad_enabled():
            frame, reason = self.places.top, composites.COMPILED
            self.add_unknown_operation(f"torch.compile.{name}", reason, frame, "backward")

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizing = True
        if self.live is not None and self.model is not None:
            self.live.note_gradients(self.model)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
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
                    layer, shape = (
                        self.names.find_layer_of_parameter(tensor) or "",
                        tuple(tensor.shape),
                    )
                    kind = (
                        self.places.frames_of[layer].kind if layer in self.places.frames_of else ""
                    )
                    types = (tensor.dtype, tensor.dtype)
                    self._add(
                        layer,
                        kind,
                        None,
                        op,
                        "optimizer",
                        None,
                        False,
                        (shape,),
                        (shape,),
                        types,
                        settings,
                    )

    def _learn(self, name: str, module: torch.nn.Module) -> None:
        self.places.learn(name, module)
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
        storages = filter(None, map(get_storage, counted))
        self._weights.update((storage._cdata, None) for storage in storages)

    def enter(self, module: torch.nn.Module, args: Any) -> None:
        if is_compiling():
            return
        if not self._is_recorded_here():
            self._thread.depth += 1
            if self._thread.depth == 1 and (
                "_is_replica" in module.__dict__ or self.names.is_part_of_model(module)
            ):
                self._elsewhere[
                    self.names.find(module, None, roots=False) or type(module).__name__
                ] = None
            return
        self.places.push(self.places.make_frame(module))
        self._before.append(self.dispatched)
        if self._region is None and not self._uncompiled and composites.is_compiled_region(module):
            # In a dispatch mode, torch.compile would compile a separate variant of the region.
            self._region = module
            self._regions[self.places.top.layer or type(module).__name__] = None
            if isinstance(module, composites.CompiledRegion):
                self._note_function_region(type(module).__name__, args)
            self._dispatch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            if composites.is_torch_compile_wrapper(module):
                self._hooks.hide_during_forward(module)

    def leave(self, module: torch.nn.Module, args: Any, *hook_arguments: Any) -> None:
        """Global forward hook; ``rest``: (kwargs, output), or (None,) after an exception."""
        if is_compiling():
            return
        if not self._is_recorded_here():
            self._thread.depth -= 1
            return
        if self._region is module:
            self._region = None
            self._dispatch.__enter__()  # type: ignore[no-untyped-call]
        raised = len(hook_arguments) == 1
        kwargs, output = ({}, hook_arguments[0]) if raised else hook_arguments
        if len(self.places.stack) == 1:
            return
        path = self.names.name_of(module)
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
            self._note_invisible_work(module, frame, args, output)
        described = output is not None or (raised and frame.recompute)
        if (
            frame.call is not None
            and self.places.top is not frame
            and is_recurrent(module)
            and described
        ):
            composites.fill_rnn_call(frame.call, module, args, kwargs, output)
            self._add_forward_call(frame, frame.call)
        if path is not None and path not in self._outputs:
            self._outputs[path] = next(map(operations.get_shape, iterate_tensors(output)), None)

    def _is_recorded_here(self) -> bool:
        """Whether this is the recorded thread, or autograd's, which repeats forward work of
        checkpointing."""
        return self._thread.entered or current_task() != -1

    def _note_invisible_work(
        self, module: torch.nn.Module, frame: LayerFrame, args: Any, output: Any
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

    def note_control_flow(self, name: str) -> None:
        """Note that a branch or loop may depend on data, and that its gradients are of its operands
        only."""
        if name not in ("scan", "map_impl"):
            self._dynamic[f"higher_order.{name}"] = None
        frame, direction, _ = self.places.now()
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
            here, direction, _ = self.places.now()
        is_repeated = here.recompute and direction == "forward"
        self._add(
            here.layer,
            here.kind,
            op,
            op,
            direction,
            None,
            is_repeated,
            (),
            (),
            (),
            (("missed", reason),),
        )

    def note_operator_safely(
        self, plan: OperatorPlan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """``note``; an operation that it cannot read is counted by name only."""
        try:
            self.note(plan, args, kwargs, result)
        except Exception as error:
            self.add_unknown_operation(
                plan.name, f"{type(error).__name__}: {get_first_error_line(error)}"
            )

    def note(
        self, plan: OperatorPlan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Record one operator, unless it is part of a composite call."""
        if self._optimizing:
            return
        frame, direction, key = self.places.now()
        if (call := frame.call) is not None and not self._is_autocast_cast(plan.name, key):
            call.note_backend_operator(plan.name)
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
            self._remember_storage(self._zeros, result)
        shapes: list[tuple[int, ...] | None] = []
        types: list[Any] = []
        weights = self._read(args, shapes, types)
        outputs: list[tuple[int, ...] | None] = []
        self._read(
            result if isinstance(result, (tuple, list)) else (result,),
            outputs,
            types,
            count_weights=False,
        )
        forward, role = plan.name, None
        if direction == "forward":
            self._note_node_operator(plan.name, weights > 0)
            if weights and weights == len(types) - sum(shape is not None for shape in outputs):
                self._note_derived_weights(result)
        else:
            forward, role = self._find_backward_role(key, plan.name, weights > 0)
        attributes = plan.attributes(args, kwargs) if plan.attributes else ()
        if self._has_zeros and any(self._is_zero_tangent(value) for value in args):
            attributes = (*attributes, ("zero", True))
        if self._values_only:
            attributes = (*attributes, ("compute_uv", False), ("compute_v", False))
        if stored := operations.count_stored_values(args):
            attributes = (*attributes, *stored)
            self._dynamic[plan.name] = None
        for each in operations.split_into_products(plan.name, args, result, shapes, outputs):
            self._add(
                frame.layer,
                frame.kind,
                None if frame.leaf else forward,
                plan.name,
                direction,
                role,
                frame.recompute and direction == "forward",
                *each,
                tuple(types),
                attributes,
            )

    def _is_zero_tangent(self, value: Any) -> bool:
        storage = get_storage(value) if isinstance(value, torch.Tensor) else None
        return storage is not None and storage._cdata in self._zeros and not any(value.stride())

    def _note_node_operator(self, name: str, weights: bool) -> None:
        """Note which operator created the newest autograd node: the one that increased the number.

        Operators without gradients right after a new node are the forward of a
        torch.autograd.Function; the first of them with a parameter represents it.
        """
        number = next_number() - 1
        if torch.is_grad_enabled():
            if number >= self.numbered:
                self._nodes.setdefault(number, (name, weights))
        elif number >= self.numbered or (
            number == self._own and weights and not self._nodes[number][1]
        ):
            self._own = number
            self._nodes[number] = (name, weights)

    def get_running_layer(self) -> tuple[str, str]:
        """(layer, direction) of the running code, for the memory trace."""
        if self._optimizing:
            return "", "optimizer"
        frame, direction, _ = self.places.now()
        return frame.layer, direction

    def _add(self, *note: Any) -> None:
        """Count one operation; the values are those of ``operations.Note``."""
        if self._function is not None:
            note = (*note[:-1], (*note[-1], ("function", self._function)))
        entry = self._seen.get(note)
        if entry is None:
            self._seen[note] = [len(self._seen), 1]
        else:
            entry[1] += 1

    def _add_composite_call(
        self, frame: LayerFrame, call: CompositeCall, direction: str = "forward"
    ) -> None:
        forward = direction == "forward"
        attributes = tuple(sorted(call.attributes.items()))
        self._add(
            frame.layer,
            frame.kind,
            None if frame.leaf else call.op,
            call.op if forward else f"{call.op}_backward",
            direction,
            None,
            frame.recompute and forward,
            call.inputs,
            call.outputs,
            call.dtypes,
            attributes if forward else (*attributes, ("backend", call.backend)),
        )

    def _add_forward_call(self, frame: LayerFrame, call: CompositeCall) -> None:
        """A forward call that autocast runs in its own type; the casts are operations before it."""
        if self._autocast is not None:
            call.dtypes = self._autocast.convert_dtypes(call.dtypes)
        self._add_composite_call(frame, call)

    def _is_autocast_cast(self, name: str, key: int | None) -> bool:
        """Whether the operator is a cast of autocast, or its gradient, and so no part of a
        composite call."""
        if self._autocast is None or name != _CAST:
            return False
        return self._autocast.casting or (
            key is not None and self._nodes.get(key, ("", False))[0] == _CAST
        )

    def _read(
        self, values: Any, shapes: list[Any], types: list[Any], count_weights: bool = True
    ) -> int:
        """Append shapes and dtypes of the tensors; returns how many are parameters, or derived from
        parameters only."""
        weights = 0
        for value in values:
            if isinstance(value, torch.Tensor):
                shapes.append(operations.get_shape(value))
                types.append(value.dtype)
                storage = get_storage(value) if count_weights else None
                if storage is not None and storage._cdata in self._weights:
                    weights += 1
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
                weights += self._read(value, shapes, types, count_weights)
            else:
                shapes.append(None)
        return weights

    def _note_derived_weights(self, result: Any) -> None:
        """Count a tensor derived from parameters only (a cast under autocast, weight norm) as
        a parameter."""
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                self._remember_storage(self._weights, value)

    def _remember_storage(self, storages: dict[int, Any], tensor: torch.Tensor) -> None:
        """Keep the tensor's storage among ``known`` while it lives."""
        storage = get_storage(tensor)
        if storage is not None and storage._cdata not in storages:
            storages[storage._cdata] = weakref.ref(
                storage, partial(_forget_storage, storages, storage._cdata)
            )

    def _find_backward_role(self, key: int | None, name: str, weights: bool) -> tuple[str, str]:
        """(forward operator, direction) of a backward operator, from the operator that created its
        autograd node."""
        if key is None:
            return name, "grad_weight"
        forward, had_weight = self._nodes.get(key, (name, False))
        if not had_weight or weights:
            return forward, "grad_input"
        if name == "aten.sum" and forward in _ADDS:
            return forward, "grad_bias"
        return forward, "grad_weight" if forward not in _ADDS[4:] else "grad_input"


def _forget_storage(weights: dict[int, Any], key: int, _: Any) -> None:
    weights.pop(key, None)
