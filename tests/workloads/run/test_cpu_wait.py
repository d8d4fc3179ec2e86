"""How long the threads of a workload waited for a core, while something else had it."""

import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")
from perfctl.records.report import CPU_OTHERS, CPU_WAIT
from perfctl.workloads.run.clock import CpuWaitMeter

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the scheduler of Linux counts it"
)
BUSY_S = 1.0


def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_two_programs_on_one_core_wait_for_each_other():
    """Each wants the core all the time and has at most half of it: the other half is waiting. A
    third may take more."""
    allowed = os.sched_getaffinity(0)
    core = {min(allowed)}
    spin = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as other:
        try:
            os.sched_setaffinity(other.pid, core)
            os.sched_setaffinity(0, core)
            wait = CpuWaitMeter()
            work(BUSY_S)
            found = {one.name: one.value for one in wait.summarize_cpu_wait_shares()}
        finally:
            os.sched_setaffinity(0, allowed)
            other.kill()
    assert set(found) == {CPU_WAIT, CPU_OTHERS}
    assert all(value is not None and 0 <= value <= 1 for value in found.values())
    assert (found[CPU_WAIT] or 0) > 0.3
    assert (found[CPU_OTHERS] or 0) > 0.3 / (os.cpu_count() or 1)


def test_a_process_that_did_not_run_has_no_share(monkeypatch):
    monkeypatch.setattr("perfctl.workloads.run.clock._read_thread_run_wait_ns", dict)
    monkeypatch.setattr("perfctl.workloads.run.clock._read_busy_total_core_seconds", lambda: None)
    assert CpuWaitMeter().summarize_cpu_wait_shares() == []
