"""What each operation costs: convolutions, matrix products, attention, recurrent layers, and all
other work.

N batch, K output channels, C input channels, g groups, (O x) P x Q output positions, (T x) R x S
kernel. Source: Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016,
chapters 2 and 4.

RNN, LSTM and GRU: rows = time steps summed over the batch (N x T, or the sum of the lengths when
packed), I input size of a layer, H hidden size, R recurrent size (H, or the projection), G gates
(LSTM 4, GRU 3, RNN 1).
Source: the equations in the documentation of torch.nn.LSTM, GRU and RNN; Sak, Senior, Beaufays,
2014 (projections).

Elementwise FLOPs are never added to multiply-adds. By convention a pointwise operation counts one
for each output value, whatever the function; the docstrings state the other factors.
docs/reference/formulas.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from perfctl.records.paper import UPPER_BOUND, OpShape

Shape = tuple[int, ...]

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "quint8": 1,
    "qint8": 1,
    "qint32": 4,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "complex32": 4,
}
"""Bytes of one element; torch's names."""

CONVOLUTIONS = ("aten.convolution", "aten._convolution", "aten.convolution_overrideable")
OUT_LETTERS = {1: ("P",), 2: ("P", "Q"), 3: ("O", "P", "Q")}
IN_LETTERS = {1: ("W",), 2: ("H", "W"), 3: ("D", "H", "W")}
KERNEL_LETTERS = {1: ("R",), 2: ("R", "S"), 3: ("T", "R", "S")}

ADDED = (
    "aten.addmm",
    "aten.addmm_",
    "aten._addmm_activation",
    "aten.baddbmm",
    "aten.baddbmm_",
    "aten.addmv",
    "aten.addbmm",
    "aten.addbmm_",
    "aten._sparse_addmm",
)
"""Products whose first argument is added; the second and third are the factors."""
LINEAR = ("aten.addmm", "aten.mm", "aten.linear", "aten._addmm_activation", "aten._scaled_mm")
BIAS_AT = {"aten.linear": 2, "aten._scaled_mm": 4}
"""Which argument of a product is its bias, where it is not the first."""

FUSED = ", fused kernel"
CAUSAL = "; causal: the full square is counted"

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
CELL = {"lstm": 9, "gru": 8, "rnn": 1}
"""Elementwise FLOPs of one hidden unit in one step, without bias adds: activations, products
and sums."""

WORK = {
    "SGD": 2,
    "Adam": 12,
    "AdamW": 12,
    "Adadelta": 13,
    "RMSprop": 7,
    "Adagrad": 6,
    "NAdam": 15,
    "RAdam": 15,
    "Adamax": 10,
}
"""FLOPs for each value, by the rule without options."""


@dataclass(frozen=True, slots=True)
class CallWork:
    """One operation in one direction, for one call."""

    direction: str
    macs: int
    read_bytes: int
    write_bytes: int
    output_elements: int
    text: str
    elementwise: int = 0
    """FLOPs other than multiply-adds."""
    label: str = ""
    """Added to the layer's kind, for a row of its own: work that only some kernels do."""
    odd_flops: int = 0
    """1 for a registered formula whose FLOPs are not 2 x macs."""


Works = tuple[CallWork, ...]
"""What one operation computes; several parts if it works in several directions."""
Formula = Callable[[OpShape], Works]


@dataclass(frozen=True, slots=True)
class OpTensors:
    """Shapes of one operation with the bytes of an element, in the order of its arguments."""

    inputs: tuple[tuple[Shape, int] | None, ...]
    outputs: tuple[tuple[Shape, int] | None, ...]

    def sum_input_bytes(self, *indices: int) -> int:
        """Return the bytes of these inputs, of all without ``indices``. A missing tensor
        counts 0."""
        tensors = [self.inputs[index] for index in indices] if indices else self.inputs
        return sum(prod(tensor[0]) * tensor[1] for tensor in tensors if tensor is not None)

    def sum_output_bytes(self, *indices: int) -> int:
        """Return the bytes of these outputs, as :meth:`sum_input_bytes`."""
        return OpTensors(self.outputs, ()).sum_input_bytes(*indices)


def pair_shapes_with_item_bytes(op: OpShape) -> OpTensors:
    """Shapes joined with dtypes. An unknown dtype counts 4 bytes."""
    sizes = iter([ITEM_BYTES.get(name, 4) for name in op.dtypes])
    inputs, outputs = (
        tuple(None if shape is None else (tuple(shape), next(sizes, 4)) for shape in shapes)
        for shapes in (op.inputs, op.outputs)
    )
    return OpTensors(inputs, outputs)


def get_shape_or_empty(shapes: tuple[Shape | None, ...], index: int) -> Shape:
    """The shape at ``index``; () when there is no tensor there."""
    shape = shapes[index] if index < len(shapes) else None
    return tuple(shape) if shape is not None else ()


def count_first_output_elements(op: OpShape) -> int:
    return prod(get_shape_or_empty(op.outputs, 0)) if op.outputs else 0


def count_largest_input_elements(op: OpShape) -> int:
    """Elements of the largest input."""
    return max((prod(shape) for shape in op.inputs if shape is not None), default=0)


def get_work_direction(op: OpShape) -> str:
    """forward, optimizer, or what the recorder said about a backward operation."""
    if op.direction == "forward":
        return "forward"
    role = op.attributes.get("role")
    return str(role) if role else ("grad_input" if op.direction == "backward" else op.direction)


def make_call_work(
    op: OpShape, text: str, *, macs: int = 0, elementwise: int = 0, direction: str = ""
) -> Works:
    """The one part of an operation that reads all its inputs and writes all its outputs."""
    tensors, direction = pair_shapes_with_item_bytes(op), direction or get_work_direction(op)
    return (
        CallWork(
            direction,
            macs,
            tensors.sum_input_bytes(),
            tensors.sum_output_bytes(),
            count_first_output_elements(op),
            text,
            elementwise,
        ),
    )


def format_factors(*factors: int) -> str:
    """(64, 24, 24) -> "64 x 24 x 24"."""
    return " x ".join(f"{factor:,}" for factor in factors)


def format_mac_product(letters: str, factors: tuple[int, ...]) -> str:
    """Return one line: letters = numbers = result in MAC and FLOP."""
    macs = prod(factors)
    return f"{letters} = {format_factors(*factors)} = {macs:,} MAC = {2 * macs:,} FLOP"


def make_product_work(
    op: OpShape,
    letters: str,
    factors: tuple[int, ...],
    elementwise: int = 0,
    direction: str = "",
) -> Works:
    """Return the part of an operation whose multiply-adds are the product of these factors."""
    text, macs = format_mac_product(letters, factors), prod(factors)
    return make_call_work(op, text, macs=macs, elementwise=elementwise, direction=direction)


def make_elementwise_work(op: OpShape, factor: int, values: int, noun: str) -> Works:
    """Return the part of an operation that takes ``factor`` FLOPs for each value."""
    work = factor * values
    return make_call_work(op, f"{factor} x {values:,} {noun}, elementwise", elementwise=work)


def read_boolean_attribute(op: OpShape, name: str) -> bool:
    return bool(op.attributes.get(name, False))


def read_integer_of_attribute(op: OpShape, name: str, default: int = 0) -> int:
    value = op.attributes.get(name, default)
    return int(value) if isinstance(value, (int, float)) else default


def read_integers_of_attribute(op: OpShape, name: str) -> tuple[int, ...]:
    value = op.attributes.get(name)
    if isinstance(value, (list, tuple)):
        return tuple(int(item) if item is not None else 0 for item in value)
    return (int(value),) if isinstance(value, (int, float)) else ()


def _count_conv_macs_and_text(
    data: Shape, weight: Shape, result: Shape, transposed: bool
) -> tuple[int, str]:
    """Multiply-adds of one pass, and their worked text: every position of the small map meets every
    weight once.

    For a convolution the positions are the output's, for a transposed one the input's. ``weight``
    already has C/g (or K/g) in its second place, so groups need no further division.
    """
    positions = (data if transposed else result)[2:]
    rank = len(positions)
    macs = data[0] * prod(positions) * prod(weight)
    letters = (IN_LETTERS if transposed else OUT_LETTERS)[rank]
    channels = ("C", "K/g") if transposed else ("K", "C/g")
    names = " x ".join(("N", *letters, channels[0]))
    inner = " x ".join((channels[1], *KERNEL_LETTERS[rank]))
    outputs = format_factors(data[0], *positions, weight[0])
    product = f"{outputs} x ({format_factors(*weight[1:])}) = {macs:,} MAC = {2 * macs:,} FLOP"
    return macs, f"{names} x ({inner}) = {product}"


def _add_batch_dimension(shape: Shape, weight: Shape) -> Shape:
    """A map without a batch dimension counts as a batch of one."""
    return shape if len(shape) == len(weight) else (1, *shape)


def get_convolution_shapes(op: OpShape) -> tuple[Shape, Shape, Shape]:
    """Return the shapes of input, weight and output."""
    weight = get_shape_or_empty(op.inputs, 1)
    data, result = get_shape_or_empty(op.inputs, 0), get_shape_or_empty(op.outputs, 0)
    return _add_batch_dimension(data, weight), weight, _add_batch_dimension(result, weight)


def count_convolution(op: OpShape) -> Works:
    """Forward pass of a convolution. The bias adds 1 elementwise FLOP per output value."""
    data, weight, result = get_convolution_shapes(op)
    macs, text = _count_conv_macs_and_text(
        data, weight, result, read_boolean_attribute(op, "transposed")
    )
    return make_call_work(
        op,
        text,
        macs=macs,
        elementwise=prod(result) if read_boolean_attribute(op, "bias") else 0,
        direction="forward",
    )


def count_convolution_backward(op: OpShape) -> Works:
    """Gradients of a convolution that output_mask selects: input and weight each cost as much as
    the forward pass."""
    weight = get_shape_or_empty(op.inputs, 2)
    grad, data = (
        _add_batch_dimension(get_shape_or_empty(op.inputs, 0), weight),
        _add_batch_dimension(get_shape_or_empty(op.inputs, 1), weight),
    )
    macs, text = _count_conv_macs_and_text(
        data, weight, grad, read_boolean_attribute(op, "transposed")
    )
    tensors = pair_shapes_with_item_bytes(op)
    mask = read_integers_of_attribute(op, "output_mask") or tuple(
        int(shape is not None) for shape in op.outputs
    )
    parts = []
    note = f"as forward: {text}"
    if mask[0]:
        parts.append(
            CallWork(
                "grad_input",
                macs,
                tensors.sum_input_bytes(0, 2),
                tensors.sum_output_bytes(0),
                prod(data),
                note,
            )
        )
    if mask[1]:
        parts.append(
            CallWork(
                "grad_weight",
                macs,
                tensors.sum_input_bytes(0, 1),
                tensors.sum_output_bytes(1),
                prod(weight),
                note,
            )
        )
    if len(mask) > 2 and mask[2]:
        values, channels = prod(grad), grad[1]
        note = (
            f"sum of grad_output over batch and positions: {values:,} additions, no multiply-adds"
        )
        parts.append(
            CallWork(
                "grad_bias",
                0,
                tensors.sum_input_bytes(0),
                tensors.sum_output_bytes(2),
                channels,
                note,
                values,
            )
        )
    return tuple(parts)


def get_left_factor_shape(op: OpShape) -> Shape:
    """Rows of a product; of addmm and its like the second argument."""
    return get_shape_or_empty(op.inputs, 1 if op.op in ADDED else 0)


def count_matrix_product(op: OpShape) -> Works:
    """Matrix product, M x K x N. The additions of addmm, baddbmm and addmv are elementwise FLOPs. A
    sparse factor counts its stored values."""
    first, elementwise = (
        (1, count_first_output_elements(op)) if op.op in ADDED else (0, _count_bias_additions(op))
    )
    if "nnz" in op.attributes:
        return _make_sparse_work(op, first)
    first_shape, right = (
        get_shape_or_empty(op.inputs, first),
        get_shape_or_empty(op.inputs, first + 1),
    )
    factors: Shape = first_shape
    if len(first_shape) == 1:
        letters = "K"
    elif len(right) == 1:
        letters = "M x K"
    elif len(first_shape) == 2:
        letters, factors = "M x K x N", (*first_shape, right[-1])
    else:
        letters, factors = (
            "B x M x K x N",
            (prod(first_shape[:-2]), first_shape[-2], first_shape[-1], right[-1]),
        )
    return make_product_work(op, letters, factors, elementwise)


def _count_bias_additions(op: OpShape) -> int:
    index = BIAS_AT.get(op.op, len(op.inputs))
    return (
        count_first_output_elements(op)
        if index < len(op.inputs) and op.inputs[index] is not None
        else 0
    )


def _make_sparse_work(op: OpShape, first_factor_index: int) -> Works:
    stored = op.attributes["nnz"]
    first_nnz, right = (
        stored[first_factor_index : first_factor_index + 2]
        if isinstance(stored, (list, tuple))
        else (None, None)
    )
    if first_nnz is not None and right is not None:
        pairs = read_integer_of_attribute(op, "pairs")
        text = f"pairs of stored values that meet = {pairs:,} MAC = {2 * pairs:,} FLOP"
        return make_call_work(op, text, macs=pairs)
    if first_nnz is not None:
        shape, columns_at = get_shape_or_empty(op.inputs, first_factor_index + 1), -1
    else:
        first_nnz, shape, columns_at = (
            right or 0,
            get_shape_or_empty(op.inputs, first_factor_index),
            -2,
        )
    factors = (int(first_nnz), 1 if len(shape) == 1 else shape[columns_at])
    return make_product_work(op, "stored values x columns", factors)


def adjust_complex_and_integer_work(op: OpShape, part: CallWork) -> CallWork:
    """The part in real FLOPs: 4 real multiply-adds each for complex numbers, none for integers or a
    tangent of zeros."""
    if not part.macs:
        return part
    if op.attributes.get("zero"):
        return replace(
            part, macs=0, elementwise=0, text="a factor is a tangent of zeros: nothing to compute"
        )
    if is_integer_product(op):
        return replace(
            part, macs=0, text=f"{part.text.rpartition(' = ')[0]}, of integers: no FLOPs"
        )
    if op.dtypes and op.dtypes[0].startswith("complex") and not op.op.startswith("aten._fft"):
        real = 4 * part.macs
        return replace(
            part,
            macs=real,
            text=f"{part.text}; complex, 4 real each: {real:,} MAC = {2 * real:,} FLOP",
        )
    return part


def is_integer_product(op: OpShape) -> bool:
    """Return whether the factors of a product are integers, whose products are no FLOPs."""
    return op.op.startswith("quantized.") or (
        bool(op.dtypes) and op.dtypes[0].startswith(("int", "uint", "bool", "q"))
    )


def count_linear(op: OpShape) -> Works:
    """Linear layer: rows x in x out. A quantized layer has integer multiply-adds."""
    data, weight = get_shape_or_empty(op.inputs, 0), get_shape_or_empty(op.inputs, 1)
    width = weight[-1] if weight else data[-1]
    outs = prod(weight[:-1]) if weight else get_shape_or_empty(op.outputs, 0)[-1]
    factors = (prod(data[:-1]), width, outs)
    return make_product_work(op, "rows x in x out", factors, _count_bias_additions(op), "forward")


def count_vector_products(op: OpShape) -> Works:
    """torch.linalg.vecdot: a product of two vectors of length K for each output value."""
    return make_product_work(
        op, "outputs x K", (count_first_output_elements(op), read_integer_of_attribute(op, "depth"))
    )


def count_vector_products_backward(op: OpShape) -> Works:
    """Each required gradient costs as much as the forward pass."""
    factors = (
        sum(read_integers_of_attribute(op, "needs")),
        count_first_output_elements(op),
        read_integer_of_attribute(op, "depth"),
    )
    return make_product_work(op, "gradients x outputs x K", factors)


def _read_attention_sizes(op: OpShape, query_index: int) -> tuple[int, int, int, int, int]:
    """B x h, Sq, Sk, E, V. Grouped-query attention works as if key and value were repeated to the
    query's heads."""
    query, key, value = (get_shape_or_empty(op.inputs, query_index + index) for index in range(3))
    return prod(query[:-2]), query[-2], key[-2], query[-1], value[-1]


def _count_attention_scores_and_text(
    op: OpShape, query_index: int, letters: str, depth: int
) -> tuple[int, str]:
    """Return the scores that the mask leaves, as far as it is known, and the text of their product
    with ``depth``."""
    square = _read_attention_sizes(op, query_index)[:3]
    mask, reason = op.attributes.get("mask"), op.attributes.get("upper_bound")
    is_counted = "scores" in op.attributes
    scores = read_integer_of_attribute(op, "scores") if is_counted else prod(square)
    names, sizes = ("scores", (scores,)) if is_counted else ("B*h x Sq x Sk", square)
    text = format_mac_product(f"{names} x {letters}", (*sizes, depth)) + (
        f"; {mask}" if mask else ""
    )
    text += CAUSAL * read_boolean_attribute(op, "is_causal") + (
        f"{UPPER_BOUND}{reason}" if reason else ""
    )
    return scores, text


def count_attention(op: OpShape) -> Works:
    """Forward pass of attention. Softmax and scaling count 5 + 1 elementwise FLOPs per score."""
    heads, rows, _, wide, deep = _read_attention_sizes(op, 0)
    scores, text = _count_attention_scores_and_text(op, 0, "(E + V)", wide + deep)
    macs = scores * (wide + deep)
    tensors = pair_shapes_with_item_bytes(op)
    return (
        CallWork(
            "forward",
            macs,
            tensors.sum_input_bytes(),
            tensors.sum_output_bytes(0),
            heads * rows * deep,
            text,
            6 * scores,
        ),
    )


def count_attention_backward(op: OpShape) -> Works:
    """Backward pass of attention with the required gradients, as recorded, or the operator of a
    fused kernel.

    ``backend``: math or flash as a process ran it; "any" in an estimate, with the fused kernel's
    extra work in its own row.
    """
    is_own = not op.op.startswith("perfctl.")
    fused = is_own or op.attributes.get("backend") in ("flash", "any")
    first, needs = int(is_own), read_integers_of_attribute(op, "needs") or (1, 1, 1)
    heads, rows, _, wide, deep = _read_attention_sizes(op, first)
    of_scores = bool(needs[0] or needs[1])
    depth = deep * (needs[2] + of_scores) + wide * (needs[0] + needs[1])
    names = " + ".join(
        name
        for name, need in zip(("dP", "dQ", "dK", "dV"), (of_scores, *needs), strict=True)
        if need
    )
    scores, text = _count_attention_scores_and_text(op, first, "depths", depth)
    macs, text = scores * depth, f"{names}: {text}"
    read_bytes = pair_shapes_with_item_bytes(op).sum_input_bytes(first, first + 1, first + 2)
    parts = [
        CallWork("grad_input", macs, read_bytes, read_bytes, heads * rows * wide, text, 5 * scores)
    ]
    if fused:
        work = scores * wide
        note = f"Q K^T again, because its scores were not kept: {work:,} MAC = {2 * work:,} FLOP"
        parts.append(
            CallWork("recompute", work, 0, 0, heads * rows * deep, note, 6 * scores, FUSED)
        )
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class RecurrentSizes:
    """The sizes of a recurrent network. ``steps``: rows of one sample, or of all samples."""

    steps: int
    inputs: int
    hidden: int
    projection: int
    layers: int
    directions: int
    gates: int

    @property
    def gate_outputs(self) -> int:
        return self.gates * self.hidden

    @property
    def recurrent_size(self) -> int:
        """Recurrent size: H, or the projection."""
        return self.projection or self.hidden

    def get_input_size(self, layer: int) -> int:
        """Input size of a layer."""
        return self.inputs if layer == 0 else self.directions * self.recurrent_size

    @property
    def weight_count(self) -> int:
        each = (
            self.gate_outputs * (self.get_input_size(layer) + self.recurrent_size)
            for layer in range(self.layers)
        )
        return self.directions * (sum(each) + self.layers * self.projection * self.hidden)

    @property
    def mac_terms(self) -> tuple[tuple[int, ...], ...]:
        """Multiply-adds as a sum of products, one or two for each layer."""
        terms_ = []
        for layer in range(self.layers):
            terms_.append(
                (
                    self.steps,
                    self.directions,
                    self.gate_outputs,
                    self.get_input_size(layer) + self.recurrent_size,
                )
            )
            if self.projection:
                terms_.append((self.steps, self.directions, self.projection, self.hidden))
        return tuple(terms_)


def read_recurrent_sizes(op: OpShape, batch: int = 1) -> RecurrentSizes:
    """Return the network of perfctl.lstm, gru or rnn, or of their backward; its rows spread over
    ``batch`` samples."""
    return RecurrentSizes(
        read_integer_of_attribute(op, "rows") // batch,
        read_integer_of_attribute(op, "input_size"),
        read_integer_of_attribute(op, "hidden_size"),
        read_integer_of_attribute(op, "proj_size"),
        read_integer_of_attribute(op, "num_layers", 1),
        read_integer_of_attribute(op, "directions", 1),
        GATES[op.op.split(".")[1].removesuffix("_backward")],
    )


def _count_recurrent_macs_and_text(net: RecurrentSizes) -> tuple[int, str]:
    extra = f" + {format_factors(net.steps, net.projection * net.hidden)}" if net.projection else ""
    each = [
        f"l{layer}: {format_factors(net.steps, net.gate_outputs)} x "
        f"({net.get_input_size(layer):,} + {net.recurrent_size:,}){extra}"
        for layer in range(net.layers)
        for _ in range(net.directions)
    ]
    letters = "rows x G*H x (I + R)" + (" + rows x R x H" if net.projection else "")
    macs = sum(map(prod, net.mac_terms))
    return (
        macs,
        f"{letters}, per layer and direction: {'; '.join(each)} = {macs:,} MAC = {2 * macs:,} FLOP",
    )


def _count_recurrent_weights_and_item_bytes(op: OpShape, net: RecurrentSizes) -> tuple[int, int]:
    """Return (their number, with biases; bytes of one)."""
    output = pair_shapes_with_item_bytes(op).outputs[0] if op.outputs else None
    biases = (
        2 * net.gate_outputs * net.layers * net.directions
        if read_boolean_attribute(op, "bias")
        else 0
    )
    return net.weight_count + biases, output[1] if output else 4


def count_recurrent(op: OpShape) -> Works:
    """Forward pass of a complete nn.LSTM, GRU or RNN."""
    net, tensors = read_recurrent_sizes(op), pair_shapes_with_item_bytes(op)
    macs, text = _count_recurrent_macs_and_text(net)
    cells = CELL[op.op.removeprefix("perfctl.")] * net.hidden + (
        2 * net.gate_outputs if read_boolean_attribute(op, "bias") else 0
    )
    reads = tensors.sum_input_bytes() + prod(_count_recurrent_weights_and_item_bytes(op, net))
    work = net.steps * cells * net.layers * net.directions
    return (
        CallWork(
            "forward",
            macs,
            reads,
            tensors.sum_output_bytes(),
            count_first_output_elements(op),
            text,
            work,
        ),
    )


def count_recurrent_backward(op: OpShape) -> Works:
    """The gradient of the weight costs as much as the forward pass; the gradient of the input costs
    less if the step needs no gradient of input or initial state."""
    net, tensors, first = (
        read_recurrent_sizes(op),
        pair_shapes_with_item_bytes(op),
        read_integer_of_attribute(op, "first_rows"),
    )
    forward, text = _count_recurrent_macs_and_text(net)
    weights, item = _count_recurrent_weights_and_item_bytes(op, net)
    grads, left_out = forward, []
    if not read_boolean_attribute(op, "needs_input"):
        grads -= net.directions * net.steps * net.gate_outputs * net.inputs
        left_out.append("the input needs no gradient")
    if not read_boolean_attribute(op, "needs_hidden"):
        grads -= net.directions * net.layers * first * net.gate_outputs * net.recurrent_size
        each = format_factors(first, net.gate_outputs, net.recurrent_size)
        left_out.append(f"the initial state needs none (- {each} per layer and direction)")
    note = f"as forward, but {' and '.join(left_out)}" if left_out else "as forward"
    total = f"{note} = {grads:,} MAC = {2 * grads:,} FLOP"
    values = count_first_output_elements(op)
    parts = [
        CallWork(
            "grad_input",
            grads,
            tensors.sum_output_bytes() + weights * item,
            tensors.sum_input_bytes(),
            values,
            total,
        )
    ]
    if read_boolean_attribute(op, "needs_weight"):
        reads = tensors.sum_input_bytes() + tensors.sum_output_bytes()
        parts.append(
            CallWork("grad_weight", forward, reads, weights * item, weights, f"as forward: {text}")
        )
    return tuple(parts)


def count_per_output(op: OpShape, factor: int = 1) -> Works:
    """``factor`` FLOPs for each output value."""
    return make_elementwise_work(op, factor, count_first_output_elements(op), "output values")


def count_per_input(op: OpShape, factor: int) -> Works:
    """``factor`` FLOPs for each value of the largest input."""
    return make_elementwise_work(op, factor, count_largest_input_elements(op), "input values")


def count_moved_values(op: OpShape) -> Works:
    """The operator copies, looks up, draws or sets values: bytes, no FLOPs."""
    return make_call_work(op, f"{count_first_output_elements(op):,} values moved, no arithmetic")


def count_foreach_operation(op: OpShape) -> Works:
    """_foreach_ operations on lists: one FLOP for each value of the first list."""
    values = sum(prod(shape) for shape in (op.outputs or op.inputs) if shape is not None)
    return make_elementwise_work(op, 1, values, "values of a list of tensors")


def count_pooling(op: OpShape) -> Works:
    """One comparison or addition per value of the window of each output value."""
    kernel = read_integers_of_attribute(op, "kernel_size") or (1,)
    rank = 3 if "3d" in op.op else 2 if "2d" in op.op else 1
    window = prod(kernel * rank if len(kernel) == 1 else kernel)
    values = count_first_output_elements(op)
    return make_call_work(
        op, f"window {window} x {values:,} output values, elementwise", elementwise=window * values
    )


def count_batch_norm(op: OpShape) -> Works:
    """Training: 8 FLOPs per value (mean 1, variance 3, normalize 2, scale and shift 2). Evaluation:
    4."""
    factor = 8 if read_boolean_attribute(op, "training") else 4
    values = count_first_output_elements(op)
    tensors = pair_shapes_with_item_bytes(op)
    # Eval keeps no batch statistics: devices return them empty, or as tensors that nobody fills.
    written = (
        tensors.sum_output_bytes()
        if read_boolean_attribute(op, "training")
        else tensors.sum_output_bytes(0)
    )
    text = f"{factor} x {values:,} output values, elementwise"
    return (
        CallWork(
            get_work_direction(op),
            0,
            tensors.sum_input_bytes(),
            written,
            values,
            text,
            factor * values,
        ),
    )


def count_norm_backward(op: OpShape) -> Works:
    """One operator computes the gradients of input, weight and bias: 11 FLOPs per value.

    In eval it does not read the batch statistics (places 5 and 6 of batch norm), which are then
    empty or unfilled.
    """
    values = count_largest_input_elements(op)
    tensors = pair_shapes_with_item_bytes(op)
    in_eval = op.attributes.get("train") is False
    indices = [index for index in range(len(op.inputs)) if not (in_eval and index in (5, 6))]
    read = tensors.sum_input_bytes(*indices)
    text, written = f"11 x {values:,} values, elementwise", tensors.sum_output_bytes()
    return (
        CallWork("backward", 0, read, written, count_first_output_elements(op), text, 11 * values),
    )


def count_interpolation_backward(op: OpShape, factor: int) -> Works:
    """For each value of the gradient that comes in, a multiplication and an addition for each of
    ``factor`` neighbours."""
    return make_elementwise_work(
        op, 2 * factor, prod(get_shape_or_empty(op.inputs, 0)), "gradient values"
    )


def count_parameter_sized_states(op: OpShape) -> int:
    """State tensors of the parameter's size: SGD 0, momentum 1, Adam 2 (amsgrad 3), Adadelta 2,
    RMSprop 1 to 3."""
    name = op.op.removeprefix("optim.")
    momentum = bool(op.attributes.get("momentum"))
    if name == "SGD":
        return int(momentum)
    if name == "RMSprop":
        return 1 + momentum + read_boolean_attribute(op, "centered")
    return (1 if name == "Adagrad" else 2) + read_boolean_attribute(op, "amsgrad")


def count_optimizer_step(op: OpShape) -> Works:
    """An optimizer reads parameter, gradient and state, and writes parameter and state. It has no
    multiply-adds by convention."""
    name, values = op.op.removeprefix("optim."), count_first_output_elements(op)
    factor = WORK[name] + 2 * sum(
        read_boolean_attribute(op, option) for option in ("momentum", "weight_decay", "nesterov")
    )
    state = count_parameter_sized_states(op)
    size = pair_shapes_with_item_bytes(op).sum_output_bytes()
    text = f"{factor} x {values:,} values, {state} of state each, elementwise"
    return (
        CallWork(
            "optimizer", 0, (2 + state) * size, (1 + state) * size, values, text, factor * values
        ),
    )
