"""Describe recurrent layers and attention as one operation each, because devices compute them with
different operators.

A CPU runs an LSTM as ``mkldnn_rnn_layer``, a GPU as ``_cudnn_rnn``, meta tensors as hundreds of
small products; attention is one fused kernel or two products. The required work is the same, so the
call itself is recorded and the operators below it are ignored. Imports torch.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from perfctl.records.masks import BLOCKS, UNREAD, describe_attention_mask
from perfctl.workloads.tracing.versions import (
    HAS_ALWAYS,
    HIDDEN,
    Args,
    Kwargs,
    ModuleCallPatch,
    is_compiling,
    replace_attribute,
)

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_FUSED = ("flash", "efficient", "cudnn", "fused", "overrideable")

_PACKED = ("LinearPackedParams", "EmbeddingPackedParams", "PackedParameter")
"""Classes of torch.ao.nn.quantized that hold a module's packed parameters."""

COMPILED = (
    "torch.compile or torch.jit runs it as one region, so its layers have no ranges. Run it "
    "uncompiled to see them"
)

FLEX_REGION = "_flex_attention_hop_wrapper"
"""Name of the function that FlexAttention compiles when it is called uncompiled."""

INSTALLED: list[GlobalModuleHooks] = []
"""All installed hooks, in order of installation."""


@dataclass(slots=True)
class CompositeCall:
    """One composite call: its forward inputs and outputs, and the backward passes recorded
    for it."""

    op: str = ""
    inputs: tuple[tuple[int, ...] | None, ...] = ()
    outputs: tuple[tuple[int, ...] | None, ...] = ()
    dtypes: tuple[str, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    backend: str = "math"
    tasks: set[int] = field(default_factory=set)
    """Numbers of the backward passes (graph tasks) that reached it."""

    def set_flash_backend_if_fused(self, name: str) -> None:
        if self.backend == "math" and any(kernel in name for kernel in _FUSED):
            self.backend = "flash"

    def set_input_shapes_and_dtypes(
        self, inputs: tuple[Any, ...], output_or_same_dtype: Any
    ) -> None:
        """``inputs``: tensors, or None; ``output_or_same_dtype``: the output, or a tensor of its
        dtype."""
        self.inputs = tuple(None if tensor is None else tuple(tensor.shape) for tensor in inputs)
        tensors = [tensor for tensor in (*inputs, output_or_same_dtype) if tensor is not None]
        self.dtypes = tuple(str(tensor.dtype).replace("torch.", "") for tensor in tensors)


def is_recurrent(module: nn.Module) -> bool:
    """Return whether the module's forward is torch's own LSTM, GRU or RNN."""
    return isinstance(module, nn.RNNBase)


def fill_rnn_call(
    call: CompositeCall, module: Any, args: Args, kwargs: Kwargs, output: Any
) -> None:
    """Fill ``call`` from one forward of an RNNBase: shapes as given, packed steps as their sum.

    ``output``: None when checkpointing cut the forward short; then the input's dtype is used.
    """
    data_or_packed = args[0] if args else kwargs["input"]
    states = args[1] if len(args) > 1 else kwargs.get("hx")
    states = () if states is None else states if isinstance(states, tuple) else (states,)
    packed = not isinstance(data_or_packed, Tensor)
    data = data_or_packed.data if packed else data_or_packed
    directions, projected = 2 if module.bidirectional else 1, getattr(module, "proj_size", 0)
    if packed:
        first, rows = int(data_or_packed.batch_sizes[0]), int(data.shape[0])
    elif data.dim() == 2:
        first, rows = 1, int(data.shape[0])
    else:
        first = int(data.shape[0 if module.batch_first else 1])
        rows = int(data.shape[0]) * int(data.shape[1])
    grad = torch.is_grad_enabled()
    call.op = {"LSTM": "perfctl.lstm", "GRU": "perfctl.gru"}.get(module.mode, "perfctl.rnn")
    call.outputs = ((*data.shape[:-1], directions * (projected or module.hidden_size)),)
    call.set_input_shapes_and_dtypes((data, *states), data if output is None else output[0].data)
    call.attributes = {
        "input_size": module.input_size,
        "hidden_size": module.hidden_size,
        "proj_size": projected,
        "num_layers": module.num_layers,
        "directions": directions,
        "bias": bool(module.bias),
        "rows": rows,
        "first_rows": first,
        "packed": packed,
        "needs_input": grad and bool(data.requires_grad),
        "needs_weight": grad and any(weight.requires_grad for weight in module.parameters()),
        "needs_hidden": grad and any(state.requires_grad for state in states),
    }


def fill_attention_call(
    call: CompositeCall,
    args: Args,
    kwargs: Kwargs,
    output: Any,
    module: nn.Module | None = None,
) -> None:
    """Fill ``call`` from one scaled_dot_product_attention: query, key, value, and the mask if it is
    a tensor, whose window ``module`` may state.

    ``output``: None when checkpointing cut the forward short; then the query's dtype is used.
    """
    names = {**dict(zip(_ATTENTION, args)), **kwargs}
    values = [names.get(name) for name in ("query", "key", "value", "attn_mask")]
    inputs = tuple(item if isinstance(item, Tensor) else None for item in values)
    query, key, value, mask = inputs
    grad = torch.is_grad_enabled()
    call.op = "perfctl.scaled_dot_product_attention"
    call.outputs = (
        ((*query.shape[:-1], value.shape[-1]),)
        if query is not None and value is not None
        else (None,)
    )
    call.set_input_shapes_and_dtypes(inputs, query if output is None else output)
    call.attributes = {
        "is_causal": bool(names.get("is_causal", False)),
        "needs": tuple(
            grad and item is not None and item.requires_grad for item in (query, key, value)
        ),
    }
    if mask is not None and query is not None and key is not None:
        window = _read_causal_sliding_window(module)
        pairs = [(int(query.shape[-2]), int(key.shape[-2]))]
        left = window - 1 if window else None
        limits = describe_attention_mask(prod(query.shape[:-2]), pairs, window is not None, left)
        is_counted = "scores" in limits
        call.attributes.update(limits if is_counted else {"upper_bound": UNREAD})


def _read_causal_sliding_window(module: Any) -> int | None:
    """Return the keys that each query of a causal module of transformers sees, itself included;
    None where the module states no window."""
    config = getattr(module, "config", None)
    by_layer = getattr(config, "layer_types", None) or not getattr(
        config, "use_sliding_window", True
    )
    default = None if by_layer else getattr(config, "sliding_window", None)
    window = getattr(module, "sliding_window", default)
    is_causal = getattr(module, "is_causal", False)
    return window if is_causal and type(window) is int and window > 0 else None


def describe_flex_attention(args: tuple[Any, ...]) -> CompositeCall:
    """Return a call of FlexAttention from its arguments: query, key, value, and a mask of blocks
    among the others."""
    call = CompositeCall()
    fill_attention_call(call, args[:3], {}, None)
    (mask,) = [item for item in args if isinstance(item, tuple) and len(item) > 8]
    add_block_mask_score_count(call, mask)
    return call


def add_block_mask_score_count(call: CompositeCall, mask: Any) -> None:
    """Add to a call of FlexAttention the scores of the blocks that its mask keeps."""
    (batch, heads, queries, _), (_, _, keys, _) = call.inputs[:2]  # type: ignore[misc]
    *_, height, width, _ = mask
    if height >= queries and width >= keys:
        return
    tensors = mask if isinstance(mask[0], Tensor) else mask[2:]  # lengths, from torch 2.6 on
    blocks = [pair for pair in (tensors[:2], tensors[2:4]) if pair[0] is not None]
    if any(count.is_meta for count, _ in blocks):
        call.attributes["upper_bound"] = BLOCKS
        return
    scores, block_count = 0, 0
    for counts, columns in blocks:
        counts, columns = counts.long().cpu(), columns.long().cpu()
        rows = torch.arange(counts.shape[-1]) * height
        is_kept = torch.arange(columns.shape[-1]) < counts[..., None]
        widths = ((keys - columns * width).clamp(0, width) * is_kept).sum(-1)
        repeats = batch * heads // prod(counts.shape[:2])
        scores += repeats * int((widths * (queries - rows).clamp(0, height)).sum())
        block_count += repeats * int(counts.sum())
    text = f"{block_count} blocks of {height} queries x {width} keys"
    call.attributes.update(scores=scores, mask=text)


def fill_vecdot_call(
    call: CompositeCall, args: Args, kwargs: Kwargs, output: Any, module: Any
) -> None:
    """Fill ``call`` from one torch.linalg.vecdot, whose operators are elementwise although the work
    is that of an einsum.

    ``output``: None when checkpointing cut the forward short; then the inputs give its shape.
    """
    names = {"dim": -1, **dict(zip(("x", "y"), args)), **kwargs}
    x, y, grad = names["x"], names["y"], torch.is_grad_enabled()
    shape = list(torch.broadcast_shapes(x.shape, y.shape))
    depth = shape.pop(names["dim"])
    call.op, call.outputs = "perfctl.vecdot", (tuple(shape),)
    call.set_input_shapes_and_dtypes((x, y), x if output is None else output)
    call.attributes = {
        "depth": depth,
        "needs": tuple(grad and value.requires_grad for value in (x, y)),
    }


def is_compiled_region(module: nn.Module) -> bool:
    """Return whether the module's forward is one region: compiled in place, by a wrapper, or
    scripted."""
    in_place = module.__dict__.get("_compiled_call_impl") is not None
    return (
        in_place
        or isinstance(module, (torch.jit.ScriptModule, CompiledRegion))
        or is_torch_compile_wrapper(module)
    )


def is_torch_compile_wrapper(module: nn.Module) -> bool:
    """Return whether it is the result of ``torch.compile(model)``."""
    return "_orig_mod" in module.__dict__.get("_modules", ())


def get_layer_class_name(module: nn.Module) -> str:
    """Its class; of a scripted module, the class that it was made from."""
    scripted = isinstance(module, torch.jit.ScriptModule)
    return str(getattr(module, "original_name", "")) if scripted else type(module).__name__


@contextmanager
def run_without_compilation() -> Iterator[None]:
    """Run what torch.compile or torch.jit made operator by operator, and FlexAttention on
    any device."""
    from torch.nn.attention import flex_attention

    stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    optimize, check = (
        torch._C._get_graph_executor_optimize(),
        getattr(flex_attention, "_validate_device", None),
    )
    torch._C._set_graph_executor_optimize(False)
    if check is not None:
        flex_attention._validate_device = lambda *_: None
    try:
        with stance("force_eager") if stance is not None else nullcontext():
            yield
    finally:
        torch._C._set_graph_executor_optimize(optimize)
        if check is not None:
            flex_attention._validate_device = check


def holds_only_packed_parameters(module: nn.Module) -> bool:
    """Return whether it only holds packed parameters of the quantized module above it."""
    if isinstance(module, nn.ModuleList):
        return len(module) > 0 and all(map(holds_only_packed_parameters, module))
    return type(module).__name__ in _PACKED and ".quantized" in type(module).__module__


def unpack_quantized_parameters(module: nn.Module) -> list[Tensor]:
    """Weights and biases that a quantized module packs into objects of torch; [] of any other."""
    if holds_only_packed_parameters(module):
        return []
    holders = [
        holder
        for child in module.children()
        if holds_only_packed_parameters(child)
        for holder in child.modules()
    ]
    objects: list[Any] = [
        value
        for owner in (module, *holders)
        for value in vars(owner).values()
        if type(value) is torch.ScriptObject
    ]
    # a recurrent layer packs its packed products once more
    cells = [item for item in objects if str(item._type()).endswith("CellParamsBase")]
    objects += [inner for cell in cells for inner in cell.__getstate__()[0][-1]]
    unpacked = [item.unpack() for item in objects if hasattr(item, "unpack")]
    parts = (item if isinstance(item, (tuple, list)) else (item,) for item in unpacked)
    return [part for tensors in parts for part in tensors if isinstance(part, Tensor)]


class CompiledRegion(nn.Module):
    """Represents a compiled function among the layers; never called."""


class GlobalModuleHooks:
    """Global hooks before and after every module's forward, hidden while compiled code runs.

    torch.compile would build visible hooks into the compiled code, and recompile when they
    are gone.
    """

    def __init__(
        self,
        before: Callable[..., None],
        after: Callable[..., None],
        with_kwargs: bool = False,
        outermost: bool = False,
    ) -> None:
        """``outermost``: called before perfctl's other hooks at the start of a forward, and after
        them at its end."""
        self.before, self.after = before, after
        self.with_kwargs, self._outermost = with_kwargs, outermost
        self._handles: list[RemovableHandle] = []
        self._end: list[RemovableHandle] = []
        self._wanted = False

    def install(self) -> None:
        self._wanted = True
        if not HAS_ALWAYS:
            INSTALLED.append(self)
            _PATCHED.patch_while_hooked()
            return
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self.before),
            module_hooks.register_module_forward_hook(
                self.after, with_kwargs=self.with_kwargs, always_call=True
            ),
        ]
        INSTALLED.append(self)
        for hooks in INSTALLED:
            if hooks._outermost:
                module_hooks._global_forward_pre_hooks.move_to_end(hooks._handles[0].id, last=False)  # type: ignore[attr-defined]
                module_hooks._global_forward_hooks.move_to_end(hooks._handles[1].id)  # type: ignore[attr-defined]

    def remove(self) -> None:
        self._wanted = False
        self._remove_handles()

    def hide_during_forward(self, wrapper: nn.Module) -> None:
        """Remove the hooks until the end of the wrapper's forward, which is about to start;
        ``after`` is still called."""
        self._remove_handles()
        if not HAS_ALWAYS:
            HIDDEN.setdefault(id(wrapper), []).append(self)
            return
        how = {"with_kwargs": self.with_kwargs, "always_call": True, "prepend": not self._outermost}
        self._end = [wrapper.register_forward_hook(self._restore_after_forward, **how)]

    def restore_hidden_hooks(self) -> None:
        """Undo ``_remove_handles``, unless the hooks were removed or installed since."""
        if self._wanted and self not in INSTALLED:
            self.install()

    def _remove_handles(self) -> None:
        for handle in (*self._handles, *self._end):
            handle.remove()
            # torch 2.15 leaves this entry of a global hook behind, and would keep warning of
            # global hooks.
            module_hooks._global_forward_hooks_with_kwargs.pop(handle.id, None)
        self._handles, self._end = [], []
        if self in INSTALLED:
            INSTALLED.remove(self)
        if not HAS_ALWAYS:
            _PATCHED.patch_while_hooked()

    def _restore_after_forward(self, module: nn.Module, *hook_arguments: Any) -> None:
        self._remove_handles()
        self.restore_hidden_hooks()
        self.after(module, *hook_arguments)


def _list_installed_hooks_outermost_first() -> list[GlobalModuleHooks]:
    return sorted(INSTALLED, key=lambda item: not item._outermost)


_PATCHED = ModuleCallPatch(_list_installed_hooks_outermost_first)


def patch_compile_to_wrap_regions() -> Callable[[], None]:
    """From now on, functions and modules in place that torch.compile compiles run as a region
    without visible hooks.

    Wrappers of models need no such treatment, because they are modules. The returned function
    undoes it for functions compiled later; those compiled before run unchanged once no hooks
    are installed.
    """
    if not hasattr(torch, "compile"):  # before torch 2.0
        return lambda: None
    compile = torch.compile

    @functools.wraps(compile)
    def compile_as_region(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        compiled = compile(model, *args, **kwargs)
        unchanged = (
            model is None
            or isinstance(model, type)
            or isinstance(compiled, (type, nn.Module))
            or compiled is model
        )
        return compiled if unchanged else _wrap_in_region(model, compiled)

    return replace_attribute(torch, "compile", compile_as_region)


def _wrap_in_region(function: Any, compiled: Any) -> Any:
    region, name = getattr(function, "__self__", None), getattr(function, "__name__", None)
    if not isinstance(region, nn.Module) or name != "_call_impl":  # else it is compiled in place
        region = type(str(name or type(function).__name__), (CompiledRegion,), {})()

    @functools.wraps(compiled)
    def call_as_region(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not INSTALLED:
            return compiled(*args, **kwargs)
        for item in _list_installed_hooks_outermost_first():
            item.before(region, args)
        hooks = (
            _list_installed_hooks_outermost_first()
        )  # some may have been installed by the others for this call
        for item in hooks:
            item._remove_handles()
        hook_arguments: Args = (None,)
        try:
            result = compiled(*args, **kwargs)
            hook_arguments = kwargs, result
            return result
        finally:
            for item in hooks:
                item.restore_hidden_hooks()
            for item in reversed(hooks):
                item.after(
                    region, args, *(hook_arguments if item.with_kwargs else hook_arguments[-1:])
                )

    return call_as_region


def exclude_hooks_from_compilation(*hooks: Callable[..., Any]) -> None:
    """Stop torch.compile from compiling the hooks that a compiled module's wrapper calls, and from
    warning of them."""
    # The warning says that global hooks also run for the wrapper, which is intended here.
    warnings.filterwarnings(
        "ignore", message="Using `torch.compile.module.` when there are global hooks"
    )
    skip = getattr(
        getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None), "skip_code", None
    )
    if skip is not None:
        for hook in hooks:
            skip(hook.__code__)
