"""Launches of one step as ncu and as nsys record them, made up; every expected pair follows from
how they were made."""

import random
import time

from perfctl.orchestrator.counts.kernels.pairing import (
    UnpairedLaunches,
    describe_unpaired,
    extract_bare_name,
    is_layer_selected,
    pair_launches,
)
from perfctl.records.report import Kernel
from tests.make.synthetic import make_run
from tests.make.tables import table

GEMM = "void cutlass::Kernel<cutlass_80_simt_sgemm_128x64>(T1::Params)"
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)"
)


def launch(number, name=GEMM, layer="fc1", direction="forward", step=0, grid=(8, 2, 1), **more):
    return Kernel(
        number,
        name,
        layer=layer,
        direction=direction,
        step=step,
        grid_x=grid[0],
        grid_y=grid[1],
        grid_z=grid[2],
        block_x=128,
        block_y=1,
        block_z=1,
        **more,
    )


def run(profiler, *kernels, **environment):
    return make_run(profiler=profiler, kernels=list(kernels), environment=environment)


def each(*numbers, **more):
    return [launch(number, **more) for number in numbers]


OTHER = GEMM.replace("128x64", "64x64")
COMMON = [launch(2, "common"), launch(3, "common", step=77)]
"""Both have it in both steps, which keeps step 77 from being the first one recorded."""


@table(
    "counted timed pairs left",
    {
        "equal launches in order": (
            [*each(0, 1), launch(2, FILL)],
            [launch(7, FILL), *each(8, 9)],
            ((0, 8), (1, 9), (2, 7)),
            (0, 0),
        ),
        "steps from the first one, the rest is no mismatch": (
            [launch(0, step=3), launch(1, step=4)],
            [launch(10 + step, step=step) for step in range(5)],
            ((0, 10), (1, 11)),
            (0, 0),
        ),
        # ncu sees the launch of the graph only, outside of layers or in the layer that replays it;
        # fc2 is of no graph
        "a graph, whatever layer its capture gave": (
            [launch(0, layer=None, direction=None), launch(1, layer="runner"), launch(2, FILL)],
            [*each(5, 6, layer_source="capture"), launch(7, FILL, "fc2")],
            ((0, 5), (1, 6)),
            (1, 1),
        ),
        **{
            f"another {next(iter(other))}": (each(0), each(0, **other), (), (1, 1))
            for other in (
                {"layer": "fc2"},
                {"direction": "grad_weight"},
                {"name": "void other_kernel(int)"},
            )
        },
        **{
            f"another {field}": (
                [*COMMON, *each(0)],
                [*COMMON, launch(1)._replace(**{field: 77})],
                ((2, 2), (3, 3)),
                (1, 1),
            )
            for field in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "step")
        },
        "names that ncu shortens": (
            [launch(0, "enable_if<!T7, void>::type kernel<int, int, float, float>(T13)")],
            [
                launch(
                    5,
                    "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, float>(T13)",
                )
            ],
            ((0, 5),),
            (0, 0),
        ),
        "a guessed layer and a known one": (
            each(0, layer_source="guessed"),
            each(0, layer_source="range"),
            (),
            (1, 1),
        ),
        "by their start": (
            each(0, 1),
            [launch(0, start_ns=500), launch(1, start_ns=100)],
            ((0, 1), (1, 0)),
            (0, 0),
        ),
        "in order where a start is not known": (
            each(0, 1, 2),
            [launch(0, start_ns=500), launch(1, start_ns=100), launch(2)],
            ((0, 0), (1, 1), (2, 2)),
            (0, 0),
        ),
        "of one start the earlier launch": (
            each(0, 1),
            each(9, 4, start_ns=5),
            ((0, 4), (1, 9)),
            (0, 0),
        ),
        "of twins as many as both have": (
            each(0, 1, 2),
            each(5, 6),
            ((0, 5), (1, 6)),
            (1, 0),
        ),
        "whole names before bare ones": (
            [launch(0, OTHER), launch(1)],
            [launch(5), launch(6, OTHER)],
            ((0, 6), (1, 5)),
            (0, 0),
        ),
    },
)
def test_launches_are_paired_or_listed(counted, timed, pairs, left):
    found = pair_launches(run("ncu", *counted), run("nsys", *timed))
    assert found.pairs == pairs
    assert tuple(map(len, (found.only_counted, found.only_timed))) == left
    assert len(describe_unpaired(found)) == sum(left)


def test_what_is_left_over_is_said_with_side_layer_and_number():
    """A guessed layer is not said."""
    timed = run("nsys", *each(0, 1, 2, name=FILL, layer=None, direction=None), launch(3))
    assert describe_unpaired(pair_launches(run("ncu", launch(0)), timed)) == [
        "3 launches of vectorized_elementwise_kernel (outside of layers) recorded by nsys "
        "but not by ncu"
    ]
    found = pair_launches(run("ncu", launch(0), launch(1, layer_source="guessed")), run("nsys"))
    assert found.only_counted == (
        UnpairedLaunches(GEMM, "fc1", "forward", 1),
        UnpairedLaunches(GEMM, None, None, 1),
    )


@table(
    "name bare",
    [
        (FILL, "vectorized_elementwise_kernel"),
        (
            "volta_scudnn_128x64_relu_xregs_large_nn_v1",
            "volta_scudnn_128x64_relu_xregs_large_nn_v1",
        ),
        ("void <unnamed>::softmax_warp_forward<float, (int)10>(T1 *)", "softmax_warp_forward"),
        ("void (anonymous namespace)::elementwise_kernel<(int)2>(int)", "elementwise_kernel"),
        ("", ""),
    ],
)
def test_the_bare_name_is_what_every_tool_prints(name, bare):
    assert extract_bare_name(name) == bare


def test_launches_elsewhere_are_not_missed_where_ncu_was_narrowed_to_a_layer():
    counted = run("ncu", launch(0, layer="model.fc1"), **{"ncu:layers": "fc1"})
    timed = run(
        "nsys",
        launch(0, layer="model.conv1"),
        launch(1, layer="model.fc1"),
        launch(2, FILL, layer=None),
    )
    found = pair_launches(counted, timed)
    assert (found.pairs, found.only_timed) == (((0, 1),), ())


@table(
    "layer is_inside",
    [
        ("layer1", True),
        ("layer1.0.conv1", True),
        ("model.layer1.0", True),
        ("layer10", False),
        ("xlayer1", False),
        (None, False),
    ],
)
def test_a_layer_holds_itself_and_those_below_it(layer, is_inside):
    assert is_layer_selected(layer, ("layer1",)) is is_inside
    assert is_layer_selected(layer, ()) is True


def test_a_shuffled_recording_of_many_steps_is_matched_whole_and_in_linear_time():
    kernels = [
        launch(n, f"k{n % 7}", f"l{n % 5}", step=n // 100, start_ns=n) for n in range(10_000)
    ]
    mixed = random.Random(1).sample(kernels, len(kernels))
    began = time.process_time()
    found = pair_launches(run("ncu", *kernels), run("nsys", *mixed))
    assert found.pairs == tuple((n, n) for n in range(len(kernels)))
    assert time.process_time() - began < 3


def test_launches_outside_of_common_steps_need_no_partner():
    counted = run("ncu", launch(0, step=5), launch(1, step=6), launch(2, step=None))
    timed = run("nsys", launch(10, step=0), launch(11, step=None), launch(12, step=None))
    found = pair_launches(counted, timed)
    assert (found.pairs, found.only_counted, found.only_timed) == (((0, 10),), (), ())
    ahead = pair_launches(
        counted, run("nsys", *(launch(10 + step, step=step) for step in range(5)))
    )
    assert (ahead.pairs, ahead.only_timed) == (((0, 10), (1, 11)), ())
    assert (found.counted_by, found.timed_by) == ("ncu", "nsys")
    stepless = pair_launches(
        run("ncu", launch(0, step=None), launch(1, step=None)),
        run("torch", launch(7, step=None), launch(8, step=0)),
    )
    assert (stepless.pairs, stepless.timed_by) == (((0, 7),), "torch")
    assert [(left.name, left.launches) for left in stepless.only_timed] == [(GEMM, 1)]


@table("kernels more", [(19, 0), (20, 0), (21, 1), (30, 10)])
def test_twenty_lines_are_shown_the_most_launched_first(kernels, more):
    launches = [launch(100 * n + at, f"k{n}") for n in range(kernels) for at in range(n + 1)]
    lines = describe_unpaired(pair_launches(run("ncu", *launches), run("nsys")))
    assert len(lines) == min(kernels, 20) + (more > 0)
    assert (
        lines[0]
        == f"{kernels} launches of k{kernels - 1} (fc1, forward) recorded by ncu but not by nsys"
    )
    assert lines[-1] == (
        f"and {more} more kernels without a partner"
        if more
        else "1 launch of k0 (fc1, forward) recorded by ncu but not by nsys"
    )
