"""What doctor says of permissions: each one by name, and what to type."""

import os

import pytest

from perfctl.orchestrator.launch.machine import devices, doctor, tools
from perfctl.orchestrator.launch.machine.doctor import MISSING, OK, WARNING
from perfctl.orchestrator.launch.profilers.nsys import ImporterCheck


def permissions(monkeypatch, allowed, root):
    monkeypatch.setattr(doctor, "_are_counters_unrestricted", lambda: allowed)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    return {finding.name: finding for finding in doctor._check_permissions()}


def test_counters_that_only_root_may_read_come_with_the_line_to_type(monkeypatch):
    found = permissions(monkeypatch, allowed=False, root=False)["GPU counters"]
    assert (found.state, found.value) == (WARNING, "for root")
    assert "NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/" in (
        found.detail or ""
    )
    assert permissions(monkeypatch, allowed=False, root=True)["GPU counters"].state == OK
    assert permissions(monkeypatch, allowed=True, root=False)["GPU counters"].value == "for all"


def test_a_device_file_that_is_closed_comes_with_the_line_to_type(tmp_path, monkeypatch):
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    assert [(one.name, one.state) for one in doctor._check_device_files(tmp_path)] == [
        ("GPU device files", OK)
    ]
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "nvidia0")
    (found,) = doctor._check_device_files(tmp_path)
    assert (found.state, found.value) == (WARNING, str(tmp_path / "nvidia0"))
    assert f"sudo usermod -aG {(tmp_path / 'nvidia0').group()} $USER" in (found.detail or "")
    assert not list(doctor._check_device_files(tmp_path / "nowhere"))


def test_a_folder_of_locks_that_others_cannot_use_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "SHARED", tmp_path / "gpus")
    assert permissions(monkeypatch, allowed=True, root=True)["GPU locks"].state == OK
    assert not (tmp_path / "gpus").exists(), "doctor changes nothing"
    (tmp_path / "gpus").mkdir(mode=0o755)
    found = permissions(monkeypatch, allowed=True, root=True)["GPU locks"]
    assert (found.state, "sudo mkdir -m 1777" in (found.detail or "")) == (WARNING, True)


def test_a_machine_without_a_gpu_is_not_said_to_have_one(monkeypatch):
    """Permissions are findings named after the GPU, too."""
    monkeypatch.setattr(doctor, "_are_counters_unrestricted", lambda: True)
    monkeypatch.setattr(tools, "get_output_if_installed", lambda *words: "")
    found = {finding.name: finding for finding in doctor.check_machine()}
    assert found["perfctl ncu"].state == doctor.MISSING
    assert found["perfctl torch"].value in (None, "CPU only")


@pytest.mark.parametrize(
    ("importer", "is_there", "state", "value", "detail", "works"),
    [
        (ImporterCheck("2023.4.4.54"), True, OK, "2023.4.4.54", "", OK),
        (
            ImporterCheck(None, "libpfm.so.4: cannot open"),
            True,
            MISSING,
            None,
            "libpfm.so.4",
            MISSING,
        ),
        (None, False, MISSING, None, "install all of Nsight Systems", MISSING),
        (None, None, WARNING, "unknown", "not found next to this nsys", WARNING),
    ],
)
def test_an_importer_is_ok_only_where_it_starts(
    monkeypatch, importer, is_there, state, value, detail, works
):
    monkeypatch.setattr(doctor.nsys, "run_importer_for_version", lambda: importer)
    monkeypatch.setattr(doctor.nsys, "is_importer_present", lambda: is_there)
    found = doctor._check_nsys_importer()
    assert (found.state, found.value) == (state, value)
    assert detail in (found.detail or "")
    states = {"nsys": OK, "nsys importer": found.state, "torch": OK}
    assert doctor.judge_nsys_usability(states, has_gpu=True).state == works
