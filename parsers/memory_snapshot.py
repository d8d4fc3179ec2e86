"""Memory snapshots of PyTorch (``torch.cuda.memory._dump_snapshot``), as pickle or JSON.

A snapshot has the segments that the allocator took from each GPU, with their blocks, and the last
events of each GPU, the oldest of which may be lost. So the curve is worked out backwards from the
end, which the segments state. An event's size is what a tensor asked for, and blocks are rounded
up, so the curve is of requested bytes. A free counts when it is completed.

A pickle is a program, which may name any function and call it. Only lists, dictionaries, numbers
and texts are read: a pickle that names anything is refused before it can call it.
"""

from __future__ import annotations

import io
import pickle  # every name in a file is refused  # nosec B403
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from perfctl.parsers.allocator import Reading, curves
from perfctl.parsers.common.json import peek, read_whole
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Diagnostic, Gap, MemoryFigure, Report, Summary

TOOL = "torch"
_REMEDY = (
    "Write it as JSON: json.dump(torch.cuda.memory._snapshot(), open('snapshot.json', 'w'), "
    "default=str), and pass that"
)
LIMIT = 256 << 20
"""Largest pickle in bytes; its objects take some ten times as much memory."""
_INT64 = 1 << 63
_REQUESTED = {"alloc": 1, "free_completed": -1, "free": -1}
"""Events that change what tensors hold, and how; "free" is of torch before 2.0."""
_RESERVED = {"segment_alloc": 1, "segment_free": -1, "segment_map": 1, "segment_unmap": -1}
_TOTALS = ("total_size", "allocated_size", "active_size", "requested_size")
Json = dict[str, Any]


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a pickle or a JSON object with the members of a snapshot."""
    if head.startswith(b"\x80"):
        return b"total_size" in head and (b"segments" in head or b"blocks" in head)
    text = peek(head).lstrip()
    return text.startswith("{") and '"segments"' in text and '"total_size"' in text


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError for one that holds more than plain data, is damaged, or is
    no snapshot."""
    with path.open("rb") as file:
        is_pickle = file.read(1) == b"\x80"
    content = read_pickle(path) if is_pickle else read_whole(path, TOOL, _REMEDY)
    snapshot = {"segments": content} if isinstance(content, list) else content
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("segments"), list):
        raise ReportError(path, TOOL, "it holds no segments of PyTorch's allocator", _REMEDY)
    segments = _dictionaries(snapshot["segments"])
    given = snapshot.get("device_traces")
    traces = [_dictionaries(one) for one in (given if isinstance(given, list) else [])]
    # one list of a pickle may be in many places
    if len(segments) + sum(map(len, traces)) > path.stat().st_size:
        raise ReportError(path, TOOL, "it names more events than it holds", _REMEDY)
    totals = _totals(segments)
    devices = sorted({*totals, *(device for device, events in enumerate(traces) if events)})
    readings = {
        device: list(_curve(events, totals.get(device, {})))[::-1]
        for device, events in enumerate(traces)
        if events
    }
    times = [reading.at_ns for curve in readings.values() for reading in curve]
    started_at = duration_ns = None
    if times:
        started_at = datetime.fromtimestamp(min(times) / 1e9, UTC).isoformat(timespec="seconds")
        duration_ns = max(times) - min(times)
    return Report(
        tool=TOOL,
        path=path,
        form=f"PyTorch memory snapshot, {'pickle' if is_pickle else 'JSON'}",
        devices=tuple(Device(None, "gpu", device) for device in devices),
        samples=curves(readings),
        memory=_figures(devices, totals, readings),
        summaries=tuple(_summaries(segments, traces)),
        gaps=(*_gaps(devices, traces, readings), *_lost_figures(segments, traces)),
        diagnostics=tuple(_out_of_memory(traces)),
        started_at=started_at,
        duration_ns=duration_ns,
    )


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain data; everything else needs a function or class by name."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.BytesIO(path.read_bytes()))
        self._path = path

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse the file."""
        reason = (
            f"it holds more than plain data ({module[:80]}.{name[:80]}), so it was not read; "
            "nothing of it was run"
        )
        raise ReportError(self._path, TOOL, reason, _REMEDY)


def read_pickle(path: Path) -> Any:
    """Return the content of a pickle. Raises ReportError for one that is too large, is damaged, or
    holds more than plain data."""
    if (size := path.stat().st_size) > LIMIT:
        raise ReportError(path, TOOL, f"{size:,} bytes of a pickle are too many", _REMEDY)
    try:
        return _PlainUnpickler(path).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:
        reason = f"the pickle is damaged or cut off ({str(error)[:100]})"
        raise ReportError(path, TOOL, reason, _REMEDY) from error


def _dictionaries(value: object) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _read_count(value: object) -> int | None:
    """A number of bytes, a device or a time that fits into 64 bits; else None."""
    return value if type(value) is int and 0 <= value < _INT64 else None


def _totals(segments: Iterable[Json]) -> dict[int, dict[str, int | None]]:
    """Device -> sums over its segments; None where a segment does not state it."""
    devices: dict[int, dict[str, int | None]] = {}
    for segment in segments:
        device = _read_count(segment.get("device")) or 0
        totals = devices.setdefault(device, dict.fromkeys(_TOTALS, 0))
        for name in _TOTALS:
            known, more = totals[name], _read_count(segment.get(name))
            totals[name] = None if known is None or more is None else known + more
    return devices


def _curve(events: Iterable[Json], totals: dict[str, int | None]) -> Iterator[Reading]:
    """What was held after each event of one GPU, the last one first."""
    held, reserved = totals.get("requested_size"), totals.get("total_size")
    for event in reversed(list(events)):
        action, size, at = (
            event.get("action"),
            _read_count(event.get("size")),
            _read_count(event.get("time_us")),
        )
        if not isinstance(action, str) or (action not in _REQUESTED and action not in _RESERVED):
            continue
        if at is not None and at < _INT64 // 1000:
            yield Reading(at * 1000, held, reserved)
        if size is None:  # from here back nothing is known
            held = reserved = None
        if held is not None and size is not None:
            held -= size * _REQUESTED.get(action, 0)
        if reserved is not None and size is not None:
            reserved -= size * _RESERVED.get(action, 0)
        held, reserved = (None if one is None or one < 0 else one for one in (held, reserved))


def _figures(
    devices: list[int], totals: dict[int, dict[str, int | None]], readings: dict[int, list[Reading]]
) -> tuple[MemoryFigure, ...]:
    """At the end by the segments, and the peaks of the events; where a single GPU is concerned."""
    if len(devices) != 1:
        return ()
    last = totals.get(devices[0], {})
    names = {"allocated": "allocated_size", "reserved": "total_size", "requested": "requested_size"}
    figures = [
        MemoryFigure("after", name, size)
        for name, key in names.items()
        if (size := last.get(key)) is not None
    ]
    curve = readings.get(devices[0], [])
    requested = [reading.allocated for reading in curve if reading.allocated is not None]
    reserved = [reading.reserved for reading in curve if reading.reserved is not None]
    for name, values in (("requested", requested), ("reserved", reserved)):
        if values:
            figures.append(MemoryFigure("peak", name, max(values)))
    return tuple(figures)


def _summaries(segments: list[Json], traces: list[list[Json]]) -> Iterator[Summary]:
    yield Summary("segments", len(segments), None)
    states: defaultdict[str, int] = defaultdict(int)
    for segment in segments:
        for block in _dictionaries(segment.get("blocks")):
            states[str(block.get("state"))[:60]] += _read_count(block.get("size")) or 0
    yield from (Summary(f"blocks {state}", size, "B") for state, size in sorted(states.items()))
    actions = Counter(str(event.get("action"))[:60] for events in traces for event in events)
    yield from (
        Summary(f"events {action}", number, None) for action, number in sorted(actions.items())
    )


def _gaps(
    devices: list[int], traces: list[list[Json]], readings: dict[int, list[Reading]]
) -> Iterator[Gap]:
    yield Gap("kernel", "not_available", "a memory snapshot holds no kernels")
    yield Gap("operation", "not_available", "a memory snapshot holds no operations")
    if len(devices) > 1:
        reason = (
            f"the snapshot is of {len(devices)} GPUs: the curve tells them apart, memory figures "
            "do not"
        )
        yield Gap("memory", "ambiguous", reason)
    if not any(traces):
        reason = (
            "it holds no events: torch.cuda.memory._record_memory_history() was not called before"
        )
        yield Gap("sample", "not_collected", reason)
    elif not any(readings.values()):
        yield Gap("sample", "not_available", "its events have no times (torch before 2.1)")


def _lost_figures(segments: list[Json], traces: list[list[Json]]) -> Iterator[Gap]:
    """Yield gaps for figures that some segments or events lack."""
    for name in ("total_size", "allocated_size", "requested_size"):
        lost = sum(_read_count(segment.get(name)) is None for segment in segments)
        if 0 < lost < len(segments):
            reason = f"{lost} of {len(segments)} segments have no {name}, so the sum is not known"
            yield Gap("memory", "unreadable", reason)
    actions = [*_REQUESTED, *_RESERVED]  # an action may be anything
    events = [event for trace in traces for event in trace if event.get("action") in actions]
    for name in ("time_us", "size"):
        lost = sum(_read_count(event.get(name)) is None for event in events)
        if lost and (lost < len(events) or name == "size"):
            yield Gap("sample", "unreadable", f"{lost} of {len(events)} events have no {name}")


def _out_of_memory(traces: list[list[Json]]) -> Iterator[Diagnostic]:
    for device, events in enumerate(traces):
        if number := sum(event.get("action") == "oom" for event in events):
            yield Diagnostic("warning", TOOL, f"GPU {device} ran out of memory {number} times")
