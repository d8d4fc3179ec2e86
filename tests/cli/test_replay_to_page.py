"""From a recorded sweep to the page, as a user without GPU, torch and NVIDIA tools goes."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.conftest import Perfctl


def test_pen_and_paper_in_the_store_follows_from_the_dimensions(
    perfctl: Perfctl, recorded: Path
) -> None:
    perfctl(f"replay {recorded / 'torch'} --batches 32")
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
    perfctl(f"replay {recorded / 'nsys'} --batches 16")
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


def test_a_sweeps_folder_copied_elsewhere_can_be_ingested_there(
    perfctl: Perfctl, recorded: Path, tmp_path: Path
) -> None:
    perfctl("replay", recorded / "torch")
    first = perfctl("runs --json").json
    (copy,) = (tmp_path / "perfctl-runs").iterdir()
    elsewhere = tmp_path / "laptop"
    shutil.copytree(copy, elsewhere / copy.name)
    said = perfctl(f"ingest {elsewhere} --store {elsewhere / 'perfctl.db'}")
    assert said.code == 0
    again = perfctl(f"runs --json --store {elsewhere / 'perfctl.db'}").json
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
    (row,) = perfctl("runs --json").json
    assert row["status"] == "partial"
    assert "report.pt.trace.json.gz" in row["reason"]
    with closing(sqlite3.connect("perfctl.db")) as store, store:
        assert store.execute("SELECT count(*) > 0 FROM step").fetchone() == (1,)
        assert store.execute("SELECT count(*) FROM operation").fetchone() == (0,)
