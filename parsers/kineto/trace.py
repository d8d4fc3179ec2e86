"""Kineto traces: the Chrome-format JSON that torch.profiler writes, plain or gzipped, from 2021
to now.

Times are microseconds, whatever ``displayTimeUnit`` says; they become integer ns. They count from
``baseTimeNanoseconds`` where that is given, which is kept as the environment fact
``clock_base_ns``.

A kernel belongs to the CPU span that launched it: the one with its External id, if that one was
running when the launch call (same correlation) began, else the innermost one running then. External
id alone is not enough: in 2023 CPU operations and GPU events numbered theirs independently. A span
belongs to the layer whose range it lies in; where no range names a layer, to the module whose call
it lies in. Backward operations outside of all these take the layer of the forward operation with
the same sequence number. Where the trace has shapes, an operator that multiplies is a row of its
own outside of ranges and modules.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfctl.parsers.allocator import curves
from perfctl.parsers.common.json import peek
from perfctl.parsers.kineto import records
from perfctl.parsers.kineto.captures import ExplainedGraphs, explain_graphs
from perfctl.parsers.kineto.events import Events, collect, describe_unknown
from perfctl.parsers.kineto.fused import (
    compiled_gaps,
    compiled_kernels,
    name_longest,
    read_call_facts,
    share_kernels,
)
from perfctl.parsers.kineto.nesting import Nesting, assign_operators
from perfctl.parsers.kineto.shape_steps import find_shape_steps
from perfctl.parsers.kineto.stream import TOOL, TraceStream, read_int64
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Diagnostic, Gap, Kernel, MemoryFigure, Report

_FLAGS = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
_VERSIONS = (
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "hip_runtime_version",
    "hip_driver_version",
    "roctracer_version",
)
_TORCH = ("torch_version", "pytorch_version", "PyTorch version")
_GFX = {"9.4": "gfx942", "9.5": "gfx950"}
"""computeMajor and computeMinor of AMD's GPUs -> the only product line with them; 9.0 is gfx906,
gfx908 or gfx90a."""
_OF_ROCM = ("hip_", "roctracer")
"""How members of a ROCm trace begin."""
_YEAR_2000_NS = 946_684_800 * 10**9
"""1 January 2000: times before it do not count from 1970."""
_OF_KINETO = ('"schemaVersion"', '"deviceProperties"', '"distributedInfo"', '"baseTimeNanoseconds"')
_ARGUMENTS = ("device", "stream", "grid", "block", "registers", "shared", "context")
"""What the arguments of a kernel state."""
_FEW = 10
"""What one event in ten or fewer lacks was lost: a version of the profiler writes the same of
each."""

Metadata = Mapping[str, Any]


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a JSON object with "traceEvents", or with Kineto's members where job
    metadata come first."""
    text = peek(head).lstrip()
    return text.startswith("{") and (
        '"traceEvents"' in text or sum(word in text for word in _OF_KINETO) >= 2
    )


def parse(path: Path, *, single_operators: bool = True, capture: Path | None = None) -> Report:
    """Return the report of one trace, with ``op_calls`` where single operators are wanted.

    ``capture``: the trace in which the graphs were captured that this one launches; None for what
    lies beside it.

    Raises ReportError when it is cut off, broken, or not a trace of torch.profiler.
    """
    stream = TraceStream(path)
    events = collect(stream.blocks(), op_calls=single_operators)
    metadata = stream.metadata
    if not events.known and "schemaVersion" not in metadata:
        reason = "it is a Chrome trace without any event of torch.profiler (cpu_op, kernel, ...)"
        todo = "Pass a trace that torch.profiler's export_chrome_trace wrote"
        raise ReportError(path, TOOL, reason, todo)
    agent_gaps = _number_agents(events, metadata)
    launches = records.Launches(events)
    nesting = Nesting(events, launches.probes)
    launches.resolve(nesting)
    shape_steps = find_shape_steps(events, nesting, launches)
    nesting.assume([(begin, end, step.number) for begin, end, step in shape_steps.steps])
    launchers = launches.kernel_spans if events.kernels else None
    operators = assign_operators(events, nesting, launchers)
    ranges = records.ranges(events, nesting)
    range_numbers = {index: number for number, index in enumerate(nesting.meanings)}
    served = {range_numbers[index]: step for index, step in nesting.served.items()}
    graphs = ExplainedGraphs(records.kernels(events, nesting, launches), operators)
    explain_graphs(
        path,
        capture,
        events,
        graphs,
        served.values(),
        lambda other: parse(other, single_operators=False),
    )
    operators = graphs.operators
    facts = read_call_facts(events)
    kernels, parts, part_gaps = share_kernels(
        events, nesting, facts, launches.kernel_spans, graphs.kernels
    )
    device_ns = records.device_times(events, nesting, launches)
    torch = next((str(metadata[key]) for key in _TORCH if metadata.get(key)), None)
    begin, end = _find_extent(events)
    rank, world_size = _read_rank(metadata)
    since_1970 = (read_int64(metadata.get("baseTimeNanoseconds")) or 0) + (begin or 0)
    is_dated = begin is not None and _YEAR_2000_NS < since_1970 < 4 * _YEAR_2000_NS
    started_at = None
    if is_dated:
        started_at = datetime.fromtimestamp(since_1970 / 1e9, UTC).isoformat(timespec="seconds")
    phases = {step.phase for step in served.values()} - {"mixed"}
    return Report(
        tool=TOOL,
        path=path,
        form=_describe_form(events),
        tool_version=torch,
        devices=_read_devices(events, metadata, kernels),
        environment={
            **_read_environment(metadata, torch),
            **_read_process_groups(events, metadata, world_size),
            **operators.environment,
        },
        kernels=kernels,
        copies=records.copies(events, nesting, launches),
        ranges=ranges,
        operations=records.operations(events, nesting, device_ns),
        samples=curves(events.curves),
        steps=records.steps(ranges, served),
        memory=_read_peaks(events),
        ops=operators.ops,
        precision=operators.precision,
        gaps=(
            *_find_gaps(events, kernels, by_operator=bool(operators.ops)),
            *_find_losses(events),
            *graphs.gaps,
            *([] if shape_steps.gap is None else [shape_steps.gap]),
            *part_gaps,
            *compiled_gaps(events, facts),
            *operators.gaps,
            *agent_gaps,
        ),
        diagnostics=(
            *_find_diagnostics(events, metadata, repaired=stream.repaired),
            *describe_unknown(events.unknown),
            *graphs.diagnostics,
        ),
        started_at=started_at,
        duration_ns=None if begin is None or end is None else end - begin,
        api_calls=records.api_calls(events),
        op_calls=records.op_calls(events, nesting, device_ns),
        collectives=records.collectives(events, nesting, launches),
        compiled_kernels=compiled_kernels(events, facts, device_ns),
        kernel_parts=parts,
        rank=rank,
        world_size=world_size,
        phase=phases.pop() if len(phases) == 1 else None,
        served_steps=sorted((*served.values(), *(step for _, _, step in shape_steps.steps))),
        graph_launches=graphs.launches,
    )


def _describe_form(events: Events) -> str:
    has_gpu = bool(events.kernels or events.copies)
    if events.spans:
        return f"Kineto trace, CPU {'and GPU' if has_gpu else 'only'}"
    return f"Kineto trace, {'GPU only' if has_gpu else 'no operations and no kernels'}"


def _find_extent(events: Events) -> tuple[int | None, int | None]:
    """Return begin and end of the capture, ns on the trace's clock."""
    if events.window is not None:
        return events.window
    begins = [span.start for span in events.spans]
    ends = [span.end or span.start for span in events.spans]
    for event in (*events.kernels, *events.copies):
        if event.start is not None:
            begins.append(event.start)
            ends.append(event.start + (event.duration or 0))
    return min(begins, default=None), max(ends, default=None)


def _read_dictionaries(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_devices(events: Events, metadata: Metadata, kernels: list[Kernel]) -> tuple[Device, ...]:
    """Return the GPUs the process saw, those that ran kernels first; the CPU alone where there is
    none."""
    listed = metadata.get("deviceProperties")
    is_rocm = any(key.startswith(_OF_ROCM) for key in metadata)
    devices = []
    for position, entry in enumerate(listed if isinstance(listed, list) else []):
        if not isinstance(entry, dict):
            continue
        name = entry["name"] if isinstance(entry.get("name"), str) and entry["name"] else None
        major, minor = read_int64(entry.get("computeMajor")), read_int64(entry.get("computeMinor"))
        index = read_int64(entry.get("id"))
        capability = None if major is None or minor is None else f"{major}.{minor}"
        if is_rocm or (name or "").startswith("AMD"):
            capability = _GFX.get(capability or "")  # the numbers are of a gfx number
        devices.append(
            Device(
                name=name,
                kind="gpu",
                index=position if index is None else index,
                compute_capability=capability,
                sm_count=read_int64(entry.get("numSms")),
                memory_bytes=read_int64(entry.get("totalGlobalMem")),
            )
        )
    if not devices and events.spans and not (events.kernels or events.copies):
        return (Device(name=None, kind="cpu"),)
    launches = Counter(kernel.device_index for kernel in kernels)
    return tuple(sorted(devices, key=lambda device: (-launches[device.index], device.index)))


def _number_agents(events: Events, metadata: Metadata) -> tuple[Gap, ...]:
    """Give the work of a ROCm trace's only GPU that GPU's number; return the gap where there are
    several.

    ROCm's events have the number of an agent, which counts the host's processors first ("device":
    9), while deviceProperties counts the GPUs from 0. Which processors there are the trace does
    not say.
    """
    listed = _read_dictionaries(metadata.get("deviceProperties"))
    is_amd = any(key.startswith(_OF_ROCM) for key in metadata) or (
        bool(listed) and all(str(entry.get("name", "")).startswith("AMD") for entry in listed)
    )
    work = [*events.kernels, *events.copies]
    agents = {device for event in work if (device := event.args.device) is not None}
    if not agents or not is_amd:
        return ()
    gpus = {read_int64(entry.get("id")) for entry in listed}
    if len(gpus) == len(agents) == 1:
        (gpu,) = gpus
        for event in work:
            event.args.device = gpu
        return ()
    shown = ", ".join(map(str, sorted(agents)))
    reason = (
        f"ROCm's number of an agent ({shown}) counts the host's processors first, deviceProperties "
        "counts GPUs from 0"
    )
    return (Gap("kernel.device_index", "ambiguous", reason),)


def _read_distributed(metadata: Metadata) -> dict[str, Any]:
    distributed = metadata.get("distributedInfo")
    return distributed if isinstance(distributed, dict) else {}


def _read_environment(metadata: Metadata, torch: str | None) -> dict[str, str]:
    facts = {"torch": torch} if torch else {}
    for key in (*_VERSIONS, *_FLAGS):
        if isinstance(metadata.get(key), int | str):
            facts[key] = str(metadata[key])
    if cuda := read_int64(metadata.get("cuda_runtime_version")):
        facts["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    if hip := read_int64(metadata.get("hip_runtime_version")):
        facts["hip"] = f"{hip // 10_000_000}.{hip // 100_000 % 100}.{hip % 100_000}"
    distributed = _read_distributed(metadata)
    for key in ("backend", "rank", "world_size"):
        if isinstance(distributed.get(key), int | str):
            facts[f"distributed_{key}"] = str(distributed[key])
    names = {"baseTimeNanoseconds": "clock_base_ns", "schemaVersion": "schema_version"}
    for key, name in names.items():
        if read_int64(metadata.get(key)) is not None:
            facts[name] = str(metadata[key])
    return facts


def _read_process_groups(
    events: Events, metadata: Metadata, world_size: int | None
) -> dict[str, str]:
    """Return ranks of the process groups that the trace has collectives of, those smaller than the
    job: {"process_groups": JSON}.

    By the collectives' own arguments, else by distributedInfo.
    """
    configured = {
        entry["pg_name"]: tuple(entry["ranks"])
        for entry in _read_dictionaries(_read_distributed(metadata).get("pg_config"))
        if isinstance(entry.get("pg_name"), str)
        and isinstance(entry.get("ranks"), list)
        and all(type(rank) is int for rank in entry["ranks"])
    }
    groups: dict[str, tuple[int, ...]] = {}
    for comm in events.comms.values():
        stated = tuple(map(int, re.findall(r"\d{1,9}", comm.ranks or "")))
        for ranks in (stated, configured.get(comm.group or "", ())):
            is_part = world_size is None or len(ranks) < world_size
            if comm.group and ranks and len(ranks) == comm.size and is_part:
                groups.setdefault(comm.group, ranks)
    return {"process_groups": json.dumps(groups)} if groups else {}


def _read_rank(metadata: Metadata) -> tuple[int | None, int | None]:
    """Return rank and world size; neither for a process that was alone."""
    distributed = _read_distributed(metadata)
    rank, world = read_int64(distributed.get("rank")), read_int64(distributed.get("world_size"))
    if rank is None or rank < 0 or world == 1 or (world is not None and rank >= world):
        return None, None
    return rank, world


def _read_peaks(events: Events) -> tuple[MemoryFigure, ...]:
    """Return peaks of the GPU's allocator, where the trace has a single GPU."""
    if len({device for device, _ in events.peaks}) != 1:
        return ()
    peaks = sorted(events.peaks.items())
    return tuple(MemoryFigure("peak", quantity, size) for (_, quantity), size in peaks)


def _find_gaps(events: Events, kernels: list[Kernel], *, by_operator: bool) -> Iterator[Gap]:
    if kernels:
        yield from _find_kernel_gaps(kernels, by_operator=by_operator)
    else:
        reason = _explain_no_kernel(events)
        yield Gap("kernel", "not_collected", reason)
        if not events.copies:
            yield Gap("operation.device_ns", "not_collected", reason)
    calls = [span for span in events.spans if not span.is_range]
    if not calls:
        reason = "the trace holds no CPU operations: torch.profiler ran without"
        yield Gap("operation", "not_collected", f"{reason} ProfilerActivity.CPU")
        return
    yield Gap("operation.flops", "not_available", "torch.profiler writes no FLOPs into its traces")
    if not events.memory:
        reason = "the trace holds no [memory] events: torch.profiler ran without"
        yield Gap("operation.memory_bytes", "not_collected", f"{reason} profile_memory=True")
    if any(span.end is None for span in calls):
        reason = "some calls have no end in the trace, so the sums they belong to are unknown"
        yield Gap("operation.cpu_ns", "unreadable", reason)


def _explain_no_kernel(events: Events) -> str:
    """Return why there is no kernel. Runtime and driver calls are only there where
    ProfilerActivity.CUDA was on: CUPTI then failed to give the rest."""
    missing = "GPU activity missing but for copies" if events.copies else "GPU activity missing"
    if events.launches:
        why = (
            "no CUPTI permission, another tool or process that held CUPTI, or a profiler that "
            "ended before the GPU did"
        )
        return f"{events.launches:,} launches recorded, {missing}: {why}"
    if events.calls:
        why = "nothing ran on the GPU meanwhile, or another process launched it"
        return f"{len(events.calls):,} CUDA calls and no launch recorded, {missing}: {why}"
    activity = "copies but no kernel" if events.copies else "no GPU activity"
    return (
        f"the trace holds {activity}: torch.profiler ran without ProfilerActivity.CUDA, or without "
        "a GPU"
    )


def _find_kernel_gaps(kernels: list[Kernel], *, by_operator: bool) -> Iterator[Gap]:
    outside = [
        kernel for kernel in kernels if kernel.layer is None and kernel.layer_source != "shared"
    ]
    if outside:
        where = "outside every range named <layer>:<direction> and every module"
        where += ", and of no operator that multiplies" if by_operator else ""
        reason = f"{len(outside)} of {len(kernels)} launches are {where}"
        if len(outside) < len(kernels):
            reason += name_longest(kernels, outside)
        yield Gap("kernel.layer", "not_collected", reason)
    if all(kernel.registers is None for kernel in kernels):
        reason = "the trace gives no registers per thread (ROCm traces never do)"
        yield Gap("kernel.registers", "not_available", reason)
    if any(kernel.static_shared_bytes is None for kernel in kernels):
        reason = (
            "Kineto gives static and dynamic shared memory as one sum or not at all, so each is "
            "known only where the sum is 0"
        )
        yield Gap("kernel.static_shared_bytes", "ambiguous", reason)
        yield Gap("kernel.dynamic_shared_bytes", "ambiguous", reason)
    if timeless := sum(kernel.duration_ns is None or kernel.start_ns is None for kernel in kernels):
        reason = f"{timeless} launches have no start or duration in the trace"
        yield Gap("kernel.duration_ns", "unreadable", reason)


def _find_losses(events: Events) -> Iterator[Gap]:
    """Yield gaps for launches without kernels, kernels without launches, and for arguments that a
    few events lack."""
    calls, total = events.calls, len(events.kernels)
    correlations = [event.args.correlation for event in events.kernels]
    launched = calls.keys() & set(correlations)
    missing = events.launches - len(launched)  # several kernels of a graph have one call
    if launched and missing > 0:
        reason = f"{missing:,} of {events.launches:,} launch calls have no kernel in the trace"
        why = "captured into a graph, ended after the profiler did, or lost"
        yield Gap("kernel", "not_available", f"{reason}: {why}")
    alone = sum(correlation not in calls for correlation in correlations)
    if 0 < alone * _FEW <= total:
        reason = f"the launch calls of {alone:,} of {total:,} kernels are not in the trace"
        why = "made before the profiler began, or lost"
        yield Gap("kernel.call", "not_available", f"{reason}: {why}")
    if 0 < events.uncorrelated * _FEW <= events.called:
        reason = (
            f"{events.uncorrelated:,} of {events.called:,} calls of the runtime state no "
            "correlation, which all others do"
        )
        yield Gap("api_call.correlation", "unreadable", reason)
    for argument in _ARGUMENTS:
        lacking = [getattr(event.args, argument) for event in events.kernels].count(None)
        name = "shared memory" if argument == "shared" else argument
        if 0 < lacking * _FEW <= total:
            reason = f"{lacking:,} of {total:,} launches state no {name}, which all others do"
            yield Gap(f"kernel.{name.replace(' ', '_')}", "unreadable", reason)


def _find_diagnostics(
    events: Events, metadata: Metadata, *, repaired: bool
) -> Iterator[Diagnostic]:
    for key in ("ERROR", "WARNING"):
        notes = metadata.get(key)
        for text in (notes if isinstance(notes, list) else [notes])[:20]:
            if isinstance(text, str) and text:
                yield Diagnostic(key.lower(), "torch.profiler", text[:500])
    if repaired:
        text = "what JSON does not allow was repaired: numbers, escapes, commas or characters"
        yield Diagnostic("warning", "perfctl", text)
    if events.repeated:
        text = f"{events.repeated} events appear twice in the trace; each was counted once"
        yield Diagnostic("warning", "perfctl", text)
    if events.backwards:
        text = f"{events.backwards} events have a negative duration: they never ended"
        yield Diagnostic("warning", "perfctl", text)
    if events.timeless:
        text = f"{events.timeless} operations or ranges have no start time and were left out"
        yield Diagnostic("warning", "perfctl", text)
    if events.counter_ranges:
        text = f"{events.counter_ranges} CUPTI counter ranges (cuda_profiler_range) were not read"
        yield Diagnostic("info", "perfctl", text)
