"""Kernels that CUDA graphs replayed, against a search through all events (synthetic exports).

The columns are those that NVIDIA's documentation and public scripts name; contents are made up.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.make.nsys_sqlite import NsysBuilder, global_tid, read

COLUMNS = "start end nameId eventClass globalTid graphNodeId originalGraphNodeId"
LAUNCH = 900
"""Of the first replay; the next ones follow every 100 ns."""


def node(
    builder: NsysBuilder,
    number: int,
    at: int,
    *,
    of: int | None = None,
    pid: int = 7,
    thread: int = 7,
) -> None:
    values = {
        "start": at,
        "end": at + 1,
        "globalTid": global_tid(pid, thread),
        "nameId": builder.string("Graph Node Creation"),
    }
    builder.row(
        "CUDA_GRAPH_NODE_EVENTS", COLUMNS, **values, graphNodeId=number, originalGraphNodeId=of
    )


def replay(
    builder: NsysBuilder, nodes: list[int | None], at: int, *, pid: int = 7, thread: int = 7
) -> None:
    """One launch of a graph at ``at``; each of its kernels takes 10 ns."""
    correlation = 1000 + at
    builder.call(correlation, at, at + 2, pid=pid, thread=thread)
    for place, number in enumerate(nodes):
        builder.kernel(correlation, at + 10 + 10 * place, pid=pid, graphNodeId=number)


def captured(builder: NsysBuilder) -> NsysBuilder:
    """A graph of conv1, fc and what lies between them, forward on thread 7 and backward on thread
    8, then copied at 700."""
    builder.range("conv1:forward", 100, 200)
    builder.range("fc:forward", 300, 400)
    builder.range("fc:backward", 500, 600, thread=8)
    for number, (at, thread) in enumerate([(110, 7), (250, 7), (310, 7), (510, 8)], 1):
        node(builder, number, at, thread=thread)
        node(builder, 100 + number, 700 + number, of=number)
    return builder


@pytest.mark.parametrize("seed", range(6))
def test_every_kernel_leads_to_the_range_around_the_creation_of_its_node(
    tmp_path: Path, seed: int
) -> None:
    """Against a search through all events, with graphs of several threads and nodes that are copied
    up to twice."""
    random, builder = Random(seed), NsysBuilder()
    ranges = [
        (100 * at, 100 * at + 80, random.choice([7, 8]), f"layer{at}:forward") for at in range(8)
    ]
    for start, end, thread, text in ranges:
        builder.range(text, start, end, thread=thread)
    created: dict[int, tuple[int, int]] = {}
    ids: list[int] = random.sample(range(1, 1 << 40), 20)
    for number in ids:
        created[number] = random.randrange(800), random.choice([7, 8])
        node(builder, number, created[number][0], thread=created[number][1])
    origin = {number: number for number in ids}
    for number in random.sample(range(1 << 41, 1 << 42), 25):
        above = random.choice(list(origin))
        origin[number] = origin[above]
        node(builder, number, 850, of=above)
    used = random.sample(list(origin), 15)
    replay(builder, list(used), LAUNCH)
    found = [kernel.layer for kernel in read(builder, tmp_path).kernels]
    expected = []
    for number in used:
        at, thread = created[origin[number]]
        around = [
            text for start, end, where, text in ranges if where == thread and start <= at < end
        ]
        expected.append(around[0].partition(":")[0] if around else None)
    assert found == expected
    assert any(found)
