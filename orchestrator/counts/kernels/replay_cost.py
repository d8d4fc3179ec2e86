"""What ncu will replay, and about how long that takes, from the launches of one plain step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.counts.kernels.pairing import inside
from perfctl.records.report import Kernel

SECONDS_A_REPLAY = (0.002, 0.02)
"""Assumed: what ncu adds to each replay of a launch (memory put back, caches flushed,
counters read)."""
SLOWER = (1.0, 3.0)
"""Assumed: how much longer a kernel itself takes with cold caches and at base clocks."""
TEN = 10
"""Steps that other profilers measure by default."""
COUNTERS_A_PASS = 5 / 3
"""5 counters (three of executed instructions, two of DRAM traffic) took 3 passes in a public log
of ncu."""


@dataclass(frozen=True, slots=True)
class ReplayCost:
    """Of a run under ncu at one batch size."""

    launches: int
    all_launches: int
    steps: int
    passes: int
    seconds: tuple[float, float]
    """Least and most, added to a run without ncu."""
    repeated: int = 0
    """Launches of a step that repeat another with the same kernel, grid and layer shapes."""

    @property
    def replays(self) -> int:
        return self.launches * self.steps * self.passes


def passes(counters: int) -> int:
    """How often ncu will run each launch for that many counters: an assumption, ncu itself finds
    out on the GPU."""
    return max(1, math.ceil(counters / COUNTERS_A_PASS))


def replay_cost(
    step: Iterable[Kernel], *, layers: Sequence[str], steps: int, counters: int, repeated: int = 0
) -> ReplayCost:
    """``step``: the launches of one plain step, timed; ``layers``: those asked for, empty for all;
    ``repeated``: how many launches repeat another."""
    kernels = list(step)
    asked = [kernel for kernel in kernels if inside(kernel.layer, layers)]
    times = passes(counters)
    kernel_s = sum(kernel.duration_ns or 0 for kernel in asked) / 1e9
    span = zip(SLOWER, SECONDS_A_REPLAY, strict=True)
    least, most = (steps * times * (kernel_s * slower + len(asked) * each) for slower, each in span)
    return ReplayCost(len(asked), len(kernels), steps, times, (least, most), repeated)


def cost_lines(cost: ReplayCost, batch_size: int, layers: Sequence[str]) -> list[str]:
    """The estimate and its assumptions, in words."""
    among = f" in {', '.join(layers)} (of {cost.all_launches:,})" if layers else ""
    least, most = map(_duration, cost.seconds)
    steps = f"{cost.steps} {'step' if cost.steps == 1 else 'steps'}"
    saved = [
        (
            f"Counts repeat from step to step: {TEN} steps would take "
            f"{cost.replays // cost.steps * TEN:,} replays"
        )
    ] * (cost.steps < TEN)
    if cost.repeated:
        left = (cost.launches - cost.repeated) * cost.steps * cost.passes
        saved.append(
            f"{cost.repeated:,} launches repeat another with the same kernel, grid and layer "
            f"shapes: --launches distinct leaves {left:,} replays, {1 - left / cost.replays:.0%} "
            "fewer"
        )
    return [
        (
            f"batch {batch_size}: {cost.launches:,} launches a step{among} x {steps} x "
            f"{cost.passes} passes = {cost.replays:,} replays, about {least} to {most} longer than "
            "without ncu"
        ),
        (
            "The launches were counted in one plain step under torch.profiler. Assumed: "
            f"{cost.passes} passes (in a public log 5 counters took 3; ncu prints the true number) "
            "and 2 to 20 ms of ncu's own for each replay"
        ),
        *saved,
    ]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
