"""torch.profiler and no profiler: the workload's own command line, and what a trace or a record must be."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.process.run import STARTED
from perfctl.orchestrator.launch.profilers.base import Verdict
from perfctl.orchestrator.launch.profilers.torch import NoProfiler, TorchProfiler


def test_the_workload_profiles_itself(make_request):
    request = make_request("cpu")
    part = request.paths.part
    (profile,) = TorchProfiler().commands(request)
    assert profile.argv == (
        "/opt/python", "-m", "perfctl.workloads", "mnist_cnn", "--batch", "16", "--record", f"{part}/workload.json",
        "--annotate", "record_function", "--window", "torch", "--steps", "2",
        "--trace", f"{part}/report.pt.trace.json.gz",
    )  # fmt: skip
    assert (profile.stage, profile.needs) == ("profile", None)


def test_a_whole_trace_is_ok(make_request, make_outcome):
    request = make_request()
    (request.paths.scratch / STARTED).touch()
    with gzip.open(request.paths.report(".pt.trace.json.gz"), "wt") as file:
        file.write('{"traceEvents": []}')
    assert TorchProfiler().judge(request, (make_outcome(),)) == Verdict("ok", None)


@pytest.mark.parametrize(
    ("cut", "word"), [(slice(0, -20), "is cut off"), (slice(5, None), "is damaged"), (slice(0, 0), "is empty")]
)
def test_a_trace_that_does_not_unpack_is_failed(make_request, make_outcome, cut, word):
    request = make_request()
    whole = gzip.compress(json.dumps([str(number) for number in range(1000)]).encode())
    request.paths.report(".pt.trace.json.gz").write_bytes(whole[cut])
    verdict = TorchProfiler().judge(request, (make_outcome(),))
    assert (verdict.status, word in verdict.reason) == ("failed", True), verdict.reason


def test_a_trace_of_an_earlier_run_is_not_taken(make_request, make_outcome):
    request = make_request()
    trace = request.paths.report(".pt.trace.json.gz")
    trace.write_bytes(gzip.compress(b"{}"))
    os.utime(trace, (1, 1))
    (request.paths.scratch / STARTED).touch()
    assert "older than this run" in TorchProfiler().judge(request, (make_outcome(),)).reason


def test_no_trace_after_a_good_end_is_failed(make_request, make_outcome):
    verdict = TorchProfiler().judge(make_request(), (make_outcome(0),))
    assert (verdict.status, "wrote no trace" in verdict.reason) == ("failed", True)


def test_the_workloads_own_reason_comes_before_its_last_line(make_request, make_outcome):
    request = make_request()
    record = {"status": "failed", "reason": "CUDA out of memory: 2.00 GiB wanted, 1.10 GiB free"}
    request.paths.workload_record.write_text(json.dumps(record))
    verdict = TorchProfiler().judge(request, (make_outcome(1, stderr="some last line\n"),))
    assert verdict == Verdict(
        "failed",
        "out of memory at batch size 16 (CUDA out of memory: 2.00 GiB wanted, 1.10 GiB free). Use a smaller batch size",
    )


def test_a_record_that_says_partial_is_believed_although_the_exit_code_is_0(make_request, make_outcome):
    request = make_request()
    request.paths.report(".pt.trace.json.gz").write_bytes(gzip.compress(b"{}"))
    request.paths.workload_record.write_text(json.dumps({"status": "partial", "reason": "3 of 10 steps ran"}))
    verdict = TorchProfiler().judge(request, (make_outcome(0),))
    assert verdict.status == "partial"
    assert "3 of 10 steps ran" in verdict.reason


@pytest.mark.parametrize("content", ["", "{", "[]", '{"status": "ok"}'])
def test_a_record_that_says_nothing_changes_nothing(make_request, make_outcome, content):
    request = make_request()
    request.paths.report(".pt.trace.json.gz").write_bytes(gzip.compress(b"{}"))
    request.paths.workload_record.write_text(content)
    assert TorchProfiler().judge(request, (make_outcome(0),)) == Verdict("ok", None)


def test_the_time_limit_is_the_reason_when_it_was_reached(make_request, make_outcome):
    verdict = TorchProfiler().judge(make_request(), (make_outcome(None, timed_out=True),))
    assert verdict.reason == "the time limit was reached after 7 s. Allow more time, or run fewer steps"


def test_it_needs_torch_alone(monkeypatch):
    monkeypatch.setattr(tools, "has_package", lambda name: name != "torch")
    assert [tool.name for tool in TorchProfiler().missing()] == ["torch"]


def test_the_workload_runs_alone(make_request):
    request = make_request("cpu")
    (only,) = NoProfiler().commands(request)
    assert only.argv == (
        "/opt/python", "-m", "perfctl.workloads", "mnist_cnn", "--batch", "16",
        "--record", f"{request.paths.part}/workload.json", "--annotate", "none", "--window", "none", "--steps", "2",
    )  # fmt: skip
    assert NoProfiler().artifact(request.paths) == request.paths.workload_record


@pytest.mark.parametrize(
    ("record", "code", "status"),
    [("ok", 0, "ok"), ("partial", 1, "partial"), ("failed", 1, "failed"), (None, 0, "failed"), (None, 139, "failed")],
)
def test_a_run_is_worth_what_its_record_says(make_request, make_outcome, record, code, status):
    request = make_request()
    if record is not None:
        request.paths.workload_record.write_text(json.dumps({"status": record, "reason": "out of images"}))
    verdict = NoProfiler().judge(request, (make_outcome(code),))
    assert verdict.status == status
    assert (verdict.reason is None) == (status == "ok")
