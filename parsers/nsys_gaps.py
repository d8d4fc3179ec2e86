"""What an nsys export does not say, and why."""

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
    """One Gap a reason."""
    count = len(kernels.around.innermost)
    if versions(database)[0] is None:
        yield Gap("profiler_version", "not_available", "nsys wrote no version into its exports up to 2021.3")
    yield from _kernel_gaps(database, count)
    if not len(ranges.kind):
        yield Gap(
            "range",
            "not_collected",
            "there is no NVTX range: nothing was annotated while the profiler looked, or NVTX was not traced"
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
        yield Gap("kernel", "not_collected", "CUDA calls were traced, but no kernel ran while the profiler looked")
    elif not count:
        yield Gap(
            "kernel",
            "not_collected",
            "there is no CUDA activity: the program did not use a GPU, CUDA was not traced, or the tracing failed"
            " (see what nsys itself said)",
        )
    if not (count or traced or database.filled(MEMCPY) or database.filled(MEMSET)):
        yield Gap("copy", "not_collected", "there is no CUDA activity, so copies were not seen either")


def _layer_gaps(database: Database, ranges: RangeTable, kernels: Launched) -> Iterator[Gap]:
    count, unlaunched = len(kernels.around.innermost), kernels.unlaunched
    if not database.filled(RUNTIME):
        reason = "CUDA calls were not recorded, so no kernel can be tied to a range (nsys profile --trace=cuda,nvtx)"
        yield Gap("layer", "not_collected", reason)
        return
    if unlaunched:
        yield Gap("layer", "not_available", f"{unlaunched} of {count} kernels have no launch call in the report")
    if not ranges.count(PUSH_POP):
        yield Gap("layer", "not_collected", "there is no push/pop NVTX range that a launch could be inside of")
    elif not any(label.layer for label in ranges.labels):
        reason = 'no range names a layer as perfctl does ("conv2:forward"): record the program with perfctl'
        yield Gap("layer", "not_collected", reason)
    elif outside := int((kernels.around.layer == NOBODY).sum()) - unlaunched:
        yield Gap(
            "layer", "not_available", f"{outside} of {count} kernels were launched outside of every layer's range"
        )
    if not any(label.step is not None for label in ranges.labels):
        yield Gap("step", "not_collected", 'no range names a step as perfctl does ("perfctl:step:3")')
