"""perfctl slurm"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.slurm_render import render_command
from perfctl.orchestrator.cli.sweep_command import SweepCommand
from perfctl.orchestrator.errors import UsageError

slurm = typer.Typer(
    name="slurm",
    no_args_is_help=True,
    rich_markup_mode=None,
    help=options.SLURM_HELP,
)
slurm.command("render", cls=SweepCommand, context_settings=options.SWEEP)(render_command())

Folder = Annotated[Path, typer.Argument(help="What perfctl slurm render wrote: perfctl-runs/slurm-...")]


@slurm.command()
def submit(
    folder: Folder,
    tasks: Annotated[str | None, typer.Option(help="Only these tasks, by number: 1,3. Default: all.")] = None,
) -> None:
    """Submit the array, and the gather job that runs after any outcome of it."""
    from perfctl.orchestrator.launch import slurm_queue
    from perfctl.orchestrator.launch.slurm_plan import read_plan

    plan = read_plan(folder)
    some = _numbers(tasks, len(plan.tasks)) if tasks is not None else None
    asked = some if some is not None else [task.number for task in plan.tasks]
    queued = sorted({job.task for job in slurm_queue.queued(plan) if job.task in asked})
    if queued:
        names = ", ".join(map(str, queued))
        raise UsageError(
            f"in the queue already: task {names}", f"perfctl slurm cancel {shlex.quote(str(folder))} takes it out"
        )
    array, gather = slurm_queue.submit(plan, some)
    console.result(f"Submitted {len(asked)} tasks as job {array}, and job {gather} to gather them")
    console.result(f"Next: perfctl slurm status {shlex.quote(str(folder))}")


@slurm.command()
def status(folder: Folder, as_json: options.Json = False) -> None:
    """Say how far each task is, why one failed, and how to repeat what is not whole. Asks squeue, never sacct."""
    from perfctl.orchestrator.cli.slurm_table import show
    from perfctl.orchestrator.launch.slurm_plan import read_plan

    show(read_plan(folder), as_json=as_json)


@slurm.command()
def gather(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of arrays, of sweeps, or that hold some; copied from anywhere.")
    ],
    store: options.Store = None,
    page: Annotated[Path | None, typer.Option(help="The page to write. Default: beside the store.")] = None,
) -> None:
    """Take what tasks left into the store, write the page, and name what is missing. One process writes, whole runs each."""
    from perfctl.orchestrator.cli.slurm_gather import gather as take

    store = store or DEFAULT
    take(folders, store, page or store.with_name("perfctl-report.html"))


@slurm.command()
def cancel(folder: Folder) -> None:
    """Take the array and its gather job out of the queue; a running profiler is told to stop."""
    from perfctl.orchestrator.launch import slurm_queue
    from perfctl.orchestrator.launch.slurm_plan import read_plan

    jobs = slurm_queue.queued(read_plan(folder))
    slurm_queue.cancel([job.array for job in jobs])
    left = sum(job.task is not None for job in jobs)
    console.result(f"Cancelled {left} tasks and {len(jobs) - left} gather jobs" if jobs else "Nothing of it is queued")
    if jobs:
        console.result(f"What was whole is kept. Next: perfctl slurm gather {shlex.quote(str(folder))}")


def _numbers(text: str, count: int) -> list[int]:
    numbers = []
    for word in text.split(","):
        if not word.strip().isdecimal() or int(word) >= count:
            raise UsageError(f"--tasks: there is no task '{word.strip()}'", f"They are numbered 0 to {count - 1}")
        numbers.append(int(word))
    return sorted(set(numbers))
