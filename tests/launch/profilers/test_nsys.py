"""Whole argument lists, and verdicts from what nsys 2022.4 leaves behind."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers.base import RunRequest, Verdict
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.program import Program
from perfctl.orchestrator.launch.sweep.folders import RunPaths


def make_database(path: Path, *tables: str) -> None:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        for table in ("StringIds", "ProcessStreams", *tables):
            connection.execute(f"CREATE TABLE {table} (id INTEGER)")
        connection.commit()


def test_on_a_gpu_it_records_the_profiler_window(make_request):
    request = make_request("cuda")
    part = request.paths.part
    profile, export = Nsys(graph_nodes=True).commands(request)
    assert profile.argv == (
        "nsys", "profile", "--trace=cuda,nvtx,cudnn,cublas", "--sample=none", "--cpuctxsw=none",
        "--cuda-graph-trace=node", "--capture-range=cudaProfilerApi", "--capture-range-end=stop",
        "--wait=primary", "--force-overwrite=true", "--session-new=perfctl-%q{PERFCTL_RUN_ID}",
        f"--output={part}/report",
        "/opt/python", "-m", "perfctl.workloads", "mnist_cnn", "--batch", "16", "--record", f"{part}/workload.json",
        "--annotate", "nvtx", "--window", "cuda", "--steps", "2",
    )  # fmt: skip
    assert (profile.stage, dict(profile.environment), profile.needs) == ("profile", {}, None)
    assert export.argv == (
        "nsys", "export", "--type=sqlite", "--force-overwrite=true", "--quiet=true",
        f"--output={part}/report.sqlite", f"{part}/report.nsys-rep",
    )  # fmt: skip
    assert (export.stage, export.needs) == ("export", part / "report.nsys-rep")


def test_on_a_cpu_it_records_the_range_around_the_measured_steps(make_request):
    request = make_request("cpu")
    part = request.paths.part
    profile, _ = Nsys().commands(request)
    assert profile.argv == (
        "nsys", "profile", "--trace=nvtx,osrt", "--sample=none", "--cpuctxsw=none",
        "--capture-range=nvtx", "--nvtx-capture=perfctl:window", "--capture-range-end=stop",
        "--wait=primary", "--force-overwrite=true", "--session-new=perfctl-%q{PERFCTL_RUN_ID}",
        f"--output={part}/report",
        "/opt/python", "-m", "perfctl.workloads", "mnist_cnn", "--batch", "16", "--record", f"{part}/workload.json",
        "--annotate", "nvtx", "--window", "none", "--steps", "2",
    )  # fmt: skip
    assert dict(profile.environment) == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


def test_each_rank_of_a_launcher_starts_its_own_nsys(make_request):
    program = Program("/opt/python", (), ("torchrun", "--nproc-per-node", "2", "t.py", "{batch}"), "t.py", None)
    request = replace(make_request("cpu"), program=program)
    part = request.paths.part
    profile, export = Nsys().commands(request)
    inner = [
        "nsys", "profile", "--trace=nvtx,osrt", "--sample=none", "--cpuctxsw=none",
        "--capture-range=nvtx", "--nvtx-capture=perfctl:window", "--capture-range-end=stop",
        "--wait=primary", "--force-overwrite=true", "--session-new=perfctl-%q{PERFCTL_RUN_ID}{rank}",
        f"--output={part}/report{{rank}}", "--export=sqlite",
    ]  # fmt: skip
    assert profile.argv == (
        "/opt/python", "-m", "perfctl.workloads", "--batch", "16", "--record", f"{part}/workload.json",
        "--annotate", "nvtx", "--window", "none", "--steps", "2", "--under", json.dumps(inner),
        "--", "torchrun", "--nproc-per-node", "2", "t.py", "16",
    )  # fmt: skip
    assert dict(profile.environment) == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    assert export.needs == part / "report.nsys-rep"


def test_the_whole_program_needs_no_window(make_request):
    profile, _ = Nsys(whole=True, graph_nodes=False, trace="cuda", extra=("--stats=true",)).commands(
        make_request("cuda")
    )
    assert [argument for argument in profile.argv if "capture" in argument or "graph" in argument] == []
    assert "--trace=cuda" in profile.argv
    assert profile.argv.index("--stats=true") < profile.argv.index("/opt/python")


def test_an_nsys_without_the_option_is_not_asked_for_graph_nodes(make_request, monkeypatch):
    monkeypatch.setattr(tools, "find", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(tools, "output", lambda *argv: "\t--capture-range=\n")
    assert "--cuda-graph-trace=node" not in Nsys().commands(make_request("cuda"))[0].argv
    monkeypatch.setattr(tools, "output", lambda *argv: "\t--cuda-graph-trace=\n")
    assert "--cuda-graph-trace=node" in Nsys().commands(make_request("cuda"))[0].argv


def test_a_percent_sign_in_a_path_is_not_a_pattern(tmp_path, make_request):
    request = make_request("cpu")
    odd = type(request.paths)(tmp_path / "100%q{HOME}", 16)
    asked = type(request)("mnist_cnn", (), 16, "cpu", odd, "/opt/python")
    profile, _ = Nsys().commands(asked)
    assert f"--output={tmp_path}/100%%q{{HOME}}/b16.part/report" in profile.argv


def test_a_database_with_kernels_is_ok(make_request, make_outcome):
    request = make_request("cuda")
    make_database(request.paths.report(".sqlite"), "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL")
    assert Nsys().judge(request, (make_outcome(), make_outcome())) == Verdict("ok", None)


def test_no_kernels_on_a_gpu_is_not_ok(make_request, make_outcome):
    request = make_request("cuda")
    make_database(request.paths.report(".sqlite"), "NVTX_EVENTS")
    verdict = Nsys().judge(request, (make_outcome(), make_outcome()))
    assert verdict.status == "partial"
    assert "no GPU kernels" in verdict.reason


def test_no_ranges_on_a_cpu_is_not_ok(make_request, make_outcome):
    request = make_request("cpu")
    make_database(request.paths.report(".sqlite"), "OSRT_API")
    verdict = Nsys().judge(request, (make_outcome(), make_outcome()))
    assert (verdict.status, "no NVTX ranges" in verdict.reason) == ("partial", True)


def test_a_program_that_failed_is_partial_even_with_a_report(make_request, make_outcome):
    request = make_request("cuda")
    make_database(request.paths.report(".sqlite"), "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL")
    failed = make_outcome(3, stderr="Traceback\nValueError: no such layer\n\n")
    verdict = Nsys().judge(request, (failed, make_outcome()))
    assert verdict.status == "partial"
    assert verdict.reason.startswith("the program ended with exit code 3: ValueError: no such layer. See err")


def test_the_two_tables_of_a_failed_export_are_no_report(make_request, make_outcome):
    request = make_request("cuda")
    make_database(request.paths.report(".sqlite"))
    request.paths.report(".nsys-rep").write_bytes(b"x")
    export = make_outcome(1, stderr="Exportation error: Version number is invalid: 2024@6@2@225-246236.\n")
    verdict = Nsys().judge(request, (make_outcome(), export))
    assert verdict.status == "failed"
    assert "holds no data" in verdict.reason
    assert "newer nsys" in verdict.reason


def test_a_cut_off_database_is_no_report(make_request, make_outcome):
    request = make_request("cuda")
    database = request.paths.report(".sqlite")
    make_database(database, "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL")
    database.write_bytes(database.read_bytes()[:-512])
    verdict = Nsys().judge(request, (make_outcome(), make_outcome()))
    assert (verdict.status, "is cut off" in verdict.reason) == ("failed", True)


@pytest.mark.parametrize("content", [b"", b"ERROR: no such report", b"SQLite format 3\0"])
def test_something_else_in_its_place_is_no_report(make_request, make_outcome, content):
    request = make_request("cuda")
    request.paths.report(".sqlite").write_bytes(content)
    verdict = Nsys().judge(request, (make_outcome(), make_outcome()))
    assert (verdict.status, "is not an SQLite database" in verdict.reason) == ("failed", True)


def test_only_a_qdstrm_means_the_importer_is_missing(make_request, make_outcome):
    request = make_request("cuda")
    (request.paths.part / "report.qdstrm").write_bytes(b"x")
    verdict = Nsys().judge(request, (make_outcome(),))
    assert verdict.status == "failed"
    assert "importer is missing" in verdict.reason
    assert "install_nsight_debian.sh" in verdict.reason


def test_an_importer_that_fails_is_not_called_missing(make_request, make_outcome):
    """The words are those of nsys 2023.4 where no /sys is mounted, paths and classes left out."""
    request = make_request("cuda")
    (request.paths.part / "report.qdstrm").write_bytes(b"x")
    said = (
        "Importer error status: Importation failed.\nImport Failed with unexpected exception: main.cpp(34)\n"
        'Error {\n  Items {\n    Type: OriginalLine\n    Value: "438"\n  }\n'
        '  Items {\n    Type: ErrorText\n    Value: "Failed to get number of the device CPUs."\n  }\n}\n'
    )
    verdict = Nsys().judge(request, (make_outcome(0, stderr=said),))
    assert verdict.status == "failed"
    assert "importer failed" in verdict.reason
    assert ": Failed to get number of the device CPUs. " in verdict.reason
    assert "missing" not in verdict.reason


def test_a_report_that_was_dropped_elsewhere_is_found(make_request, make_outcome):
    said = "[1/1] [====100%] report.nsys-rep\nFailed to create file\nGenerated:\n    /tmp/nsys-report-1a2b.nsys-rep\n"
    verdict = Nsys().judge(make_request("cuda"), (make_outcome(0, stdout=said),))
    assert verdict.status == "failed"
    assert "left its report in /tmp/nsys-report-1a2b.nsys-rep" in verdict.reason


def test_nothing_at_all_with_exit_code_0_is_explained(make_request, make_outcome):
    verdict = Nsys().judge(make_request("cpu"), (make_outcome(0),))
    assert (verdict.status, "recorded nothing" in verdict.reason) == ("failed", True)


@pytest.mark.parametrize("code", [0, 1])
def test_an_agent_that_did_not_start_is_no_fault_of_the_program(make_request, make_outcome, code):
    verdict = Nsys().judge(make_request("cuda"), (make_outcome(code, stderr="Agent launcher failed.\n"),))
    assert verdict.status == "failed"
    assert verdict.reason.startswith("nsys could not start its agent. Run again; nsys sessions list shows")


def test_what_a_program_said_last_has_one_full_stop(make_request, make_outcome):
    verdict = Nsys().judge(make_request("cuda"), (make_outcome(3, stderr="It broke.\n"),))
    assert verdict.reason.startswith("the program ended with exit code 3: It broke. See ")


def test_the_program_comes_first_when_there_is_no_report(make_request, make_outcome):
    verdict = Nsys().judge(make_request("cuda"), (make_outcome(139),))
    assert verdict.reason.startswith("the program crashed (segmentation fault)")


def test_it_says_how_to_get_nsys_and_what_works_without(monkeypatch):
    monkeypatch.setattr(tools, "find", lambda program: None)
    monkeypatch.setattr(tools, "has_package", lambda name: True)
    (tool,) = Nsys().missing()
    assert tool.name == "nsys"
    assert "perfctl torch" in tool.instead


def test_a_folder_that_nsys_cannot_write_to_is_refused_before_anything_runs(tmp_path):
    paths = RunPaths(tmp_path / 'a "b"', 16)
    with pytest.raises(UsageError, match="quotation mark") as caught:
        Nsys().commands(RunRequest("mnist_cnn", (), 16, "cpu", paths, "/opt/python"))
    assert "`out`" in str(caught.value)
