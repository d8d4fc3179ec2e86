"""CUDA graphs of an nsys export.

Layers of the kernels that CUDA graphs replayed come from the ranges that were open when their nodes
were created. With --cuda-graph-trace=node a kernel of a graph names its node, which is a copy:
cudaGraphInstantiate copies the nodes that the stream capture created. CUDA_GRAPH_NODE_EVENTS has
both, each with the thread and the time of its creation, and the copy with the node that it was made
from (``originalGraphNodeId``). So a kernel leads to its copy, from there to the node of the
capture, and from there to the innermost range around that node's creation on its thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from perfctl.parsers.attribution import NOBODY, Calls, Spans
from perfctl.parsers.common.sqlite import Database
from perfctl.parsers.nsys.ranges import PROCESS_BITS, RangeTable
from perfctl.parsers.nsys.tables import NODES
from perfctl.records.serving import GraphLaunch

if TYPE_CHECKING:
    import numpy as np

    from perfctl.parsers.attribution import Flags, Integers
else:
    from perfctl.parsers.attribution import np

CREATION = "creation of its nodes"
"""``GraphLaunch.capture`` where the report has the creation of a graph's nodes."""
_GENERATIONS = 16
"""Copies of copies that are followed."""


class Created(NamedTuple):
    """Nodes whose creation is in the report."""

    nodes: Calls
    """By process and id."""
    layers: Integers
    """Of each: the range that names the layer in which it, or what it was copied from, was
    captured; NOBODY for none."""
    is_captured: Flags
    """Whether that first creation is in the report."""

    def find(self, process: Integers, node: Integers) -> tuple[Integers, Flags]:
        """Of kernels with these nodes: the layer's range, NOBODY for none; and whether the capture
        of the node is known."""
        at = np.where(node == NOBODY, NOBODY, self.nodes.find(process, node))
        return np.append(self.layers, NOBODY)[at], np.append(self.is_captured, False)[at]


def find_created(database: Database, ranges: RangeTable) -> Created | None:
    """None where the report has no creation of a node."""
    names = ("start", "globalTid", "graphNodeId", "originalGraphNodeId")
    if not database.has(NODES, *names[:3]):
        return None
    pieces: list[list[Integers]] = []
    for start, thread, node, original in database.numbers(NODES, *names):
        rows = (start.where_known() & thread.where_known() & node.where_known()).nonzero()[0]
        columns = (start.values, thread.values, node.values, original.or_else(0))
        pieces.append([column[rows] for column in columns])
    if not pieces:
        return None
    joined = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    # of several events of a node, the first is its creation
    order = np.argsort(joined[0], kind="stable")
    begins, threads, ids, copied = (column[order] for column in joined)
    processes = threads & PROCESS_BITS
    nodes = Calls(processes, ids)
    first = np.arange(len(ids))
    for _ in range(_GENERATIONS):
        copies = (first != NOBODY) & (copied[first] != 0)
        if not copies.any():
            break
        above = nodes.find(processes[first[copies]], copied[first[copies]])
        first[copies] = np.where(above == first[copies], NOBODY, above)
    else:
        first[copies] = NOBODY  # a circle
    around = ranges.attribution.of_calls(Spans(processes, threads, begins, begins))
    return Created(nodes, np.append(around.layer, NOBODY)[first], first != NOBODY)


def find_launches(
    process: Integers,
    correlation: Integers,
    length: Integers,
    steps: Integers,
    in_graph: Flags,
    is_captured: Flags,
) -> Iterator[GraphLaunch]:
    """One record a launch of a graph, in the order of its first kernel. ``length``: negative where
    it is not known."""
    rows = np.flatnonzero(in_graph)
    if not len(rows):
        return
    keys = np.stack([process[rows], correlation[rows]])
    _, first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    known, kernels = is_captured[rows], np.bincount(group)
    matched = np.bincount(group, known).astype(np.int64)
    untimed = np.bincount(group, length[rows] < 0) > 0
    times = np.zeros(len(first), np.int64)
    np.add.at(times, group, length[rows])
    for at in np.argsort(first, kind="stable").tolist():
        row = rows[first[at]]
        mine, some = int(kernels[at]), int(matched[at])
        yield GraphLaunch(
            int(correlation[row]),
            None if steps[row] == NOBODY else int(steps[row]),
            mine,
            None if untimed[at] else int(times[at]),
            CREATION if some else None,
            some,
            "node" if some else None,
            some / mine if some else None,
        )
