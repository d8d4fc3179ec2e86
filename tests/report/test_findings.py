"""Findings: only what the numbers prove, in the order of the time at stake."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.ledger.usage.intervals import Intervals
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.report.findings import list_findings
from perfctl.orchestrator.report.findings.step import describe_throttling
from perfctl.orchestrator.report.page.records import (
    Finding,
    StepTime,
    add_time_impact_and_fix,
    find_undisturbed_median_steps,
    sort_findings_by_impact,
)
from perfctl.records.report import (
    CPU_OTHERS,
    CPU_WAIT,
    Advice,
    Collective,
    Copy,
    Counter,
    Kernel,
    OpCall,
    Operation,
    Range,
    Sample,
    Step,
    Summary,
)
from perfctl.records.run import Device
from tests.make import synthetic
from tests.report.outline import analysed


def said(*runs):
    return list(list_findings(analysed(*runs)))


def texts(*runs):
    return [item.text for item in said(*runs)]


def the_one(words, *runs):
    (found,) = (item for item in said(*runs) if words in item.text)
    return found


def test_the_ratio_furthest_from_one_comes_first_with_its_number():
    found = texts(*synthetic.gpu_pair(1, 16), *synthetic.gpu_pair(2, 64))
    assert found[0].startswith("conv2 forward executed 0.500 times the estimated FLOPs at batch 16")
    assert not any("fc1" in text and "paper" in text for text in found)


def test_a_step_that_mostly_waits_is_said_with_its_share():
    nsys, ncu = synthetic.gpu_pair(1, 64)
    kernels = sum(kernel.duration_ns for kernel in nsys.report.kernels) / synthetic.STEPS
    steps = tuple(step._replace(duration_ns=int(kernels * 4)) for step in nsys.report.steps)
    found = texts(synthetic.with_report(nsys, steps=steps), ncu)
    assert any("is busy for only 25.0% of a step at batch 64" in text for text in found)


def test_a_rate_over_the_peak_is_a_warning_with_its_likely_cause():
    nsys, ncu = synthetic.gpu_pair(1, 64)
    fast = [kernel._replace(duration_ns=kernel.duration_ns // 10) for kernel in nsys.report.kernels]
    quick = synthetic.with_report(nsys, kernels=fast, steps=())
    (text,) = (item.text for item in said(quick, ncu) if item.evidence == "roofline")
    assert "of the fp32 peak of the Tesla V100-SXM2-16GB" in text and "wrong device" in text


def test_the_largest_layer_is_named_at_both_ends_of_the_sweep_with_its_directions_added_up():
    runs = synthetic.cpu_run(1, 16), synthetic.cpu_run(2, 256)
    first, rows = said(*runs)[0], analysed(*runs).ledger.rows
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


def test_overlapping_spreads_are_no_change():
    assert any(
        "hardly changes" in text
        for text in texts(synthetic.cpu_run(1, 64), synthetic.cpu_run(2, 128))
    )


def test_a_change_within_the_scatter_of_the_steps_is_not_ranked():
    def steps(*each):
        return tuple(Step(n, "step", None, ns) for n, ns in enumerate(each))

    runs = [
        synthetic.make_run(1, batch_size=16, steps=steps(800, 1600, 4800)),
        synthetic.make_run(2, batch_size=32, steps=steps(1600, 1600, 1600)),
        synthetic.make_run(3, batch_size=64, steps=steps(3200, 12800, 12800)),
    ]
    text = the_one("per sample", *runs).text
    assert "is too noisy" in text
    assert f"100 ns ({800 / 16:.1f} ns to {4800 / 16:.0f} ns in 3 steps) at batch 16" in text
    assert text.endswith("It is lowest at batch 32 with 50.0 ns.")


def test_a_real_change_comes_with_its_factor():
    found = texts(*synthetic.gpu_pair(1, 16), *synthetic.gpu_pair(2, 256))
    factor = ((20_000 + 900 * 16) / 16) / ((20_000 + 900 * 256) / 256)
    assert any(f"falls with the batch size by a factor of {factor:.1f}" in text for text in found)


def test_missing_counts_and_failed_runs_are_warnings_and_one_reason_is_one_sentence():
    failed = synthetic.failed_run
    warnings = [item for item in said(synthetic.cpu_run(1, 64), failed(2, 256)) if item.warning]
    assert [item.evidence for item in warnings] == ["gaps", "runs"]
    assert "batch 256 failed" in warnings[1].text
    several = said(synthetic.cpu_run(1, 64), failed(2, 128), failed(3, 256))
    failures = [item.text for item in several if item.evidence == "runs"]
    assert len(failures) == 1 and "The torch runs at batch 128, 256 failed" in failures[0]


def test_a_foreign_report_names_its_largest_kernel_and_nothing_is_said_of_one_with_nothing_in_it():
    run = synthetic.foreign_run(1)
    assert texts(synthetic.with_report(run, kernels=[])) == []
    idle, kernel, *_ = texts(synthetic.foreign_run(1))
    assert "ran kernels for 71.4% of the time" in idle
    assert kernel == "gemm_v0<float> takes 80.0% of the kernel time (2.00 µs, 2 launches)."


def test_a_foreign_report_says_how_much_of_the_time_the_gpu_worked_over_the_span_of_its_table():
    kernels = [
        Kernel(0, "a", start_ns=0, duration_ns=1000),
        Kernel(1, "b", start_ns=500, duration_ns=1000),
        Kernel(2, "c", start_ns=5500, duration_ns=500),
    ]
    run = synthetic.foreign_run(1, kernels=kernels, duration_ns=60_000)
    item = the_one("ran kernels", run)
    share = (1500 + 500) / 6000 * 100
    span = "of the time from the first kernel to the end of the last: 2.00 µs of 6.00 µs."
    assert f"{share:.1f}% {span}" in item.text
    assert item.text.startswith("One idle gap takes 4.00 µs of 6.00 µs;")
    assert item.evidence == "utilization"
    (used,) = analysed(run).study.prepared_runs
    assert used.usage.utilization_by_source.kernels.value == pytest.approx(share / 100)
    assert not any("ran kernels" in text for text in texts(replace(run, profiler="ncu")))


def test_the_device_that_ran_kernels_is_named():
    run = replace(synthetic.foreign_run(1), device=synthetic.V100)
    assert any(f"The {synthetic.V100.name} ran kernels for" in text for text in texts(run))
    long = replace(synthetic.V100, name="x" * 60)
    assert any("The GPU ran kernels for" in text for text in texts(replace(run, device=long)))


def test_a_range_is_named_by_the_gpu_time_it_launched_and_not_by_its_time_on_the_host():
    ranges = [
        Range(0, "loader", None, 0, 90_000, 7, 0, None, gpu_ns=10),
        Range(1, "forward", None, 0, 407, 7, 0, None, gpu_ns=855),
    ]
    text = the_one("Range ", synthetic.foreign_run(1, ranges=ranges)).text
    assert text == "Range forward launched the most GPU time: 855 ns. The host spent 407 ns in it."


def test_calls_of_one_operator_are_one_range_without_the_numbers_of_emit_nvtx():
    names = ("aten::mm, op_id = 7", "aten::mm, seq = 5, op_id = 8, input_op_ids = ((1, 0))")
    ranges = [
        Range(number, name, None, 0, 407, 7, 0, None, gpu_ns=gpu_ns)
        for number, (name, gpu_ns) in enumerate(zip((*names, "loss"), (40, 60, 70), strict=True))
    ]
    text = the_one("Range ", synthetic.foreign_run(1, ranges=ranges)).text
    assert text.startswith("Range aten::mm launched the most GPU time: 100 ns in 2 times.")


def test_a_foreign_report_sets_copies_beside_kernels():
    copies = [Copy("HtoD", 4096, 0, 500), Copy("memset", 4096, 600, 125)]
    text = (
        "2 copies and memsets took 625 ns for 8.19 kB: 20.0% of the summed time of copies and "
        "kernels. Most of this time is while kernels run."
    )
    assert text in texts(synthetic.foreign_run(1, copies=copies))


def test_copies_before_the_first_kernel_are_named_because_the_gpu_s_time_does_not_hold_them():
    run = synthetic.foreign_run(1)
    first = min(kernel.start_ns for kernel in run.report.kernels if kernel.start_ns is not None)
    before, after = Copy("HtoD", 4096, first - 1000, 900), Copy("DtoH", 4096, first, 100)
    for copies, end in (
        (
            [before, after],
            "28.6% of the summed time of copies and kernels. Most of this time is before the ",
        ),
        (
            [before],
            "26.5% of the summed time of copies and kernels. Most of this time is before",
        ),
        ([after], "kernels. Most of this time is while kernels run."),
    ):
        stated = the_one("memset", synthetic.foreign_run(1, copies=copies))
        assert end in stated.text


def test_a_foreign_ncu_report_names_what_its_largest_kernel_executed():
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
        text for text in texts(synthetic.with_report(run, counters=tensor)) if "executed" in text
    )
    assert (
        text.startswith("relu executed about 51.2 kFLOP")
        and " (approximate: 512 x tensor instructions" in text
    )


SECOND = 1_000_000_000


def sampled(field, values, **fields):
    """A log of one GPU, a sample a second."""
    empty = dict.fromkeys(Sample._fields[1:7])
    samples = [
        Sample(at * SECOND, **empty | {field: value})  # type: ignore[arg-type]
        if field in empty
        else Sample(at * SECOND, **empty, **{field: value})  # type: ignore[arg-type]
        for at, value in enumerate(values)
    ]
    return synthetic.make_run(
        origin="ingested", workload=None, batch_size=None, samples=samples, **fields
    )


@pytest.mark.parametrize(
    ("field", "values", "parts"),
    [
        pytest.param(
            "gpu_utilisation",
            [0.95] * 5 + [0.0] * 4 + [0.95] * 2,
            ("idle", f"{4 / 10:.1%} of the 10.0 s", "4.00 s, from 4.00 s on"),
            id="an idle stretch has its share and its place",
        ),
        pytest.param(
            "gpu_utilisation", [0.0] * 11, ("idle", "all of the 10.0 s"), id="idle all the time"
        ),
        pytest.param(
            "gpu_utilisation",
            [0.2, *[0.4] * 10],
            ("never fully busy", f"{0.4:.1%} on average and at most {0.4:.1%}"),
            id="a low utilization has its mean, of the time before each sample",
        ),
        pytest.param("gpu_utilisation", [0.95] * 11, ("is busy", "11 samples"), id="busy"),
        pytest.param("gpu_utilisation", [0.0] * 5, (), id="few samples are no course"),
        pytest.param(
            "memory_used_bytes",
            [n * 10**9 for n in range(1, 13)],
            ("Memory used", "grows from 1.00 GB to 12.0 GB in 11.0 s"),
            id="memory that grows to the end",
        ),
        pytest.param(
            "allocated_bytes",
            [10**9, *[8 * 10**9] * 8, 2 * 10**9],
            ("at most 8.00 GB, 1.00 s after", "2.00 GB at the last"),
            id="memory that falls has its peak",
        ),
        pytest.param(
            "memory_used_bytes",
            [10**9, *[8 * 10**9] * 20],
            (),
            id="memory that is taken once is no growth",
        ),
    ],
)
def test_samples_that_show_a_course_are_a_finding(field, values, parts):
    found = [item for item in said(sampled(field, values)) if not item.warning]
    assert len(found) == bool(parts)
    assert all(part in item.text for item in found for part in parts)


def test_an_idle_gpu_comes_before_a_busy_one():
    busy, idle = (
        [
            sample._replace(device_index=index)
            for sample in sampled(field, [share] * 11).report.samples
        ]
        for field, index, share in (("gpu_utilisation", 0, 0.95), ("gpu_utilisation", 1, 0.0))
    )
    run = synthetic.make_run(
        origin="ingested", workload=None, batch_size=None, samples=[*busy, *idle]
    )
    assert [item.text.partition(" (")[0] for item in said(run) if not item.warning] == [
        "GPU 1 was idle",
        "GPU 0 is busy: its sampled utilization is 95.0% on average and at most 95.0%",
    ]


def test_power_and_memory_are_the_finding_of_samples_without_a_course():
    samples = [
        Sample(second * SECOND, None, 4 * 2**20, 80 * 2**30, watts, 33.0, None, device)
        for device in range(8)
        for second, watts in enumerate((72.2, 74.3))
    ]
    run = synthetic.make_run(origin="ingested", workload=None, batch_size=None, samples=samples)
    (finding,) = [item for item in said(run) if not item.warning]
    parts = ("8 GPUs", "72.2 to 74.3 W", f"{4 * 2**20 / 1e6:.2f} MB", f"{8 * 2} samples")
    assert all(part in finding.text for part in parts)


def test_reduced_clocks_are_a_finding_of_the_run_with_most_of_them():
    few, many = (
        sampled("throttle_reasons", ["none", "idle", *["idle+sw_power_cap"] * slow, *["none"] * 8])
        for slow in (2, 10)
    )
    (found,) = describe_throttling([few, many])
    assert f"{10 / 20:.1%} of 20 samples" in found.text
    assert "sw_power_cap" in found.text and "idle" not in found.text


def test_what_a_foreign_report_is_without_is_a_warning():
    kernels = [Kernel(0, "a"), Kernel(1, "b")]
    counters = synthetic.fp_counters(0, 1, 1, 1, pipe=None)
    run = synthetic.foreign_run(1, profiler="ncu", kernels=kernels, counters=counters)
    warnings = [item.text for item in said(run) if item.warning]
    assert warnings == [
        "No launch has a duration.",
        (
            "Executed FLOPs are lower bounds: 1 of 2 launches has no count; without tensor "
            "FLOPs in 1 of 2 launches, because tensor counters were not collected."
        ),
    ]
    assert "No FLOP counts: nsys does not record them; run the program under perfctl ncu." in texts(
        synthetic.foreign_run(1)
    )


MS = 1_000_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def summed(name, category, calls, **sums):
    """Return an operation with some of the sums cpu_ns, device_ns and flops."""
    return Operation(name, category, calls, None, None, None, None, None)._replace(**sums)


def looped(wait, compute, **more):
    """Return a trace of six steps of torch.profiler: so much loading of data, then one kernel."""
    length = wait + compute
    marks = [
        Range(
            2 * number, f"ProfilerStep#{number}", None, number * length, length, 7, 0, None, number
        )
        for number in range(6)
    ]
    loads = [
        Range(2 * number + 1, LOADER, None, number * length, wait, 7, 1, 2 * number, number)
        for number in range(6)
    ]
    kernels = [
        Kernel(number, "gemm", start_ns=number * length + wait, duration_ns=compute, step=number)
        for number in range(6)
    ]
    return synthetic.foreign_run(
        1,
        profiler="torch",
        kernels=kernels,
        ranges=[*marks, *loads],
        steps=tuple(Step(number, "step", number * length, length) for number in range(6)),
        **more,
    )


def test_findings_are_ordered_by_their_share_of_the_step_then_those_without_then_warnings():
    step = StepTime(100.0)
    stated = [
        Finding("warning", "gaps", warning=True),
        Finding("no time", "ledger"),
        add_time_impact_and_fix(Finding("small", "ledger"), 0.01, step),
        add_time_impact_and_fix(Finding("large", "ledger"), 0.4, step),
    ]
    assert [finding.text for finding in sort_findings_by_impact(stated)] == [
        "large",
        "small",
        "no time",
        "warning",
    ]
    large = add_time_impact_and_fix(Finding("large", "ledger", fix="less"), 0.4, step)
    assert (large.impact_ns, large.step_ns, large.impact_share, large.fix) == (
        40.0,
        100.0,
        0.4,
        "less",
    )


def test_a_time_below_the_scatter_of_the_steps_is_not_ranked():
    noisy = StepTime(100.0, noise_ns=20.0)
    assert add_time_impact_and_fix(Finding("within", "ledger"), 0.2, noisy).impact_ns is None
    assert add_time_impact_and_fix(Finding("beyond", "ledger"), 0.3, noisy).impact_ns == 30.0


def test_nothing_is_ranked_by_the_steps_of_a_cpu_that_other_programs_kept_busy():
    quiet = [synthetic.cpu_run(1, 16), synthetic.cpu_run(2, 64)]
    assert set(find_undisturbed_median_steps(analysed(*quiet))) == {16, 64}
    shares = (Summary(CPU_WAIT, 0.52, None), Summary(CPU_OTHERS, 0.9, None))
    busy = [synthetic.with_report(run, summaries=(*run.report.summaries, *shares)) for run in quiet]
    assert not find_undisturbed_median_steps(analysed(*busy))
    assert not any("per sample" in text for text in texts(*busy))
    warning = the_one("cannot be compared", *busy)
    assert "threads waited for a core in 52%" in warning.text
    assert warning.fix and warning.text.endswith(f"{warning.fix}.")


def test_a_loader_that_stops_the_gpu_comes_first_with_its_time_of_the_median_step():
    first, *_ = said(looped(48 * MS, 128 * MS))
    assert (first.impact_ns, first.step_ns) == (pytest.approx(48 * MS), 176 * MS)
    assert (
        "288 ms of " in first.first
        and "while the host mostly loads data" in first.first
        and LOADER in first.text
    )
    assert first.fix is not None and "num_workers" in first.fix


def test_exposed_communication_comes_before_the_differences_of_small_kernels():
    kernels = [
        Kernel(0, "gemm", start_ns=0, duration_ns=5 * MS, step=0),
        Kernel(1, "ncclDevKernel_AllReduce", start_ns=5 * MS, duration_ns=6 * MS, step=0),
    ]
    collectives = [Collective("all_reduce", start_ns=5 * MS, duration_ns=6 * MS, exposed_ns=6 * MS)]
    run = synthetic.foreign_run(1, profiler="torch", kernels=kernels, ranges=[])
    run = synthetic.with_report(run, collectives=collectives)
    first, *rest = said(run)
    assert first.text.startswith("Exposed communication") and first.impact_ns == 6 * MS
    assert first.cause == "exposed communication of one rank"
    assert any("of the kernel time" in finding.text for finding in rest)


def test_nothing_takes_the_most_time_next_to_idle_time_and_time_of_no_layer():
    for runs in (
        [synthetic.cpu_run(1, 16), synthetic.cpu_run(2, 64)],
        [*synthetic.gpu_pair(1, 16)],
    ):
        assert not any("takes the most time" in text for text in texts(*runs))


def test_the_steady_part_of_a_capture_is_stated_next_to_the_capture():
    starts = [0, 200, 400, *range(500, 600, 2)]
    kernels = [
        Kernel(number, "k", start_ns=start * 1000, duration_ns=1000, device_index=0)
        for number, start in enumerate(starts)
    ]
    run = synthetic.foreign_run(1, profiler="nsys", kernels=kernels, ranges=[])
    (steady,) = RunUsage(run).busy_times_in_shortest_active_span
    assert steady.launches == 51 and steady.busy_share == pytest.approx(51 / 199)
    text = the_one("ran kernels for", run).text
    assert "8.8% of the time from the first kernel" in text
    assert "398 µs of 599 µs (26.4% busy without start-up)" in text
    first = the_one("ran kernels for", run).first
    assert "% while the program starts" in first and len(first.split()) <= 25
    assert not RunUsage(looped(1 * MS, 9 * MS)).busy_times_in_shortest_active_span, (
        "its steps are marked"
    )


def test_the_shortest_span_holds_the_asked_length():
    intervals = Intervals([(0, 1), (10, 12), (13, 16), (40, 41)])
    assert intervals.find_shortest_span_with_coverage(5) == (10, 16)
    assert intervals.find_shortest_span_with_coverage(7) == (0, 41)
    assert intervals.find_shortest_span_with_coverage(8) == (0, 0)


def test_the_kernel_that_fills_the_time_comes_before_short_waits_and_copies():
    kernels = [
        Kernel(number, "attention", start_ns=25 * number * MS, duration_ns=22 * MS)
        for number in range(4)
    ]
    copies = [Copy("HtoD", 4_000_000, 23 * MS, 1 * MS)]
    first, second, *_ = said(
        synthetic.foreign_run(1, kernels=kernels, copies=copies, ranges=[], profiler="nsys")
    )
    assert first.text.startswith("attention is the only kernel")
    assert first.impact_ns == 0.25 * 4 * 22 * MS, "as much as if it were a third faster"
    assert second.impact_ns == 0.25 * 9 * MS, "3 gaps of 3 ms, of which no cause is known"


def test_migrations_of_unified_memory_inside_of_a_kernel_are_a_finding():
    kernels = [Kernel(0, "add", start_ns=0, duration_ns=100 * MS, device_index=0)]
    moved = [
        Copy("unified HtoD", 65_536, number * MS, 300_000, device_index=0) for number in range(200)
    ]
    first, *others = said(synthetic.foreign_run(1, kernels=kernels, copies=moved, ranges=[]))
    assert not any("copies and memsets" in finding.text for finding in others)
    assert first.text.startswith("200 migrations of unified memory moved 13.1 MB in 60.0 ms")
    assert first.impact_ns == pytest.approx(30 * MS), "half of them are after the kernel"


def test_copies_next_to_migrations_are_counted_without_them_and_hardly_any_are_no_finding():
    kernels = [Kernel(0, "add", start_ns=0, duration_ns=100 * MS, device_index=0)]
    moved = Copy("unified HtoD", 65_536, 0, 30 * MS, device_index=0)
    for copied_ns, texts in ((25 * MS, ["1 copy or memset took 25.0 ms for 10 B"]), (1000, [])):
        copies = [moved, Copy("HtoD", 10, 100 * MS, copied_ns, device_index=0)]
        run = synthetic.foreign_run(1, kernels=kernels, copies=copies, ranges=[])
        stated = [one.text.partition(":")[0] for one in said(run) if " memset" in one.text]
        assert stated == texts


@pytest.mark.parametrize(
    ("operations", "texts"),
    [
        (
            [
                summed("gemm", "cuda_gpu_kern_sum", 64, device_ns=90 * MS),
                summed("relu", "cuda_gpu_kern_sum", 1, device_ns=10 * MS),
                summed("[HtoD]", "cuda_gpu_mem_time_sum", 3, device_ns=25 * MS),
                summed("cudaMalloc", "cuda_api_sum", 3, cpu_ns=30 * MS),
                summed("cudaFree", "cuda_api_sum", 1, cpu_ns=10 * MS),
                summed("poll", "osrt_sum", 9, cpu_ns=900 * MS),
            ],
            [
                "gemm takes 90.0% of the kernel time: 90.0 ms of 100 ms, 64 launches.",
                "[HtoD] takes 100.0% of the time of copies: 25.0 ms of 25.0 ms, 3 copies.",
                "cudaMalloc takes 75.0% of the host time of CUDA calls: 30.0 ms of 40.0 ms, 3 calls.",
                "Copies and memsets take 25.0 ms, 20.0% of the summed time of copies and kernels.",
            ],
        ),
        (
            [
                summed("gemm", "kernel", 10, device_ns=30 * MS),
                summed("[CUDA memcpy HtoD]", "cuda_gpu_sum", 2, device_ns=MS),
                summed("cudaFree", "cuda_api_gpu_sum", 1, cpu_ns=MS),
            ],
            [
                "gemm takes 100.0% of the kernel time: 30.0 ms of 30.0 ms, 10 launches.",
                "[CUDA memcpy HtoD] takes 100.0% of the time of copies: 1.00 ms of 1.00 ms, "
                "2 copies.",
                "cudaFree takes 100.0% of the host time of CUDA calls: 1.00 ms of 1.00 ms, 1 call.",
                "Copies and memsets take 1.00 ms, 3.2% of the summed time of copies and kernels.",
            ],
        ),
        (
            [summed("gemm", "kernel", 18, flops=142_000_000)],
            ["gemm executed 142 MFLOP in 18 launches, 100.0% of the FLOPs that the report states."],
        ),
        (
            [summed("cudaMemcpy", "cuda_memcpy_sync", 2, device_ns=42 * MS)],
            [
                "cudaMemcpy takes 100.0% of the time of copies that block the host: 42.0 ms of "
                "42.0 ms, 2 copies."
            ],
        ),
        (
            [
                summed("gemm", "cuda_gpu_kern_sum", 1, device_ns=30 * MS),
                summed("gemm", "cuda_gpu_kern_sum", 1, device_ns=20 * MS),
                summed("add<int…", "cuda_gpu_kern_sum", 1, device_ns=30 * MS),
                summed("add<int…", "cuda_gpu_kern_sum", 1, device_ns=20 * MS),
            ],
            ["gemm takes 50.0% of the kernel time: 50.0 ms of 100 ms, 2 launches."],
        ),
        (
            [summed("poll", "osrt_sum", 9, cpu_ns=9 * MS)],
            [
                "poll takes 100.0% of the time in operating system calls: 9.00 ms of 9.00 ms, "
                "9 calls."
            ],
        ),
    ],
    ids=["largest of each", "mixed sums", "FLOPs", "rules", "equal names", "system calls"],
)
def test_sums_of_each_tool_state_what_dominates(operations, texts):
    run = synthetic.foreign_run(1, kernels=[], ranges=[])
    run = synthetic.with_report(run, operations=operations)
    assert [finding.text for finding in said(run) if not finding.warning] == texts


def test_rows_that_are_lower_bounds_do_not_agree_with_the_estimate():
    nsys, ncu = synthetic.gpu_pair(1, 64)
    dropped = [counter for counter in ncu.report.counters if "ffma" not in counter.name]
    partial = synthetic.with_report(ncu, counters=dropped)
    assert not any("within 10%" in text for text in texts(nsys, partial))


def copying(devices):
    """Return a report of so many GPUs: a kernel of 1 ms, copies for 97 ms, 1 ms of a kernel."""
    kernels = [
        Kernel(
            2 * device + place,
            "gemm",
            start_ns=place * 99 * MS,
            duration_ns=1 * MS,
            device_index=device,
        )
        for device in range(devices)
        for place in range(2)
    ]
    copies = [Copy("HtoD", 8, 2 * MS, 97 * MS, device_index=device) for device in range(devices)]
    return synthetic.foreign_run(1, profiler="nsys", kernels=kernels, copies=copies, ranges=[])


@pytest.mark.parametrize(("devices", "gpu"), [(1, "The GPU"), (2, "GPU 0")])
def test_copies_that_fill_the_time_are_the_first_finding_on_one_gpu_and_on_several(devices, gpu):
    first, *_ = said(copying(devices))
    assert first.text.startswith(
        f"{gpu} runs no kernel for 98.0% of the time while copies mostly run: 98.0 ms of 100 ms."
    )
    assert "ran kernels for 2.0%" in first.text


def test_idle_time_of_several_causes_states_all_of_it_and_the_part_of_the_largest():
    kernels = [
        Kernel(n, "gemm", start_ns=at * MS, duration_ns=MS) for n, at in enumerate((0, 61, 99))
    ]
    copies = [Copy("HtoD", 8, MS, 59 * MS)]
    first, *_ = said(synthetic.foreign_run(1, kernels=kernels, copies=copies, ranges=[]))
    assert first.text.startswith(
        "The GPU runs no kernel for 97.0% of the time, 60.0% while copies mostly run: 60.0 ms of "
        "100 ms."
    )


def test_collectives_that_compute_kernels_hide_do_not_come_before_these():
    def run_with_gemms_of(length):
        kernels = [
            Kernel(0, "ncclDevKernel_AllToAll", start_ns=0, duration_ns=60 * MS, stream=1),
            Kernel(1, "cutlass_gemm_a", start_ns=0, duration_ns=length, stream=2),
            Kernel(2, "cutlass_gemm_b", start_ns=30 * MS, duration_ns=length, stream=2),
        ]
        return synthetic.foreign_run(1, kernels=kernels, ranges=[])

    first, *_ = said(run_with_gemms_of(28 * MS))  # 4 of 60 ms are exposed
    assert first.text == (
        "Kernels of the family gemm take 48.3% of the kernel time (56.0 ms, 2 launches), "
        "cutlass_gemm_a 24.1%. Collectives take 51.7% (60.0 ms), but most of it overlaps with "
        "computation."
    )
    assert first.impact_ns == pytest.approx(0.25 * 56 * MS)
    largest = the_one("of the kernel time", run_with_gemms_of(10 * MS))  # 40 of 60 ms
    assert largest.text.startswith("ncclDevKernel_AllToAll takes 75.0% of the kernel time")
    assert largest.impact_ns == pytest.approx(0.25 * 40 * MS)


@pytest.mark.parametrize(
    ("blocks", "waves", "sms", "stated", "at_stake"),
    [
        (
            9,
            None,
            36,
            "For 75.0% of the kernel time, launches have fewer blocks than the 36 SMs",
            45,
        ),
        (9, 0.1, 36, "On average, at least 56.2% of the SMs have no block", 45),
        (
            None,
            0.2,
            None,
            "launches have too few blocks to fill the GPU once. On average, 60.0%",
            48,
        ),
        (36, None, 36, "", 0),
        (9, None, None, "", 0),
    ],
)
def test_launches_that_do_not_fill_the_gpu_are_the_first_finding(
    blocks, waves, sms, stated, at_stake
):
    # 60 of 80 ns are in the small launch
    kernels = [
        Kernel(0, "f", grid_x=blocks, start_ns=0, duration_ns=60),
        Kernel(1, "g", grid_x=360, start_ns=60, duration_ns=20),
    ]
    values = {0: waves, 1: 10.0}
    counters = [
        Counter(launch, "Waves Per SM", value, None) for launch, value in values.items() if value
    ]
    device = Device("NVIDIA X", "gpu", sm_count=sms)
    run = synthetic.foreign_run(
        1, profiler="ncu", kernels=kernels, counters=counters, device=device, ranges=[]
    )
    first, *_ = said(run)
    assert stated in first.text
    assert ("On average" in first.text) is bool(stated)
    if stated:
        assert first.impact_ns == pytest.approx(at_stake)


def test_small_launches_that_run_at_once_are_no_finding():
    kernels = [Kernel(n, "f", grid_x=1, start_ns=0, duration_ns=60, stream=n) for n in range(3)]
    device = Device("NVIDIA X", "gpu", sm_count=36)
    run = synthetic.foreign_run(1, kernels=kernels, device=device, ranges=[])
    assert not any("blocks" in text for text in texts(run))
    assert any("blocks" in text for text in texts(synthetic.with_report(run, kernels=kernels[:1])))


def test_memory_calls_that_block_the_host_come_first_without_the_first_one():
    calls = (
        OpCall("cudaFree", 0, 20 * MS),  # creates the context
        OpCall("cudaHostAlloc", 20 * MS, 50 * MS),
        OpCall("cudaFreeHost", 90 * MS, 10 * MS),
    )
    kernels = [Kernel(0, "gemm", start_ns=70 * MS, duration_ns=20 * MS)]
    run = synthetic.foreign_run(1, kernels=kernels, waiting_calls=calls, ranges=[])
    first, *_ = said(run)
    assert first.text.startswith(
        "Memory calls, mostly cudaHostAlloc (50.0 ms) and cudaFreeHost (10.0 ms), block the host "
        "for 60.0% of 100 ms. Allocate"
    )
    assert first.impact_ns == 60 * MS
    few = synthetic.foreign_run(1, kernels=kernels, waiting_calls=calls[::2], ranges=[])
    assert not any("Memory calls" in text for text in texts(few))


def test_copies_outside_of_the_kernels_that_take_longer_are_in_the_first_finding():
    kernels = [Kernel(0, "gemm", start_ns=100 * MS, duration_ns=40 * MS)]
    for length, is_stated in ((30 * MS, False), (50 * MS, True)):
        copies = [Copy("HtoD", 8, 0, length)]
        run = synthetic.foreign_run(1, kernels=kernels, copies=copies, ranges=[])
        assert texts(run)[0].startswith("1 copy or memset took") is is_stated


def test_unused_tensor_cores_are_not_stated_a_second_time_as_a_family():
    device = Device("NVIDIA A100-SXM4-80GB", "gpu")
    for name, families in (("ampere_sgemm_128x64_tn", 0), ("gemm", 1)):
        kernels = [Kernel(0, name, start_ns=0, duration_ns=MS, device_index=0)]
        run = synthetic.foreign_run(1, device=device, kernels=kernels, ranges=[])
        stated = texts(run)
        assert sum("is the only kernel" in text for text in stated) == families
        assert sum("Unused tensor cores" in text for text in stated) == 1 - families


@pytest.mark.parametrize(
    ("scope", "rule"), [("global", "Tail"), ("local", "SOLBottleneck")], ids=lambda value: value
)
def test_what_ncu_estimates_for_complete_launches_is_a_finding_or_else_its_bottleneck(scope, rule):
    kernels = [Kernel(0, "gemm", duration_ns=1000), Kernel(1, "relu", duration_ns=100)]
    advice = [
        Advice(1, "SOLBottleneck", "INF", "Of relu."),
        Advice(0, "SOLBottleneck", "INF", "Of gemm."),
        Advice(1, "Tail", "OPT", "A partial wave.", 0.5, scope),
    ]
    run = synthetic.foreign_run(1, profiler="ncu", kernels=kernels, advice=advice, ranges=[])
    (finding,) = (item for item in said(run) if item.evidence == "advice")
    assert f"rule {rule}" in finding.text
    assert ("saves most: up to 50.0 ns, 50.0% of a launch. In relu" in finding.text) is (
        rule == "Tail"
    )
    assert finding.text.startswith("Of gemm.") is (rule != "Tail")


def test_the_first_finding_states_the_time_with_collectives_only():
    kernels = [
        Kernel(0, "gemm", start_ns=0, duration_ns=1 * MS),
        Kernel(1, "ncclDevKernel_AllReduce", start_ns=1 * MS, duration_ns=5 * MS),
        Kernel(2, "gemm", start_ns=9 * MS, duration_ns=1 * MS),
    ]
    first, *_ = said(synthetic.foreign_run(1, kernels=kernels, ranges=[]))
    assert "ran kernels for 70.0%" in first.text
    assert "For 50.0% of the time, only collectives ran." in first.text


@pytest.mark.parametrize(
    ("name", "batch", "is_hidden", "is_stated"),
    [
        pytest.param("gemm", 16, False, True, id="no communication"),
        pytest.param("ncclDevKernel", 16, False, False, id="exposed"),
        pytest.param("ncclDevKernel", 16, True, False, id="during computation"),
        pytest.param("ncclDevKernel", None, True, False, id="no batch size"),
    ],
)
def test_no_layer_is_called_the_most_expensive_while_communication_takes_more(
    name, batch, is_hidden, is_stated
):
    run = replace(synthetic.gpu_pair(1, 16)[0], batch_size=batch)
    start, kernels = 0, []
    for kernel in run.report.kernels:
        short = "conv" if kernel.layer == "conv1" else name
        kernels.append(kernel._replace(name=short, start_ns=start, stream=7))
        start += 0 if is_hidden else round(kernel.duration_ns or 0)
    stated = texts(synthetic.with_report(run, kernels=kernels, ranges=[]))
    assert any("most expensive layer" in text for text in stated) is is_stated
