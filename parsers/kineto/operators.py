"""Shapes of a trace's operators, and rows for those that lie in no layer."""

from __future__ import annotations

from collections.abc import Sequence

from perfctl.parsers.kineto import events as kineto
from perfctl.parsers.kineto.events import Events
from perfctl.parsers.kineto.nesting import Nesting, assign_layers
from perfctl.parsers.operator_rows import OperatorRows, Operators, Place, Spans
from perfctl.records.report import Gap


def assign(
    events: Events, nesting: Nesting, launchers: Sequence[int] | None, *, by_step: bool = True
) -> Operators:
    """Assign layers to backward work and rows to operators outside of layers; collect the
    operators' shapes.

    ``launchers``: spans that launched the kernels, -1 for none; None where the trace has no
    kernels. Without ``by_step`` the shapes are those of all calls together.

    Nothing is collected from a trace of perfctl's own ranges, whose shapes perfctl recorded, nor
    from one without shapes.
    """
    own = any(context.source == "range" for context in nesting.meanings.values())
    if own or all(call is None for call in events.operators.values()):
        assign_layers(events, nesting)
        if own or not events.operators or launchers is None:
            return Operators()
        reason = (
            f"{len(events.operators)} operators that multiply have no shapes: record with "
            "record_shapes=True"
        )
        return Operators(gaps=(Gap("op_shape", "not_collected", reason),))
    names = [span.name for span in events.spans]
    backward = {index for index, _, is_backward in events.sequences if is_backward}
    rows = OperatorRows(Spans(names, nesting.parents, nesting.order, events.operators, backward))
    contexts = nesting.contexts

    def free(index: int) -> bool:
        return contexts[index].layer is None and contexts[index].phase != "optimizer"

    for index, row in rows.named(lambda index: not rows.inside[index] and free(index)):
        contexts[index] = contexts[index]._replace(
            layer=row, direction="forward", source="operation"
        )
    assign_layers(events, nesting)
    for index, row in rows.named(lambda index: rows.inside[index] and free(index)):
        contexts[index] = contexts[index]._replace(
            layer=row, direction="backward", source="operation"
        )
    for index in rows.again():
        if contexts[index].layer is not None:
            contexts[index] = contexts[index]._replace(direction="recompute")

    def place_of(index: int) -> Place:
        context, span = contexts[index], events.spans[index]
        step, _ = nesting.step_and_phase(context, kineto.Place(span.thread, span.start))
        return Place(context.layer, context.direction, step, context.phase == "optimizer")

    steps = (
        set()
        if not by_step
        else {step for meaning in nesting.meanings.values() if (step := meaning.step) is not None}
    )
    return rows.collect(place_of, steps, launchers)
