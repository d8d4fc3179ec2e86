"""What an ingest is asked: files, what is known of a report besides its file; and what it says
while it works: one stream of events, in the order of the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfctl.orchestrator.errors import PartlyDone, PerfctlError
from perfctl.orchestrator.options import Expect, Formulas, Option
from perfctl.orchestrator.store.write import SweepFacts, WrittenRun
from perfctl.records.paper import LayerCall, OpShape
from perfctl.records.report import Feature

if TYPE_CHECKING:
    from perfctl.orchestrator.ingest.find import ReportSource

Paper = tuple[Sequence[OpShape], Sequence[LayerCall]]
"""Operations of a workload, and their estimated FLOPs."""
Estimate = Callable[[str, str, int], Paper]
"""Estimates a workload in a mode at a batch size."""
Features = Callable[[Sequence[LayerCall]], tuple[Feature, ...]]


@dataclass(frozen=True, kw_only=True)
class UserHints:
    """Facts about reports that the files do not state, and what perfctl reads of them."""

    batch: Annotated[int | None, Option("Batch size, if the file does not state it.", least=1)] = (
        None
    )
    batch_pattern: Annotated[
        str | None,
        Option(
            "Regular expression for batch sizes in file names; its group is the number, "
            r"'run(\d+)'.",
            metavar="REGEX",
        ),
    ] = None
    workload: Annotated[
        str | None,
        Option(
            "Name of the workload, if the file does not state it.",
            names=("--workload", "-w"),
            metavar="NAME",
        ),
    ] = None
    device_name: Annotated[
        str | None, Option("Name of the GPU or CPU, if the file does not state it.", metavar="NAME")
    ] = None
    mode: Annotated[str | None, Option("train or infer.", metavar="MODE")] = None
    precision: Annotated[
        str | None, Option("fp32 (TF32 off), tf32, bf16 or fp16.", metavar="TYPE")
    ] = None
    parameters: Annotated[
        Sequence[str],
        Option(
            "Parameter of the run, such as N=20480 (repeatable).",
            names=("--param",),
            metavar="NAME=VALUE",
        ),
    ] = ()
    expect: Expect = ()
    formulas: Formulas = None
    guess_layers: Annotated[
        bool,
        Option(
            "Guess the layers of --workload from launch order and shapes, if a report has no "
            "ranges."
        ),
    ] = False
    capture: Annotated[
        Path | None,
        Option(
            "Kineto trace of the graph capture (or of the same steps without graphs, to guess), "
            "which names the modules of graph kernels. Default: the trace that "
            "execution_details.json names."
        ),
    ] = None
    source: Annotated[
        bool,
        Option("Also store counters per instruction (.ncu-rep), for 'perfctl show RUN --source'."),
    ] = False
    op_calls: Annotated[
        bool,
        Option(
            "Store single operators of Kineto traces (takes 15% more time); the sums are always "
            "stored.",
            names=("--op-calls/--no-op-calls",),
        ),
    ] = True


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
class IngestTask:
    """One file or run folder for a worker."""

    source: ReportSource
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
class IngestSettings:
    """What all workers need to know."""

    store: Path
    hints: UserHints = NO_HINTS
    again: bool = False
    """Take in once more what the database has already."""
    limit: int = 0
    """Bytes of memory that a worker may take; 0 for no limit."""
    estimate: Estimate | None = None
    """What the layers of reports without ranges are guessed from; None: they are not."""
    known: Mapping[str, int] = field(default_factory=dict)
    """SHA-256 of an artifact -> the newest run of the database that was made from it."""
    ranks: Mapping[int, StoredRanks] = field(default_factory=dict)
    """Run that is a rank 0 -> the other ranks that the database has: an ingest that was ended may
    have left some out."""
    formulas: tuple[Path, ...] = ()
    """Files that register formulas."""
    parts: Path | None = None
    """Folder for the small databases of several workers; None where one writes into ``store``."""


@dataclass(frozen=True, slots=True)
class SourcesCounted:
    """So many files and folders will be read."""

    total: int


@dataclass(frozen=True, slots=True)
class FileStarted:
    """A file is read from now on."""

    path: Path


@dataclass(frozen=True, slots=True)
class NoteSent:
    """What is going on."""

    text: str


@dataclass(frozen=True, slots=True)
class WarningSent:
    """What the user should know before using the result."""

    text: str


@dataclass(frozen=True, slots=True)
class RunStored:
    """A run is in the database."""

    path: Path
    written: WrittenRun
    is_empty: bool = False
    """The report was recognised, and gave no rows."""
    ranks: tuple[int, ...] | None = None
    """Of a run folder: runs that are its other ranks; None for a report made elsewhere."""


@dataclass(frozen=True, slots=True)
class ReportFailed:
    """A report could not be read, or not to its end: why, in one line."""

    text: str
    is_expected: bool = True
    """False for a fault of perfctl or a library, and where memory was short."""


@dataclass(frozen=True, slots=True)
class FileEnded:
    """The file is done with."""


Event = SourcesCounted | FileStarted | NoteSent | WarningSent | RunStored | ReportFailed | FileEnded
Hear = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """Drop every event."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What became of the reports."""

    store: Path
    taken: tuple[tuple[Path, WrittenRun], ...]
    """(report or run folder, its run) of each that is in the database now; ``WrittenRun.new`` is
    False for one that was already. A file with the outputs of several runs is there once for
    each."""
    failed: tuple[str, ...]
    """One line for each report that could not be read."""
    empty: tuple[Path, ...] = ()
    """Reports that were recognised and gave no rows, once for each such run; they are in
    ``taken`` too."""
    updated: str = ""
    """What was replaced in runs that the database had already: "parameters and formulas"."""

    def check(self) -> None:
        """Raises PartlyDone where some could not be read or gave no rows, PerfctlError where none
        could be read."""
        total = len(self.failed) + len(self.taken)
        if self.failed and not self.taken:
            could_not = f": {total} of {total} could not be read" if total > 1 else ""
            raise PerfctlError(f"no reports ingested{could_not}")
        empty = f"{len(self.empty)} of {total} gave no rows" if self.empty else ""
        if self.failed:
            suffix = f", {empty}" if empty else ""
            raise PartlyDone(
                f"{len(self.failed)} of {total} could not be read{suffix}; the others are in the "
                "database"
            )
        if empty:
            raise PartlyDone(f"{empty}; see the warnings above")
