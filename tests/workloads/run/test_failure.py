"""What a workload leaves behind when a step raises, memory runs out, or somebody stops it."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from tests.workloads.small import Small, run

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")


@pytest.mark.parametrize(
    ("fail_at", "status", "whole_steps"),
    [(0, "failed", 0), (2, "failed", 0), (3, "partial", 1), (4, "partial", 2)],
)
def test_a_failing_step_leaves_a_record_that_says_so(tmp_path, fail_at, status, whole_steps):
    with pytest.raises(RuntimeError, match="the layer broke"):
        run(tmp_path, Small(fail_at), annotate="none")
    written = json.loads((tmp_path / "record.json").read_text())
    assert written["perfctl_workload_record"] == 1
    assert (written["status"], written["reason"]) == (status, "RuntimeError: the layer broke")
    assert sum(row["phase"] == "step" for row in written["steps"]) == whole_steps
    assert written["duration_ns"] is None


def test_a_trace_is_left_when_a_measured_step_fails(tmp_path):
    trace = tmp_path / "trace.json"
    with pytest.raises(RuntimeError, match="the layer broke"):
        run(tmp_path, Small(3), annotate="record_function", window="torch", trace=trace)
    names = Counter(event["name"] for event in json.loads(trace.read_text())["traceEvents"])
    assert names["perfctl:step:0"] == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 "
            "bytes."
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        MemoryError(),
    ],
)
def test_out_of_memory_is_called_that(tmp_path, error):
    with pytest.raises(type(error)):
        run(tmp_path, Small(0, error))
    written = json.loads((tmp_path / "record.json").read_text())
    assert written["reason"].startswith("out of memory at batch size 4: ")
    assert "smaller --batch" in written["reason"]


def test_an_interrupt_leaves_the_steps_that_ended(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Small(3, KeyboardInterrupt()))
    written = json.loads((tmp_path / "record.json").read_text())
    assert (written["status"], written["reason"]) == ("partial", "interrupted")
