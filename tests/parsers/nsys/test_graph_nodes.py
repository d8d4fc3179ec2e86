"""Kernels that CUDA graphs replayed: layers by the ranges in which their nodes were captured
(synthetic exports).

The columns are those that NVIDIA's documentation and public scripts name; contents are made up.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from perfctl.parsers.nsys.kernels import CREATION
from perfctl.records.bulk import SqlKernels
from perfctl.records.report import Report
from tests.parsers.nsys_builder import NsysBuilder, copied, gap, global_tid, read

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


def layers(report: Report) -> list[tuple[str | None, str | None, str | None]]:
    return [(kernel.layer, kernel.direction, kernel.layer_source) for kernel in report.kernels]


EXPECTED = [
    ("conv1", "forward", "capture"),
    (None, None, None),
    ("fc", "forward", "capture"),
    ("fc", "backward", "capture"),
]


@pytest.mark.parametrize("generation", ["2020.3", "2022.1", "2024.2", "2026.1"])
def test_each_replay_has_the_layers_in_which_its_nodes_were_captured(
    tmp_path: Path, generation: str
) -> None:
    builder = captured(NsysBuilder(generation))
    for step in range(2):
        builder.range(f"perfctl:step:{step}", LAUNCH + 100 * step, LAUNCH + 100 * step + 90)
        replay(builder, [101, 102, 103, 104], LAUNCH + 100 * step)
    report = read(builder, tmp_path)
    assert layers(report) == EXPECTED * 2
    assert [kernel.step for kernel in report.kernels] == [0] * 4 + [1] * 4, (
        "the step is that of the launch"
    )
    first, second = report.graph_launches
    assert (first.step, first.kernels, first.kernel_ns, first.capture) == (0, 4, 40, CREATION)
    assert (second.step, second.matched, second.how, second.confidence) == (
        1,
        4,
        "node",
        1,
    )


def test_the_store_gets_the_same_layers_by_sql(tmp_path: Path) -> None:
    builder = captured(NsysBuilder())
    builder.range("fc:forward", LAUNCH - 10, LAUNCH + 90)
    replay(builder, [101, 102, 103], LAUNCH)
    builder.launch(310)
    kernels = read(builder, tmp_path).kernels
    assert isinstance(kernels, SqlKernels)
    expected = [EXPECTED[0], ("fc", "forward", "range"), EXPECTED[2], ("fc", "forward", "range")]
    assert [(one.layer, one.direction, one.layer_source) for one in copied(kernels)] == expected


def test_a_copy_of_a_copy_leads_to_the_capture(tmp_path: Path) -> None:
    builder = captured(NsysBuilder())
    node(builder, 201, 800, of=101)
    replay(builder, [201], LAUNCH)
    assert layers(read(builder, tmp_path)) == EXPECTED[:1]


def test_nodes_of_another_process_are_others(tmp_path: Path) -> None:
    builder = captured(NsysBuilder())
    builder.range("head:forward", 100, 200, pid=9, thread=9)
    node(builder, 1, 110, pid=9, thread=9)
    node(builder, 101, 700, of=1, pid=9, thread=9)
    replay(builder, [101], LAUNCH)
    replay(builder, [101], LAUNCH, pid=9, thread=9)
    report = read(builder, tmp_path)
    assert [kernel.layer for kernel in report.kernels] == ["conv1", "head"]
    assert [launch.kernels for launch in report.graph_launches] == [1, 1]


def test_a_copy_made_in_the_range_of_a_layer_is_not_of_that_layer(tmp_path: Path) -> None:
    """The copies of what was captured before the recording say when the graph was instantiated, not
    whose kernels it has."""
    builder = NsysBuilder()
    builder.range("conv1:forward", 100, 200)
    node(builder, 101, 110, of=1)
    replay(builder, [101, 102], LAUNCH)
    report = read(builder, tmp_path)
    assert layers(report) == [(None, None, None)] * 2
    (launch,) = report.graph_launches
    assert (launch.kernels, launch.matched, launch.capture, launch.confidence) == (2, 0, None, None)
    assert "2 of all are of CUDA graphs, which were captured before the recording began" in gap(
        report, "layer"
    )


def test_kernels_of_graphs_are_named_where_no_creation_of_a_node_was_recorded(
    tmp_path: Path,
) -> None:
    builder = NsysBuilder()
    builder.range("conv1:forward", 100, 200)
    replay(builder, [101, 102, None], LAUNCH)
    report = read(builder, tmp_path)
    assert "2 of all are of CUDA graphs" in gap(report, "layer")
    assert not report.graph_launches


def test_nodes_that_are_copies_of_each_other_have_no_layer(tmp_path: Path) -> None:
    builder = captured(NsysBuilder())
    node(builder, 301, 110, of=302)
    node(builder, 302, 111, of=301)
    node(builder, 303, 112, of=303)
    replay(builder, [301, 302, 303], LAUNCH)
    assert layers(read(builder, tmp_path)) == [(None, None, None)] * 3


def test_copies_of_memory_in_a_graph_have_its_layers_too(tmp_path: Path) -> None:
    builder = captured(NsysBuilder())
    builder.call(5, LAUNCH, LAUNCH + 2)
    builder.memcpy(5, 8, 1024)
    builder.tables["CUPTI_ACTIVITY_KIND_MEMCPY"][1][0]["graphNodeId"] = 103
    assert [copy.layer for copy in read(builder, tmp_path).copies] == ["fc"]


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
