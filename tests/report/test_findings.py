"""Findings: only what the numbers prove."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfctl.orchestrator.ledger.analysis import analyse
from perfctl.orchestrator.ledger.prepared import Study, studies
from perfctl.orchestrator.report.findings import findings
from perfctl.orchestrator.report.page.records import Finding
from perfctl.records.report import Copy, Kernel, Range, Step
from perfctl.records.run import Run
from tests.make import synthetic


def said(study: Study) -> list[Finding]:
    return list(findings(analyse(study)))


def texts(*runs: Run) -> list[str]:
    (study,) = studies(list(runs))
    return [item.text for item in said(study)]


def test_the_ratio_furthest_from_one_comes_first_with_its_number() -> None:
    found = texts(*synthetic.gpu_pair(1, 16), *synthetic.gpu_pair(2, 64))
    assert found[0].startswith("conv2 forward executed 0.500 times the estimated FLOPs at batch 16")
    assert not any("fc1" in text and "paper" in text for text in found)


def test_a_step_that_mostly_waits_is_said_with_its_share() -> None:
    nsys, ncu = synthetic.gpu_pair(1, 64)
    kernels = sum(kernel.duration_ns for kernel in nsys.report.kernels) / synthetic.STEPS
    steps = tuple(step._replace(duration_ns=int(kernels * 4)) for step in nsys.report.steps)
    found = texts(replace(nsys, report=replace(nsys.report, steps=steps)), ncu)
    assert any("is busy for only 25.0% of a step at batch 64" in text for text in found)


def test_a_rate_over_the_peak_is_a_warning_with_its_likely_cause() -> None:
    nsys, ncu = synthetic.gpu_pair(1, 64)
    fast = [kernel._replace(duration_ns=kernel.duration_ns // 10) for kernel in nsys.report.kernels]
    (study,) = studies([replace(nsys, report=replace(nsys.report, kernels=fast, steps=())), ncu])
    (text,) = (item.text for item in said(study) if item.evidence == "roofline")
    assert "of the fp32 peak of the Tesla V100-SXM2-16GB" in text and "wrong device" in text


def test_the_largest_layer_is_named_at_both_ends_of_the_sweep_with_its_directions_added_up() -> (
    None
):
    (study,) = studies([synthetic.cpu_run(1, 16), synthetic.cpu_run(2, 256)])
    first, rows = said(study)[0], analyse(study).ledger.rows
    shares = {
        row.direction: row.share or 0 for row in rows if (row.batch, row.layer) == (16, "conv2")
    }
    assert len(shares) > 1 and shares["backward"] == pytest.approx(16 * 4000 / (16 * 10_100 + 1000))
    assert first.text.startswith(
        f"conv2 is the most expensive layer: {sum(shares.values()) * 100:.1f}% of the time of all steps "
        "at batch 16"
    )
    assert f"Its backward pass takes {shares['backward'] * 100:.1f}% and " in first.text
    assert first.evidence == "ledger"


def test_overlapping_spreads_are_no_change() -> None:
    assert any(
        "hardly changes" in text
        for text in texts(synthetic.cpu_run(1, 64), synthetic.cpu_run(2, 128))
    )


def test_a_change_within_the_scatter_of_the_steps_is_not_ranked() -> None:
    def steps(*each: int) -> tuple[Step, ...]:
        return tuple(Step(n, "step", None, ns) for n, ns in enumerate(each))

    runs = [
        synthetic.make_run(1, batch_size=16, steps=steps(800, 1600, 4800)),
        synthetic.make_run(2, batch_size=32, steps=steps(1600, 1600, 1600)),
        synthetic.make_run(3, batch_size=64, steps=steps(3200, 12800, 12800)),
    ]
    (text,) = (text for text in texts(*runs) if "per sample" in text)
    assert "is too noisy" in text and "100 ns at batch 16, 200 ns at batch 64" in text
    assert text.endswith("It is lowest at batch 32 with 50.0 ns.")


def test_a_real_change_comes_with_its_factor() -> None:
    found = texts(*synthetic.gpu_pair(1, 16), *synthetic.gpu_pair(2, 256))
    factor = ((20_000 + 900 * 16) / 16) / ((20_000 + 900 * 256) / 256)
    assert any(f"falls with the batch size by a factor of {factor:.1f}" in text for text in found)


def test_missing_counts_and_failed_runs_are_warnings_and_one_reason_is_one_sentence() -> None:
    (study,) = studies([synthetic.cpu_run(1, 64), synthetic.failed_run(2, 256)])
    warnings = [item for item in said(study) if item.warning]
    assert [item.evidence for item in warnings] == ["gaps", "runs"]
    assert "batch 256 failed" in warnings[1].text
    (study,) = studies(
        [synthetic.cpu_run(1, 64), synthetic.failed_run(2, 128), synthetic.failed_run(3, 256)]
    )
    failures = [item.text for item in said(study) if item.evidence == "runs"]
    assert len(failures) == 1 and "The torch runs at batch 128, 256 failed" in failures[0]


def test_a_foreign_report_names_its_largest_kernel_and_nothing_is_said_of_one_with_nothing_in_it() -> (
    None
):
    run = synthetic.foreign_run(1)
    assert texts(replace(run, report=replace(run.report, kernels=[]))) == []
    idle, kernel, *_ = texts(synthetic.foreign_run(1))
    assert "ran kernels for 71.4% of the time" in idle
    assert kernel == "gemm_v0<float> takes 80.0% of the kernel time (2.00 µs, 2 launches)."


def test_a_foreign_report_says_how_much_of_the_time_the_gpu_worked_over_the_span_of_its_table() -> (
    None
):
    kernels = [
        Kernel(0, "a", start_ns=0, duration_ns=1000),
        Kernel(1, "b", start_ns=500, duration_ns=1000),
        Kernel(2, "c", start_ns=5500, duration_ns=500),
    ]
    run = synthetic.foreign_run(1, kernels=kernels, duration_ns=60_000)
    (item,) = (item for item in said(studies([run])[0]) if "ran kernels" in item.text)
    share = (1500 + 500) / 6000 * 100
    assert (
        f"{share:.1f}% of the time from the first kernel to the end of the last: 2.00 µs of 6.00 "
        "µs. One idle gap takes 4.00 µs from b to c"
    ) in item.text
    assert item.evidence == "utilization"
    (used,) = analyse(studies([run])[0]).study.prepared_runs
    assert used.usage.ways.kernels.value == pytest.approx(share / 100)
    assert not any("ran kernels" in text for text in texts(replace(run, profiler="ncu")))


def test_the_device_that_ran_kernels_is_named() -> None:
    run = replace(synthetic.foreign_run(1), device=synthetic.V100)
    assert any(text.startswith(f"The {synthetic.V100.name} ran kernels for") for text in texts(run))
    long = replace(synthetic.V100, name="x" * 60)
    assert any(
        text.startswith("The GPU ran kernels for") for text in texts(replace(run, device=long))
    )


def test_a_range_is_named_by_the_gpu_time_it_launched_and_not_by_its_time_on_the_host() -> None:
    ranges = [
        Range(0, "loader", None, 0, 90_000, 7, 0, None, gpu_ns=10),
        Range(1, "forward", None, 0, 407, 7, 0, None, gpu_ns=855),
    ]
    (text,) = (
        text for text in texts(synthetic.foreign_run(1, ranges=ranges)) if text.startswith("Range")
    )
    assert text == "Range forward launched the most GPU time: 855 ns. The host spent 407 ns in it."


def test_a_foreign_report_sets_copies_beside_kernels() -> None:
    copies = [Copy("HtoD", 4096, 0, 500), Copy("memset", 4096, 600, 125)]
    text = (
        "2 copies and memsets took 625 ns for 8.19 kB: 20.0% of the summed time of copies and "
        "kernels."
    )
    assert text in texts(synthetic.foreign_run(1, copies=copies))


def test_copies_before_the_first_kernel_are_named_because_the_gpu_s_time_does_not_hold_them() -> (
    None
):
    run = synthetic.foreign_run(1)
    first = min(kernel.start_ns for kernel in run.report.kernels if kernel.start_ns is not None)
    before, after = Copy("HtoD", 4096, first - 1000, 900), Copy("DtoH", 4096, first, 100)
    (text,) = (
        text
        for text in texts(synthetic.foreign_run(1, copies=[before, after]))
        if "memsets took" in text
    )
    assert text.endswith("copies and kernels. Most of this time is before the first kernel.")
    (text,) = (
        text for text in texts(synthetic.foreign_run(1, copies=[before])) if "memset took" in text
    )
    assert text.endswith("copies and kernels. All of this time is before the first kernel.")
    (text,) = (
        text for text in texts(synthetic.foreign_run(1, copies=[after])) if "memset took" in text
    )
    assert text.endswith("copies and kernels.")


def test_a_foreign_ncu_report_names_what_its_largest_kernel_executed() -> None:
    counters = [
        *synthetic.fp_counters(0, 0, 0, 500),
        *synthetic.fp_counters(1, 0, 0, 500),
        *synthetic.fp_counters(2, 7, 0, 0),
    ]
    run = synthetic.foreign_run(1, profiler="ncu", device=synthetic.V100, counters=counters)
    assert (
        "gemm_v0<float> executed 2.00 kFLOP in 2 launches, the most of all kernels. All of it is "
        "fp32." in texts(run)
    )
    assert (
        "gemm_v0<float> takes 80.0% of the kernel time (2.00 µs, 2 launches). This time is under "
        "ncu, at locked clocks." in texts(run)
    )
    tensor = [*counters[:-1], *synthetic.fp_counters(2, 0, 0, 0, pipe=100)[-1:]]
    text = next(
        text
        for text in texts(replace(run, report=replace(run.report, counters=tensor)))
        if "executed" in text
    )
    assert (
        text.startswith("relu executed about 51.2 kFLOP")
        and " (approximate: 512 x tensor instructions" in text
    )


def test_what_a_foreign_report_is_without_is_a_warning() -> None:
    kernels = [Kernel(0, "a"), Kernel(1, "b")]
    counters = synthetic.fp_counters(0, 1, 1, 1, pipe=None)
    (study,) = studies(
        [synthetic.foreign_run(1, profiler="ncu", kernels=kernels, counters=counters)]
    )
    warnings = [item.text for item in said(study) if item.warning]
    assert warnings == [
        "No launch has a duration.",
        (
            "Executed FLOPs are lower bounds: 1 of 2 launches has no count; without tensor "
            "FLOPs, because tensor counters were not collected."
        ),
    ]
    assert "No FLOP counts: nsys does not record them. Run perfctl ncu." in texts(
        synthetic.foreign_run(1)
    )
