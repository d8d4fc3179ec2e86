"""Notice when a script uses torch.profiler, and give way: two at once crash torch 2.15. Imports torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd.profiler import profile

SCRIPTS_OWN = (
    "the script runs torch.profiler itself, and two cannot run at once, so steps are measured only while it is off. "
    "Use perfctl ingest for the script's own trace, or perfctl nsys"
)


class OtherProfilers:
    """Tracks whether a profiler of the script is prepared or running; calls ``begins`` before one is prepared."""

    def __init__(self, begins: Callable[[], None]) -> None:
        self._begins = begins
        self._running: set[int] = set()
        self._ours = False
        self._undo: list[Callable[[], None]] = []

    @property
    def running(self) -> bool:
        return bool(self._running)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Profilers started or stopped in the block are perfctl's."""
        before, self._ours = self._ours, True
        try:
            yield
        finally:
            self._ours = before

    def start(self) -> None:
        self._before("_prepare_trace", self._prepared)
        self._before("__exit__", self._left)

    def stop(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _prepared(self, which: int) -> None:
        self._begins()
        self._running.add(which)

    def _left(self, which: int) -> None:
        self._running.discard(which)

    def _before(self, name: str, then: Callable[[int], None]) -> None:
        function = getattr(profile, name)

        @functools.wraps(function)
        def wrapped(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._ours:
                then(id(profiler))
            return function(profiler, *args, **kwargs)

        setattr(profile, name, wrapped)
        self._undo.append(lambda: setattr(profile, name, function))
