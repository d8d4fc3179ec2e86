"""Select the dispatcher operations that matter, and extract what formulas need beyond shapes.
Imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, log2, prod
from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map

from perfctl.records.masks import OPERATORS, PACKED, describe_attention_call_mask
from perfctl.records.paper import OpShape, TracedModule
from perfctl.workloads.tracing.composites import (
    get_layer_class_name,
    holds_only_packed_parameters,
    unpack_quantized_parameters,
)
from perfctl.workloads.tracing.versions import Args, Kwargs

Attributes = Tuple[Tuple[str, Any], ...]
"""(name, JSON value) pairs, with tuples for lists, so that they are hashable."""
Extractor = Callable[[Args, Kwargs], Attributes]
"""From the arguments of an operator to what its formula needs."""

BOOKKEEPING = frozenset({"profiler", "prim", "prims_internal", "c10d_internal"})
"""Namespaces without arithmetic."""

FREE = frozenset(
    (
        "aten.empty",
        "aten.empty_like",
        "aten.empty_strided",
        "aten.new_empty",
        "aten.new_empty_strided",
        "aten._unsafe_view",
        "aten._reshape_alias",
        "aten.lift_fresh",
        "aten.detach_",
        "aten.resize_",
        "aten.set_",
        "aten.sym_size",
        "aten.sym_stride",
        "aten.sym_numel",
        "aten.is_same_size",
        "aten.result_type",
        "aten.view",
        "aten.record_stream",
        "aten._has_same_storage_numel",
        "aten.expand",
        "aten.as_strided_",
        "aten.t_",
        "aten.transpose_",
        "aten.clone",
        "aten.squeeze_",
        "aten.unsqueeze_",
        "aten.requires_grad_",
        "aten._nested_tensor_from_mask",
        "aten._linalg_check_errors",
        "aten._nested_tensor_size",
        "aten._nested_tensor_strides",
        "torchvision._cuda_version",
        "aten._nested_tensor_storage_offsets",
    )
)
"""Operations that compute nothing, besides those that the dispatcher marks as views.

clone is one of them: reshape and contiguous call it depending on the memory layout that a device's
kernels prefer, not on the model.
"""

_PLAIN = (Tensor, nn.Parameter)

_JAGGED = getattr(torch, "jagged", None)  # torch 2.2 and later

_PAIRED = ("aten.bmm", "aten.matmul", "aten.mm")
"""Products of which each part of one nested tensor meets its own of the other; backward the
gradient's part as well."""
_Shapes = Tuple[Optional[Tuple[int, ...]], ...]

_DENSE = (torch.strided, _JAGGED, torch._mkldnn)  # type: ignore[attr-defined]

_TAYLOR = {
    torch.float32: (
        1.192092800768788e-07,
        5.978858893805233e-04,
        5.116619363445086e-02,
        5.800524627688768e-01,
        1.461661507209034,
        3.010066362817634,
    ),
    torch.float64: (
        2.220446049250313e-16,
        2.580956802971767e-08,
        3.397168839976962e-04,
        4.991228871115323e-02,
        2.996158913811580e-01,
        1.090863719290036,
    ),
}
"""Largest 1-norm for which 0, 1, ... 5 products are enough; above the last, the matrix is halved
until it is."""


class OperatorPlan(NamedTuple):
    name: str
    """Namespace and name without overload: aten.convolution."""
    free: bool
    """Not recorded: a view or an allocation."""
    composite: bool
    """Consists of other operators, which are recorded instead (it appears like this under
    inference_mode)."""
    attributes: Extractor | None
    dynamic: bool
    """Its result (a size, a number on the host) depends on data, not only on shapes."""


_BY_VALUES = ("torchvision.nms", "aten.linalg_matrix_exp")
"""Operations whose result or work depends on values, though no tag says so."""
_OWN_KERNEL = frozenset({"aten.silu_backward", "aten.mish_backward"})
"""Composite elsewhere (on meta), but one kernel on CPU and CUDA: native_functions.yaml."""
_DYNAMIC = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})


def classify_operator(func: Any) -> OperatorPlan:
    """Return the plan for a ``torch._ops.OpOverload``; callers cache it."""
    namespace = func.namespace
    name = f"{namespace}.{func._schema.name.partition('::')[2]}"
    free = namespace in BOOKKEEPING or name in FREE or bool(func.is_view)
    composite = (
        name not in _OWN_KERNEL
        and _can_decompose(func)
        and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
        )
    )
    attributes = ATTRIBUTES.get(name)
    if attributes is None and torch.Tag.pointwise in func.tags:
        attributes = lambda args, kwargs: (("pointwise", True),)  # noqa: E731
    return OperatorPlan(
        name, free, composite, attributes, not _DYNAMIC.isdisjoint(func.tags) or name in _BY_VALUES
    )


def _can_decompose(func: Any) -> bool:
    try:
        if not hasattr(func, "_can_decompose"):  # before torch 2.6
            return bool(
                torch._C._dispatch_has_kernel_for_dispatch_key(
                    func.name(), "CompositeImplicitAutograd"
                )
            )
        return bool(func._can_decompose())
    except RuntimeError:  # prim::layout is in no table
        return False


def has_dispatching_subclass(types: Iterable[Any]) -> bool:
    """Return whether one of the tensors is of a class that runs other operators for each (jagged,
    DTensor, quantized weights)."""
    disabled = torch._C._disabled_torch_dispatch_impl
    return any(kind not in _PLAIN and kind.__torch_dispatch__ is not disabled for kind in types)


def is_nested_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_nested


def _list_nested_shapes(value: Tensor) -> list[tuple[int, ...]]:
    """Return the shapes inside a nested tensor."""
    return [tuple(map(int, row)) for row in value._nested_tensor_size().tolist()]


def get_dense_equivalent_shape(value: Tensor) -> tuple[int, ...]:
    """Its shape; of a nested tensor, one with as many values: rows of all parts together, if the
    rest is equal."""
    if not value.is_nested:
        return tuple(value.shape)
    if value.layout is _JAGGED:
        return tuple(value.values().shape)
    sizes = _list_nested_shapes(value)
    inner = {size[1:] for size in sizes}
    if len(inner) == 1:
        return (sum(size[0] for size in sizes), *inner.pop())
    last = {size[-1] for size in sizes}
    total = sum(prod(size) for size in sizes)
    return (total // (width := last.pop()), width) if len(last) == 1 and 0 not in last else (total,)


def split_nested_tensor_products(
    name: str, args: Args, result: Any, inputs: Sequence[Any], outputs: Sequence[Any]
) -> list[tuple[_Shapes, _Shapes]]:
    """Return (inputs, outputs) of each product that one operator runs: several for two nested
    tensors, else one."""
    backward = name == "aten.matmul_backward"
    if (name not in _PAIRED and not backward) or not all(
        map(is_nested_tensor, args[: 2 + backward])
    ):
        return [(tuple(inputs), tuple(outputs))]
    if backward:
        sizes_of_parts = zip(*(_list_nested_shapes(value) for value in args[:3]))
        has_gradient = [gradient is not None for gradient in result]
        return [
            (sizes, tuple(size if want else None for size, want in zip(sizes[1:], has_gradient)))
            for sizes in sizes_of_parts
        ]
    parts = zip(*(_list_nested_shapes(value) for value in (*args[:2], result)))
    return [((first, right), (product,)) for first, right, product in parts]


def count_sparse_values_and_pairs(args: Args) -> Attributes:
    """Return how many values each sparse tensor stores, and of two, how many pairs of them meet; ()
    without a sparse tensor."""
    tensors = [
        value if isinstance(value, Tensor) and value.layout not in _DENSE else None
        for value in args
    ]
    if not any(value is not None for value in tensors):
        return ()
    stored: Attributes = (
        ("nnz", tuple(None if value is None else _count_sparse_values(value) for value in tensors)),
    )
    sparse = [value for value in tensors if value is not None]
    if len(sparse) == 2 and all(value.dim() == 2 for value in sparse):
        first_indices, right = (
            value.detach().to_sparse_coo().coalesce().indices() for value in sparse
        )
        middle = max(sparse[0].shape[1], 1)
        met = torch.bincount(first_indices[1], minlength=middle) * torch.bincount(
            right[0], minlength=middle
        )
        stored = (*stored, ("pairs", int(met.sum())))
    return stored


def _count_sparse_values(value: Tensor) -> int:
    values = value._values() if value.layout is torch.sparse_coo else value.values()
    return int(values.numel())


def _run_or_reuse_result(func: Any, args: Args, kwargs: Kwargs) -> Any:
    try:
        from perfctl.workloads.tracing import meta_results
    except ImportError:  # in the file for a script's own interpreter, which traces nothing on meta
        return func(*args, **kwargs)
    return meta_results.compute_or_reuse_result(func, args, kwargs)


def run_operator_or_meta_substitute(func: Any, name: str, args: Args, kwargs: Kwargs) -> Any:
    """Return the operator's result; on meta, also of those few that torch has no meta kernel for,
    or one that refuses types.

    A tensor that the model made on the CPU is taken for one on meta where it meets others there.
    """
    shaped = _SHAPED.get(name)
    if shaped is None or not any(map(_is_on_meta, args)):
        try:
            return _run_or_reuse_result(func, args, kwargs)
        except RuntimeError as error:
            if "not on the expected device meta" not in str(error):
                raise
            return func(
                *tree_map(_move_cpu_tensor_to_meta, args),
                **tree_map(_move_cpu_tensor_to_meta, kwargs),
            )
    return shaped(*args, **kwargs)


def _move_cpu_tensor_to_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) and value.device.type == "cpu" else value


def _is_on_meta(value: Any) -> bool:
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, Tensor) and first.is_meta


def _make_empty_ctc_result(log_probs: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    steps, batch = log_probs.shape[0], log_probs.shape[1] if log_probs.dim() == 3 else 1
    longest = targets.shape[-1] if targets.dim() == 2 else -(-targets.shape[0] // batch)
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * longest + 1)


def _make_empty_lstsq_result(left: Tensor, right: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    """Solution, residuals, rank, singular values; of the last three the sizes are not known without
    a driver."""
    rows = right.shape[len(left.shape) - 1 :] if right.dim() == left.dim() else ()
    trailing = [left.new_empty(0, dtype=kind) for kind in (left.dtype, torch.int64, left.dtype)]
    return left.new_empty((*left.shape[:-2], left.shape[-1], *rows)), *trailing


def _equal_or_false_for_scalars(left: Tensor, right: Tensor) -> bool:
    """Return whether tensors are equal; on meta only where istft asks whether its windows vanish
    somewhere (torch 2.14): they do not."""
    if left.dim() or left.dtype is not torch.bool:
        return bool(torch.ops.aten.equal.default(left, right))
    return False


def _make_empty_grouped_mm_result(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Any = None,
    out_dtype: Any = None,
) -> Tensor:
    """Its rows, or the sum over them, are split into groups at ``offs``. torch 2.14's meta kernel
    takes 16-bit types only."""
    ends = 0 if offs is None else offs.numel()
    if left.dim() == right.dim() == 2:
        shape: tuple[int, ...] = (ends, left.shape[0], right.shape[1])
    elif left.dim() == right.dim():
        shape = (*left.shape[:2], right.shape[2])
    else:
        shape = (left.shape[-2], right.shape[-1])
    return left.new_empty(shape, dtype=out_dtype)


_SHAPED: dict[str, Callable[..., Any]] = {
    "aten.equal": _equal_or_false_for_scalars,
    "aten.linalg_lstsq": _make_empty_lstsq_result,
    "aten._grouped_mm": _make_empty_grouped_mm_result,
    "aten._ctc_loss": _make_empty_ctc_result,
    "aten._ctc_loss_backward": lambda grad, log_probs, *_: torch.empty_like(log_probs),
    "aten._weight_norm_interface_backward": lambda grad, v, g, *_: (
        torch.empty_like(v),
        torch.empty_like(g),
    ),
    "aten._fused_sgd_": lambda *_, **__: None,
}


def _get_argument_or_none(args: Args, index: int) -> Any:
    return args[index] if len(args) > index else None


def _count_matrix_exp_products(args: Args, kwargs: Kwargs) -> Attributes:
    """Return how many products matrix_exp takes for all its matrices, from their norms, as torch's
    CPU and CUDA kernels do.

    Seen in torch 2.14 (aten/src/ATen/native/LinearAlgebra.cpp, mexp): a Taylor polynomial with 0 to
    5 products, always the largest for several matrices, and of a matrix halved s times s squarings
    more. Source: Bader, Blanes, Casas, "Computing the matrix exponential with an optimized Taylor
    polynomial approximation", 2019.
    """
    matrices = args[0]
    limits = _TAYLOR.get(matrices.dtype.to_real())
    if matrices.is_meta or limits is None:
        return (("missed", "the number of its products depends on the values"),)
    norms = [float(norm) for norm in torch.linalg.matrix_norm(matrices.detach(), 1).reshape(-1)]
    degree = next(
        (index for index, limit in enumerate(limits) if max(norms, default=0.0) <= limit),
        len(limits) - 1,
    )
    squarings = sum(max(0, ceil(log2(norm / limits[-1]))) for norm in norms if norm > 0)
    return (
        ("products", (degree if len(norms) == 1 else len(limits) - 1) * len(norms) + squarings),
    )


def has_data_dependent_size(name: str, args: Args) -> bool:
    """Return whether the size of the result depends on values: of indexing only where an index is
    a mask."""
    if name not in ("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"):
        return True
    indices = _get_argument_or_none(args, 1) or ()
    return any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices
    )


def _make_hashable(value: Any) -> Any:
    """Lists become tuples; symbolic and tensor values become None."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_make_hashable, value))
    return value if isinstance(value, (bool, int, float, str)) else None


def _make_argument_extractor(*names: str) -> Extractor:
    """Return an extractor of arguments with plain values, named in positional order; "" skips
    one."""

    def extract_arguments(args: Args, kwargs: Kwargs) -> Attributes:
        values = {
            name: kwargs.get(name, _get_argument_or_none(args, index))
            for index, name in enumerate(names)
            if name
        }
        return tuple(
            (name, _make_hashable(value)) for name, value in values.items() if value is not None
        )

    return extract_arguments


_WINDOW = _make_argument_extractor(
    "", "", "", "stride", "padding", "dilation", "transposed", "", "groups"
)
_CONVOLUTION_BACKWARD = _make_argument_extractor(
    "", "", "", "", "stride", "padding", "dilation", "transposed", "", "groups", "output_mask"
)
_MAX_POOL = _make_argument_extractor(
    "", "kernel_size", "stride", "padding", "dilation", "ceil_mode"
)
_FLASH = _make_argument_extractor("", "", "", "dropout_p", "is_causal")
_EFFICIENT = _make_argument_extractor("", "", "", "", "", "dropout_p", "is_causal")


def _make_attention_extractor(name: str) -> Extractor:
    """Return an extractor of the scores of an operator of OPERATORS, with the lengths of its packed
    sequences."""
    places = OPERATORS[name]

    def extract_scores(args: Args, kwargs: Kwargs) -> Attributes:
        window = kwargs.get("window_size", kwargs.get("window_size_left"))
        keywords = {places.window: window, places.window + 1: kwargs.get("window_size_right")}

        def get_value(index: int) -> Any:
            return args[index] if 0 <= index < len(args) else keywords.get(index)

        def get_argument_shape(index: int) -> tuple[int, ...]:
            return tuple(getattr(get_value(index), "shape", ()))

        def read_packed_lengths(index: int) -> list[int] | None:
            tensor = get_value(index)
            # reading a value would break the capture of a CUDA graph
            if tensor is None or tensor.is_meta or torch.cuda.is_current_stream_capturing():
                return None
            return [int(length) for length in tensor.tolist()]

        attributes = describe_attention_call_mask(
            name, get_argument_shape, get_value, read_packed_lengths
        )
        if attributes is None:
            return (("missed", PACKED),)
        query, key = get_argument_shape(places.query), get_argument_shape(places.query + 1)
        scores = prod(query[:-1]) * key[-3]
        return tuple({"scores": scores, **attributes}.items())

    return extract_scores


def _extract_convolution_attributes(args: Args, kwargs: Kwargs) -> Attributes:
    return ("bias", _get_argument_or_none(args, 2) is not None), *_WINDOW(args, kwargs)


ATTRIBUTES: dict[str, Extractor] = {
    f"aten.{name}": extractor
    for names, extractor in (
        ("convolution _convolution convolution_overrideable", _extract_convolution_attributes),
        ("convolution_backward convolution_backward_overrideable", _CONVOLUTION_BACKWARD),
        ("max_pool2d_with_indices max_pool3d_with_indices", _MAX_POOL),
        (
            "avg_pool2d avg_pool3d",
            _make_argument_extractor("", "kernel_size", "stride", "padding", "ceil_mode"),
        ),
        (
            "avg_pool2d_backward avg_pool3d_backward",
            _make_argument_extractor("", "", "kernel_size", "stride", "padding"),
        ),
        (
            "native_batch_norm cudnn_batch_norm miopen_batch_norm",
            _make_argument_extractor("", "", "", "", "", "training"),
        ),
        ("_batch_norm_with_update", _make_argument_extractor()),
        (
            "native_batch_norm_backward",
            _make_argument_extractor("", "", "", "", "", "", "", "train", "eps", "output_mask"),
        ),
        ("native_layer_norm", _make_argument_extractor("", "normalized_shape")),
        ("native_group_norm", _make_argument_extractor("", "", "", "N", "C", "HxW", "group")),
        ("embedding_dense_backward", _make_argument_extractor("", "", "num_weights")),
        ("_cdist_forward", _make_argument_extractor("", "", "p")),
        ("_cdist_backward", _make_argument_extractor("", "", "", "p")),
        (
            "_trilinear",
            _make_argument_extractor("", "", "", "expand1", "expand2", "expand3", "sumdim"),
        ),
        ("_fft_c2c _fft_r2c _fft_c2r", _make_argument_extractor("", "dim")),
        ("linalg_qr", _make_argument_extractor("", "mode")),
        ("linalg_lstsq", _make_argument_extractor("", "", "rcond", "driver")),
        ("linalg_pinv", _make_argument_extractor(*[""] * 3, "hermitian")),
        ("linalg_matrix_exp", _count_matrix_exp_products),
        ("_linalg_svd", _make_argument_extractor("", "full_matrices", "compute_uv")),
        ("_linalg_eigh", _make_argument_extractor("", "", "compute_v")),
        ("linalg_solve_triangular", _make_argument_extractor("", "", "upper", "left")),
        ("_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu", _FLASH),
        ("_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention", _EFFICIENT),
    )
    for name in names.split()
}
"""Operation -> extractor, where the formula needs more than shapes."""
ATTRIBUTES.update(
    {
        "torchvision.deform_conv2d": _make_argument_extractor(*[""] * 13, "use_mask"),
        "torchvision._deform_conv2d_backward": _make_argument_extractor(*[""] * 14, "use_mask"),
        **{name.replace("::", "."): _make_attention_extractor(name) for name in OPERATORS},
    }
)

Note = Tuple[Any, ...]
"""layer, kind, functional, op, direction, role, recompute, inputs, outputs, dtypes,
attributes: hashable."""


def build_op_shapes(
    position_and_calls_by_note: Mapping[Note, list[int]], parameters: Mapping[str, int]
) -> tuple[OpShape, ...]:
    """``position_and_calls_by_note``: note -> [order of the first, calls]; ``parameters``: dotted
    path -> elements of its own.

    Parameters of modules that did not run count for the nearest module above that did.
    """
    ran = {note[0] for note in position_and_calls_by_note}
    parameters_of: dict[str, int] = {}
    for path, count in parameters.items():
        while path and path not in ran:
            path = path.rpartition(".")[0]
        parameters_of[path] = parameters_of.get(path, 0) + count
    return tuple(
        _make_op_shape(note, entry, parameters_of)
        for note, entry in position_and_calls_by_note.items()
    )


def _make_op_shape(
    note: Note, position_and_calls: list[int], parameters_of: dict[str, int]
) -> OpShape:
    layer, kind, functional, op, direction, role, recompute, inputs, outputs, types, attributes = (
        note
    )
    marks = {"functional": functional, "role": role, "recompute": recompute or None}
    extra: dict[str, object] = {name: _convert_to_json_value(value) for name, value in attributes}
    extra.update((name, value) for name, value in marks.items() if value is not None)
    dtypes = tuple(str(dtype).replace("torch.", "") for dtype in types)
    return OpShape(
        layer,
        kind,
        op,
        direction,
        inputs,
        outputs,
        dtypes,
        extra,
        parameters=parameters_of.get(layer, 0) if kind else 0,
        calls=position_and_calls[1],
        position=position_and_calls[0],
    )


def _convert_to_json_value(value: Any) -> Any:
    return [_convert_to_json_value(item) for item in value] if isinstance(value, tuple) else value


def list_traced_modules(
    modules: Iterable[tuple[str, nn.Module]], output_shapes: Mapping[str, tuple[int, ...] | None]
) -> tuple[TracedModule, ...]:
    """Return a row per named module; ``output_shapes``: output shapes of those that ran."""
    counted: set[int] = set()
    rows = []
    for path, module in modules:
        if holds_only_packed_parameters(module):
            continue
        own_tensors = {
            name: tensor
            for name, tensor in module.named_parameters(recurse=False)
            if id(tensor) not in counted
        }
        counted.update(map(id, own_tensors.values()))
        uninitialized = tuple(name for name, tensor in own_tensors.items() if is_lazy(tensor))
        parameters = [tensor for tensor in own_tensors.values() if not is_lazy(tensor)]
        tensors = [*parameters, *unpack_quantized_parameters(module)]
        row = TracedModule(
            path,
            get_layer_class_name(module),
            depth=path.count(".") + 1 if path else 0,
            output=output_shapes.get(path),
            parameters=sum(tensor.numel() for tensor in tensors),
            trainable=sum(tensor.numel() for tensor in parameters if tensor.requires_grad),
            parameter_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            called=path in output_shapes,
            uninitialized=uninitialized,
        )
        rows.append(row)
    return tuple(rows)
