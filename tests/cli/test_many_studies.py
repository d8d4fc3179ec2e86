"""A page of a store with more studies than a reader goes through."""

from pathlib import Path

import pytest

from perfctl.orchestrator.commands.report import select_runs_of_newest_groups
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.store.write import RunFacts, SweepFacts, write_run
from perfctl.orchestrator.stored_runs import load_readable_runs
from perfctl.records.report import Device, Report

BATCHES = (8, 16)


def put(connection, workload, batch, **facts):
    """One whole run on the same device, as far as ``facts`` say nothing else."""
    known = {"profiler": "nsys", "status": "ok", **facts}
    run = RunFacts(origin="synthetic", workload=workload, batch_size=batch, **known)
    report = Report(
        tool="nsys",
        path=Path("made-up"),
        form="made up",
        devices=(Device("Synthetic GPU", "gpu"),),
        mode="train",
        precision="fp32",
    )
    sweep = SweepFacts(f"sweep of {workload}", "sweep", None, None)
    return write_run(connection, sweep, run, None if run.status == "failed" else report).run_id


@pytest.fixture
def store(tmp_path):
    """Five studies of two batch sizes; the first one has the newest run."""
    path = tmp_path / "many.db"
    with database.open_store_for_writing(path) as connection:
        for number in range(5):
            for batch in BATCHES:
                put(connection, f"model-{number}", batch)
        put(connection, "model-0", 32)
    return path


def test_the_studies_with_the_newest_runs_are_kept_whole(store):
    with database.open_store_for_reading(store) as connection:
        kept, omitted = select_runs_of_newest_groups(connection, read.list_run_ids(connection), 2)
        names = [(run.workload, run.batch_size) for run in load_readable_runs(connection, kept)]
    assert names == [
        ("model-0", 8),
        ("model-0", 16),
        ("model-4", 8),
        ("model-4", 16),
        ("model-0", 32),
    ]
    assert (omitted or "").startswith("3 older run groups")


def test_a_run_that_failed_early_stays_with_its_workload(store):
    with database.open_store_for_writing(store) as connection:
        failed = put(connection, "model-2", 64, status="failed")
        kept, omitted = select_runs_of_newest_groups(connection, read.list_run_ids(connection), 1)
        assert {run.workload for run in load_readable_runs(connection, kept)} == {"model-2"}
    assert failed in kept
    assert (omitted or "").startswith("4 older run groups")


def test_points_of_a_bench_are_never_left_out(store):
    with database.open_store_for_writing(store) as connection:
        points = [
            put(connection, "families", 4, profiler="none", variant=f"mlp:width={width}")
            for width in range(3)
        ]
        put(connection, None, None)
        kept, omitted = select_runs_of_newest_groups(connection, read.list_run_ids(connection), 1)
    assert set(points) < set(kept)
    assert (omitted or "").startswith("5 older run groups")


def test_the_page_says_what_it_leaves_out_and_how_to_see_it(perfctl, store):
    said = perfctl(f"report --store {store} --studies 2")
    text = Path("perfctl-report.html").read_text(encoding="utf-8")
    assert "3 older run groups (6 runs) of the database are not in this report" in text
    assert "3 older run groups (6 runs)" in said.err
    assert "--studies 5" in said.err
    assert "model-3" not in text
    assert perfctl(f"report --store {store} --studies 5").code == 0
    text = Path("perfctl-report.html").read_text(encoding="utf-8")
    assert "not in this page" not in text
    assert "model-3" in text


def test_runs_that_were_asked_for_are_all_shown(perfctl, store):
    said = perfctl(f"report --store {store} --studies 1 --run 1 --run 3 --json")
    assert said.json["runs"] == [1, 3]
    assert said.json["omitted"] is None
