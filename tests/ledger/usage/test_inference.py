"""Inference at low batch, joined over runs: whose figures they are, and from which batch size the
GPU is busy."""

import pytest

from perfctl.orchestrator.ledger.usage.inference import (
    compute_tensor_core_time_share,
    find_smallest_busy_batch_by_model,
    list_inference_points,
    uses_tensor_cores,
)
from perfctl.orchestrator.ledger.usage.three_reports import (
    list_iteration_rows,
    list_kernel_or_operator_rows,
    summarize_run,
)
from perfctl.orchestrator.statistics import compute_wilson_interval
from perfctl.records.report import Device, Kernel, Operation, Sample, Step, Summary
from tests.make import synthetic
from tests.make.synthetic import make_run

MS = 1_000_000
GPU = Device("Tesla V100-SXM2-16GB", "gpu")
TENSOR, PLAIN = "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", "volta_sgemm_128x64_tn"


def kernels(busy, name=PLAIN):
    """Ten launches 100 ns apart, each for ``busy`` ns, the last one to the end of its turn."""
    made = [
        Kernel(number, name, step=number // 5, start_ns=100 * number, duration_ns=busy)
        for number in range(9)
    ]
    return [*made, Kernel(9, name, step=1, start_ns=900, duration_ns=100)]


def run(batch, profiler="nsys", model="resnet18", **changes):
    fields = {
        "mode": "infer",
        "workload": "torchvision_infer",
        "device": GPU,
        "environment": {"model": model},
        "profiler": profiler,
        "batch_size": batch,
    }
    return make_run(batch or 1, **(fields | changes))


def test_the_gpu_is_busy_from_the_batch_size_on_that_no_larger_one_falls_below():
    # ns of each 100 ns; the last launch fills its own
    shares = {1: 20, 5: 95, 10: 60, 15: 95, 20: 99}
    (found,) = find_smallest_busy_batch_by_model(
        list_inference_points([run(batch, kernels=kernels(ns)) for batch, ns in shares.items()])
    )
    assert (found.model, found.batch, found.way) == ("resnet18", 15, "kernels")
    assert dict(found.measured)[10] == pytest.approx((9 * 60 + 100) / 1000)
    (never,) = find_smallest_busy_batch_by_model(
        list_inference_points([run(batch, kernels=kernels(30)) for batch in (1, 20)])
    )
    assert (never.batch, never.way, len(never.measured)) == (None, "kernels", 2)


def test_sampling_is_said_to_be_sampling_and_never_mixed_with_kernels():
    samples = [
        Sample(second * 10**9, 0.95, 5 * 10**8, 16 * 10**9, None, None, None) for second in range(3)
    ]
    sampled = [run(batch, "none", samples=samples) for batch in (1, 5)]
    points = list_inference_points(sampled)
    assert [point.gpu_way for point in points] == ["sampled"] * 2
    assert find_smallest_busy_batch_by_model(points)[0].batch == 1
    mixed = list_inference_points([*sampled, run(5, kernels=kernels(30))])
    assert [point.gpu_way for point in mixed] == ["sampled", "kernels"]
    assert find_smallest_busy_batch_by_model(mixed)[0].measured == (
        (5, pytest.approx((9 * 30 + 100) / 1000)),
    )
    assert points[0].memory.value == 5 / 160
    assert points[0].peak == 5 * 10**8


def test_on_a_cpu_nothing_about_the_gpu_is_known_and_that_is_the_reason():
    (point,) = list_inference_points([run(1, "none", device=synthetic.CPU)])
    assert (point.on_cpu, point.gpu_way) == (True, "")
    shares = (point.gpu, point.tensor, point.memory)
    assert {share.value for share in shares} == {None}
    assert {share.reason for share in (*shares, *find_smallest_busy_batch_by_model([point]))} == {
        "the runs used a CPU"
    }


def test_reports_made_elsewhere_join_by_what_their_names_leave_without_batch_and_tool():
    foreign = {"workload": None, "environment": {}, "mode": None}
    names = (
        "reports/resnet152_5_batch",
        "reports/resnet152_5_batch_gpu_mem.csv",
        "b20/nvidia-smi.log",
        "reports/dlprof",
    )
    found = list_inference_points([run(5, "dlprof", artifact=name, **foreign) for name in names])
    assert [(point.model, len(point.runs)) for point in found] == [
        ("resnet152", 2),
        ("nvidia-smi", 1),
        ("dlprof", 1),
    ]


def test_runs_of_one_model_on_two_devices_are_not_one_line():
    other = Device("NVIDIA A100-SXM4-40GB", "gpu")
    found = list_inference_points(
        [run(1), run(1, device=other), run(1, model="vgg11"), run(1, mode="train")]
    )
    assert [point.model for point in found] == [
        f"resnet18, {GPU.name}",
        f"resnet18, {other.name}",
        "vgg11",
    ]


def test_tensor_cores_are_known_by_name_only_where_nearly_all_names_say():
    assert (uses_tensor_cores(TENSOR), uses_tensor_cores(PLAIN)) == (True, False)
    assert uses_tensor_cores("vectorized_elementwise_kernel") is False, "it multiplies no matrices"
    half = [Kernel(0, TENSOR, duration_ns=30), Kernel(1, PLAIN, duration_ns=70)]
    assert compute_tensor_core_time_share(half).value == 0.3
    assert (
        compute_tensor_core_time_share([*half, Kernel(2, "my_own_thing", duration_ns=900)]).value
        is None
    )
    assert compute_tensor_core_time_share([Kernel(0, TENSOR)]).value is None
    sums = [Kernel(0, "reduceUnroll8(int *, int *, unsigned int)", duration_ns=128_512)]
    assert compute_tensor_core_time_share(sums).value is None, "no name says no"
    stated = (Summary("Tensor Core Kernel Utilization %", 35.4, "%"),)
    (point,) = list_inference_points([run(1, "dlprof", summaries=stated, kernels=half)])
    assert point.tensor.value == pytest.approx(0.354), (
        "what DLProf states goes before what names say"
    )


def test_the_three_reports_add_up():
    steps = tuple(
        Step(number, phase, None, length * MS)
        for number in range(2)
        for phase, length in (
            ("step", 10 + number),
            ("data", 2),
            ("copy", 1),
            ("copy", 1),
            ("inference", 6),
        )
    )
    made = run(1, kernels=[*kernels(40)[:5], *kernels(40, TENSOR)[5:]], steps=steps)
    rows = list_kernel_or_operator_rows(made)
    assert [(row.tensor, row.calls, row.total) for row in rows] == [
        (True, 5, 4 * 40 + 100),
        (False, 5, 200),
    ]
    assert (rows[0].shortest, rows[0].longest, rows[1].mean_ns) == (40, 100, 40)
    assert sum(row.share for row in rows) == pytest.approx(1)
    first, second = list_iteration_rows(made)
    assert (first.step, first.load, first.copy, first.compute) == (10 * MS, 2 * MS, 2 * MS, 6 * MS)
    assert (first.kernels, first.kernel_ns, first.tensor.value, second.tensor.value) == (
        5,
        200,
        0,
        1,
    )
    whole = summarize_run(made)
    assert (whole.iterations, whole.wall, whole.mean) == (2, 21 * MS, 10.5 * MS)
    assert whole.load_share == pytest.approx(4 / 21)
    assert (whole.kernels, whole.kernel_ns, whole.tensor_ns) == (
        10,
        sum(row.total for row in rows),
        rows[0].total,
    )

    operations = [
        Operation("aten::conv2d", "cpu_op", 2, 9, 5, None, None, None, "conv1", "forward"),
        Operation("aten::conv2d", "cpu_op", 1, 9, 7, None, None, None, "conv2", "forward"),
    ]
    (row,) = list_kernel_or_operator_rows(run(1, device=synthetic.CPU, operations=operations))
    assert (row.calls, row.total, row.shortest, row.tensor) == (3, 12, None, None)
    assert summarize_run(run(1)).kernels is None


def test_the_interval_of_a_share_is_wilsons():
    low, high = compute_wilson_interval(
        0.9, 10
    )  # Brown, Cai and DasGupta (2001) print 0.596 and 0.982 for 9 of 10
    assert (round(low, 3), round(high, 3)) == (0.596, 0.982)
    assert compute_wilson_interval(0, 3000)[0] == 0
    assert compute_wilson_interval(1, 3000)[1] == 1
    narrow, wide = compute_wilson_interval(0.7, 3000), compute_wilson_interval(0.7, 30)
    assert wide[0] < narrow[0] < 0.7 < narrow[1] < wide[1]
    with pytest.raises(ValueError, match="share of nothing"):
        compute_wilson_interval(0.5, 0)
