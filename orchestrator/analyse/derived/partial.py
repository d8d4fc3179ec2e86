"""Launches of which some instructions were counted: what the kernel's rule says about the others.

A rule holds for a launch only where it gives exactly what was counted. So the counters also tell how many samples the
launch worked on, which the study's batch size need not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from perfctl.orchestrator.analyse.derived.records import AttentionShape, Derived, Launch, Work
from perfctl.orchestrator.analyse.derived.rules import derive
from perfctl.orchestrator.analyse.kernels.grids import ConvShape, GemmShape

_PER_OUTPUT = ("fadd", "fmul")
"""Instructions of an epilogue: a whole number for each output."""
LARGEST_BATCH = 1 << 20


def complete(launch: Launch, counts: Mapping[str, float], works: Iterable[Work], batch: int) -> Derived | None:
    """All instructions of a launch, from some that were counted; None unless one work alone fits what was counted.

    ``counts``: instruction ("fadd", "fmul") -> how often it was executed. ``works``: what the launch may compute, each at
    ``batch`` samples.
    """
    known = {name: counts[name] for name in _PER_OUTPUT if counts.get(name)}
    if not known or counts.get("ffma") is not None:
        return None
    samples = ((work, _samples(work, batch, value)) for work in works for value in known.values())
    fitting = {at_batch(work, batch, seen) for work, seen in samples if seen is not None}
    said = {found for work in fitting if (found := derive(launch, work)) is not None and _agrees(found, known)}
    return said.pop() if len(said) == 1 else None


def at_batch(work: Work, batch: int, samples: int) -> Work:
    """The work of ``samples`` samples in place of ``batch``."""
    shape = work.shape
    if isinstance(shape, GemmShape):
        return replace(work, shape=replace(shape, m=shape.m * samples // batch))
    return replace(work, shape=replace(shape, batch=shape.batch * samples // batch))


def _samples(work: Work, batch: int, value: float) -> int | None:
    """How many samples have ``value`` outputs; None where no whole number has."""
    shape = work.shape
    if isinstance(shape, AttentionShape):
        return None
    outputs = shape.pixels * shape.out_channels if isinstance(shape, ConvShape) else shape.batch * shape.m * shape.n
    found = value * batch / outputs
    return int(found) if found == int(found) and 1 <= found <= LARGEST_BATCH else None


def _agrees(found: Derived, counts: Mapping[str, float]) -> bool:
    return found.ffma is not None and all(getattr(found, name) == value for name, value in counts.items())
