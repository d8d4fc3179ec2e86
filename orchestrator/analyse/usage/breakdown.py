"""What a GPU did with the time of a run: compute, communicate, copy, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.kernels.names import family
from perfctl.orchestrator.analyse.usage.busy import kernels_in_window, spans, union
from perfctl.records.report import Copy, Kernel
from perfctl.records.run import Run

COMPUTE, COMMUNICATION, COPIES, IDLE = "compute", "communication", "copies", "idle"
PARTS = (COMPUTE, COMMUNICATION, COPIES, IDLE)
COLLECTIVE = "collective"
"""Family of the kernels that exchange data between GPUs (NCCL, RCCL), by their names."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One run."""

    run: Run
    shares: Mapping[str, float]
    """Part of PARTS -> share (0..1) of the span; they add up to 1. Communication counts where no compute kernel runs, copies
    where no kernel runs: what is hidden costs no time. Compute and communication are the share with a kernel."""
    window: str
    """The span in words, as of ``busy``."""
    gpus: int
    """GPUs that the shares are the plain mean of."""


def breakdown(run: Run) -> Breakdown | None:
    """None under ncu, without kernels, and where one has no start or no duration."""
    devices, window, words = kernels_in_window(run)
    span = window[1] - window[0]
    if not devices or span <= 0:
        return None
    found = [_of_device(kernels, _copies(run, device), window) for device, kernels in devices.items()]
    shares = {part: sum(one[part] for one in found) / (span * len(found)) for part in PARTS}
    return Breakdown(run, shares, words, len(found))


def _copies(run: Run, device: int) -> list[Copy]:
    return [item for item in run.report.copies if item.device_index in (None, device)]


def _of_device(kernels: Sequence[Kernel], copies: Iterable[Copy], window: tuple[int, int]) -> dict[str, int]:
    """Part -> nanoseconds."""
    compute = _covered([one for one in kernels if family(one.name) != COLLECTIVE], window)
    running = _covered(kernels, window)
    working = _covered([*kernels, *copies], window)
    return {
        COMPUTE: compute, COMMUNICATION: running - compute, COPIES: working - running,
        IDLE: window[1] - window[0] - working,
    }  # fmt: skip


def _covered(items: Sequence[Kernel | Copy], window: tuple[int, int]) -> int:
    return union(*spans(items), window)[0]
