"""Arrays on a real Slurm: three virtual nodes on this machine, two pretend GPUs each. Skipped where
Slurm is missing."""

import subprocess
import time

import pytest

from perfctl.orchestrator.launch.cluster import status
from tests.launch.programs import wait_until
from tests.launch.slurm_cluster import ROOT, ended, rows

pytestmark = pytest.mark.xdist_group("nsys")


RECORDED = ROOT / "tests" / "data" / "recorded-cpu"
REPLAY = f"replay --recording {RECORDED / 'torch'} --gres gpu:1"


def batch_of(state):
    assert state.task.runs is not None
    return state.task.runs.setting.batch


def states(plan):
    """Batch size -> state (of plans with one profiler)."""
    return {batch_of(one): one.state for one in status.collect_array_status(plan).tasks}


def said(plan, batch):
    found = status.collect_array_status(plan).tasks
    return next(one.reason or "" for one in found if batch_of(one) == batch)


def array_job(plan):
    return next(job.array for job in status.list_queued_jobs(plan) if job.task is not None)


def test_nothing_whole_is_lost_or_counted_twice_whatever_happens_to_the_tasks(cluster, tmp_path):
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


def _start_now(cluster, job):
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
    cluster, tmp_path
):
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
    events = plan.get_event_log_path(plan.tasks[0]).read_text().splitlines()[1:]
    assert [event.partition(" ")[2] for event in events] == [
        "told to stop",
        "ended with exit code 143",
    ]
    shown = cluster.perfctl(tmp_path, "slurm", "status", plan.folder)
    assert "1 task: 1 failed" in shown
