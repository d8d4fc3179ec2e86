"""perfctl ledger and --peaks on a real recording of a CPU."""

import json
import re
import shutil
from pathlib import Path

import pytest

from perfctl.orchestrator.launch.machine import peaks as launch_peaks

H100 = Path(__file__).resolve().parents[1] / "data" / "h100" / "ncu"


@pytest.fixture
def in_store(perfctl, replayed):
    """Calls commands beside a copy of the store with the recorded sweep."""
    shutil.copy(replayed, "perfctl.db")
    return perfctl


def test_layer_and_batch_narrow_the_rows(in_store):
    rows = in_store("ledger --layer conv2 --batches 32 --json").json["rows"]
    assert {(row["layer"], row["batch"]) for row in rows} == {("conv2", 32)}
    (forward,) = (row for row in rows if row["direction"] == "forward")
    assert (
        forward["estimated_flops"] == 2 * 32 * 64 * 24 * 24 * 288
        and forward["executed_flops"] is None
    )


@pytest.fixture
def on_h100(perfctl):
    """Calls commands beside a store with the counters of two batch sizes on an H100."""
    for batch in (16, 64):
        assert perfctl("ingest", H100 / f"b{batch}").code == 0
    return perfctl


def test_an_explained_layer_has_no_causes_of_other_rows(on_h100):
    """The products of a transform stand beside the multiply-adds of one gradient: half its FLOPs."""
    explained = " ".join(on_h100("ledger --layer conv2 --explain").out.split())
    assert "conv2 backward changes its algorithm at batch 64: FFT instead of" in explained
    assert explained.count(f"FFMA (estimated {64 * 64 * 24 * 24 * 288:,})") == 2
    for narrowed in ("--layer fc1", "--batches 16"):
        assert "changes its algorithm" not in on_h100(f"ledger {narrowed} --explain").out
    of_fc1 = " ".join(on_h100("ledger --layer fc1 --explain").out.split())
    assert of_fc1.count("Constant moves (observed)") == 1 and "1 more row has such" in of_fc1
    padded, estimated = 64 * 128 * 9216, 16 * 128 * 9216
    assert f"multiplies (estimated {estimated:,}), measured {padded:,}" in of_fc1


def test_a_sheet_asks_for_the_cause_that_explains_a_recorded_row(on_h100):
    """Moves of constants explain no ratio; a ratio below 1 has one choice that fits."""
    pytest.importorskip("torch")
    for name in ("R Two a", "R Two b", "R Two c"):
        on_h100("exercise", "new", "--for", name, "--store", "perfctl.db", "--force")
        (line,) = re.findall(r"Recorded: .*", Path("sheet.md").read_text(encoding="utf-8"))
        assert ("Winograd" in line) + ("FFT" in line) == ("conv2 backward" in line), line


def test_measured_peaks_are_kept_beside_the_store_and_used(in_store, monkeypatch):
    rows = in_store("ledger --json").json["rows"]
    device = rows[0]["device"]
    calls = []

    def measure(kind, *, threads):
        calls.append(kind)
        record = {"device": device, "kind": "cpu", "at": "2026-11-20T10:00:00Z", "threads": 2}
        return {**record, "flops": {"fp32": 1e15}, "bandwidth_bps": 1e12}

    monkeypatch.setattr(launch_peaks, "run_peaks_measurement", measure)
    for _ in range(2):
        rows = in_store("ledger --peaks measured --json").json["rows"]
    assert calls == ["cpu"], "the second call reads the file"
    assert json.loads(Path("perfctl.peaks.json").read_text())[0]["flops"] == {"fp32": 1e15}
    (row,) = (
        r for r in rows if (r["layer"], r["direction"], r["batch"]) == ("conv2", "forward", 32)
    )
    assert row["mfu"] == pytest.approx(row["estimated_flops"] / row["time_ns"] * 1e9 / 1e15)
    assert in_store("report --peaks measured").code == 0
    assert "measured on 2026-11-20" in Path("perfctl-report.html").read_text()


def test_a_damaged_file_of_peaks_is_named(in_store):
    Path("perfctl.peaks.json").write_text("{")
    done = in_store("ledger --peaks measured")
    assert done.code == 1 and "perfctl.peaks.json" in done.err and "Delete the file" in done.err
