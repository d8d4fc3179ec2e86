"""Which layers repeat another, and what becomes of ncu's report when only one of each was replayed.
All made up: every count follows from the shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.kernels.replays import (
    EXTRAPOLATED,
    FirstPass,
    Site,
    extrapolated,
    first_pass,
    read_first_pass,
    with_repeats,
)
from perfctl.records.paper import OpShape
from perfctl.records.report import Counter, Kernel, Report

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
TIME = "gpu__time_duration.sum"


def linear(layer: str, depth: int, bias: bool = True, position: int = 0) -> OpShape:
    """A product with 64 x 256 outputs: another depth gives no other kernel, and no other grid."""
    op = "aten.addmm" if bias else "aten.mm"
    inputs = (((256,),) if bias else ()) + ((64, depth), (depth, 256))
    return OpShape(
        layer,
        "Linear",
        op,
        "forward",
        inputs,
        ((64, 256),),
        ("float32",),
        {"alpha": 1},
        0,
        1,
        position,
    )


def launch(
    number: int, layer: str | None, name: str = "ampere_sgemm_64x64_tn", grid: int = 4
) -> Kernel:
    direction = "forward" if layer else None
    return Kernel(
        number,
        name,
        layer=layer,
        direction=direction,
        grid_x=grid,
        grid_y=1,
        grid_z=1,
        block_x=64,
        block_y=1,
        block_z=1,
        start_ns=number,
        duration_ns=100,
    )


LAYERS = ("block.0.up", "block.1.up", "block.2.down", "block.3.bare", "block.4.wide")
OPS = (
    linear("block.0.up", 256),
    linear("block.1.up", 256, position=3),
    linear("block.2.down", 1024),
    linear("block.3.bare", 256, bias=False),
    linear("block.4.wide", 256),
)
STEP = [
    launch(number, layer, grid=8 if layer.endswith("wide") else 4)
    for number, layer in enumerate(LAYERS)
]


def test_only_the_same_kernels_grids_and_shapes_repeat_one_another() -> None:
    """Not another depth, not the same product without a bias, not another grid; one outside of
    layers has no shapes."""
    found = first_pass([*STEP, launch(5, None)], OPS)
    assert dict(found.twins) == {Site("block.1.up", "forward"): Site("block.0.up", "forward")}
    assert (found.all_launches, found.saved) == (6, 1)


@pytest.mark.parametrize(
    "name", ["indexSelectLargeIndex", "void DeviceRadixSortOnesweepKernel<x>", "embedding_backward"]
)
def test_kernels_whose_work_depends_on_the_data_are_all_replayed(name: str) -> None:
    kernels = [launch(number, layer, name) for number, layer in enumerate(LAYERS[:2])]
    assert not first_pass(kernels, OPS).twins


def test_a_layer_whose_shapes_are_not_known_is_replayed() -> None:
    assert not first_pass(STEP, OPS[2:]).twins


def test_the_file_of_the_first_pass_reads_as_it_was_written() -> None:
    found = first_pass(STEP, OPS)
    assert read_first_pass(json.loads(json.dumps(found.as_json()))) == found
    broken = found.as_json() | {"twins": [["a", "forward", "b", "forward"]]}
    with pytest.raises(ValueError, match="without launches"):
        read_first_pass(broken)


def report(*kernels: Kernel) -> Report:
    values = {"block.0.up": 64 * 256 * 257, "block.1.up": 7, "block.2.down": 64 * 256 * 1025}
    counters = [
        one
        for kernel in kernels
        for one in (
            Counter(kernel.launch, FFMA, values.get(kernel.layer or "", 1), "inst"),
            Counter(kernel.launch, TIME, 9, "ns"),
        )
    ]
    return Report("ncu", Path("report.csv"), "ncu CSV", kernels=kernels, counters=counters)


PLAIN = first_pass(STEP, OPS)


def ffma(found: Report) -> dict[str | None, list[object]]:
    by_launch = {one.launch: one.value for one in found.counters if one.name == FFMA}
    return {
        layer: [by_launch[k.launch] for k in found.kernels if k.layer == layer] for layer in LAYERS
    }


@pytest.mark.parametrize("steps", [1, 3])
def test_a_layer_that_was_left_out_gets_the_counts_of_the_one_it_repeats_and_is_marked(
    steps: int,
) -> None:
    seen = [
        k._replace(launch=s * 9 + k.launch, step=s)
        for s in range(steps)
        for k in STEP
        if k.layer != "block.1.up"
    ]
    found = with_repeats(report(*seen), PLAIN)
    assert ffma(found)["block.1.up"] == ffma(found)["block.0.up"] == [64 * 256 * 257] * steps
    added = [kernel for kernel in found.kernels if kernel.layer == "block.1.up"]
    assert [(kernel.step, kernel.duration_ns, kernel.start_ns) for kernel in added] == [
        (s, None, None) for s in range(steps)
    ]
    marked = [one for one in found.counters if one.section == EXTRAPOLATED]
    assert (
        {one.launch for one in marked}
        == {kernel.launch for kernel in added}
        == extrapolated(found.counters)
    )
    assert {one.name for one in marked} == {FFMA}, "time is not carried over"
    assert len({kernel.launch for kernel in found.kernels}) == 5 * steps
    assert found.environment["ncu:extrapolated"].startswith(
        f"{steps} of {5 * steps} launches were not replayed"
    )
    assert not found.gaps


def test_a_copied_launch_was_neither_counted_nor_started_by_a_graph_and_has_the_rest_of_what_it_repeats() -> (
    None
):
    own = {
        "source": "counted",
        "correlation": 5,
        "graph_id": 6,
        "graph_node_id": 7,
        "context": 1,
        "occupancy": 0.5,
    }
    seen = [kernel._replace(**own) for kernel in STEP if kernel.layer != "block.1.up"]
    (added,) = [
        kernel
        for kernel in with_repeats(report(*seen), PLAIN).kernels
        if kernel.layer == "block.1.up"
    ]
    assert (added.source, added.correlation, added.graph_id, added.graph_node_id) == (
        None,
        None,
        None,
        None,
    )
    assert (added.context, added.occupancy) == (1, 0.5)


def test_what_ncu_replayed_all_the_same_keeps_its_own_counts() -> None:
    found = with_repeats(report(*STEP), PLAIN)
    assert (ffma(found)["block.1.up"], found.environment) == ([7], {})


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ([k for k in STEP if not k.layer or "up" not in k.layer], "ncu counted no launch of that"),
        (
            [launch(0, "block.0.up", "another_gemm")],
            "its 1 launches under ncu are not the 1 of the plain step",
        ),
        (
            [launch(0, "block.0.up"), launch(1, "block.0.up", "split")],
            "its 2 launches under ncu are not the 1",
        ),
        ([launch(0, "block.0.up", grid=5)], "its 1 launches under ncu are not the 1"),
    ],
)
def test_where_ncu_saw_other_launches_the_count_is_unknown_and_says_why(
    seen: list[Kernel], reason: str
) -> None:
    found = with_repeats(report(*seen), PLAIN)
    assert ffma(found)["block.1.up"] == []
    (gap,) = found.gaps
    assert (gap.quantity, gap.state, gap.scope) == (
        "counter",
        "not_collected",
        "block.1.up:forward",
    )
    assert gap.reason.startswith(f"it repeats block.0.up:forward, and {reason}")


def test_names_may_be_printed_as_each_tool_prints_them() -> None:
    """torch prints templates in full, ncu with casts before numbers."""
    torch = [k._replace(name="void at::native::relu<float, 4>(float*, int)") for k in STEP]
    ncu = STEP[0]._replace(name="void at::native::relu<float, (int)4>(T1 *, int)")
    found = with_repeats(report(ncu), first_pass(torch, OPS))
    assert len(ffma(found)["block.1.up"]) == 1


def test_nothing_repeats_without_a_plan() -> None:
    plain = replace(PLAIN, twins={})
    assert isinstance(plain, FirstPass)
    assert with_repeats(report(*STEP), plain).kernels == tuple(STEP)
