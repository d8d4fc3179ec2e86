"""Launch-bound steps: the GPU ends a kernel before the host has launched the next."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from perfctl.orchestrator.analyse.usage.busy import end_of
from perfctl.orchestrator.analyse.verdicts.rule import percent
from perfctl.orchestrator.analyse.verdicts.timeline.records import Piece, RunVerdict, Timeline, milliseconds
from perfctl.records.report import Kernel

QUEUED_NS = 2_000
"""A kernel that waits in a queue starts once the one before it has drained and its own blocks were dispatched, 1 to 2 us: a gap
up to this is not the host's, and a graph does not remove it."""
LAUNCH_NS = 200_000
"""A gap up to this is the launch of the next operator: 5 to 50 us in eager PyTorch, and longer under a profiler that records
shapes and stacks. A longer gap has other causes."""
WORTH = 0.2
"""A smaller share of the step makes no verdict: without these gaps the step would be less than 1 / (1 - 0.2) = 1.25 times as fast,
and a profiler that adds 2 us to launches of 8 us makes a fifth of a launch-bound step by itself."""
FEW = 20
"""With fewer launches a step there is no launching in a row."""
TODO = (
    "Capture the step as a CUDA graph (torch.cuda.graph, torch.compile with mode='reduce-overhead'), or give each launch more "
    "work: larger batches, fused operators"
)


def launch_bound(found: Timeline) -> RunVerdict | None:
    """Idle time in short gaps between kernels of a step. Not for steps whose kernels a graph launched.

    The share is an upper bound of what a graph saves: the whole of these gaps over the time of the steps.
    """
    if _of_graphs(found):
        return None
    gaps = [gap for piece in found.pieces for gap in _gaps(found, piece)]
    launches = sum(len(piece.kernels) for piece in found.pieces)
    idle, share = sum(gaps), sum(gaps) / found.length
    if share < WORTH or launches < FEW * len(found.pieces) or 2 * len(gaps) < launches:
        return None
    text = (
        f"Launch bound: of the {milliseconds(found.length)} of {found.whole}, {milliseconds(idle)} ({percent(share)}) is idle in "
        f"{len(gaps):,} gaps of {QUEUED_NS / 1000:g} to {LAUNCH_NS / 1000:g} µs between {launches:,} kernels, as where each ends "
        f"before the host has launched the next. A CUDA graph would save {percent(share)} at most"
    )
    slower = ", less where the profiler itself slowed the launches" if found.run.profiler != "none" else ""
    return RunVerdict("launch bound", f"{text}{slower}.", share, "the time of the steps", f"{TODO}.", "plausible")


def _gaps(found: Timeline, piece: Piece) -> list[int]:
    """Lengths of the gaps that are launches, in ns; what follows a copy to the host is the wait of ``host_sync``."""
    to_host = {end_of(copy) for copy in found.copies if copy.kind == "DtoH"}
    return [
        after[0] - before[1] for before, after in pairwise(found.busy(piece))
        if QUEUED_NS < after[0] - before[1] <= LAUNCH_NS and before[1] not in to_host
    ]  # fmt: skip


def _of_graphs(found: Timeline) -> bool:
    """At least half of the kernels were launched by graphs: several kernels share one call, or name their graph."""
    kernels = [kernel for piece in found.pieces for kernel in piece.kernels]
    calls: Counter[int | None] = Counter(kernel.correlation for kernel in kernels if kernel.correlation is not None)
    return 2 * sum(_in_graph(kernel, calls) for kernel in kernels) >= len(kernels)


def _in_graph(kernel: Kernel, calls: Counter[int | None]) -> bool:
    return kernel.graph_id is not None or calls[kernel.correlation] > 1
