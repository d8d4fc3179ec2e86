"""Records of a worked sheet; sheets of convolutions, linear layers, and layers without
multiply-adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import prod
from operator import floordiv, mul

from perfctl.orchestrator.estimate.flops.engine import find_formula
from perfctl.orchestrator.estimate.flops.formulas import (
    ADDED,
    BIAS_AT,
    IN_LETTERS,
    KERNEL_LETTERS,
    OUT_LETTERS,
    Shape,
    format_factors,
    get_convolution_shapes,
    get_left_factor_shape,
    get_shape_or_empty,
    pair_shapes_with_item_bytes,
    read_boolean_attribute,
    read_integer_of_attribute,
    read_integers_of_attribute,
)
from perfctl.records.paper import OpShape

SIDES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}

NORMS = {
    "aten.native_batch_norm": "batch",
    "aten.cudnn_batch_norm": "batch",
    "aten.miopen_batch_norm": "batch",
    "aten._batch_norm_with_update": "batch",
    "aten._native_batch_norm_legit": "batch",
    "aten._native_batch_norm_legit_no_training": "batch",
    "aten.native_layer_norm": "layer",
    "aten.native_group_norm": "group",
}

POOLS = (
    "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices",
    "aten.avg_pool2d",
    "aten.avg_pool3d",
)


Slip = tuple[str, str]
"""What it is about, and its text."""


@dataclass(frozen=True, slots=True)
class SheetLine:
    """One line: a quantity, its formula in letters, with numbers, and the result with its
    unit."""

    quantity: str
    formula: str
    numbers: str
    result: str


@dataclass(frozen=True, slots=True)
class WorkedWay:
    """One way to work the layer's forward pass: the right one, or one with a slip."""

    slips: tuple[str, ...]
    terms: tuple[Shape, ...]
    """A sum of products, for one sample; the batch multiplies all of them."""
    outputs: int
    names: tuple[tuple[str, int], ...] = ()
    """(name, size) of factors, or products of neighbours, that may be off by one."""
    shape: Shape = ()
    """Sizes whose product is ``outputs``; empty if they are not told apart."""
    about: str = "terms"
    """What the slip is about: positions, channels, ..."""
    second_about: str = ""
    """What the second slip is about, of two whose factors do not multiply: each changes the size
    that the other starts from."""

    @property
    def macs_per_sample(self) -> int:
        """Multiply-adds of one sample."""
        return sum(prod(term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class ManualCheckFacts:
    """What a hand value is checked against."""

    batch: int
    weights: int
    biases: int
    bias: bool
    """Whether every output value gets a bias added."""
    ways: tuple[WorkedWay, ...]
    """The right one first."""
    step: int = 0
    """Multiply-adds of forward and backward together; 0 if only forward was seen."""
    item: int = 0
    """Bytes of one output value; 0 if the sheet has no output."""

    @property
    def forward_macs_of_batch(self) -> int:
        """Multiply-adds of the forward pass of the whole batch."""
        return self.batch * self.ways[0].macs_per_sample


@dataclass(frozen=True, slots=True)
class SheetTensor:
    """A tensor: its name, its sizes, bytes of one value."""

    what: str
    sizes: Shape
    item: int


@dataclass(frozen=True, slots=True)
class WorkedLayer:
    """One layer's forward pass, worked."""

    shapes: tuple[SheetLine, ...]
    steps: tuple[SheetLine, ...]
    space: tuple[SheetTensor, ...]
    facts: ManualCheckFacts | None = None


def make_shape_line(
    caption: str, sizes: Sequence[int], letters: str = "", numbers: str = ""
) -> SheetLine:
    """Return the line of a tensor: (64, 24, 24) is "64 x 24 x 24", a single value is "1"."""
    return SheetLine(caption, letters, numbers, format_factors(*sizes) or "1")


def make_product_line(
    caption: str, formula: str, factors: Sequence[int], unit: str = ""
) -> SheetLine:
    """Return the line of a product: its factors, and what they make in ``unit``."""
    return SheetLine(
        caption, formula, format_factors(*factors), f"{prod(factors):,} {unit}".rstrip()
    )


def make_flop_and_bias_lines(
    macs: int, has_bias: bool = False, output_value_count: int = 0
) -> tuple[SheetLine, ...]:
    """Return the line that turns multiply-adds into FLOPs, and that of the bias additions if the
    layer has a bias.

    ``output_value_count``: output values, each with one addition.
    """
    line = make_product_line("in FLOP", "2 x MAC", (2, macs), "FLOP")
    if not has_bias:
        return (line,)
    return line, make_product_line(
        "bias, not included", "1 addition per value", (output_value_count,), "FLOP"
    )


def select_nonempty_tensors(
    op: OpShape, *tensor_roles: tuple[str, str, int]
) -> tuple[SheetTensor, ...]:
    """Return the tensors of an operation, of (name, "in" or "out", index): those that it has and
    that are not empty."""
    tensors = pair_shapes_with_item_bytes(op)
    sides = {"in": tensors.inputs, "out": tensors.outputs}
    items = []
    for caption, side, index in tensor_roles:
        tensor = sides[side][index] if index < len(sides[side]) else None
        if tensor is not None and 0 not in tensor[0]:
            items.append(SheetTensor(caption, *tensor))
    return tuple(items)


def read_window_setting_per_dimension(
    op: OpShape, name: str, rank: int, default: int = 0
) -> tuple[int, ...]:
    """Return a setting of a window in each of ``rank`` dimensions."""
    values = read_integers_of_attribute(op, name) or (default,)
    return values * rank if len(values) == 1 else values


def make_output_size_lines(
    names: Sequence[str],
    window_sizes_by_dimension: Sequence[Sequence[int]],
    is_transposed: bool = False,
    is_ceil_mode: bool = False,
) -> list[SheetLine]:
    """Return a line for the output size of a window in each dimension.

    ``window_sizes_by_dimension``: input, kernel, stride, padding, dilation, output;
    ``is_ceil_mode``: ceil_mode.
    """
    lines = []
    for name, (size, kernel, stride, padding, dilation, result) in zip(
        names, window_sizes_by_dimension, strict=True
    ):
        span = dilation * (kernel - 1) + 1
        width = f"({dilation}x({kernel} - 1) + 1)" if dilation > 1 else f"{kernel}"
        if is_transposed:
            extra = result - ((size - 1) * stride - 2 * padding + span)
            formula = "(input - 1) stride + kernel - 2 padding"
            formula += " + output padding" if extra else ""
            suffix = f" + {extra}" if extra else ""
            numbers = f"({size} - 1)x{stride} + {width} - 2x{padding}{suffix}"
        else:
            exact = (size - span + 2 * padding) % stride == 0
            rounded = "" if exact else ", rounded up" if is_ceil_mode else ", rounded down"
            formula = f"(input - kernel + 2 padding)/stride + 1{rounded}"
            numbers = f"({size} - {width} + 2x{padding})/{stride} + 1"
        lines.append(SheetLine(name, formula, numbers, f"{result:,}"))
    return lines


def make_tensor_size_lines(sheet_tensors: Sequence[SheetTensor]) -> tuple[SheetLine, ...]:
    """Return values and bytes of each tensor, and of all."""
    lines, values, size = [], 0, 0
    for item in sheet_tensors:
        count = prod(item.sizes)
        values, size = values + count, size + count * item.item
        product = f"{format_factors(*item.sizes)} = " if len(item.sizes) > 1 else ""
        text = f"{product}{count:,} values x {item.item} B"
        lines.append(SheetLine(item.what, "values x bytes", text, f"{count * item.item:,} B"))
    if len(lines) > 1:
        total = f"{size:,} B = {size / 1024:,.1f} KiB"
        lines.append(SheetLine("total", "sum", f"{values:,} values", total))
    return tuple(lines)


def build_convolution_worksheet(op: OpShape) -> WorkedLayer:
    """Return the sheet of aten.convolution, transposed or not.

    A transposed convolution spreads every input value over a kernel, so the input's positions
    count instead of the output's.
    """
    data, weight, result = get_convolution_shapes(op)
    transposed, bias = read_boolean_attribute(op, "transposed"), read_boolean_attribute(op, "bias")
    groups, rank = read_integer_of_attribute(op, "groups", 1), len(weight) - 2
    settings = [
        read_window_setting_per_dimension(op, name, rank)
        for name in ("stride", "padding", "dilation")
    ]
    side, inner, channels, letters = "output", "C/g", "K", OUT_LETTERS[rank]
    if transposed:
        side, inner, channels, letters = "input", "K/g", "C", IN_LETTERS[rank]
    shapes = [make_shape_line("input", data, "N x C x ...")]
    if groups > 1:
        depthwise = ", depthwise" if weight[1] == 1 and not transposed else ""
        numbers = f"{weight[1] * groups:,}/{groups:,}"
        shapes.append(
            SheetLine("channels per group", f"{inner}{depthwise}", numbers, f"{weight[1]:,}")
        )
    names = [f"output {OUT_LETTERS[rank][axis]} ({name})" for axis, name in enumerate(SIDES[rank])]
    sides = list(zip(data[2:], weight[2:], *settings, result[2:], strict=True))
    shapes += [
        *make_output_size_lines(names, sides, transposed),
        make_shape_line("output", result, "N x K x ..."),
    ]
    values = data if transposed else result
    macs_per_value, sample, batch = prod(weight[1:]), prod(values[1:]), prod(values)
    kernel, positions = " x ".join(KERNEL_LETTERS[rank]), " x ".join((channels, *letters))
    steps = (
        make_product_line(f"for one {side} value", f"{inner} x {kernel}", weight[1:], "MAC"),
        make_product_line(f"{side} values, one sample", positions, values[1:]),
        make_product_line("one sample", "values x MAC", (sample, macs_per_value), "MAC"),
        make_product_line(f"{side} values, whole batch", f"N x {positions}", values),
        make_product_line("whole batch", "values x MAC", (batch, macs_per_value), "MAC"),
        *make_flop_and_bias_lines(batch * macs_per_value, bias, prod(result)),
    )
    if transposed:
        ways = list_deconv_macs_with_mistakes(data, weight, result, groups)
    else:
        ways = list_conv_macs_with_mistakes(weight, result[2:], data[2:], settings, groups)
    tensor_roles = [("weights", "in", 1), *([("biases", "in", 2)] if bias else [])]
    space = select_nonempty_tensors(op, *tensor_roles, ("output map", "out", 0))
    facts = ManualCheckFacts(data[0], prod(weight), result[1] if bias else 0, bias, ways)
    return WorkedLayer(tuple(shapes), steps, space, facts)


def list_conv_macs_with_mistakes(
    weight: Shape,
    positions: Shape,
    input_size: Shape,
    settings: list[tuple[int, ...]],
    groups: int = 1,
) -> tuple[WorkedWay, ...]:
    """Return the right way; groups, channels, sides of the kernel or positions left out; stride or
    padding left out; the input's size for the output's; the input after or before a pooling; two
    of those that change the positions.

    ``weight`` K, C/g, R, S ...; ``positions`` P, Q ...; ``input_size`` H, W ...; ``settings``
    stride, padding, dilation.
    """
    strides, paddings, dilations = settings

    def list_wrong_output_sizes(
        window_input_size: Shape, right_output_size: Shape
    ) -> dict[str, Shape]:
        """Return the positions that a mistake makes of an input of this size."""
        dense = tuple(
            map(
                compute_window_output_size,
                window_input_size,
                weight[2:],
                repeat(1),
                paddings,
                dilations,
            )
        )
        inner = tuple(
            map(
                compute_window_output_size,
                window_input_size,
                weight[2:],
                strides,
                repeat(0),
                dilations,
            )
        )
        right = _format_map_size(right_output_size)
        slips = {
            f"stride left out ({_format_map_size(dense)} positions, not {right})": dense,
            f"padding left out ({_format_map_size(inner)} positions, not {right})": inner,
            f"output {_format_map_size(window_input_size)} instead of {right}": window_input_size,
        }
        distinct: dict[Shape, str] = {}
        for slip, other in slips.items():
            if all(other) and other != right_output_size:
                distinct.setdefault(other, slip)
        return {slip: other for other, slip in distinct.items()}

    ways: list[WorkedWay] = []
    pairs: list[WorkedWay] = []
    ways.append(_calculate_conv("terms", "", weight, positions))
    ways += _list_calculations_with_omitted_size(ways[0], weight, positions)
    for pool in (2, 3, 4):
        for scale in (floordiv, mul):
            sizes = tuple(scale(size, pool) for size in input_size)
            if all(other := tuple(map(compute_window_output_size, sizes, weight[2:], *settings))):
                about = "pooling" if (pool, scale) == (2, floordiv) else "wider pooling"
                pooled = (
                    f"input {_format_map_size(sizes)} instead of {_format_map_size(input_size)}"
                )
                ways.append(_calculate_conv(about, pooled, weight, other))
                for slip, places in list_wrong_output_sizes(sizes, other).items():
                    pairs.append(
                        _calculate_conv_with_two_mistakes(
                            (about, pooled), ("positions", slip), weight, places
                        )
                    )
    if groups > 1:
        dense_weight = (weight[0], weight[1] * groups, *weight[2:])
        omitted = f"the division by {groups} groups left out"
        ways.append(_calculate_conv("groups", omitted, dense_weight, positions))
    slips = list_wrong_output_sizes(tuple(input_size), tuple(positions))
    for slip, other in slips.items():
        ways.append(_calculate_conv("positions", slip, weight, other))
    both = tuple(
        map(compute_window_output_size, input_size, weight[2:], repeat(1), repeat(0), dilations)
    )
    if len(slips) > 1 and both not in (positions, *slips.values()) and all(both):
        pairs.append(
            _calculate_conv_with_two_mistakes(
                ("positions", "stride left out"), ("positions", "padding left out"), weight, both
            )
        )
    return (*ways, *pairs)


def _calculate_conv(
    mistake_topic: str, mistake_text: str, weight: Shape, positions: Shape
) -> WorkedWay:
    kernel, place_count = _format_map_size(weight[2:]), prod(positions)
    names = (
        (f"{weight[0]} output channels", weight[0]),
        (_format_map_size(positions), place_count),
        (f"the {kernel} kernel", prod(weight[2:])),
        (f"{weight[1]} input channels", weight[1]),
        (f"one side of {positions[0]}", positions[0]),
        (f"one output value's {_format_map_size(weight[1:])}", prod(weight[1:])),
    )
    outputs, shape = weight[0] * place_count, (weight[0], *positions)
    slips = (mistake_text,) if mistake_text else ()
    return WorkedWay(slips, ((*weight, *positions),), outputs, names, shape, mistake_topic)


def _calculate_conv_with_two_mistakes(
    first: Slip, second: Slip, weight: Shape, positions: Shape
) -> WorkedWay:
    (about, slip), (second_about, second_slip) = first, second
    outputs, shape = weight[0] * prod(positions), (weight[0], *positions)
    terms = ((*weight, *positions),)
    return WorkedWay((slip, second_slip), terms, outputs, (), shape, about, second_about)


def _list_calculations_with_omitted_size(
    right_calculation: WorkedWay, weight: Shape, positions: Shape
) -> Iterator[WorkedWay]:
    """Yield the ways in which one size of a convolution is left out."""
    first, second, *kernel = weight
    sizes = [
        ("channels", f"the {first} output channels left out", (second, *kernel, *positions), first),
        ("channels", f"the {second} input channels left out", (first, *kernel, *positions), 1),
    ]
    if len(kernel) > 1:
        side = f"one side of the {_format_map_size(kernel)} kernel left out"
        sizes.append(("kernel", side, (first, second, *kernel[1:], *positions), 1))
        side = f"one side of the {_format_map_size(positions)} positions left out"
        sizes.append(("map", side, (*weight, *positions[1:]), positions[0]))
    sizes.append(
        (
            "kernel",
            f"the {_format_map_size(kernel)} kernel left out",
            (first, second, *positions),
            1,
        )
    )
    sizes.append(
        ("map", f"the {_format_map_size(positions)} positions left out", weight, prod(positions))
    )
    for about, slip, term, left_out in sizes:
        if prod(term) != right_calculation.macs_per_sample:
            outputs = (
                right_calculation.outputs // left_out
                if right_calculation.shape
                else right_calculation.outputs
            )
            yield WorkedWay((slip,), (term,), outputs, about=about)


def compute_window_output_size(
    size: int, kernel: int, stride: int, padding: int, dilation: int = 1
) -> int:
    """Return (input - kernel + 2 padding)/stride + 1 with the dilated kernel; 0 if it does not
    fit."""
    return max(0, (size - (dilation * (kernel - 1) + 1) + 2 * padding) // stride + 1)


def _format_map_size(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def list_deconv_macs_with_mistakes(
    input_shape: Shape, weight: Shape, output_shape: Shape, groups: int
) -> tuple[WorkedWay, ...]:
    """Return the right way; the output's positions instead of the input's; groups left out."""
    outputs = prod(output_shape[1:])
    wrong, right = _format_map_size(output_shape[2:]), _format_map_size(input_shape[2:])
    names = (
        (f"{weight[0]} input channels", weight[0]),
        (right, prod(input_shape[2:])),
        (f"the {_format_map_size(weight[2:])} kernel", prod(weight[2:])),
        (f"{weight[1]} output channels", weight[1]),
    )
    slip = f"positions of the output ({wrong}) instead of the input's ({right})"
    ways = [
        WorkedWay((), ((*weight, *input_shape[2:]),), outputs, names),
        WorkedWay((slip,), ((*weight, *output_shape[2:]),), outputs, names, about="positions"),
    ]
    if groups > 1:
        dense = (weight[0], weight[1] * groups, *weight[2:], *input_shape[2:])
        slip = f"the division by {groups} groups left out"
        ways.append(WorkedWay((slip,), (dense,), outputs, about="groups"))
    for way in _list_calculations_with_omitted_size(
        ways[0], (weight[1], weight[0], *weight[2:]), input_shape[2:]
    ):
        ways.append(way)
    return tuple(ways)


def build_linear_worksheet(op: OpShape, module_output_shape: Shape | None = None) -> WorkedLayer:
    """Return the sheet of aten.addmm(bias, rows, weight), aten.mm(rows, weight) or
    aten.linear(data, weight, bias).

    The dispatcher sees the leading dimensions flattened to rows; ``module_output_shape`` has them.
    """
    first, bias_at = (1, 0) if op.op in ADDED else (0, BIAS_AT.get(op.op, -1))
    data, weight = get_left_factor_shape(op), get_shape_or_empty(op.inputs, first + 1)
    ins, outs = (weight[-1], weight[0]) if op.op == "aten.linear" else (weight[0], weight[1])
    rows, leading = prod(data[:-1]), data[:-1] or (1,)
    if (
        module_output_shape is not None
        and module_output_shape[:-1]
        and prod(module_output_shape[:-1]) == rows
    ):
        leading = module_output_shape[:-1]
    has_bias_operand = 0 <= bias_at < len(op.inputs) and op.inputs[bias_at] is not None
    bias = has_bias_operand or op.parameters == ins * outs + outs
    shapes = (
        make_shape_line("input", (*leading, ins), "... x in"),
        make_product_line("rows", "product of the leading sizes", leading),
        make_shape_line("output", (*leading, outs), "... x out"),
    )
    steps = (
        make_product_line("for one output value", "in", (ins,), "MAC"),
        make_product_line("one row", "in x out", (ins, outs), "MAC"),
        make_product_line("output values", "rows x out", (rows, outs)),
        make_product_line("whole batch", "rows x in x out", (rows, ins, outs), "MAC"),
        *make_flop_and_bias_lines(rows * ins * outs, bias, rows * outs),
    )
    ways = list_linear_macs_with_mistakes(leading[1:], ins, outs)
    facts = ManualCheckFacts(leading[0], ins * outs, outs if bias else 0, bias, ways)
    weights, *other_items = select_nonempty_tensors(
        op, ("weights", "in", first + 1), ("output map", "out", 0)
    )
    biases = [SheetTensor("biases", (outs,), weights.item)] if bias else []
    return WorkedLayer(shapes, steps, (weights, *biases, *other_items), facts)


def list_linear_macs_with_mistakes(
    leading_sizes_without_batch: Shape, input_features: int, output_features: int
) -> tuple[WorkedWay, ...]:
    """Return the right way; one size used twice; ``leading_sizes_without_batch`` left out; sizes
    added."""
    names = (
        (f"{input_features} inputs", input_features),
        (f"{output_features} outputs", output_features),
    )
    values = prod(leading_sizes_without_batch) * output_features
    ways = [
        WorkedWay(
            (), ((*leading_sizes_without_batch, input_features, output_features),), values, names
        )
    ]
    if prod(leading_sizes_without_batch) > 1:
        slip = f"the {format_factors(*leading_sizes_without_batch)} rows of each sample left out"
        ways.append(
            WorkedWay(
                (slip,),
                ((input_features, output_features),),
                output_features,
                names,
                about="positions",
            )
        )
    for size, name, other_size in (
        (input_features, "inputs", output_features),
        (output_features, "outputs", input_features),
    ):
        if size > 1:
            slip = f"the {size} {name} left out"
            outputs = values if name == "inputs" else prod(leading_sizes_without_batch)
            ways.append(
                WorkedWay(
                    (slip,),
                    ((*leading_sizes_without_batch, other_size),),
                    outputs,
                    about="channels",
                )
            )
        if input_features != output_features:
            slip = (
                f"{name} used twice ({size} x {size} instead of {input_features} x "
                f"{output_features})"
            )
            ways.append(
                WorkedWay(
                    (slip,), ((*leading_sizes_without_batch, size, size),), values, about="sizes"
                )
            )
    slip = f"sizes added instead of multiplied ({input_features} + {output_features})"
    return (
        *ways,
        WorkedWay(
            (slip,),
            ((*leading_sizes_without_batch, input_features + output_features),),
            values,
            about="sizes",
        ),
    )


def build_embedding_worksheet(op: OpShape) -> WorkedLayer:
    """Return the sheet of aten.embedding(table, indices): a lookup."""
    table, indices, result = (
        get_shape_or_empty(op.inputs, 0),
        get_shape_or_empty(op.inputs, 1),
        get_shape_or_empty(op.outputs, 0),
    )
    text, width = format_factors(*indices) or "1", table[-1]
    rows = prod(indices)
    shapes = (
        make_shape_line("indices", indices),
        make_shape_line("table", table, "entries x E"),
        make_shape_line("output", result, "indices x E", f"{text} x {width:,}"),
    )
    steps = (
        SheetLine("rows looked up", "product of the indices' sizes", text, f"{rows:,}"),
        make_product_line("values copied", "rows x E", (rows, width)),
        SheetLine("operations", "a lookup multiplies nothing", "", "0 MAC"),
    )
    return WorkedLayer(
        shapes, steps, select_nonempty_tensors(op, ("table", "in", 0), ("output map", "out", 0))
    )


def build_norm_worksheet(op: OpShape) -> WorkedLayer:
    """Return the sheet of batch, instance, layer and group norm: which values share a mean, and
    the work on each value."""
    data, kind = get_shape_or_empty(op.inputs, 0), NORMS[op.op]
    values = prod(data)
    if kind == "layer":
        formula, shared = (
            "normalised sizes",
            read_integers_of_attribute(op, "normalized_shape") or data[-1:],
        )
        means = values // prod(shared)
    elif kind == "group":
        groups = read_integer_of_attribute(op, "group", 1)
        formula, shared = "C/g x positions", (data[1] // groups, *data[2:])
        means = data[0] * groups
    else:
        formula, shared = "N x positions of a channel", (data[0], *data[2:])
        means = data[1]
    shapes = (
        make_shape_line("input", data),
        make_product_line("values that share a mean", formula, shared),
        SheetLine(
            "means and variances",
            "values / those that share",
            f"{values:,}/{prod(shared):,}",
            f"{means:,}",
        ),
        make_shape_line("output", get_shape_or_empty(op.outputs, 0), "as the input"),
    )
    weights_at = 2 if kind == "layer" else 1
    tensor_roles = [("weights", "in", weights_at), ("biases", "in", weights_at + 1)]
    if kind == "batch":
        tensor_roles += [("running mean", "in", 3), ("running variance", "in", 4)]
    tensor_roles.append(("output map", "out", 0))
    work = {"normalize with the running statistics": 2}
    if (
        kind != "batch"
        or read_boolean_attribute(op, "training")
        or op.op == "aten._batch_norm_with_update"
    ):
        work = {"mean": 1, "variance": 3, "normalise": 2}
        tensor_roles += [
            ("mean, kept for backward", "out", 1),
            ("1/deviation, kept for backward", "out", 2),
        ]
    work["scale and shift"] = 2
    total = f"{sum(work.values()) * values:,} FLOP"
    steps = (
        *(
            make_product_line(caption, f"{flops} per value", (flops, values), "FLOP")
            for caption, flops in work.items()
        ),
        SheetLine("total, elementwise", "no multiply-adds", "", total),
    )
    return WorkedLayer(shapes, steps, select_nonempty_tensors(op, *tensor_roles))


def build_pooling_worksheet(op: OpShape) -> WorkedLayer:
    """Return the sheet of max and average pooling: a window for each output value."""
    rank = 3 if "3d" in op.op else 2
    data, result = get_shape_or_empty(op.inputs, 0), get_shape_or_empty(op.outputs, 0)
    kernel = read_window_setting_per_dimension(op, "kernel_size", rank, 1)
    strides = [
        stride or size
        for stride, size in zip(
            read_window_setting_per_dimension(op, "stride", rank), kernel, strict=True
        )
    ]
    padding, dilation = (
        read_window_setting_per_dimension(op, "padding", rank),
        read_window_setting_per_dimension(op, "dilation", rank, 1),
    )
    sides = list(zip(data[-rank:], kernel, strides, padding, dilation, result[-rank:], strict=True))
    names = [f"output {side}" for side in SIDES[rank]]
    shapes = (
        make_shape_line("input", data),
        *make_output_size_lines(names, sides, is_ceil_mode=read_boolean_attribute(op, "ceil_mode")),
        make_shape_line("output", result),
    )
    window, values = prod(kernel), prod(result)
    noun = "comparisons" if "max" in op.op else "additions"
    steps = (
        make_product_line("for one output value", f"window, {noun}", kernel),
        SheetLine("output values", "product of the sizes", shapes[-1].result, f"{values:,}"),
        make_product_line("total, elementwise", "values x window", (values, window), "FLOP"),
        SheetLine("operations", "no multiply-adds, no weights", "", "0 MAC"),
    )
    indices = ("indices of the maxima, kept for backward", "out", 1)
    return WorkedLayer(
        shapes, steps, select_nonempty_tensors(op, ("output map", "out", 0), indices)
    )


def build_operation_list_worksheet(ops: Sequence[OpShape]) -> WorkedLayer:
    """Return the sheet of anything else: one line for each operation."""
    steps = []
    for op in ops:
        text, result = f"no formula for {op.op}", "not counted"
        if formula := find_formula(op):
            part = formula(op)[0]
            text = part.text
            result = f"{part.macs:,} MAC" if part.macs else f"{part.elementwise:,} FLOP"
        name = op.op.removeprefix("aten.").removeprefix("perfctl.").rstrip("_")
        steps.append(SheetLine(name, text, "", result))
    shapes = (
        make_shape_line("input", get_shape_or_empty(ops[0].inputs, 0)),
        make_shape_line("output", get_shape_or_empty(ops[-1].outputs, 0)),
    )
    return WorkedLayer(
        shapes, tuple(steps), select_nonempty_tensors(ops[-1], ("output map", "out", 0))
    )
