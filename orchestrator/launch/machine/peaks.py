"""Measure this machine's peaks in a separate process, which loads torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from perfctl.orchestrator.errors import PerfctlError

SECONDS = 300.0


def command(device: str, threads: int | None = None) -> list[str]:
    """The argument list for ``device`` (cpu or cuda). ``threads``: of a CPU; None for torch's default."""
    words = [sys.executable, "-m", "perfctl.workloads.run.peaks", "--device", device, "--json"]
    return words if threads is None else [*words, "--threads", str(threads)]


def measure(
    device: str, *, threads: int | None = None, argv: Sequence[str] | None = None, timeout_s: float = SECONDS
) -> dict[str, Any]:
    """The record that ``perfctl.workloads.run.peaks`` prints. Raises PerfctlError with the last line of its stderr."""
    remedy = "Use the published peaks instead"
    try:
        done = subprocess.run(
            list(argv or command(device, threads)), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PerfctlError(f"measuring the peaks took longer than {timeout_s:.0f} s", remedy) from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise PerfctlError(
            f"measuring the peaks failed: {said[-1] if said else f'exit code {done.returncode}'}", remedy
        )
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        raise PerfctlError("measuring the peaks printed no result", remedy) from error
    if not isinstance(found, dict):
        raise PerfctlError("measuring the peaks printed no result", remedy)
    return found
