"""Find installed programs, their versions, and Python packages (without importing them)."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from perfctl.orchestrator.launch.profilers.base import RequiredTool

_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)*")

TORCH = RequiredTool(
    "torch",
    "the workloads are PyTorch programs",
    "pip install 'perfctl[torch]'",
    "perfctl ingest REPORT reads existing reports",
)


def find_program(program: str) -> str | None:
    """Return path of a program on PATH; None when it is missing."""
    return shutil.which(program)


def query_program_version(program: str) -> str | None:
    """Return the first version number in the output of ``PROGRAM --version``; None when it does
    not run."""
    match = _VERSION.search(get_output_if_installed(program, "--version").replace("(R)", ""))
    return match.group() if match else None


def get_output_if_installed(program: str, *arguments: str) -> str:
    """Return the output of a program on PATH; empty when it is missing."""
    path = find_program(program)
    return run_cached_for_output(path, *arguments) if path else ""


@cache
def run_cached_for_output(*argv: str) -> str:
    """Output of a short command, including stderr; empty when it fails or takes too
    long. Cached."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20.0,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def run_with_time_limit(
    argv: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None
) -> tuple[int, list[str], list[str]]:
    """Return (exit code, non-empty lines of stdout, of stderr). Raises OSError or
    subprocess.SubprocessError."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=limit_s,
        check=False,
        env=environment,
    )
    texts = (stream.decode(errors="replace").split("\n") for stream in (done.stdout, done.stderr))
    output, err = ([text for line in lines if (text := line.strip())] for lines in texts)
    return done.returncode, output, err


def has_gpu_driver() -> bool:
    """Return whether an NVIDIA driver is loaded, even in a container without nvidia-smi.
    /dev/nvidiactl proves nothing: Debian's ncu 2022.3 creates it on a machine without a GPU."""
    return Path("/proc/driver/nvidia/version").exists() or bool(
        get_output_if_installed("nvidia-smi", "--list-gpus")
    )


def is_package_importable(name: str) -> bool:
    """Return whether ``import name`` can work; does not import it."""
    return importlib.util.find_spec(name) is not None


def list_missing_tool_and_torch(tool: RequiredTool | None = None) -> tuple[RequiredTool, ...]:
    """Return those of ``tool`` and TORCH that are not installed."""
    lacking = () if tool is None or find_program(tool.name) else (tool,)
    return lacking if is_package_importable("torch") else (*lacking, TORCH)
