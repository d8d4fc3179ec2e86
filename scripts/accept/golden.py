"""Accept the current results of the tests: ``python scripts/accept/golden.py [TEST FILE...]``
rewrites tests/golden/ and scripts/jobs/.

Look at the difference (git diff tests/golden scripts/jobs) before you commit it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(files: list[str]) -> int:
    """Run the tests that compare with golden files, or only ``files``, so that they
    write instead."""
    chosen = files or ["-k", "golden"]
    argv = [sys.executable, "-m", "pytest", "-q", *chosen]
    return subprocess.run(
        argv, cwd=ROOT, env={**os.environ, "PERFCTL_ACCEPT_GOLDEN": "1"}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
