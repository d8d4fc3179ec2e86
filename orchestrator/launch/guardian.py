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
def watching(mark: str, folder: Path) -> Iterator[Callable[..., None]]:
    """A watcher that ends the run should perfctl die: it reads a pipe that only perfctl holds open.

    What is yielded tells it of the first process of the run, when it is given its id, and of orphans that it could not
    find by their mark.
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

    def tell(first: int | None = None) -> None:
        news = adoption.living(mark)
        if first is not None and (facts := guard.parent_and_start(str(first))) is not None:
            news = {first: facts[1], **news}
        lines = b"".join(b"%d %d\n" % known for known in news.items() if known[0] not in told)
        told.update(news)
        if lines and watcher.stdin is not None:
            with suppress(BrokenPipeError):  # somebody killed the watcher
                watcher.stdin.write(lines)
                watcher.stdin.flush()

    with watcher:
        try:
            yield tell
        finally:
            watcher.kill()
