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
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from perfctl.parsers.kineto.agreement import (
    arguments_missing,
    doubts,
    launches_without_work,
    work_without_launch,
)
from perfctl.parsers.kineto.calls import (
    api_calls,
    collectives,
    compiled_gaps,
    compiled_kernels,
    memory_curve,
    op_calls,
)
from perfctl.parsers.kineto.collect import Collector
from perfctl.parsers.kineto.events import Events, diagnostics, whole
from perfctl.parsers.kineto.graphs import served_ranges, shape_steps, with_captures
from perfctl.parsers.kineto.nesting import Nesting
from perfctl.parsers.kineto.operators import assign
from perfctl.parsers.kineto.origins import parted
from perfctl.parsers.kineto.records import (
    Launches,
    copies,
    device_times,
    kernels,
    operations,
    ranges,
    steps,
)
from perfctl.parsers.text.json import JsonStream, peek
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
_OTHERS = (
    "schemaVersion",
    "deviceProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "WARNING",
    "ERROR",
)
METADATA = frozenset((*_FLAGS, *_VERSIONS, *_TORCH, *_OTHERS))
"""The members of the trace that are read. Others may name jobs, users and hosts, and
are dropped."""

_GFX = {"9.4": "gfx942", "9.5": "gfx950"}
"""computeMajor and computeMinor of AMD's GPUs -> the only product line with them; 9.0 is gfx906,
gfx908 or gfx90a."""
_NAMED = 5
"""Kernels without a layer that are named."""
_EPOCH_NS = 946_684_800 * 10**9
"""1 January 2000: times before it do not count from 1970."""
_OF_KINETO = ('"schemaVersion"', '"deviceProperties"', '"distributedInfo"', '"baseTimeNanoseconds"')


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a JSON object with "traceEvents", or with Kineto's members where job
    metadata come first."""
    text = peek(head).lstrip()
    return text.startswith("{") and (
        '"traceEvents"' in text or sum(word in text for word in _OF_KINETO) >= 2
    )


def parse(path: Path, *, single_operators: bool = True, capture: Path | None = None) -> Report:
    """Read one trace, with ``op_calls`` where single operators are wanted.

    ``capture``: the trace in which the graphs were captured that this one launches; None for what
    lies beside it.

    Raises ReportError when it is cut off, broken, or not a trace of torch.profiler.
    """
    collector = Collector(op_calls=single_operators)
    stream = JsonStream(path, "torch", "traceEvents", collector.take)
    metadata: dict[str, Any] = {}
    events = collector.run(_events(stream, metadata))
    if not events.known and "schemaVersion" not in metadata:
        reason = "it is a Chrome trace without any event of torch.profiler (cpu_op, kernel, ...)"
        raise ReportError(
            path, "torch", reason, "Pass a trace that torch.profiler's export_chrome_trace wrote"
        )
    agents = _agents(events, metadata)
    launches = Launches(events)
    nesting = Nesting(events, launches.probes)
    launches.resolve(nesting)
    shaped = shape_steps(events, nesting, launches)
    nesting.assume([(begin, end, step.number) for begin, end, step in shaped.steps])
    operators = assign(events, nesting, launches.kernel_spans if events.kernels else None)
    found_ranges = ranges(events, nesting)
    found_kernels = kernels(events, nesting, launches)
    served = served_ranges(nesting)
    graphs = with_captures(
        path, capture, events, found_kernels, operators, served.values(), _plainly
    )
    operators = graphs.operators
    found_kernels, parts, unknown_parts = parted(
        events, nesting, launches.kernel_spans, graphs.kernels
    )
    torch = next((str(metadata[key]) for key in _TORCH if metadata.get(key)), None)
    device = device_times(events, nesting, launches)
    compiled = compiled_kernels(events, device)
    of_calls = ((events.spans[index].name, facts) for index, facts in events.compiled.items())
    begin, end = _extent(events)
    rank, world = _rank(metadata)
    since_1970 = (whole(metadata.get("baseTimeNanoseconds")) or 0) + (begin or 0)
    is_known = begin is not None and _EPOCH_NS < since_1970 < 4 * _EPOCH_NS
    sides = [
        name
        for name, is_there in (("CPU", events.spans), ("GPU", events.kernels or events.copies))
        if is_there
    ]
    only = " only" if len(sides) == 1 else ""
    return Report(
        tool="torch",
        path=path,
        form=f"Kineto trace, {' and '.join(sides) or 'no operations and no kernels'}{only}",
        tool_version=torch,
        devices=_devices(events, metadata, found_kernels),
        environment={
            **_environment(metadata, torch),
            **_groups(events, metadata),
            **operators.environment,
        },
        kernels=found_kernels,
        copies=copies(events, nesting, launches),
        ranges=found_ranges,
        operations=operations(events, nesting, device),
        samples=memory_curve(events),
        steps=steps(found_ranges, served),
        memory=_peaks(events),
        ops=operators.ops,
        precision=operators.precision,
        gaps=(
            *_gaps(events, found_kernels, by_operator=bool(operators.ops)),
            *launches_without_work(events),
            *work_without_launch(events),
            *arguments_missing(events),
            *graphs.gaps,
            *([] if shaped.gap is None else [shaped.gap]),
            *unknown_parts,
            *compiled_gaps(compiled, of_calls),
            *operators.gaps,
            *agents,
        ),
        diagnostics=(
            *_diagnostics(events, metadata, stream.repaired),
            *diagnostics(events.unknown),
            *doubts(events),
            *graphs.diagnostics,
        ),
        started_at=datetime.fromtimestamp(since_1970 / 1e9, UTC).isoformat(timespec="seconds")
        if is_known
        else None,
        duration_ns=None if begin is None or end is None else end - begin,
        api_calls=api_calls(events),
        op_calls=op_calls(events, nesting, device),
        collectives=collectives(events, nesting, launches),
        compiled_kernels=compiled,
        kernel_parts=parts,
        rank=rank,
        world_size=world,
        phase=phases.pop()
        if len(phases := {step.phase for step in served.values()} - {"mixed"}) == 1
        else None,
        served_steps=sorted((*served.values(), *(step for _, _, step in shaped.steps))),
        graph_launches=graphs.launches,
    )


def _plainly(path: Path) -> Report:
    return parse(path, single_operators=False)


def _events(stream: JsonStream, metadata: dict[str, Any]) -> Iterator[Any]:
    """Yield the events and collect the metadata that perfctl keeps. Other metadata may name jobs,
    users and hosts."""
    for key, value in stream.members():
        if key == "traceEvents":
            yield value
        elif key in METADATA:
            metadata[key] = value


def _extent(events: Events) -> tuple[int | None, int | None]:
    """Begin and end of the capture, ns on the trace's clock."""
    if events.window is not None:
        return events.window
    work = [
        (event.start, event.duration or 0)
        for event in (*events.kernels, *events.copies)
        if event.start is not None
    ]
    begins = chain((span.start for span in events.spans), (start for start, _ in work))
    ends = chain(
        (span.end or span.start for span in events.spans),
        (start + duration for start, duration in work),
    )
    return min(begins, default=None), max(ends, default=None)


def _devices(events: Events, metadata: dict[str, Any], kernels: list[Kernel]) -> tuple[Device, ...]:
    """The GPUs the process saw, those that ran kernels first; the CPU alone where there is none."""
    listed = metadata.get("deviceProperties")
    used = Counter(kernel.device_index for kernel in kernels)
    amd_trace = any(key.startswith(("hip_", "roctracer")) for key in metadata)
    found = []
    for position, entry in enumerate(listed if isinstance(listed, list) else []):
        if not isinstance(entry, dict):
            continue
        name = entry["name"] if isinstance(entry.get("name"), str) and entry["name"] else None
        major, minor = whole(entry.get("computeMajor")), whole(entry.get("computeMinor"))
        index = whole(entry.get("id"))
        # computeMajor and computeMinor are then of a gfx number
        amd = amd_trace or (name or "").startswith("AMD")
        capability = None if major is None or minor is None else f"{major}.{minor}"
        found.append(
            Device(
                name=name,
                kind="gpu",
                index=position if index is None else index,
                compute_capability=_GFX.get(capability or "") if amd else capability,
                sm_count=whole(entry.get("numSms")),
                memory_bytes=whole(entry.get("totalGlobalMem")),
            )
        )
    if not found and events.spans and not (events.kernels or events.copies):
        return (Device(name=None, kind="cpu"),)
    return tuple(sorted(found, key=lambda device: (-used[device.index], device.index)))


def _agents(events: Events, metadata: dict[str, Any]) -> tuple[Gap, ...]:
    """Of a ROCm trace: give the work of its only GPU that GPU's number; the gap where there
    are several.

    ROCm's events have the number of an agent, which counts the host's processors first ("device":
    9), while deviceProperties counts the GPUs from 0. Which processors there are the trace does
    not say.
    """
    listed = metadata.get("deviceProperties")
    gpus = (
        {whole(one.get("id")) for one in listed if isinstance(one, dict)}
        if isinstance(listed, list)
        else set()
    )
    work = (events.kernels, events.copies)
    used = {event.args[0] for group in work for event in group if event.args[0] is not None}
    if (
        not (any(key.startswith(("hip_", "roctracer")) for key in metadata) or _all_amd(listed))
        or not used
    ):
        return ()
    if len(gpus) == 1 and len(used) == 1:
        only = next(iter(gpus))
        for group in work:
            group[:] = [event._replace(args=(only, *event.args[1:])) for event in group]
        return ()
    shown = ", ".join(map(str, sorted(used)))
    reason = (
        f"ROCm's number of an agent ({shown}) counts the host's processors first, deviceProperties "
        "counts GPUs from 0"
    )
    return (Gap("kernel.device_index", "ambiguous", reason),)


def _all_amd(listed: object) -> bool:
    entries = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return bool(entries) and all(str(one.get("name", "")).startswith("AMD") for one in entries)


def _environment(metadata: dict[str, Any], torch: str | None) -> dict[str, str]:
    found = {"torch": torch} if torch else {}
    found |= {
        key: str(metadata[key])
        for key in (*_VERSIONS, *_FLAGS)
        if isinstance(metadata.get(key), int | str)
    }
    cuda, hip = (
        whole(metadata.get("cuda_runtime_version")),
        whole(metadata.get("hip_runtime_version")),
    )
    if cuda:
        found["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    if hip:
        found["hip"] = f"{hip // 10_000_000}.{hip // 100_000 % 100}.{hip % 100_000}"
    distributed = metadata.get("distributedInfo")
    for key in ("backend", "rank", "world_size"):
        if isinstance(distributed, dict) and isinstance(distributed.get(key), int | str):
            found[f"distributed_{key}"] = str(distributed[key])
    for key, name in (
        ("baseTimeNanoseconds", "clock_base_ns"),
        ("schemaVersion", "schema_version"),
    ):
        if whole(metadata.get(key)) is not None:
            found[name] = str(metadata[key])
    return found


def _groups(events: Events, metadata: dict[str, Any]) -> dict[str, str]:
    """Ranks of the process groups that the trace has collectives of, those smaller than the job:
    {"process_groups": JSON}.

    By the collectives' own arguments, else by distributedInfo.
    """
    distributed = metadata.get("distributedInfo")
    configured = distributed.get("pg_config") if isinstance(distributed, dict) else None
    stated = {
        entry["pg_name"]: tuple(entry["ranks"])
        for entry in (configured if isinstance(configured, list) else [])
        if isinstance(entry, dict)
        and isinstance(entry.get("pg_name"), str)
        and isinstance(entry.get("ranks"), list)
        and all(type(rank) is int for rank in entry["ranks"])
    }
    _, world = _rank(metadata)
    found: dict[str, tuple[int, ...]] = {}
    for comm in events.comms.values():
        if comm.group is None or comm.group in found:
            continue
        ranks = comm.ranks or stated.get(comm.group)
        if ranks and len(ranks) == comm.size and (world is None or len(ranks) < world):
            found[comm.group] = ranks
    return {"process_groups": json.dumps(found)} if found else {}


def _rank(metadata: dict[str, Any]) -> tuple[int | None, int | None]:
    """Rank and world size; neither for a process that was alone."""
    distributed = metadata.get("distributedInfo")
    given = distributed if isinstance(distributed, dict) else {}
    rank, world = whole(given.get("rank")), whole(given.get("world_size"))
    if rank is None or rank < 0 or (world is not None and not rank < world):
        return None, None
    return (None, None) if world == 1 else (rank, world)


def _peaks(events: Events) -> tuple[MemoryFigure, ...]:
    """Peaks of the GPU's allocator, where the trace has a single GPU."""
    if len({device for device, _ in events.peaks}) != 1:
        return ()
    return tuple(
        MemoryFigure("peak", quantity, size) for (_, quantity), size in sorted(events.peaks.items())
    )


def _gaps(events: Events, kernels: list[Kernel], *, by_operator: bool) -> Iterator[Gap]:
    if kernels:
        yield from _kernel_gaps(kernels, by_operator=by_operator)
    else:
        reason = _why_no_kernel(events)
        yield Gap("kernel", "not_collected", reason)
        if not events.copies:
            yield Gap("operation.device_ns", "not_collected", reason)
    calls = [span for span in events.spans if not span.is_range]
    if not calls:
        reason = (
            "the trace holds no CPU operations: torch.profiler ran without ProfilerActivity.CPU"
        )
        yield Gap("operation", "not_collected", reason)
        return
    yield Gap("operation.flops", "not_available", "torch.profiler writes no FLOPs into its traces")
    if not events.memory:
        reason = (
            "the trace holds no [memory] events: torch.profiler ran without profile_memory=True"
        )
        yield Gap("operation.memory_bytes", "not_collected", reason)
    if any(span.end is None for span in calls):
        reason = "some calls have no end in the trace, so the sums they belong to are unknown"
        yield Gap("operation.cpu_ns", "unreadable", reason)


def _why_no_kernel(events: Events) -> str:
    """Runtime and driver calls are only there where ProfilerActivity.CUDA was on: CUPTI then failed
    to give the rest."""
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
    seen = "copies but no kernel" if events.copies else "no GPU activity"
    return (
        f"the trace holds {seen}: torch.profiler ran without ProfilerActivity.CUDA, or without a "
        "GPU"
    )


def _kernel_gaps(kernels: list[Kernel], *, by_operator: bool) -> Iterator[Gap]:
    if unplaced := sum(map(_is_nowhere, kernels)):
        where = "outside every range named <layer>:<direction> and every module"
        where += ", and of no operator that multiplies" if by_operator else ""
        yield Gap(
            "kernel.layer",
            "not_collected",
            f"{unplaced} of {len(kernels)} launches are {where}{_named(kernels)}",
        )
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
        yield Gap(
            "kernel.duration_ns",
            "unreadable",
            f"{timeless} launches have no start or duration in the trace",
        )


def _is_nowhere(kernel: Kernel) -> bool:
    """Whether it belongs to no layer: neither to one nor to several."""
    return kernel.layer is None and kernel.layer_source != "shared"


def _named(kernels: list[Kernel]) -> str:
    """The kernels without a layer that take the most time; nothing where no kernel has one."""
    whole, times = 0.0, Counter[str]()
    for kernel in kernels:
        whole += kernel.duration_ns or 0
        if _is_nowhere(kernel):
            times[kernel.name[:60]] += int(kernel.duration_ns or 0)
    if not whole or all(map(_is_nowhere, kernels)):
        return ""
    named = ", ".join(f"{name} ({ns / whole:.1%})" for name, ns in times.most_common(_NAMED))
    more = f" and {len(times) - _NAMED} more" if len(times) > _NAMED else ""
    return f", with {times.total() / whole:.1%} of the kernel time: {named}{more}".replace(
        "%", " %"
    )


def _diagnostics(events: Events, metadata: dict[str, Any], repaired: bool) -> Iterator[Diagnostic]:
    for key in ("ERROR", "WARNING"):
        notes = metadata.get(key)
        for text in (notes if isinstance(notes, list) else [notes])[:20]:
            if isinstance(text, str) and text:
                yield Diagnostic(key.lower(), "torch.profiler", text[:500])
    notices = (
        (
            repaired,
            "warning",
            "the JSON had bare inf or nan, or lone backslashes; they were repaired while reading",
        ),
        (
            events.repeated,
            "warning",
            f"{events.repeated} events appear twice in the trace; each was counted once",
        ),
        (
            events.backwards,
            "warning",
            f"{events.backwards} events have a negative duration: they never ended",
        ),
        (
            events.timeless,
            "warning",
            f"{events.timeless} operations or ranges have no start time and were left out",
        ),
        (
            events.counter_ranges,
            "info",
            f"{events.counter_ranges} CUPTI counter ranges (cuda_profiler_range) were not read",
        ),
    )
    yield from (Diagnostic(severity, "perfctl", text) for is_so, severity, text in notices if is_so)
