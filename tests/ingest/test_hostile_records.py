"""Records of a run that anybody may have written: one line each, and the store stays as it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from perfctl import ingest
from tests.make.stored import rows

Perfctl = Callable[..., Any]


@pytest.fixture
def folder(perfctl, tmp_path, recorded):
    shutil.copytree(recorded / "torch" / "b16", tmp_path / "b16")
    return tmp_path / "b16"


def change(file, **fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def runs(folder):
    store = folder.parent / "perfctl.db"
    return len(rows(store, "SELECT id FROM run")) if store.exists() else 0


STEP = {"number": 0, "phase": "step", "start_ns": 1, "duration_ns": 1}


WRONG = [
    {"steps": [{**STEP, "number": "x"}]},
    {"steps": [{**STEP, "duration_ns": 10**40}]},
    {"steps": [{**STEP, "duration_ns": float("inf")}]},
    {"steps": 5},
    {"memory": [{"moment": "peak", "quantity": "allocated", "bytes": [1]}]},
    {"environment": 5},
    {"ops": [{}]},
    {"ops": [[]]},
    {"batch_size": "16; DROP TABLE run"},
    {"batch_size": 10**30},
    {"workload": {"a": 1}},
    {"device": {"name": 1, "kind": "gpu"}},
    {"gaps": [{"quantity": 1, "state": "x", "reason": "y"}]},
]
SHAPES: list[list[Any]] = [["a", 2], [10**30] * 4, [[1]] * 4]
NESTED = [
    "[" * 100_000,
    '{"perfctl_workload_record": ' + "[" * 100_000,
    '{"perfctl_workload_record": ' + "9" * 9000,
]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        *((fields, "workload.json: a field is missing or wrong") for fields in WRONG),
        *((shape, "b16") for shape in SHAPES),
        *((text, "workload.json") for text in NESTED),
    ],
)
def test_a_workloads_record_that_makes_no_sense_is_one_line(folder, wrong, reason):
    record = folder / "workload.json"
    if isinstance(wrong, str):
        record.write_text(wrong)
    elif isinstance(wrong, list):
        op = json.loads(record.read_text())["ops"][0]
        change(record, ops=[{**op, "inputs": [wrong] * 2, "outputs": [wrong]}])
    else:
        change(record, **wrong)
    done = ingest(folder, folder.parent / "perfctl.db")
    (line,) = done.failed
    assert reason in line
    assert "\n" not in line
    assert runs(folder) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"artifact": "../../../etc/passwd"},
        {"artifact": "/etc/passwd"},
        {"artifact": ".."},
        {"artifact": ["a"]},
        {"commands": 5},
        {"commands": [{"a": 1}]},
        {"commands": [[1]]},
        {"batch_size": "x"},
        {"duration_ns": 10**30},
        {"reason": {"a": 1}},
        {"perfctl_run": 99},
    ],
)
def test_a_runs_record_that_names_what_is_not_its_own_makes_no_run(perfctl, folder, fields):
    from perfctl.orchestrator.launch.sweep.folders import is_run_complete, read_run_record

    change(folder / "run.json", **fields)
    assert read_run_record(folder) is None
    assert not is_run_complete(folder)


def test_a_runs_record_without_a_field_is_one_line(perfctl, folder):
    (folder / "run.json").write_text('{"perfctl_run": 1, "profiler": "torch"}')
    said = perfctl("ingest", "b16")
    assert said.code == 1
    assert "run.json lacks status" in said.err


def test_half_a_surrogate_pair_is_kept_as_a_mark_and_stops_nothing(perfctl, folder):
    change(folder / "workload.json", environment={"torch": "b\udfff"})
    assert perfctl("ingest", "b16").code == 0
    query = "SELECT value FROM environment WHERE key = 'torch'"
    assert rows(folder.parent / "perfctl.db", query) == [("b?",)]


def test_a_folder_whose_links_lead_round_in_circles_is_read_once(perfctl, folder):
    for name in ("one", "two", "three"):
        (folder.parent / name).mkdir()
        for other in ("one", "two", "three"):
            (folder.parent / name / f"to-{other}").symlink_to(folder.parent)
    assert perfctl("ingest", folder.parent, "--store", folder.parent / "perfctl.db").code == 0
    assert runs(folder) == 1


def test_a_link_that_leads_out_of_a_recording_is_not_copied(perfctl, tmp_path, recorded):
    shutil.copytree(recorded / "torch", tmp_path / "recording")
    (tmp_path / "private.txt").write_text("private")
    (tmp_path / "recording" / "b16" / "notes.txt").symlink_to(tmp_path / "private.txt")
    said = perfctl("replay", "recording", "--batches", "16")
    assert said.code != 0
    assert "notes.txt: link to a file outside the recording" in said.err
    assert not list(tmp_path.glob("perfctl-runs/*/*/notes.txt"))


def test_names_of_files_that_are_commands_to_a_terminal_are_shown_as_text(perfctl, tmp_path):
    for name in ("a\x1b]0;title\x07.sqlite", "b\u202egnp.csv", "--store=x.db", "c\nd.csv"):
        (tmp_path / name).write_text("nothing that is known")
        said = perfctl("ingest", f"./{name}")
        assert said.code == 1
        assert not any(mark in said.out + said.err for mark in ("\x1b", "\x07", "\u202e"))
        assert said.err.count("\n") == 2
    said = perfctl("runs", "--no-such\x1b[31m")
    assert said.code == 2
    assert "\x1b" not in said.err
    assert not (tmp_path / "x.db").exists()
