"""What a command costs, and a browser for pages: shared by the scripts of this folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

WINDOW = {"width": 1280, "height": 900}


class CommandFailedError(Exception):
    """A command ended with an exit code that was not expected."""


class Spent(NamedTuple):
    """What one process took."""

    seconds: float
    """CPU time, user and system, of the process and its children."""
    waited: float
    """Seconds until it ended."""
    megabytes: float
    """Peak memory of one process."""


def spend(
    command: Sequence[str],
    folder: Path | None = None,
    *,
    allowed: Sequence[int] = (0,),
    more: Mapping[str, str] | None = None,
) -> Spent:
    """Run a command. Raises CommandFailedError with the end of what it wrote to stderr."""
    # without its cached bytecode a program would compile itself anew each time
    environment = {**os.environ, **(more or {})}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        waited = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in allowed:
            errors.seek(0)
            text = errors.read().decode(errors="replace").strip()[-200:]
            raise CommandFailedError(f"exit code {process.returncode}: {text}")
    return Spent(usage.ru_utime + usage.ru_stime, waited, usage.ru_maxrss / 1024)


@contextmanager
def open_chromium(script: str) -> Iterator[Callable[[], Any] | None]:
    """Yield the function that starts headless Chromium; None, after a line that says so, if it is
    not installed."""
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        print(f"{script}: not measured: chromium or playwright is not installed")
        yield None
        return
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-gpu"]
    with sync_playwright() as playwright:
        yield lambda: playwright.chromium.launch(executable_path=chromium, args=arguments)
