"""A network as a predictor sees it: its forward operations, each for one sample, without times.

In training, grad_input (unless ``first``) and grad_weight each cost the forward's multiply-adds, of
2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from perfctl.orchestrator.estimate.flops.engine import (
    MOVES,
    NORMS,
    POOLING,
    PRODUCTS,
    SAMPLING,
    find_formula,
)
from perfctl.orchestrator.estimate.flops.formulas import (
    ADDED,
    CONVOLUTIONS,
    count_first_output_elements,
    count_largest_input_elements,
    get_convolution_shapes,
    get_shape_or_empty,
    read_boolean_attribute,
    read_integer_of_attribute,
    read_integers_of_attribute,
)
from perfctl.records.paper import OpShape, Plan, PlanLayer

KINDS = (
    "conv",
    "grouped_conv",
    "transposed_conv",
    "linear",
    "matmul",
    "attention",
    "rnn",
    "norm",
    "activation",
    "elementwise",
    "pool",
    "softmax",
    "loss",
    "memory",
    "other",
)
"""Kinds of work; "other" has no formula, so its multiply-adds are unknown."""

HEAVY = ("conv", "grouped_conv", "transposed_conv", "linear", "matmul", "attention", "rnn")

OPTIMIZERS = ("sgd", "momentum", "adam")

ACTIVATIONS = (
    "relu",
    "gelu",
    "silu",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "leaky_relu",
    "elu",
    "mish",
    "sigmoid",
    "tanh",
    "softplus",
    "celu",
    "selu",
    "log_sigmoid_forward",
    "_prelu_kernel",
    "threshold",
    "hardshrink",
    "softshrink",
    "glu",
    "rrelu_with_noise",
)
SOFTMAX = ("_softmax", "_safe_softmax", "_log_softmax", "logsumexp")
LOSSES = (
    "nll_loss_forward",
    "nll_loss2d_forward",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "soft_margin_loss",
)

Figures = tuple[Any, ...]
"""kind, macs, inputs, outputs, weights, rows, columns, depth, and groups, kernel, stride unless 1;
of the whole batch."""

FAMILY_KINDS = {
    "conv": "conv",
    "linear": "linear",
    "norm": "norm",
    "activation": "activation",
    "max_pool": "pool",
    "mean_pool": "elementwise",
    "add": "elementwise",
    "concat": "memory",
}
"""Kind of a plan's layer -> kind of work; flatten computes and copies nothing."""


class Operation(NamedTuple):
    """One forward operation of a network, for one SAMPLE: batch multiplies rows, inputs, outputs
    and macs, not weights.

    ``macs == groups * rows * columns * depth`` for every product.
    """

    layer: str
    """Dotted module path; "" when not known."""
    kind: str
    """One of :data:`KINDS`."""
    calls: int
    """Identical operations in a step; the figures are for one of them."""
    macs: float
    inputs: float
    """Activation elements read; outputs: written; weights: parameter elements read."""
    outputs: float
    weights: float
    rows: float
    """m of the product per sample: a convolution's output positions, a Linear's rows; 0 without
    a product."""
    columns: float
    """n of the product: output channels or features, of one group."""
    depth: float
    """k of the product: input channels of one group times the kernel's area, or input features."""
    groups: float = 1
    """Independent products of these sizes per sample."""
    kernel: float = 1
    """Area of the window, in elements (convolution, pooling)."""
    stride: float = 1
    first: bool = False
    """The input of the operation needs no gradient: there is no grad_input."""

    @property
    def works_on_weights_only(self) -> bool:
        """Works on parameters alone, such as their standardisation: ``weights`` is all that it
        reads and writes, once a step."""
        return bool(
            self.weights and not self.inputs and not self.outputs and self.kind not in HEAVY
        )

    @property
    def is_counter_update(self) -> bool:
        """Counts something of a module, such as the batches of batch norm: no elements, and
        no gradient."""
        return not (self.macs or self.inputs or self.outputs or self.weights)


@dataclass(frozen=True, slots=True)
class StepSpec:
    """The step to predict."""

    model: str
    family: str
    works: tuple[Operation, ...]
    batch: int
    training: bool
    precision: str
    """fp32, tf32, fp16 or bf16, of the products."""
    optimizer: str
    """One of :data:`OPTIMIZERS`; "" without training."""
    parameters: int
    """Elements of all parameters, shared ones once."""
    channels_last: bool = False
    """Tensors of images lie channels-last in memory (NHWC)."""
    compiled: bool = False
    """The network runs under torch.compile."""

    @property
    def forward_macs_of_batch(self) -> float:
        return self.batch * sum(work.calls * work.macs for work in self.works)


@dataclass(frozen=True, slots=True)
class StepMeasurement:
    """A case and how long its step took on a machine."""

    case: StepSpec
    machine: str
    seconds: float
    low: float
    high: float
    """Spread over the steps: first and third quartile, or the extremes if only those are known."""
    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None
    """Seconds of each phase. None: not measured."""
    peak_bytes: float | None = None
    layer_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(layer, direction) -> seconds of a step. Empty: not measured by layer."""


def get_activation_element_bytes(precision: str) -> int:
    """Of one activation in memory: tf32 is stored as fp32."""
    return {"fp64": 8, "fp16": 2, "bf16": 2, "int8": 1, "fp8": 1}.get(precision, 4)


def list_forward_operations_per_sample(
    ops: Iterable[OpShape], traced_batch: int = 1
) -> tuple[Operation, ...]:
    """Return the forward operations of a step traced at ``traced_batch`` samples, in order, each
    for one sample.

    What works on parameters is told from a result whose first size is 1 at more than one sample: at
    a ``traced_batch`` of 1 it counts as work on that sample. The backward rows show which
    operations need no grad_input; without backward rows it is the first one with weights.
    """
    ordered = sorted(ops, key=lambda op: op.position)
    forward = [
        op
        for op in ordered
        if op.direction == "forward" and not read_boolean_attribute(op, "recompute")
    ]
    backward = [op for op in ordered if op.direction == "backward"]
    makers = (_compute_convolution_sizes, _compute_matrix_product_sizes, _compute_recurrent_sizes)
    weighted = [
        index
        for index, op in enumerate(forward)
        if op.parameters and _choose_operation_size_function(op) in makers
    ]
    needless = [index for index in weighted if not _needs_grad_input(forward[index], backward)]
    first = needless if backward else weighted[:1]
    return tuple(
        _build_per_sample_operation(op, traced_batch, index in first)
        for index, op in enumerate(forward)
    )


def _needs_grad_input(op: OpShape, backward: list[OpShape]) -> bool:
    layer_ops = [each for each in backward if each.layer == op.layer]
    masks = [each for each in layer_ops if "output_mask" in each.attributes]
    if op.op in CONVOLUTIONS:
        return any(
            read_integers_of_attribute(each, "output_mask")[0]
            and get_shape_or_empty(each.inputs, 1) == get_shape_or_empty(op.inputs, 0)
            for each in masks
            if read_integers_of_attribute(each, "output_mask")
        )
    if _choose_operation_size_function(op) is _compute_recurrent_sizes:
        return read_boolean_attribute(op, "needs_input")
    return any(
        each.op in PRODUCTS and each.attributes.get("role") == "grad_input" for each in layer_ops
    )


def _build_per_sample_operation(
    op: OpShape, traced_batch: int, needs_no_grad_input: bool
) -> Operation:
    figures = (*_choose_operation_size_function(op)(op, traced_batch), 1, 1, 1)[:11]
    kind, macs, inputs, outputs, weights, rows, columns, depth, groups, kernel, stride = figures
    if kind not in HEAVY:
        shapes = [shape for shape in (*op.inputs, *op.outputs) if shape is not None]
        is_integer = bool(op.dtypes) and all(name.startswith(("int", "uint")) for name in op.dtypes)
        # the first output with sizes: statistics of a normalisation after it have no batch anyway
        result = next((shape for shape in op.outputs if shape), None)
        if is_integer and not any(shapes):  # a counter, such as ``num_batches_tracked += 1``
            inputs, outputs, weights = 0.0, 0.0, 0.0
        elif traced_batch > 1 and result is not None and result[0] == 1:
            inputs, outputs, weights = 0.0, 0.0, inputs + outputs
    return Operation(
        op.layer,
        kind,
        op.calls,
        macs / traced_batch,
        inputs / traced_batch,
        outputs / traced_batch,
        weights,
        rows / traced_batch,
        columns,
        depth,
        groups,
        kernel,
        stride,
        needs_no_grad_input,
    )


def _choose_operation_size_function(op: OpShape) -> Callable[[OpShape, int], Figures]:
    """Return the function that gives the figures of an operation of this kind."""
    if op.op not in PRODUCTS:
        return _compute_non_product_sizes
    if op.op in CONVOLUTIONS:
        return _compute_convolution_sizes
    if op.op in ("perfctl.lstm", "perfctl.gru", "perfctl.rnn"):
        return _compute_recurrent_sizes
    return _compute_attention_sizes if "attention" in op.op else _compute_matrix_product_sizes


def _compute_convolution_sizes(op: OpShape, batch: int) -> Figures:
    data, weight, result = get_convolution_shapes(op)
    transposed, groups = (
        read_boolean_attribute(op, "transposed"),
        read_integer_of_attribute(op, "groups", 1),
    )
    positions = (data if transposed else result)[2:]
    rows, area = data[0] * prod(positions), prod(weight[2:])
    # In a transposed convolution every input position meets C/g inputs and (K/g x area) weights.
    columns, depth = (
        (weight[1] * area, weight[0] / groups)
        if transposed
        else (weight[0] / groups, prod(weight[1:]))
    )
    kind = "transposed_conv" if transposed else "grouped_conv" if groups > 1 else "conv"
    weights = prod(weight) + (result[1] if read_boolean_attribute(op, "bias") else 0)
    stride = (read_integers_of_attribute(op, "stride") or (1,))[0]
    macs = rows * prod(weight)
    return kind, macs, prod(data), prod(result), weights, rows, columns, depth, groups, area, stride


def _compute_matrix_product_sizes(op: OpShape, batch: int) -> Figures:
    offset = 1 if op.op in ADDED else 0
    first_shape, right = (
        get_shape_or_empty(op.inputs, offset),
        get_shape_or_empty(op.inputs, offset + 1),
    )
    outputs = float(sum(prod(shape) for shape in op.outputs if shape is not None))
    if op.op == "aten.linear":
        right = tuple(reversed(right))
    depth = first_shape[-1] if first_shape else 1
    columns = right[-1] if len(right) > 1 else 1
    if op.op in ("aten.bmm", "aten.baddbmm", "aten.baddbmm_"):
        products = prod(first_shape[:-2])
        # At least one product per sample: fewer cannot be divided by sample.
        groups = products / batch if products >= batch else 1.0
        rows = first_shape[-2] * products / groups
        inputs = float(prod(first_shape) + prod(right))
        return (
            "matmul",
            prod(first_shape) * columns,
            inputs,
            outputs,
            0,
            rows,
            columns,
            depth,
            groups,
        )
    rows, macs = prod(first_shape[:-1]), prod(first_shape) * columns
    if not op.parameters:
        return (
            "matmul",
            macs,
            float(prod(first_shape) + prod(right)),
            outputs,
            0,
            rows,
            columns,
            depth,
        )
    bias = op.op in ADDED or (
        op.op == "aten.linear" and len(op.inputs) > 2 and op.inputs[2] is not None
    )
    return (
        "linear",
        macs,
        prod(first_shape),
        outputs,
        depth * columns + columns * bias,
        rows,
        columns,
        depth,
    )


def _compute_attention_sizes(op: OpShape, batch: int) -> Figures:
    query, key, value = (get_shape_or_empty(op.inputs, index) for index in range(3))
    heads, rows, columns, depth = prod(query[:-2]), query[-2], key[-2], query[-1] + value[-1]
    inputs = float(prod(query) + prod(key) + prod(value))
    macs = heads * rows * columns * depth
    return (
        "attention",
        macs,
        inputs,
        heads * rows * value[-1],
        0,
        rows * batch,
        columns,
        depth,
        heads / batch,
    )


def _compute_recurrent_sizes(op: OpShape, batch: int) -> Figures:
    part = PRODUCTS[op.op](op)[0]
    rows = read_integer_of_attribute(op, "rows")
    columns = {"perfctl.lstm": 4, "perfctl.gru": 3}.get(op.op, 1) * read_integer_of_attribute(
        op, "hidden_size"
    )
    depth = part.macs / (rows * columns) if rows and columns else 0.0
    return (
        "rnn",
        part.macs,
        count_largest_input_elements(op),
        part.output_elements,
        op.parameters,
        rows,
        columns,
        depth,
    )


def _compute_non_product_sizes(op: OpShape, batch: int) -> Figures:
    """Without multiply-adds, or without a formula (kind other)."""
    inputs = float(sum(prod(shape) for shape in op.inputs if shape is not None))
    outputs = float(sum(prod(shape) for shape in op.outputs if shape is not None))
    name = op.op.removeprefix("aten.").removesuffix("_")
    moves = name in MOVES or op.op.removeprefix("aten.") in MOVES or op.op in SAMPLING
    kinds = (
        ("softmax", name in SOFTMAX),
        ("loss", name in LOSSES),
        ("norm", op.op in NORMS),
        ("pool", op.op in POOLING),
        ("activation", name in ACTIVATIONS),
        ("memory", moves),
        ("elementwise", find_formula(op) is not None),
    )
    kind, weights = next((kind for kind, matches in kinds if matches), "other"), 0.0
    if kind == "norm":
        inputs, outputs, weights = (
            float(count_largest_input_elements(op)),
            float(count_first_output_elements(op)),
            float(op.parameters),
        )
    elif op.op in ("aten.embedding", "aten._embedding_bag"):
        inputs = outputs  # the rows looked up, not the table
    kernel = stride = 1.0
    if kind == "pool":
        area = count_largest_input_elements(op) / max(count_first_output_elements(op), 1)
        kernel, stride = max(area, 1.0), float(max(round(area**0.5), 1))
        if window := read_integers_of_attribute(op, "kernel_size"):
            kernel, stride = (
                float(prod(window)),
                float((read_integers_of_attribute(op, "stride") or (1,))[0]),
            )
    return kind, 0, inputs, outputs, weights, 0, 0, 0, 1, kernel, stride


def list_plan_forward_operations(plan: Plan) -> tuple[Operation, ...]:
    """Return the forward operations of one sample, in order, with the loss (cross-entropy) at the
    end."""
    first = next((index for index, layer in enumerate(plan.layers) if layer.parameters), None)
    family_layers = [
        (index, layer) for index, layer in enumerate(plan.layers) if layer.kind in FAMILY_KINDS
    ]
    layers = [_build_plan_operation(layer, index == first) for index, layer in family_layers]
    answers = float(plan.classes)
    return (
        *layers,
        Operation("", "softmax", 1, 0.0, answers, answers, 0.0, 0.0, 0.0, 0.0),
        # answers and one target in, one loss out
        Operation("", "loss", 1, 0.0, answers + 1, 1.0, 0.0, 0.0, 0.0, 0.0),
    )


def _build_plan_operation(layer: PlanLayer, needs_no_grad_input: bool) -> Operation:
    product = layer.forward_macs_per_sample > 0
    area = float(layer.kernel**2) if layer.kind in ("conv", "max_pool") else 1.0
    # the largest of a window and its place
    written = layer.output_elements * (2 if layer.kind == "max_pool" else 1)
    return Operation(
        layer=layer.name,
        kind=FAMILY_KINDS[layer.kind],
        calls=1,
        macs=float(layer.forward_macs_per_sample),
        inputs=float(layer.all_input_elements),
        outputs=float(written),
        weights=float(layer.parameters),
        rows=float(product * layer.gives[1] * layer.gives[2]),
        columns=float(product * layer.gives[0]),
        depth=float(product * layer.given[0] * layer.kernel**2),
        kernel=area,
        stride=float(layer.stride),
        first=needs_no_grad_input,
    )
