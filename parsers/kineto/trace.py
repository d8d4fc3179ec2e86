"""Kineto traces: the Chrome-format JSON that torch.profiler writes, plain or gzipped, from 2021
to now. Traces of JAX are read in the same way (``xla``).

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
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from perfctl.parsers.allocator import make_allocator_samples
from perfctl.parsers.common.doubts import make_unknown_names_warning
from perfctl.parsers.common.json import decode_head, list_json_objects
from perfctl.parsers.kineto import records
from perfctl.parsers.kineto.captures import ExplainedGraphs, assign_layers_to_graph_kernels
from perfctl.parsers.kineto.events import (
    DeviceEvent,
    SortedEvents,
    Span,
    classify_events,
    decode_valid_members,
    json_field,
)
from perfctl.parsers.kineto.fused import list_compiled_flops_gaps, sum_compiled_kernels
from perfctl.parsers.kineto.nesting import SpanNesting, assign_layers_and_operator_rows
from perfctl.parsers.kineto.origins import (
    describe_kernel_time_share,
    share_fused_kernels_between_modules,
)
from perfctl.parsers.kineto.shape_steps import infer_served_steps_from_shapes
from perfctl.parsers.kineto.stream import TOOL, Int64, TraceStream, parse_int64
from perfctl.parsers.kineto.xla import XlaTranslator
from perfctl.records.errors import ReportError
from perfctl.records.report import (
    Device,
    Diagnostic,
    Gap,
    Kernel,
    MemoryFigure,
    Report,
    pluralize_count,
)

JAX = "jax"
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
_YEAR_2000_NS = 946_684_800 * 10**9
"""1 January 2000: times before it do not count from 1970."""
_OF_KINETO = ('"schemaVersion"', '"deviceProperties"', '"distributedInfo"', '"baseTimeNanoseconds"')
_ARGUMENTS = {
    **{name: name for name in ("device", "stream", "grid", "block", "registers", "context")},
    "shared": "shared memory",
}
"""What the arguments of a kernel state."""
_FEW = 10
"""What one event in ten or fewer lacks was lost: a version of the profiler writes the same of
each."""

Metadata = Mapping[str, Any]


class _DeviceProperties(msgspec.Struct):
    """One entry of deviceProperties."""

    index: Int64 = json_field("id")
    name: str = ""
    major: Int64 = json_field("computeMajor")
    minor: Int64 = json_field("computeMinor")
    sm_count: Int64 = json_field("numSms")
    memory_bytes: Int64 = json_field("totalGlobalMem")


class _ProcessGroup(msgspec.Struct):
    """One entry of distributedInfo's pg_config."""

    pg_name: str | None = None
    ranks: list[int] | None = None


class _DistributedInfo(msgspec.Struct):
    """Members of distributedInfo."""

    backend: str | None = None
    rank: Int64 = None
    world_size: Int64 = None
    pg_config: list[_ProcessGroup] = []


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a JSON object with "traceEvents", or with Kineto's members where job
    metadata come first."""
    text = decode_head(head).lstrip()
    return text.startswith("{") and (
        '"traceEvents"' in text or sum(member in text for member in _OF_KINETO) >= 2
    )


def parse(path: Path, *, single_operators: bool = True, capture: Path | None = None) -> Report:
    """Return the report of one trace, with ``op_calls`` where single operators are wanted.

    ``capture``: the trace in which the graphs were captured that this one launches; None for what
    lies beside it.

    Raises ReportError when it is cut off, broken, or not a trace of torch.profiler.
    """
    stream = TraceStream(path)
    xla = XlaTranslator()
    events = classify_events(xla.translate_jax_to_kineto_events(stream.iterate_event_blocks()))
    metadata = stream.metadata
    _raise_if_nothing_to_read(path, events, metadata, is_xla=xla.is_xla)
    gpus = [_DeviceProperties(index) for index in xla.gpus.values()] or _read_gpus(metadata)
    job = decode_valid_members(_DistributedInfo, metadata.get("distributedInfo"))
    is_rocm = any(key.startswith(("hip_", "roctracer")) for key in metadata)
    is_rocm |= bool(gpus) and all(gpu.name.startswith("AMD") for gpu in gpus)
    agent_gaps = _renumber_rocm_agents(events, gpus) if is_rocm else ()
    nesting = SpanNesting(events)
    records.link_launch_calls_and_spans(events, nesting)
    shape_steps, step_gaps = infer_served_steps_from_shapes(events, nesting)
    nesting.add_inferred_steps([(begin, end, step.number) for begin, end, step in shape_steps])
    graphs = _assign_layers_to_kernels(path, capture, events, nesting)
    operators, ranges = graphs.operators, list(records.make_ranges(events, nesting))
    kernels, parts, part_gaps = share_fused_kernels_between_modules(events, nesting, graphs.kernels)
    device_ns = records.sum_kernel_time_by_span(events, nesting)
    environment = _read_environment(metadata, job)
    rank, ranks = job.rank, job.world_size
    if ranks == 1 or (rank is not None and not 0 <= rank < (ranks or inf)):
        rank = None
    served = nesting.served.values()
    phases = {step.phase for step in served} - {"mixed"}
    if events.kernels or events.copies:
        form = "CPU and GPU" if events.spans else "GPU only"
    else:
        form = "CPU only" if events.spans else "no operations and no kernels"
    return Report(
        tool=JAX if xla.is_xla else TOOL,
        path=path,
        form="JAX trace" if xla.is_xla else f"Kineto trace, {form}",
        tool_version=environment.get("torch"),
        devices=_list_devices(events, gpus, is_rocm, kernels),
        environment={**environment, **_read_process_groups(events, job), **operators.environment},
        kernels=kernels,
        copies=list(records.make_copies(events, nesting)),
        ranges=ranges,
        operations=records.sum_operations(events, nesting, device_ns),
        samples=make_allocator_samples(events.curves),
        steps=records.make_steps(nesting, ranges),
        memory=_find_single_gpu_memory_peaks(events),
        ops=operators.ops,
        precision=operators.precision,
        gaps=(
            *(
                (
                    *_list_missing_kernel_field_gaps(kernels, has_operator_rows=False),
                    *xla.list_missing_data_gaps(kernels),
                )
                if xla.is_xla
                else _list_missing_trace_data_gaps(
                    events, kernels, has_operator_rows=bool(operators.ops)
                )
            ),
            *_list_lost_event_gaps(events),
            *graphs.gaps,
            *step_gaps,
            *part_gaps,
            *list_compiled_flops_gaps(events.compiled),
            *operators.gaps,
            *agent_gaps,
        ),
        diagnostics=(
            *_list_trace_diagnostics(events, metadata, repaired=stream.repaired),
            *graphs.diagnostics,
        ),
        **_read_start_and_duration(events, metadata),
        api_calls=records.sum_api_calls(events),
        op_calls=records.make_op_calls(events, nesting, device_ns) if single_operators else (),
        collectives=list(records.make_collectives(events, nesting)),
        compiled_kernels=sum_compiled_kernels(events.compiled, device_ns),
        kernel_parts=parts,
        rank=rank,
        world_size=None if rank is None else ranks,
        phase=phases.pop() if len(phases) == 1 else None,
        served_steps=sorted((*served, *(step for _, _, step in shape_steps))),
        graph_launches=graphs.launches,
        counter_samples=events.counters,
    )


def _raise_if_nothing_to_read(
    path: Path, events: SortedEvents, metadata: Mapping[str, Any], *, is_xla: bool
) -> None:
    if is_xla and not events.kernels:
        reason = (
            "it is a JAX trace without kernels of a GPU, and perfctl reads no other work of one"
        )
        raise ReportError(path, JAX, reason, "Record it with jax.profiler.trace on a GPU")
    if not events.known and "schemaVersion" not in metadata:
        reason = "it is a Chrome trace without torch.profiler events (cpu_op, kernel, ...)"
        todo = "Pass a trace that torch.profiler's export_chrome_trace wrote"
        raise ReportError(path, TOOL, reason, todo)


def _assign_layers_to_kernels(
    path: Path, capture: Path | None, events: SortedEvents, nesting: SpanNesting
) -> ExplainedGraphs:
    """Return the kernels with their layers, those of graphs too, and the shapes of the operators;
    assign layers and rows to the spans."""
    launchers = [event.span for event in events.kernels]
    operators = assign_layers_and_operator_rows(events, nesting, launchers or None)
    graphs = ExplainedGraphs(list(records.make_kernels(events, nesting)), operators)
    parse_eager = partial(parse, single_operators=False)
    assign_layers_to_graph_kernels(
        path, capture, events, graphs, nesting.served.values(), parse_eager
    )
    return graphs


def _read_start_and_duration(events: SortedEvents, metadata: Metadata) -> dict[str, Any]:
    """Return when the capture began, if the trace's clock counts from 1970, and how long it was."""
    times = [] if events.window is None else [events.window]
    if not times:
        work: list[Span | DeviceEvent] = [*events.spans, *events.kernels, *events.copies]
        times = [
            (event.start, event.start + (event.duration or 0))
            for event in work
            if event.start is not None
        ]
    if not times:
        return {}
    begins, ends = zip(*times, strict=True)
    since_1970 = (parse_int64(metadata.get("baseTimeNanoseconds")) or 0) + min(begins)
    started_at = None
    if _YEAR_2000_NS < since_1970 < 4 * _YEAR_2000_NS:
        started_at = datetime.fromtimestamp(since_1970 / 1e9, UTC).isoformat(timespec="seconds")
    return {"started_at": started_at, "duration_ns": max(ends) - min(begins)}


def _read_gpus(metadata: Metadata) -> list[_DeviceProperties]:
    """Return the GPUs that the process saw."""
    gpus = [
        decode_valid_members(_DeviceProperties, entry)
        for entry in list_json_objects(metadata.get("deviceProperties"))
    ]
    for position, gpu in enumerate(gpus):
        gpu.index = position if gpu.index is None else gpu.index
    return gpus


def _list_devices(
    events: SortedEvents,
    gpus: Sequence[_DeviceProperties],
    is_rocm: bool,
    kernels: Sequence[Kernel],
) -> tuple[Device, ...]:
    """Return the GPUs, those that ran kernels first; the CPU alone where there is none."""
    if not gpus and events.spans and not (events.kernels or events.copies):
        return (Device(name=None, kind="cpu"),)
    devices = []
    for gpu in gpus:
        capability = None if None in (gpu.major, gpu.minor) else f"{gpu.major}.{gpu.minor}"
        if is_rocm:
            capability = _GFX.get(capability or "")  # the numbers are of a gfx number
        figures = (capability, gpu.sm_count, gpu.memory_bytes)
        devices.append(Device(gpu.name or None, "gpu", gpu.index or 0, *figures))
    launches = Counter(kernel.device_index for kernel in kernels)
    return tuple(sorted(devices, key=lambda device: (-launches[device.index], device.index)))


def _renumber_rocm_agents(
    events: SortedEvents, gpus: Sequence[_DeviceProperties]
) -> tuple[Gap, ...]:
    """Give the work of a ROCm trace's only GPU that GPU's number; return the gap where there are
    several.

    ROCm's events have the number of an agent, which counts the host's processors first ("device":
    9), while deviceProperties counts the GPUs from 0. Which processors there are the trace does
    not say.
    """
    work = [*events.kernels, *events.copies]
    agents = {device for event in work if (device := event.args.device) is not None}
    if len(gpus) == len(agents) == 1:
        for event in work:
            event.args.device = gpus[0].index
    elif agents:
        reason = (
            f"ROCm's number of an agent ({', '.join(map(str, sorted(agents)))}) counts CPUs first, "
            "but deviceProperties counts GPUs from 0"
        )
        return (Gap("kernel.device_index", "ambiguous", reason),)
    return ()


def _read_environment(metadata: Metadata, job: _DistributedInfo) -> dict[str, str]:
    torch = next((metadata[key] for key in _TORCH if metadata.get(key)), None)
    facts = {} if torch is None else {"torch": str(torch)}
    for key in (*_VERSIONS, *_FLAGS):
        if isinstance(metadata.get(key), int | str):
            facts[key] = str(metadata[key])
    if cuda := parse_int64(metadata.get("cuda_runtime_version")):
        facts["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    if hip := parse_int64(metadata.get("hip_runtime_version")):
        facts["hip"] = f"{hip // 10_000_000}.{hip // 100_000 % 100}.{hip % 100_000}"
    stated = {
        "distributed_backend": job.backend,
        "distributed_rank": job.rank,
        "distributed_world_size": job.world_size,
        "clock_base_ns": parse_int64(metadata.get("baseTimeNanoseconds")),
        "schema_version": parse_int64(metadata.get("schemaVersion")),
    }
    return facts | {name: str(value) for name, value in stated.items() if value is not None}


def _read_process_groups(events: SortedEvents, job: _DistributedInfo) -> dict[str, str]:
    """Return ranks of the process groups that the trace has collectives of, those smaller than the
    job: {"process_groups": JSON}.

    By the collectives' own arguments, else by distributedInfo.
    """
    configured = {group.pg_name: group.ranks or [] for group in job.pg_config}
    groups: dict[str, list[int]] = {}
    for comm in events.comms.values():
        stated = [int(rank) for rank in re.findall(r"\d{1,9}", comm.ranks or "")]
        for ranks in (stated, configured.get(comm.group, [])):
            is_part = job.world_size is None or len(ranks) < job.world_size
            if comm.group and ranks and len(ranks) == comm.size and is_part:
                groups.setdefault(comm.group, ranks)
    return {"process_groups": json.dumps(groups)} if groups else {}


def _find_single_gpu_memory_peaks(events: SortedEvents) -> tuple[MemoryFigure, ...]:
    """Return peaks of the GPU's allocator, where the trace has a single GPU."""
    if len(events.curves) != 1:
        return ()
    (readings,) = events.curves.values()
    _, *totals = zip(*readings, strict=True)
    return tuple(
        MemoryFigure("peak", quantity, max(stated))
        for quantity, sizes in zip(("allocated", "reserved"), totals, strict=True)
        if (stated := [size for size in sizes if size is not None])
    )


def _list_missing_trace_data_gaps(
    events: SortedEvents, kernels: list[Kernel], *, has_operator_rows: bool
) -> Iterator[Gap]:
    if kernels:
        yield from _list_missing_kernel_field_gaps(kernels, has_operator_rows=has_operator_rows)
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
    if kernels and not records.is_device_time_known(events):
        reason = (
            "no kernel has a correlation or External id that a single call in the trace has, so "
            "the operators that launched them are unknown"
        )
        yield Gap("operation.device_ns", "not_available", reason)
    if any(span.end is None for span in calls):
        reason = "some calls have no end in the trace, so the sums they belong to are unknown"
        yield Gap("operation.cpu_ns", "unreadable", reason)


def _explain_no_kernel(events: SortedEvents) -> str:
    """Return why there is no kernel. Runtime and driver calls are only there where
    ProfilerActivity.CUDA was on: CUPTI then failed to give the rest."""
    missing = "GPU activity missing but for copies" if events.copies else "GPU activity missing"
    if events.launches:
        cause = (
            "no CUPTI permission, another tool or process that held CUPTI, or a profiler that "
            "ended before the GPU did"
        )
        return f"{len(events.launches):,} launches recorded, {missing}: {cause}"
    if events.calls:
        cause = "no work ran on the GPU, or another process launched it"
        return f"{len(events.calls):,} CUDA calls and no launch recorded, {missing}: {cause}"
    activity = "copies but no kernel" if events.copies else "no GPU activity"
    return (
        f"the trace holds {activity}: torch.profiler ran without ProfilerActivity.CUDA, or without "
        "a GPU"
    )


def _list_missing_kernel_field_gaps(
    kernels: list[Kernel], *, has_operator_rows: bool
) -> Iterator[Gap]:
    outside = [
        kernel for kernel in kernels if kernel.layer is None and kernel.layer_source != "shared"
    ]
    if outside:
        owner = "range, module or operator" if has_operator_rows else "range or module"
        reason = f"{len(outside)} of {len(kernels)} launches have no {owner}"
        if len(outside) < len(kernels):
            reason += describe_kernel_time_share(kernels, outside)
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
        launches = pluralize_count(timeless, "launch", "has", "have")
        reason = f"{launches} no start or duration in the trace"
        yield Gap("kernel.duration_ns", "unreadable", reason)


def _list_lost_event_gaps(events: SortedEvents) -> Iterator[Gap]:
    """Yield gaps for launches without kernels, kernels without launches, and for arguments that a
    few kernels lack."""
    total, all_args = len(events.kernels), [event.args for event in events.kernels]
    correlations = [args.correlation for args in all_args]
    executed = Counter(correlations)
    del executed[None]
    missing = (Counter(events.launches) - executed).total()  # merged ranks share their ids
    if missing and events.calls.keys() & executed.keys():
        reason = f"{missing:,} of {len(events.launches):,} launch calls have no kernel in the trace"
        causes = "captured into a graph, ended after the profiler, or lost"
        yield Gap("kernel", "not_available", f"{reason}: {causes}")
    uncalled = sum(correlation not in events.calls for correlation in correlations)
    if 0 < uncalled * _FEW <= total:
        reason = f"the launch calls of {uncalled:,} of {total:,} kernels are not in the trace"
        causes = "made before the profiler began, or lost"
        yield Gap("kernel.call", "not_available", f"{reason}: {causes}")
    columns = zip(*map(attrgetter(*_ARGUMENTS), all_args), strict=True)
    for name, column in zip(_ARGUMENTS.values(), columns, strict=False):
        lacking = column.count(None)
        if 0 < lacking * _FEW <= total:
            reason = f"{lacking:,} of {total:,} launches state no {name}, which all others do"
            yield Gap(f"kernel.{name.replace(' ', '_')}", "unreadable", reason)


def _list_trace_diagnostics(
    events: SortedEvents, metadata: Metadata, *, repaired: bool
) -> Iterator[Diagnostic]:
    for key in ("ERROR", "WARNING"):
        notes = metadata.get(key)
        for text in (notes if isinstance(notes, list) else [notes])[:20]:
            if isinstance(text, str) and text:
                yield Diagnostic(key.lower(), "torch.profiler", text[:500])
    warnings = (
        (repaired, "perfctl repaired invalid JSON: numbers, escapes or characters"),
        (events.backwards, "{} events have a negative duration: they never ended"),
        (events.repeated, "{} events appear twice in the trace; each was counted once"),
        (events.timeless, "{} events have no start time and were skipped"),
    )
    for count, text in warnings:
        if count:
            yield Diagnostic("warning", "perfctl", text.format(count))
    unknown = [f"{name} ({count} events)" for name, count in events.unknown.items()]
    yield from make_unknown_names_warning({"categories": unknown})
