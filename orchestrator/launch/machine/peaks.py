"""Measure this machine's peaks in a separate process, which loads torch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.launch.machine import tools


def measure(device: str, *, threads: int | None = None) -> dict[str, Any]:
    """The record that ``perfctl.workloads.run.peaks`` prints for ``device`` (cpu or cuda).
    ``threads``: of a CPU; None for torch's default. Raises PerfctlError with the last line of
    its stderr."""
    argv = [sys.executable, "-m", "perfctl.workloads.run.peaks", "--device", device, "--json"]
    remedy = "Use the published peaks instead"
    try:
        code, out, err = tools.run(
            argv if threads is None else [*argv, "--threads", str(threads)], 300.0
        )
        found = json.loads("\n".join(out)) if code == 0 else None
    except subprocess.TimeoutExpired as error:
        raise PerfctlError("measuring the peaks took longer than 300 s", remedy) from error
    except ValueError as error:
        raise PerfctlError("measuring the peaks printed no result", remedy) from error
    if code != 0:
        raise PerfctlError(
            f"measuring the peaks failed: {err[-1] if err else f'exit code {code}'}", remedy
        )
    if not isinstance(found, dict):
        raise PerfctlError("measuring the peaks printed no result", remedy)
    return found
