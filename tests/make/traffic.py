"""Work under made-up roofs: its FLOPs, bytes and time."""

from __future__ import annotations

from typing import Any

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.hardware.peaks import CachePeak, DevicePeaks
from perfctl.orchestrator.ledger.roofline import MeasuredWork

PEAKS = DevicePeaks(
    "X",
    "made up",
    "published",
    {"fp32": 10e12, "tensor tf32": 100e12},
    1e12,
    caches={"L2": CachePeak(4e12, "made up"), "t": CachePeak(5e12, "its own")},
)
"""Ridge of fp32 at 10 FLOP per byte."""


def counted(value: float, **facts: Any) -> Figure:
    return Figure(value, "counted", **facts)


def traffic(flops: float = 2e9, dram: float | Figure = 5e8, **changes: Any) -> MeasuredWork:
    """Counted fp32 FLOPs, half of those on paper, and bytes of DRAM, in 1 ms: a fifth of the peak,
    half of the bandwidth."""
    fields: dict[str, Any] = {
        "level": "layer",
        "name": "conv2 forward",
        "batch": 64,
        "layer": "conv2",
        "direction": "forward",
        "paths": {"fp32": counted(flops)} if flops else {},
        "executed": counted(flops),
        "estimated": 2 * flops,
        "dram": dram if isinstance(dram, Figure) else counted(dram),
        "time_ns": 1e6,
        "basis": "kernels, nsys",
        "trusted": True,
        "launches": 1,
        "counted_launches": 1,
        "precision": "fp32",
    }
    return MeasuredWork(**(fields | changes))
