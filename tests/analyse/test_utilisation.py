"""Share of time with a kernel running: overlaps count once, waits count, nothing without start times."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from perfctl.orchestrator.analyse.utilisation import busy, readings
from perfctl.parsers.records import Kernel, Range, Sample


@pytest.fixture(scope="module")
def synthetic() -> ModuleType:
    spec = importlib.util.spec_from_file_location("synthetic_here", Path(__file__).parent / "synthetic.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernel(start: int | None, length: int | None, stream: int = 7, device: int = 0) -> Kernel:
    return Kernel(0, "k", start_ns=start, duration_ns=length, stream=stream, device_index=device)


def test_overlapping_kernels_count_once_and_streams_have_rows_of_their_own(synthetic: ModuleType) -> None:
    run = synthetic.foreign_run(1, ranges=[], kernels=[kernel(0, 40), kernel(20, 40, 8), kernel(80, 20)])
    whole, first, second = busy(run)
    assert (whole.stream, whole.running_ns, whole.window_ns, whole.share) == (None, 80, 100, 0.8)
    assert whole.longest_wait_ns == 20
    assert (first.stream, first.running_ns, second.stream, second.running_ns) == (7, 60, 8, 40)
    assert second.longest_wait_ns == 40, "from its last kernel to the end of the window"


def test_the_window_begins_with_the_first_step_and_leaves_out_what_was_before(synthetic: ModuleType) -> None:
    step = Range(0, "perfctl:step:0", None, 100, 100, 7, 0, None, step=0)
    (whole,) = busy(synthetic.make_run(kernels=[kernel(0, 50), kernel(150, 100)], ranges=[step]))
    assert (whole.launches, whole.running_ns, whole.window_ns) == (1, 100, 150)


def test_a_kernel_without_a_start_and_ncu_give_nothing(synthetic: ModuleType) -> None:
    assert busy(synthetic.foreign_run(1, kernels=[kernel(0, 5), kernel(None, 5)])) == ()
    assert busy(synthetic.foreign_run(1, profiler="ncu", kernels=[kernel(0, 5)])) == ()


def test_readings_keep_means_extremes_and_what_is_not_known(synthetic: ModuleType) -> None:
    samples = [Sample(0, 0.5, 10, 100, 50.0, 40.0, None), Sample(1, 1.0, 30, 100, None, 60.0, None)]
    (found,) = readings(synthetic.make_run(samples=samples))
    assert (found.count, found.utilisation, found.memory_used, found.memory_total) == (2, 0.75, 30, 100)
    assert (found.power, found.temperature, found.clock) == (50.0, 60.0, None)
