"""From a recorded sweep to the page, as a user without GPU, torch and NVIDIA tools goes."""

import shutil

from tests.cli.conftest import sql


def test_a_sweeps_folder_copied_elsewhere_can_be_ingested_there(perfctl, recorded, tmp_path):
    perfctl("replay", recorded / "torch")
    first = perfctl("runs --json").json
    (copy,) = (tmp_path / "perfctl-runs").iterdir()
    elsewhere = tmp_path / "laptop"
    shutil.copytree(copy, elsewhere / copy.name)
    perfctl(f"ingest {elsewhere} --store {elsewhere / 'perfctl.db'}").ok()
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
    perfctl, recorded, tmp_path
):
    folder = tmp_path / "broken" / "b16"
    shutil.copytree(recorded / "torch" / "b16", folder)
    trace = folder / "report.pt.trace.json.gz"
    trace.write_bytes(trace.read_bytes()[:-2000])
    assert perfctl("ingest", tmp_path / "broken").code == 0
    (row,) = perfctl("runs --json").json
    assert row["status"] == "partial"
    assert "report.pt.trace.json.gz" in row["reason"]
    assert sql("SELECT count(*) > 0 FROM step") == [(1,)]
    assert sql("SELECT count(*) FROM operation") == [(0,)]
