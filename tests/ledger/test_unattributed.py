"""What the time is that no layer explains: each cause from a run made for it."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.ledger.analysis import analyse
from perfctl.orchestrator.ledger.ledger import (
    BETWEEN,
    COMPILED_CODE,
    NO_BACKWARD,
    NO_CALL,
    NO_RANGES,
    beyond_time,
    explain_unattributed,
    ledger,
)
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.report.findings import findings
from perfctl.records.report import Gap, Kernel, Range
from perfctl.records.run import Run
from tests.make import synthetic
from tests.make.synthetic import study_of


def kernel(
    launch: int, duration: int, inside: int | None = None, name: str = "k", **more: object
) -> Kernel:
    return Kernel(
        launch,
        name,
        range_number=inside,
        start_ns=launch,
        duration_ns=duration,
        **{"step": 0, **more},
    )


def span(
    number: int, name: str, parent: int | None = None, duration: int | None = 100, **more: object
) -> Range:
    return Range(
        number, name, None, number, duration, 1, 0 if parent is None else 1, parent, step=0, **more
    )


def gpu(kernels: list[Kernel], ranges: list[Range], **more: object) -> Run:
    return synthetic.make_run(
        1,
        profiler="nsys",
        device=synthetic.V100,
        kernels=kernels,
        ranges=ranges,
        layer_calls=synthetic.layer_calls(64),
        **more,
    )


STEP = span(0, "perfctl:step:0")
FORWARD = span(1, "perfctl:phase:forward", 0, phase="forward")
BACKWARD = span(2, "perfctl:phase:backward", 0, phase="backward")
CONV = span(3, "conv1:forward", 1, layer="conv1", direction="forward", phase="forward")
GRADIENT = span(4, "conv1:backward", layer="conv1", direction="backward", phase="backward")
IN_CONV = {"layer": "conv1", "direction": "forward", "layer_source": "range"}


def shares(run: Run) -> dict[str, float]:
    return {cause.text: cause.share for cause in explain_unattributed(PreparedRun(run))}


def test_compiled_code_is_told_by_its_range_or_its_kernels() -> None:
    compiled = span(5, "Torch-Compiled Region: 0/0", 1, phase="forward")
    kernels = [
        kernel(0, 50, 3, **IN_CONV),
        kernel(1, 30, 5),
        kernel(2, 20, 1, "triton_poi_fused_relu_0"),
    ]
    found = shares(gpu(kernels, [STEP, FORWARD, CONV, GRADIENT, compiled]))
    assert found == {COMPILED_CODE: 1}


def test_launches_outside_of_all_steps_and_graphs_without_kernels_are_not_in_the_time() -> None:
    kernels = [kernel(0, 50, 3, **IN_CONV), kernel(1, 1000, step=None)]
    gap = Gap(
        "kernel",
        "not_collected",
        "CUDA graphs were recorded as a whole: record with --cuda-graph-trace=node",
    )
    run = gpu(kernels, [STEP, FORWARD, CONV], gaps=(gap,))
    assert explain_unattributed(PreparedRun(run)) == ()
    graph, outside = beyond_time(run)
    assert "--cuda-graph-trace=node" in graph
    assert outside.startswith("1 of 2 launches are outside of all measured steps")


def test_on_a_cpu_it_is_what_phases_and_steps_hold_beside_layers() -> None:
    ranges = [
        span(0, "perfctl:step:0", None, 1000),
        span(1, "perfctl:phase:forward", 0, 600, phase="forward"),
        span(2, "Net:forward", 1, 500, layer="Net", direction="forward", phase="forward"),
        span(3, "conv1:forward", 2, 450, layer="conv1", direction="forward", phase="forward"),
        span(4, "perfctl:phase:data", 0, 150, phase="data"),
        span(5, "perfctl:phase:optimizer", 0, 50, phase="optimizer"),
    ]
    run = synthetic.make_run(1, profiler="torch", ranges=ranges)
    found = shares(run)
    left = {"step": 1000 - 600 - 150 - 50, "forward": 600 - 500, "data": 150}
    assert found[BETWEEN] == left["step"] / sum(left.values())
    assert found["data loading and copies to the device"] == left["data"] / sum(left.values())
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize(("loose", "said"), [(4, False), (20, True)])
def test_the_page_speaks_of_it_above_a_twentieth(loose: int, said: bool) -> None:
    kernels = [kernel(0, 96, 3, **IN_CONV), kernel(1, loose, 1)]
    study = study_of(gpu(kernels, [STEP, FORWARD, BACKWARD, CONV, GRADIENT]))
    texts = [
        item.text
        for item in findings(analyse(study))
        if "is not attributed to a layer" in item.text
    ]
    assert bool(texts) is said
    if said:
        share = f"{loose / (96 + loose) * 100:.1f}%"
        assert texts[0].startswith(f"{share} of the kernel time of all steps at batch 64")
        assert f": mostly the loss and functional calls ({share}, 1 launch)." in texts[0]


def test_a_run_of_which_no_kernel_has_a_layer_still_has_its_row_of_unattributed_time() -> None:
    study = study_of(gpu([kernel(0, 10), kernel(1, 30)], [STEP]))
    (item,) = ledger(study).unattributed
    assert (item.share, item.time.median) == (1, 40)


def test_a_run_whose_kernels_took_no_time_at_all_has_no_share_to_state() -> None:
    study = study_of(gpu([kernel(0, 0), kernel(1, 0, 3, **IN_CONV)], [STEP, CONV]))
    found = ledger(study)
    assert found.unattributed == ()
    assert {row.share for row in found.rows} == {None}


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        ("data", "data loading and copies to the device"),
        ("copy", "copies to the device"),
        ("zero_grad", "setting gradients to zero"),
        ("forward", "the loss and functional calls"),
        ("inference", "functional calls"),
        ("backward", "autograd"),
        ("logging", "the phase logging"),
    ],
)
def test_each_phase_is_named_on_either_clock(phase: str, cause: str) -> None:
    around = [
        STEP,
        span(1, f"perfctl:phase:{phase}", 0, 60, phase=phase),
        CONV._replace(parent=0),
        GRADIENT,
    ]
    inner = span(7, "aten::relu", 1)
    (found,) = explain_unattributed(
        PreparedRun(gpu([kernel(0, 50, 3, **IN_CONV), kernel(1, 30, 7)], [*around, inner]))
    )
    assert (found.text, found.share, found.launches) == (cause, 1, 1)
    timed = synthetic.make_run(
        ranges=[
            STEP,
            around[1],
            span(3, "conv1:forward", 1, 25, layer="conv1", direction="forward"),
        ]
    )
    # 100 of the step, 60 of the phase, 25 of a layer in it.
    assert [
        (item.text, item.share, item.launches) for item in explain_unattributed(PreparedRun(timed))
    ] == [
        (BETWEEN, 40 / 75, None),
        (cause, 35 / 75, None),
    ]


def test_the_largest_cause_is_first_and_each_has_its_launches() -> None:
    kernels = [
        kernel(0, 50, 3, **IN_CONV),
        kernel(1, 10, 0),
        kernel(2, 20, 2),
        kernel(3, 25, 2),
        kernel(4, 15),
        kernel(5, 99, 2, step=None),
        kernel(6, 0, 1),
    ]
    ranges = [STEP, FORWARD, BACKWARD, CONV, GRADIENT]
    endless = kernel(7, 5, 2)._replace(duration_ns=None)
    found = explain_unattributed(PreparedRun(gpu([*kernels, endless], ranges)))
    assert [(item.text.split(", ")[0], item.share, item.launches) for item in found] == [
        ("autograd", 45 / 70, 2),
        ("launches outside every range", 15 / 70, 1),
        (BETWEEN.split(", ")[0], 10 / 70, 1),
    ]
    unnumbered = [item._replace(step=None) for item in kernels[:3]]
    whole = explain_unattributed(PreparedRun(gpu(unnumbered, ranges)))
    assert [(item.share, item.launches) for item in whole] == [(20 / 30, 1), (10 / 30, 1)], (
        "no launch states its step"
    )


def test_backward_is_missed_only_where_something_was_trained_and_in_no_other_phase() -> None:
    kernels = [kernel(0, 50, 3, **IN_CONV), kernel(1, 30)]
    optimizer = span(5, "perfctl:phase:optimizer", 0, phase="optimizer")
    again = span(6, "conv1:recompute", 1, layer="conv1", direction="recompute")
    step = span(7, "opt", 1, direction="optimizer")
    assert shares(gpu(kernels, [STEP, FORWARD, CONV])) == {NO_CALL: 1}, "an evaluation"
    for trained in ([optimizer], [BACKWARD], [optimizer, again], [optimizer, step]):
        assert shares(gpu(kernels, [STEP, FORWARD, CONV, *trained])) == {NO_BACKWARD: 1}
    assert shares(gpu(kernels, [STEP, FORWARD, CONV, optimizer, GRADIENT])) == {NO_CALL: 1}
    seen = kernel(2, 5, layer="conv1", direction="grad_weight", layer_source="range")
    assert shares(gpu([*kernels, seen], [STEP, FORWARD, CONV, optimizer])) == {NO_CALL: 1}
    (copied,) = shares(
        gpu(
            [kernels[0], kernel(1, 30, 8)],
            [STEP, FORWARD, CONV, optimizer, span(8, "perfctl:phase:copy", 0, phase="copy")],
        )
    )
    assert copied == "copies to the device"
    assert shares(gpu([kernel(1, 30, 1)], [STEP, span(1, "opt", 0, direction="optimizer")])) == {
        NO_RANGES: 1
    }


def test_a_launch_in_a_range_outside_of_steps_is_no_work_of_the_step() -> None:
    outer = span(9, "warm-up")._replace(step=None)
    kernels = [kernel(0, 50, 3, **IN_CONV), kernel(1, 30, 9)]
    assert shares(gpu(kernels, [STEP, FORWARD, CONV, GRADIENT, outer])) == {NO_CALL: 1}


def test_on_a_cpu_what_lies_outside_of_steps_in_layers_or_has_no_end_takes_no_time() -> None:
    layer = span(2, "Net:forward", 1, 500, layer="Net", direction="forward")
    ranges = [
        span(0, "perfctl:step:0", None, 1000),
        span(1, "perfctl:phase:forward", 0, 600, phase="forward"),
        layer,
        # within a layer: the layer's, and its own
        span(3, "perfctl:phase:data", 2, 40, phase="data"),
        span(4, "perfctl:phase:copy", 0, None, phase="copy"),
        span(5, "script's own", 0, 70),
        span(6, "perfctl:phase:zero_grad", 0, 300, phase="zero_grad")._replace(step=None),
    ]
    found = shares(synthetic.make_run(1, profiler="torch", ranges=ranges))
    left = {
        BETWEEN: 1000 - 600 - 300,
        "data loading and copies to the device": 40,
        "forward": 600 - 500,
    }
    assert list(found.values()) == [100 / 240, 100 / 240, 40 / 240]
    assert sum(left.values()) == 240
    assert shares(synthetic.make_run(1, ranges=ranges[:2])) == {}, (
        "no layer at all: nothing is known to be outside of one"
    )
    over = [ranges[0]._replace(duration_ns=500), ranges[1]._replace(duration_ns=600), layer]
    assert list(shares(synthetic.make_run(1, ranges=over)).values()) == [1], (
        "no cause takes less than no time"
    )
    filled = [ranges[0]._replace(duration_ns=500), layer._replace(parent=0)]
    assert explain_unattributed(PreparedRun(synthetic.make_run(1, ranges=filled))) == ()


def test_launches_outside_of_steps_are_said_only_beside_others_that_are_inside() -> None:
    inside, outside = kernel(0, 5), kernel(1, 5, step=None)
    assert beyond_time(gpu([inside, inside], [])) == ()
    assert beyond_time(gpu([outside, outside], [])) == ()
    assert beyond_time(gpu([inside, outside, outside], [])) == (
        "2 of 3 launches are outside of all measured steps and not included",
    )
    gaps = (Gap("kernel", "not_collected", "no reason"), Gap("memory", "not_collected", "a graph"))
    assert beyond_time(gpu([inside], [], gaps=gaps)) == ()
