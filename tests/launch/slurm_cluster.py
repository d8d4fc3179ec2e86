"""A real Slurm for tests: three virtual nodes on this machine, two pretend GPUs each."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.orchestrator.launch.cluster import status
from perfctl.orchestrator.launch.cluster.plan import JobArrayPlan, read_job_array_plan
from tests.launch.programs import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Cluster:
    """The cluster, and perfctl on its login node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = 20000 + os.getpid() % 4000 * 5
        knobs = {
            "SLURM_TEST_DIR": str(folder),
            "NODES": "3",
            "CPUS_PER_NODE": "2",
            "GPUS_PER_NODE": "2",
            "PORT": str(port),
        }
        self.environment = {**os.environ, **knobs, "SLURM_CONF": str(folder / "etc" / "slurm.conf")}
        self.environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}

    def script(self, word: str) -> None:
        self.call("bash", str(ROOT / "scripts" / "setup" / "slurm_up.sh"), word)

    def call(self, *argv: str, cwd: Path | None = None, code: int = 0) -> str:
        done = subprocess.run(
            argv,
            env=self.environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def perfctl(self, cwd: Path, *words: object, code: int = 0) -> str:
        return self.call(sys.executable, "-m", "perfctl", *map(str, words), cwd=cwd, code=code)

    def render(self, cwd: Path, line: str, *words: object) -> JobArrayPlan:
        """Render what follows perfctl slurm render: the words of a line, and words as they are."""
        cwd.mkdir(parents=True, exist_ok=True)
        self.perfctl(cwd, "slurm", "render", *line.split(), *words)
        return read_job_array_plan(next(cwd.glob("perfctl-runs/slurm-*")))

    def stop_controller(self) -> None:
        pid_file = self.folder / "run" / "slurmctld.pid"
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the controller to end")


def ended(plan: JobArrayPlan) -> bool:
    return not status.list_queued_jobs(plan)


def rows(store: Path) -> list[tuple[str, int, str]]:
    with closing(sqlite3.connect(store)) as connection, connection:
        return connection.execute(
            "SELECT profiler, batch_size, status FROM run ORDER BY profiler, batch_size"
        ).fetchall()


def started() -> Iterator[Cluster]:
    """A cluster while the caller uses it; skips where Slurm is missing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [
        tool
        for tool in ("munged", "slurmctld", "slurmd", "sbatch")
        if shutil.which(tool, path=path) is None
    ]
    if missing:
        pytest.skip(
            f"no Slurm here: {', '.join(missing)} missing (scripts/setup/slurm_up.sh install)"
        )
    # short: munge has a socket in it
    folder = Path(tempfile.mkdtemp(prefix="perfctl-slurm-", dir="/tmp"))
    found = Cluster(folder)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = found.environment["SLURM_CONF"]
    try:
        found.script("up")
        yield found
    finally:
        found.script("down")
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop("SLURM_CONF") if before is None else os.environ.update(SLURM_CONF=before)
