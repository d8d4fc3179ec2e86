"""From a recorded sweep to the page, as a user without GPU, torch and NVIDIA tools goes."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

Perfctl = Callable[..., Any]
"""The fixture ``perfctl``: call a command, get its exit code and what it said."""


@pytest.mark.parametrize("profiler", ["torch", "nsys"])
def test_a_recorded_sweep_is_replayed_stored_shown_and_reported(
    perfctl: Perfctl, recorded: Path, profiler: str
) -> None:
    assert perfctl("replay", recorded / profiler).code == 0
    rows = perfctl("runs", "--json").json
    assert [(row["profiler"], row["batch_size"], row["status"], row["origin"]) for row in rows] == [
        (profiler, 16, "ok", "recorded"),
        (profiler, 32, "ok", "recorded"),
    ]
    shown = perfctl("show", rows[0]["id"])
    assert shown.code == 0
    assert "conv2" in shown.out
    assert "recorded" in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert perfctl("report").code == 0
    page = Path("perfctl-report.html").read_text(encoding="utf-8")
    assert "conv2" in page
    assert "recorded" in page


def test_pen_and_paper_in_the_store_follows_from_the_dimensions(
    perfctl: Perfctl, recorded: Path
) -> None:
    perfctl("replay", recorded / "torch", "--batches", "32")
    conv2_macs = 32 * 64 * 24 * 24 * (32 * 3 * 3)
    with closing(sqlite3.connect("perfctl.db")) as store, store:
        rows = store.execute(
            "SELECT direction, macs, flops FROM layer_call WHERE layer = 'conv2' AND macs > 0"
        ).fetchall()
        first = store.execute(
            "SELECT direction FROM layer_call WHERE layer = 'conv1' AND macs > 0"
        ).fetchall()
    assert sorted(rows) == [
        (d, conv2_macs, 2 * conv2_macs) for d in ("forward", "grad_input", "grad_weight")
    ]
    assert sorted(first) == [("forward",), ("grad_weight",)], (
        "the first layer needs no gradient of its input"
    )


def test_every_measured_step_has_a_range_for_every_layer_forward_and_backward(
    perfctl: Perfctl, recorded: Path
) -> None:
    perfctl("replay", recorded / "nsys", "--batches", "16")
    with closing(sqlite3.connect("perfctl.db")) as store, store:
        steps = {
            number for (number,) in store.execute("SELECT number FROM step WHERE phase = 'step'")
        }
        seen = store.execute(
            "SELECT DISTINCT layer, direction, step FROM range WHERE layer IS NOT NULL"
        ).fetchall()
    assert steps
    for layer in ("conv1", "conv2", "fc1", "fc2"):
        for direction in ("forward", "backward"):
            assert {step for (la, d, step) in seen if (la, d) == (layer, direction)} == steps, (
                layer,
                direction,
            )


def test_replayed_again_it_skips_what_is_whole_and_stores_nothing_twice(
    perfctl: Perfctl, recorded: Path
) -> None:
    perfctl("replay", recorded / "torch")
    again = perfctl("replay", recorded / "torch")
    assert again.code == 0
    assert again.err.count("already complete, skipped") == 2
    assert len(perfctl("runs", "--json").json) == 2


def test_a_batch_size_that_was_not_recorded_fails_alone_with_exit_code_4(
    perfctl: Perfctl, recorded: Path
) -> None:
    said = perfctl("replay", recorded / "torch", "--batches", "16,17")
    assert said.code == 4
    assert "17" in said.err
    rows = perfctl("runs", "--json").json
    assert [(row["batch_size"], row["status"]) for row in rows] == [(16, "ok"), (17, "failed")]
    assert rows[1]["reason"]


def test_a_sweeps_folder_copied_elsewhere_can_be_ingested_there(
    perfctl: Perfctl, recorded: Path, tmp_path: Path
) -> None:
    perfctl("replay", recorded / "torch")
    first = perfctl("runs", "--json").json
    (copy,) = (tmp_path / "perfctl-runs").iterdir()
    elsewhere = tmp_path / "laptop"
    shutil.copytree(copy, elsewhere / copy.name)
    said = perfctl("ingest", elsewhere, "--store", elsewhere / "perfctl.db")
    assert said.code == 0
    again = perfctl("runs", "--json", "--store", elsewhere / "perfctl.db").json
    same = (
        "profiler",
        "batch_size",
        "workload",
        "mode",
        "precision",
        "status",
        "operations",
        "ranges",
        "artifact_sha256",
    )
    assert [[row[key] for key in same] for row in again] == [
        [row[key] for key in same] for row in first
    ]


def test_a_trace_that_is_cut_off_leaves_a_partial_run_with_the_workloads_own_record(
    perfctl: Perfctl, recorded: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "broken" / "b16"
    shutil.copytree(recorded / "torch" / "b16", folder)
    trace = folder / "report.pt.trace.json.gz"
    trace.write_bytes(trace.read_bytes()[:-2000])
    assert perfctl("ingest", tmp_path / "broken").code == 0
    (row,) = perfctl("runs", "--json").json
    assert row["status"] == "partial"
    assert "report.pt.trace.json.gz" in row["reason"]
    with closing(sqlite3.connect("perfctl.db")) as store, store:
        assert store.execute("SELECT count(*) > 0 FROM step").fetchone() == (1,)
        assert store.execute("SELECT count(*) FROM operation").fetchone() == (0,)


def test_the_same_store_gives_the_same_page_byte_for_byte(perfctl: Perfctl, recorded: Path) -> None:
    perfctl("replay", recorded / "torch")
    perfctl("report", "--out", "a.html")
    perfctl("report", "--out", "b.html")
    assert Path("a.html").read_bytes() == Path("b.html").read_bytes()


def test_no_record_of_a_run_holds_an_environment_variable(
    perfctl: Perfctl, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "tok-7e1f")
    perfctl("replay", recorded / "torch", "--batches", "16")
    perfctl("report")
    for file in Path.cwd().rglob("*"):
        if file.is_file():
            assert b"tok-7e1f" not in file.read_bytes(), file
    assert (
        json.loads(next(Path("perfctl-runs").glob("*/b16/run.json")).read_text())["status"] == "ok"
    )
