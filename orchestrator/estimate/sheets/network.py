"""The sheet of a whole network: a line for each layer, and the totals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfctl.orchestrator.estimate.flops.engine import (
    BACKWARD,
    TypeWork,
    is_fused_kernel_recomputation,
)
from perfctl.orchestrator.estimate.sheets.layers import SheetLine
from perfctl.orchestrator.estimate.sheets.sheet import Sheet, SheetFigure, SheetSection
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.records.paper import LayerCall, TracedModule

CONVENTIONS = (
    (
        "1 multiply-add (MAC) is 2 FLOPs. FLOPs count multiply-adds only; all other arithmetic "
        "counts as elementwise FLOPs."
    ),
    (
        "Backward computes the gradients of the input and of the weights. The first layer needs "
        "no input gradient."
    ),
    "A parameter that several layers share counts at the first of them.",
    (
        "A layer without calls does no work. Another layer may use its parameters, for example "
        "nn.MultiheadAttention."
    ),
    ("Bytes written: each tensor that the forward pass creates, once. Views write nothing."),
)

TYPES = (
    "Type: data type of the inputs of the layer's matrix multiplications in forward. Their "
    "gradients use the same type.",
    (
        "Parameter bytes are those of the optimizer; bytes written include autocast's copies of "
        "weights in another type."
    ),
)


@dataclass(frozen=True, slots=True)
class NetworkLine:
    """A layer, or a function in one; figures are None where an operation has no formula, or the
    layer was not called."""

    layer: str
    kind: str
    output: tuple[int, ...] | None
    """Shape; None for a function, and for a layer that was not called."""
    parameters: int
    parameter_bytes: int
    macs: int | None
    """Of forward."""
    flops: int | None
    backward_flops: int | None
    elementwise_flops: int | None
    """Of forward."""
    written_bytes: int | None
    """By forward."""
    called: bool = True
    type: str = ""
    """Of its products' factors in forward: "bf16"; "" without products, and where the sheet has
    no types."""


@dataclass(frozen=True, slots=True)
class NetworkSheet:
    """All lines of a network at one batch size."""

    lines: tuple[NetworkLine, ...]
    total: NetworkLine
    """Sums of what is known in the lines."""
    backward: bool
    """Whether there was a backward pass."""
    recompute_flops: int
    """FLOPs that activation checkpointing repeats in backward; in no line."""
    missing: tuple[str, ...]
    """Where a figure is missing: the totals are at least what they say then."""
    conventions: tuple[str, ...] = CONVENTIONS
    types: tuple[TypeWork, ...] = ()
    """Totals by type; () where everything is as it was given, in fp32."""


def build_network_sheet(
    modules: Sequence[TracedModule], calls: Sequence[LayerCall]
) -> NetworkSheet:
    """Return the sheet of one traced step."""
    counted = [call for call in calls if not is_fused_kernel_recomputation(call)]
    directions = ("forward", *BACKWARD)
    groups: dict[str, dict[str, list[LayerCall]]] = defaultdict(dict)
    for call in counted:
        if call.direction in directions:
            groups[call.layer].setdefault(call.kind, []).append(call)
    inner, outer = (
        [module for module in modules if bool(module.path) is inside] for inside in (True, False)
    )
    lines = tuple(
        line
        for module in (*inner, *outer)
        for line in _list_module_lines(module, groups.pop(module.path, {}), modules)
    )
    lines += tuple(
        _build_network_line(path, kind, calls_of_kind, None)
        for path, kinds in groups.items()
        for kind, calls_of_kind in kinds.items()
    )
    names = (
        "parameters",
        "parameter_bytes",
        "macs",
        "flops",
        "backward_flops",
        "elementwise_flops",
        "written_bytes",
    )
    values, size, macs, flops, backward, work, written = (
        sum(getattr(line, name) or 0 for line in lines) for name in names
    )
    missing = [
        f"{call.layer or 'the model'}, {call.direction}: {call.formula}"
        for call in counted
        if call.macs is None
    ]
    missing += [
        f"{module.path or 'the model'}: uninitialized {', '.join(module.uninitialized)}"
        for module in modules
        if module.uninitialized
    ]
    total = NetworkLine("total", "", None, values, size, macs, flops, backward, work, written)
    recomputed = sum(call.flops or 0 for call in counted if call.direction == "recompute")
    return NetworkSheet(
        lines,
        total,
        any(call.direction in BACKWARD for call in counted),
        recomputed,
        tuple(missing),
        (
            *CONVENTIONS,
            *(
                f"{layer or 'The model'}: upper bound, {reason}."
                for layer, reason in dict.fromkeys(
                    (call.layer, call.upper_bound_reason) for call in calls
                )
                if reason
            ),
        ),
    )


def add_data_types_to_sheet(
    sheet: NetworkSheet,
    type_by_layer_and_kind: Mapping[tuple[str, str], str],
    totals_by_type: tuple[TypeWork, ...],
) -> NetworkSheet:
    """Return the sheet with the type of each line's products, and the totals by type.
    ``type_by_layer_and_kind``: (layer, kind) -> type."""
    type_names = {
        (layer or "(model)", kind): name for (layer, kind), name in type_by_layer_and_kind.items()
    }
    lines = tuple(
        replace(line, type=type_names.get((line.layer, line.kind), "")) for line in sheet.lines
    )
    return replace(
        sheet, lines=lines, conventions=(*sheet.conventions, *TYPES), types=totals_by_type
    )


def _list_module_lines(
    module: TracedModule, calls_by_kind: dict[str, list[LayerCall]], modules: Sequence[TracedModule]
) -> Iterator[NetworkLine]:
    """The module's own line, unless it only holds others, and one for each function in it."""
    holds = any(
        other.path.startswith(f"{module.path}." if module.path else "") and other is not module
        for other in modules
    )
    if module.kind in calls_by_kind or module.parameters or not holds:
        yield _build_network_line(
            module.path, module.kind, calls_by_kind.pop(module.kind, []), module
        )
    for kind, calls_of_kind in calls_by_kind.items():
        line = _build_network_line(module.path, kind, calls_of_kind, None)
        if (line.macs, line.backward_flops, line.elementwise_flops, line.written_bytes) != (
            0,
            0,
            0,
            0,
        ):
            yield line


def _build_network_line(
    path: str, kind: str, calls: Sequence[LayerCall], module: TracedModule | None
) -> NetworkLine:
    forward = [call for call in calls if call.direction == "forward"]
    backward = [call for call in calls if call.direction in BACKWARD]
    called = module is None or module.called or bool(calls)

    def sum_if_known(group: Sequence[LayerCall], name: str) -> int | None:
        values = [getattr(call, name) for call in group]
        return sum(values) if called and None not in values else None

    return NetworkLine(
        path or "(model)",
        kind,
        module.output if module is not None else None,
        module.parameters if module is not None else 0,
        module.parameter_bytes if module is not None else 0,
        sum_if_known(forward, "macs"),
        sum_if_known(forward, "flops"),
        sum_if_known(backward, "flops"),
        sum_if_known(forward, "elementwise_flops"),
        sum_if_known(forward, "write_bytes"),
        called,
    )


def build_model_sheet(estimate: Estimate) -> Sheet:
    """Return the sheet of a whole model: its layers that multiply, and the figures that a manual
    estimate may be."""
    sheet = build_network_sheet(estimate.modules, estimate.calls)
    lines = [
        SheetLine(line.layer, line.kind, "", f"{line.macs:,} MAC")
        for line in sheet.lines
        if line.macs
    ]
    lines.append(SheetLine("total", "sum", "", str(estimate.forward)))
    count, size = sheet.total.parameters, sheet.total.parameter_bytes
    figures = [
        *list_forward_and_backward_totals(estimate),
        SheetFigure("parameters", count, "values", f"{count:,} values"),
        SheetFigure("parameters", size, "B", f"{count:,} values, {size:,} B"),
    ]
    root = next((module.kind for module in estimate.modules if not module.path), "")
    return Sheet("", root, (SheetSection("Forward", tuple(lines)),), None, tuple(figures))


def list_forward_and_backward_totals(estimate: Estimate) -> list[SheetFigure]:
    """Return multiply-adds and FLOPs of forward, of backward and of both; none of a pass with an
    operation that has no formula."""
    totals = {"forward": estimate.forward, "backward": estimate.backward}
    macs = {name: total.macs for name, total in totals.items() if not total.is_lower_bound}
    if len(macs) == len(totals):
        macs["forward and backward together"] = sum(macs.values())
    return [
        figure
        for name, count in macs.items()
        for figure in (
            SheetFigure(name, count, "MAC", f"{count:,} MAC"),
            SheetFigure(name, 2 * count, "FLOP", f"2 x {count:,} MAC = {2 * count:,} FLOP"),
        )
    ]
