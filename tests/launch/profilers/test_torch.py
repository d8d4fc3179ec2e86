"""torch.profiler, no profiler and DLProf: whole argument lists, and what a trace, a record or a table must be."""

from __future__ import annotations

import gzip
import json
import os
import sys
from dataclasses import replace

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.process.run import STARTED
from perfctl.orchestrator.launch.profilers.base import RunStatus
from perfctl.orchestrator.launch.profilers.dlprof import DLProf
from perfctl.orchestrator.launch.profilers.torch import NoProfiler, TorchProfiler
from perfctl.orchestrator.launch.program import parse_user_program
from perfctl.workloads.script.options import parse_script_options
from perfctl.workloads.spec import UNFINISHED, WATCH_VARIABLE
from tests.launch.programs import assert_verdict, workload_words


def test_the_workload_profiles_itself(make_request):
    request = make_request("cpu")
    part = request.paths.partial_folder
    (profile,) = TorchProfiler().build_commands(request)
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
    trace = request.paths.get_report_path(".pt.trace.json.gz")
    (request.paths.scratch / STARTED).touch()
    if content is not None:
        trace.write_bytes(WHOLE if content == "old" else content)
    if content == "old":
        os.utime(trace, (1, 1))
    verdict = TorchProfiler().determine_run_status(request, (make_outcome(),))
    status = "ok" if reason is None else "failed"
    assert_verdict(verdict, status, *(() if reason is None else ("", reason)))


@pytest.mark.parametrize(
    ("record", "code", "verdict"),
    [
        *((text, 0, RunStatus("ok", None)) for text in ("", "{", "[]", '{"status": "ok"}')),
        ('{"status": "partial", "reason": "3 of 10 steps ran"}', 0, "partial"),
        (
            '{"status": "failed", "reason": "CUDA out of memory: 2.00 GiB wanted, 1.10 GiB free"}',
            1,
            RunStatus(
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
    request.paths.get_report_path(".pt.trace.json.gz").write_bytes(gzip.compress(b"{}"))
    request.paths.workload_record.write_text(record)
    found = TorchProfiler().determine_run_status(
        request, (make_outcome(code, stderr="some last line\n" if code else ""),)
    )
    assert found == verdict or (found.status == verdict and "3 of 10 steps ran" in found.reason)


def test_the_time_limit_is_the_reason_when_it_was_reached(make_request, make_outcome):
    verdict = TorchProfiler().determine_run_status(
        make_request(), (make_outcome(None, timed_out=True),)
    )
    assert (
        verdict.reason
        == "the time limit was reached after 7 s. Allow more time, or run fewer steps"
    )


@pytest.fixture
def server(make_request, tmp_path):
    """A request for 10 s of a server, from 60 s after its start."""
    (tmp_path / "server.py").touch()
    program = parse_user_program(
        (sys.executable, "-u", str(tmp_path / "server.py"), "8000"), None, {}
    )
    profiler = TorchProfiler(delay=60, duration=10)
    request = replace(make_request(), profiler=profiler, program=program, batches=())
    request.paths.partial_folder.mkdir(parents=True)
    return request


def test_a_program_of_which_a_time_window_is_recorded_starts_as_typed(
    server, monkeypatch, tmp_path
):
    monkeypatch.setenv("PYTHONPATH", "mine")
    (command,) = server.build_run_commands()
    assert command.argv == (sys.executable, "-u", str(tmp_path / "server.py"), "8000")
    assert command.environment["PYTHONPATH"] == f"{server.folder}/annotator.pyz:mine"
    options = parse_script_options(json.loads(command.environment[WATCH_VARIABLE]))
    assert (options.after, options.duration, options.window) == (60, 10, "torch")
    assert options.trace == server.profiler.get_report_path(server.paths)
    launcher = parse_user_program(("torchrun", str(tmp_path / "server.py")), None, {})
    (command,) = replace(server, program=launcher).build_run_commands()
    assert command.argv[1:] == ("-m", "torch.distributed.run", str(tmp_path / "server.py"))


def test_a_built_in_workload_has_no_time_window(make_request):
    request = replace(make_request(), profiler=TorchProfiler(duration=10))
    with pytest.raises(UsageError, match="only with your own program"):
        request.build_run_commands()
    with pytest.raises(UsageError, match="`delay` needs `duration`"):
        TorchProfiler(delay=60)


def test_a_sweep_without_a_time_window_keeps_the_name_that_earlier_releases_gave_it(make_request):
    request = replace(make_request(), sweep_name=None)
    assert request.profiler_options == {}
    assert request.name == "torch-mnist_cnn-de4cc3c4"


def test_a_program_is_ended_when_each_process_that_recorded_is_done(server):
    (command,) = server.build_run_commands()
    record = server.paths.partial_folder / "workload.rank1.json"
    assert (command.is_recorded(69.0), command.is_recorded(71.0)) == (False, True)
    for process, is_done in ((os.getpid(), False), (2**22 + 1, True)):
        record.write_text(json.dumps({"reason": UNFINISHED, "options": {"process": process}}))
        assert command.is_recorded(71.0) == is_done, "a process that was killed never writes"
    record.write_text(json.dumps({"reason": None, "options": {"process": os.getpid()}}))
    assert command.is_recorded(71.0)


@pytest.mark.parametrize(
    ("code", "seconds", "has_trace", "status", "reason"),
    [
        (None, 71.0, True, "ok", ""),
        (0, 65.0, True, "ok", ""),
        (3, 65.0, True, "partial", "exit code 3"),
        (0, 30.0, False, "failed", "ended before the recording began, 60 s after its start"),
        (None, 71.0, False, "failed", "called no model from 60 s to 70 s after its start"),
        (3, 65.0, False, "failed", "exit code 3"),
    ],
)
def test_a_time_window_is_worth_what_it_recorded(
    server, make_outcome, code, seconds, has_trace, status, reason
):
    if has_trace:
        server.profiler.get_report_path(server.paths).write_bytes(gzip.compress(b"{}"))
        record = {"status": "ok", "steps": [{"phase": "step"}], "options": {"steps": 1}}
        server.paths.workload_record.write_text(json.dumps(record))
    outcome = replace(make_outcome(code), duration_ns=round(seconds * 1e9))
    verdict = server.profiler.determine_run_status(server, (outcome,))
    assert verdict.status == status
    assert reason in (verdict.reason or "")


def test_the_workload_runs_alone(make_request):
    request = make_request("cpu")
    part = request.paths.partial_folder
    (only,) = NoProfiler().build_commands(request)
    assert only.argv == (*workload_words(part, "none", "none"),)
    assert NoProfiler().get_report_path(request.paths) == request.paths.workload_record


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
    verdict = NoProfiler().determine_run_status(request, (make_outcome(code),))
    assert_verdict(verdict, status, *(() if status == "ok" else ("",)))


# DLProf can no longer be installed, so its argument lists are compared whole, and its output is


def test_simple_mode(make_request):
    request = make_request("cuda")
    part = request.paths.partial_folder
    (profile,) = DLProf().build_commands(request)
    assert profile.argv == (
        "dlprof",
        "--mode=simple",
        "--reports=summary,iteration,kernel",
        "--formats=csv",
        f"--output_path={part}/report.dlprof",
        "--force=true",
        "--nsys_opts=--trace=cuda,nvtx,cudnn,cublas --sample=none --cpuctxsw=none",
        *workload_words(part, "nvtx", "none"),
    )


def test_pytorch_mode_over_some_iterations(make_request):
    asked = DLProf(
        dlprof_mode="pytorch",
        reports=("summary", "detail"),
        iter_start=5,
        iter_stop=14,
        extra=("--delay=1",),
    )
    argv = asked.build_commands(make_request("cuda"))[0].argv
    part = make_request("cuda").paths.partial_folder
    assert argv[: argv.index("/opt/python")] == (
        "dlprof",
        "--mode=pytorch",
        "--reports=summary,detail",
        "--formats=csv",
        "--iter_start=5",
        "--iter_stop=14",
        f"--output_path={part}/report.dlprof",
        "--force=true",
        "--nsys_opts=--trace=cuda,nvtx,cudnn,cublas --sample=none --cpuctxsw=none",
        "--delay=1",
    )


@pytest.mark.parametrize(
    "options", [{"dlprof_mode": "tensorflow1"}, {"reports": ("summary", "everything")}]
)
def test_what_dlprof_does_not_know_and_a_cpu_are_refused(make_request, options):
    with pytest.raises(UsageError, match=r"`dlprof_mode`|no report everything"):
        DLProf(**options)
    with pytest.raises(UsageError, match="DLProf needs a GPU"):
        DLProf().build_commands(make_request("cpu"))


def test_tables_are_ok_and_none_or_those_of_an_earlier_run_are_not(make_request, make_outcome):
    request = make_request("cuda")
    table = request.paths.get_report_path(".dlprof") / "dlprof_summary.csv"
    table.parent.mkdir()
    table.touch()
    verdict = DLProf().determine_run_status(
        request, (make_outcome(0, stdout="[DLProf] no nsys found\n"),)
    )
    assert_verdict(verdict, "failed", "", "it printed: [DLProf] no nsys found")
    table.write_text("Summary Report\n")
    assert DLProf().determine_run_status(request, (make_outcome(),)) == RunStatus("ok", None)
    assert (
        DLProf().determine_run_status(request, (make_outcome(3, stderr="boom\n"),)).status
        == "partial"
    )
    os.utime(table, (1, 1))
    (request.paths.scratch / STARTED).touch()
    verdict = DLProf().determine_run_status(request, (make_outcome(),))
    assert_verdict(verdict, "failed", "", "older than this run")
