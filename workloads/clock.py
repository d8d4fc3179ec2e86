"""Time steps and phases: with CUDA events on a GPU, with the monotonic clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from perfctl.parsers.records import Step


class Clock(Protocol):
    """Sets marks, which are cheap and never wait; their times are read after ``wait``."""

    kind: str
    """device_events or monotonic."""

    def mark(self) -> Any: ...

    def wait(self) -> None:
        """Wait for the device to reach every mark."""
        ...

    def start_ns(self, mark: Any) -> int:
        """On the host's monotonic clock."""
        ...

    def between_ns(self, start: Any, end: Any) -> int: ...


class MonotonicClock:
    """For a CPU, where a call returns when its operation is complete."""

    kind = "monotonic"

    def mark(self) -> int:
        return time.monotonic_ns()

    def wait(self) -> None:
        pass

    def start_ns(self, mark: int) -> int:
        return mark

    def between_ns(self, start: int, end: int) -> int:
        return end - start


class EventClock:
    """For a GPU: events in the stream, so that no phase waits for the one before."""

    kind = "device_events"

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._base = self.mark()
        torch.cuda.synchronize()
        self._base_ns = time.monotonic_ns()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        torch.cuda.synchronize()

    def start_ns(self, mark: torch.cuda.Event) -> int:
        return self._base_ns + self.between_ns(self._base, mark)

    def between_ns(self, start: torch.cuda.Event, end: torch.cuda.Event) -> int:
        # elapsed_time returns milliseconds with a resolution of about half a microsecond.
        milliseconds: float = start.elapsed_time(end)
        return round(milliseconds * 1e6)


def make_clock(device: str) -> Clock:
    """The clock for ``device``."""
    return EventClock() if device == "cuda" else MonotonicClock()


class Timeline:
    """Collects marks while steps run, and turns them into Step rows afterwards."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._spans: list[tuple[int, str, Any, Any]] = []
        self._losses: dict[tuple[int, str], Tensor | float] = {}
        self._accuracies: dict[tuple[int, str], float] = {}

    @contextmanager
    def time(self, number: int, phase: str) -> Iterator[None]:
        """Time a block; a block that raises leaves no row."""
        start = self.clock.mark()
        yield
        self._spans.append((number, phase, start, self.clock.mark()))

    def note(self, number: int, phase: str, loss: Tensor | float | None, accuracy: float | None = None) -> None:
        """Set a row's loss (a scalar, left on its device until ``rows``) and accuracy (0..1)."""
        if loss is not None:
            self._losses[number, phase] = loss.detach() if isinstance(loss, Tensor) else loss
        if accuracy is not None:
            self._accuracies[number, phase] = accuracy

    def rows(self) -> list[Step]:
        """The timed steps and phases, by start time."""
        self.clock.wait()
        rows = []
        for number, phase, start, end in self._spans:
            loss = self._losses.get((number, phase))
            rows.append(
                Step(
                    number=number,
                    phase=phase,
                    start_ns=self.clock.start_ns(start),
                    duration_ns=self.clock.between_ns(start, end),
                    loss=None if loss is None else float(loss),
                    accuracy=self._accuracies.get((number, phase)),
                )
            )
        return sorted(rows, key=lambda row: (row.start_ns or 0, -(row.duration_ns or 0)))
