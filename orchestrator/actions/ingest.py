"""Take reports that were made elsewhere, and folders of perfctl's own runs, into a store."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from perfctl.orchestrator import memory
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError
from perfctl.orchestrator.ingest.context import (
    NO_HINTS,
    Failed,
    Found,
    Hear,
    Note,
    Paper,
    Settings,
    Stored,
    Task,
    UserHints,
    hear_nothing,
)
from perfctl.orchestrator.ingest.find import Ask, find_sources, list_batches
from perfctl.orchestrator.ingest.ingest import count_jobs, read_names, take
from perfctl.orchestrator.store import write
from perfctl.orchestrator.store.write import SweepFacts, Written
from perfctl.workloads.spec import MODES, PRECISIONS

_CALLS = count()


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of the reports."""

    store: Path
    taken: tuple[tuple[Path, Written], ...]
    """(report or run folder, its run) of each that is in the store now; ``Written.new`` is False
    for one that was already. A file with the outputs of several runs is there once for each."""
    failed: tuple[str, ...]
    """One line for each report that could not be read."""
    empty: tuple[Path, ...] = ()
    """Reports that were recognised and gave no rows, once for each such run; they are in
    ``taken`` too."""

    def check(self) -> None:
        """Raises PartlyDone where some could not be read or gave no rows, PerfctlError where none
        could be read."""
        total = len(self.failed) + len(self.taken)
        if self.failed and not self.taken:
            raise PerfctlError(f"nothing was taken in: {total} of {total} could not be read")
        empty = f"{len(self.empty)} of {total} gave no rows" if self.empty else ""
        if self.failed:
            more = f", {empty}" if empty else ""
            raise PartlyDone(
                f"{len(self.failed)} of {total} could not be read{more}; the others are in the "
                "store"
            )
        if empty:
            raise PartlyDone(f"{empty}; see the warnings above")


def ingest(
    paths: Path | str | Iterable[Path | str],
    store: Path | str = DEFAULT,
    *,
    hints: UserHints = NO_HINTS,
    again: bool = False,
    listener: Hear = hear_nothing,
    command_line: str | None = None,
    ask: Ask | None = None,
    jobs: int | None = None,
    memory_limit: str | int | None = None,
) -> Ingested:
    """Take reports of any profiler that perfctl knows, and run folders, into ``store``, which is
    made if need be.

    ``paths``: report files, archives and folders that hold some, and patterns for them
    (``runs/*.csv``). Each report goes in whole or not at all; one that cannot be read is in
    ``failed`` and does not stop the others. ``again`` takes in once more what the store has
    already. ``listener`` is called with each event (``orchestrator.ingest.context``).
    ``command_line`` is stored with the runs. ``ask`` is called for a report whose name may say
    several batch sizes. ``jobs``: processes that read at the same time; None for one a core, where
    there is enough to read. The result does not depend on it. ``memory_limit``: how much memory
    the reading of a report may take ("2GiB", or bytes); 0 is no limit, None 2 GiB or a quarter of
    the machine's, whichever is less. A report that takes more is in ``failed``, as is one that
    ends the process that reads it.

    Raises UsageError for hints that make no sense and, without ``ask``, for such a name;
    ToolMissing where ``guess_layers`` finds no torch; StoreError.
    """
    check_hints(hints)
    store, limit = Path(store), memory.bytes_of(memory_limit)
    given = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
    now, number = write.now(), next(_CALLS)
    again_here = f".{number}" if number else ""  # keeps calls within a second apart
    name = f"ingest {now} {os.getpid()}{again_here}"
    sweep = SweepFacts(name, "ingest", command_line, os.uname().nodename, now)
    taken: list[tuple[Path, Written]] = []
    failed: list[str] = []
    empty: list[Path] = []
    with find_sources(given, limit) as found:
        listener(Found(len(found.sources())))
        names = read_names(found.sources(), hints, ask)
        batches = {path: name.batch_size for path, name in names.items() if name.batch_size}
        for text in (*found.notes, *list_batches(batches)):
            listener(Note(text))
        tasks = [Task(source, sweep, names[source.shown]) for source in found.sources()]
        jobs = count_jobs(jobs, found.sources())
        estimate = estimate_workload if hints.guess_layers else None
        settings = Settings(store, hints, again, limit, estimate=estimate)
        with closing(take(tasks, settings, jobs)) as taking:
            for entry in found.entries:
                events = [Failed(entry)] if isinstance(entry, str) else next(taking)[1]
                for event in events:
                    listener(event)
                    match event:
                        case Failed(text):
                            failed.append(text)
                        case Stored(path, written):
                            taken.append((path, written))
                            empty += [path] if event.is_empty else []
            next(taking, None)
    return Ingested(store, tuple(taken), tuple(failed), tuple(empty))


def check_hints(hints: UserHints) -> None:
    """Everything that can be wrong before any report is read. Raises UsageError, ToolMissing or
    PerfctlError."""
    for field_name, value, known in (
        ("mode", hints.mode, MODES),
        ("precision", hints.precision, PRECISIONS),
    ):
        if value is not None and value not in known:
            raise UsageError(
                f"`{field_name}`: '{value}' is not known", f"Use one of {', '.join(known)}"
            )
    if hints.batch_size is not None and hints.batch_size < 1:
        raise UsageError(f"`batch_size` must be at least 1, got {hints.batch_size}")
    if hints.guess_layers and hints.workload is None:
        remedy = "Name it with `workload`: mnist_cnn, torchvision:resnet18, ..."
        raise UsageError("`guess_layers`: of which network?", remedy)
    if hints.guess_layers:
        estimate_workload(str(hints.workload), hints.mode or "train", 1)


def estimate_workload(workload: str, mode: str, batch_size: int) -> Paper:
    """Return the operations and FLOPs on paper of a workload. Raises UsageError, ToolMissing."""
    from perfctl.orchestrator.estimate.request import Request
    from perfctl.orchestrator.estimate.session import estimate_at

    paper = estimate_at(Request(workload, mode=mode), batch_size)
    return paper.ops, paper.calls
