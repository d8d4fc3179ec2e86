"""One arm of a speed-up study: each figure from a made-up run whose answer is worked out
by hand."""

from dataclasses import astuple, replace

import pytest

from perfctl.orchestrator.counts.hardware.peaks import DevicePeaks
from perfctl.orchestrator.ledger.arm_figures import (
    compute_copy_overlap_share,
    compute_estimated_flop_rate,
    compute_figures_of_newest_run,
    compute_launch_bound_kernel_share,
    compute_time_share_by_category,
    compute_time_share_outside_operations,
    list_epochs,
    list_longest_kernels_or_operations,
)
from perfctl.records.report import Copy, Gap, Kernel, MemoryFigure, Operation, Step, Summary
from tests.make import synthetic
from tests.make.synthetic import make_run
from tests.make.tables import table

MS = 1_000_000


def timed(*lengths):
    return tuple(Step(number, "step", None, length) for number, length in enumerate(lengths))


def kernel(start, length, name="k", device=0):
    return Kernel(0, name, start_ns=start, duration_ns=length, device_index=device)


def operation(name, calls, own, total=None):
    return Operation(name, "cpu_op", calls, total, own, None, None, None)


def facts(label="cpu", **changes):
    return compute_figures_of_newest_run(label, (make_run(**changes),))


def top_of(*operations, **changes):
    return list_longest_kernels_or_operations(make_run(operations=list(operations), **changes))


def test_the_newest_run_speaks_for_its_arm():
    older = make_run(1, steps=timed(1, 1, 1))
    epochs = (Step(number, "epoch", None, ns) for number, ns in enumerate((90, 80)))
    newer = make_run(
        2,
        precision="bf16",
        steps=(*timed(40 * MS, 10 * MS, 20 * MS), *epochs),
        environment={"option:warmup": "3"},
        memory=(MemoryFigure("peak", "host_resident", 512),),
    )
    found = compute_figures_of_newest_run("cpu", (older, newer))
    assert (found.label, found.device, found.precision) == ("cpu", "synthetic CPU", "bf16")
    assert (found.runs, found.warmup) == (2, 3)
    assert (found.step_ns, found.step_range) == (20 * MS, (10 * MS, 40 * MS))
    assert found.total_ns == 90 + 80
    assert (found.steps_per_second, found.samples_per_second) == (1 / 0.020, 64 / 0.020)
    assert found.memory == {"peak host resident": 512}
    assert {found.idle, found.overlap, found.launch_bound, found.overhead} == {None}


def test_what_was_not_recorded_is_unknown_and_never_0():
    found = facts(environment={"option:warmup": "some"})
    assert {found.total_ns, found.step_ns, found.step_range, found.warmup} == {None}
    assert {found.steps_per_second, found.samples_per_second, found.categories} == {None}
    assert (found.top_operations, found.epochs) == ((), ())
    sized = facts(batch_size=None, steps=timed(MS))
    assert (sized.steps_per_second, sized.samples_per_second) == (1000, None)


def test_gaps_about_kernels_are_those_of_a_gpu_and_each_is_said_once():
    ranges, kernels = ("layer ranges", "no hooks"), ("kernel", "no CUPTI")
    gaps = [Gap(what, "not_collected", why) for what, why in (ranges, kernels, ranges)]
    gaps.append(Gap("top1", "not_available", "no classes"))
    assert facts(gaps=gaps).missing_values == (ranges,)
    assert facts(gaps=gaps, device=synthetic.V100).missing_values == (ranges, kernels)


def test_epochs_are_told_in_order_and_those_without_a_time_are_left_out():
    rows = (
        Step(2, "epoch", None, 30, 0.3, 0.7),
        Step(0, "epoch", None, 10, 0.9, 0.1),
        Step(1, "epoch", None, None, 0.5),
        Step(2, "test", None, 5, 0.4),
    )
    dice = (Summary("dice:epoch:2", 0.5, "ratio"),)
    assert [astuple(one) for one in list_epochs(make_run(steps=rows, summaries=dice))] == [
        (0, 10, 10, 0.9, None, 0.1, None),
        (2, 30, 10 + 30, 0.3, 0.4, 0.7, 0.5),
    ]


def test_the_ten_most_expensive_are_named_the_earlier_name_first_where_they_cost_alike():
    cheap = [operation(f"aten::mul_{n:02}", 1, 5, 5) for n in range(12)][::-1]
    found = top_of(*cheap, operation("aten::add", 2, 40, 50), operation("aten::sum", 1, None, 9))
    assert [one.name for one in found] == ["aten::add", *(f"aten::mul_{n:02}" for n in range(9))]
    assert (found[0].share, found[1].share, found[0].total_ns) == (40 / 100, 5 / 100, 50)
    assert top_of(operation("aten::sum", 1, 0, 9)) == ()


def test_the_most_expensive_add_up_over_layers():
    first, second = top_of(
        operation("aten::mm", 2, 40, 50)._replace(layer="fc1"),
        operation("aten::mm", 1, 20, 30)._replace(layer="fc2"),
        operation("aten::add", 5, 40, 40),
    )
    assert astuple(first) == ("aten::mm", "GEMM", 2 + 1, 40 + 20, 50 + 30, 60 / 100)
    assert (second.name, second.category) == ("aten::add", "elementwise")


def test_kernels_are_ranked_by_their_time_and_call_nothing():
    gemm = "volta_sgemm_128x64_tn"
    kernels = [
        kernel(0, 30, gemm),
        kernel(40, 30, gemm),
        kernel(80, 40, "mystery"),
        kernel(90, None, "mystery"),
    ]
    found = top_of(operation("aten::mm", 1, 999), kernels=kernels)
    assert [astuple(one) for one in found] == [
        (gemm, "GEMM", 2, 30 + 30, None, 60 / 100),
        ("mystery", "other", 2, 40, None, 40 / 100),
    ]


GEMM = "volta_sgemm_128x64_tn"


@table(
    "fields expected",
    {
        "operations": (
            {
                "operations": [
                    operation("aten::addmm", 1, 30),
                    operation("aten::add", 1, 10),
                    operation("aten::cat", 1, 0),
                ]
            },
            {"GEMM": 30 / 40, "elementwise": 10 / 40},
        ),
        "the optimizer's are its own": (
            {
                "operations": [
                    operation("aten::add", 1, 30)._replace(direction="optimizer"),
                    operation("aten::add", 1, 10),
                ]
            },
            {"optimizer": 30 / 40, "elementwise": 10 / 40},
        ),
        "kernels and copies": (
            {
                "kernels": [
                    kernel(0, 50, GEMM),
                    kernel(0, 10, GEMM)._replace(direction="optimizer"),
                    kernel(0, None),
                ],
                "copies": [
                    Copy("HtoD", 1, 0, 30),
                    Copy("memset", 1, 0, 10),
                    Copy("DtoH", 1, 0, None),
                ],
            },
            {"GEMM": 50 / 100, "optimizer": 10 / 100, "copy": 30 / 100, "memory": 10 / 100},
        ),
        "kernels of no time": ({"kernels": [kernel(0, 0)]}, None),
        "operations of none": ({"operations": [operation("aten::add", 1, 0)]}, None),
    },
)
def test_kinds_of_work_are_shares_of_all_time(fields, expected):
    assert compute_time_share_by_category(make_run(**fields)) == expected


@table("mode passes", [("train", 3), ("infer", 1)])
def test_the_rate_is_flops_on_paper_over_time(mode, passes):
    macs = sum(passes * synthetic.macs(layer, 64) for layer in synthetic.LAYERS)
    # the first layer has no gradient of its input
    macs -= synthetic.macs("conv1", 64) if mode == "train" else 0
    run = make_run(layer_calls=synthetic.layer_calls(64), mode=mode, device=synthetic.V100)
    found = compute_estimated_flop_rate(run, 2 * MS)
    # 80 SMs x 64 lanes x 2 FLOP at 1530 MHz
    assert found.flops == 2 * macs
    assert found.per_second == pytest.approx(2 * macs / 0.002)
    assert found.peak == pytest.approx(80 * 64 * 2 * 1530e6)
    assert found.reason is None
    assert compute_estimated_flop_rate(run, None).per_second is None


@table(
    "kind precision peak reason",
    [
        ("gpu", "bf16", 5.0, None),
        ("gpu", "tf32", 6.0, None),
        ("gpu", "fp16", 7.0, None),
        ("gpu", "fp64", 2.0, None),
        ("gpu", "fp32", None, "the fp32 peak of this one is unknown"),
        ("gpu", "int8", None, "the int8 peak of this one is unknown"),
        ("cpu", "bf16", 3.0, None),
        ("cpu", "fp16", None, "the fp16 peak of this one is unknown"),
    ],
)
def test_a_precision_is_held_against_the_peak_of_its_own_path(kind, precision, peak, reason):
    flops = {"tensor bf16": 5.0, "tensor tf32": 6.0, "tensor fp16": 7.0, "bf16": 3.0, "fp64": 2.0}
    device = replace(synthetic.CPU, name="this one", kind=kind)
    run = make_run(layer_calls=synthetic.layer_calls(1), device=device, precision=precision)
    found = compute_estimated_flop_rate(
        run, 1.0, [DevicePeaks("this one", "measured", "measured", flops)]
    )
    assert (found.peak, found.reason) == (peak, reason)


def test_without_shapes_there_is_no_rate_but_the_reason():
    assert astuple(compute_estimated_flop_rate(make_run(), 5.0)) == (
        None,
        None,
        None,
        "the run did not record the shapes of the layers",
    )


@table(
    "spans share",
    [
        ([(0, 10), (20, 10)], 0.0),  # it waited as long as it ran: not longer
        ([(0, 10), (20, 9)], 1.0),
        # the one inside of another waited for nothing; then 5 > 4
        ([(0, 100), (10, 20), (105, 4)], 0.5),
        ([(0, 100), (10, 20), (104, 4)], 0.0),
        ([(30, 5), (0, 10), (11, 4)], 0.5),
        ([(0, 10)], None),
    ],
)
def test_launch_bound_is_the_share_of_kernels_that_waited_longer_than_they_ran(spans, share):
    assert (
        compute_launch_bound_kernel_share(make_run(kernels=[kernel(*span) for span in spans]))
        == share
    )


def test_every_device_waits_for_itself_and_kernels_without_times_are_left_out():
    kernels = [
        kernel(0, 10),
        kernel(50, 10, device=1),
        kernel(12, 5),
        kernel(90, 10, device=1),
        kernel(None, 5),
        kernel(5, None),
    ]
    assert compute_launch_bound_kernel_share(make_run(kernels=kernels)) == 0.5
    mean = compute_figures_of_newest_run(
        "cuda", (make_run(kernels=kernels[:4], device=synthetic.V100),)
    ).idle
    assert mean == pytest.approx(1 - (15 / 100 + 20 / 100) / 2)


@table(
    "copies share",
    [
        ([Copy("HtoD", 1, 5, 10)], 0.5),
        ([Copy("HtoD", 1, -5, 10)], 0.5),
        ([Copy("HtoD", 1, 5, 20)], 0.5),  # 5 of it under the first kernel, 5 under the second
        ([Copy("HtoD", 1, 10, 10)], 0.0),
        ([Copy("HtoD", 1, 2, 5), Copy("DtoH", 1, 10, 5)], 0.5),
        (
            [
                Copy("HtoD", 1, 2, 5),
                Copy("memset", 1, 10, 5),
                Copy("HtoD", 1, None, 5),
                Copy("HtoD", 1, 11, None),
            ],
            1.0,
        ),
        ([Copy("HtoD", 1, 0, 10, device_index=1)], 0.2),
        ([Copy("HtoD", 1, 0, 10, device_index=2)], 0.0),
        ([Copy("memset", 1, 0, 10)], None),
    ],
)
def test_a_copy_is_hidden_where_a_kernel_of_its_device_runs(copies, share):
    kernels = [
        kernel(20, 5),
        kernel(22, 8),
        kernel(23, 1),
        kernel(0, 10),
        kernel(7, 3),
        kernel(0, 2, device=1),
    ]
    assert compute_copy_overlap_share(make_run(kernels=kernels, copies=copies)) == share


def test_without_a_kernel_s_time_nobody_knows_what_was_hidden():
    copies = [Copy("HtoD", 1, 0, 10)]
    for unknown in (kernel(None, 5), kernel(5, None)):
        assert (
            compute_copy_overlap_share(make_run(kernels=[kernel(0, 10), unknown], copies=copies))
            is None
        )


@table(
    "changes expected",
    [
        ({}, 1 - 600 / 1000),
        ({"steps": timed(500)}, 0.0),  # operations of other threads may take longer
        ({"steps": ()}, None),
        ({"steps": (Step(0, "step", None, None),)}, None),
        ({"operations": []}, None),
        ({"device": synthetic.V100}, None),
    ],
)
def test_overhead_is_the_part_of_the_steps_that_no_operation_took(changes, expected):
    fields = {
        "operations": [
            operation("aten::mm", 1, 500),
            operation("aten::add", 1, 100),
            operation("x", 1, None),
        ],
        "steps": (*timed(400, 600), Step(2, "step", None, None), Step(0, "data", None, 9999)),
    }
    found = compute_time_share_outside_operations(make_run(**(fields | changes)))
    assert found == (expected and pytest.approx(expected))
