"""Share of time with a kernel running: overlaps count once, waits count, nothing without
start times."""

import pytest

from perfctl.orchestrator.ledger.usage.readings import summarize_readings
from perfctl.orchestrator.ledger.usage.run_usage import BusyTime, RunUsage
from perfctl.records.report import Kernel, Range, Sample
from tests.make.synthetic import foreign_run, make_run
from tests.make.tables import table


def kernel(start, length, stream=7, device=0):
    return Kernel(0, "k", start_ns=start, duration_ns=length, stream=stream, device_index=device)


def step_range(start, length, number=0):
    return Range(number, f"perfctl:step:{number}", None, start, length, 7, 0, None, step=number)


def busy_of(*kernels, **changes):
    fields = {"kernels": list(kernels), "ranges": [], **changes}
    return RunUsage(foreign_run(1, **fields)).busy


def reading(at, used, device=0):
    return Sample(at, used, None, None, None, None, None, device)


def test_overlapping_kernels_count_once_and_streams_have_rows_of_their_own():
    whole, first, second = busy_of(kernel(0, 40), kernel(20, 40, 8), kernel(80, 20))
    assert (whole.stream, whole.running_ns, whole.window_ns, whole.share) == (None, 80, 100, 0.8)
    assert whole.longest_wait_ns == 20
    assert (first.stream, first.running_ns, second.stream, second.running_ns) == (7, 60, 8, 40)
    assert second.longest_wait_ns == 40, "from its last kernel to the end of the window"


def test_a_kernel_without_a_start_ncu_and_an_empty_window_give_nothing():
    assert busy_of(kernel(0, 5), kernel(None, 5)) == ()
    assert busy_of(kernel(0, 5), profiler="ncu") == ()
    assert busy_of(kernel(5, 0)) == ()
    assert BusyTime(make_run(), 0, None, 1, 0, 0, "of nothing", 0).share is None


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
    first, second = summarize_readings(make_run(samples=samples))
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
    (found,), nvml = summarize_readings(run), RunUsage(run).ways.nvml
    assert found.utilisation == nvml.value == pytest.approx((1 * 0.9 + 9 * 0.1) / 10)
    assert found.span == nvml.reason == "mean over time of 3 samples, from the first to the last"
