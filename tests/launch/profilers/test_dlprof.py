"""DLProf can no longer be installed, so its argument lists are compared whole, and its output is
hand-written."""

from __future__ import annotations

import os

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.process.run import STARTED
from perfctl.orchestrator.launch.profilers.base import Verdict
from perfctl.orchestrator.launch.profilers.dlprof import DLProf
from tests.launch.programs import assert_verdict, workload_words


def test_simple_mode(make_request):
    request = make_request("cuda")
    part = request.paths.part
    (profile,) = DLProf().commands(request)
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
    argv = asked.commands(make_request("cuda"))[0].argv
    part = make_request("cuda").paths.part
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
        DLProf().commands(make_request("cpu"))


def test_tables_are_ok_and_none_or_those_of_an_earlier_run_are_not(make_request, make_outcome):
    request = make_request("cuda")
    table = request.paths.report(".dlprof") / "dlprof_summary.csv"
    table.parent.mkdir()
    table.touch()
    verdict = DLProf().judge(request, (make_outcome(0, stdout="[DLProf] no nsys found\n"),))
    assert_verdict(verdict, "failed", "", "it printed: [DLProf] no nsys found")
    table.write_text("Summary Report\n")
    assert DLProf().judge(request, (make_outcome(),)) == Verdict("ok", None)
    assert DLProf().judge(request, (make_outcome(3, stderr="boom\n"),)).status == "partial"
    os.utime(table, (1, 1))
    (request.paths.scratch / STARTED).touch()
    verdict = DLProf().judge(request, (make_outcome(),))
    assert_verdict(verdict, "failed", "", "older than this run")
