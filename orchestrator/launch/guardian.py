"""Start the watchdog of a run, and tell it which unmarked processes belong to the run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfctl.orchestrator.launch import adoption, guard


@contextmanager
def watchdog(mark: str, folder: Path) -> Iterator[Callable[..., None]]:
    """Run a watchdog that ends the run if perfctl dies: it reads a pipe that only perfctl holds open.

    Yields a function that tells it of the run's orphans, and of its first process when called with that id.
    """
    with adoption.starting() as own_children:
        process = subprocess.Popen(
            (sys.executable, "-I", "-S", guard.__file__, mark, str(folder)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name != guard.VARIABLE},
            start_new_session=True,
        )
        own_children.add(process.pid)
    known: set[int] = set()

    def tell(first: int | None = None) -> None:
        found = adoption.orphans(mark)
        if first is not None and (stat := guard.parent_and_start(str(first))) is not None:
            found = {first: stat[1], **found}
        lines = b"".join(b"%d %d\n" % (pid, start) for pid, start in found.items() if pid not in known)
        known.update(found)
        if lines and process.stdin is not None:
            with suppress(BrokenPipeError):  # somebody killed the watchdog
                process.stdin.write(lines)
                process.stdin.flush()

    with process:
        try:
            yield tell
        finally:
            process.kill()
