"""Start a process as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PERFCTL = (sys.executable, "-m", "perfctl.workloads")


def start(
    folder: Path | None, *argv: str, text: bool = True, **variables: str
) -> subprocess.CompletedProcess[Any]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore::UserWarning",
        **variables,
    }
    return subprocess.run(
        argv, cwd=folder, capture_output=True, text=text, env=environment, timeout=600, check=False
    )
