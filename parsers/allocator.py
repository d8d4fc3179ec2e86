"""What PyTorch's allocator of each GPU held over time, as samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from perfctl.records.report import Sample

CURVE = 10_000
"""Most readings of a GPU's allocator that are kept."""


class AllocatorReading(NamedTuple):
    """One moment, on the report's clock; sizes in bytes, None where not stated."""

    at_ns: int
    allocated: int | None
    reserved: int | None


def make_allocator_samples(devices: Mapping[int, Iterable[AllocatorReading]]) -> list[Sample]:
    """Return samples by device and time; of more than CURVE readings of a GPU the highest of each
    part."""
    unknown = (None,) * 6
    return [
        Sample(
            reading.at_ns,
            *unknown,
            device_index=device,
            allocated_bytes=reading.allocated,
            reserved_bytes=reading.reserved,
        )
        for device, readings in sorted(devices.items())
        for reading in downsample_keeping_peaks(sorted(readings, key=lambda reading: reading.at_ns))
    ]


def downsample_keeping_peaks(
    readings: list[AllocatorReading], max_readings: int = CURVE
) -> list[AllocatorReading]:
    """Return at most ``max_readings`` of the readings, which is at least 2: the peaks of equal
    parts.

    Of a part whose highest ``allocated`` and highest ``reserved`` are two readings, both stay.
    """
    if len(readings) <= max_readings:
        return readings
    size = -(-len(readings) // (max_readings // 2))
    peaks_of_parts = []
    for first in range(0, len(readings), size):
        part = range(first, min(first + size, len(readings)))
        peaks = {max(part, key=lambda index: readings[index][which] or 0) for which in (1, 2)}
        peaks_of_parts += [readings[index] for index in sorted(peaks)]
    return peaks_of_parts
