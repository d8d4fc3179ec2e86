"""What reaches sbatch and scancel, and what does not; stand-ins for Slurm's commands note what they
are asked."""

import pytest

from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.launch.cluster import status
from perfctl.orchestrator.launch.cluster.plan import SlurmSiteSettings, Task
from perfctl.orchestrator.launch.cluster.script import render_array_script, render_gather_script
from perfctl.orchestrator.launch.cluster.status import TaskState
from tests.launch.cluster.test_slurm_script import SETTING, plan
from tests.launch.programs import write_program


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put stand-ins on PATH; ``slurm()`` gives the lines that sbatch and scancel got,
    ``slurm(*lines)`` fills the queue."""
    folder, asked, queue = tmp_path / "bin", tmp_path / "asked", tmp_path / "queue"
    for path in (asked, queue):
        path.touch()
    write_program(folder / "squeue", f"cat '{queue}'")
    write_program(folder / "sbatch", f"echo sbatch \"$@\" >>'{asked}'; echo 7")
    write_program(folder / "scancel", f"echo scancel \"$@\" >>'{asked}'")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def tell(*lines):
        if lines:
            queue.write_text("\n".join(lines) + "\n")
        return asked.read_text().splitlines()

    return tell


def rendered(folder, template=None):
    made = plan(folder / "slurm-x")
    made.folder.mkdir()
    site = SlurmSiteSettings(template=template)
    made.array_script.write_text(render_array_script(made, site, SETTING))
    made.gather_script.write_text(render_gather_script(made, site, SETTING))
    made.write_tasks_json()
    return made


def test_an_array_whose_script_is_gone_is_one_clear_line(tmp_path, slurm):
    made = rendered(tmp_path)
    made.array_script.unlink()
    with pytest.raises(UsageError, match=r"array\.sbatch cannot be read: No such file") as caught:
        status.submit_job_array(made)
    assert "perfctl slurm render" in (caught.value.remedy or "")
    assert slurm() == []


def test_what_sbatch_refuses_has_a_remedy(tmp_path, slurm):
    write_program(tmp_path / "bin/sbatch", "echo invalid partition specified: gpu >&2; exit 1")
    with pytest.raises(PerfctlError, match="sbatch failed: invalid partition") as caught:
        status.submit_job_array(rendered(tmp_path))
    assert "sinfo" in (caught.value.remedy or "")


def test_a_script_whose_array_line_was_edited_away_is_submitted_only_task_by_task(tmp_path, slurm):
    made = rendered(tmp_path)
    kept = [line for line in made.array_script.read_text().splitlines() if "--array" not in line]
    made.array_script.write_text("\n".join(kept))
    with pytest.raises(UsageError, match="one job, not an array"):
        status.submit_job_array(made)
    assert status.submit_job_array(made, [2, 0]).tasks == 2
    assert slurm() == [
        f"sbatch --parsable --array=0,2 {made.array_script}",
        f"sbatch --parsable --dependency=afterany:7 {made.gather_script}",
    ]


def test_cancel_tells_a_running_profiler_to_stop_and_ends_what_waits_or_was_told_before(
    tmp_path, slurm
):
    """Slurm's own cancel signals every process of a job: the profiler's helpers die, and with them
    the report."""
    made = rendered(tmp_path)
    slurm(
        f"7|0|8|RUNNING|None|1:00|n1|{made.array_script}",
        f"7|1|9|RUNNING|None|0:01|n2|{made.array_script}",
        f"7|2|7|PENDING|Resources|0:00||{made.array_script}",
        f"10|N/A|10|PENDING|Dependency|0:00||{made.gather_script}",
    )
    started = "2026-01-01T00:00:00Z started on n1 as 7, restart 0\n"
    for number, begun in ((0, "batch 16: profile\n"), (1, "")):
        made.get_event_log_path(made.tasks[number]).write_text(started)
        made.get_log_path(made.tasks[number]).write_text(started + begun)
    assert status.cancel_job_array(made) == status.Cancelled(
        made.folder, tasks=2, stopping=1, gathers=1
    )
    assert slurm() == ["scancel 7_1 7_2 10", "scancel --batch --signal=USR1 7_0"]
    with made.get_event_log_path(made.tasks[0]).open("a") as events:
        events.write("2026-01-01T00:01:00Z told to stop\n")
    slurm(f"7|0|8|RUNNING|None|1:00|n1|{made.array_script}")
    assert status.cancel_job_array(made) == status.Cancelled(
        made.folder, tasks=1, stopping=0, gathers=0
    )
    assert slurm()[2:] == ["scancel 7_0"]


def test_the_summary_of_a_status_counts_every_task_once(tmp_path):
    tasks = tuple(
        TaskState(Task(number, "nsys, batch 16", ()), state, None)
        for number, state in enumerate(status.ORDER)
    )
    made = plan(tmp_path)
    assert status.ArrayStatus(made, (*tasks, tasks[0]), None, True).summary == (
        f"{len(status.ORDER) + 1} tasks: 2 complete, 1 partial, 1 running, 1 waiting, 1 failed, 1 "
        "missing, 1 unknown"
    )
    assert status.ArrayStatus(made, tasks[:1], None, True).summary == "1 task: 1 complete"
