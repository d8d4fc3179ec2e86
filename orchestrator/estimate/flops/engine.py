"""Estimated FLOPs: shapes in, one row for each layer and direction out.

All operations of a torch.nn layer form one row per direction. A functional operation is a row of
its parent module, with its own name as kind. An operation without a formula is a row whose ``macs``
is None and whose formula says so.

Work by type says which type the inputs of each product have, as the tensor cores or CUDA cores
take them.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path

from perfctl.orchestrator.estimate.flops import formulas, leading
from perfctl.orchestrator.estimate.flops.formulas import (
    ADDED,
    CONVOLUTIONS,
    FUSED,
    CallWork,
    Formula,
    Works,
    get_shape_or_empty,
    pair_shapes_with_item_bytes,
    read_integer_of_attribute,
)
from perfctl.records.paper import LayerCall, OpShape

SHORT = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "complex128": "fp64",
    "complex64": "fp32",
    "complex32": "fp16",
}
"""torch's name -> the name of the precision; complex numbers are pairs of real ones."""
UNKNOWN = "not known"
_WIDTH = {"fp8": 1, "fp16": 2, "bf16": 2, "fp32": 3, "fp64": 4}
CAST = "aten._to_copy"
_TF32 = (
    *CONVOLUTIONS,
    "aten.convolution_backward",
    "aten.convolution_backward_overrideable",
    "torchvision.deform_conv2d",
    "torchvision._deform_conv2d_backward",
    *(f"perfctl.{kind}{side}" for kind in ("lstm", "gru", "rnn") for side in ("", "_backward")),
    "aten.mm",
    "aten.bmm",
    "aten.matmul",
    "aten.linear",
    "aten.linear_backward",
    "aten.addmm",
    "aten.addmm_",
    "aten._addmm_activation",
    "aten.baddbmm",
    "aten.baddbmm_",
    "aten.addbmm",
    "aten.addbmm_",
    "aten._euclidean_dist",
)
"""Products of float32 that cuBLAS and cuDNN run on TF32 where it is allowed. Not: attention, whose
kernels ignore the switch, products with a vector, sparse products.
https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices"""


def _read_formula_table() -> dict[str, dict[str, Formula]]:
    """Group -> operation -> formula, from operations.csv; a name without a namespace is one
    of aten."""
    groups: dict[str, dict[str, Formula]] = defaultdict(dict)
    lines = Path(__file__).with_name("operations.csv").read_text(encoding="utf-8").splitlines()
    for group, function, factor, operations in csv.reader(lines[1:]):
        name = f"count_{function}"
        formula = getattr(formulas, name, None) or getattr(leading, name)
        names = (name if "." in name else f"aten.{name}" for name in operations.split())
        groups[group].update(
            dict.fromkeys(names, partial(formula, factor=int(factor)) if factor else formula)
        )
    return groups


OPERATIONS = _read_formula_table()
PRODUCTS, NORMS, POOLING, SAMPLING = (
    OPERATIONS[group] for group in ("products", "norms", "pooling", "sampling")
)
MOVES = tuple(name.removeprefix("aten.") for name in OPERATIONS["moves"])
"""aten operations that move, draw or choose values: bytes, and no FLOPs."""
TABLE: dict[str, Formula] = {
    name: formula for group in OPERATIONS.values() for name, formula in group.items()
}
TABLE |= {f"optim.{name}": formulas.count_optimizer_step for name in formulas.WORK}


def find_formula(op: OpShape) -> Formula | None:
    """The formula of an operation; None when it has none: its FLOPs are unknown, not 0."""
    if op.op in TABLE:
        return TABLE[op.op]
    if op.op.startswith(("aten._foreach_", "aten._amp_foreach")):
        return formulas.count_foreach_operation
    return formulas.count_per_output if op.attributes.get("pointwise") else None


FRIENDLY = {
    "addmm": "linear",
    "mm": "matmul",
    "bmm": "matmul",
    "baddbmm": "matmul",
    "mv": "matmul",
    "dot": "matmul",
    "native_batch_norm": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_batch_norm_with_update": "batch_norm",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "max_pool2d_with_indices": "max_pool2d",
    "max_pool3d_with_indices": "max_pool3d",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "_safe_softmax": "softmax",
    "_to_copy": "to",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "_adaptive_avg_pool3d": "adaptive_avg_pool3d",
    "native_dropout": "dropout",
}

SHOWN_TERMS = 4


_Key = tuple[str, str, str]
_Parts = list[tuple[OpShape, CallWork]]


@dataclass(frozen=True, slots=True)
class WorkTotals:
    """Sums over layer calls."""

    JSON_KEYS = ("*", "is_lower_bound")

    macs: int
    flops: int
    elementwise_flops: int
    missing: tuple[tuple[str, int], ...]
    """Operations without a formula, which no sum includes, each with its calls."""

    @property
    def is_lower_bound(self) -> bool:
        """Whether the sums are lower bounds, because an operation has no formula."""
        return bool(self.missing)

    def __str__(self) -> str:
        """Return "at least 10 MAC = 20 FLOP"."""
        return (
            f"{'at least ' if self.is_lower_bound else ''}{self.macs:,} MAC = {self.flops:,} FLOP"
        )


def build_layer_calls_with_flops(ops: Iterable[OpShape]) -> tuple[LayerCall, ...]:
    """Return the rows of all operations, in the order of the network, forward before backward."""
    rows: dict[_Key, _Parts] = {}
    unknown: dict[_Key, list[OpShape]] = {}
    operators = set()
    for op in ops:
        if op.attributes.get("row"):
            operators.add(op.layer)
        forward = "recompute" if op.attributes.get("recompute") else "forward"
        parts = compute_work_by_formula(op)
        if parts is None:
            direction = forward if op.direction == "forward" else op.direction
            key = (op.layer, make_friendly_operator_name(op.op, op), direction)
            unknown.setdefault(key, []).append(op)
        for part in parts or ():
            direction = forward if part.direction == "forward" else part.direction
            key = (op.layer, get_layer_or_operation_name(op) + part.label, direction)
            rows.setdefault(key, []).append((op, part))
    owners = _find_parameter_kind_by_layer(rows)
    calls = [_build_layer_call(key, parts, owners) for key, parts in rows.items()]
    calls += [_build_call_without_formula(key, group) for key, group in unknown.items()]
    calls += _build_unseen_forward_rows([call for call in calls if call.layer not in operators])
    return tuple(sorted(calls, key=lambda call: call.position if call.position is not None else 0))


def compute_work_by_formula(op: OpShape) -> Works | None:
    """The parts of an operation; None where it has no formula, or one that does not fit
    these shapes."""
    formula = find_formula(op)
    if formula is None or "missed" in op.attributes:
        return None
    try:
        parts = formula(op)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    return tuple(formulas.adjust_complex_and_integer_work(op, part) for part in parts)


UNSEEN = "forward of "
"""Start of the kind of a row that stands for a forward that was not seen."""


def _build_unseen_forward_rows(calls: Sequence[LayerCall]) -> list[LayerCall]:
    """A layer whose backward multiplies while its forward does not: its forward was not
    seen whole."""
    work: dict[str, Counter[str]] = defaultdict(Counter)
    reported_layers = set()
    for call in calls:
        side = "backward" if call.direction in BACKWARD else call.direction
        work[call.layer][side] += call.macs or 0
        if call.macs is None and side == "forward":
            reported_layers.add(call.layer)
    calls_ = []
    for layer, sides in work.items():
        if (
            not sides["backward"]
            or sides["forward"]
            or sides["recompute"]
            or layer in reported_layers
        ):
            continue
        first = min(
            (call for call in calls if call.layer == layer), key=lambda call: call.position or 0
        )
        reason = (
            f"perfctl did not see the forward pass, but backward has {sides['backward']:,} "
            "multiply-adds"
        )
        row = first._replace(
            kind=f"{UNSEEN}{layer or 'the model'}",
            direction="forward",
            formula=reason,
            parameters=0,
        )
        row = row._replace(macs=None, flops=None, elementwise_flops=None, calls=1)
        calls_.append(row._replace(read_bytes=0, write_bytes=0, output_elements=0))
    return calls_


def count_integer_macs(ops: Iterable[OpShape]) -> int:
    """Return the multiply-adds of matrix products of integers, which are no FLOPs."""
    macs = 0
    for op in ops:
        formula = TABLE.get(op.op)
        if (
            formula in (formulas.count_matrix_product, formulas.count_linear)
            and formulas.is_integer_product(op)
            and "missed" not in op.attributes
        ):
            macs += op.calls * sum(part.macs for part in formula(op))
    return macs


def select_countable_operations(
    ops: Iterable[OpShape], *, was_executed: bool = False
) -> Iterator[OpShape]:
    """Yield the operations that count: each autograd.Function that the user registered instead of
    what ran in it, and no others. What perfctl could not read in another one has its name. Which
    backend ran attention is left open unless the step ``was_executed``: the device chooses it."""
    for op in ops:
        attributes = dict(op.attributes)
        function = f"autograd.{attributes.pop('function', '')}"
        if "backend" in attributes and not was_executed:
            attributes["backend"] = "any"
        if (op.op == function) == (function in TABLE):
            is_unread = "function" in op.attributes and "missed" in attributes
            yield replace(op, op=function if is_unread else op.op, attributes=attributes)


def is_fused_kernel_recomputation(call: LayerCall) -> bool:
    """True for work that only a fused kernel does: attention's scores, computed again
    in backward."""
    return call.kind.endswith(FUSED)


def sum_layer_call_work(calls: Iterable[LayerCall], directions: Sequence[str]) -> WorkTotals:
    """Sums over the rows in these directions. Rows without a formula are listed, not counted."""
    selected = [call for call in calls if call.direction in directions]
    missing: Counter[str] = Counter()
    for call in selected:
        if call.macs is None:
            missing[call.kind] += call.calls
    return WorkTotals(
        sum(call.macs or 0 for call in selected),
        sum(call.flops or 0 for call in selected),
        sum(call.elementwise_flops or 0 for call in selected),
        tuple(sorted(missing.items())),
    )


BACKWARD = ("grad_input", "grad_weight", "grad_bias", "backward")
"""Directions that make up the backward pass; recomputation is counted apart."""


def get_layer_or_operation_name(op: OpShape) -> str:
    """Class of the layer, or the name of a functional operation."""
    functional = op.attributes.get("functional")
    return make_friendly_operator_name(str(functional), op) if functional else op.kind


def make_friendly_operator_name(name: str, op: OpShape) -> str:
    """aten.addmm -> linear, aten.convolution -> conv2d, aten.relu_ -> relu."""
    space, _, bare = name.rpartition(".")
    if space not in ("aten", "perfctl"):
        return name
    if bare.startswith("convolution"):
        rank = (
            len(
                get_shape_or_empty(
                    op.inputs, 2 if op.op.startswith("aten.convolution_backward") else 1
                )
            )
            - 2
        )
        return f"conv{rank}d" if rank > 0 else "convolution"
    bare = FRIENDLY.get(bare, bare)
    if bare.startswith(("upsample_", "_upsample_")):
        return "interpolate"
    return bare.rstrip("_") if not bare.startswith("__") else bare


def _find_parameter_kind_by_layer(rows: dict[_Key, _Parts]) -> dict[str, str]:
    best: dict[str, tuple[bool, int, str]] = {}
    for (layer, kind, direction), parts in rows.items():
        if direction == "forward":
            leaf = any("functional" not in op.attributes for op, _ in parts)
            weight = sum(part.macs * op.calls for op, part in parts)
            if layer not in best or (leaf, weight) > best[layer][:2]:
                best[layer] = (leaf, weight, kind)
    return {layer: kind for layer, (_, _, kind) in best.items()}


def _build_layer_call(
    key: _Key, parts: _Parts, parameter_kind_by_layer: dict[str, str]
) -> LayerCall:
    layer, kind, direction = key
    macs = sum(part.macs * op.calls for op, part in parts)
    main = max(parts, key=lambda pair: (pair[1].macs, pair[0].position))[0].op
    mains = [(op, part) for op, part in parts if op.op == main]
    return LayerCall(
        layer=layer,
        kind=kind,
        direction=direction,
        macs=macs,
        flops=2 * macs + sum(part.odd_flops * op.calls for op, part in parts),
        parameters=parts[0][0].parameters if parameter_kind_by_layer.get(layer) == kind else 0,
        read_bytes=sum(part.read_bytes * op.calls for op, part in parts),
        write_bytes=sum(part.write_bytes * op.calls for op, part in parts),
        output_elements=sum(part.output_elements * op.calls for op, part in mains),
        formula=_join_formula_texts(parts),
        elementwise_flops=sum(part.elementwise * op.calls for op, part in parts),
        calls=sum(op.calls for op, _ in mains) if direction != "optimizer" else 1,
        position=min(op.position for op, _ in parts),
    )


def _join_formula_texts(parts: _Parts) -> str:
    """Return the arithmetic of the parts with multiply-adds, otherwise of all."""
    heavy = [(op, part) for op, part in parts if part.macs] or parts
    lines = [
        f"{op.calls:,} times: {part.text}" if op.calls > 1 else part.text for op, part in heavy
    ]
    if len(lines) > SHOWN_TERMS:
        lines = [*lines[:SHOWN_TERMS], f"and {len(lines) - SHOWN_TERMS} more shapes"]
    return "; ".join(lines)


def _build_call_without_formula(key: _Key, ops: list[OpShape]) -> LayerCall:
    layer, kind, direction = key
    count, name, missed = sum(op.calls for op in ops), ops[0].op, ops[0].attributes.get("missed")
    reason = f"perfctl did not read {name}: {missed}" if missed else f"no formula for {name}"
    return LayerCall(
        layer=layer,
        kind=kind,
        direction=direction,
        macs=None,
        flops=None,
        parameters=0,
        read_bytes=sum(pair_shapes_with_item_bytes(op).sum_input_bytes() * op.calls for op in ops),
        write_bytes=sum(
            pair_shapes_with_item_bytes(op).sum_output_bytes() * op.calls for op in ops
        ),
        output_elements=sum(
            prod(get_shape_or_empty(op.outputs, 0)) * op.calls for op in ops if op.outputs
        ),
        formula=f"{reason} ({count:,} {'call' if count == 1 else 'calls'})",
        elementwise_flops=None,
        calls=count,
        position=min(op.position for op in ops),
    )


@dataclass(frozen=True, slots=True)
class TypeWork:
    """What one step computes in one type. Multiply-adds (2 FLOPs each) count under the type of the
    factors, other arithmetic under the widest type of its tensors."""

    type: str
    """fp32, tf32, bf16, fp16, fp8, fp64, or torch's name of another type; "not known" for
    operations that were not read."""
    forward_macs: int
    backward_macs: int
    recompute_macs: int
    """Of activation checkpointing, in backward."""
    elementwise_flops: int
    """Of forward."""
    forward_bytes: int
    """Read and written by these operations, every tensor at the size of its own type."""
    backward_bytes: int
    """With what activation checkpointing repeats."""
    missing: int
    """Calls of operations without a formula: with any, the figures are lower bounds."""


@dataclass(frozen=True, slots=True)
class CastTotals:
    """Copies from one floating-point type to another, forward and backward. They are part of the
    bytes of :class:`TypeWork`."""

    calls: int
    read_bytes: int
    write_bytes: int


def sum_work_by_data_type(ops: Iterable[OpShape], precision: str = "fp32") -> tuple[TypeWork, ...]:
    """One row a type, the one with the most multiply-adds first. The optimizer is not included."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for op in ops:
        if op.direction == "optimizer":
            continue
        name, parts = find_operand_type(op, precision), compute_work_by_formula(op)
        # The bias of a product is added to its result.
        type_work, other_work = (
            sums[name],
            sums[SHORT.get(op.dtypes[-1], name) if name in ("tf32", "fp8") else name],
        )
        side = (
            "forward"
            if op.direction == "forward" and not op.attributes.get("recompute")
            else "backward"
        )
        if parts is None:
            tensors = pair_shapes_with_item_bytes(op)
            type_work["missing"] += op.calls
            type_work[f"{side}_bytes"] += (
                tensors.sum_input_bytes() + tensors.sum_output_bytes()
            ) * op.calls
        for part in parts or ():
            if part.label == FUSED:
                continue
            is_recomputed = bool(op.attributes.get("recompute")) and part.direction == "forward"
            column_prefix = (
                "backward"
                if part.direction in BACKWARD
                else "recompute"
                if is_recomputed
                else part.direction
            )
            type_work[f"{column_prefix}_macs"] += part.macs * op.calls
            type_work[f"{side}_bytes"] += (part.read_bytes + part.write_bytes) * op.calls
            other_work["elementwise"] += (
                part.elementwise * op.calls if column_prefix == "forward" else 0
            )
    rows = (
        TypeWork(
            name,
            work["forward_macs"],
            work["backward_macs"],
            work["recompute_macs"],
            work["elementwise"],
            work["forward_bytes"],
            work["backward_bytes"],
            work["missing"],
        )
        for name, work in sums.items()
    )
    return tuple(
        sorted(
            rows,
            key=lambda row: (-row.forward_macs - row.backward_macs, -row.forward_bytes, row.type),
        )
    )


def sum_float_type_casts(ops: Iterable[OpShape]) -> CastTotals:
    """Every copy that changes a floating-point type; the optimizer is not included."""
    calls = read = write = 0
    for op in ops:
        if (
            op.op == CAST
            and len(op.dtypes) == 2
            and op.dtypes[0] != op.dtypes[1]
            and set(op.dtypes) <= set(SHORT)
        ):
            tensors = pair_shapes_with_item_bytes(op)
            calls, read, write = (
                calls + op.calls,
                read + tensors.sum_input_bytes() * op.calls,
                write + tensors.sum_output_bytes() * op.calls,
            )
    return CastTotals(calls, read, write)


def list_forward_product_types(
    ops: Iterable[OpShape], precision: str = "fp32"
) -> Mapping[tuple[str, str], str]:
    """(layer, kind) -> the types of its products in forward, as "bf16" or "fp32, bf16"; only where
    there are products."""
    types_by_key: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for op in ops:
        if op.direction == "forward" and op.op in PRODUCTS and not op.attributes.get("recompute"):
            types_by_key[op.layer, get_layer_or_operation_name(op)][
                find_operand_type(op, precision)
            ] = None
    return {key: ", ".join(types) for key, types in types_by_key.items()}


def find_operand_type(op: OpShape, precision: str = "fp32") -> str:
    """Return the type of a product's factors; of another operation, the widest floating-point type
    among its tensors."""
    if op.op in PRODUCTS and op.dtypes:
        before = sum(shape is not None for shape in op.inputs[:1]) if op.op in ADDED else 0
        name = op.dtypes[min(before, len(op.dtypes) - 1)]
        return (
            "tf32"
            if precision == "tf32" and name == "float32" and _can_use_tf32(op)
            else SHORT.get(name, name)
        )
    names = [SHORT[name] for name in op.dtypes if name in SHORT]
    return max(names, key=lambda name: _WIDTH[name], default=op.dtypes[0] if op.dtypes else UNKNOWN)


def _can_use_tf32(op: OpShape) -> bool:
    if "nnz" in op.attributes or op.op not in _TF32:
        return False
    if not op.op.startswith("aten.convolution"):
        return True
    weight = get_shape_or_empty(op.inputs, 2 if "backward" in op.op else 1)
    # torch's own kernels run depthwise convolutions of float32, on CUDA cores
    groups = read_integer_of_attribute(op, "groups", 1)
    depthwise = (
        groups > 1 and len(weight) > 1 and weight[1] == 1 and not op.attributes.get("transposed")
    )
    return not depthwise
