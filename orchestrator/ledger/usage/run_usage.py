"""How one run used its machine: kernels running, the time between kernels and the cause of each
wait, readings of the device, and memory by every source that measured it, with the paper figures.
Each is worked out once.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from perfctl.orchestrator.ledger.usage.busy import (
    Breakdown,
    Busy,
    Readings,
    Running,
    Ways,
    breakdown,
    busy,
    end_of,
    is_host,
    joined,
    readings,
    ways,
)
from perfctl.orchestrator.ledger.usage.energy import Energy, energy
from perfctl.records.report import Copy, Kernel, Range
from perfctl.records.run import Run

SHOWN = 10
LAUNCH_NS = 10_000
"""A wait up to this long between two kernels is the time of one launch."""
COPY, DATA, SYNCHRONISE, LAUNCH, HOST = (
    "copy",
    "loading data",
    "synchronising",
    "launches one by one",
    "host",
)
CAUSES = (DATA, COPY, SYNCHRONISE, LAUNCH, HOST)
WEIGHT_BYTES = 4
"""Of an element, also under autocast."""
FITS_WELL = 0.02
"""Measured peaks may lie this far off a straight line over batch sizes for the line to
be extended."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One stretch of time without a kernel on a device."""

    start_ns: int
    length_ns: int
    cause: str
    """One of CAUSES; "host" where nothing tells more."""
    after: Kernel | None
    """The kernel that ended last before it; None at the beginning of the window."""
    before: Kernel | None
    """The kernel that ended it; None at the end of the window."""
    around: str | None
    """Innermost range of the host over the middle of it; None without ranges."""


@dataclass(frozen=True, slots=True)
class Idle:
    """All waits of one device of a run."""

    run: Run
    device: int
    window_ns: int
    window: str
    """The window in words, as of :class:`Busy`."""
    by_cause: dict[str, int]
    count: int
    largest: tuple[Wait, ...]
    """The SHOWN longest, longest first."""


def idle(run: Run, known: Running | None = None) -> tuple[Idle, ...]:
    """Each device that ran kernels; empty under ncu and without start times, as ``busy`` is."""
    known = known or Running(run)
    return tuple(_idle(run, device, known) for device in known.devices)


def _idle(run: Run, device: int, known: Running) -> Idle:
    window, kernels = known.window, sorted(known.devices[device], key=_start_of)
    by_end = sorted(kernels, key=end_of)
    host = [item for item in run.report.ranges if item.duration_ns is not None]
    explanations = {
        COPY: _merged(item for item in run.report.copies if item.device_index in (None, device)),
        DATA: _merged(item for item in host if item.phase == "data"),
        SYNCHRONISE: _merged(
            item for item in host if re.search("synchroni[sz]e", item.name.lower())
        ),
    }
    _, waits = known.union[device]
    found = [(begin, stop, _cause(explanations, begin, stop)) for begin, stop in waits]
    by_cause = {
        cause: sum(stop - begin for begin, stop, of in found if of == cause) for cause in CAUSES
    }
    made = []
    for begin, stop, cause in sorted(found, key=lambda wait: wait[0] - wait[1])[:SHOWN]:
        last = bisect_left(by_end, begin + 1, key=end_of) - 1
        at = bisect_left(kernels, stop, key=_start_of)
        following = kernels[at] if at < len(kernels) else None
        middle = (begin + stop) // 2
        over = [
            item
            for item in host
            if item.start_ns <= middle < item.start_ns + (item.duration_ns or 0)
        ]
        innermost = min(over, key=lambda item: item.duration_ns or 0, default=None)
        around = innermost.name if innermost is not None else None
        made.append(
            Wait(begin, stop - begin, cause, by_end[last] if last >= 0 else None, following, around)
        )
    kept = {cause: length for cause, length in by_cause.items() if length}
    return Idle(run, device, window[1] - window[0], known.words, kept, len(waits), tuple(made))


def _start_of(kernel: Kernel) -> int:
    return kernel.start_ns or 0


def _cause(explanations: Mapping[str, list[tuple[int, int]]], start: int, end: int) -> str:
    """What covers at least half of the wait, the first in the order of ``explanations``."""
    for name, known in explanations.items():
        if known and _overlap(known, start, end) >= (end - start) / 2:
            return name
    return LAUNCH if end - start <= LAUNCH_NS else HOST


def _merged(items: Iterable[Range | Copy]) -> list[tuple[int, int]]:
    return joined(
        (item.start_ns, item.start_ns + item.duration_ns)
        for item in items
        if item.start_ns is not None and item.duration_ns is not None
    )


def _overlap(known: list[tuple[int, int]], start: int, end: int) -> int:
    total = 0
    place = max(bisect_left(known, (start, start)) - 1, 0)
    while place < len(known) and known[place][0] < end:
        total += max(min(known[place][1], end) - max(known[place][0], start), 0)
        place += 1
    return total


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One run, in bytes; None where it is not known."""

    run: Run
    weights: int | None
    """Paper: elements of all parameters, 4 bytes each."""
    outputs: int | None
    """Paper: bytes that the layers and operations of one forward pass write; an upper bound, since
    some are freed."""
    allocated: int | None
    """torch's allocator, peak of the measured steps."""
    reserved: int | None
    """The allocator's share of the device's memory, peak."""
    process: int | None
    """NVML, the run's processes, CUDA context and libraries included; device: of all processes.
    Highest reading."""
    device: int | None
    device_total: int | None
    host: int | None
    """Resident memory of the process that computes, highest, as it recorded it about itself."""
    host_all: int | None
    """Resident memory of all the run's processes together, highest reading from outside."""


def memory_use(run: Run) -> MemoryUse:
    figures = {(item.moment, item.quantity): item.bytes for item in run.report.memory}
    total = figures.get(("before", "device_total")) or figures.get(("after", "device_total"))
    gpu = [sample for sample in run.report.samples if not is_host(sample)]
    device = run.device if run.device is not None and run.device.kind == "gpu" else None
    own = [
        sample for sample in gpu if sample.device_index == (device.index if device else None)
    ] or gpu
    forward = [call for call in run.layer_calls if call.direction == "forward"]
    weights = [call.parameters for call in forward if call.parameters is not None]
    outputs = [call.write_bytes for call in forward if call.write_bytes is not None]
    return MemoryUse(
        run,
        WEIGHT_BYTES * sum(weights) if weights else None,
        sum(outputs) if outputs else None,
        figures.get(("peak", "allocated")),
        figures.get(("peak", "reserved")),
        process=_most(sample.process_memory_bytes for sample in own),
        device=_most(sample.memory_used_bytes for sample in own),
        device_total=total
        or _most(sample.memory_total_bytes for sample in own)
        or (device.memory_bytes if device else None),
        host=figures.get(("peak", "host_resident")),
        host_all=_most(sample.host_memory_bytes for sample in run.report.samples),
    )


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class Fits:
    """The largest batch size whose memory stays within a limit."""

    batch: int
    limit: int
    fixed: float
    per_sample: float
    batches: tuple[int, ...]


def fits(uses: Iterable[MemoryUse]) -> Fits | None:
    """What fits on the device, from a straight line through the peaks that torch reserved.

    None on a CPU, with fewer than three batch sizes, where peaks are not on a line (cuDNN chose
    other algorithms), or do not grow.
    """
    known = [item for item in uses if item.run.batch_size is not None and item.reserved is not None]
    peaks = dict(sorted({item.run.batch_size or 0: item.reserved or 0 for item in known}.items()))
    limit = _most(item.device_total for item in known)
    if len(peaks) < 3 or limit is None or not all(peaks.values()):
        return None
    middle, mean = Fraction(sum(peaks), len(peaks)), Fraction(sum(peaks.values()), len(peaks))
    rise = sum(((batch - middle) * (peak - mean) for batch, peak in peaks.items()), Fraction())
    slope = rise / sum(((batch - middle) ** 2 for batch in peaks), Fraction())
    fixed = mean - slope * middle
    off = max(abs(fixed + slope * batch - peak) / peak for batch, peak in peaks.items())
    if slope <= 0 or off > FITS_WELL:
        return None
    return Fits(
        max(int((limit - fixed) // slope), 0), limit, float(fixed), float(slope), tuple(peaks)
    )


@dataclass(frozen=True, eq=False, repr=False)
class RunUsage:
    """One run; every attribute is computed at the first question and kept as long as the object.

    busy: time with a kernel running, by device and stream; idle: without one, by device; breakdown:
    by kind of work; ways: utilisation by every source; readings: what the devices said about
    themselves; energy: by their power; memory: on paper and by every source that measured it.
    """

    run: Run

    @cached_property
    def _running(self) -> Running:
        return Running(self.run)

    @cached_property
    def busy(self) -> tuple[Busy, ...]:
        return busy(self.run, self._running)

    @cached_property
    def idle(self) -> tuple[Idle, ...]:
        return idle(self.run, self._running)

    @cached_property
    def breakdown(self) -> Breakdown | None:
        return breakdown(self.run)

    @cached_property
    def ways(self) -> Ways:
        return ways(self.run, self.busy)

    @cached_property
    def readings(self) -> tuple[Readings, ...]:
        return readings(self.run)

    @cached_property
    def energy(self) -> tuple[Energy, ...]:
        return energy(self.run)

    @cached_property
    def memory(self) -> MemoryUse:
        return memory_use(self.run)
