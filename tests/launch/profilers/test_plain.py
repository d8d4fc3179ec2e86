"""No profiler: the workload's own command line, and what its record must be."""

from __future__ import annotations

import json

import pytest

from perfctl.orchestrator.launch.profilers.torch import NoProfiler


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
