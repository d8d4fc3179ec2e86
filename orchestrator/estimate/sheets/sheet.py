"""The worked sheet of one layer, line by line: formula, numbers, result.

Time is operations; space is values and bytes of weights, biases and output. ``Sheet.quantities``
lists every figure that a hand value may be: operations, values, bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from perfctl.orchestrator.estimate.flops.engine import (
    BACKWARD,
    CAST,
    PRODUCTS,
    UNSEEN,
    build_layer_calls_with_flops,
    is_fused_kernel_recomputation,
    sum_float_type_casts,
    sum_work_by_data_type,
)
from perfctl.orchestrator.estimate.flops.formulas import (
    ADDED,
    CONVOLUTIONS,
    LINEAR,
    Shape,
    format_factors,
    get_left_factor_shape,
    pair_shapes_with_item_bytes,
    read_boolean_attribute,
)
from perfctl.orchestrator.estimate.sheets import layers, sequences
from perfctl.orchestrator.estimate.sheets.layers import (
    ManualCheckFacts,
    SheetLine,
    SheetTensor,
    WorkedLayer,
    make_product_line,
    make_tensor_size_lines,
)
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.precision import PRECISIONS

DIRECTION_NAMES = {
    "grad_input": "gradient of the input",
    "grad_weight": "gradient of the weights",
    "grad_bias": "gradient of the bias",
    "recompute": "computed again in backward",
    "optimizer": "optimizer step",
}

PARAMETERS = ("weights", "biases", "input weights", "recurrent weights", "projection", "parameters")
"""Beginnings of the names of a layer's own values, under "Space"."""


@dataclass(frozen=True, slots=True)
class SheetFigure:
    """One figure of a layer."""

    quantity: str
    """output map, gradient of the input, ..."""
    value: int
    unit: str
    """MAC, FLOP, elementwise FLOP, values, B"""
    worked: str
    """The arithmetic, up to the value and its unit."""


@dataclass(frozen=True, slots=True)
class SheetSection:
    """Lines under one head."""

    title: str
    lines: tuple[SheetLine, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """One layer, worked."""

    layer: str
    kind: str
    sections: tuple[SheetSection, ...]
    facts: ManualCheckFacts | None
    """What usual slips are worked out from; None for a layer without multiply-adds."""
    quantities: tuple[SheetFigure, ...] = ()
    """Every figure of the layer, the likeliest to be asked for first."""


def list_layers_with_operations(ops: Sequence[OpShape]) -> tuple[str, ...]:
    """Return the layers that have a sheet, in order."""
    return tuple(dict.fromkeys(op.layer for op in ops if op.layer or op.kind))


def build_layer_sheet(
    ops: Sequence[OpShape], layer: str, output_shape: Shape | None = None, precision: str = "fp32"
) -> Sheet | None:
    """Return the sheet of ``layer``; None if it ran no operation. ``output_shape``: shape of the
    module's output. ``precision``: of the trace; its types are shown unless it is fp32."""
    ops = [op for op in ops if op.layer == layer and (layer or op.kind)]
    if not ops:
        return None
    forward = [
        op
        for op in ops
        if op.direction == "forward" and not read_boolean_attribute(op, "recompute")
    ]
    forward = [op for op in forward if op.op != CAST] or forward  # what the layer itself does
    calls, kind = build_layer_calls_with_flops(ops), ops[0].kind
    work = build_forward_worksheet(forward or ops, kind, output_shape)
    facts = work.facts
    if facts is not None:
        step = sum(call.macs or 0 for call in calls if call.direction in ("forward", *BACKWARD))
        forward_macs = sum(call.macs or 0 for call in calls if call.direction == "forward")
        # With several calls, or products besides the main one, the sheet's single call is not the
        # whole layer.
        width = next((item.item for item in work.space if item.what == "output map"), 0)
        facts = replace(
            facts,
            step=step if step > forward_macs == facts.forward_macs_of_batch else 0,
            item=width,
        )
    heavy = [op for op in forward if op.op in PRODUCTS] or forward[:1]
    main = max(
        heavy,
        key=lambda op: PRODUCTS[op.op](op)[0].macs if op.op in PRODUCTS else 0,
        default=None,
    )
    repeats = f" (one of {main.calls:,} calls)" if main is not None and main.calls > 1 else ""
    fp32_lines = _list_fp32_master_weight_bytes(ops, precision)
    sections = (
        SheetSection("Shapes", work.shapes),
        SheetSection(f"Forward, step by step{repeats}", work.steps),
        SheetSection("Time: operations", tuple(_make_operation_count_lines(calls))),
        SheetSection("Space: values and bytes", make_tensor_size_lines(work.space)),
        SheetSection(
            "Types",
            ()
            if precision == "fp32"
            else tuple(_make_work_by_dtype_lines(ops, precision, fp32_lines)),
        ),
    )
    figures = (
        *_list_mac_and_flop_figures(calls),
        *_list_value_and_byte_figures(forward or ops, work.space),
        *fp32_lines,
        *_list_elementwise_figures(calls),
    )
    filled_sections = tuple(section for section in sections if section.lines)
    return Sheet(layer, kind, filled_sections, facts, figures)


def build_forward_worksheet(
    ops: Sequence[OpShape], kind: str, output_shape: Shape | None
) -> WorkedLayer:
    """Return the forward pass of a layer, worked by the kind of its main operation."""
    heavy = [op for op in ops if op.op in PRODUCTS]
    multihead = kind == "MultiheadAttention"
    if len(heavy) > 1 or (heavy and multihead):
        samples = next(iter(output_shape or get_left_factor_shape(ops[0])), 1)
        return sequences.build_multi_product_worksheet(ops, samples, ops[0].parameters, multihead)
    if heavy:
        main = heavy[0]
        if main.op in CONVOLUTIONS:
            return layers.build_convolution_worksheet(main)
        if main.op in LINEAR:
            return layers.build_linear_worksheet(main, output_shape)
        if main.op in ("perfctl.lstm", "perfctl.gru", "perfctl.rnn"):
            return sequences.build_recurrent_worksheet(main)
        if main.op == sequences.SDPA:
            return sequences.build_attention_worksheet(main)
        return sequences.build_multi_product_worksheet(ops, 1, ops[0].parameters, False)
    for op in ops:
        if op.op == "aten.embedding":
            return layers.build_embedding_worksheet(op)
        if op.op in layers.NORMS:
            return layers.build_norm_worksheet(op)
        if op.op in layers.POOLS:
            return layers.build_pooling_worksheet(op)
    return layers.build_operation_list_worksheet(ops)


def _list_fp32_master_weight_bytes(
    ops: Sequence[OpShape], precision: str
) -> tuple[SheetFigure, ...]:
    """Return the parameters themselves, if autocast computes with copies of them."""
    count = ops[0].parameters
    copied = any(op.op == CAST and op.dtypes[0] == "float32" for op in ops)
    if not (PRECISIONS[precision].autocast and count and copied):
        return ()
    worked = f"{count:,} values x 4 B = {4 * count:,} B"
    return (SheetFigure("parameters kept in fp32", 4 * count, "B", worked),)


def _make_work_by_dtype_lines(
    ops: Sequence[OpShape], precision: str, fp32_lines: Sequence[SheetFigure]
) -> Iterator[SheetLine]:
    """Yield what is computed in which type, and what the casts cost."""
    for row in sum_work_by_data_type(ops, precision):
        macs_by_part = {
            "forward": row.forward_macs,
            "backward": row.backward_macs,
            "computed again": row.recompute_macs,
        }
        for part, macs in macs_by_part.items():
            if macs:
                yield make_product_line(f"{part} in {row.type}", "2 x MAC", (2, macs), "FLOP")
        if row.elementwise_flops:
            work = f"{row.elementwise_flops:,} elementwise FLOP"
            yield SheetLine(f"other arithmetic in {row.type}", "forward", "", work)
    casts = sum_float_type_casts(ops)
    if casts.calls:
        read, written = casts.read_bytes, casts.write_bytes
        numbers, total = f"{read:,} + {written:,}", f"{read + written:,} B"
        yield SheetLine(f"casts, {casts.calls:,}", "read + written", numbers, total)
    for figure in fp32_lines:
        numbers = figure.worked.partition(" = ")[0]
        yield SheetLine(figure.quantity, "besides the copies above", numbers, f"{figure.value:,} B")


def _list_mac_and_flop_figures(calls: Sequence[LayerCall]) -> Iterator[SheetFigure]:
    """Yield multiply-adds and FLOPs of each direction, of backward and of the whole step; nothing
    if an operation has no formula, because the sum is not known then."""
    calls = [call for call in calls if not is_fused_kernel_recomputation(call)]
    groups: dict[str, list[LayerCall]] = {}
    for call in calls:
        name = DIRECTION_NAMES.get(call.direction, call.direction)
        groups.setdefault(name, []).append(call)
    backward = [call for call in calls if call.direction in BACKWARD]
    forward = [call for call in calls if call.direction == "forward"]
    sums = list(groups.items())
    if backward and forward:
        sums += [("backward", backward), ("forward and backward together", [*forward, *backward])]
    for caption, group in sums:
        heavy = [call for call in group if call.macs]
        if any(call.macs is None for call in group) or not (heavy or caption == "forward"):
            continue
        terms = [call.macs or 0 for call in heavy]
        macs = sum(terms)
        text = f"{' + '.join(f'{term:,}' for term in terms or [0])} = {macs:,}"
        if len(heavy) == 1:
            text = (heavy[0].formula or "").rpartition(" MAC = ")[0]
            # A sum of products has no short form.
            if " MAC = " in text or not text.endswith(f" = {macs:,}"):
                text = f"{macs:,}"
        yield SheetFigure(caption, macs, "MAC", f"{text} MAC")
        yield SheetFigure(caption, 2 * macs, "FLOP", f"2 x {macs:,} MAC = {2 * macs:,} FLOP")


def _list_elementwise_figures(calls: Sequence[LayerCall]) -> Iterator[SheetFigure]:
    """Yield the arithmetic of each direction that is no multiply-add."""
    for call in calls:
        if flops := call.elementwise_flops:
            caption = f"{DIRECTION_NAMES.get(call.direction, call.direction)} ({call.kind})"
            worked = f"in addition to the multiply-adds: {flops:,} elementwise FLOP"
            if call.formula and not call.macs:
                worked = call.formula
            yield SheetFigure(caption, flops, "elementwise FLOP", worked)


def _list_value_and_byte_figures(
    ops: Sequence[OpShape], items: Sequence[SheetTensor]
) -> Iterator[SheetFigure]:
    """Yield values and bytes of the input and of every line under "Space", of the parameters, and
    of all these lines together."""
    tensors, index = (
        pair_shapes_with_item_bytes(ops[0]).inputs,
        int(ops[0].op in (*ADDED, "aten.embedding")),
    )
    data = tensors[index] if index < len(tensors) else None
    for item in (*reversed(items), *([SheetTensor("input", *data)] if data is not None else [])):
        count = prod(item.sizes)
        product = f"{format_factors(*item.sizes)} = " if len(item.sizes) > 1 else ""
        text, size = f"{product}{count:,} values", count * item.item
        yield SheetFigure(item.what, count, "values", text)
        yield SheetFigure(item.what, size, "B", f"{text} x {item.item} B = {size:,} B")
    parameters = [item for item in items if item.what.startswith(PARAMETERS)]
    for caption, parts in (("parameters", parameters), ("total", items)):
        if len(parts) > 1:
            for unit, unit_prefix in (("values", ""), ("B", "B of ")):
                sizes = [prod(item.sizes) * (item.item if unit_prefix else 1) for item in parts]
                pairs = zip(sizes, parts, strict=True)
                terms = " + ".join(f"{size:,} {unit_prefix}{item.what}" for size, item in pairs)
                yield SheetFigure(caption, sum(sizes), unit, f"{terms} = {sum(sizes):,} {unit}")


def _make_operation_count_lines(calls: Sequence[LayerCall]) -> Iterator[SheetLine]:
    """Yield the operations of each direction, and their sum."""
    heavy = [call for call in calls if call.macs and not is_fused_kernel_recomputation(call)]
    kinds = {
        call.kind
        for call in calls
        if not is_fused_kernel_recomputation(call) and not call.kind.startswith(UNSEEN)
    }
    for call in calls:
        caption, formula = DIRECTION_NAMES.get(call.direction, call.direction), call.formula or ""
        if is_fused_kernel_recomputation(call):
            caption = "with a fused kernel"
        elif len(kinds) > 1:
            caption = f"{caption} ({call.kind})"
        numbers, result = "", "not counted"
        if call.macs:
            result = f"{call.flops or 0:,} FLOP"
            # "letters = numbers = result"; a sum of several products stays one text.
            if formula.count(" MAC = ") == 1:
                formula, _, numbers_text = formula.partition(" = ")
                numbers = numbers_text.rpartition(" = ")[0].rpartition(" = ")[0]
        elif call.macs is not None:
            flops = call.elementwise_flops
            result = f"{flops:,} elementwise FLOP" if flops else "no arithmetic"
        yield SheetLine(caption, formula, numbers, result)
    directions = {call.direction for call in calls}
    if heavy and "grad_input" not in directions and "grad_weight" in directions:
        yield SheetLine(
            "gradient of the input", "not needed for the input of this layer", "", "0 FLOP"
        )
    if len(heavy) > 1:
        total = sum(call.flops or 0 for call in heavy)
        mark = "at least " if any(call.macs is None for call in calls) else ""
        yield SheetLine("total", "sum of the multiply-adds above", "", f"{mark}{total:,} FLOP")
