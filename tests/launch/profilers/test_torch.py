"""torch.profiler and no profiler: the workload's own command line, and what a trace or a record
must be."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from perfctl.orchestrator.launch.process.run import STARTED
from perfctl.orchestrator.launch.profilers.base import Verdict
from perfctl.orchestrator.launch.profilers.torch import NoProfiler, TorchProfiler
from tests.launch.programs import assert_verdict, workload_words


def test_the_workload_profiles_itself(make_request):
    request = make_request("cpu")
    part = request.paths.part
    (profile,) = TorchProfiler().commands(request)
    assert profile.argv == (
        *workload_words(part, "record_function", "torch"),
        "--trace",
        f"{part}/report.pt.trace.json.gz",
    )
    assert (profile.stage, profile.needs) == ("profile", None)


WHOLE = gzip.compress(json.dumps([str(number) for number in range(1000)]).encode(), mtime=0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (WHOLE, None),
        (WHOLE[:-20], "is truncated"),
        (WHOLE[5:], "is damaged"),
        (b"", "is empty"),
        (None, "wrote no trace"),
        ("old", "older than this run"),
    ],
)
def test_a_trace_must_be_whole_and_of_this_run(make_request, make_outcome, content, reason):
    request = make_request()
    trace = request.paths.report(".pt.trace.json.gz")
    (request.paths.scratch / STARTED).touch()
    if content is not None:
        trace.write_bytes(WHOLE if content == "old" else content)
    if content == "old":
        os.utime(trace, (1, 1))
    verdict = TorchProfiler().judge(request, (make_outcome(),))
    status = "ok" if reason is None else "failed"
    assert_verdict(verdict, status, *(() if reason is None else ("", reason)))


@pytest.mark.parametrize(
    ("record", "code", "verdict"),
    [
        *((text, 0, Verdict("ok", None)) for text in ("", "{", "[]", '{"status": "ok"}')),
        ('{"status": "partial", "reason": "3 of 10 steps ran"}', 0, "partial"),
        (
            '{"status": "failed", "reason": "CUDA out of memory: 2.00 GiB wanted, 1.10 GiB free"}',
            1,
            Verdict(
                "partial",
                "out of memory at batch size 16 (CUDA out of memory: 2.00 GiB wanted, 1.10 GiB "
                "free). Use a smaller batch size. The trace covers the run up to then",
            ),
        ),
    ],
)
def test_the_workloads_own_record_comes_before_exit_code_and_last_line(
    make_request, make_outcome, record, code, verdict
):
    request = make_request()
    request.paths.report(".pt.trace.json.gz").write_bytes(gzip.compress(b"{}"))
    request.paths.workload_record.write_text(record)
    found = TorchProfiler().judge(
        request, (make_outcome(code, stderr="some last line\n" if code else ""),)
    )
    assert found == verdict or (found.status == verdict and "3 of 10 steps ran" in found.reason)


def test_the_time_limit_is_the_reason_when_it_was_reached(make_request, make_outcome):
    verdict = TorchProfiler().judge(make_request(), (make_outcome(None, timed_out=True),))
    assert (
        verdict.reason
        == "the time limit was reached after 7 s. Allow more time, or run fewer steps"
    )


def test_the_workload_runs_alone(make_request):
    request = make_request("cpu")
    part = request.paths.part
    (only,) = NoProfiler().commands(request)
    assert only.argv == (*workload_words(part, "none", "none"),)
    assert NoProfiler().artifact(request.paths) == request.paths.workload_record


@pytest.mark.parametrize(
    ("record", "code", "status"),
    [
        ("ok", 0, "ok"),
        ("partial", 1, "partial"),
        ("failed", 1, "failed"),
        (None, 0, "failed"),
        (None, 139, "failed"),
    ],
)
def test_a_run_is_worth_what_its_record_says(make_request, make_outcome, record, code, status):
    request = make_request()
    if record is not None:
        request.paths.workload_record.write_text(
            json.dumps({"status": record, "reason": "out of images"})
        )
    verdict = NoProfiler().judge(request, (make_outcome(code),))
    assert_verdict(verdict, status, *(() if status == "ok" else ("",)))
