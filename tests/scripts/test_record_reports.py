"""The recording script, rehearsed with stand-ins for ncu, nsys and nvidia-smi, and what it lets out
of a machine."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.orchestrator.launch.sweep.folders import LAUNCHES
from tests.scripts import stand_ins

ROOT = Path(__file__).resolve().parents[2]
SECRET = "not-to-be-seen-4711"
LARGEST_FILE, MOST_FILES = 16 * 2**20, 8
"""What a lent machine gives back: of each file, and in number."""


@pytest.fixture
def module(monkeypatch):
    """scripts/record_reports.py, which imports its own folder's modules as a script does."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("record_reports")


def contents(out):
    """Every file that leaves the machine, unpacked."""
    found: dict[str, bytes] = {}
    for file in out.iterdir():
        if file.name.endswith(".tar.gz"):
            with tarfile.open(file) as archive:
                members = [(member.name, archive.extractfile(member)) for member in archive]
                found |= {name: content.read() for name, content in members if content is not None}
        else:
            found[file.name] = file.read_bytes()
    return {
        name: gzip.decompress(text) if name.endswith(".gz") else text
        for name, text in found.items()
    }


def test_one_command_records_counts_and_ledger_and_leaves_nothing_that_names_the_machine(tmp_path):
    """A GPU that is not there: ncu's stand-in runs the network on the CPU and counts conv2 by
    its dimensions."""
    out = tmp_path / "out"
    environment = {
        **os.environ,
        "PATH": f"{stand_ins.put(tmp_path / 'bin')}:/usr/bin:/bin",
        "MY_API_KEY": SECRET,
        "OMP_NUM_THREADS": "1",
    }
    argv = [
        sys.executable,
        str(ROOT / "scripts/record_reports.py"),
        str(out),
        "--batches",
        "16",
        "--device",
        "cpu",
    ]
    done = subprocess.run(
        [*argv, "--only", "ncu,ledger,ledger-more,tools"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
        timeout=540,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = list(out.iterdir())
    assert len(files) <= MOST_FILES
    assert all(
        re.fullmatch(r"[A-Za-z0-9._-]+", file.name) and file.stat().st_size < LARGEST_FILE
        for file in files
    )
    found = contents(out)
    assert {
        f"recordings/ncu/b16/{name}"
        for name in ("run.json", "workload.json", "report.csv", "report.ncu-rep")
    } < set(found)
    host = socket.gethostname()
    needles = [SECRET, str(tmp_path), str(ROOT), stand_ins.UUID, *([host] if len(host) > 3 else [])]
    assert [
        (name, needle)
        for name, text in found.items()
        for needle in needles
        if needle.encode() in text
    ] == []
    results = json.loads(found["results.json"])
    assert results["machine"]["gpu name"] == "NVIDIA H100 80GB HBM3"
    assert [(step["name"], step["exit_code"]) for step in results["steps"]][:2] == [
        ("ncu", 0),
        ("ledger", 0),
    ]
    assert results["steps"][0]["runs"][0] | {"duration_ns": 0} == {
        "batch_size": 16,
        "status": "ok",
        "reason": None,
        "exit_code": 0,
        "duration_ns": 0,
    }
    rows = json.loads(found["ledger.json"])["main"]["rows"]
    conv2 = next(row for row in rows if row["layer"] == "conv2" and row["direction"] == "forward")
    assert conv2["executed_flops"] == conv2["estimated_flops"] == 2 * 16 * 64 * 24 * 24 * 32 * 9
    assert b"--metrics" in found["tools/ncu-help.txt"]


def test_what_cannot_be_installed_is_said_before_anything_is_measured(module, tmp_path):
    machine = module.machine
    (tmp_path / "wheels").mkdir()
    with pytest.raises(machine.CannotRecord, match="holds no wheels: fill it with --download"):
        machine.install(tmp_path / "site", tmp_path / "wheels", 1)
    assert machine.lacking(["numpy>=1.26", "no-such-package", "sqlite-utils>=99.1", "pandas"]) == [
        "no-such-package",
        "sqlite-utils",
    ]
    site = tmp_path / "site"
    made = machine.install(site, None, 1)
    assert made[0].endswith("from this checkout")
    asks = "import perfctl.orchestrator.errors as e; print(e.__file__)"
    said = subprocess.run(
        [sys.executable, "-S", "-c", asks],
        env={"PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == str(site / "perfctl/orchestrator/errors.py"), (
        "perfctl without being installed"
    )


def test_tools_that_nvidia_installs_beside_path_are_found(module, tmp_path, monkeypatch):
    machine = module.machine
    for version in ("2024.1", "2025.3"):
        ncu = tmp_path / "nsight-compute" / version / "ncu"
        ncu.parent.mkdir(parents=True)
        ncu.write_text("#!/bin/sh\n")
        ncu.chmod(0o755)
    monkeypatch.setattr(machine, "TOOL_FOLDERS", (str(tmp_path / "nsight-compute/*"),))
    monkeypatch.setattr(machine, "has_network", lambda: False)
    environment = {"PATH": "/nowhere"}
    newest = tmp_path / "nsight-compute/2025.3"
    assert machine.find_profilers(environment, 1) == [f"ncu found in {newest}", "no nsys here"]
    assert environment["PATH"] == f"/nowhere:{newest}"


def test_steps_keep_to_the_budget_and_those_that_read_get_what_is_reserved_for_them(
    module, tmp_path, monkeypatch
):
    asked: list[tuple[str, float]] = []
    monkeypatch.setattr(
        module.Recording,
        "_call",
        lambda self, ended, argv, limit: asked.append((ended.name, limit)),
    )
    recording = module.Recording(tmp_path, tmp_path, module.PACKING_S + module.READING_S + 5)
    every = module.steps("16", "cpu", tmp_path / "x.py", 64)
    for step in every:
        recording.run(step)
    assert {name for name, _ in asked} == {step.name for step in every if not step.sweeps}
    assert all(limit <= module.READING_S + 5 for _, limit in asked)
    assert {one.said for one in recording.done if one.name == "ncu"} == {
        "not started: no time was left"
    }
    limit = module.Recording(tmp_path, tmp_path, 500)
    assert limit.left_s() <= 500 - module.PACKING_S
    assert 500 + 20 + module.PACKING_S < 9 * 60 + 20, (
        "the budget, a stop at the very end, and packing"
    )


def test_a_step_that_does_not_end_is_stopped_and_the_next_one_runs(module, tmp_path):
    recording = module.Recording(tmp_path, tmp_path, 500)
    ended = module.Done("x", "x")
    limit_s = 1
    while not ended.said.endswith("begun"):
        recording._call(ended, ["sh", "-c", "echo begun; sleep 600"], limit_s)
        assert ended.exit_code is None
        assert ended.said.startswith(f"stopped at its limit of {limit_s} s; ")
        limit_s *= 2


def test_names_of_the_machine_are_masked_in_texts_and_in_binary_files_whose_offsets_still_hold(
    module, tmp_path, monkeypatch
):
    keep = module.keep
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu17.site.example")
    masks = keep.Masks(
        {"scratch": tmp_path}, {"HF_TOKEN": SECRET, "PATH": "/usr/bin", "A_KEY": "short"}
    )
    text = f"{tmp_path}/x gpu17.site.example gpu17 {SECRET} {stand_ins.UUID} /usr/bin".encode()
    assert masks.text(text) == b"<scratch>/x <host> <host> <removed> <GPU UUID> /usr/bin"
    assert len(masks.binary(text)) == len(text)
    assert not masks.left_in(masks.binary(text)) and masks.left_in(text)
    database = tmp_path / "report.sqlite"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE NVTX_EVENTS (text TEXT)")
        connection.execute("INSERT INTO NVTX_EVENTS VALUES (?)", (f"run in {tmp_path}",))
        connection.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (value TEXT)")
        connection.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?)", (SECRET,))
    keep.clean(tmp_path, masks)
    assert (
        SECRET.encode() not in database.read_bytes()
        and str(tmp_path).encode() not in database.read_bytes()
    )
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT text FROM NVTX_EVENTS").fetchone() == (
            "run in " + "x" * len(str(tmp_path)),
        )


def make_run_folder(folder):
    run = folder / "runs" / "ncu-x" / "b16"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"status": "ok", "artifact": "report.csv"}))
    return run


def test_a_file_that_is_too_large_or_names_the_machine_stays_and_is_named(module, tmp_path):
    keep = module.keep
    masks = keep.Masks({"scratch": tmp_path}, {})
    run = make_run_folder(tmp_path)
    (run / "report.csv").write_text("x" * (keep.LARGEST_BYTES + 1))
    assert keep.keep(tmp_path / "runs", tmp_path / "recordings" / "ncu", masks) == (
        1,
        ["ncu/b16/report.csv (4.0 MB)"],
    )
    (tmp_path / "recordings" / "ncu" / "b16" / "odd.bin").write_bytes(str(tmp_path).encode())
    (tmp_path / "out").mkdir()
    assert keep.pack(tmp_path / "recordings", tmp_path / "out", masks) == [
        "recordings/ncu/b16/odd.bin (names this machine)"
    ]
    assert set(contents(tmp_path / "out")) == {"recordings/ncu/b16/run.json"}


def test_what_a_plain_step_launched_is_kept_with_the_run_that_needs_it(module, tmp_path):
    """A replay of ncu --launches distinct takes over counts by it."""
    run = make_run_folder(tmp_path)
    (run / LAUNCHES).write_text(json.dumps({"launches": [], "origin": f"{tmp_path}/x"}))
    masks = module.keep.Masks({"scratch": tmp_path}, {})
    assert module.keep.keep(tmp_path / "runs", tmp_path / "recordings", masks) == (1, [])
    kept = json.loads((tmp_path / "recordings" / "b16" / LAUNCHES).read_text())
    assert kept == {"launches": [], "origin": "x"}
