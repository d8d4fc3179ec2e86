"""Query and control Slurm with squeue, sbatch and scancel; not with sacct, which needs a database and lags."""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.errors import PerfctlError, ToolMissing
from perfctl.orchestrator.launch.slurm_plan import Plan

_FORMAT = "%F|%K|%A|%T|%r|%M|%N|%o"
"""Array job, task, job, state, reason, time used, nodes, script; the script last, because its path may contain |."""
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Queued:
    """One job or array task in Slurm's queue."""

    array: str
    """Number of the array, or of the job itself."""
    task: int | None
    """None for the gather job."""
    job: str
    state: str
    """PENDING, RUNNING, COMPLETING, ..."""
    reason: str
    """Why it waits; the text "None" when it does not."""
    used: str
    """Run time so far, as D-HH:MM:SS."""
    nodes: str

    @property
    def waits(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "SUSPENDED", "REQUEUE_HOLD", "SPECIAL_EXIT")


def queued(plan: Plan) -> list[Queued]:
    """The plan's jobs, found by the script that they run. Raises ToolMissing without squeue, PerfctlError when it
    fails."""
    argv = ("squeue", "--noheader", "--array", f"--user={getpass.getuser()}", f"--format={_FORMAT}")
    found = []
    for line in _ask(argv).splitlines():
        cells = line.split("|", 7)
        script = Path(cells[-1])
        if len(cells) == 8 and script.parent.name == plan.folder.name and script.name in _names(plan):
            task = int(cells[1]) if cells[1].isdecimal() else None
            found.append(Queued(cells[0], task, *cells[2:7]))
    return found


def submit(plan: Plan, tasks: Sequence[int] | None = None) -> tuple[str, str]:
    """Submit the array (or only some of its ``tasks``) and the gather job that follows it; returns both job numbers.

    Raises PerfctlError when sbatch fails; the message says whether the array was submitted.
    """
    some: tuple[str, ...] = ()
    if tasks is not None:
        some = (f"--array={','.join(map(str, tasks))}{_limit(plan)}",)
    array = _number(_ask(("sbatch", "--parsable", *some, str(plan.array.absolute()))))
    after = (f"--dependency=afterany:{array}",)
    try:
        gather = _number(_ask(("sbatch", "--parsable", *after, str(plan.gather.absolute()))))
    except PerfctlError as error:
        remedy = f"When it has ended, run perfctl slurm gather {plan.folder}"
        raise PerfctlError(f"submitted the array as job {array}, but not its gather job: {error}", remedy) from error
    return array, gather


def cancel(jobs: Sequence[str]) -> None:
    """Raises PerfctlError when scancel fails."""
    if jobs:
        _ask(("scancel", *dict.fromkeys(jobs)))


def _names(plan: Plan) -> tuple[str, str]:
    return plan.array.name, plan.gather.name


def _limit(plan: Plan) -> str:
    """The script's current limit of tasks at once, such as "%2"; empty without one."""
    found = re.search(
        r"^#SBATCH\s+(?:--array[= ]|-a ?)\S*?(%\d+)", plan.array.read_text(errors="replace"), re.MULTILINE
    )
    return found[1] if found else ""


def _number(said: str) -> str:
    """The job number in output such as "12;cluster"."""
    return said.strip().splitlines()[-1].partition(";")[0]


def _ask(argv: Sequence[str]) -> str:
    if shutil.which(argv[0]) is None:
        raise ToolMissing(f"{argv[0]} is not installed here", "Run this on a machine of the cluster")
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PerfctlError(f"{argv[0]} did not answer in {_LIMIT_S:.0f} s", "Try again later") from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise PerfctlError(f"{argv[0]} failed: {said}")
    return done.stdout
