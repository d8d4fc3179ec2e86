"""Times of layers that a program read off the host's clock: summaries named "host_time:LAYER:DIRECTION", in nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from perfctl.records.run import Run

HOST_TIME = "host_time"


@dataclass(frozen=True, slots=True)
class HostTime:
    """One such time."""

    layer: str
    direction: str
    run: Run
    nanoseconds: float
    macs: int | None
    """Multiply-adds of the layer on paper, in that direction at that batch size; None where no formula gives them."""

    @property
    def flops_per_s(self) -> float | None:
        """What the time would mean if it were a kernel's. 1 multiply-add = 2 FLOPs."""
        return 2 * self.macs / self.nanoseconds * 1e9 if self.macs and self.nanoseconds else None


def host_times(runs: Iterable[Run]) -> Iterator[HostTime]:
    """Every time of the host's clock that came with the runs."""
    for run in runs:
        for item in run.report.summaries:
            head, _, place = item.name.partition(":")
            layer, _, direction = place.rpartition(":")
            if head == HOST_TIME and layer and item.value is not None:
                yield HostTime(layer, direction, run, item.value, macs_of(run, layer, direction))


def macs_of(run: Run, layer: str, direction: str = "forward") -> int | None:
    """Multiply-adds of a layer on paper; None where a formula is missing, or the layer."""
    known = [call.macs for call in run.layer_calls if (call.layer, call.direction) == (layer, direction)]
    return sum(one or 0 for one in known) if known and None not in known else None
