"""Programs for the process layer to run, and one that does not want to end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from perfctl.orchestrator.launch.process import run as process_run
from perfctl.orchestrator.launch.profilers.base import Command, ProcessOutcome, RunStatus

STUBBORN_DAEMON = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        time.sleep(600)
    os._exit(0)
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
"""
"""Ignores every polite signal, and leaves a daemon: double fork, own session, no descriptors."""


def write_program(path: Path, lines: str, shell: str = "/bin/bash") -> Path:
    """Write an executable of these shell lines, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{shell}\n{lines}\n")
    path.chmod(0o755)
    return path


def workload_words(part: Path, annotate: str, window: str) -> tuple[str, ...]:
    """The command of the workload in a run of ``make_request``."""
    words = f"/opt/python -m perfctl.workloads mnist_cnn --batch 16 --record {part}/workload.json"
    return (*words.split(), "--annotate", annotate, "--window", window, "--steps", "2")


def assert_verdict(verdict: RunStatus, status: str, *reasons: str) -> None:
    """It has this status, and a reason that begins with the first of these and holds the others."""
    reason = verdict.reason or ""
    assert verdict.status == status, reason
    assert reason.startswith(reasons[0]) if reasons else verdict.reason is None, reason
    assert all(text in reason for text in reasons), reason


def run(
    folder: Path,
    *argv: str,
    processes=None,
    environment=None,
    is_recorded=lambda seconds: False,
    **options,
) -> ProcessOutcome:
    variables = {**(environment or {}), **(processes.environment if processes else {})}
    command = Command(argv, "profile", variables, is_recorded=is_recorded)
    logs = {"stdout": folder / "out.log", "stderr": folder / "err.log"}
    return process_run.run_command(command, cwd=folder, scratch=folder / "tmp", **logs, **options)


def run_python(folder: Path, code: str, *arguments: str, **options) -> ProcessOutcome:
    return run(folder, sys.executable, "-S", "-c", code, *arguments, **options)


def run_past_ready(folder: Path, *argv: str, processes=None, **options) -> ProcessOutcome:
    """Run with a time limit that lets the program print "ready" first, however busy the machine."""
    limit_s = 0.5
    while True:
        outcome = run(folder, *argv, processes=processes, timeout_s=limit_s, **options)
        if "ready" in outcome.stdout.read_text():
            return outcome
        outcome.stdout.unlink()
        limit_s *= 2


def wait_until(holds: Callable[[], object], what: object = "", limit_s: float = 150.0) -> None:
    """Returns as soon as it holds; ``what`` is waited for, or a function that tells."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, (
            f"waited {limit_s:.0f} s for {what() if callable(what) else what}"
        )
        time.sleep(0.05)
