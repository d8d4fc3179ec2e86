"""Take one report, or the folder of one of perfctl's own runs (run.json, the workload's record, the
profiler's report), into the store: parse -> complete -> write -> derive.

Of a run over several ranks, rank 0 is the run. The other ranks' records (and torch's traces) become
runs of their own with a variant that names the rank, so that nothing adds them up.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from perfctl import parsers
from perfctl.orchestrator.counts.kernels.names import family
from perfctl.orchestrator.faults import alone
from perfctl.orchestrator.files import sha256
from perfctl.orchestrator.ingest.complete import complete, estimate_calls, mark_rank
from perfctl.orchestrator.ingest.context import (
    Context,
    Failed,
    Note,
    OwnRun,
    Settings,
    Stored,
    Task,
)
from perfctl.orchestrator.ingest.derive import derive
from perfctl.orchestrator.ingest.find import Source, is_run_folder
from perfctl.orchestrator.launch.profilers.ncu import LAUNCHES
from perfctl.orchestrator.launch.profilers.replay import RECORD_NAME
from perfctl.orchestrator.launch.sweep.folders import read_json, read_run_record
from perfctl.orchestrator.ledger.usage.served import placed
from perfctl.orchestrator.pool import Tell
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.write import (
    RunFacts,
    Written,
    holds_rows,
    set_partial,
    write_run,
)
from perfctl.parsers import ReportError
from perfctl.parsers.common.doubts import SOURCE
from perfctl.records.report import Gap, Report

_TABLES = ("kernel", "operation", "range", "sample", "summary", "copy", "counter")
"""Quantities of gaps that are whole tables, what is looked for most first."""
_RANK = re.compile(r"(workload|report)(?=\.).*?\.rank(\d+)\.")
_ONE_REPORT = ("nsys", "ncu", "dlprof")
"""Profilers that put all ranks into one report, unless each rank was told to start its
own (--under)."""
_LEFT_OVER = (".nsys-rep", ".qdrep", ".qdstrm", ".tmp")
"""What a rank's profiler leaves beside the file that is read."""
_FACTS = (
    "profiler",
    "status",
    "workload",
    "batch_size",
    "exit_code",
    "reason",
    "started_at",
    "duration_ns",
)
"""Fields of run.json that are columns of run."""
_AGAIN = "Run this batch size again"


@dataclass(frozen=True, slots=True)
class _Rank:
    """What a rank left; ``report`` only where each rank has one of its own (torch)."""

    number: int
    record: Path | None = None
    report: Path | None = None


def take_source(connection: sqlite3.Connection, task: Task, settings: Settings, tell: Tell) -> None:
    """Take one report or run folder into the store behind ``connection``, and tell what came
    of it."""
    source = task.source
    try:
        with alone(
            source.shown,
            lambda why: tell(Failed(why, is_expected=False)),
            limit=settings.limit,
            is_of_store=partial(database.is_damaged, connection),
            passing=(OSError,),
        ):
            if is_run_folder(source.path):
                _take_run(connection, task, settings, tell)
                return
            parsers.refuse_special(source.path)
            source.path.stat()  # raises FileNotFoundError
            with parsers.no_collection():
                _take_report(connection, task, settings, tell)
    except FileNotFoundError:
        tell(Failed(f"{source.shown}: there is no such file. Check the path"))
    except OSError as error:
        place = source.said(str(error.filename or source.path))
        tell(Failed(f"{place}: {error.strerror or error}. Check who may read there"))
    except ReportError as error:
        tell(Failed(source.said(str(error))))


def _take_report(
    connection: sqlite3.Connection, task: Task, settings: Settings, tell: Tell
) -> None:
    """Take each run that a report holds. One that is in the store already is recognised by its
    SHA-256; of a file with several runs each has its number behind it. Raises ReportError."""
    source, hints = task.source, settings.hints
    digest = cache(partial(sha256, source.path))
    known = settings.known.get(digest()) if settings.known else None
    if known is not None:
        tell(Stored(source.shown, Written(known, new=False)))
        return
    capture = Path(hints.capture) if hints.capture else None
    if capture is not None and capture.resolve() == source.path.resolve():
        capture = None  # it stands in a folder with the traces that it tells of
    context = Context(source.shown, hints, task.name, estimate=settings.estimate)
    for part in parsers.reports(
        source.path, capture=capture, source=hints.source, single_operators=hints.op_calls
    ):
        facts = RunFacts(
            "unknown",
            "ok",
            "ingested",
            artifact=relative_path(source.shown, settings.store),
            artifact_sha256=f"{digest()}#{part.number}" if part.is_of_several else digest(),
        )
        if part.twin is not None:
            text = f"run {part.number} is run {part.twin} again and was left out"
            tell(Note(f"{source.shown}: {text}"))
        elif part.report is not None:
            report = complete(part.report, context)
            reason = _why_partial(report)
            status = "partial" if reason else "ok"
            facts = replace(facts, profiler=report.tool, status=status, reason=reason)
            written = _write(connection, task, settings, facts, report, source.path)
            written = replace(written, placed=placed(report))
            tell(_name_doubts(connection, source, report, written))
        elif part.error is not None:
            reason = f"{part.error.reason}. {part.error.remedy}"
            facts = replace(facts, profiler=part.error.tool, status="failed", reason=reason)
            written = _write(connection, task, settings, facts, None, source.path)
            tell(Stored(source.shown, written))


def _write(
    connection: sqlite3.Connection,
    task: Task,
    settings: Settings,
    facts: RunFacts,
    report: Report | None,
    path: Path,
    *,
    beside: bool = True,
) -> Written:
    """Write a run with the FLOPs on paper of its shapes; then derive, in a transaction of its own,
    the counts that follow from its rows. Raises ReportError, which names ``path``."""
    calls = estimate_calls(path, report) if report is not None else ()
    if report is not None and facts.origin == "ingested":
        # A trace knows no parameters, and bytes only with its tensors' types.
        if not any(op.parameters for op in report.ops):
            calls = tuple(call._replace(parameters=None) for call in calls)
        if any(not op.dtypes for op in report.ops):
            calls = tuple(call._replace(read_bytes=None, write_bytes=None) for call in calls)
    if report is not None and task.features is not None and not beside:
        report = replace(report, features=task.features(calls))
    written = write_run(
        connection,
        task.sweep,
        facts,
        report,
        calls,
        family=family,
        again=settings.again,
        beside=beside,
    )
    if report is not None and report.ops and written.new and written.kernels:
        derive(connection, written.run_id)
    return written


def _why_partial(report: Report) -> str | None:
    """Return errors that the tool stated, or parts that cannot be read; None without any."""
    own = [d for d in report.diagnostics if d.severity == "error" and d.source == report.tool]
    reasons = [f"{report.tool} reported an error: {error.text[:300]}" for error in own]
    reasons += [f"{gap.quantity}: {gap.reason}" for gap in report.gaps if gap.state == "unreadable"]
    if not reasons:
        return None
    return reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")


def _name_doubts(
    connection: sqlite3.Connection, source: Source, report: Report, written: Written
) -> Stored:
    """Return that a run is stored, with what perfctl did not understand of a format newer than
    itself; one without rows becomes partial."""
    if not written.new:
        return Stored(source.shown, written)
    query = "SELECT text FROM diagnostic WHERE run_id = ? AND source = ? AND severity = 'warning'"
    rows = connection.execute(query, (written.run_id, SOURCE)).fetchall()
    doubts = ["; ".join(text for (text,) in rows)] if rows else []
    is_empty = not holds_rows(connection, written)
    if is_empty:
        gaps = [gap.reason for about in _TABLES for gap in report.gaps if gap.quantity == about]
        header = f"it was recognised as {report.form}; its header may be missing or changed"
        reason = f"no rows were read: {written.reason or next(iter(gaps), header)}"
        set_partial(connection, written.run_id, reason)
        written = replace(written, reason=reason)
        doubts.append(reason)
    return Stored(source.shown, written, tuple(doubts), is_empty=is_empty)


def _take_run(connection: sqlite3.Connection, task: Task, settings: Settings, tell: Tell) -> None:
    """Take what run.json, the workload's record and the profiler's report say together, and each
    other rank as a run beside it.

    A report that cannot be read makes the run partial (its workload's own record is kept) or
    failed. Raises ReportError.
    """
    folder = task.source.path
    record = _read_record(folder)
    artifact = folder / str(record["artifact"]) if record["artifact"] else None
    digest = sha256(artifact) if artifact else None
    known = settings.known.get(digest) if digest else None
    # The record of the run that a replay put in place: transcribed and synthetic figures stay so
    # when they are replayed.
    first = (read_json(folder / RECORD_NAME) or {}) if record["origin"] == "recorded" else record
    is_made_up = first.get("origin") in ("transcribed", "synthetic")
    facts = RunFacts(
        **{name: record[name] for name in _FACTS},
        origin=str(first["origin"] if is_made_up else record["origin"]),
        artifact=relative_path(artifact, settings.store) if artifact else None,
        artifact_sha256=digest,
        command=tuple(record["commands"][0]) if record["commands"] else (),
        variant=record.get("variant"),
    )
    others = _find_ranks(folder)
    world_size = others[-1].number + 1 if others else None
    workload = folder / "workload.json"
    if known is None:
        rank = _Rank(0, workload if workload.is_file() else None, artifact)
        run = _read_surroundings(folder, record, first)
        written = _take_first_rank(connection, task, settings, rank, facts, run, record, world_size)
        others = others if written.new else []
    else:
        written = Written(known, new=False)
        stored = settings.ranks.get(known)
        others = [one for one in others if stored is not None and one.number not in stored.runs]
        task = replace(task, sweep=stored.sweep if stored is not None else task.sweep)
    ranks = [
        _take_rank(connection, task, settings, other, world_size, facts, record) for other in others
    ]
    tell(Stored(task.source.shown, written, ranks=tuple(ranks)))


def _take_first_rank(
    connection: sqlite3.Connection,
    task: Task,
    settings: Settings,
    rank: _Rank,
    facts: RunFacts,
    run: OwnRun,
    record: Mapping[str, Any],
    world_size: int | None,
) -> Written:
    """Take rank 0, or the only one. Raises ReportError."""
    folder = task.source.path
    report, facts = _read_rank(rank, facts, run, world_size)
    if report is not None and report.batch_size not in (None, facts.batch_size):
        sizes = f"batch size {facts.batch_size}, the workload ran {report.batch_size}"
        raise ReportError(folder, "perfctl", f"run.json says {sizes}", _AGAIN)
    if report is not None and facts.rank is not None and _is_shared(record):
        reason = (
            f"{facts.profiler} wrote one report of all {world_size} ranks, so that times and "
            "counts of a layer are sums over them; perfctl torch keeps ranks apart"
        )
        report = replace(report, gaps=(*report.gaps, Gap("rank", "ambiguous", reason)))
        if facts.status == "ok":
            facts = replace(facts, status="partial", reason=reason)
    path = rank.record or folder
    return _write(connection, task, settings, facts, report, path, beside=False)


def _read_record(folder: Path) -> dict[str, Any]:
    """Return run.json, checked: anybody may have written it. Raises ReportError where a field
    is missing."""
    record = read_run_record(folder)
    if record is None:
        raise ReportError(folder, "perfctl", "run.json is missing or not whole", _AGAIN)
    for name in (*_FACTS, "origin", "artifact", "commands"):
        if name not in record:
            raise ReportError(folder, "perfctl", f"run.json lacks {name}", _AGAIN)
    return record


def _read_surroundings(folder: Path, record: Mapping[str, Any], first: Mapping[str, Any]) -> OwnRun:
    """Return what lies beside the report, and what its profiler was told to leave out."""
    samples, launches = folder / "samples.csv", folder / LAUNCHES
    environment = {str(name): str(value) for name, value in _table(record, "environment").items()}
    gaps = []
    if layers := ", ".join(map(str, _table(first, "profiler_options").get("layers") or ())):
        environment["ncu:layers"] = layers
        # launches that the profiler was told to leave out are not zero
        why = f"ncu was told to count only in these layers: {layers}"
        gaps.append(Gap("kernel", "not_collected", why))
    return OwnRun(
        samples=samples if samples.is_file() else None,
        environment=environment,
        launches=launches if launches.is_file() and record["profiler"] == "ncu" else None,
        gaps=tuple(gaps),
    )


def _table(record: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = record.get(field)
    return value if isinstance(value, dict) else {}


def _is_shared(record: Mapping[str, Any]) -> bool:
    """Return whether the profiler put all ranks into one report."""
    is_own = any("--under" in command for command in record["commands"][:1])
    return record["profiler"] in _ONE_REPORT and not is_own


def _find_ranks(folder: Path) -> list[_Rank]:
    """Return the ranks beside the first, by the files that carry their number: workload.rank1.json,
    report.rank1.pt.trace.json.gz."""
    ranks: dict[int, _Rank] = {}
    for path in sorted(folder.iterdir()):
        match = _RANK.match(path.name)
        if match is None or not path.is_file():
            continue
        number = int(match[2])
        rank = ranks.get(number, _Rank(number))
        is_source = path.suffix == ".ncu-rep" and path.with_suffix(".csv").exists()
        if match[1] == "workload":
            rank = replace(rank, record=path)
        elif path.suffix not in _LEFT_OVER and not is_source:
            rank = replace(rank, report=path)
        ranks[number] = rank
    return [ranks[number] for number in sorted(ranks)]


def _read_rank(
    rank: _Rank, facts: RunFacts, run: OwnRun, world_size: int | None
) -> tuple[Report | None, RunFacts]:
    """Parse and complete the files of a rank; the facts with its number, and with what went wrong.
    Raises ReportError."""
    record = parsers.parse(rank.record) if rank.record is not None else None
    report = None
    if rank.report is not None and rank.report != rank.record:
        try:
            report = parsers.parse(rank.report, single_operators=False)
        except ReportError as error:
            reason = f"{facts.reason}; {error}" if facts.reason else str(error)
            facts = replace(facts, status="partial" if record else "failed", reason=reason)
    if report is None or record is None:
        report, record = report or record, None
        report = report and replace(report, tool=facts.profiler)
    if world_size is not None:
        variant = facts.variant or (record or report or facts).variant
        variant = mark_rank(variant, rank.number, world_size)
        facts = replace(facts, variant=variant, rank=rank.number, world_size=world_size)
        numbers = {"rank": str(rank.number), "world_size": str(world_size)}
        run = replace(run, environment={**run.environment, **numbers})
    if report is None:
        return None, facts
    return complete(report, Context(report.path, run=replace(run, record=record))), facts


def _take_rank(
    connection: sqlite3.Connection,
    task: Task,
    settings: Settings,
    rank: _Rank,
    world_size: int | None,
    first: RunFacts,
    record: Mapping[str, Any],
) -> int:
    """Take a rank as a run of its own, partial where its record or its trace cannot be read; the
    number of the run. ``first``: what is known of rank 0."""
    facts = replace(
        first,
        artifact=relative_path(rank.report, settings.store) if rank.report else None,
        artifact_sha256=sha256(rank.report) if rank.report else None,
        variant=record.get("variant"),
        status=record["status"],
        reason=record["reason"],
    )
    gaps = []
    if rank.report is None and facts.profiler in _ONE_REPORT:
        only_first = any("--under-rank" in command for command in record["commands"][:1])
        why = f"{facts.profiler} wrote one report of all ranks: it is with rank 0"
        if only_first:
            why = (
                f"only rank 0 ran under {facts.profiler}, which is its default (--ranks all counts "
                "every rank)"
            )
        elif not _is_shared(record):
            why = (
                f"{facts.profiler} left no report of this rank; stderr.log says what it and the "
                "script said"
            )
            facts = replace(facts, status="partial", reason=facts.reason or why)
        state = "not_collected" if only_first else "not_available"
        gaps.append(Gap("kernel", state, why))
    try:
        report, facts = _read_rank(rank, facts, OwnRun(gaps=tuple(gaps)), world_size)
    except ReportError as error:
        facts = replace(
            facts,
            status="failed",
            reason=str(error),
            variant=mark_rank(facts.variant, rank.number, world_size),
            rank=rank.number,
            world_size=world_size,
        )
        report = None
    path = rank.record or task.source.path
    return _write(connection, task, settings, facts, report, path).run_id


def relative_path(path: Path, store: Path) -> str:
    """Return the path relative to the store's folder where it lies below it, so that both can be
    moved together."""
    full, home = path.resolve(), store.resolve().parent
    return os.path.relpath(full, home) if full.is_relative_to(home) else str(full)
