"""Arrays on a real Slurm: three virtual nodes on this machine, two pretend GPUs each. Skipped where
Slurm is missing."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.orchestrator.launch.cluster import render as actions
from perfctl.orchestrator.launch.cluster import status
from perfctl.orchestrator.launch.cluster.plan import Plan, Site
from perfctl.orchestrator.launch.sweep.study import StudyParts
from tests.launch.programs import wait_until
from tests.launch.slurm_cluster import ROOT, Cluster, ended, rows

pytestmark = pytest.mark.xdist_group("nsys")

NSYS_BUSY = (
    "sem_open|Agent launcher failed|Local Endpoint is not available|End of file|Connection reset "
    "by peer"
)

RECORDED = ROOT / "tests" / "data" / "recorded-cpu"
REPLAY = f"replay --recording {RECORDED / 'torch'} --gres gpu:1"


def batch_of(state: status.TaskState) -> int:
    assert state.task.runs is not None
    return state.task.runs.setting.batch


def states(plan: Plan) -> dict[int, str]:
    """Batch size -> state (of plans with one profiler)."""
    return {batch_of(one): one.state for one in status.read_status(plan).tasks}


def said(plan: Plan, batch: int) -> str:
    found = status.read_status(plan).tasks
    return next(one.reason or "" for one in found if batch_of(one) == batch)


def array_job(plan: Plan) -> str:
    return next(job.array for job in status.queued(plan) if job.task is not None)


ENDLESS = """
import sys, time
from pathlib import Path
import torch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters())
for step in range(1_000_000):
    model(torch.ones(int(sys.argv[2]), 8)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
    if step == 20:
        Path(sys.argv[1]).touch()
"""


@pytest.fixture(scope="module")
def endless(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """nsys over a program that never ends within its two minutes; submitted first, for it takes
    that long.

    The others begin once its steps are measured: beside them, torch may take longer to load than
    there is time.
    """
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed here")
    folder = tmp_path_factory.mktemp("limit")
    (folder / "endless.py").write_text(ENDLESS, encoding="utf-8")
    runs = folder / "runs"
    line = "nsys --batches 2 --steps 1000000 --device cpu --gres gpu:1 --time 2 --stop-before 70"
    plan = cluster.render(folder, f"{line} -- python endless.py", runs, "{batch}")
    cluster.perfctl(folder, "slurm", "submit", plan.folder)
    wait_until(lambda: runs.exists() or ended(plan), "the steps of the endless program")
    return plan


@pytest.fixture(scope="module")
def four(cluster: Cluster, endless: Plan, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Two batch sizes of mnist_cnn under two profilers, submitted before the other tests, beside
    which they run."""
    folder = tmp_path_factory.mktemp("four")
    line = "torch,nsys --batches 2,4 --steps 1 --warmup 1 --device cpu --gres gpu:1"
    plan = cluster.render(folder, f"{line} --array-limit 3")
    cluster.perfctl(folder, "slurm", "submit", plan.folder)
    return plan


def test_nothing_whole_is_lost_or_counted_twice_whatever_happens_to_the_tasks(
    cluster: Cluster, endless: Plan, four: Plan, tmp_path: Path
) -> None:
    cwd = tmp_path / "a b 'c' $d 100%"  # tasks must not mind
    wait = 'while [[ -e "$folder/hold-$batch" ]]; do sleep 0.1; done'
    line = f"{REPLAY} --batches 16,32,64,128 --sbatch=--hold --before"
    plan = cluster.render(cwd, line, wait)
    hold = plan.folder / "hold-32"
    hold.touch()
    cluster.perfctl(cwd, "slurm", "submit", plan.folder)
    assert set(states(plan).values()) == {"waiting"}
    assert said(plan, 16) == "JobHeldUser"
    assert "already in the queue" in cluster.perfctl(
        cwd, "slurm", "submit", plan.folder, "--tasks", "1", code=2
    )

    cluster.stop_controller()  # while all of them wait
    told = cluster.perfctl(cwd, "slurm", "status", plan.folder)
    assert "squeue" in told
    assert "the status comes from the folders only" in told
    cluster.script("up")
    assert states(plan) == {16: "waiting", 32: "waiting", 64: "waiting", 128: "waiting"}

    array = array_job(plan)
    cluster.call("scancel", f"{array}_3")
    cluster.call("scontrol", "release", array)
    wait_until(
        lambda: states(plan) == {16: "complete", 32: "running", 64: "failed", 128: "missing"},
        "the first three",
    )
    assert said(plan, 32).startswith("starting, ")

    cluster.call("scontrol", "requeue", f"{array}_1")
    wait_until(lambda: states(plan)[32] == "waiting", "the requeued one")
    assert said(plan, 32).endswith("after 1 earlier start")
    hold.unlink()
    # a node refuses a job whose credential is not a second younger than the one it took back
    time.sleep(2.0)
    wait_until(lambda: _start_now(cluster, f"{array}_1"), "Slurm to let it begin")
    wait_until(lambda: ended(plan), "the gather job")

    assert states(plan) == {16: "complete", 32: "complete", 64: "failed", 128: "missing"}, said(
        plan, 32
    )
    results = {16: "ok", 32: "ok", 64: "failed", 128: "failed"}
    expected = [("torch", batch, result) for batch, result in results.items()]
    assert rows(cwd / "perfctl.db") == expected
    page = (cwd / "perfctl-report.html").read_text(encoding="utf-8")
    assert "this batch size was not recorded" in page
    assert "it never started" in page
    told = cluster.perfctl(cwd, "slurm", "status", plan.folder)
    assert "was not recorded" in told
    assert "--tasks 2,3" in told

    cluster.perfctl(cwd, "slurm", "gather", plan.folder, code=4)
    assert rows(cwd / "perfctl.db") == expected


def _start_now(cluster: Cluster, job: str) -> bool:
    """A requeued job waits for two minutes, or one moment more while its first run is being
    cleaned up."""
    if (
        cluster.call("squeue", "--noheader", "--jobs", job, "--format=%T %r").strip()
        != "PENDING BeginTime"
    ):
        return False
    update = ("scontrol", "update", f"JobId={job}", "StartTime=now")
    return (
        subprocess.run(update, env=cluster.environment, capture_output=True, check=False).returncode
        == 0
    )


def test_a_cancelled_array_leaves_the_queue_with_its_gather_job_and_keeps_what_was_whole(
    cluster: Cluster, tmp_path: Path
) -> None:
    line = f"{REPLAY} --batches 16,32 --before"
    plan = cluster.render(tmp_path, line, "[[ $batch = 16 ]] || sleep 100")
    cluster.perfctl(tmp_path, "slurm", "submit", plan.folder)
    wait_until(lambda: states(plan) == {16: "complete", 32: "running"}, "the first one")
    cluster.perfctl(tmp_path, "slurm", "cancel", plan.folder)
    wait_until(lambda: ended(plan), "the queue to be empty")
    assert states(plan) == {16: "complete", 32: "failed"}
    told = cluster.perfctl(tmp_path, "slurm", "gather", plan.folder, code=4)
    assert "left no run" in told or "was cut off" in told
    assert rows(tmp_path / "perfctl.db") == [("torch", 16, "ok"), ("torch", 32, "failed")]


def repeat_what_nsys_could_not_start(cluster: Cluster, plan: Plan) -> None:
    """nsys 2022.4 may not start, or lose its own connection, while another starts on the same host:
    here all nodes are."""
    for _ in range(3):
        wait_until(lambda: ended(plan), "the tasks and their gather job")
        failed = [one for one in status.read_status(plan).tasks if one.state == "failed"]
        if not failed:
            return
        assert all(re.search(NSYS_BUSY, str(one.reason)) for one in failed), failed
        numbers = ",".join(str(one.task.number) for one in failed)
        cluster.perfctl(plan.folder.parents[1], "slurm", "submit", plan.folder, "--tasks", numbers)
    wait_until(lambda: ended(plan), "the tasks that were repeated")


def test_two_batch_sizes_under_two_profilers_become_one_store_and_one_page(
    cluster: Cluster, four: Plan
) -> None:
    home = four.folder.parents[1]
    repeat_what_nsys_could_not_start(cluster, four)
    assert rows(home / "perfctl.db") == [
        (profiler, batch, "ok") for profiler in ("nsys", "torch") for batch in (2, 4)
    ]
    assert (home / "perfctl-report.html").stat().st_size > 10_000


def test_a_profiler_that_meets_the_time_limit_leaves_a_partial_report(
    cluster: Cluster, endless: Plan
) -> None:
    repeat_what_nsys_could_not_start(cluster, endless)
    assert states(endless) == {2: "partial"}, said(endless, 2)
    assert "told to stop" in endless.state(endless.tasks[0]).read_text()
    assert "the profiler report covers the run up to then" in said(endless, 2)
    home = endless.folder.parents[1]
    assert rows(home / "perfctl.db") == [("nsys", 2, "partial")]
    with closing(sqlite3.connect(home / "perfctl.db")) as connection, connection:
        assert connection.execute("SELECT count(*) FROM range").fetchone()[0] > 0
    assert "stopped by SIGTERM during profile" in (home / "perfctl-report.html").read_text(
        encoding="utf-8"
    )


PROFILES = """#!/bin/bash
[[ $* == *" --batches "* ]] || exit 0  # the gather job
scontrol show step "$SLURM_JOB_ID" | grep -o 'cpu=[0-9]*' | tail -1 >cores
sleep 300 &
trap 'kill -0 %1 && echo "with its helper" >told; kill %1; exit 143' TERM
echo "batch 16: profile"
touch profiling
wait
"""
"""Stands in for perfctl: a profiler with a helper, without which it could not write its report."""


def test_a_cancelled_profiler_is_told_alone_so_that_its_helpers_live_to_write_the_report(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Slurm's own scancel signals every process of a job. And srun gives its step the cores of
    the job."""
    program = tmp_path / "profiles.sh"
    program.write_text(PROFILES)
    line = f"{REPLAY} --batches 16 --cpus 2 --srun --exclusive --perfctl"
    plan = cluster.render(tmp_path, line, f"bash {program}")
    cluster.perfctl(tmp_path, "slurm", "submit", plan.folder)
    wait_until(lambda: (tmp_path / "profiling").exists(), "the profiler")
    wait_until(lambda: said(plan, 16).startswith("profile"), "its stage in the log")
    told = cluster.perfctl(tmp_path, "slurm", "cancel", plan.folder)
    assert "Asked 1 task to stop" in told and "Canceled 0 tasks and 1 gather job" in told
    wait_until(lambda: ended(plan), "the queue to be empty")
    assert (tmp_path / "told").read_text() == "with its helper\n"
    assert (tmp_path / "cores").read_text() == "cpu=2\n"
    events = plan.state(plan.tasks[0]).read_text().splitlines()[1:]
    assert [event.partition(" ")[2] for event in events] == [
        "told to stop",
        "ended with exit code 143",
    ]
    shown = cluster.perfctl(tmp_path, "slurm", "status", plan.folder)
    assert "1 task: 1 failed" in shown


def test_the_parts_of_a_study_run_as_an_array_and_one_command_ends_them(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("replay", str(RECORDED / "torch"), "--out", "study/runs", "--no-store", "--batches")
    # 64 was not recorded
    parts = tuple((f"batch {batch}", (*words, str(batch))) for batch in (16, 64))
    finish = ("slurm", "gather", "study/runs", "--store", "study/all.db")
    study = StudyParts("x", Path("study"), parts, finish, "cpu")
    made = actions.render_parts(study, Site(gres="gpu:1"), "perfctl slurm render")
    actions.write(made)
    cluster.perfctl(tmp_path, "slurm", "submit", made.plan.folder)
    wait_until(lambda: ended(made.plan), "two parts and the gather job")
    assert [one.state for one in status.read_status(made.plan).tasks] == ["complete", "partial"]
    assert rows(tmp_path / "study" / "all.db") == [("torch", 16, "ok"), ("torch", 64, "failed")]
    assert "1 part is missing or incomplete" in (made.plan.folder / "gather.log").read_text()
    shown = cluster.perfctl(tmp_path, "slurm", "status", made.plan.folder)
    assert "--tasks 1" in shown
