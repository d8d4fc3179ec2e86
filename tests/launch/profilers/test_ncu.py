"""Whole argument lists, and verdicts from what ncu 2022.3 says and leaves behind."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import rank_tables
from perfctl.orchestrator.launch.profilers.base import Verdict
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.program import Program

TABLE = '"ID","Process ID","Process Name"\n"","",""\n"0","7","python"\n'
REPORT = b"NVR\0rest"


def test_one_run_keeps_the_report_and_prints_it_as_csv(make_request):
    request = make_request("cuda")
    part = request.paths.part
    profile, table = Ncu(metrics="fadd").commands(request)
    assert profile.argv == (
        "ncu", "--force-overwrite", "--export", f"{part}/report.ncu-rep", "--nvtx", "--target-processes", "all",
        "--profile-from-start", "off", "--clock-control", "base", "--cache-control", "all",
        "--metrics", "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
        "/opt/python", "-m", "perfctl.workloads", "mnist_cnn", "--batch", "16", "--record", f"{part}/workload.json",
        "--annotate", "nvtx", "--window", "cuda", "--steps", "2",
    )  # fmt: skip
    assert table.argv == (
        "ncu", "--import", f"{part}/report.ncu-rep", "--csv", "--page", "raw", "--print-units", "base",
        "--log-file", f"{part}/report.csv",
    )  # fmt: skip
    assert (dict(table.environment), table.needs) == ({"LC_ALL": "C"}, part / "report.ncu-rep")


def test_each_rank_of_a_launcher_starts_its_own_ncu_and_gets_its_own_table(make_request):
    program = Program("/opt/python", (), ("torchrun", "--nproc-per-node", "2", "t.py", "{batch}"), "t.py", None)
    request = replace(make_request("cuda"), program=program)
    part = request.paths.part
    profile, table, others = Ncu(metrics="fadd").commands(request)
    at = profile.argv.index("--under")
    inner = json.loads(profile.argv[at + 1])
    assert inner[:4] == ["ncu", "--force-overwrite", "--export", f"{part}/report{{rank}}.ncu-rep"]
    assert "/opt/python" not in inner
    assert profile.argv[:3] == ("/opt/python", "-m", "perfctl.workloads")
    assert profile.argv[at + 2 :] == ("--", "torchrun", "--nproc-per-node", "2", "t.py", "16")
    assert table.argv[:3] == ("ncu", "--import", f"{part}/report.ncu-rep")
    assert others.argv == (
        "/opt/python",
        "-m",
        "perfctl.orchestrator.launch.profilers.rank_tables",
        f"{part}/report.ncu-rep",
    )
    assert (dict(others.environment), others.needs) == ({"LC_ALL": "C"}, part / "report.ncu-rep")


def test_the_ranks_beside_the_first_get_tables_and_one_that_cannot_be_printed_none(tmp_path, make_program, monkeypatch):
    """A stand-in for ncu that prints what it was asked, and fails on rank 2."""
    ncu = make_program(
        'case "$2" in *rank2*) exit 1;; esac; while [ "$1" != --log-file ]; do shift; done; echo "$@" > "$2"'
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ncu").symlink_to(ncu)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    for name in ("report", "report.rank1", "report.rank2"):
        (tmp_path / f"{name}.ncu-rep").write_bytes(REPORT)
    assert rank_tables.main([str(tmp_path / "report.ncu-rep")]) == 0
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == ["report.rank1.csv"]


def test_filters_and_controls_reach_ncu(make_request):
    asked = Ncu(
        metrics="a.sum,b.avg", clock_control="none", cache_control="none", kernel="regex:gemm", skip=2, count=5,
        extra=("--replay-mode", "application"),
    )  # fmt: skip
    argv = asked.commands(make_request("cuda"))[0].argv
    options = argv[argv.index("--clock-control") : argv.index("/opt/python")]
    assert options == (
        "--clock-control", "none", "--cache-control", "none", "--metrics", "a.sum,b.avg", "--kernel-name", "regex:gemm",
        "--launch-skip", "2", "--launch-count", "5", "--replay-mode", "application",
    )  # fmt: skip


@pytest.mark.parametrize("metrics", ["", "a,,b", "a;rm", "a b", "$(x)", "a,"])
def test_metrics_that_cannot_be_names_are_refused(metrics):
    with pytest.raises(UsageError, match="is not a list of metric names"):
        Ncu(metrics=metrics)


@pytest.mark.parametrize("option", ["clock_control", "cache_control"])
def test_unknown_controls_are_refused(option):
    with pytest.raises(UsageError, match=f"`{option}` must be"):
        Ncu(**{option: "sometimes"})


def test_a_cpu_has_nothing_to_count(make_request):
    with pytest.raises(UsageError, match="ncu needs a GPU"):
        Ncu().commands(make_request("cpu"))


def test_what_is_missing_is_named_one_by_one(monkeypatch):
    monkeypatch.setattr(tools, "find", lambda program: None)
    monkeypatch.setattr(tools, "has_gpu_driver", lambda: False)
    monkeypatch.setattr(tools, "has_package", lambda name: False)
    assert [tool.name for tool in Ncu().missing()] == ["ncu", "an NVIDIA driver", "torch"]


def test_a_report_and_its_table_are_ok(make_request, make_outcome):
    request = make_request("cuda")
    request.paths.report(".ncu-rep").write_bytes(REPORT)
    request.paths.report(".csv").write_text(TABLE)
    assert Ncu().judge(request, (make_outcome(), make_outcome())) == Verdict("ok", None)
    assert Ncu().artifact(request.paths) == request.paths.report(".csv")


def test_without_a_table_the_report_itself_is_the_artifact(make_request, make_outcome):
    request = make_request("cuda")
    request.paths.report(".ncu-rep").write_bytes(REPORT)
    request.paths.report(".csv").write_text("==ERROR== Failed to load report file\n")
    verdict = Ncu().judge(request, (make_outcome(), make_outcome(1, stderr="required fields are missing\n")))
    assert verdict.status == "partial"
    assert "could not export it as CSV: required fields are missing" in verdict.reason
    assert Ncu().artifact(request.paths) == request.paths.report(".ncu-rep")


def test_a_program_that_failed_under_ncu_is_partial(make_request, make_outcome):
    request = make_request("cuda")
    request.paths.report(".ncu-rep").write_bytes(REPORT)
    request.paths.report(".csv").write_text(TABLE)
    first = make_outcome(3, stdout="==ERROR== The application returned an error code (3).\n", stderr="KeyError: 'x'\n")
    verdict = Ncu().judge(request, (first, make_outcome()))
    assert verdict.status == "partial"
    assert verdict.reason.startswith("the program ended with exit code 3: KeyError: 'x'")


def test_kernels_that_ncu_could_not_profile_make_it_partial(make_request, make_outcome):
    request = make_request("cuda")
    request.paths.report(".ncu-rep").write_bytes(REPORT)
    request.paths.report(".csv").write_text(TABLE)
    first = make_outcome(0, stdout='==PROF== Connected\n==ERROR== Failed to profile "gemm" in process 7\n')
    verdict = Ncu().judge(request, (first, make_outcome()))
    assert verdict == Verdict("partial", 'ncu reported an error and continued: Failed to profile "gemm" in process 7')


@pytest.mark.parametrize(
    ("exit_code", "said", "cause", "remedy"),
    [
        (1, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "only administrators", "NVreg_Restrict"),
        (1, "==ERROR== Profiling failed because a driver resource was unavailable.", "DCGM", "dcgmi profile --pause"),
        (9, "==ERROR== Failed to open lock file /tmp/nsight-compute-lock", "lock file", "Set TMPDIR"),
        (0, "==WARNING== No kernels were profiled.", "profiled no kernels", "perfctl doctor"),
        (1, "==ERROR== Failed to find metric foo__bar.sum", "ncu said: Failed to find metric foo__bar.sum", ""),
    ],
)
def test_its_failures_read_as_cause_and_remedy(make_request, make_outcome, exit_code, said, cause, remedy):
    verdict = Ncu().judge(make_request("cuda"), (make_outcome(exit_code, stdout=f"loss 0.1\n{said}\n"),))
    assert verdict.status == "failed"
    assert cause in verdict.reason
    assert remedy in verdict.reason


@pytest.mark.parametrize(("exit_code", "word"), [(11, "crashed (segmentation fault)"), (9, "was killed (SIGKILL)")])
def test_bare_signal_numbers_are_read_as_signals(make_request, make_outcome, exit_code, word):
    first = make_outcome(exit_code, stdout="==WARNING== No kernels were profiled.\n")
    verdict = Ncu().judge(make_request("cuda"), (first,))
    assert verdict.reason.startswith(f"the program {word}")


def test_a_damaged_report_is_said_to_be_damaged(make_request, make_outcome):
    request = make_request("cuda")
    request.paths.report(".ncu-rep").write_bytes(b"junk")
    verdict = Ncu().judge(request, (make_outcome(0, stdout="bye\n"),))
    assert (verdict.status, verdict.reason.startswith("report.ncu-rep is damaged")) == ("failed", True)


def test_a_layer_that_launched_nothing_is_named(make_request, make_outcome):
    said = make_outcome(0, stdout="==WARNING== No kernels were profiled.\n")
    verdict = Ncu(layers=("convX",)).judge(make_request("cuda"), (said,))
    assert (verdict.status, "(convX)" in verdict.reason) == ("failed", True)
