"""Utilization of a GPU: the time with a kernel running, by every source and by kind of work, and
from which batch size on the GPU is busy."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfctl.orchestrator.ledger.usage.intervals import Intervals
from perfctl.orchestrator.ledger.usage.readings import (
    SENSOR_WINDOW_MAX_NS,
    compute_time_weighted_mean,
    find_measured_steps_window_ns,
    find_smallest_busy_batch_across_runs,
    summarize_readings_by_device,
)
from perfctl.orchestrator.ledger.usage.run_usage import PARTS, BusyTime, RunUsage
from perfctl.records.report import (
    Copy,
    Counter,
    Device,
    Gap,
    Kernel,
    Range,
    Sample,
    Step,
    Summary,
)
from tests.make.synthetic import cpu_run, foreign_run, make_run, with_report
from tests.make.tables import table

GPU = Device("a GPU", "gpu", memory_bytes=1000)
SECOND = 10**9


def kernel(start, length, stream=7, device=0, launch=0):
    return Kernel(
        launch, f"k{launch}", start_ns=start, duration_ns=length, stream=stream, device_index=device
    )


def reading(at, used, device=0):
    return Sample(at, used, None, None, None, None, None, device)


def ways_of(**changes):
    return RunUsage(make_run(**changes)).utilization_by_source


@given(
    st.lists(st.tuples(st.integers(-20, 80), st.integers(0, 40)), max_size=12),
    st.integers(0, 30),
    st.integers(30, 90),
)
def test_the_union_of_intervals_is_what_marking_every_moment_gives(found, low, high):
    pairs = sorted((start, start + length) for start, length in found)
    marked = {moment for start, end in pairs for moment in range(max(start, low), min(end, high))}
    intervals = Intervals(pairs)
    waits = intervals.find_uncovered_gaps(low, high)
    assert intervals.measure_covered_ns(low, high) == len(marked)
    assert {moment for start, end in waits for moment in range(start, end)} == set(
        range(low, high)
    ) - marked
    assert all(end == start or end < start for (_, end), (start, _) in pairwise(waits))


def test_readings_are_averaged_over_time_and_inside_of_the_steps():
    points = [(0, 0.0), (10, 1.0), (20, 0.5), (50, 0.2)]
    assert compute_time_weighted_mean(points) == pytest.approx(
        (10 * 1.0 + 10 * 0.5 + 30 * 0.2) / 50
    )
    inside = (5 * 1.0 + 10 * 0.5 + 10 * 0.2) / 25
    assert compute_time_weighted_mean(points, (5, 30)) == pytest.approx(inside)
    assert compute_time_weighted_mean(points, (60, 70)) is None
    samples = [reading(at * SECOND, value) for at, value in points]
    steps = (Step(0, "step", 5 * SECOND, 10 * SECOND), Step(1, "step", 15 * SECOND, 15 * SECOND))
    found = ways_of(samples=samples, steps=steps, device=GPU)
    assert found.nvml.value == pytest.approx(inside)


def test_steps_between_two_readings_still_have_one_and_steps_after_all_have_none():
    samples = [reading(at * SECOND, 0.5) for at in (0, 100)]
    between, late = (
        make_run(samples=samples, steps=(Step(0, "step", start * SECOND, 5 * SECOND),), device=GPU)
        for start in (40, 140)
    )
    assert RunUsage(between).utilization_by_source.nvml.value == 0.5
    nvml, (found,) = RunUsage(late).utilization_by_source.nvml, summarize_readings_by_device(late)
    assert (nvml.value, found.utilisation) == (None, None)
    assert nvml.reason == found.span == "none of 2 samples covers the measured steps"


def sampled_run(length, profiler="none", **changes):
    """A run of two equal steps of ``length`` ns together, with a sample of 5.5% every 100 ms."""
    half = length // 2
    return make_run(
        profiler=profiler,
        samples=[reading(at * SECOND // 10, 0.055) for at in range(60)],
        steps=[Step(number, "step", SECOND + number * half, half) for number in (0, 1)],
        device=GPU,
        batch_size=256,
        **changes,
    )


@table(
    "length profiler status reason",
    [
        (2 * SECOND, "ncu", "ok", "ncu replays every kernel"),
        (2 * SECOND, "none", "failed", "the run failed"),
        (SECOND // 100, "none", "ok", "the steps take 10 ms in total"),
        (SENSOR_WINDOW_MAX_NS - 2, "torch", "ok", "a sample is the mean of up to 1 s"),
    ],
)
def test_samples_that_do_not_show_the_program_give_no_utilization_and_no_busy_batch(
    length, profiler, status, reason
):
    run = sampled_run(length, profiler, status=status)
    ways, (reading,) = RunUsage(run).utilization_by_source, summarize_readings_by_device(run)
    assert (ways.nvml.value, reading.utilisation) == (None, None)
    assert reason in ways.nvml.reason == reading.span
    assert find_smallest_busy_batch_across_runs([ways]) is None


def test_samples_of_steps_as_long_as_the_sensor_s_window_give_the_utilization():
    ways = RunUsage(sampled_run(SENSOR_WINDOW_MAX_NS)).utilization_by_source
    assert ways.nvml.value == pytest.approx(0.055)
    assert (find_smallest_busy_batch_across_runs([ways]) or ())[:2] == (256, False)


def test_a_trace_of_a_short_run_gives_its_busy_time_without_the_samples():
    kernels = [kernel(SECOND, 1_000_000), kernel(SECOND + 9_000_000, 1_000_000, launch=1)]
    run = sampled_run(SECOND // 100, "nsys", kernels=kernels, ranges=[])
    ways = RunUsage(run).utilization_by_source
    assert (ways.nvml.value, ways.kernels.value) == (None, 2 / 10)
    assert (find_smallest_busy_batch_across_runs([ways]) or ())[:2] == (256, False)


def test_cores_that_a_run_on_a_cpu_kept_busy():
    samples = [reading(at, None)._replace(host_cpu=cores) for at, cores in ((10, 9.0), (20, 1.5))]
    found = ways_of(samples=samples, steps=(Step(0, "step", 12, 8),))
    assert (found.host_cores, found.nvml.value) == (1.5, None)


def test_occupancy_and_tensor_pipe_are_weighted_by_time_and_absent_without_counters():
    name = "sm__warps_active.avg.pct_of_peak_sustained_active"
    counters = [Counter(0, name, 20.0, "%"), Counter(1, name, 80.0, "%")]
    found = ways_of(
        profiler="ncu", counters=counters, kernels=[kernel(0, 10), kernel(10, 30, launch=1)]
    )
    assert found.occupancy.value == pytest.approx((10 * 0.2 + 30 * 0.8) / 40)
    assert found.tensor_pipe.value is None
    assert "was not collected" in found.tensor_pipe.reason


def test_a_way_that_averages_gpus_says_of_how_many():
    def kernels(*kernels):
        run = foreign_run(1, ranges=[], kernels=list(kernels))
        return RunUsage(run).utilization_by_source.kernels

    two, one = kernels(kernel(0, 50), kernel(0, 100, device=1)), kernels(kernel(0, 50))
    window = "from the first kernel to the end of the last"
    assert (two.value, two.reason) == (0.75, f"{window}, mean of 2 GPUs")
    assert one.reason == window


@table(
    "profiler kernels dlprof",
    [
        ("ncu", "ncu runs kernels one by one", "not a report of DLProf"),
        ("nsys", "no kernels with start times", "not a report of DLProf"),
        ("dlprof", "no kernels with start times", "DLProf has no line for it"),
        ("a", "no kernels with start times", "not a report of DLProf"),
    ],
)
def test_a_way_that_gives_nothing_says_why(profiler, kernels, dlprof):
    found = ways_of(profiler=profiler)
    assert (found.kernels.reason, found.dlprof.reason) == (kernels, dlprof)
    assert (found.nvml.reason, found.host_reason) == ("not sampled", "not sampled")
    assert found.occupancy.reason == found.tensor_pipe.reason == "the run collected no counters"
    assert not found.has_any_share


@table(
    "device workload value over",
    [
        (replace(GPU, index=1), "mnist_cnn", 0.6, ""),
        (GPU, "mnist_cnn", 0.2, ""),
        (None, "mnist_cnn", 0.2, ""),
        (replace(GPU, index=5), "mnist_cnn", (0.2 + 0.6) / 2, ", mean of 2 GPUs"),
        (GPU, None, (0.2 + 0.6) / 2, ", mean of 2 GPUs"),
    ],
)
def test_the_device_that_did_the_work_is_the_one_sampled(device, workload, value, over):
    samples = [reading(at, used, gpu) for at in (0, 10) for gpu, used in enumerate((0.2, 0.6))]
    found = ways_of(samples=samples, device=device, workload=workload).nvml
    assert found.value == pytest.approx(value)
    assert found.reason == f"mean over time of 2 samples, from the first to the last{over}"


@table(
    "points window mean",
    [
        ([(5, 0.25)], None, 0.25),
        ([(5, 0.25), (5, 0.5)], None, 0.5),  # of one moment the last counts
        ([(5, 0.25)], (0, 10), None),  # since when it stands is not known
    ],
)
def test_one_reading_stands_for_itself(points, window, mean):
    assert compute_time_weighted_mean(points, window) == mean


def test_the_window_is_that_of_the_steps_with_times():
    def window(*steps):
        return find_measured_steps_window_ns(make_run(steps=steps))

    assert window(Step(0, "step", None, 5), Step(1, "data", 0, 5)) is None
    assert window(
        Step(0, "step", 50, 10),
        Step(1, "step", 20, 15),
        Step(2, "step", 90, None),
        Step(3, "data", 0, 500),
    ) == (20, 50 + 10)


def test_a_gap_that_the_sampler_noted_is_the_reason():
    gaps = (
        Gap("sample.host_cpu", "not_available", "no /proc here"),
        Gap("sample.power_w", "not_available", "no sensor"),
    )
    found = ways_of(gaps=gaps)
    assert (found.host_reason, found.nvml.reason) == ("no /proc here", "not sampled")


@table(
    "lines form value",
    [
        ({"GPU Idle": 97.5}, "DLProf CSV", 0.025),
        ({"GPU Utilization": 12.5}, "DLProf CSV", 0.125),
        ({"GPU Utilization %": 12.5}, "DLProf CSV", 0.125),
        ({"GPU Idle %": 97.5, "GPU Utilization": 3.0}, "DLProf CSV", 0.03),
        ({"a: GPU Utilisation": 10.0, "b: GPU Utilisation": 20.0}, "DLProf CSV", 0.15),
        ({"GPU Utilization": 0.05}, "DLProf CSV", 0.0005),
        ({"GPU Utilization": 0.049}, "DLProf CSV", None),
        ({"GPU Utilization": 0.049}, "DLProf database", 0.00049),
        ({"GPU Utilization of something": 50.0, "GPU Utilization": None}, "DLProf CSV", None),
    ],
)
def test_dlprof_s_line_or_what_its_idle_line_leaves(lines, form, value):
    summaries = tuple(Summary(name, percent, "%") for name, percent in lines.items())
    run = make_run(profiler="dlprof", summaries=summaries)
    found = RunUsage(with_report(run, form=form)).utilization_by_source.dlprof
    assert found.value == (None if value is None else pytest.approx(value))
    assert found.value is None or "DLProf: " in found.reason or found.reason == "1 - GPU Idle"


def test_the_second_name_of_a_counter_is_taken_where_the_first_is_not_there():
    later = "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"
    counters = [
        Counter(launch, later, value, "%")
        for launch, value in ((0, 40.0), (1, 90.0), (2, None), (7, 99.0))
    ]
    kernels = [kernel(0, 10), kernel(20, 0, launch=1), kernel(30, 5, launch=2)]
    found = ways_of(counters=counters, kernels=kernels)
    assert (found.tensor_pipe.value, found.tensor_pipe.reason) == (0.4, f"{later}, 1 launches")
    first = "sm__warps_active.avg.pct_of_peak_sustained_active"
    assert found.occupancy.reason == f"{first} was not collected"
    assert found.has_any_share


def step_range(start, length, number=0):
    return Range(number, f"perfctl:step:{number}", None, start, length, 7, 0, None, step=number)


def busy_of(*kernels, **changes):
    fields = {"kernels": list(kernels), "ranges": [], **changes}
    return RunUsage(foreign_run(1, **fields)).device_and_stream_busy_times


def test_overlapping_kernels_count_once_and_streams_have_rows_of_their_own():
    whole, first, second = busy_of(kernel(0, 40), kernel(20, 40, 8), kernel(80, 20))
    assert (whole.stream, whole.running_ns, whole.window_ns, whole.busy_share) == (
        None,
        80,
        100,
        0.8,
    )
    assert whole.longest_wait_ns == 20
    assert (first.stream, first.running_ns, second.stream, second.running_ns) == (7, 60, 8, 40)
    assert second.longest_wait_ns == 40, "from its last kernel to the end of the window"


def test_a_kernel_without_a_start_ncu_and_an_empty_window_give_nothing():
    assert busy_of(kernel(0, 5), kernel(None, 5)) == ()
    assert busy_of(kernel(0, 5), profiler="ncu") == ()
    assert busy_of(kernel(5, 0)) == ()
    assert BusyTime(make_run(), 0, None, 1, 0, 0, "of nothing", 0).busy_share is None


def test_a_stream_without_a_number_comes_last_and_a_device_without_one_is_the_first():
    nameless = Kernel(0, "k", start_ns=0, duration_ns=5)
    found = busy_of(nameless, kernel(5, 5, 3), kernel(10, 5, 2))
    assert [(item.device, item.stream) for item in found] == [(0, None), (0, 2), (0, 3), (0, None)]


@table(
    "step_length last_end window",
    [(100, 250, 150), (100, 160, 100), (None, 160, 60), (60, 160, 60)],
)
def test_the_window_ends_with_the_last_step_or_the_last_kernel_whichever_is_later(
    step_length, last_end, window
):
    ranges = [
        step_range(100, step_length),
        Range(1, "perfctl:step:of a user's own", None, 0, 999, 7, 0, None),
        Range(2, "epoch", None, 0, 999, 7, 0, None, step=0),
    ]
    (whole,) = busy_of(kernel(150, last_end - 150), ranges=ranges)
    assert whole.window_ns == window
    assert whole.window == "from the first step to the end of the last step or kernel"


def test_a_kernel_at_the_window_s_start_counts_and_one_before_it_or_at_its_end_does_not():
    kernels = [kernel(99, 51), kernel(100, 50), kernel(200, 0)]
    (whole,) = busy_of(*kernels, ranges=[step_range(100, 100)])
    assert (whole.launches, whole.running_ns, whole.window_ns) == (1, 50, 100)


def test_lengths_in_parts_of_a_nanosecond_are_rounded():
    (whole,) = busy_of(kernel(0, 9.6), kernel(20, 10.4))
    assert (whole.running_ns, whole.window_ns, whole.longest_wait_ns) == (20, 30, 10)


def test_each_device_that_was_sampled_has_readings_and_the_host_has_none():
    """A reading covers the time since the one before: of two, the second."""
    samples = [
        Sample(0, 0.2, 500, 1000, 100.0, 50.0, 1200, 0),
        reading(0, 0.9, 1),
        Sample(1, 0.4, 300, 1000, 200.0, 40.0, 900, 0),
        Sample(2, None, None, None, None, None, None, host_cpu=3.0),
        Sample(3, None, None, None, None, None, None, host_memory_bytes=5),
    ]
    samples += samples[:3]  # two copies of a log, joined
    first, second = summarize_readings_by_device(make_run(samples=samples))
    assert (first.device, first.count, first.utilisation, first.power) == (0, 2, 0.4, 200.0)
    assert (first.memory_used, first.memory_total) == (500, 1000)
    assert (first.temperature, first.clock) == (50.0, 900)
    assert (second.device, second.count, second.utilisation) == (1, 1, 0.9)
    assert {second.memory_used, second.memory_total, second.power} == {None}
    assert {second.temperature, second.clock} == {None}


def test_readings_and_utilisation_show_one_mean_the_one_over_time():
    """0.9 for 1 s, then 0.1 for 9 s: 0.18 over time, 0.5 as a plain mean of the readings."""
    samples = [reading(at * 10**9, used) for at, used in ((0, 0.0), (1, 0.9), (10, 0.1))]
    run = foreign_run(1, profiler="torch", samples=samples)
    (found,), nvml = summarize_readings_by_device(run), RunUsage(run).utilization_by_source.nvml
    assert found.utilisation == nvml.value == pytest.approx((1 * 0.9 + 9 * 0.1) / 10)
    assert found.span == nvml.reason == "mean over time of 3 samples, from the first to the last"


def ways(batch, *spans):
    """Of a run whose kernels have these starts and lengths."""
    kernels = [kernel(start, length, launch=place) for place, (start, length) in enumerate(spans)]
    return RunUsage(
        foreign_run(batch or 1, batch_size=batch, ranges=[], kernels=kernels)
    ).utilization_by_source


def busy(batch, share):
    return ways(batch, (0, share * 1000 - 1), (999, 1))


SAMPLES = [Sample(at, 0.95, None, None, None, None, None, 0) for at in (0, 10)]
SAMPLED = RunUsage(
    make_run(batch_size=16, samples=SAMPLES, device=Device("a GPU", "gpu"))
).utilization_by_source


@table(
    "runs expected",
    {
        "no larger one falls below": (
            [busy(1, 0.2), busy(5, 0.95), busy(10, 0.5), busy(15, 0.9), busy(20, 0.97)],
            (15, True),
        ),
        "never": ([busy(1, 0.2), busy(5, 0.3)], (5, False)),
        "exactly nine tenths": ([busy(4, 0.9), busy(8, 0.9)], (4, True)),
        "just below": ([busy(4, 0.899), busy(8, 0.9)], (8, True)),
        "of repeats the first: idle": ([busy(8, 0.01), busy(8, 0.9)], (8, False)),
        "of repeats the first: busy": ([busy(8, 0.9), busy(8, 0.01)], (8, True)),
        "NVML where no kernel is known": ([SAMPLED], (16, True)),
        "kernels where any is known": ([SAMPLED, busy(4, 0.01)], (4, False)),
    },
)
def test_the_batch_size_from_which_the_gpu_is_busy(runs, expected):
    found = find_smallest_busy_batch_across_runs(runs)
    assert found is not None and found[:2] == expected


def test_without_a_batch_size_or_kernels_it_is_not_known():
    assert find_smallest_busy_batch_across_runs([ways(None, (0, 10))]) is None
    assert (
        find_smallest_busy_batch_across_runs([RunUsage(make_run()).utilization_by_source]) is None
    )


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNELS = (
    Kernel(0, "gemm", start_ns=0, duration_ns=400, device_index=0),
    Kernel(1, NCCL, start_ns=300, duration_ns=300, device_index=0),  # 100 of it under the product
    Kernel(2, "gemm", start_ns=900, duration_ns=100, device_index=0),
)
COPIES = (Copy("HtoD", 64, 550, 150, None, 0, 7),)
"""From 550 to 700: 50 of it while the collective runs."""


def test_parts_add_up_and_what_is_hidden_costs_no_time():
    usage = RunUsage(foreign_run(1, kernels=list(KERNELS), copies=COPIES, ranges=[]))
    found = usage.time_breakdown
    assert found is not None and found.gpus == 1
    parts = {
        "compute": 400 + 100,
        "communication": 300 - 100,
        "copies": 150 - 50,
        "idle": 900 - 700,
    }
    assert found.shares == pytest.approx({part: length / 1000 for part, length in parts.items()})
    assert tuple(found.shares) == PARTS
    with_a_kernel = found.shares["compute"] + found.shares["communication"]
    assert with_a_kernel == pytest.approx(usage.utilization_by_source.kernels.value)


def test_several_gpus_are_averaged():
    second = [Kernel(3, "gemm", start_ns=0, duration_ns=1000, device_index=1)]
    found = RunUsage(
        foreign_run(1, kernels=[*KERNELS, *second], copies=(), ranges=[])
    ).time_breakdown
    assert found is not None and found.gpus == 2
    assert found.shares["compute"] == pytest.approx((0.5 + 1) / 2)


@table(
    "run",
    {
        "counters": foreign_run(1, profiler="ncu"),
        "a kernel without a start": foreign_run(1, kernels=[Kernel(0, "gemm", duration_ns=9)]),
        "a CPU": cpu_run(1, 16),
    },
)
def test_without_times_of_kernels_there_is_none(run):
    assert RunUsage(run).time_breakdown is None
