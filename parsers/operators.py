"""PyTorch's own operators as traces name them: matrix products, convolutions and attention as
OpShape records.

A trace gives the shapes of an operator's inputs, and mostly its types and the values of its other
arguments ("Concrete Inputs"). Output shapes follow from these. What a formula needs and the trace
lacks is said under ``missed``.

Argument orders: PyTorch's ``aten/src/ATen/native/native_functions.yaml`` (2.9), and the versions of
2021 for cuDNN's operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from json import loads
from math import prod
from typing import NamedTuple

from perfctl.records.paper import OpShape

Shape = tuple[int, ...]

NO_STRIDE = (
    "the trace has no stride and padding (Concrete Inputs), and no backward that tells the "
    "output's shape"
)
_ORDERS = {
    "convolution": (2, 3, 4, 5, 6, 7, 8),
    "_convolution": (2, 3, 4, 5, 6, 7, 8),
    "convolution_overrideable": (2, 3, 4, 5, 6, 7, 8),
    "cudnn_convolution": (-1, 3, 2, 4, -1, -1, 5),
    "cudnn_convolution_relu": (2, 3, 4, 5, -1, -1, 6),
    "cudnn_convolution_add_relu": (4, 5, 6, 7, -1, -1, 8),
    "cudnn_convolution_transpose": (-1, 4, 2, 5, -2, 3, 6),
    "miopen_convolution": (2, 4, 3, 5, -1, -1, 6),
    "miopen_convolution_transpose": (2, 5, 3, 6, -2, 4, 7),
    "miopen_depthwise_convolution": (2, 4, 3, 5, -1, -1, 6),
    "_conv_depthwise2d": (3, 4, 5, 6, -1, -1, -1),
    "mkldnn_convolution": (2, 4, 3, 5, -1, -1, 6),
    "conv1d": (2, 3, 4, 5, -1, -1, 6),
    "conv2d": (2, 3, 4, 5, -1, -1, 6),
    "conv3d": (2, 3, 4, 5, -1, -1, 6),
}
"""Where bias, stride, padding, dilation, transposed, output padding and groups stand; -1: nowhere
(transposed: -2 is yes)."""

WHICH = "the trace does not say which gradients were computed (Concrete Inputs)"

_VARLEN = "sequences of several lengths are packed, and the trace does not say how long each is"
_PACKED_RNN = "cuDNN's packed recurrent networks are not read from traces"
_UNREAD = {
    "_cudnn_rnn": _PACKED_RNN,
    "_cudnn_rnn_backward": _PACKED_RNN,
    "_flash_attn_varlen_forward": _VARLEN,
    "_flash_attn_varlen_backward": _VARLEN,
}
"""Operators that multiply -> why their work is not known."""
_BACKWARDS = (
    "convolution_backward",
    "cudnn_convolution_backward",
    "cudnn_convolution_transpose_backward",
)

FUNCTIONAL = ("conv1d", "conv2d", "conv3d")
COMPOSITE = frozenset({"aten::linear"})
"""Operators that count only where no other of ``READERS`` is inside: elsewhere it calls addmm
or mm."""
GRADIENT_OF = {
    "aten::cudnn_convolution_backward_input": 0,
    "aten::cudnn_convolution_backward_weight": 1,
}
"""Operators inside cuDNN's backward of a convolution (until 2021) -> which gradient
they compute."""
RUNS_AGAIN = (
    "aten.convolution",
    "aten.linear",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
)
"""A forward that runs in backward is computed again (checkpointing); products may be
gradients there."""


class Call(NamedTuple):
    """One operator's arguments as a trace has them, by position."""

    shapes: tuple[Shape | None, ...]
    """None for what is not a tensor, where types are known; else ()."""
    types: tuple[str, ...] = ()
    """Of each argument, torch's short names ("float32"); "" for what is not a tensor; empty when
    the trace has none."""
    values: tuple[str, ...] = ()
    """As text: "[16, 16]", "False", ""; empty when the trace has none."""

    def shape(self, place: int) -> Shape:
        found = self.shapes[place] if place < len(self.shapes) else None
        return found if found is not None else ()

    def value(self, place: int) -> object:
        """A number, a flag or a list; None when the trace does not have it."""
        text = self.values[place].strip() if 0 <= place < len(self.values) else ""
        if text in ("True", "False"):
            return text == "True"
        try:
            return loads(text.replace("True", "true").replace("False", "false")) if text else None
        except (ValueError, RecursionError):
            return None

    def numbers(self, place: int) -> tuple[int, ...] | None:
        found = self.value(place)
        return tuple(found) if shape_in(found) is not None and isinstance(found, list) else None


Reader = Callable[[str, Call], OpShape]
"""The operator's name and arguments in, its shapes out; raises IndexError where arguments
are missing."""


TYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
}
"""C++ names of element types -> torch's."""


_MOST_DIMENSIONS = 16


def shape_in(sizes: object) -> Shape | None:
    """A list of integers as a shape; None for anything else, and for what no tensor has."""
    if not isinstance(sizes, list) or len(sizes) > _MOST_DIMENSIONS:
        return None
    numbers = tuple(size for size in sizes if type(size) is int and 0 <= size < 1 << 40)
    return numbers if len(numbers) == len(sizes) else None


def read_call(dims: object, types: object, values: object) -> Call | None:
    """A Call from a Kineto event's lists; None when the shapes are not what they should be."""
    if type(dims) is not list or not dims:
        return None
    given = types if isinstance(types, list) and len(types) == len(dims) else []
    named = tuple(TYPES.get(item, "") if isinstance(item, str) else "" for item in given)
    shapes = [
        shape_in(sizes) if not named or named[place] else None for place, sizes in enumerate(dims)
    ]
    told = values if isinstance(values, list) and len(values) == len(dims) else []
    return Call(tuple(shapes), named, tuple(item if isinstance(item, str) else "" for item in told))


def _op(
    name: str,
    call: Call,
    places: Sequence[int],
    outputs: Sequence[Shape | None],
    **attributes: object,
) -> OpShape:
    """``places``: which arguments the formula takes, in its order."""
    inputs = tuple(
        call.shapes[place] if 0 <= place < len(call.shapes) else None for place in places
    )
    types = (
        tuple(
            call.types[place]
            for place, shape in zip(places, inputs, strict=True)
            if shape is not None
        )
        if call.types
        else ()
    )
    kept = tuple(outputs)
    result = types[-1] if types else None
    said = (*types, *(result for shape in kept if shape is not None)) if result else ()
    known = {key: value for key, value in attributes.items() if value is not None}
    return OpShape("", "", f"aten.{name}", "forward", inputs, kept, said, known)


def _added_product(name: str, call: Call) -> OpShape:
    """Return those that add something first: addmm, baddbmm, addmv."""
    return _product(name, call, added=1)


def _product(name: str, call: Call, added: int = 0) -> OpShape:
    """Return mm, bmm, mv and dot; ``added`` arguments come before the factors."""
    left, right = call.shape(added), call.shape(added + 1)
    if len(right) == 1:
        output = left[:-1]
    elif len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        raise IndexError
    else:
        output = (*left[:-1], right[-1])
    return _op(name, call, range(added + 2), (output,))


def _linear(name: str, call: Call) -> OpShape:
    data, weight = call.shape(0), call.shape(1)
    if not data or len(weight) != 2 or data[-1] != weight[1]:
        raise IndexError
    return _op("linear", call, (0, 1, 2), ((*data[:-1], weight[0]),))


def _grouped(name: str, call: Call) -> OpShape:
    left, right, ends = call.shape(0), call.shape(1), call.shape(2)
    if len(left) == 2 and len(right) == 2:
        output: Shape = (prod(ends), left[0], right[1])
    else:
        output = (*left[:-1], right[-1])
    return _op(name, call, (0, 1, 2), (output,))


def _convolution(name: str, call: Call) -> OpShape:
    bias, stride, padding, dilation, transposed, extra, groups = _ORDERS[name]
    data, weight = call.shape(0), call.shape(1)
    if len(weight) < 3 or len(data) not in (len(weight), len(weight) - 1):
        raise IndexError
    is_transposed = transposed == -2 or bool(call.value(transposed))
    rank = len(weight) - 2
    window = [_each(call.numbers(place), rank) for place in (stride, padding, dilation)]
    output = None
    if all(item is not None for item in window):
        more = _each(call.numbers(extra), rank) or (0,) * rank
        output = _output(
            data, weight, [item or () for item in window], is_transposed, more, call.value(groups)
        )
    given = {
        key: list(item)
        for key, item in zip(("stride", "padding", "dilation"), window, strict=True)
        if item
    }
    return _op(
        "convolution",
        call,
        (0, 1, bias),
        (output,),
        **given,
        transposed=is_transposed,
        groups=call.value(groups),
        bias=bias >= 0 and bool(call.shape(bias)),
        missed=NO_STRIDE if output is None else None,
    )


def _each(numbers: tuple[int, ...] | None, rank: int) -> tuple[int, ...] | None:
    return numbers * rank if numbers is not None and len(numbers) == 1 else numbers


def _output(
    data: Shape,
    weight: Shape,
    window: Sequence[Shape],
    transposed: bool,
    more: Shape,
    groups: object,
) -> Shape | None:
    """Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", relationships 6
    and 14, with dilation."""
    sides = data[-(len(weight) - 2) :]
    each = list(zip(sides, weight[2:], *window, more, strict=True))
    if transposed:
        outer = tuple((size - 1) * s - 2 * p + d * (r - 1) + o + 1 for size, r, s, p, d, o in each)
        channels = weight[1] * (groups if isinstance(groups, int) else 1)
    else:
        outer = tuple((size + 2 * p - d * (r - 1) - 1) // s + 1 for size, r, s, p, d, _ in each)
        channels = weight[0]
    batch = data[: len(data) - len(weight) + 1]
    return (*batch, channels, *outer) if min(outer) > 0 else None


def next_input(op: OpShape, shape: Shape | None) -> Shape | None:
    """What the next operator takes, where it can be this convolution's output: same images, its
    channels, as many dimensions."""
    data, weight = (op.inputs[place] or () for place in (0, 1))
    fits = (
        shape is not None
        and len(shape) == len(data) == len(weight)
        and (shape[0], shape[1]) == (data[0], weight[0])
    )
    return shape if fits else None


def with_output(op: OpShape, output: Shape) -> OpShape:
    """The convolution with its output's shape, which another operator has told."""
    attributes = {key: value for key, value in op.attributes.items() if key != "missed"}
    return replace(
        op,
        outputs=(output,),
        dtypes=(*op.dtypes, *op.dtypes[:1])[: 3 + len(op.inputs)],
        attributes=attributes,
    )


def _convolution_backward(name: str, call: Call) -> OpShape:
    old = name != "convolution_backward"  # cuDNN's own, until 2021: input, grad_output, weight
    order = (1, 0, 2) if old else (0, 1, 2)
    grad, data, weight = (call.shape(place) for place in order)
    if len(weight) < 3 or len(grad) != len(data):
        raise IndexError
    transposed = "transpose" in name if old else call.value(7)
    if transposed is None:
        transposed = grad[-len(weight) + 1] != weight[0] or (
            data[-len(weight) + 1] == weight[0] and prod(grad[2:]) > prod(data[2:])
        )
    mask = call.value(10 if not old else len(call.shapes) - 1)
    mask = mask if isinstance(mask, list) else None
    sizes = [data, weight, (weight[1] if transposed else weight[0],)]
    outputs = [
        size if mask is None or (place < len(mask) and mask[place]) else None
        for place, size in enumerate(sizes)
    ]
    return _op(
        "convolution_backward",
        call,
        order,
        outputs,
        transposed=bool(transposed),
        output_mask=mask,
        missed=WHICH if mask is None else None,
    )


def with_mask(op: OpShape, mask: Sequence[bool]) -> OpShape:
    """The backward of a convolution, where its children show which gradients it computed."""
    attributes = {key: value for key, value in op.attributes.items() if key != "missed"}
    outputs = tuple(shape if kept else None for shape, kept in zip(op.outputs, mask, strict=True))
    return replace(op, outputs=outputs, attributes={**attributes, "output_mask": list(mask)})


class _Attention(NamedTuple):
    kind: str
    """flash, efficient or cudnn."""
    first: int = 0
    """Place of the query."""
    causal: int | None = None
    rows_first: bool = False
    """Layout B x S x h x D, and not B x h x S x D."""
    lengths: int | None = None
    """Place of the cumulative lengths of a packed batch, whose shapes do not say how long each
    sequence is."""


def _attention(name: str, call: Call) -> OpShape:
    what = _ATTENTION[name]
    shapes = [call.shape(what.first + place) for place in range(3)]
    packed = what.lengths is not None and bool(call.shape(what.lengths))
    missed = _VARLEN if packed or any(len(shape) != 4 for shape in shapes) else None
    if not all(shapes):
        raise IndexError
    turned = list(call.shapes)
    if what.rows_first and missed is None:
        for place, shape in enumerate(turned):
            if place < what.first + 3 and shape is not None and len(shape) == 4:
                turned[place] = (shape[0], shape[2], shape[1], shape[3])
    call = call._replace(shapes=tuple(turned))
    shapes = [call.shape(what.first + place) for place in range(3)]
    causal = None if what.causal is None else call.value(what.causal)
    backward = "_backward" if what.first else ""
    outputs = shapes if what.first else [(*shapes[0][:-1], shapes[2][-1])]
    return _op(
        f"_scaled_dot_product_{what.kind}_attention{backward}",
        call,
        range(what.first + 3),
        outputs,
        is_causal=bool(causal),
        missed=missed,
    )


def _unread(name: str, call: Call) -> OpShape:
    return _op(name, call, range(len(call.shapes)), (), missed=_UNREAD[name])


_ATTENTION = {
    "_scaled_dot_product_flash_attention": _Attention("flash", 0, 4),
    "_scaled_dot_product_efficient_attention": _Attention("efficient", 0, 6),
    "_scaled_dot_product_cudnn_attention": _Attention("cudnn", 0, 6),
    "_scaled_dot_product_flash_attention_backward": _Attention("flash", 1, 11),
    "_scaled_dot_product_efficient_attention_backward": _Attention("efficient", 1, 11),
    "_scaled_dot_product_cudnn_attention_backward": _Attention("cudnn", 1, 14),
    "_flash_attention_forward": _Attention("flash", 0, 8, True, 3),
    "_flash_attention_backward": _Attention("flash", 1, 11, True, 6),
    "_efficient_attention_forward": _Attention("efficient", 0, 9, True, 4),
    "_efficient_attention_backward": _Attention("efficient", 1, None, True, 6),
    "_flash_attn_forward": _Attention("flash", 0, 5, True),
    "_flash_attn_backward": _Attention("flash", 1, 11, True),
}
"""Operators of attention, those of the package flash_attn at the end."""
_READERS: dict[str, Reader] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_int_mm", "_scaled_mm"), _product),
    **dict.fromkeys(("addmm", "addmm_", "_addmm_activation"), _added_product),
    **dict.fromkeys(("baddbmm", "baddbmm_", "addmv"), _added_product),
    **dict.fromkeys(_ORDERS, _convolution),
    **dict.fromkeys(_BACKWARDS, _convolution_backward),
    **dict.fromkeys(_ATTENTION, _attention),
    **dict.fromkeys(_UNREAD, _unread),
    "linear": _linear,
    "_grouped_mm": _grouped,
}
"""Bare name of an operator -> what reads its arguments."""
_FUNCTIONS = {
    **{f"torch.nn.functional.{name}": name for name in (*FUNCTIONAL, "linear")},
    **{f"torch.{name}": name for name in ("mm", "bmm", "addmm", "baddbmm")},
}
"""Function of Python -> the operator that it is."""
READERS = {
    **_FUNCTIONS,
    **{
        f"{'flash_attn' if name.startswith('_flash_attn') else 'aten'}::{name}": name
        for name in _READERS
        if name not in FUNCTIONAL
    },
}
"""Operators whose work is a product, as traces name them. Of nested ones the outermost counts: what
it calls is its own doing."""


def operator(name: str, call: Call) -> OpShape | None:
    """The shapes of an operator of READERS; None where its arguments are not those that it
    should have."""
    bare = READERS.get(name)
    try:
        return None if bare is None else _READERS[bare](bare, call)
    except (ArithmeticError, IndexError, ValueError):
        return None


def label(name: str, op: OpShape) -> str:
    """What a row of this operator is called: "aten::addmm 32x9216x128"."""
    shapes = [shape for shape in op.inputs if shape]
    bare = op.op.removeprefix("aten.")
    if len(shapes) < 2:
        return name
    if bare.startswith("convolution"):
        first, second = shapes[-2:] if bare == "convolution_backward" else shapes[:2]
        strides = op.attributes.get("stride")
        apart = isinstance(strides, list) and any(step != 1 for step in strides)
        stride = f" stride {_times(strides)}" if apart and isinstance(strides, list) else ""
        return f"{name} {_times(first)} {_times(second)}{stride}"
    if "attention" in bare and len(shapes) >= 3:
        query, key = shapes[-3:-1]
        return (
            f"{name} {_times((*query[:-1], key[-2], query[-1]))}"
            if len(query) > 1 < len(key)
            else name
        )
    if bare == "linear":
        return f"{name} {_times((prod(shapes[0][:-1]), *reversed(shapes[1])))}"
    if re.match(r"(_?b?addb?mm|addmv)", bare) and len(shapes) >= 3:
        shapes = shapes[1:]
    return (
        f"{name} "
        f"{_times((*shapes[0], *shapes[1][-1:])) if len(shapes[1]) > 1 else _times(shapes[0])}"
    )


def _times(sizes: Sequence[object]) -> str:
    return "x".join(map(str, sizes))
