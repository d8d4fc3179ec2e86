"""What the call of a kernel that Inductor wrote says of its work: elements, bytes, and FLOPs of
its product.

The call (an operation of the kernel's own name) has the arguments of the launch: shapes and types
of the tensors, and the numbers behind them. The last of these are the sizes of the loops (xnumel,
or ynumel and xnumel, or xnumel and r0_numel for a reduction), followed in older versions by the
block sizes that ``kernel_kwargs`` names. Sizes count where they fit a tensor.

Of a template (``triton_tem_fused_addmm_...``) the tensors say what it multiplies. Weights come as
they lie in memory, so the sizes of one product follow from numbers of elements: A has M x K, B has
K x N and the output M x N. ``kernel_flop`` and ``kernel_num_gb`` are Inductor's own figures, which
it writes where TORCHINDUCTOR_BENCHMARK_KERNEL=1 (bytes also where TORCHINDUCTOR_PROFILE=1); torch's
profile_analysis adds them, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isqrt, prod
from typing import Any

from perfctl.parsers.kineto.events import CallFacts, whole
from perfctl.parsers.operators import TYPES, Shape, shape_in

TEMPLATE = "triton_tem_"
_BYTES = {
    "float64": 8,
    "int64": 8,
    "complex64": 8,
    "complex128": 16,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
}
"""Bytes of an element; all other types of TYPES take one."""
_PRODUCT = re.compile(r"(?:^|_)(addmm|baddbmm|bmm|mm|convolution)(?=_|\Z)")
_NO_FORMULA = re.compile(r"(?:^|_)(flex_attention|grouped_mm|scaled_mm|int_mm)")
_PARTLY = re.compile(
    r"(?:^|_)(cat|where|pad|index|scatter|gather|embedding|stack|masked|nonzero|slice)(?:_|\Z)"
)
"""Operators beside which not every operation runs on every element."""
_NO_ARITHMETIC = (
    "_to_copy clone copy view t transpose permute expand unsqueeze squeeze slice select detach "
    "reshape alias full zeros ones empty constant scalar_tensor lift_fresh_copy "
    "convert_element_type bitwise_and bitwise_or bitwise_not bitwise_xor logical_and logical_or "
    "logical_not arange iota split unbind"
)
"""Aten operators in names of kernels that move or convert data, as far as names are recognised."""
BLOCKS = {
    "XBLOCK": "x",
    "YBLOCK": "y",
    "ZBLOCK": "z",
    "R0_BLOCK": "r",
    "RBLOCK": "r",
    "R1_BLOCK": "r",
}

_ARITHMETIC = (
    "add sub rsub mul div pow sqrt rsqrt reciprocal neg abs exp exp2 expm1 log log2 log1p sin cos "
    "tan tanh sigmoid silu gelu relu leaky_relu hardtanh hardswish erf sum mean prod amax amin max "
    "min maximum minimum clamp clamp_min clamp_max sign floor ceil round square threshold_backward "
    "ge gt le lt eq ne"
)
_KNOWN = re.compile(
    rf"(?<=_)(?:{'|'.join(sorted(_ARITHMETIC.split(), key=len, reverse=True))})(?=_)"
)
"""Operators of one operation an element; softmax, norms and the like are several, and are
not counted."""


def facts(name: str, args: Mapping[str, Any]) -> CallFacts:
    """What the arguments of a call say."""
    file, key, backend = (
        _text(args.get(word)) for word in ("kernel_file", "kernel_hash", "kernel_backend")
    )
    stated = whole(args.get("kernel_flop")), _bytes_of(args.get("kernel_num_gb"))
    dims, types, values = (
        args.get(word) for word in ("Input Dims", "Input type", "Concrete Inputs")
    )
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types):
        why = "the trace has no shapes (record_shapes=True)" if name.startswith(TEMPLATE) else None
        return CallFacts(
            file, key, backend, stated_flops=stated[0], stated_bytes=stated[1], why=why
        )
    given = values if isinstance(values, list) and len(values) == len(dims) else [""] * len(dims)
    tensors = [
        (shape, TYPES[kind])
        for one, kind in zip(dims, types, strict=True)
        if isinstance(kind, str) and kind in TYPES and (shape := shape_in(one)) is not None
    ]
    scalars = [whole(value) for value, kind in zip(given, types, strict=True) if kind == "Scalar"]
    known = len(tensors) + len(scalars) == len(dims)
    shapes = [shape for shape, _ in tensors]
    elements, reduced = _sizes(
        name, scalars, _blocks(args.get("kernel_kwargs")), list(map(prod, shapes))
    )
    size = (
        sum(prod(shape) * _BYTES.get(kind, 1) for shape, kind in tensors)
        if tensors and known
        else None
    )
    flops, why = template_flops(name, shapes) if name.startswith(TEMPLATE) else (None, None)
    if flops is not None:
        elements = prod(shapes[-1])
    return CallFacts(file, key, backend, elements, reduced, size, flops, *stated, why)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _bytes_of(gigabytes: object) -> int | None:
    """Of 10^9 bytes, as a number or as the text of one."""
    try:
        found = round(float(gigabytes) * 1e9)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return found if 0 < found < 1 << 62 else None


def _blocks(kwargs: object) -> dict[str, int]:
    """Block sizes: "XBLOCK=1,R0_BLOCK=128"."""
    pairs = (one.partition("=") for one in kwargs.split(",")) if isinstance(kwargs, str) else ()
    return {
        key: size for key, _, value in pairs if key in BLOCKS and (size := whole(value)) is not None
    }


def _sizes(
    name: str, scalars: Sequence[int | None], blocks: Mapping[str, int], sizes: Sequence[int]
) -> tuple[int | None, int | None]:
    """(elements, those reduced into one) by the last numbers of a call, where a tensor has as many;
    else None for both.

    Whether block sizes follow the loops' sizes is tried both ways. Where both fit a tensor, the
    larger one is right: the loops run over the largest tensor that is not looked up in.
    """
    is_reduction = name.startswith(("triton_red_", "triton_per_"))
    if not is_reduction and not name.startswith("triton_poi_"):
        return None, None
    across = len({BLOCKS[key] for key in blocks} & {"y", "z"})
    wanted = 1 + across + is_reduction
    found = []
    behind = list(blocks.values())
    for tail in ([], behind) if behind else ([],):
        rest = scalars[: len(scalars) - len(tail)]
        if list(scalars[len(rest) :]) != tail or len(rest) < wanted:
            continue
        loops = rest[-wanted:]
        if None in loops or (total := prod(loops)) not in sizes:  # type: ignore[arg-type]
            continue
        found.append((total, loops[-1] if is_reduction else None))
    return max(found, key=lambda one: one[0], default=(None, None))


def template_flops(name: str, shapes: Sequence[Shape]) -> tuple[int | None, str | None]:
    """(FLOPs of the product, None), or (None, why they are not known)."""
    if blocked := _NO_FORMULA.search(name):
        return None, f"the work of {blocked[1]} does not follow from shapes alone"
    found = _PRODUCT.search(name)
    if found is None:
        return None, "its name has no operator that multiplies"
    if len(shapes) < 3:
        return None, "the call has fewer than three tensors"
    output = shapes[-1]
    pairs = list(pairwise(shapes[:-1]))
    if found[1] == "convolution":
        flops = {
            one for left, right in pairs if (one := _convolution(left, right, output)) is not None
        }
    else:
        flops = {
            one
            for left, right in pairs
            if (one := _product(left, right, output, "bmm" in found[1])) is not None
        }
    if len(flops) == 1:
        return flops.pop(), None
    return None, "its tensors fit more than one product" if flops else "its tensors fit no product"


def _product(left: Shape, right: Shape, output: Shape, batched: bool) -> int | None:
    """2 x M x N x K, for each matrix of a batch; None where the numbers of elements are of no
    such product."""
    batch = output[0] if batched and len(output) > 2 else 1
    sizes = [prod(left), prod(right), prod(output)]
    if not batch or not all(sizes) or any(size % batch for size in sizes):
        return None
    a, b, c = (size // batch for size in sizes)
    depth = isqrt(a * b // c)
    if depth * depth * c != a * b or a % depth or b % depth or (a // depth) * (b // depth) != c:
        return None
    if not (_ends(left, depth) and _ends(right, depth)):
        return None
    return 2 * batch * c * depth


def _ends(shape: Shape, depth: int) -> bool:
    """Whether some dimensions that follow one another have as many elements together."""
    return any(
        prod(shape[begin:end]) == depth
        for begin in range(len(shape))
        for end in range(begin + 1, len(shape) + 1)
    )


def _convolution(data: Shape, weight: Shape, output: Shape) -> int | None:
    """2 x outputs x inputs of each; None where the shapes are of no convolution."""
    if not len(data) == len(weight) == len(output) > 2 or 0 in weight:
        return None
    fits = data[0] == output[0] and weight[0] == output[1] and data[1] % weight[1] == 0
    return 2 * prod(output) * prod(weight[1:]) if fits else None


def elementwise(origins: str | None, elements: int | None) -> int | None:
    """Operations beside products: each operator that a name lists and that computes, once on
    each element.

    An estimate: a name lists an operator once, and what follows a reduction runs once a row. None
    where the name lists none that is known to compute, or one beside which the others do not run on
    every element.
    """
    if origins is None or elements is None or _PARTLY.search(origins):
        return None
    rest = f"_{origins}_"
    for word in sorted(_NO_ARITHMETIC.split(), key=len, reverse=True):
        rest = rest.replace(f"_{word}_", "_")
    count = len(_KNOWN.findall(rest))
    left = _KNOWN.sub("", rest).strip("_")
    return count * elements if count and not left else None
