"""Which layers repeat another, and what becomes of ncu's report when only one of each was replayed.
All made up: every count follows from the shapes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.kernels.replays import (
    EXTRAPOLATED,
    FirstPass,
    LaunchSite,
    add_unreplayed_repeats_to_report,
    build_first_pass,
    collect_exclusion_reasons,
    find_extrapolated_launches,
    parse_first_pass,
)
from perfctl.records.report import Counter, Kernel, Range, Report
from tests.make.shapes import op
from tests.make.tables import table

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
TIME = "gpu__time_duration.sum"


def linear(layer, depth, bias=True, position=0):
    """A product with 64 x 256 outputs: another depth gives no other kernel, and no other grid."""
    inputs = (((256,),) if bias else ()) + ((64, depth), (depth, 256))
    shape = op("aten.addmm" if bias else "aten.mm", inputs, ((64, 256),), layer=layer)
    return replace(shape, position=position)


def launch(number, layer, name="ampere_sgemm_64x64_tn", grid=4):
    direction = "forward" if layer else None
    return Kernel(
        number,
        name,
        layer=layer,
        direction=direction,
        range_number=number if layer else None,
        grid_x=grid,
        grid_y=1,
        grid_z=1,
        block_x=64,
        block_y=1,
        block_z=1,
        start_ns=number,
        duration_ns=100,
    )


def range_of(kernel):
    """The range that enclosed its launch."""
    number = kernel.range_number or 0
    name = f"{kernel.layer}:{kernel.direction}"
    return Range(number, name, None, 0, 1, 1, 0, None, layer=kernel.layer, direction="forward")


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


RANGES = tuple(map(range_of, STEP))


def test_only_the_same_kernels_grids_and_shapes_repeat_one_another():
    """Not another depth, not the same product without a bias, not another grid; one outside of
    layers has no shapes."""
    found = build_first_pass([*STEP, launch(5, None)], OPS, RANGES)
    assert dict(found.twins) == {
        LaunchSite("block.1.up", "forward"): LaunchSite("block.0.up", "forward")
    }
    assert (found.all_launches, found.launches_without_replay) == (6, 1)


@table(
    "name", ["indexSelectLargeIndex", "void DeviceRadixSortOnesweepKernel<x>", "embedding_backward"]
)
def test_kernels_whose_work_depends_on_the_data_are_all_replayed(name):
    kernels = [launch(number, layer, name) for number, layer in enumerate(LAYERS[:2])]
    assert not build_first_pass(kernels, OPS, RANGES).twins


def test_a_layer_whose_shapes_are_not_known_is_replayed():
    assert not build_first_pass(STEP, OPS[2:], RANGES).twins


def test_the_file_of_the_first_pass_reads_as_it_was_written():
    found = build_first_pass(STEP, OPS, RANGES)
    assert parse_first_pass(json.loads(json.dumps(found.as_json()))) == found
    broken = found.as_json() | {"twins": [["a", "forward", "b", "forward"]]}
    with pytest.raises(ValueError, match="without launches"):
        parse_first_pass(broken)


def report(*kernels):
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


PLAIN = build_first_pass(STEP, OPS, RANGES)
REST = [kernel for kernel in STEP if kernel.layer != "block.1.up"]


def twin(found):
    """Return the launches of the layer that repeats block.0.up."""
    return [kernel for kernel in found.kernels if kernel.layer == "block.1.up"]


def ffma(found):
    by_launch = {one.launch: one.value for one in found.counters if one.name == FFMA}
    return {
        layer: [by_launch.get(k.launch) for k in found.kernels if k.layer == layer]
        for layer in LAYERS
    }


@table("steps", [1, 3])
def test_a_layer_that_was_left_out_gets_the_counts_of_the_one_it_repeats_and_is_marked(steps):
    seen = [
        kernel._replace(launch=step * 9 + kernel.launch, step=step)
        for step in range(steps)
        for kernel in REST
    ]
    found = add_unreplayed_repeats_to_report(report(*seen), PLAIN)
    assert ffma(found)["block.1.up"] == ffma(found)["block.0.up"] == [64 * 256 * 257] * steps
    added = twin(found)
    assert [(kernel.step, kernel.duration_ns, kernel.start_ns) for kernel in added] == [
        (s, None, None) for s in range(steps)
    ]
    marked = [one for one in found.counters if one.section == EXTRAPOLATED]
    assert (
        {one.launch for one in marked}
        == {kernel.launch for kernel in added}
        == find_extrapolated_launches(found.counters)
    )
    assert {one.name for one in marked} == {FFMA}, "time is not carried over"
    assert len({kernel.launch for kernel in found.kernels}) == 5 * steps
    assert found.environment["ncu:extrapolated"].startswith(
        f"{steps} of {5 * steps} launches were not replayed"
    )
    assert not found.gaps


def test_a_copied_launch_was_neither_counted_nor_started_by_a_graph_and_has_the_rest_of_what_it_repeats():
    own = {
        "source": "counted",
        "correlation": 5,
        "graph_id": 6,
        "graph_node_id": 7,
        "context": 1,
        "occupancy": 0.5,
    }
    seen = [kernel._replace(**own) for kernel in REST]
    (added,) = twin(add_unreplayed_repeats_to_report(report(*seen), PLAIN))
    assert {added.source, added.correlation, added.graph_id, added.graph_node_id} == {None}
    assert (added.context, added.occupancy) == (1, 0.5)


def test_what_ncu_replayed_all_the_same_keeps_its_own_counts():
    found = add_unreplayed_repeats_to_report(report(*STEP), PLAIN)
    assert (ffma(found)["block.1.up"], found.environment) == ([7], {})


@table(
    "seen reason",
    [
        ([k for k in STEP if not k.layer or "up" not in k.layer], "ncu counted no launch of it"),
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
def test_where_ncu_saw_other_launches_the_count_is_unknown_and_says_why(seen, reason):
    found = add_unreplayed_repeats_to_report(report(*seen), PLAIN)
    assert ffma(found)["block.1.up"] == [None]
    (gap,) = found.gaps
    assert (gap.quantity, gap.state, gap.scope) == (
        "counter",
        "not_collected",
        "block.1.up:forward",
    )
    assert gap.reason.startswith(
        f"ncu excluded it because it repeats block.0.up:forward, and {reason}"
    )
    (unknown,) = twin(found)
    assert (unknown.name, unknown.grid_x, unknown.source) == ("ampere_sgemm_64x64_tn", 4, None)
    assert collect_exclusion_reasons(found.gaps) == {
        LaunchSite("block.1.up", "forward"): gap.reason
    }


def test_a_launch_outside_of_the_ranges_of_its_layer_is_none_that_ncu_leaves_out():
    """autograd's engine adds two gradients of one tensor when the range of the node is closed:
    torch's trace knows the layer, ncu sees the launch outside of all ranges (seen on an H100)."""
    sums = [
        launch(number, layer, "vectorized_elementwise_kernel")._replace(range_number=None)
        for number, layer in ((5, "block.0.up"), (6, "block.1.up"))
    ]
    plain = build_first_pass([*STEP, *sums], OPS, RANGES)
    assert plain == replace(PLAIN, all_launches=7)
    seen = [*REST, *(kernel._replace(layer=None, direction=None) for kernel in sums)]
    assert ffma(add_unreplayed_repeats_to_report(report(*seen), plain))["block.1.up"] == [
        64 * 256 * 257
    ]


def test_a_range_of_the_program_s_own_inside_a_layer_s_changes_nothing():
    """torch.profiler sees record_function, which is no NVTX range."""
    inner = Range(9, "attention", None, 0, 1, 1, 1, 1)
    kernels = [
        kernel._replace(range_number=9) if kernel.layer == "block.1.up" else kernel
        for kernel in STEP
    ]
    assert build_first_pass(kernels, OPS, (*RANGES, inner)) == PLAIN


def two_launches(layer, number):
    return [launch(number, layer), launch(number, layer, "split_k_reduce")]


TWICE = [*two_launches("block.0.up", 0), *two_launches("block.1.up", 1)]


def test_of_a_layer_that_ncu_replayed_in_part_the_rest_is_taken_over():
    plain = build_first_pass(TWICE, OPS, RANGES)
    assert plain.twins
    seen = [kernel._replace(launch=number) for number, kernel in enumerate(TWICE[:3])]
    found = add_unreplayed_repeats_to_report(report(*seen), plain)
    assert ffma(found)["block.1.up"] == [7, 64 * 256 * 257]
    assert not found.gaps


@table("steps", [1, 2])
def test_a_layer_that_ncu_replayed_in_part_and_otherwise_has_launches_without_counts(steps):
    plain = build_first_pass(TWICE, OPS, RANGES)
    one = [*two_launches("block.0.up", 0), launch(1, "block.1.up", "another")]
    seen = [
        kernel._replace(launch=step * 3 + number, step=step)
        for step in range(steps)
        for number, kernel in enumerate(one)
    ]
    found = add_unreplayed_repeats_to_report(report(*seen), plain)
    unknown = {kernel.launch for kernel in found.kernels} - {one.launch for one in found.counters}
    names = [kernel.name for kernel in found.kernels if kernel.launch in unknown]
    assert sorted(names) == sorted(["ampere_sgemm_64x64_tn", "split_k_reduce"] * steps)
    assert "launched different kernels" in found.gaps[0].reason


def test_names_may_be_printed_as_each_tool_prints_them():
    """torch prints templates in full, ncu with casts before numbers."""
    torch = [k._replace(name="void at::native::relu<float, 4>(float*, int)") for k in STEP]
    ncu = STEP[0]._replace(name="void at::native::relu<float, (int)4>(T1 *, int)")
    found = add_unreplayed_repeats_to_report(report(ncu), build_first_pass(torch, OPS, RANGES))
    assert len(ffma(found)["block.1.up"]) == 1


def test_nothing_repeats_without_a_plan():
    plain = replace(PLAIN, twins={})
    assert isinstance(plain, FirstPass)
    assert add_unreplayed_repeats_to_report(report(*STEP), plain).kernels == tuple(STEP)
