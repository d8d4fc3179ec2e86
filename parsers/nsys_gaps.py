"""Finds what an nsys export does not contain, and why."""

from __future__ import annotations

from collections.abc import Iterator

from perfctl.parsers.attribution import NOBODY
from perfctl.parsers.nsys_devices import versions
from perfctl.parsers.nsys_launches import Launched
from perfctl.parsers.nsys_ranges import PUSH_POP, RangeTable
from perfctl.parsers.nsys_tables import GRAPH, MEMCPY, MEMSET, RUNTIME
from perfctl.parsers.records import Gap
from perfctl.parsers.text.sqlite import Database


def find_gaps(database: Database, ranges: RangeTable, kernels: Launched) -> Iterator[Gap]:
    """Yield one Gap per reason."""
    count = len(kernels.around.innermost)
    if versions(database)[0] is None:
        yield Gap("profiler_version", "not_available", "nsys exports up to 2021.3 do not state the version")
    yield from _kernel_gaps(database, count)
    if not len(ranges.kind):
        yield Gap(
            "range",
            "not_collected",
            "no NVTX range was recorded: the program has no annotations, or NVTX was not traced"
            " (nsys profile --trace=nvtx,...)",
        )
    if unended := ranges.unended():
        yield Gap(
            "range:duration", "not_available", f"{unended} of {len(ranges.kind)} ranges never ended in the capture"
        )
    if count:
        yield from _layer_gaps(database, ranges, kernels)


def _kernel_gaps(database: Database, count: int) -> Iterator[Gap]:
    traced = database.filled(RUNTIME)
    if database.filled(GRAPH):
        reason = "CUDA graphs were recorded as a whole, without their kernels: record with --cuda-graph-trace=node"
        yield Gap("kernel", "not_collected", reason)
    elif not count and traced:
        yield Gap("kernel", "not_collected", "CUDA calls were traced, but no kernel ran during the capture")
    elif not count:
        yield Gap(
            "kernel",
            "not_collected",
            "no CUDA activity was recorded: the program did not use a GPU, CUDA was not traced, or the tracing failed"
            " (see the messages of nsys)",
        )
    if not (count or traced or database.filled(MEMCPY) or database.filled(MEMSET)):
        yield Gap("copy", "not_collected", "no CUDA activity was recorded, so no copies either")


def _layer_gaps(database: Database, ranges: RangeTable, kernels: Launched) -> Iterator[Gap]:
    count, unlaunched = len(kernels.around.innermost), kernels.unlaunched
    if not database.filled(RUNTIME):
        reason = (
            "CUDA calls were not recorded, so no kernel can be assigned to a range (nsys profile --trace=cuda,nvtx)"
        )
        yield Gap("layer", "not_collected", reason)
        return
    if unlaunched:
        yield Gap("layer", "not_available", f"{unlaunched} of {count} kernels have no launch call in the report")
    if not ranges.count(PUSH_POP):
        yield Gap(
            "layer", "not_collected", "no push/pop NVTX range was recorded, so no launch can be assigned to a layer"
        )
    elif not any(label.layer for label in ranges.labels):
        reason = 'no range names a layer as perfctl does ("conv2:forward"): record the program with perfctl'
        yield Gap("layer", "not_collected", reason)
    elif outside := int((kernels.around.layer == NOBODY).sum()) - unlaunched:
        yield Gap(
            "layer", "not_available", f"{outside} of {count} kernels were launched outside of every layer's range"
        )
    if not any(label.step is not None for label in ranges.labels):
        yield Gap("step", "not_collected", 'no range names a step as perfctl does ("perfctl:step:3")')
