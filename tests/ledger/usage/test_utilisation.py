"""Share of time with a kernel running: overlaps count once, waits count, nothing without
start times."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.ledger.usage.readings import readings
from perfctl.orchestrator.ledger.usage.run_usage import Busy, RunUsage
from perfctl.records.report import Kernel, Range, Sample, Step
from tests.make import synthetic


def kernel(start: int | None, length: int | None, stream: int = 7, device: int = 0) -> Kernel:
    return Kernel(0, "k", start_ns=start, duration_ns=length, stream=stream, device_index=device)


def test_overlapping_kernels_count_once_and_streams_have_rows_of_their_own() -> None:
    run = synthetic.foreign_run(
        1, ranges=[], kernels=[kernel(0, 40), kernel(20, 40, 8), kernel(80, 20)]
    )
    whole, first, second = RunUsage(run).busy
    assert (whole.stream, whole.running_ns, whole.window_ns, whole.share) == (None, 80, 100, 0.8)
    assert whole.longest_wait_ns == 20
    assert (first.stream, first.running_ns, second.stream, second.running_ns) == (7, 60, 8, 40)
    assert second.longest_wait_ns == 40, "from its last kernel to the end of the window"


def test_the_window_begins_with_the_first_step_and_leaves_out_what_was_before() -> None:
    step = Range(0, "perfctl:step:0", None, 100, 100, 7, 0, None, step=0)
    (whole,) = RunUsage(
        synthetic.make_run(kernels=[kernel(0, 50), kernel(150, 100)], ranges=[step])
    ).busy
    assert (whole.launches, whole.running_ns, whole.window_ns) == (1, 100, 150)


def test_a_kernel_without_a_start_and_ncu_give_nothing() -> None:
    assert RunUsage(synthetic.foreign_run(1, kernels=[kernel(0, 5), kernel(None, 5)])).busy == ()
    assert RunUsage(synthetic.foreign_run(1, profiler="ncu", kernels=[kernel(0, 5)])).busy == ()


def test_devices_come_in_order_each_with_its_own_streams_and_one_stream_needs_no_row() -> None:
    kernels = [kernel(10, 20, 9, 1), kernel(0, 10, 7, 1), kernel(0, 50, 7, 0), kernel(60, 40, 7, 0)]
    found = RunUsage(synthetic.foreign_run(1, ranges=[], kernels=kernels)).busy
    assert [(item.device, item.stream, item.launches, item.running_ns) for item in found] == [
        (0, None, 2, 90),
        (1, None, 2, 30),
        (1, 7, 1, 10),
        (1, 9, 1, 20),
    ]
    assert [item.longest_wait_ns for item in found] == [10, 70, 90, 70]
    assert found[0].window == "from the first kernel to the end of the last"


def test_a_stream_without_a_number_comes_last_and_a_device_without_one_is_the_first() -> None:
    kernels = [Kernel(0, "k", start_ns=0, duration_ns=5), kernel(5, 5, 3), kernel(10, 5, 2)]
    found = RunUsage(synthetic.foreign_run(1, ranges=[], kernels=kernels)).busy
    assert [(item.device, item.stream) for item in found] == [(0, None), (0, 2), (0, 3), (0, None)]


@pytest.mark.parametrize(
    ("step_length", "last_end", "window"),
    [(100, 250, 150), (100, 160, 100), (None, 160, 60), (60, 160, 60)],
)
def test_the_window_ends_with_the_last_step_or_the_last_kernel_whichever_is_later(
    step_length: int | None, last_end: int, window: int
) -> None:
    steps = [
        Range(0, "perfctl:step:0", None, 100, step_length, 7, 0, None, step=0),
        Range(1, "perfctl:step:of a user's own", None, 0, 999, 7, 0, None),
        Range(2, "epoch", None, 0, 999, 7, 0, None, step=0),
    ]
    (whole,) = RunUsage(
        synthetic.make_run(kernels=[kernel(150, last_end - 150)], ranges=steps)
    ).busy
    assert (whole.window_ns, whole.window) == (
        window,
        "from the first step to the end of the last step or kernel",
    )


def test_a_kernel_at_the_window_s_start_counts_and_one_at_its_end_does_not() -> None:
    step = Range(0, "perfctl:step:0", None, 100, 100, 7, 0, None, step=0)
    kernels = [kernel(99, 51), kernel(100, 50), kernel(200, 0)]
    (whole,) = RunUsage(synthetic.make_run(kernels=kernels, ranges=[step])).busy
    assert (whole.launches, whole.running_ns, whole.window_ns) == (1, 50, 100)


def test_an_empty_window_has_no_share() -> None:
    assert RunUsage(synthetic.foreign_run(1, ranges=[], kernels=[kernel(5, 0)])).busy == ()
    run = synthetic.make_run()
    assert Busy(run, 0, None, 1, 0, 0, "of nothing", 0).share is None


def test_lengths_in_parts_of_a_nanosecond_are_rounded() -> None:
    halves = [
        Kernel(0, "k", start_ns=0, duration_ns=9.6),
        Kernel(1, "k", start_ns=20, duration_ns=10.4),
    ]
    (whole,) = RunUsage(synthetic.foreign_run(1, ranges=[], kernels=halves)).busy
    assert (whole.running_ns, whole.window_ns, whole.longest_wait_ns) == (20, 30, 10)


def test_each_device_that_was_sampled_has_readings_and_the_host_has_none() -> None:
    """A reading covers the time since the one before: of two, the second."""
    samples = [
        Sample(0, 0.2, 500, 1000, 100.0, 50.0, 1200, 0),
        Sample(0, 0.9, None, None, None, None, None, 1),
        Sample(1, 0.4, 300, 1000, 200.0, 40.0, 900, 0),
        Sample(2, None, None, None, None, None, None, host_cpu=3.0),
        Sample(3, None, None, None, None, None, None, host_memory_bytes=5),
    ]
    run = synthetic.make_run(samples=samples)
    first, second = readings(run)
    assert (first.device, first.count, first.utilisation, first.power) == (0, 2, 0.4, 200.0)
    assert (first.memory_used, first.memory_total, first.temperature, first.clock) == (
        500,
        1000,
        50.0,
        900,
    )
    assert (second.device, second.count, second.utilisation) == (1, 1, 0.9)
    assert {
        second.memory_used,
        second.memory_total,
        second.power,
        second.temperature,
        second.clock,
    } == {None}


def test_readings_and_utilisation_show_one_mean_the_one_over_time() -> None:
    """0.9 for 1 s, then 0.1 for 9 s: 0.18 over time, 0.5 as a plain mean of the readings."""
    moments = ((0, 0.0), (10**9, 0.9), (10 * 10**9, 0.1))
    run = synthetic.foreign_run(
        1,
        profiler="torch",
        samples=[Sample(at, value, None, None, None, None, None, 0) for at, value in moments],
    )
    (found,), nvml = readings(run), RunUsage(run).ways.nvml
    assert found.utilisation == nvml.value == pytest.approx((1 * 0.9 + 9 * 0.1) / 10)
    assert found.span == nvml.reason == "mean over time of 3 samples, from the first to the last"


def test_readings_outside_of_the_measured_steps_give_no_mean_and_say_so() -> None:
    steps = (Step(0, "step", 100, 10),)
    samples = [Sample(at, 0.5, None, None, None, None, None, 0) for at in (0, 50)]
    (found,) = readings(synthetic.make_run(samples=samples, steps=steps))
    assert (found.utilisation, found.span) == (None, "none of 2 samples covers the measured steps")
