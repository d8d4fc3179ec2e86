"""How far the tasks of an array are, as a table or as JSON."""

from __future__ import annotations

import shlex

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.launch import slurm_queue, slurm_status
from perfctl.orchestrator.launch.slurm_plan import Plan
from perfctl.orchestrator.launch.slurm_queue import Queued
from perfctl.orchestrator.launch.slurm_status import TaskState


def show(plan: Plan, *, as_json: bool) -> None:
    """Print it: every task, the log of those that went wrong, and how to repeat what is not whole."""
    jobs = ask_queue(plan)
    found = slurm_status.states(plan, jobs)
    repeat = [state.task.number for state in found if state.state in slurm_status.REPEAT]
    if as_json:
        console.as_json(
            {"asked_squeue": jobs is not None, "tasks": [_record(state) for state in found], "repeat": repeat}
        )
        return
    _table(found)
    for state in found:
        if state.log and state.state in (*slurm_status.REPEAT, slurm_status.UNKNOWN):
            console.result(f"Last lines of {plan.log(state.task)}:")
            for line in state.log:
                console.result(f"    {line}")
    if gather := [job for job in jobs or () if job.task is None]:
        console.result(f"The gather job {gather[0].job} is {gather[0].state.lower()} ({gather[0].reason.lower()})")
    if repeat:
        console.result(f"To repeat only what is not whole: {repeat_command(plan, repeat)}")


def ask_queue(plan: Plan) -> list[Queued] | None:
    """The plan's jobs; None, with a note, where squeue cannot be asked."""
    try:
        return slurm_queue.queued(plan)
    except PerfctlError as error:
        console.note(f"{error.message}: this is what the folders alone tell")
        return None


def repeat_command(plan: Plan, numbers: list[int]) -> str:
    """What submits these tasks again, and the gather job after them."""
    return f"perfctl slurm submit {shlex.quote(str(plan.folder))} --tasks {','.join(map(str, numbers))}"


def _record(state: TaskState) -> dict[str, object]:
    task = state.task
    return {
        "task": task.number, "profiler": task.profiler, "batch": task.batch_size, "sweep": task.sweep,
        "state": state.state, "said": state.said, "log": state.log,
    }  # fmt: skip


def _table(found: list[TaskState]) -> None:
    from rich.table import Table

    table = Table("task", "profiler", "batch", "state", "")
    for state in found:
        task = state.task
        said = console.safe(state.said or "")
        table.add_row(str(task.number), task.profiler, str(task.batch_size), state.state, said)
    console.show(table)
