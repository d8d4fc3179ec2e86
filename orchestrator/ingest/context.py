"""What an ingest is asked: files, what is known of a report besides its file; and what it says
while it works: one stream of events, in the order of the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.store.write import SweepFacts, Written
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.report import Feature

if TYPE_CHECKING:
    from perfctl.orchestrator.ingest.find import Source

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
    """Take in each operator of a trace by itself, which takes 15% more time; the sums
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
class Task:
    """One file or run folder for a worker."""

    source: Source
    sweep: SweepFacts
    name: NameFacts = NO_FACTS
    features: Features | None = None
    """Works out what is stored about the estimate of a run folder beside its rows."""


@dataclass(frozen=True, slots=True)
class StoredRanks:
    """Other ranks of a run that is the rank 0 of its job."""

    sweep: SweepFacts
    runs: dict[int, int] = field(default_factory=dict)
    """Rank -> its run."""


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
    ranks: Mapping[int, StoredRanks] = field(default_factory=dict)
    """Run that is a rank 0 -> the other ranks that the store has: an ingest that was ended may
    have left some out."""
    parts: Path | None = None
    """Folder for the small stores of several workers; None where one writes into ``store``."""


@dataclass(frozen=True, slots=True)
class Found:
    """So many files and folders will be read."""

    total: int


@dataclass(frozen=True, slots=True)
class Started:
    """``what`` happens to a file from now on."""

    path: Path
    what: str = "reading"


@dataclass(frozen=True, slots=True)
class Note:
    """What is going on."""

    text: str


@dataclass(frozen=True, slots=True)
class Warned:
    """What the user should know before using the result."""

    text: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A run is in the store."""

    path: Path
    written: Written
    is_empty: bool = False
    """The report was recognised, and gave no rows."""
    ranks: tuple[int, ...] | None = None
    """Of a run folder: runs that are its other ranks; None for a report made elsewhere."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A report could not be read, or not to its end: why, in one line."""

    text: str
    is_expected: bool = True
    """False for a fault of perfctl or a library, and where memory was short."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The file is done with."""

    path: Path


Event = Found | Started | Note | Warned | Stored | Failed | Ended
Hear = Callable[[Event], None]


def hear_nothing(event: Event) -> None:
    """Drop every event."""
