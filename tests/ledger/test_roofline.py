"""Work under the roofs: exactly at, just below and just above each; over 100% is refused with a
likely cause, and unknown is never 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.counts.figure import make_missing_figure
from perfctl.orchestrator.counts.hardware.peaks import DevicePeaks, find_peaks, parse_measured_peaks
from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.ledger.roofline import build_roofline_point, find_dominant_flops_path
from perfctl.records.report import Counter, Device
from tests.make import synthetic
from tests.make.synthetic import foreign_run, fp_counters, study_of, with_report
from tests.make.tables import table
from tests.make.traffic import PEAKS, counted, traffic

NONE = make_missing_figure("not_collected", "-")
NO_PEAKS = DevicePeaks("X", "", "none", reason="not known")


def placed(*figures, **changes):
    return build_roofline_point(traffic(*figures, **changes), PEAKS)


def test_every_figure_of_a_point_is_worked_out_from_flops_bytes_and_time():
    point = placed()
    assert (point.flops, point.source, point.path, point.peak) == (2e9, "counted", "fp32", 10e12)
    assert (point.achieved, point.bytes_per_second) == (2e9 / 1e-3, 5e8 / 1e-3)
    assert (point.intensity, point.ridge, point.attainable) == (4.0, 10.0, 4 * 1e12)
    assert (point.reached, point.mfu, point.hfu) == pytest.approx((2 / 4, 4 / 10, 2 / 10))
    assert (point.bound, point.refused, point.mfu_reason, point.over) == ("memory", *[None] * 3)


def test_without_bytes_time_or_peak_there_is_no_share_that_needs_them():
    point = placed(dram=NONE)
    assert (point.intensity, point.reached) == (None, pytest.approx(0.2)), "of the peak"
    assert placed(time_ns=None).reached is None
    unknown = build_roofline_point(traffic(), NO_PEAKS)
    assert (unknown.reached, unknown.mfu, unknown.refused, unknown.achieved) == (
        *[None] * 3,
        2e12,
    )


def test_paper_alone_gives_a_rate_that_is_marked_as_such_and_no_executed_share():
    point = placed(executed=NONE, paths={}, dram=NONE)
    assert (point.source, point.flops, point.hfu) == ("paper", 4e9, None)
    assert (point.mfu, point.reached) == (0.4, 0.4)


def few(time_ns, flops=1e3, moved=1e3, **changes):
    """So short that its launches may bound it."""
    return traffic(flops, moved, estimated=flops, time_ns=time_ns, **changes)


AT_LEAST = {"executed": counted(2e9, missing=("fp16",))}
FOUR = {"launches": 4, "counted_launches": 4}


@table(
    "work bound",
    {
        "at the ridge both roofs are as high": (traffic(dram=2e9 / 10), "compute"),
        "just below the ridge": (traffic(dram=2e9 / 9.99), "memory"),
        "launches of less than 5 us each": (few(19_999, **FOUR), "launch"),
        "launches of 5 us each": (few(20_000, **FOUR), "memory"),
        # 1000 ns at 10 TFLOP/s are 10 MFLOP, at 1 TB/s 1 MB
        "29.9% of the bandwidth": (few(1e3, 1e4, 299e3), "launch"),
        "30.1% of the bandwidth": (few(1e3, 1e4, 301e3), "memory"),
        "29% of the peak": (few(1e3, 2.9e6), "launch"),
        "31% of the peak": (few(1e3, 3.1e6), "compute"),
        "a step busy for 49%": (traffic(level="run", busy=0.49), "launch"),
        "a step busy for half": (traffic(level="run", busy=0.5), "memory"),
        "a step always busy": (traffic(level="run", busy=1.0), "memory"),
        "a layer is no step": (traffic(busy=0.49), "memory"),
        "a step has no short launches": (few(1e3, level="run", **FOUR), "memory"),
        "bytes without FLOPs": (traffic(0, estimated=None), "memory"),
        "neither bytes nor FLOPs": (traffic(0, NONE, estimated=None), None),
        "FLOPs without bytes": (traffic(dram=NONE), None),
        "at least 2 GFLOP at half of the bandwidth": (traffic(**AT_LEAST), None),
        "at least 2 GFLOP at 80% of the bandwidth": (traffic(dram=8e8, **AT_LEAST), "memory"),
        "unknown FLOPs at 80% of the bandwidth": (traffic(0, 8e8, executed=NONE), "memory"),
    },
)
def test_what_bounds_a_work(work, bound):
    assert build_roofline_point(work, PEAKS).bound == bound


def test_short_launches_are_launch_bound_where_no_peak_is_known():
    assert build_roofline_point(few(1e3), NO_PEAKS).bound == "launch"
    assert build_roofline_point(traffic(), NO_PEAKS).bound is None


def test_work_that_counts_no_flops_has_no_roof():
    point = placed(0, estimated=None)
    assert (point.path, point.achieved, point.intensity) == (None, None, None)


def test_exactly_the_peak_and_exactly_the_bandwidth_are_believed():
    full = placed(dram=2e8, time_ns=2e5, estimated=2e9)
    assert (full.refused, full.reached, full.hfu, full.mfu) == (None, 1.0, 1.0, 1.0)
    stream = placed(dram=1e9)
    assert (stream.refused, stream.over, stream.bound) == (None, None, "memory")
    assert placed(dram=1.01e9).over == "bandwidth"


def test_more_bytes_than_the_memory_can_move_refuse_the_intensity_and_not_the_rate():
    point = placed(dram=2.5e9)
    assert (point.refused or "").startswith(
        "250% of the memory bandwidth of the X: ncu empties the caches"
    )
    assert (point.over, point.reached, point.bound) == ("bandwidth", None, None)
    assert point.hfu == pytest.approx(0.2)


def test_paper_just_over_the_peak_is_refused_and_just_at_it_is_not_and_nothing_else_is():
    assert placed(estimated=1e10).mfu == 1.0
    point = placed(estimated=1.1e10)
    assert point.mfu is None and (point.mfu_reason or "").startswith(
        "the estimated FLOPs would need 110% of the fp32 peak: the kernels executed fewer"
    )
    assert (point.refused, point.hfu, point.bound) == (None, pytest.approx(0.2), "memory")


@table("flops cause", [(8.99e9, "the kernels executed fewer than"), (9e9, "the wrong device")])
def test_fewer_flops_than_paper_are_nine_tenths_of_it_at_most(flops, cause):
    point = placed(estimated=1e10, executed=counted(flops), time_ns=9e5)
    assert cause in (point.mfu_reason or "")


@table(
    "precision path",
    [
        ("fp32", "fp32"),
        ("fp64", "fp64"),
        ("tf32", "tensor tf32"),
        ("bf16", "tensor bf16"),
        ("fp16", "tensor fp16"),
        ("int3", None),
        (None, None),
    ],
)
def test_the_roof_is_what_the_precision_asks_for_where_nothing_was_counted(precision, path):
    assert find_dominant_flops_path(traffic(paths={}, executed=NONE, precision=precision)) == path
    assert (
        find_dominant_flops_path(
            traffic(paths={}, executed=NONE, precision=precision, estimated=None)
        )
        is None
    )


def test_the_roof_is_what_was_counted_most():
    paths = {"fp32": counted(1), "tensor tf32": counted(2), "fp16": NONE}
    assert find_dominant_flops_path(traffic(paths=paths)) == "tensor tf32"
    assert find_dominant_flops_path(traffic(0)) is None


@table("launches mismatch", [(100, False), (101, False), (99, False), (102, True), (98, True)])
def test_times_and_counts_of_launches_that_differ_by_more_than_a_hundredth_are_not_of_one_work(
    launches, mismatch
):
    said = f"{launches} launches have a time and 100 have counters, so the work differs"
    for over in ({"time_ns": 1e5}, {"dram": counted(3e9)}):
        point = placed(launches=launches, counted_launches=100, **over)
        assert (said in (point.refused or "")) == mismatch


FORMULA = {"executed": NONE, "paths": {}}


@table(
    "changes kind cause",
    [
        ({}, "published", "200% of the fp32 peak of the X: the wrong device, a clock above"),
        ({}, "derived", "the recorded clock differs"),
        ({}, "measured", "fewer threads than the run"),
        ({"busy": 1.01, "level": "run"}, "derived", "did not wait for them"),
        ({"busy": 1.0, "level": "run"}, "derived", "the recorded clock differs"),
        (FORMULA | {"estimated": 2e9}, "published", "TF32 is likely on"),
        (FORMULA | {"estimated": 1e10}, "published", "TF32 is likely on"),  # just what TF32 reaches
        (FORMULA | {"estimated": 1.01e10}, "published", "Winograd"),
        (
            FORMULA | {"estimated": 1e10, "precision": "tf32", "time_ns": 5e4},
            "published",
            "Winograd",
        ),
    ],
)
def test_the_most_telling_cause_of_too_high_a_rate_is_named(changes, kind, cause):
    peaks = DevicePeaks("X", "made up", kind, PEAKS.flops, 1e12)
    point = build_roofline_point(traffic(**({"time_ns": 1e5} | changes)), peaks)
    assert point.over == "peak" and cause in (point.refused or "")
    assert (point.reached, point.mfu, point.hfu, point.bound) == (None,) * 4


def test_the_last_measurement_of_the_same_device_goes_first_and_threads_are_named_where_known():
    record: dict[str, Any] = {
        "device": "EPYC",
        "at": "2026-11-20T10:00:00Z",
        "flops": {"fp32": 1},
        "bandwidth_bps": 2,
    }
    first = parse_measured_peaks(record)
    second = parse_measured_peaks({**record, "bandwidth_bps": 4, "threads": 3})
    assert find_peaks(Device("EPYC", "cpu"), [first, second]) is second
    assert first.source == "measured on 2026-11-20: large GEMMs and a triad"
    assert second.source == "measured on 2026-11-20: large GEMMs and a triad, 3 threads"
    assert (
        second.compute_ridge_point("fp32"),
        second.compute_ridge_point("fp64"),
        second.kind,
    ) == (0.25, None, "measured")
    other = find_peaks(Device("Xeon", "cpu"), [first])
    assert not other.has_flop_peaks and other.reason == "peaks were measured on EPYC, not on Xeon"


def unknown_gpu(**facts):
    return Device("NVIDIA Something", "gpu", compute_capability="8.6", sm_count=10, **facts)


def test_an_unknown_gpu_gets_what_its_own_record_proves_and_no_tensor_peak():
    found = find_peaks(unknown_gpu(clock_hz=1_410_600_000))
    assert (
        found.source
        == "10 SMs x 1411 MHz from the record of the run, CC 8.6; tensor peaks are unknown"
    )
    assert found.kind == "derived"
    assert found.flops == {
        path: pytest.approx(10 * each * 1_410_600_000)
        for path, each in (("fp32", 256), ("fp64", 4), ("fp16", 256))
    }
    assert (found.bandwidth, found.compute_ridge_point("fp32")) == (None, None)


@table(
    "device reason",
    [
        (None, "no record names the device"),
        (
            Device("NVIDIA Something", "gpu"),
            "NVIDIA Something is not in the table of devices",
        ),
        (unknown_gpu(), "NVIDIA Something is not in the table of devices"),
        (
            replace(unknown_gpu(clock_hz=10**9), name="A100-SXM4-40GB MIG 1g.5gb"),
            "A100-SXM4-40GB MIG 1g.5gb is a slice",
        ),
    ],
)
def test_where_nothing_proves_a_peak_there_is_none_but_the_reason(device, reason):
    found = find_peaks(device)
    assert not found.has_flop_peaks
    assert (found.reason or "").startswith(reason)


def test_the_peaks_of_a_cpu_can_be_measured():
    assert "--peaks measured" in (find_peaks(Device("Xeon", "cpu")).reason or "")


def with_bytes(run, each):
    extra = [
        Counter(kernel.launch, "dram__bytes.sum", each, "byte") for kernel in run.report.kernels
    ]
    return with_report(run, counters=[*run.report.counters, *extra])


def test_a_foreign_ncu_report_has_its_kernels_under_the_roofs():
    counters = [*fp_counters(0, 0, 0, 500), *fp_counters(1, 0, 0, 500)]
    run = foreign_run(1, profiler="ncu", device=synthetic.V100, counters=counters)
    points = {
        p.traffic.name: p for p in analyse_study(study_of(with_bytes(run, 100))).roofline.points
    }
    gemm = points["gemm_v0<float>(float*, float*)"]
    assert (gemm.flops, gemm.intensity) == (2 * 500 * 2, 2 * 500 * 2 / (2 * 100))
    assert gemm.traffic.time_ns == 900 + 1100
    assert points["relu"].flops is None
