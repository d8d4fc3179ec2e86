"""Take reports that were made elsewhere, and folders of perfctl's own runs, from disk into
the store."""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from perfctl import parsers
from perfctl.orchestrator.actions.ingest import in_child
from perfctl.orchestrator.actions.ingest.batches import Ask, batches_in_names, listed
from perfctl.orchestrator.actions.ingest.hints import NO_HINTS, UserHints
from perfctl.orchestrator.actions.ingest.in_child import Done
from perfctl.orchestrator.actions.ingest.parallel import (
    Made,
    Read,
    Setting,
    number_of_jobs,
    reading,
)
from perfctl.orchestrator.actions.ingest.run import (
    derived_rows,
    estimate_shapes,
    numbered,
    of_job,
    ranks_in_names,
    relative,
    take_run,
)
from perfctl.orchestrator.actions.ingest.scan_file import FileScan
from perfctl.orchestrator.actions.ingest.sources import Named, Source, collect, expanded
from perfctl.orchestrator.actions.messages import SILENT_INGEST, IngestListener, Messages
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.actions.wall import child, memory
from perfctl.orchestrator.actions.wall.unexpected import alone
from perfctl.orchestrator.analyse.kernels.names import family
from perfctl.orchestrator.analyse.usage.served import placed
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError
from perfctl.orchestrator.launch.sweep.folders import read_run_record
from perfctl.orchestrator.store import database, merge
from perfctl.orchestrator.store.write import (
    RunFacts,
    SweepFacts,
    Written,
    find_artifact,
    holds_artifacts,
    holds_rows,
    set_partial,
    write_run,
)
from perfctl.parsers import ReportError
from perfctl.parsers.text.doubts import SOURCE
from perfctl.records.paper import LayerCall
from perfctl.records.report import Device, Diagnostic, Gap, Report
from perfctl.workloads.spec import MODES, PRECISIONS

_INT64 = 1 << 63
OWN_RECORD = "workload.json"
"""perfctl's own record of a run, which says its batch size."""
_TABLES = ("kernel", "operation", "range", "sample", "summary", "copy", "counter")
"""Quantities of gaps that are whole tables, what is looked for most first."""
_NO_ROWS = "no rows were read"
"""Begins the reason of a run whose report was recognised and gave nothing."""

_STEPS_SAY = (
    "the steps state their sequences (table served_step), and the file no batch size of the whole "
    "run"
)


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


_CALLS = count()


def _again() -> str:
    """Keeps calls of one process within a second apart: "" for the first, ".1" for the next."""
    number = next(_CALLS)
    return f".{number}" if number else ""


def ingest(
    paths: Path | str | Iterable[Path | str],
    store: Path | str = DEFAULT,
    *,
    hints: UserHints = NO_HINTS,
    again: bool = False,
    listener: IngestListener = SILENT_INGEST,
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
    already. ``command_line`` is stored with the runs. ``ask`` is called for a report whose name may
    say several batch sizes. ``jobs``: processes that read at the same time; None for one a core,
    where there is enough to read. The result does not depend on it. ``memory_limit``: how much
    memory the reading of a report may take ("2GiB", or bytes); 0 is no limit, None 2 GiB or a
    quarter of the machine's, whichever is less. A report that takes more is in ``failed``, as is
    one that ends the process that reads it.

    Raises UsageError for hints that make no sense and, without ``ask``, for such a name;
    ToolMissing where ``guess_layers`` finds no torch; StoreError.
    """
    check_hints(hints)
    limit = memory.bytes_of(memory_limit)
    given = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
    store = Path(store)
    at = database.now()
    sweep = SweepFacts(
        f"ingest {at} {os.getpid()}{_again()}", "ingest", command_line, os.uname().nodename, at
    )
    with ExitStack() as stack:
        found = collect([one for path in given for one in expanded(path)], stack, limit)
        listener.found(len(found.sources()))
        files = [
            source
            for source in found.sources()
            if source.path.name != OWN_RECORD and not _is_run(source.path)
        ]
        named = [source.shown for source in files if hints.batch_size is None]
        batches = batches_in_names(named, hints.batch_pattern, ask)
        for text in (*found.notes, *listed(batches)):
            listener.note(text)
        jobs = number_of_jobs(jobs, found.sources())
        ranks = ranks_in_names(
            source.shown for source in found.sources() if not source.path.is_dir()
        )
        make, done = partial(Intake, sweep, hints, store, again, limit, batches, ranks), Done()
        is_walled = limit > 0 and memory.is_kept()
        if jobs == 1 and is_walled and child.is_possible(store):
            in_child.take(found.entries, make, store, listener, done, limit)
        else:
            with database.writing(store, keep_empty=False) as connection:
                make(connection=connection, listener=listener, done=done).take_all(
                    found.entries, jobs, is_walled
                )
    return Ingested(store, tuple(done.taken), tuple(done.failed), tuple(done.empty))


def _is_run(path: Path) -> bool:
    """A run folder says its batch size itself; the name of a DLProf folder may say it."""
    return path.is_dir() and read_run_record(path) is not None


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
        from perfctl.orchestrator.actions.estimate import estimate_at
        from perfctl.orchestrator.actions.estimate_request import Request

        estimate_at(Request(str(hints.workload), mode=hints.mode or "train"), 1)


@dataclass(slots=True)
class Intake:
    """One call of ``ingest``: where its files go, and what became of each."""

    sweep: SweepFacts
    hints: UserHints
    store: Path
    again: bool
    limit: int
    """Bytes of memory that the reading of a report may take; 0 for no limit."""
    batches: dict[Path, int]
    """Batch sizes that names say, by ``Source.shown``."""
    ranks: dict[Path, tuple[int, int | None]]
    """Ranks and world sizes likewise."""
    connection: sqlite3.Connection
    listener: IngestListener
    done: Done
    current: Path = Path()
    """``Source.shown`` of the report at hand."""

    def take_all(self, entries: Sequence[Source | str], jobs: int, is_walled: bool) -> None:
        """Read everything, in ``jobs`` processes; ``is_walled``: not in this one."""
        if jobs > 1 or is_walled:
            self.take_in_parallel(entries, jobs)
            return
        for entry in entries:
            self.take(entry)

    def take(self, entry: Source | str) -> None:
        """Read one report or run folder; a text says why there is none."""
        if isinstance(entry, str):
            self.fail(entry)
            return
        self.current = entry.shown
        self.begin(entry.path)
        read_source(
            self.connection,
            entry,
            self.sweep,
            self.hints,
            self.store,
            self.again,
            self._named(entry),
            self,
            limit=self.limit,
        )
        self.listener.end()

    def _named(self, source: Source) -> Named:
        return Named(self.batches.get(source.shown), *self.ranks.get(source.shown, (None, None)))

    def take_in_parallel(self, entries: Sequence[Source | str], jobs: int) -> None:
        """The same, read by ``jobs`` processes. This one writes."""
        tasks = [(entry, self._named(entry)) for entry in entries if isinstance(entry, Source)]
        setting = Setting(self.store, self.sweep, self.hints, self.again, self.limit)
        with ExitStack() as stack:
            results = stack.enter_context(reading(tasks, jobs, setting, self.connection))
            for entry in entries:
                if isinstance(entry, str):
                    self.fail(entry)
                    continue
                self.current = entry.shown
                self.begin(entry.path)
                self._replay(*next(results))
                self.listener.end()

    def _replay(self, read: Read, copied: Mapping[int, tuple[int, bool]]) -> None:
        """Say what a reader said, and copy what it stored and is not ``copied`` already."""
        for event in read.events:
            if isinstance(event, Made):
                number, new = copied.get(event.written.run_id) or merge.copy_run(
                    self.connection,
                    event.written.run_id,
                    self.sweep,
                    again=self.again,
                    beside=not event.ranks,
                )
                for rank in event.ranks or () if new else ():
                    merge.copy_run(self.connection, rank, self.sweep, again=True, beside=True)
                self.stored(
                    replace(event.written, run_id=number) if new else Written(number, new=False)
                )
            else:
                name, argument = event
                getattr(self, name)(argument)
        if read.error is not None:
            raise read.error

    def begin(self, path: Path, what: str = "reading") -> None:
        """``what`` happens to ``path`` from now on."""
        self.listener.begin(path, what)

    def note(self, text: str) -> None:
        """What is going on."""
        self.listener.note(text)

    def warning(self, text: str) -> None:
        """What the user should know before using the result."""
        self.listener.warning(text)

    def warn(self, warning: Warning) -> None:
        """A Python warning of another process."""
        warnings.warn(warning, stacklevel=1)

    def fail(self, why: str) -> None:
        """One report could not be read."""
        self.done.failed.append(why)
        self.listener.failed(why)

    def stored(self, written: Written) -> None:
        """Warn of what was not understood of a format newer than perfctl, in one line; the store
        keeps it too."""
        shown = self.current
        self.done.taken.append((shown, written))
        query = (
            "SELECT text FROM diagnostic WHERE run_id = ? AND source = ? AND severity = 'warning'"
        )
        said = (
            self.connection.execute(query, (written.run_id, SOURCE)).fetchall()
            if written.new
            else []
        )
        if said:
            self.listener.warning(f"{shown}: {'; '.join(text for (text,) in said)}")
        if written.new and (written.reason or "").startswith(_NO_ROWS):
            self.done.empty.append(shown)
            self.listener.warning(f"{shown}: {written.reason}")


class Hearer(Messages, Protocol):
    """Hears what comes of one report."""

    def begin(self, path: Path, what: str = "reading") -> None:
        """``what`` happens to ``path`` from now on."""

    def fail(self, why: str) -> None:
        """It could not be read, or not to its end."""

    def stored(self, written: Written) -> None:
        """One of its runs is in the store."""


def read_source(
    connection: sqlite3.Connection,
    source: Source,
    sweep: SweepFacts,
    hints: UserHints,
    store: Path,
    again: bool,
    named: Named,
    hearer: Hearer,
    *,
    stored: sqlite3.Connection | None = None,
    limit: int = 0,
) -> None:
    """Take one report or run folder into the store behind ``connection``, and say what came of it.

    ``store``: to which artifacts are relative. ``stored`` is looked into for a report that is there
    already, where that is another store. ``limit``: bytes of memory that there were for it.
    """
    had = memory.shown(limit) if limit and memory.is_kept() else None
    try:
        damaged = partial(database.is_damaged, connection)
        with alone(source.shown, hearer.fail, limit=had, is_of_store=damaged, passing=(OSError,)):
            if source.path.is_dir() and read_run_record(source.path) is not None:
                hearer.stored(
                    take_run(
                        connection, source.path, sweep, store=store, again=again, stored=stored
                    )
                )
                return
            parsers.refuse_special(source.path)
            scan = FileScan(source.path)
            with parsers.no_collection():
                take = Take(connection, sweep, hints, store, again, hearer, stored)
                for written in take.reports(source, scan.digest, named):
                    hearer.stored(written)
    except FileNotFoundError:
        hearer.fail(f"{source.shown}: there is no such file. Check the path")
    except OSError as error:
        place = source.said(str(error.filename or source.path))
        hearer.fail(f"{place}: {error.strerror or error}. Check who may read there")
    except ReportError as error:
        hearer.fail(source.said(str(error)))


@dataclass(frozen=True, slots=True)
class Take:
    """Stores reports made elsewhere."""

    connection: sqlite3.Connection
    sweep: SweepFacts
    hints: UserHints
    store: Path
    again: bool
    messages: Messages
    stored: sqlite3.Connection | None = None
    """Where to look for a report that is there already; None for ``connection``."""

    @property
    def _again(self) -> bool:
        """What is written elsewhere first is compared when it comes into ``stored``."""
        return self.again or self.stored is not None

    def reports(self, source: Source, digest: Callable[[], str], named: Named) -> Iterator[Written]:
        """Store each run that a report holds; one after the other, each whole or not at all.

        ``digest`` gives its SHA-256, by which a report that is in the store already is recognised.
        It is called late, so that another thread may work it out during the parsing. Of a file with
        several runs each has its number behind it. Raises ReportError when it cannot be read; the
        store is then as it was.
        """
        stored = self.stored or self.connection
        known = (
            find_artifact(stored, digest()) if not self.again and holds_artifacts(stored) else None
        )
        if known is not None:
            yield Written(known, new=False)
            return
        capture = Path(self.hints.capture) if self.hints.capture else None
        if capture is not None and capture.resolve() == source.path.resolve():
            capture = None  # it stands in a folder with the traces that it tells of
        options = {"source": self.hints.source, "single_operators": self.hints.op_calls}
        for part in parsers.reports(source.path, capture=capture, **options):
            facts = RunFacts(
                "unknown",
                "ok",
                "ingested",
                artifact=relative(source.shown, self.store),
                artifact_sha256=f"{digest()}#{part.number}" if part.is_of_several else digest(),
            )
            if part.twin is not None:
                self.messages.note(
                    f"{source.shown}: run {part.number} is run {part.twin} again and was left out"
                )
            elif part.report is not None:
                report = numbered(of_job(part.report), named.rank, named.world)
                yield self._write(source, report, facts, named.batch)
            elif part.error is not None:
                reason = f"{part.error.reason}. {part.error.remedy}"
                facts = replace(facts, profiler=part.error.tool, status="failed", reason=reason)
                yield write_run(
                    self.connection,
                    self.sweep,
                    facts,
                    None,
                    family=family,
                    again=self._again,
                    beside=True,
                )

    def _write(self, source: Source, report: Report, facts: RunFacts, batch: int | None) -> Written:
        report = _with_hints(report, self.hints, batch, source.shown)
        # A report made elsewhere may list its devices in any order: where there is a GPU, the GPU
        # did the work.
        report = replace(
            report, devices=tuple(sorted(report.devices, key=lambda device: device.kind != "gpu"))
        )
        if self.hints.source and report.tool != "workload" and not report.source_counters:
            known = any(gap.quantity == "source_counter" for gap in report.gaps)
            gap = Gap(
                "source_counter",
                "not_available",
                "only .ncu-rep files hold counters of each instruction",
            )
            report = replace(report, gaps=report.gaps if known else (*report.gaps, gap))
        if self.hints.guess_layers:
            report = _with_guesses(report)
        reason = _errors(report)
        facts = replace(
            facts, profiler=report.tool, status="partial" if reason else "ok", reason=reason
        )
        written = write_run(
            self.connection,
            self.sweep,
            facts,
            report,
            _on_paper(source.path, report),
            family=family,
            again=self._again,
            beside=True,
            derive=derived_rows,
        )
        written = replace(written, placed=placed(report))
        if written.new and not holds_rows(self.connection, written):
            reason = f"{_NO_ROWS}: {reason or _why_empty(report)}"
            set_partial(self.connection, written.run_id, reason)
            written = replace(written, reason=reason)
        return written


def _why_empty(report: Report) -> str:
    """The reason that a report gives for having nothing."""
    whole = [gap.reason for about in _TABLES for gap in report.gaps if gap.quantity == about]
    return (
        whole[0]
        if whole
        else f"it was recognised as {report.form}; its header may be missing or changed"
    )


def _on_paper(path: Path, report: Report) -> tuple[LayerCall, ...]:
    """Paper FLOPs of the shapes in a report. A trace knows no parameters, and bytes only with its
    tensors' types."""
    calls = estimate_shapes(path, report)
    if not any(op.parameters for op in report.ops):
        calls = tuple(call._replace(parameters=None) for call in calls)
    large = [call for call in calls if call.flops is not None and call.flops >= _INT64]
    if large:
        said = (
            f"{large[0].layer} {large[0].direction}: its shapes give more FLOPs than any program "
            "runs"
        )
        raise ReportError(path, report.tool, said, "The file is damaged, or no trace of a program")
    if any(not op.dtypes for op in report.ops):
        calls = tuple(call._replace(read_bytes=None, write_bytes=None) for call in calls)
    return calls


def _with_hints(report: Report, hints: UserHints, batch: int | None, path: Path) -> Report:
    """The report completed from the user's hints, then by the batch size in its name; each such
    value is marked."""
    given = {
        field: getattr(hints, field) for field in ("batch_size", "workload", "mode", "precision")
    }
    changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    notes = [f"{field} was given by the user" for field in changes]
    if report.batch_size is None and hints.batch_size is None and batch is not None:
        changes["batch_size"] = batch
        notes.append(f"batch_size {batch} was read from the name {path.name}")
    if hints.device_name is not None:
        first, *rest = report.devices or (Device(None, "gpu"),)
        changes["devices"] = (replace(first, name=hints.device_name), *rest)
        notes.append("device name was given by the user")
    said = tuple(Diagnostic("info", "perfctl ingest", note) for note in notes)
    gaps = report.gaps
    if report.batch_size is None and "batch_size" not in changes:
        why = (
            _STEPS_SAY
            if _each_step_says(report)
            else "the file does not say; give it with perfctl ingest --batch"
        )
        gaps = (*gaps, Gap("batch_size", "not_available", why))
    return replace(report, diagnostics=(*report.diagnostics, *said), gaps=gaps, **changes)


def _each_step_says(report: Report) -> bool:
    """True for a server's trace in which every step states how many sequences it computes."""
    steps = list(report.served_steps)
    return bool(steps) and all(
        step.prompts is not None and step.decodes is not None for step in steps
    )


def _errors(report: Report) -> str | None:
    """What makes a report partial: errors the tool stated, or parts that cannot be read; None when
    there are none."""
    own = [d for d in report.diagnostics if d.severity == "error" and d.source == report.tool]
    said = [f"{report.tool} reported an error: {d.text[:300]}" for d in own]
    said += [f"{gap.quantity}: {gap.reason}" for gap in report.gaps if gap.state == "unreadable"]
    return None if not said else said[0] + (f" (and {len(said) - 1} more)" if len(said) > 1 else "")


def _with_guesses(report: Report) -> Report:
    """The report with layers, directions and steps guessed, and the shapes they were guessed from;
    else with a gap."""
    if report.workload is None or report.batch_size is None:
        reason = (
            "no layers were guessed: workload or batch size unknown; use perfctl ingest --workload "
            "NAME --batch N"
        )
        return replace(report, gaps=(*report.gaps, Gap("kernel.layer", "not_available", reason)))
    from perfctl.orchestrator.actions.estimate import estimate_at
    from perfctl.orchestrator.actions.estimate_request import Request
    from perfctl.orchestrator.analyse.kernels.guess_layers import guess

    mode = report.mode or "train"
    paper = estimate_at(Request(report.workload, mode=mode), report.batch_size)
    made = guess(report.kernels, paper.calls)
    report = replace(report, kernels=made.kernels, gaps=(*report.gaps, *made.gaps))
    return replace(report, ops=report.ops or paper.ops, mode=mode) if made.guessed else report
