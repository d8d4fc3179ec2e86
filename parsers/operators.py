"""PyTorch's own operators as traces name them: matrix products, convolutions and attention as
OpShape records, and the rows of the ledger that they give their kernels.

A trace gives the shapes of an operator's inputs, and mostly its types and the values of its other
arguments ("Concrete Inputs"). Output shapes follow from these. ``missed`` states what a formula
needs and the trace lacks. Argument orders: PyTorch's
``aten/src/ATen/native/native_functions.yaml`` (2.9), and the versions of 2021 for cuDNN's
operators.

Of nested operators the outermost counts (aten::convolution, not the cudnn_convolution that it
calls). Outside of modules an operator gives its launches a row of its own, named by its shapes. A
backward belongs to the row of its forward.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from json import loads
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from perfctl.records import masks
from perfctl.records.paper import OpShape
from perfctl.records.report import COVERS, WHOLE_CAPTURE, Gap

Shape = tuple[int, ...]

ENGINE = "autograd::engine::evaluate_function: "
"""Range of autograd's engine around a node."""
_FUNCTIONAL = ("conv1d", "conv2d", "conv3d")
_ORDERS = {
    **dict.fromkeys(
        ("convolution", "_convolution", "convolution_overrideable"), (2, 3, 4, 5, 6, 7, 8)
    ),
    "cudnn_convolution": (-1, 3, 2, 4, -1, -1, 5),
    "cudnn_convolution_relu": (2, 3, 4, 5, -1, -1, 6),
    "cudnn_convolution_add_relu": (4, 5, 6, 7, -1, -1, 8),
    "cudnn_convolution_transpose": (-1, 4, 2, 5, -2, 3, 6),
    "miopen_convolution": (2, 4, 3, 5, -1, -1, 6),
    "miopen_convolution_transpose": (2, 5, 3, 6, -2, 4, 7),
    "miopen_depthwise_convolution": (2, 4, 3, 5, -1, -1, 6),
    "_conv_depthwise2d": (3, 4, 5, 6, -1, -1, -1),
    "mkldnn_convolution": (2, 4, 3, 5, -1, -1, 6),
    **dict.fromkeys(_FUNCTIONAL, (2, 3, 4, 5, -1, -1, 6)),
}
"""Places of bias, stride, padding, dilation, transposed, output padding and groups; -1: nowhere
(transposed: -2 is yes)."""
_ADDED = ("addmm", "addmm_", "_addmm_activation", "baddbmm", "baddbmm_", "addmv")
"""Products with a tensor to add before the factors."""
_SCALED = {
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_efficient_attention": 6,
    "_scaled_dot_product_cudnn_attention": 6,
    "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention_backward": 14,
}
"""Places of the causal flag."""
_ATTENTION = {name.partition("::")[2]: name for name in masks.OPERATORS}
_NO_SHAPES = "the trace does not contain its shapes"
_NO_STRIDE = (
    "the trace has no stride and padding (Concrete Inputs), and no backward with the output's shape"
)
_NO_MASK = "the trace does not state which gradients were computed (Concrete Inputs)"
_PACKED_RNN = "perfctl does not read cuDNN's packed recurrent networks from traces"
_UNREAD = dict.fromkeys(("_cudnn_rnn", "_cudnn_rnn_backward"), _PACKED_RNN)
"""Operators that multiply -> why their work is not known."""
_BACKWARDS = (
    "convolution_backward",
    "cudnn_convolution_backward",
    "cudnn_convolution_transpose_backward",
)
_COMPOSITE = ("aten::linear",)
"""Operators that count only where no other of ``READERS`` is inside: elsewhere it calls addmm
or mm."""
GRADIENT_OF = {
    "aten::cudnn_convolution_backward_input": 0,
    "aten::cudnn_convolution_backward_weight": 1,
}
"""Operators inside cuDNN's backward of a convolution (until 2021) -> which gradient
they compute."""
_RUNS_AGAIN = (
    "aten.convolution",
    "aten.linear",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
)
"""A forward that runs in backward is computed again (checkpointing); products may be
gradients there."""
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
_INSTANCE = re.compile(r"_\d+\Z")


class OperatorCall(NamedTuple):
    """One operator's arguments as a trace has them, by position."""

    shapes: tuple[Shape | None, ...]
    """None for what is not a tensor, where types are known; else ()."""
    types: tuple[str, ...] = ()
    """Of each argument, torch's short names ("float32"); "" for what is not a tensor; empty when
    the trace has none."""
    values: tuple[str, ...] = ()
    """As text: "[16, 16]", "False", ""; empty when the trace has none."""

    def shape_of_argument(self, index: int) -> Shape:
        """Return the shape of an argument; () for what is not a tensor."""
        return (self.shapes[index] if 0 <= index < len(self.shapes) else None) or ()

    def value_of_argument(self, index: int) -> object:
        """Return a number, a flag or a list; None when the trace does not have it."""
        text = self.values[index] if 0 <= index < len(self.values) else ""
        try:
            return loads(text.replace("True", "true").replace("False", "false"))
        except (ValueError, RecursionError):
            return None


def parse_shape(sizes: object) -> Shape | None:
    """Return a list of integers as a shape; None for anything else, and for what no tensor has."""
    if not isinstance(sizes, list) or len(sizes) > _MOST_DIMENSIONS:
        return None
    numbers = tuple(size for size in sizes if type(size) is int and 0 <= size < 1 << 40)
    return numbers if len(numbers) == len(sizes) else None


def parse_operator_call(dims: object, types: object, values: object) -> OperatorCall | None:
    """Return an OperatorCall from a Kineto event's lists; None when the shapes are not what they
    should be."""
    if type(dims) is not list or not dims:
        return None

    def list_texts_if_same_length(items: object) -> list[str]:
        if not isinstance(items, list) or len(items) != len(dims):
            return []
        return [item if isinstance(item, str) else "" for item in items]

    names = tuple(TYPES.get(name, "") for name in list_texts_if_same_length(types))
    shapes = (
        parse_shape(sizes) if not names or names[index] else None
        for index, sizes in enumerate(dims)
    )
    return OperatorCall(tuple(shapes), names, tuple(list_texts_if_same_length(values)))


def _make_op_shape(
    name: str,
    call: OperatorCall,
    argument_indices: Iterable[int],
    outputs: Iterable[Shape | None],
    **attributes: object,
) -> OpShape:
    """``argument_indices``: which arguments the formula takes, in its order."""
    inputs: list[Shape | None] = []
    types: list[str] = []
    for index in argument_indices:
        inputs.append(call.shapes[index] if 0 <= index < len(call.shapes) else None)
        if inputs[-1] is not None and call.types:
            types.append(call.types[index])
    output_shapes = tuple(outputs)
    types += types[-1:] * sum(shape is not None for shape in output_shapes)
    stated = {key: value for key, value in attributes.items() if value is not None}
    return OpShape(
        "", "", f"aten.{name}", "forward", tuple(inputs), output_shapes, tuple(types), stated
    )


def _read_matmul(name: str, call: OperatorCall) -> OpShape:
    first = 1 if name in _ADDED else 0
    first_factor, second_factor = call.shape_of_argument(first), call.shape_of_argument(first + 1)
    if len(second_factor) == 1:
        output = first_factor[:-1]
    elif len(first_factor) < 2 or len(second_factor) < 2 or first_factor[-1] != second_factor[-2]:
        raise IndexError
    else:
        output = (*first_factor[:-1], second_factor[-1])
    return _make_op_shape(name, call, range(first + 2), (output,))


def _read_linear(name: str, call: OperatorCall) -> OpShape:
    data, weight = call.shape_of_argument(0), call.shape_of_argument(1)
    if not data or len(weight) != 2 or data[-1] != weight[1]:
        raise IndexError
    return _make_op_shape(name, call, (0, 1, 2), ((*data[:-1], weight[0]),))


def _read_grouped_matmul(name: str, call: OperatorCall) -> OpShape:
    first_factor, second_factor, ends = (
        call.shape_of_argument(0),
        call.shape_of_argument(1),
        call.shape_of_argument(2),
    )
    output: Shape = (*first_factor[:-1], second_factor[-1])
    if len(first_factor) == len(second_factor) == 2:
        output = (prod(ends), first_factor[0], second_factor[1])
    return _make_op_shape(name, call, (0, 1, 2), (output,))


def _read_convolution(name: str, call: OperatorCall) -> OpShape:
    bias, stride, padding, dilation, transposed, extra, groups = _ORDERS[name]
    data, weight = call.shape_of_argument(0), call.shape_of_argument(1)
    if len(weight) < 3 or len(data) not in (len(weight), len(weight) - 1):
        raise IndexError

    def read_spatial_sizes(index: int) -> Shape:
        sizes = parse_shape(call.value_of_argument(index)) or ()
        return sizes * (len(weight) - 2) if len(sizes) == 1 else sizes

    is_transposed = transposed == -2 or bool(call.value_of_argument(transposed))
    window = {
        "stride": read_spatial_sizes(stride),
        "padding": read_spatial_sizes(padding),
        "dilation": read_spatial_sizes(dilation),
    }
    output = None
    if all(window.values()):
        output_padding = read_spatial_sizes(extra) or (0,) * (len(weight) - 2)
        sides = (data[2 - len(weight) :], weight[2:], *window.values(), output_padding)
        output = _compute_convolution_output_shape(
            data, weight, sides, is_transposed, call.value_of_argument(groups)
        )
    return _make_op_shape(
        "convolution",
        call,
        (0, 1, bias),
        (output,),
        **{key: list(item) for key, item in window.items() if item},
        transposed=is_transposed,
        groups=call.value_of_argument(groups),
        bias=bool(call.shape_of_argument(bias)),
        missed=_NO_STRIDE if output is None else None,
    )


def _compute_convolution_output_shape(
    data: Shape,
    weight: Shape,
    sizes_per_dimension: Iterable[Shape],
    transposed: bool,
    groups: object,
) -> Shape | None:
    """Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", relationships 6
    and 14, with dilation. ``sizes_per_dimension``: size, filter, stride, padding, dilation and
    output padding of each dimension."""
    each = list(zip(*sizes_per_dimension, strict=True))
    if transposed:
        outer = [(size - 1) * s - 2 * p + d * (r - 1) + o + 1 for size, r, s, p, d, o in each]
        channels = weight[1] * (groups if isinstance(groups, int) else 1)
    else:
        outer = [(size + 2 * p - d * (r - 1) - 1) // s + 1 for size, r, s, p, d, _ in each]
        channels = weight[0]
    batch = data[: len(data) - len(weight) + 1]
    return (*batch, channels, *outer) if min(outer) > 0 else None


def _read_convolution_backward(name: str, call: OperatorCall) -> OpShape:
    is_old = name != "convolution_backward"  # cuDNN's own, until 2021: input, grad_output, weight
    order = (1, 0, 2) if is_old else (0, 1, 2)
    grad, data, weight = map(call.shape_of_argument, order)
    if len(weight) < 3 or len(grad) != len(data):
        raise IndexError
    transposed = "transpose" in name if is_old else call.value_of_argument(7)
    if transposed is None:
        transposed = grad[1 - len(weight)] != weight[0] or (
            data[1 - len(weight)] == weight[0] and prod(grad[2:]) > prod(data[2:])
        )
    mask = call.value_of_argument(len(call.shapes) - 1 if is_old else 10)
    mask = mask if isinstance(mask, list) else None
    outputs: list[Shape | None] = [data, weight, (weight[1] if transposed else weight[0],)]
    if mask is not None:
        outputs = [
            size if any(mask[index : index + 1]) else None for index, size in enumerate(outputs)
        ]
    return _make_op_shape(
        "convolution_backward",
        call,
        order,
        outputs,
        transposed=bool(transposed),
        output_mask=mask,
        missed=_NO_MASK if mask is None else None,
    )


def _complete_convolution_shapes(
    op: OpShape, outputs: Iterable[Shape | None], dtypes: tuple[str, ...], **attributes: object
) -> OpShape:
    """Return a convolution completed by the shapes of other operators."""
    stated = {key: value for key, value in op.attributes.items() if key != "missed"}
    return replace(op, outputs=tuple(outputs), dtypes=dtypes, attributes={**stated, **attributes})


def _read_attention(name: str, call: OperatorCall) -> OpShape:
    backward = "_backward" if name.endswith("_backward") else ""
    first = 1 if backward else 0  # place of the query
    places = range(first, first + 3)
    if not all(map(call.shape_of_argument, places)):
        raise IndexError
    attributes: dict[str, object] | None = {
        "is_causal": bool(call.value_of_argument(_SCALED.get(name, -1)))
    }
    if name in _ATTENTION:
        attributes = masks.describe_attention_call_mask(
            _ATTENTION[name], call.shape_of_argument, call.value_of_argument
        )
        turned = list(call.shapes)
        for index, shape in enumerate(turned[: first + 3]):  # S x h x D -> h x S x D
            if shape is not None and len(shape) > 2:
                turned[index] = (*shape[:-3], shape[-2], shape[-3], shape[-1])
        call = call._replace(shapes=tuple(turned))
    query, key, value = map(call.shape_of_argument, places)
    kinds = ("flash", "efficient", "cudnn")
    kind = next((kind for kind in kinds if kind in name), "flash")
    return _make_op_shape(
        f"_scaled_dot_product_{kind}_attention{backward}",
        call,
        range(first + 3),
        (query, key, value) if backward else ((*query[:-1], value[-1]),),
        **({"missed": masks.PACKED} if attributes is None else attributes),
    )


def _read_unsupported_operator(name: str, call: OperatorCall) -> OpShape:
    return _make_op_shape(name, call, range(len(call.shapes)), (), missed=_UNREAD[name])


_READERS: dict[str, Callable[[str, OperatorCall], OpShape]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_int_mm", "_scaled_mm"), _read_matmul),
    **dict.fromkeys(_ADDED, _read_matmul),
    **dict.fromkeys(_ORDERS, _read_convolution),
    **dict.fromkeys(_BACKWARDS, _read_convolution_backward),
    **dict.fromkeys((*_SCALED, *_ATTENTION), _read_attention),
    **dict.fromkeys(_UNREAD, _read_unsupported_operator),
    "linear": _read_linear,
    "_grouped_mm": _read_grouped_matmul,
}
"""Bare name of an operator -> what reads its arguments; raises IndexError where some are
missing."""
READERS = {
    _ATTENTION.get(name, f"aten::{name}"): name for name in _READERS if name not in _FUNCTIONAL
}
"""Operators whose work is a product, as traces name them -> bare name. Of nested ones the outermost
counts: what it calls is its own doing."""
READERS |= {f"torch.nn.functional.{name}": name for name in (*_FUNCTIONAL, "linear")}
READERS |= {f"torch.{name}": name for name in ("mm", "bmm", "addmm", "baddbmm")}


def _read_operator_shapes(
    name: str, call: OperatorCall | None, computed_gradients: Sequence[bool]
) -> OpShape:
    """Return the shapes of an operator of READERS; without any where its arguments are not those
    that it should have.

    ``computed_gradients``: for input, weight and bias, whether operators inside of it computed the
    gradient; empty where there are none.
    """
    bare = READERS[name]
    if call is not None:
        with suppress(ArithmeticError, IndexError, ValueError):
            op = _READERS[bare](bare, call)
            if not computed_gradients or bare not in _BACKWARDS:
                return op
            outputs_computed = zip(op.outputs, computed_gradients, strict=True)
            outputs = (shape if is_kept else None for shape, is_kept in outputs_computed)
            return _complete_convolution_shapes(
                op, outputs, op.dtypes, output_mask=list(computed_gradients)
            )
    unread = name.replace("::", ".")
    return OpShape("", "", unread, "forward", (), (), (), {"missed": _NO_SHAPES})


def _format_row_name_with_sizes(name: str, op: OpShape) -> str:
    """Return what a row of this operator is called: "aten::addmm 32x9216x128"."""
    shapes = [shape for shape in op.inputs if shape]
    bare = op.op.removeprefix("aten.")
    if len(shapes) < 2:
        return name
    sizes = (*shapes[0], *shapes[1][-1:]) if len(shapes[1]) > 1 else shapes[0]
    if bare.startswith("convolution"):
        first, second = shapes[-2:] if bare == "convolution_backward" else shapes[:2]
        strides = op.attributes.get("stride")
        stride = ""
        if isinstance(strides, list) and set(strides) != {1}:
            stride = f" stride {_join_sizes(strides)}"
        return f"{name} {_join_sizes(first)} {_join_sizes(second)}{stride}"
    if "attention" in bare and len(shapes) >= 3:
        query, key = shapes[-3:-1]
        if len(query) < 2 or len(key) < 2:
            return name
        sizes = (*query[:-1], key[-2], query[-1])
    elif bare == "linear":
        sizes = (prod(shapes[0][:-1]), *reversed(shapes[1]))
    elif bare in _ADDED and len(shapes) >= 3:
        sizes = (*shapes[1], *(shapes[2][-1:] if len(shapes[2]) > 1 else ()))
    return f"{name} {_join_sizes(sizes)}"


def _join_sizes(sizes: Iterable[object]) -> str:
    return "x".join(map(str, sizes))


class OperatorRow(NamedTuple):
    """The row of one call."""

    layer: str | None
    direction: str | None
    by_optimizer: bool = False
    """Launched by the optimizer."""


@dataclass(frozen=True, slots=True)
class OperatorShapes:
    """Shapes of a trace's operators, and what follows from them for the report."""

    ops: tuple[OpShape, ...] = ()
    """With the calls of one step, where the steps are alike; else of the whole capture."""
    environment: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    precision: str | None = None
    """bf16 or fp16, where all products are of that type."""


class OperatorRows:
    """The operators that count, and the row of each span inside them."""

    def __init__(
        self,
        names: Sequence[str],
        parents: Sequence[int],
        order: Iterable[int],
        calls: Mapping[int, OperatorCall | None],
        backward: Collection[int],
        known_shapes: Mapping[int, Shape] = MappingProxyType({}),
    ) -> None:
        """Spans of a trace, by position. ``parents``: the span around each, -1 for none. ``order``:
        every parent before its children. ``calls``: arguments of the operators of READERS and
        GRADIENT_OF, None where the trace has no shapes. ``backward``: nodes of autograd.
        ``known_shapes``: operator -> shape of what the operator after it takes."""
        self.owners = [-1] * len(names)
        """For each span, the operator whose work it does; -1 for none."""
        self.inside = [False] * len(names)
        """For each span, whether autograd runs it."""
        counted: list[int] = []
        computed: defaultdict[int, list[bool]] = defaultdict(lambda: [False] * 3)
        replaced: dict[int, int] = {}
        """Operator that does not count -> the one inside that counts in its place."""
        for index in order:
            parent, name = parents[index], names[index]
            outer = self.owners[parent] if parent >= 0 else -1
            self.owners[index] = outer
            self.inside[index] = (
                (parent >= 0 and self.inside[parent])
                or index in backward
                or name.startswith(ENGINE)
            )
            if name in GRADIENT_OF:
                if outer >= 0:
                    computed[outer][GRADIENT_OF[name]] = True
            elif index in calls and (
                # autocast calls the operator once more
                outer < 0 or names[outer] in _COMPOSITE or names[outer] == name
            ):
                self.owners[index] = index
                counted.append(index)
                replaced.setdefault(outer, index)
        # A network repeats the same few calls in every step: each is read once, and shared.
        read: dict[tuple[object, ...], tuple[OpShape, str]] = {}
        self.shapes: dict[int, OpShape] = {}
        """Of each operator that counts."""
        self.labels: dict[int, str] = {}
        """Operator -> its row."""
        for index in sorted(counted):
            name, call, mask = names[index], calls[index], tuple(computed.get(index, ()))
            alike = name, id(call), mask
            if alike not in read:
                op = _read_operator_shapes(name, call, mask)
                read[alike] = op, _format_row_name_with_sizes(name, op)
            self.shapes[index], self.labels[index] = read[alike]
        _infer_convolution_output_shapes(self.shapes, known_shapes)
        for index in reversed(counted):
            if index in replaced:  # its casts are work of the operator inside
                self.labels[index] = self.labels[replaced[index]]
                del self.shapes[index]

    def find_recomputed_spans(self) -> Iterator[int]:
        """Yield spans in backward that do a forward once more (checkpointing)."""
        for index, owner in enumerate(self.owners):
            if self.inside[index] and owner in self.shapes and self.shapes[owner].op in _RUNS_AGAIN:
                yield index

    def collect_operator_shapes(
        self,
        get_row_and_step: Callable[[int], tuple[OperatorRow, int | None]],
        step_numbers: Collection[int],
        launching_spans: Iterable[int] | None,
    ) -> OperatorShapes:
        """Return the shapes with their rows. ``get_row_and_step``: of an operator.
        ``step_numbers``: only the operators of these steps count.

        ``launching_spans``: spans that launched a kernel; None where no kernel was recorded. An
        operator that launched none ran on the CPU, or while a CUDA graph was recorded, and does not
        count.
        """
        counted = self.shapes
        if launching_spans is not None:
            launched = {self.owners[index] for index in launching_spans if index >= 0}
            counted = {index: op for index, op in counted.items() if index in launched}
        calls: defaultdict[tuple[int, OperatorRow], Counter[int | None]] = defaultdict(Counter)
        for index, op in counted.items():
            row, step = get_row_and_step(index)
            calls[id(op), row][step] += 1
        shared = {id(op): op for op in counted.values()}
        own_rows = set(self.labels.values())
        tallies: dict[tuple[object, ...], tuple[OpShape, Counter[int | None]]] = {}
        for (number, row), tally in calls.items():
            op = _assign_op_to_row(shared[number], row, is_own_row=row.layer in own_rows)
            key = (op.layer, op.op, op.direction, op.inputs, op.outputs, str(op.attributes))
            first = replace(op, position=len(tallies)), Counter[int | None]()
            tallies.setdefault(key, first)[1].update(tally)
        counts = [sum(tally[step] for step in step_numbers) for _, tally in tallies.values()]
        is_alike = bool(step_numbers) and not any(count % len(step_numbers) for count in counts)
        if is_alike:
            counts = [count // len(step_numbers) for count in counts]
        else:
            counts = [tally.total() for _, tally in tallies.values()]
        counted_ops = zip(tallies.values(), counts, strict=True)
        ops = tuple(replace(op, calls=count) for (op, _), count in counted_ops if count)
        idle = len(self.shapes) - len(counted)
        return OperatorShapes(
            ops,
            {} if is_alike or not ops else {COVERS: WHOLE_CAPTURE},
            tuple(
                _describe_missing_operator_data(
                    ops, are_steps_alike=is_alike, step_count=len(step_numbers), skipped_calls=idle
                )
            ),
            _find_common_half_precision(ops),
        )


def _infer_convolution_output_shapes(
    ops: dict[int, OpShape], next_input_shapes: Mapping[int, Shape]
) -> None:
    """A convolution's output has the shape of the gradient that comes back for the same input and
    weight, or of what the next operator takes: same images, its channels, as many dimensions."""
    gradients: defaultdict[tuple[object, ...], set[Shape | None]] = defaultdict(set)
    for op in ops.values():
        if op.op == "aten.convolution_backward":
            gradients[op.inputs[1:3]].add(op.inputs[0])
    for index, op in ops.items():
        if op.op != "aten.convolution" or op.outputs != (None,):
            continue
        data, weight = op.inputs[0] or (), op.inputs[1] or ()
        following = next_input_shapes.get(index, ())
        fits = len(following) == len(data) == len(weight) and following[:2] == (data[0], weight[0])
        candidates = gradients.get(op.inputs[:2]) or {following if fits else None}
        output = next(iter(candidates)) if len(candidates) == 1 else None
        if output is not None:
            ops[index] = _complete_convolution_shapes(op, (output,), (*op.dtypes, *op.dtypes[:1]))


def _assign_op_to_row(op: OpShape, row: OperatorRow, *, is_own_row: bool) -> OpShape:
    direction, layer = row.direction or "forward", row.layer or ""
    attributes = dict(op.attributes)
    if row.by_optimizer and not layer:
        return replace(op, direction="optimizer")
    is_forward = direction in ("forward", "recompute")
    if direction == "recompute":
        attributes["recompute"] = True
    elif not is_forward and not op.op.endswith("_backward"):
        attributes["role"] = "backward"
    kind = _INSTANCE.sub("", layer.rpartition(".")[2])
    if is_own_row:
        # the row is the operator, not a layer that has a forward
        attributes |= {"functional": op.op, "row": True}
        kind = ""
    side = "forward" if is_forward else "backward"
    return replace(op, layer=layer, kind=kind, direction=side, attributes=attributes)


def _find_common_half_precision(ops: Iterable[OpShape]) -> str | None:
    types = {op.dtypes[0] if op.dtypes else None for op in ops if "missed" not in op.attributes}
    names = {"bfloat16": "bf16", "float16": "fp16"}
    return names.get(types.pop() or "") if len(types) == 1 else None


def _describe_missing_operator_data(
    ops: Sequence[OpShape], *, are_steps_alike: bool, step_count: int, skipped_calls: int
) -> Iterator[Gap]:
    missed = Counter(
        (str(op.attributes["missed"]), op.op) for op in ops if "missed" in op.attributes
    )
    for (reason, name), count in missed.items():
        shapes = f" ({count} shapes)" if count > 1 else ""
        yield Gap("layer_call.flops", "not_available", f"{name}{shapes}: {reason}")
    if skipped_calls:
        elsewhere = "on the CPU, into a CUDA graph, or before the recording began"
        reason = (
            f"{skipped_calls} {'call' if skipped_calls == 1 else 'calls'} of operators "
            f"launched no recorded kernel "
            f"({elsewhere}) and were skipped"
        )
        yield Gap("op_shape", "not_available", reason)
    if ops and not are_steps_alike:
        unlike = "no range names a step (ProfilerStep#N)"
        if step_count:
            unlike = f"its {step_count} steps run different operators"
        reason = f"{unlike}: the ledger takes the whole capture as one step"
        yield Gap("step", "not_available", reason)
