"""Kernels that Inductor compiled: elements, bytes and FLOPs of each call.

The call (an operation of the kernel's own name) has the arguments of the launch: shapes and types
of the tensors, and the numbers behind them. The last of these are the sizes of the loops (xnumel,
or ynumel and xnumel, or xnumel and r0_numel for a reduction), followed in older versions by the
block sizes that ``kernel_kwargs`` names. Sizes count where they fit a tensor.

The tensors of a template (``triton_tem_fused_addmm_...``) show what it multiplies. Weights come as
they lie in memory, so the sizes of one product follow from numbers of elements: A has M x K, B has
K x N and the output M x N. ``kernel_flop`` and ``kernel_num_gb`` are Inductor's own figures, which
it writes where TORCHINDUCTOR_BENCHMARK_KERNEL=1 (bytes also where TORCHINDUCTOR_PROFILE=1); torch's
profile_analysis adds them, too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isnan, isqrt, prod
from typing import Any, NamedTuple

import msgspec

from perfctl.parsers.kineto.stream import Int64, parse_int64
from perfctl.parsers.operators import TYPES, Shape, parse_shape
from perfctl.records.report import CompiledKernel, Gap, join_first_names

TEMPLATE = "triton_tem_"
_ELEMENT_BYTES = {
    **dict.fromkeys(("byte", "char", "bool"), 1),
    **dict.fromkeys(("half", "short"), 2),
    **dict.fromkeys(("float", "int", "complexhalf"), 4),
    **dict.fromkeys(("double", "long", "complexfloat"), 8),
    "complexdouble": 16,
}
"""Names of types without a number of bits, in small letters -> bytes of an element."""
_BITS = re.compile(r"(?:b?float|u?int|complex)(8|16|32|64|128)(?:_\w+)?")
"""Names of types with the bits of an element."""
_PRODUCT = re.compile(r"(?:^|_)(addmm|baddbmm|bmm|mm|convolution)(?=_|\Z)")
_NO_FORMULA = re.compile(r"(?:^|_)(flex_attention|grouped_mm|scaled_mm|int_mm)")
_BLOCK = re.compile(r"\b([XYZ]BLOCK|R[01]_BLOCK|RBLOCK)=(\d{1,18})\b")
"""A block size in ``kernel_kwargs``: "XBLOCK=1,R0_BLOCK=128"."""
_PARTLY = re.compile(
    r"(?:^|_)(cat|where|pad|index|scatter|gather|embedding|stack|masked|nonzero|slice)(?:_|\Z)"
)
"""Operators beside which not every operation runs on every element."""
_OPERATOR = re.compile(
    "_(?:(add|sub|rsub|mul|div|pow|sqrt|rsqrt|reciprocal|neg|abs|exp|exp2|expm1|log|log2|log1p|sin|"
    "cos|tan|tanh|sigmoid|silu|gelu|relu|leaky_relu|hardtanh|hardswish|erf|sum|mean|prod|amax|amin|"
    "max|min|maximum|minimum|clamp_min|clamp_max|clamp|sign|floor|ceil|round|square|"
    "threshold_backward|ge|gt|le|lt|eq|ne)|_to_copy|clone|copy|view|t|transpose|permute|expand|"
    "unsqueeze|squeeze|slice|select|detach|reshape|alias|full|zeros|ones|empty|constant|"
    "scalar_tensor|lift_fresh_copy|convert_element_type|bitwise_and|bitwise_or|bitwise_not|"
    r"bitwise_xor|logical_and|logical_or|logical_not|arange|iota|split|unbind)(?=_|\Z)"
)
"""Aten operators in names of kernels, as far as names are recognised. The group: those of one
operation an element; softmax, norms and the like are several, and are not counted. The others move
or convert data."""
_NAMED_MAX = 3
"""Kernels that a gap names."""
_NAME_MAX = 18
"""Characters of each of them, so that the reason is one short sentence."""


class CompiledArgs(msgspec.Struct, gc=False):
    """Arguments of a call of a compiled kernel."""

    kernel_file: str | None = None
    kernel_hash: str | None = None
    kernel_backend: str | None = None
    kernel_kwargs: str = ""
    kernel_flop: Int64 = None
    kernel_num_gb: float | None = None
    dims: list[Any] = msgspec.field(name="Input Dims", default_factory=list)
    types: list[str] = msgspec.field(name="Input type", default_factory=list)
    values: list[Any] = msgspec.field(name="Concrete Inputs", default_factory=list)


class CompiledCall(NamedTuple):
    """One call of a compiled kernel."""

    kernel: CompiledKernel
    """With 0 calls and without time."""
    why: str | None
    """Why the FLOPs of a template are not known."""


def derive_compiled_call(name: str, args: CompiledArgs) -> CompiledCall:
    """Return the work of a call of the kernel ``name``."""
    values = args.values if len(args.values) == len(args.dims) else [""] * len(args.dims)
    operands = []
    if len(args.types) == len(args.dims):
        operands = list(zip(args.dims, args.types, values, strict=True))
    tensors = [
        (shape, TYPES[kind])
        for sizes, kind, _ in operands
        if kind in TYPES and (shape := parse_shape(sizes)) is not None
    ]
    scalars = [parse_int64(value) for _, kind, value in operands if kind == "Scalar"]
    shapes = [shape for shape, _ in tensors]
    elements, reduced = _infer_loop_sizes(name, scalars, args.kernel_kwargs, shapes)
    argument_bytes = None
    if tensors and len(tensors) + len(scalars) == len(operands):
        argument_bytes = sum(prod(shape) * (get_dtype_bytes(kind) or 1) for shape, kind in tensors)
    origins, flops, reason = _parse_fused_operators(name), None, None
    if not name.startswith(TEMPLATE):
        elementwise = estimate_elementwise_flops(origins, elements)
    else:
        elementwise, reason = None, "the trace has no shapes (record_shapes=True)"
        if operands:
            flops, reason = compute_template_flops_or_reason(name, shapes)
    stated_bytes = (args.kernel_num_gb or 0) * 1e9
    kernel = CompiledKernel(
        name,
        args.kernel_file or None,
        args.kernel_hash or None,
        args.kernel_backend or None,
        origins,
        0,
        None,
        elements if flops is None else prod(shapes[-1]),
        reduced,
        argument_bytes,
        flops,
        args.kernel_flop,
        round(stated_bytes) if 1 <= stated_bytes < 1 << 62 else None,
        elementwise,
    )
    return CompiledCall(kernel, reason)


def get_dtype_bytes(dtype: str | None) -> int | None:
    """Return the bytes of an element; None for a type that is not known."""
    name = (dtype or "").lower()
    bits = _BITS.fullmatch(name)
    return int(bits[1]) // 8 if bits else _ELEMENT_BYTES.get(name)


def _infer_loop_sizes(
    name: str, scalars: Sequence[int | None], kwargs: str, shapes: Iterable[Shape]
) -> tuple[int | None, int | None]:
    """Return (elements, those reduced into one) by the last numbers of a call, where a tensor has
    as many; else None for both.

    Whether the block sizes of ``kwargs`` follow the loops' sizes is tried both ways. Where both fit
    a tensor, the larger one is right: the loops run over the largest tensor that is not looked
    up in.
    """
    is_reduction = name.startswith(("triton_red_", "triton_per_"))
    if not is_reduction and not name.startswith("triton_poi_"):
        return None, None
    blocks = {block: int(size) for block, size in _BLOCK.findall(kwargs)}
    loops = 1 + len(blocks.keys() & {"YBLOCK", "ZBLOCK"}) + is_reduction
    sizes = set(map(prod, shapes))
    fitting: list[tuple[int, int | None]] = []
    for tail in ([], list(blocks.values())):
        sizes_left = scalars[: len(scalars) - len(tail)]
        counts = [count for count in sizes_left[-loops:] if count is not None]
        if (
            list(scalars[len(sizes_left) :]) == tail
            and len(counts) == loops
            and prod(counts) in sizes
        ):
            fitting.append((prod(counts), counts[-1] if is_reduction else None))
    return max(fitting, key=lambda fit: fit[0], default=(None, None))


def compute_template_flops_or_reason(
    name: str, shapes: Sequence[Shape]
) -> tuple[int | None, str | None]:
    """Return (FLOPs of the product, None), or (None, why they are not known)."""
    if blocked := _NO_FORMULA.search(name):
        return None, f"the work of {blocked[1]} does not follow from shapes alone"
    operator = _PRODUCT.search(name)
    if operator is None:
        return None, "its name contains no operator that multiplies"
    if len(shapes) < 3:
        return None, "the call has fewer than three tensors"
    output = shapes[-1]
    products = {
        _compute_convolution_flops(first_factor, second_factor, output)
        if operator[1] == "convolution"
        else _compute_gemm_flops(first_factor, second_factor, output, "bmm" in operator[1])
        for first_factor, second_factor in pairwise(shapes[:-1])
    } - {None}
    if len(products) == 1:
        return products.pop(), None
    return None, f"its tensors fit {'more than one' if products else 'no'} product"


def _compute_gemm_flops(
    first_factor: Shape, second_factor: Shape, output: Shape, batched: bool
) -> int | None:
    """Return 2 x M x N x K, for each matrix of a batch; None where the numbers of elements are of
    no such product."""
    batch = output[0] if batched and len(output) > 2 else 1
    sizes = [prod(first_factor), prod(second_factor), prod(output)]
    if not batch or not all(sizes) or any(size % batch for size in sizes):
        return None
    a, b, c = (size // batch for size in sizes)
    depth = isqrt(a * b // c)
    if depth * depth * c != a * b or a % depth or b % depth or (a // depth) * (b // depth) != c:
        return None
    # some dimensions that follow one another have as many elements together
    for shape in (first_factor, second_factor):
        ends = range(len(shape) + 1)
        if all(prod(shape[begin:end]) != depth for end in ends for begin in range(end)):
            return None
    return 2 * batch * c * depth


def _compute_convolution_flops(data: Shape, weight: Shape, output: Shape) -> int | None:
    """Return 2 x outputs x inputs of each; None where the shapes are of no convolution."""
    if not len(data) == len(weight) == len(output) > 2 or 0 in weight:
        return None
    fits = data[0] == output[0] and weight[0] == output[1] and data[1] % weight[1] == 0
    return 2 * prod(output) * prod(weight[1:]) if fits else None


def estimate_elementwise_flops(origins: str | None, elements: int | None) -> int | None:
    """Return the operations beside products: each operator that a name lists and that computes,
    once on each element.

    An estimate: a name lists an operator once, and what follows a reduction runs once a row. None
    where the name lists none that is known to compute, or one beside which the others do not run on
    every element.
    """
    if origins is None or elements is None or _PARTLY.search(origins):
        return None
    count = sum(map(bool, _OPERATOR.findall(f"_{origins}")))
    return count * elements if count and not _OPERATOR.sub("", f"_{origins}") else None


def _parse_fused_operators(name: str) -> str | None:
    """Return the operators that Inductor fused, as it writes them in the name: "add_mul" of
    triton_poi_fused_add_mul_0."""
    _, fused, tail = name.partition("_fused_")
    operators, _, number = tail.rpartition("_")
    return operators if fused and operators and number.isdecimal() else None


def sum_compiled_kernels(
    calls: Mapping[int, CompiledCall], device_ns: Sequence[float]
) -> list[CompiledKernel]:
    """Return the kernels that Inductor wrote, with their calls and time. One name may be several
    kernels, and one kernel may be called with several sizes.

    ``device_ns``: of each span. The time is not known where no launch was recorded, as inside the
    capture of a graph.
    """
    counts, times = Counter[CompiledKernel](), defaultdict[CompiledKernel, float](float)
    for index, (kernel, _) in calls.items():
        counts[kernel] += 1
        times[kernel] += device_ns[index]
    return [
        kernel._replace(calls=count, device_ns=None if isnan(ns) or not ns else int(ns))
        for (kernel, count), ns in zip(counts.items(), times.values(), strict=True)
    ]


def list_compiled_flops_gaps(calls: Mapping[int, CompiledCall]) -> Iterator[Gap]:
    """Yield why FLOPs of templates are not known, and where Inductor's own figure is another."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    unlike = set()
    for kernel, missing_reason in calls.values():
        if missing_reason is not None:
            names[missing_reason].add(kernel.name[:60])
        if kernel.stated_flops and kernel.flops not in (None, kernel.stated_flops):
            unlike.add(kernel.name[:60])
    for reason in sorted(names):
        text = f"{reason}: {format_first_kernel_names(sorted(names[reason]))}"
        yield Gap("compiled_kernel.flops", "not_available", text)
    if unlike:
        reason = "Inductor states other FLOPs (stated_flops) than the shapes imply"
        yield Gap(
            "compiled_kernel.flops",
            "ambiguous",
            f"{reason}: {format_first_kernel_names(sorted(unlike))}",
        )


def format_first_kernel_names(names: Sequence[str]) -> str:
    """Return the first names for a gap, shortened, and how many more there are."""
    short = [name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…" for name in names]
    return join_first_names(short, _NAMED_MAX)
