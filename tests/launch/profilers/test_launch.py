"""What holds for all profilers: the list, missing tools, the line that a dry run prints,
light imports."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import ToolMissing
from perfctl.orchestrator.launch.catalog import format_shell_command, require_profiler_tools
from perfctl.orchestrator.launch.machine import doctor, tools
from perfctl.orchestrator.launch.profilers import outcome
from perfctl.orchestrator.launch.profilers.base import Command
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.profilers.replay import RECORDERS


def test_each_profiler_is_listed_under_its_own_name():
    names = [profiler().name for profiler in RECORDERS.values()]
    assert names == list(RECORDERS) == ["nsys", "ncu", "dlprof", "torch", "none"]


@pytest.mark.parametrize(
    ("profiler", "missing"),
    [
        ("nsys", ["nsys", "torch"]),
        ("ncu", ["ncu", "an NVIDIA driver", "torch"]),
        ("dlprof", ["dlprof", "torch"]),
        ("torch", ["torch"]),
        ("none", ["torch"]),
    ],
)
def test_what_is_missing_is_named_one_by_one(bare_machine, profiler, missing):
    assert [tool.name for tool in RECORDERS[profiler]().list_missing_tools()] == missing


def test_a_missing_tool_says_what_why_how_and_what_else(monkeypatch):
    monkeypatch.setattr(tools, "find_program", lambda program: None)
    monkeypatch.setattr(tools, "is_package_importable", lambda name: False)
    with pytest.raises(ToolMissing) as raised:
        require_profiler_tools(Nsys())
    said = str(raised.value)
    for part in (
        "nsys is not installed here",
        "install NVIDIA Nsight Systems",
        "torch is missing too",
        "perfctl torch",
    ):
        assert part in said
    assert said.count("\n") == 0
    monkeypatch.setattr(tools, "find_program", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(tools, "is_package_importable", lambda name: True)
    require_profiler_tools(Nsys())  # nothing missing says nothing


def test_a_printed_command_does_in_a_shell_what_the_argument_list_says():
    arguments = ("a b", "$HOME", "it's", "", "*", "--metrics=x;y")
    show = "import os, sys; print(sys.argv[1:], os.environ['LC_ALL'])"
    line = format_shell_command(
        Command((sys.executable, "-c", show, *arguments), "profile", {"LC_ALL": "C; ls", "A": "$B"})
    )
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == f"{list(arguments)} C; ls\n"
    assert shlex.split(line)[:2] == ["A=$B", "LC_ALL=C; ls"]


def test_starting_perfctl_imports_nothing_heavy():
    code = (
        "import sys, perfctl.orchestrator.launch; from perfctl.orchestrator.launch.machine import "
        "doctor as found; found.check_machine(); found.collect_host_facts(); "
        "print([name for name in ('torch', 'numpy', 'pandas', 'perfctl.parsers') if name in "
        "sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_control_characters_of_a_log_do_not_reach_a_message(tmp_path):
    log = tmp_path / "err.log"
    log.write_bytes(b"\x1b[31mred\x1b[0m\r\nlast \x07 one\xff\n\n  \n")
    assert outcome.read_last_log_line(log) == "last   one\ufffd"
    log.write_bytes(b"x" * 100_000)
    assert len(outcome.read_last_log_line(log)) < 400


@pytest.fixture
def bare_machine(monkeypatch):
    """No program is installed, no driver is loaded, no package is there."""
    monkeypatch.setattr(tools, "find_program", lambda program: None)
    monkeypatch.setattr(tools, "has_gpu_driver", lambda: False)
    monkeypatch.setattr(tools, "is_package_importable", lambda name: False)
    monkeypatch.setattr(doctor, "_find_package_version", lambda name: None)


def findings():
    return {finding.name: finding for finding in doctor.check_machine()}


def test_on_a_bare_machine_replay_works_and_the_rest_says_what_it_needs(bare_machine):
    found = findings()
    assert found["perfctl replay"].state == "ok"
    assert all(finding.state == "ok" or finding.detail for finding in found.values())
    for name in (
        "GPU",
        "nsys",
        "ncu",
        "torch",
        "perfctl torch",
        "perfctl nsys",
        "perfctl ncu",
        "perfctl dlprof",
    ):
        assert found[name].state == "missing"
        assert found[name].detail


def test_a_gpu_and_its_tools_are_told(bare_machine, monkeypatch, tmp_path):
    row = "0, NVIDIA A100-SXM4-40GB, 8.0, 40960 MiB, 535.104.05\n"
    nsys_said = "NVIDIA Nsight Systems version 2022.4.2.1-df9881f\n"
    answers = {"nvidia-smi": row, "nsys": nsys_said, "ncu": "Version 2022.3.0.0\n"}
    monkeypatch.setattr(
        tools,
        "find_program",
        lambda program: str(tmp_path / program) if program in answers else None,
    )
    monkeypatch.setattr(
        tools, "run_cached_for_output", lambda path, *rest: answers[Path(path).name]
    )
    monkeypatch.setattr(doctor, "_find_package_version", lambda name: "2.15.0")
    monkeypatch.setattr(doctor, "_is_torch_built_with_cuda", lambda: True)
    monkeypatch.setattr(doctor, "_are_counters_unrestricted", lambda: True)
    monkeypatch.setattr(doctor, "_is_process_running", lambda program: False)
    monkeypatch.setattr(
        doctor.nsys, "run_importer_for_version", lambda: doctor.nsys.ImporterCheck("2022.4.2.1")
    )
    found = findings()
    assert found["GPU 0"].value == "NVIDIA A100-SXM4-40GB"
    assert found["GPU 0"].detail == "compute capability 8.0, 40960 MiB, driver 535.104.05"
    assert (found["nsys"].value, found["ncu"].value) == ("2022.4.2.1", "2022.3.0.0")
    states = {name: found[f"perfctl {name}"].state for name in ("torch", "nsys", "ncu", "dlprof")}
    assert states == {"torch": "ok", "nsys": "ok", "ncu": "ok", "dlprof": "missing"}
    monkeypatch.setattr(doctor, "_are_counters_unrestricted", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = findings()
    assert (found["GPU counters"].state, found["perfctl ncu"].state) == ("warning", "missing")
    assert "use perfctl nsys instead" in found["perfctl ncu"].detail


def test_host_facts_hold_nothing_of_the_process_environment(monkeypatch):
    monkeypatch.setenv("PERFCTL_SECRET", "a-token-of-mine")
    facts = doctor.collect_host_facts()
    assert {"host", "kernel", "cpu_count"} <= set(facts)
    assert not any("a-token-of-mine" in value for value in facts.values())
