"""Launches of one step as ncu and as nsys record them, made up; every expected pair follows from
how they were made."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.kernels.pairing import (
    Left,
    bare_name,
    inside,
    match,
    narrowed_to,
    unmatched_lines,
)
from perfctl.records.report import Kernel, Report
from perfctl.records.run import Run

GEMM = "void cutlass::Kernel<cutlass_80_simt_sgemm_128x64>(T1::Params)"
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)"
)


def launch(
    number: int,
    name: str = GEMM,
    layer: str | None = "fc1",
    direction: str | None = "forward",
    step: int | None = 0,
    grid: tuple[int, int, int] = (8, 2, 1),
    **more: object,
) -> Kernel:
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
    )  # type: ignore[arg-type]


def run(profiler: str, *kernels: Kernel, **environment: str) -> Run:
    report = Report(
        profiler, Path("report"), "synthetic", kernels=list(kernels), environment=environment
    )
    return Run(
        id=1,
        sweep_id=1,
        sweep_name="synthetic",
        sweep_command=None,
        host=None,
        profiler=profiler,
        profiler_version=None,
        workload="mnist_cnn",
        batch_size=64,
        mode="train",
        precision="fp32",
        device=None,
        status="ok",
        origin="synthetic",
        exit_code=0,
        reason=None,
        started_at=None,
        duration_ns=None,
        artifact=None,
        artifact_sha256=None,
        report=report,
    )


def test_equal_launches_are_paired_in_order() -> None:
    counted = run("ncu", launch(0), launch(1), launch(2, FILL))
    timed = run("nsys", launch(7, FILL), launch(8), launch(9))
    found = match(counted, timed)
    assert found.pairs == ((0, 8), (1, 9), (2, 7))
    assert (found.only_counted, found.only_timed, unmatched_lines(found)) == ((), (), [])


def test_steps_are_aligned_from_the_first_one_and_what_only_one_recorded_is_no_mismatch() -> None:
    counted = run("ncu", launch(0, step=3), launch(1, step=4))
    timed = run("nsys", *(launch(10 + step, step=step) for step in range(5)))
    found = match(counted, timed)
    assert found.pairs == ((0, 10), (1, 11))
    assert (found.steps, found.beyond) == (2, 5 - 2)
    assert unmatched_lines(found) == []


def test_kernels_of_a_graph_pair_whatever_layer_their_capture_gave_them() -> None:
    """ncu sees the launch of the graph only: outside of layers, or in the layer that replays
    the graph."""
    counted = run(
        "ncu", launch(0, layer=None, direction=None), launch(1, layer="runner"), launch(2, FILL)
    )
    timed = run(
        "nsys",
        *(launch(number, layer_source="capture") for number in (5, 6)),
        launch(7, FILL, "fc2"),
    )
    found = match(counted, timed)
    assert found.pairs == ((0, 5), (1, 6))
    assert [item.name for item in (*found.only_counted, *found.only_timed)] == [FILL, FILL], (
        "fc2 is of no graph"
    )


@pytest.mark.parametrize(
    "other",
    [
        {"layer": "fc2"},
        {"direction": "grad_weight"},
        {"grid": (8, 4, 1)},
        {"name": "void other_kernel(int)"},
    ],
)
def test_launches_that_differ_in_one_thing_are_listed_on_both_sides(
    other: dict[str, object],
) -> None:
    found = match(run("ncu", launch(0)), run("nsys", launch(0, **other)))  # type: ignore[arg-type]
    assert found.pairs == ()
    assert found.only_counted == (Left(GEMM, "fc1", "forward", 1),)
    assert [item.launches for item in found.only_timed] == [1]
    assert len(unmatched_lines(found)) == 2


def test_what_is_left_over_is_said_with_side_layer_and_number() -> None:
    timed = run(
        "nsys",
        *(launch(number, FILL, layer=None, direction=None) for number in range(3)),
        launch(3),
    )
    found = match(run("ncu", launch(0)), timed)
    assert unmatched_lines(found) == [
        (
            "3 launches of vectorized_elementwise_kernel (outside of layers) recorded by nsys "
            "but not by ncu"
        )
    ]


def test_names_that_ncu_shortens_are_still_the_same_kernel() -> None:
    full = "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, float>(T13)"
    short = "enable_if<!T7, void>::type kernel<int, int, float, float>(T13)"
    assert match(run("ncu", launch(0, short)), run("nsys", launch(5, full))).pairs == ((0, 5),)


@pytest.mark.parametrize(
    ("name", "bare"),
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
def test_the_bare_name_is_what_every_tool_prints(name: str, bare: str) -> None:
    assert bare_name(name) == bare


def test_launches_elsewhere_are_not_missed_where_ncu_was_narrowed_to_a_layer() -> None:
    counted = run("ncu", launch(0, layer="model.fc1"), **{"ncu:layers": "fc1"})
    timed = run(
        "nsys",
        launch(0, layer="model.conv1"),
        launch(1, layer="model.fc1"),
        launch(2, FILL, layer=None),
    )
    found = match(counted, timed)
    assert (found.pairs, found.only_timed) == (((0, 1),), ())


@pytest.mark.parametrize(
    ("layer", "is_inside"),
    [
        ("layer1", True),
        ("layer1.0.conv1", True),
        ("model.layer1.0", True),
        ("layer10", False),
        ("xlayer1", False),
        (None, False),
    ],
)
def test_a_layer_holds_itself_and_those_below_it(layer: str | None, is_inside: bool) -> None:
    assert inside(layer, ("layer1",)) is is_inside
    assert inside(layer, ()) is True


def test_a_guessed_layer_is_not_set_against_a_known_one() -> None:
    found = match(
        run("ncu", launch(0, layer_source="guessed")), run("nsys", launch(0, layer_source="range"))
    )
    assert (found.pairs, found.only_counted[0].layer) == ((), None)


def test_launches_are_ordered_by_their_start_where_the_recording_tells_it() -> None:
    timed = run("nsys", launch(0, start_ns=500), launch(1, start_ns=100))
    assert match(run("ncu", launch(0), launch(1)), timed).pairs == ((0, 1), (1, 0))


def test_a_shuffled_recording_of_many_steps_is_matched_whole_and_in_linear_time() -> None:
    kernels = [
        launch(n, f"k{n % 7}", f"l{n % 5}", step=n // 100, start_ns=n) for n in range(40_000)
    ]
    mixed = random.Random(1).sample(kernels, len(kernels))
    began = time.process_time()
    found = match(run("ncu", *kernels), run("nsys", *mixed))
    assert found.pairs == tuple((n, n) for n in range(len(kernels)))
    assert time.process_time() - began < 10


def test_launches_outside_of_common_steps_are_beyond_on_both_sides() -> None:
    counted = run("ncu", launch(0, step=5), launch(1, step=6), launch(2, step=None))
    timed = run("nsys", launch(10, step=0), launch(11, step=None), launch(12, step=None))
    found = match(counted, timed)
    assert (found.pairs, found.steps, found.beyond) == (((0, 10),), 1, 1 + 1 + 2)
    assert (found.counted_by, found.timed_by) == ("ncu", "nsys")
    stepless = match(
        run("ncu", launch(0, step=None), launch(1, step=None)),
        run("torch", launch(7, step=None), launch(8, step=0)),
    )
    assert (stepless.pairs, stepless.steps, stepless.beyond, stepless.timed_by) == (
        ((0, 7),),
        0,
        0,
        "torch",
    )
    assert [(left.name, left.launches) for left in stepless.only_timed] == [(GEMM, 1)]


@pytest.mark.parametrize(
    "field", ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "step"]
)
def test_every_side_of_grid_and_block_must_agree(field: str) -> None:
    one, other = launch(0), launch(1)._replace(**{field: 77})
    # A launch that both have in both steps keeps step 77 from being the first one recorded.
    common = [launch(2, "common"), launch(3, "common", step=77)]
    found = match(run("ncu", *common, one), run("nsys", *common, other))
    assert (found.pairs, len(found.only_counted), len(found.only_timed)) == (((2, 2), (3, 3)), 1, 1)


def test_of_twins_as_many_are_paired_as_both_have_and_whole_names_come_first() -> None:
    found = match(run("ncu", launch(0), launch(1), launch(2)), run("nsys", launch(5), launch(6)))
    assert (found.pairs, found.only_counted) == (
        ((0, 5), (1, 6)),
        (Left(GEMM, "fc1", "forward", 1),),
    )
    other = GEMM.replace("128x64", "64x64")
    crossed = match(
        run("ncu", launch(0, other), launch(1)), run("nsys", launch(5), launch(6, other))
    )
    assert crossed.pairs == ((0, 6), (1, 5)), "not as their bare names stand in order"


def test_launches_keep_their_order_where_a_start_is_not_known() -> None:
    timed = run("nsys", launch(0, start_ns=500), launch(1, start_ns=100), launch(2))
    assert match(run("ncu", launch(0), launch(1), launch(2)), timed).pairs == (
        (0, 0),
        (1, 1),
        (2, 2),
    )
    alike = run("nsys", launch(9, start_ns=5), launch(4, start_ns=5))
    assert match(run("ncu", launch(0), launch(1)), alike).pairs == ((0, 4), (1, 9)), (
        "of one start the earlier launch"
    )


@pytest.mark.parametrize(("kernels", "more"), [(19, 0), (20, 0), (21, 1), (30, 10)])
def test_twenty_lines_are_shown_the_most_launched_first(kernels: int, more: int) -> None:
    launches = [launch(100 * n + place, f"k{n}") for n in range(kernels) for place in range(n + 1)]
    lines = unmatched_lines(match(run("ncu", *launches), run("nsys")))
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


def test_a_run_is_narrowed_to_the_layers_it_was_told() -> None:
    assert narrowed_to(run("ncu")) == ()
    assert narrowed_to(run("ncu", **{"ncu:layers": ""})) == ()
    assert narrowed_to(run("ncu", **{"ncu:layers": "conv1, fc2"})) == ("conv1", "fc2")
    assert inside("model.fc2", ("conv1", "fc2"))
    assert not inside("fc", ("conv1", "fc2"))
