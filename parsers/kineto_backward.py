"""Assigns backward operations outside all layer ranges to layers, by autograd's sequence numbers.

An operation that makes an autograd node has the node's sequence number, and so have the operations around it; of
those with one number, the one that began last made the node. The node's own work in backward carries the same number
and a "Fwd thread id".
"""

from __future__ import annotations

from perfctl.parsers.kineto_events import Events
from perfctl.parsers.kineto_nesting import Context, Nesting

_WRAPPER = "autograd::engine::evaluate_function: "
"""Wrapper of autograd's engine around a node; hooks, and so perfctl's ranges, run inside it."""

Owner = tuple[str, str, str]
"""(layer, direction, source)."""


def assign_layers(events: Events, nesting: Nesting) -> None:
    """Assign layers to backward operations outside all layer ranges, and to everything inside these operations."""
    nodes = _of_nodes(events, nesting)
    owners = {**_around(nodes, events, nesting), **_of_wrappers(events, nesting), **nodes}
    backward = {index for index, _, is_backward in events.sequences if is_backward}
    contexts, inside = nesting.contexts, [False] * len(events.spans)
    given: dict[int, Owner] = {}
    for index in nesting.order:
        parent = nesting.parents[index]
        inside[index] = index in backward or (parent >= 0 and inside[parent])
        context = contexts[index]
        if context.layer is None:
            owner = owners.get(index) or given.get(parent)
            if owner is not None:
                given[index] = owner
                contexts[index] = _owned(context, owner)
        elif inside[index] and context.direction == "forward" and context.source == "operation":
            contexts[index] = context._replace(direction="recompute")  # a module called again: checkpointing


def _owned(context: Context, owner: Owner) -> Context:
    layer, direction, source = owner
    return context._replace(layer=layer, direction=direction, source=source)


def _of_nodes(events: Events, nesting: Nesting) -> dict[int, Owner]:
    """Backward operation -> the layer of the forward operation that made its node."""
    made_by: dict[tuple[int | None, int], dict[int, int]] = {}
    for index, number, is_backward in events.sequences:
        if is_backward:
            continue
        span = events.spans[index]
        by_thread = made_by.setdefault((events.threads[span.thread][0], number), {})
        latest = by_thread.get(span.thread)
        if latest is None or events.spans[latest].start <= span.start:
            by_thread[span.thread] = index
    found = {}
    for index, number, is_backward in events.sequences:
        if not is_backward:
            continue
        process = events.threads[events.spans[index].thread][0]
        layers = {nesting.contexts[maker].layer for maker in made_by.get((process, number), {}).values()}
        layer = (
            layers.pop() if len(layers) == 1 else None
        )  # every thread counts its own sequence numbers, so threads may disagree
        if layer is not None:
            found[index] = (layer, "backward", "operation")
    return found


def _around(nodes: dict[int, Owner], events: Events, nesting: Nesting) -> dict[int, Owner]:
    """The engine's wrapper of each node: with hooks, only the node itself has the number (torch 2.x)."""
    parents = {nesting.parents[index]: owner for index, owner in nodes.items()}
    return {index: owner for index, owner in parents.items() if index >= 0 and _is_wrapper(events, index)}


def _is_wrapper(events: Events, index: int) -> bool:
    return events.spans[index].name.startswith(_WRAPPER)


def _of_wrappers(events: Events, nesting: Nesting) -> dict[int, Owner]:
    """The engine's wrapper -> the one layer whose ranges lie inside of it."""
    inside: dict[int, set[Owner]] = {}
    for index, outside in nesting.outside.items():
        context, around = nesting.contexts[index], nesting.parents[index]
        while around >= 0 and not _is_wrapper(events, around):
            around = nesting.parents[around]
        if around >= 0 and outside.layer is None and context.layer is not None:
            inside.setdefault(around, set()).add((context.layer, context.direction or "", context.source or ""))
    return {wrapper: owners.pop() for wrapper, owners in inside.items() if len(owners) == 1}
