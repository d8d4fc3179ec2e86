"""What is installed here: programs, their versions, and Python packages, none of which are imported."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from perfctl.orchestrator.launch.profiler import Tool

_LIMIT_S = 20.0
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)*")

TORCH = Tool(
    "torch",
    "the workloads are PyTorch programs",
    "pip install 'perfctl[torch]'",
    "reports made elsewhere can be read: perfctl ingest REPORT",
)


def find(program: str) -> str | None:
    """Path of a program on PATH; None when it is not there."""
    return shutil.which(program)


def version(program: str) -> str | None:
    """First thing in ``PROGRAM --version`` that looks like a version; None when it does not run."""
    path = find(program)
    found = _VERSION.search(output(path, "--version").replace("(R)", "")) if path else None
    return found.group() if found else None


@cache
def output(*argv: str) -> str:
    """What a short command prints, standard error included; empty when it fails or takes too long. Asked once."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def has_gpu_driver() -> bool:
    """Is an NVIDIA driver loaded here? In a container without nvidia-smi, too.

    /dev/nvidiactl says nothing: Debian's ncu 2022.3 makes it on a machine without a GPU.
    """
    if Path("/proc/driver/nvidia/version").exists():
        return True
    path = find("nvidia-smi")
    return path is not None and bool(output(path, "--list-gpus"))


def has_package(name: str) -> bool:
    """Can ``import name`` work? Asked without importing it."""
    return importlib.util.find_spec(name) is not None


def missing_torch() -> tuple[Tool, ...]:
    """The Tool torch when it is not installed."""
    return () if has_package("torch") else (TORCH,)
