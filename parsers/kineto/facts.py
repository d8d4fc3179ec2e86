"""Facts about a whole Kineto trace: devices, software, memory peaks, and why figures are missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from perfctl.parsers.kineto.events import Events, whole
from perfctl.records.report import Device, Diagnostic, Gap, Kernel, MemoryFigure

_FLAGS = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
_VERSIONS = (
    "cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version", "hip_driver_version",
    "roctracer_version",
)  # fmt: skip
_TORCH = ("torch_version", "pytorch_version", "PyTorch version")
_OTHERS = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "WARNING", "ERROR")
METADATA = frozenset((*_FLAGS, *_VERSIONS, *_TORCH, *_OTHERS))
"""The members of the trace that are read. Others may name jobs, users and hosts, and are dropped."""

_MAX_MESSAGES = 20
_EPOCH_NS = 946_684_800 * 10**9
"""1 January 2000: times before it do not count from 1970."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The fields of Report of the same names."""

    form: str
    tool_version: str | None
    devices: tuple[Device, ...]
    environment: dict[str, str]
    memory: tuple[MemoryFigure, ...]
    gaps: tuple[Gap, ...]
    diagnostics: tuple[Diagnostic, ...]
    started_at: str | None
    duration_ns: int | None


def describe(events: Events, metadata: dict[str, Any], kernels: list[Kernel], repaired: bool) -> Facts:
    """Collect the facts that hold for the whole trace."""
    torch = next((str(metadata[key]) for key in _TORCH if metadata.get(key)), None)
    begin, end = _extent(events)
    base = whole(metadata.get("baseTimeNanoseconds")) or 0
    return Facts(
        form="Kineto trace, " + _what_is_in(events),
        tool_version=torch,
        devices=_devices(events, metadata, kernels),
        environment=_environment(metadata, torch),
        memory=_peaks(events),
        gaps=tuple(_gaps(events, kernels)),
        diagnostics=tuple(_diagnostics(events, metadata, repaired)),
        started_at=_utc(base + begin) if begin is not None else None,
        duration_ns=None if begin is None or end is None else end - begin,
    )


def _what_is_in(events: Events) -> str:
    on_gpu = bool(events.kernels or events.copies)
    if on_gpu and events.spans:
        return "CPU and GPU"
    if on_gpu:
        return "GPU only"
    return "CPU only" if events.spans else "no operations and no kernels"


def _extent(events: Events) -> tuple[int | None, int | None]:
    """Begin and end of the capture, ns on the trace's clock."""
    if events.window is not None:
        return events.window
    device = [*events.kernels, *events.copies]
    begins = chain((span.start for span in events.spans), (event.start for event in device if event.start is not None))
    ends = chain(
        (span.end or span.start for span in events.spans),
        (event.start + (event.duration or 0) for event in device if event.start is not None),
    )
    return min(begins, default=None), max(ends, default=None)


def _utc(since_1970: int) -> str | None:
    if not _EPOCH_NS < since_1970 < 4 * _EPOCH_NS:
        return None
    return datetime.fromtimestamp(since_1970 / 1e9, UTC).isoformat(timespec="seconds")


def _devices(events: Events, metadata: dict[str, Any], kernels: list[Kernel]) -> tuple[Device, ...]:
    """The GPUs the process saw, those that ran kernels first; the CPU alone where there is none."""
    listed = metadata.get("deviceProperties")
    used = Counter(kernel.device_index for kernel in kernels)
    amd_trace = any(key.startswith(("hip_", "roctracer")) for key in metadata)
    found = []
    for position, entry in enumerate(listed if isinstance(listed, list) else []):
        if not isinstance(entry, dict):
            continue
        name = entry.get("name")
        name = name if isinstance(name, str) and name else None
        major, minor = whole(entry.get("computeMajor")), whole(entry.get("computeMinor"))
        index = whole(entry.get("id"))
        amd = amd_trace or (name or "").startswith("AMD")  # computeMajor is then a gfx number
        found.append(
            Device(
                name=name,
                kind="gpu",
                index=position if index is None else index,
                compute_capability=None if amd or major is None or minor is None else f"{major}.{minor}",
                sm_count=whole(entry.get("numSms")),
                memory_bytes=whole(entry.get("totalGlobalMem")),
            )
        )
    if not found and events.spans and not (events.kernels or events.copies):
        return (Device(name=None, kind="cpu"),)
    return tuple(sorted(found, key=lambda device: (-used[device.index], device.index)))


def _environment(metadata: dict[str, Any], torch: str | None) -> dict[str, str]:
    found = {"torch": torch} if torch else {}
    for key in (*_VERSIONS, *_FLAGS):
        value = metadata.get(key)
        if isinstance(value, int | str):
            found[key] = str(value)
    cuda, hip = whole(metadata.get("cuda_runtime_version")), whole(metadata.get("hip_runtime_version"))
    if cuda:
        found["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    if hip:
        found["hip"] = f"{hip // 10_000_000}.{hip // 100_000 % 100}.{hip % 100_000}"
    distributed = metadata.get("distributedInfo")
    for key in ("backend", "rank", "world_size"):
        if isinstance(distributed, dict) and isinstance(distributed.get(key), int | str):
            found[f"distributed_{key}"] = str(distributed[key])
    for key, name in (("baseTimeNanoseconds", "clock_base_ns"), ("schemaVersion", "schema_version")):
        if whole(metadata.get(key)) is not None:
            found[name] = str(metadata[key])
    return found


def _peaks(events: Events) -> tuple[MemoryFigure, ...]:
    """Peaks of the GPU's allocator, where the trace has a single GPU."""
    if len({device for device, _ in events.peaks}) != 1:
        return ()
    return tuple(MemoryFigure("peak", quantity, size) for (_, quantity), size in sorted(events.peaks.items()))


def _gaps(events: Events, kernels: list[Kernel]) -> list[Gap]:
    gaps = []
    if not kernels:
        seen = "copies but no kernel" if events.copies else "no GPU activity"
        reason = f"the trace holds {seen}: torch.profiler ran without ProfilerActivity.CUDA, or without a GPU"
        gaps.append(Gap("kernel", "not_collected", reason))
        if not events.copies:
            gaps.append(Gap("operation.device_ns", "not_collected", reason))
    else:
        gaps += _kernel_gaps(kernels)
    if any(not span.is_range for span in events.spans):
        gaps.append(Gap("operation.flops", "not_available", "torch.profiler writes no FLOPs into its traces"))
        if not events.memory:
            reason = "the trace holds no [memory] events: torch.profiler ran without profile_memory=True"
            gaps.append(Gap("operation.memory_bytes", "not_collected", reason))
        if any(span.end is None for span in events.spans if not span.is_range):
            reason = "some calls have no end in the trace, so the sums they belong to are unknown"
            gaps.append(Gap("operation.cpu_ns", "unreadable", reason))
    else:
        reason = "the trace holds no CPU operations: torch.profiler ran without ProfilerActivity.CPU"
        gaps.append(Gap("operation", "not_collected", reason))
    return gaps


def _kernel_gaps(kernels: list[Kernel]) -> list[Gap]:
    gaps = []
    unplaced = sum(kernel.layer is None for kernel in kernels)
    if unplaced:
        reason = (
            f"{unplaced} of {len(kernels)} launches are outside every range named <layer>:<direction> and every module"
        )
        gaps.append(Gap("kernel.layer", "not_collected", reason))
    if all(kernel.registers is None for kernel in kernels):
        reason = "the trace gives no registers per thread (ROCm traces never do)"
        gaps.append(Gap("kernel.registers", "not_available", reason))
    if any(kernel.static_shared_bytes is None for kernel in kernels):
        reason = "Kineto gives static and dynamic shared memory as one sum or not at all, so each is known only where the sum is 0"
        gaps.append(Gap("kernel.static_shared_bytes", "ambiguous", reason))
        gaps.append(Gap("kernel.dynamic_shared_bytes", "ambiguous", reason))
    timeless = sum(kernel.duration_ns is None or kernel.start_ns is None for kernel in kernels)
    if timeless:
        reason = f"{timeless} launches have no start or duration in the trace"
        gaps.append(Gap("kernel.duration_ns", "unreadable", reason))
    return gaps


def _diagnostics(events: Events, metadata: dict[str, Any], repaired: bool) -> list[Diagnostic]:
    found = []
    for key in ("ERROR", "WARNING"):
        notes = metadata.get(key)
        for text in (notes if isinstance(notes, list) else [notes])[:_MAX_MESSAGES]:
            if isinstance(text, str) and text:
                found.append(Diagnostic(key.lower(), "torch.profiler", text[:500]))
    if repaired:
        text = "the JSON had bare inf or nan, or lone backslashes; they were repaired while reading"
        found.append(Diagnostic("warning", "perfctl", text))
    if events.repeated:
        text = f"{events.repeated} events appear twice in the trace; each was counted once"
        found.append(Diagnostic("warning", "perfctl", text))
    if events.timeless:
        text = f"{events.timeless} operations or ranges have no start time and were left out"
        found.append(Diagnostic("warning", "perfctl", text))
    if events.counter_ranges:
        text = f"{events.counter_ranges} CUPTI counter ranges (cuda_profiler_range) were not read"
        found.append(Diagnostic("info", "perfctl", text))
    return found
