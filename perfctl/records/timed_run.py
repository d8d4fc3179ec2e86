"""Runs that timed their steps without a profiler around them: what predictions rest on."""

from __future__ import annotations

from typing import NamedTuple

from perfctl.records.paper import OpShape
from perfctl.records.report import Step


class TimedRun(NamedTuple):
    """One whole run of the plain profiler."""

    id: int
    workload: str
    variant: str | None
    batch_size: int
    mode: str
    precision: str
    device: str
    """Name as the driver or /proc/cpuinfo gives it."""
    device_kind: str
    """gpu or cpu."""
    steps: tuple[Step, ...]
    ops: tuple[OpShape, ...]
    peak_bytes: int | None
    """Largest memory of its own on the device (of a CPU run: resident). None: not collected."""
    layer_ns: dict[tuple[str, str], int]
    """(layer, direction) -> ns of a step. Empty: layers were not timed."""
    threads: int | None
    """With which torch computed on a CPU. None: a GPU, or not known."""


class PowerReading(NamedTuple):
    """Mean power of one device in one run."""

    run_id: int
    workload: str | None
    variant: str | None
    batch_size: int | None
    device: str
    watts: float
    readings: int
