"""Memory snapshots of PyTorch (``torch.cuda.memory._dump_snapshot``), as pickle or JSON.

A snapshot has the segments that the allocator took from each GPU, with their blocks, and the last
events of each GPU, the oldest of which may be lost. So the curve is worked out backwards from the
end, which the segments state. An event's size is what a tensor asked for, and blocks are rounded
up, so the curve is of requested bytes. A free counts when it is completed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfctl.parsers.allocator import AllocatorReading, make_allocator_samples
from perfctl.parsers.common.json import decode_head, list_json_objects, read_json_file
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Diagnostic, Gap, MemoryFigure, Report, Summary

TOOL = "torch"
_REMEDY = (
    "Write it as JSON: json.dump(torch.cuda.memory._snapshot(), open('snapshot.json', 'w'), "
    "default=str), and pass that"
)
_INT64 = 1 << 63
_REQUESTED = {"alloc": 1, "free_completed": -1, "free": -1}
"""Events that change what tensors hold, and how; "free" is of torch before 2.0."""
_RESERVED = {"segment_alloc": 1, "segment_free": -1, "segment_map": 1, "segment_unmap": -1}
Json = dict[str, Any]


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a pickle or a JSON object with the members of a snapshot."""
    if head.startswith(b"\x80"):
        return b"total_size" in head and (b"segments" in head or b"blocks" in head)
    text = decode_head(head).lstrip()
    return text.startswith("{") and '"segments"' in text and '"total_size"' in text


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError for one that holds more than plain data, is damaged, or is
    no snapshot."""
    with path.open("rb") as file:
        is_pickle = file.read(1) == b"\x80"
    if is_pickle:
        # few files are one, and every file is asked
        from perfctl.parsers.common.plain_pickle import read_plain_pickle_and_step_count

        content, steps = read_plain_pickle_and_step_count(path, TOOL, _REMEDY)
    else:
        content, steps = read_json_file(path, TOOL, _REMEDY), None
    snapshot = {"segments": content} if isinstance(content, list) else content
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("segments"), list):
        raise ReportError(path, TOOL, "it contains no segments of PyTorch's allocator", _REMEDY)
    gpus = _group_by_gpu(snapshot)
    stated_items = sum(len(gpu.segments) + len(gpu.events) for gpu in gpus.values())
    if steps is not None and stated_items > steps:
        raise ReportError(path, TOOL, "it states more events than it contains", _REMEDY)
    readings = {index: gpu.reconstruct_memory_curve() for index, gpu in gpus.items() if gpu.events}
    times = [reading.at_ns for curve in readings.values() for reading in curve]
    started_at = duration_ns = None
    if times:
        started_at = datetime.fromtimestamp(min(times) / 1e9, UTC).isoformat(timespec="seconds")
        duration_ns = max(times) - min(times)
    figures: tuple[MemoryFigure, ...] = ()
    if len(gpus) == 1:
        (gpu,), curve = gpus.values(), next(iter(readings.values()), [])
        figures = tuple(_make_memory_figures(gpu, curve))
    return Report(
        tool=TOOL,
        path=path,
        form=f"PyTorch memory snapshot, {'pickle' if is_pickle else 'JSON'}",
        devices=tuple(Device(None, "gpu", index) for index in gpus),
        samples=make_allocator_samples(readings),
        memory=figures,
        summaries=tuple(_summarize_blocks_and_events(gpus)),
        gaps=tuple(_list_missing_data_gaps(gpus, has_times=bool(times))),
        diagnostics=tuple(
            Diagnostic("warning", TOOL, f"GPU {index} ran out of memory {number} times")
            for index, gpu in gpus.items()
            if (number := sum(event.get("action") == "oom" for event in gpu.events))
        ),
        started_at=started_at,
        duration_ns=duration_ns,
    )


def _nonnegative_int64_or_none(value: object) -> int | None:
    """Return a number of bytes, a device or a time that fits into 64 bits; else None."""
    return value if type(value) is int and 0 <= value < _INT64 else None


@dataclass(slots=True)
class _GpuSnapshot:
    """What a snapshot holds of one GPU."""

    segments: list[Json] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)

    def sum_over_segments(self, field_name: str) -> int | None:
        """Return the sum over the segments; None where one does not state it."""
        counts = [_nonnegative_int64_or_none(segment.get(field_name)) for segment in self.segments]
        return sum(filter(None, counts)) if counts and None not in counts else None

    def reconstruct_memory_curve(self) -> list[AllocatorReading]:
        """Return what was held after each event."""
        requested, reserved = (
            self.sum_over_segments("requested_size"),
            self.sum_over_segments("total_size"),
        )
        curve = []
        for event in reversed(_select_size_changing_events(self.events)):
            size, at_us = (
                _nonnegative_int64_or_none(event.get("size")),
                _nonnegative_int64_or_none(event.get("time_us")),
            )
            if at_us is not None and at_us < _INT64 // 1000:
                curve.append(AllocatorReading(at_us * 1000, requested, reserved))
            # without a size nothing is known from here back
            requested = _undo_event(requested, size, _REQUESTED.get(event["action"], 0))
            reserved = _undo_event(reserved, size, _RESERVED.get(event["action"], 0))
        return curve[::-1]


def _undo_event(allocated: int | None, size: int | None, sign: int) -> int | None:
    """Return what was held before an event."""
    if allocated is None or size is None or allocated < size * sign:
        return None
    return allocated - size * sign


def _select_size_changing_events(events: list[Json]) -> list[Json]:
    """Return the events that change what is held; an action may be anything."""
    actions = [*_REQUESTED, *_RESERVED]
    return [event for event in events if event.get("action") in actions]


def _group_by_gpu(snapshot: Json) -> dict[int, _GpuSnapshot]:
    """Return the segments and events of each GPU."""
    gpus: defaultdict[int, _GpuSnapshot] = defaultdict(_GpuSnapshot)
    for segment in list_json_objects(snapshot["segments"]):
        gpus[_nonnegative_int64_or_none(segment.get("device")) or 0].segments.append(segment)
    traces = snapshot.get("device_traces")
    for index, events in enumerate(traces if isinstance(traces, list) else ()):
        if entries := list_json_objects(events):
            gpus[index].events = entries
    return dict(sorted(gpus.items()))


def _make_memory_figures(
    gpu: _GpuSnapshot, curve: list[AllocatorReading]
) -> Iterator[MemoryFigure]:
    """Yield what is held at the end, by the segments, and the peaks of the events."""
    for name, key in (
        ("allocated", "allocated_size"),
        ("reserved", "total_size"),
        ("requested", "requested_size"),
    ):
        if (size := gpu.sum_over_segments(key)) is not None:
            yield MemoryFigure("after", name, size)
    for name, sizes in (
        ("requested", [reading.allocated for reading in curve]),
        ("reserved", [reading.reserved for reading in curve]),
    ):
        if stated := [size for size in sizes if size is not None]:
            yield MemoryFigure("peak", name, max(stated))


def _summarize_blocks_and_events(gpus: dict[int, _GpuSnapshot]) -> Iterator[Summary]:
    segments = [segment for gpu in gpus.values() for segment in gpu.segments]
    yield Summary("segments", len(segments), None)
    states, actions = Counter[str](), Counter[str]()
    for segment in segments:
        for block in list_json_objects(segment.get("blocks")):
            states[str(block.get("state"))[:60]] += (
                _nonnegative_int64_or_none(block.get("size")) or 0
            )
    for gpu in gpus.values():
        actions.update(str(event.get("action"))[:60] for event in gpu.events)
    yield from (Summary(f"blocks {state}", size, "B") for state, size in sorted(states.items()))
    yield from (
        Summary(f"events {action}", number, None) for action, number in sorted(actions.items())
    )


def _list_missing_data_gaps(gpus: dict[int, _GpuSnapshot], *, has_times: bool) -> Iterator[Gap]:
    for table in ("kernel", "operation", "copy", "range"):
        yield Gap(table, "not_available", "a memory snapshot contains events of the allocator only")
    if len(gpus) > 1:
        reason = (
            f"the snapshot is of {len(gpus)} GPUs: the curve separates them, the memory values do "
            "not"
        )
        yield Gap("memory", "ambiguous", reason)
    if not any(gpu.events for gpu in gpus.values()):
        reason = (
            "it contains no events, because torch.cuda.memory._record_memory_history() was not "
            "called before"
        )
        yield Gap("sample", "not_collected", reason)
    elif not has_times:
        yield Gap("sample", "not_available", "its events have no times (torch before 2.1)")
    segments = [segment for gpu in gpus.values() for segment in gpu.segments]
    for name in ("total_size", "allocated_size", "requested_size"):
        lost = sum(_nonnegative_int64_or_none(segment.get(name)) is None for segment in segments)
        if 0 < lost < len(segments):
            reason = f"{lost} of {len(segments)} segments have no {name}, so the sum is unknown"
            yield Gap("memory", "unreadable", reason)
    events = [event for gpu in gpus.values() for event in _select_size_changing_events(gpu.events)]
    for name in ("time_us", "size"):
        lost = sum(_nonnegative_int64_or_none(event.get(name)) is None for event in events)
        if lost and (lost < len(events) or name == "size"):
            yield Gap("sample", "unreadable", f"{lost} of {len(events)} events have no {name}")
