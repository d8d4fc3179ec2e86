"""Files that look like reports of nsys, and scripts that stand in for its tools."""

from __future__ import annotations

import stat
from pathlib import Path

MAGIC = b"NVIDIA Tegra Profiler Report 1.\n"
STREAM = b"U3w[END]NVIDIA Nsight Systems Stream 2022.4.2.1-df9881f!\n"
STREAM_WORDS = b"NVIDIA Nsight Systems Stream"
END = b'"\x1320XX*\x02vm2\x122024.6.2.225-246235244459v0:\x12'


def install(folder: Path, script: str, name: str = "nsys") -> None:
    """A shell script in ``folder`` that may be run as ``name``."""
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
