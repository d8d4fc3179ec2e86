"""Under the roofs: shares worked out from the dimensions, over 100% refused, unknown never 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.counts.figure import Figure, missing
from perfctl.orchestrator.counts.hardware.peaks import Peaks, peaks_of, read_measured
from perfctl.orchestrator.ledger.analysis import analyse
from perfctl.orchestrator.ledger.roofline import Traffic, place
from perfctl.records.report import Counter, Device
from tests.make import synthetic
from tests.make.synthetic import study_of, with_report

PEAKS = Peaks("X", "made up", "published", {"fp32": 10e12, "tensor tf32": 100e12}, 1e12)
"""Ridge of fp32 at 10 FLOP per byte."""


def work(**changes: Any) -> Traffic:
    """2 GFLOP of fp32 in 1 ms (20% of the peak) and 1 GB (100% of the bandwidth would be
    1 ms)."""
    fields: dict[str, Any] = {
        "level": "layer",
        "name": "conv2 forward",
        "batch": 64,
        "layer": "conv2",
        "direction": "forward",
        "paths": {"fp32": Figure(2e9, "counted")},
        "counted": Figure(2e9, "counted"),
        "paper": 2e9,
        "dram": Figure(5e8, "counted"),
        "time_ns": 1e6,
        "basis": "kernels, nsys",
        "trusted": True,
        "launches": 1,
        "counted_launches": 1,
        "precision": "fp32",
    }
    return Traffic(**(fields | changes))


def test_without_bytes_nothing_is_said_about_the_roof_and_the_share_of_the_peak_stays() -> None:
    point = place(work(dram=missing("not_collected", "no")), PEAKS)
    assert point.bound is None and point.intensity is None and point.reached == pytest.approx(0.2)


def test_without_time_or_peak_there_is_no_share() -> None:
    assert place(work(time_ns=None), PEAKS).reached is None
    nothing = place(work(), Peaks("X", "", "none", reason="not known"))
    assert (
        nothing.reached is None
        and nothing.mfu is None
        and nothing.refused is None
        and nothing.achieved == 2e12
    )


def test_fewer_flops_than_paper_refuse_the_model_utilisation_and_nothing_else() -> None:
    point = place(work(paper=2e10), PEAKS)
    assert "200% of the fp32 peak" in (
        point.mfu_reason or ""
    ) and "fewer than the estimated FLOPs" in (point.mfu_reason or "")
    assert (
        point.mfu is None
        and point.refused is None
        and point.hfu == pytest.approx(0.2)
        and point.bound == "memory"
    )


def test_more_bytes_than_the_memory_can_move_refuse_the_intensity_and_not_the_rate() -> None:
    point = place(work(dram=Figure(3e9, "counted")), PEAKS)
    assert point.over == "bandwidth" and "300% of the memory bandwidth" in (point.refused or "")
    assert point.reached is None and point.bound is None and point.hfu == pytest.approx(0.2)


def test_measured_peaks_of_the_same_device_go_first_and_of_another_are_not_used() -> None:
    record = {
        "device": "EPYC",
        "at": "2026-11-20T10:00:00Z",
        "flops": {"fp32": 1e11},
        "bandwidth_bps": 2e10,
        "threads": 2,
    }
    mine = read_measured(record)
    assert peaks_of(Device("EPYC", "cpu"), [mine]) is mine and mine.kind == "measured"
    assert "2026-11-20" in mine.source and "2 threads" in mine.source
    other = peaks_of(Device("Xeon", "cpu"), [mine])
    assert not other.known and other.reason == "peaks were measured on EPYC, not on Xeon"
    assert "--peaks measured" in (peaks_of(Device("Xeon", "cpu")).reason or "")


def test_an_unknown_gpu_gets_what_its_own_record_proves_and_no_tensor_peak() -> None:
    device = Device(
        "NVIDIA Something",
        "gpu",
        compute_capability="8.6",
        sm_count=10,
        clock_hz=10**9,
        memory_bandwidth_bps=10**11,
    )
    peaks = peaks_of(device)
    assert peaks.flops == {"fp32": 10 * 256e9, "fp64": 10 * 4e9, "fp16": 10 * 256e9}
    assert peaks.kind == "derived" and "tensor peaks are unknown" in peaks.source
    assert not peaks_of(replace(device, name="NVIDIA A100 MIG 1g.5gb")).known
    assert "docs/devices.md" in (peaks_of(replace(device, sm_count=None)).reason or "")


def with_bytes(run: Any, each: int) -> Any:
    extra = [
        Counter(kernel.launch, "dram__bytes.sum", each, "byte") for kernel in run.report.kernels
    ]
    return with_report(run, counters=[*run.report.counters, *extra])


def test_a_study_has_points_for_steps_layers_and_kernels() -> None:
    nsys, ncu = synthetic.gpu_pair(1, 64)
    study = study_of(nsys, with_bytes(ncu, 10**6))
    roofs = analyse(study).roofline
    point = roofs.of(64, "conv2", "forward")
    assert point is not None
    assert point.intensity == synthetic.macs("conv2", 64) / 10**6, (
        "half of the multiply-adds, 2 FLOPs each, per byte"
    )
    took = next(
        k.duration_ns for k in nsys.report.kernels if (k.layer, k.direction) == ("conv2", "forward")
    )
    assert point.achieved == pytest.approx(synthetic.macs("conv2", 64) / took * 1e9)
    assert point.mfu == pytest.approx(2 * (point.hfu or 0)), "paper is twice what was executed"
    assert point.traffic.basis == "kernels, nsys"
    names = {p.traffic.name for p in roofs.at("kernel")}
    assert names == {kernel.name for kernel in ncu.report.kernels}
    assert all(p.traffic.trusted for p in roofs.at("kernel")), (
        "times of the same launches under nsys"
    )
    assert [p.traffic.batch for p in roofs.at("run")] == [64]


def test_time_under_ncu_is_used_only_without_better_and_is_named() -> None:
    study = study_of(with_bytes(synthetic.gpu_pair(1, 64)[1], 10**6))
    points = analyse(study).roofline
    kernel = points.at("kernel")[0]
    assert not kernel.traffic.trusted and "locked clocks" in (kernel.traffic.basis or "")
    assert points.at("run")[0].achieved is None, "a step was not timed"


def test_a_foreign_ncu_report_has_its_kernels_under_the_roofs() -> None:
    counters = [*synthetic.fp_counters(0, 0, 0, 500), *synthetic.fp_counters(1, 0, 0, 500)]
    run = with_bytes(
        synthetic.foreign_run(1, profiler="ncu", device=synthetic.V100, counters=counters), 100
    )
    study = study_of(run)
    points = {p.traffic.name: p for p in analyse(study).roofline.points}
    gemm = points["gemm_v0<float>(float*, float*)"]
    assert (
        gemm.flops == 2 * 500 * 2 and gemm.intensity == 2000 / 200 and gemm.traffic.time_ns == 2000
    )
    assert points["relu"].flops is None
