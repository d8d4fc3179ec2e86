"""Memory levels under the roofs: bytes by counter, peaks of that very counter, a share for each
level, refusals with a cause."""

import pytest

from perfctl.orchestrator.counts.counters.work import compute_cache_bytes, find_peak_bytes_per_cycle
from perfctl.orchestrator.counts.hardware.peaks import (
    CachePeak,
    add_cache_and_rescale_peaks,
    find_peaks,
)
from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.ledger.roofline import build_roofline_point
from perfctl.records.report import Counter, Device
from tests.make import synthetic
from tests.make.synthetic import cpu_run, foreign_run, gpu_pair, study_of, with_report
from tests.make.tables import table
from tests.make.traffic import PEAKS, counted, traffic

A100 = {
    "gpu__time_duration.sum": 437_184.0,
    "l1tex__lsu_writeback_active_mem_lg.sum": 2_162_688.0,
    "l1tex__lsu_writeback_active_mem_lg.sum.peak_sustained": 108.0,
    "lts__lts2xbar_cycles_active.sum.per_second": 19_217_411_890.645584,
    "lts__lts2xbar_cycles_active.sum.peak_sustained": 160.0,
    "lts__t_sectors.sum": 33_230_532.0,
    "lts__t_sectors.sum.pct_of_peak_sustained_elapsed": 29.785878546551274,
    "lts__cycles_elapsed.avg": 464_853.0,
}
"""What ncu 2025.1 printed for a kernel that reads and writes 268,435,456 bytes once, on an A100
SXM4 40 GB."""


def test_each_level_has_its_intensity_and_share_of_the_lower_of_slope_and_roof():
    levels = levels_of()
    assert list(levels) == ["L2", "DRAM"]
    l2, dram = levels.values()
    assert (l2.intensity, dram.intensity, l2.bound) == (2e9 / 2e9, 2e9 / 5e8, "L2")
    assert l2.reached == pytest.approx(2e12 / (1 * 4e12))
    assert (dram.reached, dram.bandwidth_share) == pytest.approx((2e12 / (4 * 1e12), 5e11 / 1e12))
    own = levels_of(caches={"L2": counted(2e9, rule="t")})["L2"]
    assert own.bandwidth == 5e12, (
        "the peak of the counter that the bytes come from goes before the table's"
    )


def test_a_work_is_set_against_the_roof_of_its_own_precision():
    paths = {"fp32": counted(1e3), "tensor tf32": counted(4e10)}
    tensor = levels_of(paths=paths, executed=counted(4e10))["DRAM"]
    assert (tensor.intensity, tensor.attainable) == (80, 80e12), (
        "80 FLOP/B x 1 TB/s, below 100 TFLOP/s and far above fp32's 10"
    )
    unknown = levels_of(paths={"tensor fp8": counted(2e9)})
    assert [one.reached for one in unknown.values()] == [None, None], (
        "no roof of its precision, no share"
    )


def test_a_level_over_its_bandwidth_is_refused_with_a_cause_and_the_others_stay():
    l2, dram = levels_of(caches={"L2": counted(6e9)}).values()
    assert "150% of the L2 bandwidth" in (l2.refused or "")
    assert "reads by the SMs" in (l2.refused or "")
    assert (l2.reached, l2.bound) == (None, None)
    assert dram.reached
    fast = build_roofline_point(traffic(dram=5e7, time_ns=1e5, caches=L2), PEAKS)
    assert "200% of the fp32 peak" in (fast.refused or "")
    assert {one.refused for one in fast.levels} == {fast.refused}


def test_bytes_and_peaks_of_a_real_report_are_those_of_its_roofline_section():
    found = compute_cache_bytes(A100)
    assert found["L1"].value == 2_162_688 * 128 and found["L1"].state == "counted"
    assert (
        found["L2"].state == "estimated" and abs((found["L2"].value or 0) / 268_435_456 - 1) < 0.002
    )
    peaks = find_peak_bytes_per_cycle([A100])
    assert (
        peaks["l1tex__lsu_writeback_active_mem_lg"] == 108 * 128
        and peaks["lts__lts2xbar_cycles_active"] == 160 * 32
    )
    assert peaks["lts__t_sectors"] == 240 * 32, "from the sum, its share of the peak and the cycles"
    assert compute_cache_bytes({"lts__t_bytes.sum": 64.0})[
        "L2"
    ].value == 64 and "L1" not in compute_cache_bytes({"lts__t_bytes.sum": 64.0})


def test_a_counter_that_missed_the_kind_of_access_yields_to_one_that_counted_it():
    """flash attention on an RTX 5090: all its loads are asynchronous copies, 4,984,832 sectors."""
    values = {"l1tex__lsu_writeback_active_mem_lgds.sum": 0.0, "l1tex__t_sectors.sum": 4_984_832.0}
    assert compute_cache_bytes(values)["L1"].value == 4_984_832 * 32
    none = {**values, "l1tex__t_sectors.sum": 0.0}
    assert compute_cache_bytes(none)["L1"].value == 0, "both counted nothing"


@table(
    "clocks profiler expected_mhz",
    {
        "ncu locked the clock": ((765e6, 765e6, 765e6), "ncu", 765),
        "a launch does not state it": ((765e6, 765e6, None), "ncu", 1530),
        "another profiler timed the launches": ((765e6, 765e6, 765e6), "nsys", 1530),
        "above the boost clock": ((1900e6, 1900e6, 1900e6), "ncu", 1530),
    },
)
def test_peaks_are_those_of_the_clock_at_which_ncu_timed_all_launches(
    clocks, profiler, expected_mhz
):
    """A V100 has 80 SMs x 64 FMA; its published peak is at 1,530 MHz."""
    name = "sm__cycles_elapsed.avg.per_second"
    counters = [Counter(launch, name, clock, "Hz", None) for launch, clock in enumerate(clocks)]
    run = foreign_run(1, profiler=profiler, device=synthetic.V100, counters=tuple(counters))
    study = study_of(run)
    peaks = analyse_study(study).roofline.peaks
    assert peaks.flops["fp32"] == pytest.approx(2 * 64 * 80 * expected_mhz * 1e6)
    assert peaks.caches["L1"].bandwidth == pytest.approx(128 * 80 * expected_mhz * 1e6)
    assert ("recorded" in peaks.source) == (expected_mhz != 1530)


def test_roofs_of_caches_are_bytes_in_a_cycle_times_the_clock_of_the_product():
    device = Device("NVIDIA A100-SXM4-40GB", "gpu")
    peaks = add_cache_and_rescale_peaks(find_peaks(device), device, {})
    assert (
        peaks.caches["L1"].bandwidth == 128 * 108 * 1410e6
        and peaks.caches["L2"].bandwidth == 5120 * 1410e6
    )
    assert add_cache_and_rescale_peaks(peaks, device, {"c": 7680}).find_cache_peak(
        "L2", "c"
    ) == CachePeak(7680 * 1410e6, "7,680 B per cycle from the report x 1410 MHz")
    cpu = Device("EPYC", "cpu")
    assert add_cache_and_rescale_peaks(find_peaks(cpu), cpu, {}).caches == {}
    t4 = Device("Tesla T4", "gpu")
    assert add_cache_and_rescale_peaks(find_peaks(t4), t4, {}).caches == {}, (
        "NVIDIA's own figures of Turing contradict each other"
    )


L2 = {"L2": counted(2e9, rule="lts__t_bytes")}


def levels_of(*figures, **changes):
    """2 GFLOP in 1 ms: 0.5 GB through DRAM, 2 GB through L2."""
    point = build_roofline_point(traffic(*figures, **({"caches": L2} | changes)), PEAKS)
    return {one.level: one for one in point.levels}


def with_counters(*metrics):
    runs = []
    for run in gpu_pair(1, 64):
        extra = [
            Counter(kernel.launch, name, 1000, "byte")
            for kernel in run.report.kernels
            for name in metrics
            if run.report.counters
        ]
        runs.append(with_report(run, counters=[*run.report.counters, *extra]))
    return analyse_study(study_of(*runs)).roofline


def test_one_sentence_says_which_levels_are_missing_and_which_option_collects_them():
    dram = ("dram__bytes_read.sum", "dram__bytes_write.sum")
    assert with_counters(*dram).missing_memory_levels_sentence == (
        "L1 and L2 bytes were not collected; use --set roofline of ncu or perfctl ncu."
    )
    whole = with_counters(*dram, "lts__t_bytes.sum", "l1tex__t_bytes.sum")
    assert whole.missing_memory_levels_sentence is None and whole.counted_memory_levels == (
        "L1",
        "L2",
        "DRAM",
    )
    study = study_of(cpu_run(1, 16))
    assert analyse_study(study).roofline.missing_memory_levels_sentence is None, (
        "nothing was counted on a CPU, and ncu counts nothing there"
    )
