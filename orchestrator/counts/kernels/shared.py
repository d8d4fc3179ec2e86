"""Launches of fused kernels that belong to several layers, as one for each layer with its share of
the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from perfctl.records.report import Kernel, KernelPart, Report

SHARED = "shared"
"""``Kernel.layer_source`` of a fused kernel that belongs to several layers."""
SHARED_OUT = "fused kernels are shared out between their layers by the operations that were fused"


def by_layer(report: Report) -> list[Kernel] | None:
    """The launches of a report, those that belong to several layers once for each, one after the
    other. None where no launch does.

    The parts keep the number of their launch and have the source SHARED: their times are estimates.
    """
    parts: defaultdict[int, list[KernelPart]] = defaultdict(list)
    for part in report.kernel_parts:
        parts[part.launch].append(part)
    if not parts:
        return None
    return [
        one for kernel in report.kernels for one in _parts_of(kernel, parts.get(kernel.launch, ()))
    ]


def _parts_of(kernel: Kernel, parts: Sequence[KernelPart]) -> Iterator[Kernel]:
    if not parts:
        yield kernel
        return
    before = 0.0
    for part in parts:
        start = (
            None
            if kernel.start_ns is None
            else kernel.start_ns + round(before * (kernel.duration_ns or 0))
        )
        took = None if kernel.duration_ns is None else part.share * kernel.duration_ns
        yield kernel._replace(
            layer=part.layer, direction=part.direction, start_ns=start, duration_ns=took
        )
        before += part.share
