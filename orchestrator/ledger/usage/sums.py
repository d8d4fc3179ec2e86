"""Sums by name in a report without single launches: of kernels, copies, calls and events that break
a rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from perfctl.records.report import Operation
from perfctl.records.run import Run


class SumGroup(NamedTuple):
    """Operations of one kind, whose times add up."""

    title: str
    quantity: str
    """What the times are of; "" where rows overlap."""
    singular: str
    plural: str
    categories: tuple[str, ...]


KERNELS = SumGroup(
    "Kernels",
    "the kernel time",
    "launch",
    "launches",
    ("cuda_gpu_kern_sum", "cuda_gpu_sum", "cuda_api_gpu_sum", "kernel"),
)
COPIES = SumGroup(
    "Copies and memsets",
    "the time of copies",
    "copy",
    "copies",
    ("cuda_gpu_mem_time_sum", "memory_copy"),
)
CALLS = SumGroup(
    "CUDA calls",
    "the host time of CUDA calls",
    "call",
    "calls",
    ("cuda_api_sum", "cuda_api_trace", "cuda_api"),
)
SYSTEM_CALLS = SumGroup(
    "Operating system calls",
    "the time in operating system calls",
    "call",
    "calls",
    ("osrt_sum", "syscall_sum"),
)
OTHERS = SumGroup("Framework operators", "", "call", "calls", ())
GROUPS = (
    KERNELS,
    COPIES,
    CALLS,
    SumGroup("HIP calls", "the host time of HIP calls", "call", "calls", ("hip_api",)),
    SumGroup(
        "Copies that block the host",
        "the time of copies that block the host",
        "copy",
        "copies",
        ("cuda_memcpy_sync",),
    ),
    SumGroup(
        "Asynchronous copies of pageable memory",
        "the time of asynchronous copies of pageable memory",
        "copy",
        "copies",
        ("cuda_memcpy_async",),
    ),
    SumGroup(
        "Memsets that block the host",
        "the time of memsets that block the host",
        "memset",
        "memsets",
        ("cuda_memset_sync",),
    ),
    SumGroup(
        "Calls that wait for the GPU",
        "the time of calls that wait for the GPU",
        "call",
        "calls",
        ("cuda_api_sync",),
    ),
    SumGroup("Idle gaps of the GPU", "the time of idle gaps", "gap", "gaps", ("gpu_gaps",)),
    SYSTEM_CALLS,
    SumGroup("Ranges", "", "time", "times", ("nvtx_sum", "nvtx_pushpop_sum", "nvtx_startend_sum")),
    OTHERS,
)
"""In the order in which they are shown. Categories are those of the profilers."""
_GROUPS = {category: group for group in GROUPS for category in group.categories}
_COPY_PREFIXES = ("[CUDA mem", "[CUDA Unified", "[Unified")


def group_summed_operations(runs: Iterable[Run]) -> dict[SumGroup, list[tuple[Run, Operation]]]:
    """Return the operations of runs by their group, in the order in which groups are shown: by
    category, or by name where a sum mixes kernels, copies and calls."""
    groups: dict[SumGroup, list[tuple[Run, Operation]]] = defaultdict(list)
    for run in runs:
        for operation in run.report.operations:
            group = _GROUPS.get(operation.category or "", OTHERS)
            if group is KERNELS and operation.name.startswith(_COPY_PREFIXES):
                group = COPIES
            elif group is KERNELS and operation.cpu_ns is not None:
                group = CALLS
            groups[group].append((run, operation))
    return {group: groups[group] for group in GROUPS if group in groups}


def get_host_else_device_ns(operation: Operation) -> int | None:
    """Return the time of a sum: that on the host, else that on the device."""
    return operation.device_ns if operation.cpu_ns is None else operation.cpu_ns


def sum_operation_ns_by_run_id(pairs: Iterable[tuple[Run, Operation]]) -> dict[int, int]:
    """Return the id of each run -> the time of its operations."""
    totals: dict[int, int] = defaultdict(int)
    for run, operation in pairs:
        totals[run.id] += get_host_else_device_ns(operation) or 0
    return totals
