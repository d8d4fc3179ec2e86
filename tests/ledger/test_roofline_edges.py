"""Exactly at, just below and just above each roof; and the likely cause that is named where one
is exceeded."""

from __future__ import annotations

from typing import Any

import pytest

from perfctl.orchestrator.counts.figure import Figure, missing
from perfctl.orchestrator.counts.hardware.peaks import Peaks, peaks_of, read_measured
from perfctl.orchestrator.ledger.roofline import Traffic, place, roof
from perfctl.records.report import Device

PEAKS = Peaks("X", "made up", "published", {"fp32": 10e12, "tensor tf32": 100e12}, 1e12)
NONE = missing("not_collected", "-")


def counted(value: float) -> Figure:
    return Figure(value, "counted")


def work(**changes: Any) -> Traffic:
    """2 GFLOP of fp32 and 0.5 GB in 1 ms: a fifth of the peak, half of the bandwidth."""
    fields: dict[str, Any] = {
        "level": "layer",
        "name": "conv2 forward",
        "batch": 64,
        "layer": "conv2",
        "direction": "forward",
        "paths": {"fp32": counted(2e9)},
        "counted": counted(2e9),
        "paper": 4e9,
        "dram": counted(5e8),
        "time_ns": 1e6,
        "basis": "kernels, nsys",
        "trusted": True,
        "launches": 1,
        "counted_launches": 1,
        "precision": "fp32",
    }
    return Traffic(**(fields | changes))


def test_every_figure_of_a_point_is_worked_out_from_flops_bytes_and_time() -> None:
    point = place(work(), PEAKS)
    assert (point.flops, point.source, point.path, point.peak) == (2e9, "counted", "fp32", 10e12)
    assert (point.achieved, point.bytes_per_second) == (2e12, 5e11)
    assert (point.intensity, point.ridge, point.attainable) == (4.0, 10.0, 4e12)
    assert (point.reached, point.mfu, point.hfu) == pytest.approx((0.5, 0.4, 0.2))
    assert (point.bound, point.refused, point.mfu_reason, point.over) == (
        "memory",
        None,
        None,
        None,
    )


def test_at_the_ridge_both_roofs_are_as_high_and_the_work_is_compute_bound() -> None:
    at, below = (place(work(dram=counted(2e9 / intensity)), PEAKS) for intensity in (10, 9.99))
    assert (at.bound, at.attainable) == ("compute", 10e12)
    assert below.bound == "memory"


def test_exactly_the_peak_and_exactly_the_bandwidth_are_believed() -> None:
    full = place(work(time_ns=2e5, dram=counted(2e8), paper=2e9), PEAKS)
    assert (full.refused, full.reached, full.hfu, full.mfu, full.bound) == (
        None,
        1.0,
        1.0,
        1.0,
        "compute",
    )
    stream = place(work(dram=counted(1e9)), PEAKS)
    assert (stream.refused, stream.over, stream.bound) == (None, None, "memory")
    assert place(work(dram=counted(1.01e9)), PEAKS).over == "bandwidth"


def test_over_the_peak_says_by_how_much_of_which_roof() -> None:
    point = place(work(time_ns=1e5), PEAKS)
    assert (point.refused or "").startswith(
        "200% of the fp32 peak of the X: the wrong device, a clock above"
    )
    over = place(work(dram=counted(2.5e9)), PEAKS)
    assert (over.refused or "").startswith(
        "250% of the memory bandwidth of the X: ncu empties the caches"
    )


def test_paper_just_over_the_peak_is_refused_and_just_at_it_is_not() -> None:
    assert place(work(paper=1e10), PEAKS).mfu == 1.0
    point = place(work(paper=1.1e10), PEAKS)
    assert point.mfu is None and (point.mfu_reason or "").startswith(
        "the estimated FLOPs would need 110% of the fp32 peak: the kernels executed fewer"
    )


@pytest.mark.parametrize(
    ("counts", "cause"), [(8.99e9, "the kernels executed fewer than"), (9e9, "the wrong device")]
)
def test_fewer_flops_than_paper_are_nine_tenths_of_it_at_most(counts: float, cause: str) -> None:
    point = place(work(paper=1e10, counted=counted(counts), time_ns=9e5), PEAKS)
    assert cause in (point.mfu_reason or "")


@pytest.mark.parametrize(
    ("timed", "bound"), [(19_999, "launch"), (20_000, "memory"), (20_001, "memory")]
)
def test_work_whose_launches_take_5_microseconds_each_is_not_launch_bound_any_more(
    timed: int, bound: str
) -> None:
    few = counted(1e3)
    point = place(
        work(
            time_ns=timed,
            launches=4,
            counted_launches=4,
            paper=1e3,
            counted=few,
            paths={"fp32": few},
            dram=few,
        ),
        PEAKS,
    )
    assert point.bound == bound


@pytest.mark.parametrize(
    ("flops", "moved", "bound"),
    [
        (1e4, 299, "launch"),  # neither roof near: 0.1% and 29.9%
        (1e4, 301, "memory"),
        (2.9e6, 1, "launch"),
        (3.1e6, 1, "compute"),
    ],
)
def test_short_launches_do_not_matter_where_a_roof_is_nearer_than_three_tenths(
    flops: float, moved: float, bound: str
) -> None:
    """1000 ns at 10 TFLOP/s are 10 MFLOP, at 1 TB/s 1 MB."""
    few = counted(flops)
    point = place(
        work(time_ns=1e3, paper=flops, counted=few, paths={"fp32": few}, dram=counted(moved * 1e3)),
        PEAKS,
    )
    assert point.bound == bound


@pytest.mark.parametrize(("busy", "bound"), [(0.49, "launch"), (0.5, "memory"), (1.0, "memory")])
def test_a_step_that_is_busy_half_of_its_time_is_not_launch_bound(busy: float, bound: str) -> None:
    assert place(work(level="run", busy=busy), PEAKS).bound == bound
    assert place(work(busy=busy), PEAKS).bound == "memory"


def test_a_whole_step_has_no_launches_that_are_too_short() -> None:
    few = counted(1e3)
    step = work(
        level="run",
        time_ns=1e3,
        launches=4,
        counted_launches=4,
        paper=1e3,
        counted=few,
        paths={"fp32": few},
        dram=few,
    )
    assert place(step, PEAKS).bound == "memory"


def test_work_that_counts_no_flops_but_moves_bytes_is_memory_bound_and_has_no_roof() -> None:
    point = place(work(counted=counted(0), paths={}, paper=None), PEAKS)
    assert (point.path, point.achieved, point.intensity, point.bound) == (
        None,
        None,
        None,
        "memory",
    )
    assert place(work(counted=counted(0), paths={}, dram=NONE), PEAKS).bound is None


def test_the_roof_is_what_was_counted_most_else_what_the_precision_asks_for() -> None:
    assert (
        roof(work(paths={"fp32": counted(1), "tensor tf32": counted(2), "fp16": NONE}))
        == "tensor tf32"
    )
    for precision, path in (
        ("fp32", "fp32"),
        ("fp64", "fp64"),
        ("tf32", "tensor tf32"),
        ("bf16", "tensor bf16"),
        ("fp16", "tensor fp16"),
        ("int3", None),
        (None, None),
    ):
        assert roof(work(paths={}, counted=NONE, precision=precision)) == path
    assert roof(work(paths={}, counted=NONE, paper=None)) is None
    assert roof(work(paths={}, counted=counted(0))) is None


@pytest.mark.parametrize(
    ("launches", "mismatch"), [(100, False), (101, False), (99, False), (102, True), (98, True)]
)
def test_times_and_counts_of_launches_that_differ_by_more_than_a_hundredth_are_not_of_one_work(
    launches: int, mismatch: bool
) -> None:
    point = place(work(time_ns=1e5, launches=launches, counted_launches=100), PEAKS)
    said = f"{launches} launches have a time and 100 have counters, so the work differs"
    assert (said in (point.refused or "")) == mismatch
    stream = place(work(dram=counted(3e9), launches=launches, counted_launches=100), PEAKS)
    assert (said in (stream.refused or "")) == mismatch


@pytest.mark.parametrize(
    ("changes", "kind", "cause"),
    [
        ({}, "derived", "the recorded clock differs"),
        ({}, "measured", "fewer threads than the run"),
        ({"busy": 1.01, "level": "run"}, "derived", "did not wait for them"),
        ({"busy": 1.0, "level": "run"}, "derived", "the recorded clock differs"),
        ({"counted": NONE, "paths": {}, "paper": 2e9}, "published", "TF32 is likely on"),
        # just what TF32 reaches
        ({"counted": NONE, "paths": {}, "paper": 1e10}, "published", "TF32 is likely on"),
        ({"counted": NONE, "paths": {}, "paper": 1.01e10}, "published", "Winograd"),
        (
            {"counted": NONE, "paths": {}, "paper": 1e10, "precision": "tf32", "time_ns": 5e4},
            "published",
            "Winograd",
        ),
    ],
)
def test_the_most_telling_cause_of_too_high_a_rate_is_named(
    changes: dict[str, Any], kind: str, cause: str
) -> None:
    peaks = Peaks("X", "made up", kind, PEAKS.flops, 1e12)
    point = place(work(**({"time_ns": 1e5} | changes)), peaks)
    assert point.over == "peak" and cause in (point.refused or "")
    assert point.reached is None and point.mfu is None and point.hfu is None and point.bound is None


def test_paper_alone_gives_a_rate_that_is_marked_as_such_and_no_executed_share() -> None:
    point = place(work(counted=NONE, paths={}, dram=NONE), PEAKS)
    assert (point.source, point.flops, point.hfu, point.mfu, point.reached) == (
        "paper",
        4e9,
        None,
        0.4,
        0.4,
    )


def test_peaks_of_a_record_without_clock_or_sms_are_not_made_up() -> None:
    device = Device(
        "NVIDIA Something", "gpu", compute_capability="8.6", sm_count=10, clock_hz=1_500_000_000
    )
    found = peaks_of(device)
    assert (
        found.source
        == "10 SMs x 1500 MHz from the record of the run, CC 8.6; tensor peaks are unknown"
    )
    assert (
        found.flops["fp32"] == 10 * 256 * 1.5e9
        and found.bandwidth is None
        and found.ridge("fp32") is None
    )
    none = peaks_of(Device("NVIDIA Something", "gpu"))
    assert none.reason is not None and none.reason.startswith(
        "NVIDIA Something is not in the table of devices (docs/devices.md)"
    )
    assert peaks_of(None).reason == "no record names the device"
    assert (peaks_of(Device("A100-SXM4-40GB MIG 1g.5gb", "gpu")).reason or "").startswith(
        "A100-SXM4-40GB MIG 1g.5gb is a slice"
    )


def test_the_last_of_several_measurements_of_one_device_is_taken_and_threads_are_named_where_known() -> (
    None
):
    record = {
        "device": "EPYC",
        "at": "2026-11-20T10:00:00Z",
        "flops": {"fp32": 1},
        "bandwidth_bps": 2,
    }
    first, second = (
        read_measured(record),
        read_measured({**record, "bandwidth_bps": 4, "threads": 3}),
    )
    assert peaks_of(Device("EPYC", "cpu"), [first, second]) is second
    assert first.source == "measured on 2026-11-20: large GEMMs and a triad"
    assert second.source == "measured on 2026-11-20: large GEMMs and a triad, 3 threads"
    assert (second.ridge("fp32"), second.ridge("fp64"), second.known) == (0.25, None, True)


def test_a_gpu_of_the_table_has_its_published_peaks() -> None:
    found = peaks_of(Device("Tesla T4", "gpu"))
    assert (found.kind, found.source, found.bandwidth) == (
        "published",
        "published values of the T4, dense",
        320e9,
    )


def test_short_launches_are_launch_bound_where_no_peak_is_known() -> None:
    few = counted(1e3)
    nothing = Peaks("X", "", "none", reason="not known")
    short = work(time_ns=1e3, paper=1e3, counted=few, paths={"fp32": few}, dram=few)
    assert place(short, nothing).bound == "launch"
    assert place(work(), nothing).bound is None


def test_a_clock_is_said_in_whole_megahertz_rounded() -> None:
    device = Device(
        "NVIDIA Something", "gpu", compute_capability="8.6", sm_count=10, clock_hz=1_410_600_000
    )
    assert peaks_of(device).source.startswith("10 SMs x 1411 MHz")
