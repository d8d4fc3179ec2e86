"""How busy the GPU was and where it waited, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from perfctl.orchestrator.analyse.memory_use import Fits, fits
from perfctl.orchestrator.analyse.run_usage import RunUsage
from perfctl.orchestrator.analyse.utilisation_ways import BUSY, busy_from
from perfctl.orchestrator.report.foreign_findings import Finding
from perfctl.orchestrator.report.numbers import percent, size, time

SECTION = "utilisation"
MUCH_IDLE = 0.2
"""A larger share of time without a kernel has its causes told."""


def busy_findings(runs: Sequence[RunUsage]) -> list[Finding]:
    """From which batch size on the GPU is busy, where it waits before, and what fits."""
    found: list[Finding] = []
    since = busy_from([run.ways for run in runs])
    if since is not None:
        batch, is_busy = since
        at = [share for run in runs if run.run.batch_size == batch and (share := _best(run)) is not None]
        there = f": {percent(at[0])} there" if at else ""
        if is_busy:
            text = f"The GPU is busy ({percent(BUSY)} of the time or more) from batch {batch} on{there}."
        else:
            text = f"The GPU is busy at no measured batch size ({percent(BUSY)} of the time or more), up to batch {batch}{there}."
        found.append(Finding(text, SECTION))
    found += _idle_finding(runs)
    held = fits([run.memory for run in runs])
    return [*found, Finding(_fits_text(held), "memory")] if held else found


def _best(run: RunUsage) -> float | None:
    item = run.ways
    return item.kernels.value if item.kernels.value is not None else item.nvml.value


def _idle_finding(runs: Sequence[RunUsage]) -> list[Finding]:
    """What most of the waiting is, at the batch size with the largest share of it."""
    shares = [
        (sum(item.by_cause.values()) / item.window_ns, item) for run in runs for item in run.idle if item.window_ns
    ]
    if not shares:
        return []
    share, worst = max(shares, key=lambda pair: pair[0])
    if share < MUCH_IDLE:
        return []
    cause, length = max(worst.by_cause.items(), key=lambda pair: pair[1])
    text = (
        f"At batch {worst.run.batch_size} no kernel runs in {percent(share)} of the time; {time(length)} of "
        f"{time(sum(worst.by_cause.values()))} of it is {_SAID[cause]}."
    )
    return [Finding(text, SECTION)]


_SAID = {
    "loading data": "spent loading data",
    "copy": "spent copying",
    "synchronising": "spent in synchronising calls",
    "launches one by one": "the time from one short kernel to the next",
    "host": "waiting for the host, whose launches came late or which waited itself",
}


def _fits_text(held: Fits) -> str:
    return (
        f"Batch {held.batch:,} is the largest that fits into {size(held.limit)}, on a straight line through the reserved "
        f"peaks of batches {', '.join(map(str, held.batches))}: {size(held.fixed)} and {size(held.per_sample)} a sample."
    )
