"""Starts the watcher that outlives perfctl, and tells it what it cannot find by itself. :mod:`guard` is what it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfctl.orchestrator.launch import adoption, guard


@contextmanager
def watching(mark: str, folder: Path) -> Iterator[Callable[[], None]]:
    """A watcher that ends the run should perfctl die: it reads a pipe that only perfctl holds open.

    What is yielded tells it of orphans that it could not find by their mark.
    """
    with adoption.starting() as own:
        watcher = subprocess.Popen(
            (sys.executable, "-I", "-S", guard.__file__, mark, str(folder)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name != guard.VARIABLE},
            start_new_session=True,
        )
        own.add(watcher.pid)
    told: set[int] = set()

    def tell() -> None:
        orphans = {pid: start for pid, start in adoption.living(mark).items() if pid not in told}
        told.update(orphans)
        if orphans and watcher.stdin is not None:
            with suppress(BrokenPipeError):  # somebody killed the watcher
                watcher.stdin.write(b"".join(b"%d %d\n" % known for known in orphans.items()))
                watcher.stdin.flush()

    with watcher:
        try:
            yield tell
        finally:
            watcher.kill()
