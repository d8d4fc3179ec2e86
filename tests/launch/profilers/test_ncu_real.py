"""ncu itself where there is no GPU: its exit codes say little, its words and files more."""

from __future__ import annotations

import shutil

import pytest

from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.process import run
from perfctl.orchestrator.launch.profilers.base import RunStatus
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from tests.launch.programs import assert_verdict

pytestmark = pytest.mark.skipif(tools.find_program("ncu") is None, reason="ncu is not installed")


@pytest.mark.parametrize(
    ("lines", "exit_code", "reason"),
    [
        ("exit 0", 0, "ncu profiled no kernels"),
        ("echo 'KeyError: x' >&2; exit 3", 3, "the program ended with exit code 3: KeyError: x"),
        (None, None, "ncu printed: '/no/such/python' does not exist"),
    ],
)
def test_no_report_means_failed_whatever_the_exit_code(
    make_request, make_program, processes, lines, exit_code, reason
):
    request = make_request("cuda", python=make_program(lines) if lines else "/no/such/python")
    outcome = processes.run(Ncu(metrics="fadd").build_commands(request)[0], request)
    assert exit_code in (None, outcome.exit_code)
    verdict = Ncu().determine_run_status(request, (outcome,))
    assert_verdict(verdict, "failed", reason)


def test_whatever_ends_perfctl_ends_ncu_below_its_shell_script(
    make_request, make_program, processes
):
    request = make_request("cuda", python=make_program("sleep 600"))
    profile = Ncu(metrics="fadd").build_commands(request)[0]
    driver = processes.start_perfctl(request.paths.partial_folder, *profile.argv)
    processes.wait_for(3)
    driver.kill()
    processes.assert_gone_within(60.0)
    driver.communicate(timeout=600.0)


def test_a_report_is_printed_as_a_table_with_base_units(make_request, processes, reports):
    request = make_request("cuda")
    (request.paths.scratch / run.STARTED).touch()
    shutil.copyfile(
        reports / "ncu" / "rep" / "montecarlo_profile.ncu-rep",
        request.paths.get_report_path(".ncu-rep"),
    )
    table = Ncu(metrics="fadd").build_commands(request)[1]
    verdict = Ncu().determine_run_status(
        request, (processes.run(table, request), processes.run(table, request))
    )
    assert verdict == RunStatus("ok", None)
    lines = request.paths.get_report_path(".csv").read_text().splitlines()
    units = lines[1].split(",")
    assert len(lines) > 2
    assert "Kbyte" not in units
    assert Ncu().get_report_path(request.paths) == request.paths.get_report_path(".csv")


def test_a_report_of_a_newer_ncu_is_kept_for_another_reader(
    make_request, make_outcome, processes, reports
):
    request = make_request("cuda")
    source = reports / "ncu" / "rep" / "cs599k_h100_silu_2025-04-21.ncu-rep"
    (request.paths.scratch / run.STARTED).touch()
    shutil.copyfile(source, request.paths.get_report_path(".ncu-rep"))
    outcome = processes.run(Ncu(metrics="fadd").build_commands(request)[1], request)
    if outcome.exit_code == 0:
        pytest.skip("this ncu is new enough to read it")
    verdict = Ncu().determine_run_status(request, (make_outcome(), outcome))
    assert_verdict(verdict, "partial", "", "could not export it as CSV")
    assert Ncu().get_report_path(request.paths) == request.paths.get_report_path(".ncu-rep")
