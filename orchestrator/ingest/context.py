"""What is known of a report besides its file: what the user says, what its name says, what a run
left beside it; and what a worker is asked to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfctl.orchestrator.ingest.find import Source
from perfctl.orchestrator.store.write import SweepFacts
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.report import Feature, Gap, Report

Paper = tuple[Sequence[OpShape], Sequence[LayerCall]]
"""Operations of a workload, and their FLOPs on paper."""
Estimate = Callable[[str, str, int], Paper]
"""Estimates a workload in a mode at a batch size."""
Features = Callable[[Sequence[LayerCall]], tuple[Feature, ...]]


@dataclass(frozen=True, slots=True)
class UserHints:
    """What the user says about reports that do not say it themselves; None where nothing
    was said."""

    batch_size: int | None = None
    workload: str | None = None
    """Name of a workload or model, as ``perfctl.estimate`` takes it."""
    device_name: str | None = None
    """Of the GPU or CPU, as its driver writes it: "NVIDIA A100-SXM4-40GB"."""
    mode: str | None = None
    """train or infer."""
    precision: str | None = None
    """fp32, tf32, bf16 or fp16."""
    source: bool = False
    """Store what each machine instruction did, too, where the report holds it (.ncu-rep)."""
    guess_layers: bool = False
    """Where a report has no ranges, guess which layer of ``workload`` launched what, by order and
    shape. Needs torch."""
    batch_pattern: str | None = None
    """A regular expression whose first group is the batch size in a report's file name, else in
    its folder's."""
    op_calls: bool = True
    """Take in each operator of a trace by itself, which takes 15 % more time; the sums
    stay without."""
    capture: str | None = None
    """Path of the Kineto trace in which the graphs were captured that the reports launch."""


NO_HINTS = UserHints()


@dataclass(frozen=True, slots=True)
class NameFacts:
    """What the name of a report says of its run."""

    batch_size: int | None = None
    rank: int | None = None
    world_size: int | None = None
    """Processes that worked together."""


NO_FACTS = NameFacts()


@dataclass(frozen=True, slots=True)
class OwnRun:
    """What one of perfctl's own runs left beside its profiler's report."""

    record: Report | None = None
    """What the profiled process itself recorded."""
    samples: Path | None = None
    launches: Path | None = None
    """What the first pass of ncu launched, where launches that repeat another were left out."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the container, and what the profiler was told."""
    gaps: tuple[Gap, ...] = ()
    """What its profiler was told to leave out, or left to another rank."""


@dataclass(frozen=True, slots=True)
class Context:
    """All of it, for one report."""

    path: Path
    """The report, as the user named it."""
    hints: UserHints = NO_HINTS
    name: NameFacts = NO_FACTS
    run: OwnRun | None = None
    estimate: Estimate | None = None
    """What the layers of a report without ranges are guessed from; None: they are not."""


@dataclass(frozen=True, slots=True)
class Task:
    """One file or run folder for a worker."""

    source: Source
    sweep: SweepFacts
    name: NameFacts = NO_FACTS
    features: Features | None = None
    """Works out what is stored about the estimate of a run folder beside its rows."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all workers need to know."""

    store: Path
    hints: UserHints = NO_HINTS
    again: bool = False
    """Take in once more what the store has already."""
    limit: int = 0
    """Bytes of memory that a worker may take; 0 for no limit."""
    estimate: Estimate | None = None
    """What the layers of reports without ranges are guessed from; None: they are not."""
    known: Mapping[str, int] = field(default_factory=dict)
    """SHA-256 of an artifact -> the newest run of the store that was made from it."""
    parts: Path | None = None
    """Folder for the small stores of several workers; None where one writes into ``store``."""


def relative_path(path: Path, store: Path) -> str:
    """Return the path relative to the store's folder where it lies below it, so that both can be
    moved together."""
    full, home = path.resolve(), store.resolve().parent
    return os.path.relpath(full, home) if full.is_relative_to(home) else str(full)
