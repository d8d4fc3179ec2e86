"""Trace one step of a model: its operations per layer, with their shapes, and on request the memory
it needs.

::

    with Recorder(model) as recorder:
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    recorder.ops

Operations are observed at the dispatcher, without editing the model, and include functional calls.
An operation belongs to the innermost running module of ``model``; in backward, to the module whose
forward created the running autograd node (by sequence number), which works for the first layer too.
Imports torch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from perfctl.records.paper import GpuChoices, TracedStep
from perfctl.records.precision import PRECISIONS
from perfctl.workloads.models.source import MODEL_ERRORS
from perfctl.workloads.spec import get_first_error_line
from perfctl.workloads.tracing import as_cuda, composites
from perfctl.workloads.tracing.as_cuda import GpuKernelChoices
from perfctl.workloads.tracing.autocast import AutocastRefused, TracedAutocast
from perfctl.workloads.tracing.gradients import iterate_tensors
from perfctl.workloads.tracing.memory import LiveStorages
from perfctl.workloads.tracing.traffic import ReadTrafficCounter
from perfctl.workloads.tracing.watch import Recorder

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "adam": ("Adam", {"lr": 0.001}),
    "adamw": ("AdamW", {"lr": 0.001}),
    "adadelta": ("Adadelta", {"lr": 1.0}),
    "rmsprop": ("RMSprop", {"lr": 0.01}),
}
"""Name of an optimizer -> class in torch.optim and settings; learning rates do not
affect counts."""

_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")

_PASSED_ON = (
    "run_as_one",
    "_record_autograd_function",
    "run_node",
    "record_flex_attention_and_run",
    "read_out",
    "run",
)
"""Functions of this package that call what the model called: its errors are the model's."""


def copy_with_data(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` with its values; ``model`` does not change."""
    return copy.deepcopy(model, _make_lazy_tensor_copy_memo(model, None))


def _make_lazy_tensor_copy_memo(model: nn.Module, device: str | None) -> dict[int, Any]:
    """Parameters and buffers without a shape by the id of the model's; torch 2.14 cannot copy
    such buffers."""
    lazy: list[Any] = [
        tensor for tensor in (*model.parameters(), *model.buffers()) if is_lazy(tensor)
    ]
    return {
        id(tensor): type(tensor)(tensor.requires_grad, device or tensor.device, tensor.dtype)
        for tensor in lazy
    }


def copy_to_meta(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` on meta, made without copying parameters; ``model`` does not
    change."""
    memo = _make_lazy_tensor_copy_memo(model, "meta")
    for parameter in model.parameters():
        if id(parameter) not in memo:
            empty = torch.empty_like(parameter, device="meta")
            memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    memo |= {
        id(buffer): torch.empty_like(buffer, device="meta")
        for buffer in model.buffers()
        if id(buffer) not in memo
    }
    copied = copy.deepcopy(model, memo)
    for module in copied.modules():
        if isinstance(module, torch.jit.ScriptModule):  # it copied its tensors itself
            for name, tensor in (
                *module.named_parameters(recurse=False),
                *module.named_buffers(recurse=False),
            ):
                empty = torch.empty_like(tensor.detach(), device="meta")
                module._c.setattr(name, empty.requires_grad_(tensor.requires_grad))
    return copied


def needs_real_values(model: nn.Module, inputs: Any) -> bool:
    """Return whether something given has no form without values: sparse and strided nested tensors,
    quantized layers."""
    attributes = (vars(module).values() for module in model.modules())
    tensors = [
        *model.parameters(),
        *model.buffers(),
        *iterate_tensors(inputs),
        *(value for group in attributes for value in group),
    ]
    odd = any(
        isinstance(tensor, Tensor)
        and (tensor.is_nested or tensor.layout is not torch.strided)
        and tensor.layout is not torch.jagged
        for tensor in tensors
    )
    return odd or any(type(module).__module__.startswith(_QUANTIZED) for module in model.modules())


def has_jagged_input(inputs: Any) -> bool:
    """Return whether a jagged nested tensor with values is among the inputs: some of its operators
    exist with values only."""
    return any(
        tensor.layout is torch.jagged and tensor.device.type != "meta"
        for tensor in iterate_tensors(inputs)
    )


def make_zero_inputs(
    shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], device: str
) -> tuple[Any, ...]:
    """Tensors of zeros (without data on meta); ``shapes`` include the batch dimension."""
    both = zip(shapes, dtypes, strict=True)
    return tuple(
        torch.zeros(shape, dtype=getattr(torch, dtype), device=device) for shape, dtype in both
    )


def convert_shapes_and_move_inputs(inputs: Any, device: str) -> tuple[Any, ...]:
    """Inputs on ``device``: tensors are moved, shapes become float32 tensors; a single input
    becomes a tuple."""
    if isinstance(inputs, Tensor) or (
        inputs and isinstance(inputs, (tuple, list)) and isinstance(inputs[0], int)
    ):
        inputs = (inputs,)
    return tuple(
        torch.zeros(tuple(item), device=device)
        if isinstance(item, (tuple, list)) and all(isinstance(size, int) for size in item)
        else _move_to_device(item, device)
        for item in inputs
    )


def _move_to_device(item: Any, device: str) -> Any:
    if isinstance(item, Tensor) and item.is_meta and device != "meta":
        return torch.zeros_like(item, device=device, requires_grad=item.requires_grad)
    # a copy would lead back to the tensor that was given
    if isinstance(item, Tensor) and item.requires_grad:
        return item.detach().to(device).requires_grad_()
    if hasattr(item, "to"):
        return item.to(device)
    if isinstance(item, (tuple, list)):
        return type(item)([_move_to_device(piece, device) for piece in item])
    return (
        {name: _move_to_device(piece, device) for name, piece in item.items()}
        if isinstance(item, dict)
        else item
    )


def make_optimizer(
    model: nn.Module,
    optimizer: str | tuple[str, dict[str, Any]] | None,
    kernels: GpuKernelChoices | None = None,
) -> Any:
    """Return an optimizer for the model's trainable parameters; None for none. ``kernels``: it
    updates them as this GPU does."""
    if optimizer is None:
        return None
    name, settings = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    parameters = [
        parameter
        for parameter in model.parameters()
        if parameter.requires_grad and not is_lazy(parameter)
    ]
    kind = getattr(torch.optim, name)
    if kernels is not None and parameters:
        settings, way = as_cuda.choose_optimizer_implementation(kind, settings, kernels.gpu.update)
        kernels.update = f"optimizer: {name}, {way}"
    with as_cuda.allow_fused_optimizers_on_meta():
        return kind(parameters, **settings) if parameters else None


def trace_step(
    model: nn.Module,
    inputs: tuple[Any, ...],
    *,
    mode: str = "train",
    runs_backward: bool | None = None,
    optimizer: str | tuple[str, dict[str, Any]] | None = None,
    loss: Callable[[Any], Any] | None = None,
    other_tensors: tuple[Any, ...] = (),
    memory: bool = False,
    precision: str = "fp32",
    gpu: GpuChoices | None = None,
    traffic_counter: ReadTrafficCounter | None = None,
) -> TracedStep:
    """Run one step and record it. ``mode``: train or infer; ``runs_backward`` overrides whether
    there is a backward.

    ``loss`` computes a loss from the output; without it backward starts at the output.
    ``other_tensors``: tensors besides the inputs (the loss's targets), for the memory trace.
    ``traffic_counter``: also counts what is read of weights and a cache.

    With ``memory``, an extra step comes first, so that the optimizer's state exists as in later
    steps. ``gpu``: memory as the kernels of this GPU need it; None: as those of the device that the
    tensors are on. An exception of the model ends the trace: the operations before it are kept, and
    ``problem`` describes it.
    """
    model.train(mode == "train")
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        # the first forward gives them their shapes; an error of it comes again below
        _record_step(model, partial(_run_model_step, model, inputs, False))
    backward = (mode == "train") if runs_backward is None else runs_backward
    kernels = GpuKernelChoices(gpu) if gpu is not None and memory else None
    chosen = PRECISIONS[precision]
    inputs = cast_float32_inputs(inputs, chosen.weights)
    if chosen.weights is not None:
        model.to(getattr(torch, chosen.weights))
    autocast = None
    if chosen.autocast is not None:
        autocast = TracedAutocast(
            _find_device_type(model, inputs),
            getattr(torch, chosen.autocast),
            fp8=precision == "fp8",
        )
    stepper = make_optimizer(model, optimizer, kernels) if backward else None
    live = _track_existing_tensors(model, inputs, other_tensors) if memory else None
    step = partial(_run_model_step, model, inputs, backward, stepper, loss, live, autocast)
    recorder, problem = _record_step(model, step, live, autocast, kernels, traffic_counter)
    if live is not None and problem is None:
        (model if stepper is None else stepper).zero_grad()
        live.start_measured_step()
        recorder, problem = _record_step(model, step, live, autocast, kernels)
    assumed = kernels.assumption_lines if kernels is not None else ()
    lives = (
        live.build_memory_trace(problem is None, kernels is not None, assumed)
        if live is not None
        else None
    )
    size = sum(tensor.numel() * tensor.element_size() for tensor in iterate_tensors(inputs))
    ops = (
        as_cuda.undo_gpu_dropout_operations(recorder.ops)
        if kernels is not None and kernels.dropouts
        else recorder.ops
    )
    return TracedStep(
        ops, recorder.modules, problem, lives, recorder.data_dependent_operators, size, precision
    )


def cast_float32_inputs(inputs: Any, dtype: str | None) -> Any:
    """Return the inputs of a model that was cast whole: those of float32 are cast, too. None leaves
    them as they are."""
    if dtype is None:
        return inputs
    if isinstance(inputs, Tensor) and inputs.dtype == torch.float32:
        return inputs.detach().to(getattr(torch, dtype)).requires_grad_(inputs.requires_grad)
    if isinstance(inputs, (tuple, list)):
        return type(inputs)([cast_float32_inputs(item, dtype) for item in inputs])
    # an object of a library is more than its items; what it holds, the model made
    if type(inputs) is not dict:
        return inputs
    return {name: cast_float32_inputs(item, dtype) for name, item in inputs.items()}


def _find_device_type(model: nn.Module, inputs: tuple[Any, ...]) -> str:
    first = next(iter((*model.parameters(), *iterate_tensors(inputs))), None)
    return first.device.type if first is not None else "cpu"


def _track_existing_tensors(
    model: nn.Module, inputs: tuple[Any, ...], other_tensors: tuple[Any, ...]
) -> LiveStorages:
    live = LiveStorages(_find_device_type(model, inputs))
    existing = (
        ("parameter", model.parameters()),
        ("buffer", model.buffers()),
        ("input", (*inputs, *other_tensors)),
    )
    for category, tensors in existing:
        for tensor in tensors:
            if hasattr(tensor, "untyped_storage") and not is_lazy(tensor):
                live.add_existing_tensor(tensor, category)
    for module in model.modules():
        live.add_packed_parameters(composites.unpack_quantized_parameters(module))
    return live


def _run_model_step(
    model: nn.Module,
    inputs: tuple[Any, ...],
    backward: bool,
    optimizer: Any = None,
    loss: Callable[[Any], Any] | None = None,
    live_storages: LiveStorages | None = None,
    autocast: TracedAutocast | None = None,
) -> None:
    if optimizer is not None:
        optimizer.zero_grad()
    ends: list[Any] = []
    with autocast.make_autocast_region() if autocast is not None else nullcontext():
        with nullcontext() if backward else torch.no_grad():
            output = model(*inputs)
        if backward and loss is not None:
            ends = [loss(output)]
    if backward and loss is None:
        ends = [end for end in iterate_tensors(output) if end.requires_grad]
    if live_storages is not None:
        live_storages.mark_forward_end()
    if ends:
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    if live_storages is not None and backward:
        live_storages.mark_gradient_storages(model)
        live_storages.mark_backward_end()
    del output, ends
    if optimizer is not None:
        optimizer.step()


def _record_step(
    model: nn.Module,
    step: Callable[[], None],
    live_storages: LiveStorages | None = None,
    autocast: TracedAutocast | None = None,
    kernels: GpuKernelChoices | None = None,
    traffic_counter: ReadTrafficCounter | None = None,
) -> tuple[Recorder, str | None]:
    """Return (recorder, where and why the step ended early)."""
    recorder = Recorder(model, live_storages, uncompiled=True, autocast=autocast)
    recorder.watch = traffic_counter
    try:
        as_gpu = kernels.install_gpu_kernels() if kernels is not None else nullcontext()
        with (
            composites.run_without_compilation(),
            as_cuda.allow_fused_optimizers_on_meta(),
            as_gpu,
            recorder,
            autocast or nullcontext(),
        ):
            step()
    except MODEL_ERRORS as error:
        # A frame kept in a variable would be a reference cycle, and keep the tensors of the
        # step alive.
        places = [
            (frame.f_globals.get("__name__", ""), frame.f_code.co_name)
            for frame, _ in walk_tb(error.__traceback__)
        ]
        module, function = places[-1]
        ours = (
            module.startswith(f"{__package__}.")
            and module != __name__
            and function not in _PASSED_ON
        )
        if ours and not isinstance(error, AutocastRefused):
            layer = recorder.failed_in or "the model"
            return (
                recorder,
                (
                    f"{layer}: perfctl could not follow it ({type(error).__name__}: "
                    f"{get_first_error_line(error)})"
                ),
            )
        return recorder, explain_model_error(error, recorder.failed_in)
    return recorder, None


def explain_model_error(error: BaseException, module_path: str | None) -> str:
    """One line: the module's path, what happened, and advice when the step needs data."""
    layer = "the model" if module_path == "" else module_path or "after the model"
    text = get_first_error_line(error)
    text = (text.partition(". ")[0] if len(text) > 100 else text).rstrip(". ")
    if "meta" in text.lower() and any(
        sign in text for sign in ("item()", "no data", "nonzero", "tolist", "numpy", "Boolean")
    ):
        return (
            f"{layer}: needs actual data ({text}), and so does everything after it. Set `device` "
            "to cpu to run it"
        )
    if (
        isinstance(error, NotImplementedError)
        or "is not registered" in text
        or "meta" in text.lower()
    ):
        return (
            f"{layer}: an operator without a meta implementation ({text}). Set `device` to cpu to "
            "run it"
        )
    return f"{layer}: {type(error).__name__}: {text}"
