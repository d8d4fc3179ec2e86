"""Take a report into the database: parse -> complete -> write -> derive. Nothing else adds to a
report between its parser and the database.

``run_folders`` does the same with the folders of perfctl's own runs.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfctl import parsers
from perfctl.orchestrator.estimate.flops import engine
from perfctl.orchestrator.ingest.context import (
    IngestSettings,
    IngestTask,
    NoteSent,
    RunStored,
    UserHints,
    WarningSent,
)
from perfctl.orchestrator.ingest.derive import store_derived_counts_and_families
from perfctl.orchestrator.ingest.find import ReportSource, hash_file_or_folder
from perfctl.orchestrator.ledger.usage.ranks import add_exposed_ns_to_collectives
from perfctl.orchestrator.ledger.usage.served import compute_kernel_time_share_with_layer
from perfctl.orchestrator.pool import Tell
from perfctl.orchestrator.store.write import (
    RunFacts,
    WrittenRun,
    has_report_rows,
    mark_run_partial,
    write_run,
)
from perfctl.parsers import ReportError
from perfctl.parsers.common.doubts import SOURCE
from perfctl.records.paper import LayerCall
from perfctl.records.report import Device, Diagnostic, Gap, Report

_TABLES = ("kernel", "operation", "range", "sample", "summary", "copy", "counter")
"""Quantities of gaps that are whole tables, what is looked for most first."""


def ingest_report(
    connection: sqlite3.Connection, task: IngestTask, settings: IngestSettings, tell: Tell
) -> None:
    """Take each run that a report holds. One that is in the database already is recognised by its
    SHA-256; of a file with several runs each has its number behind it. Raises ReportError."""
    source, hints = task.source, settings.hints
    before = _read_size_and_time(source.path)
    digest = hash_file_or_folder(source.path)
    if (known_run := settings.known.get(digest)) is not None:
        tell(RunStored(source.shown, WrittenRun(known_run, new=False)))
        return
    capture = hints.capture
    if capture is not None and capture.resolve() == source.path.resolve():
        capture = None  # it stands in a folder with the traces that it tells of
    artifact = make_path_relative_to_store(source.shown, settings.store)
    for part in parsers.parse_every_run(
        source.path, capture=capture, source=hints.source, single_operators=hints.op_calls
    ):
        part_digest = f"{digest}#{part.number}" if part.is_of_several else digest
        facts = RunFacts(
            "unknown", "ok", "ingested", artifact=artifact, artifact_sha256=part_digest
        )
        if part.twin is not None:
            text = f"run {part.number} repeats run {part.twin} and was skipped"
            tell(NoteSent(f"{source.shown}: {text}"))
        elif part.report is not None:
            report = add_hints_and_guessed_layers(part.report, task, settings)
            reason = _explain_partial_run(report)
            status = "partial" if reason else "ok"
            facts = replace(facts, profiler=report.tool, status=status, reason=reason)
            written = write_run_and_derive(connection, task, settings, facts, report, source.path)
            written = replace(written, placed=compute_kernel_time_share_with_layer(report))
            if written.new and _read_size_and_time(source.path) != before:
                reason = "the file changed while perfctl read it: ingest it again when complete"
                mark_run_partial(connection, written.run_id, reason)
                written = replace(written, reason=reason)
            for event in _mark_partial_and_list_events(connection, source, report, written):
                tell(event)
        elif part.error is not None:
            reason = f"{part.error.reason}. {part.error.remedy}"
            facts = replace(facts, profiler=part.error.tool, status="failed", reason=reason)
            written = write_run_and_derive(connection, task, settings, facts, None, source.path)
            tell(RunStored(source.shown, written))


def _read_size_and_time(path: Path) -> tuple[int, int] | None:
    """Return what a program that writes to the file changes; None for a folder."""
    facts = path.stat()
    return None if path.is_dir() else (facts.st_size, facts.st_mtime_ns)


def add_hints_and_guessed_layers(
    report: Report, task: IngestTask, settings: IngestSettings
) -> Report:
    """Return the report with what the user and its name say, and with guessed layers where that is
    asked for. Needs torch for these; raises PerfctlError for a workload that is not known."""
    report = _add_name_and_hint_facts(report, task, settings.hints)
    if settings.estimate is None:
        return report
    if report.workload is None or report.batch_size is None:
        reason = (
            "perfctl could not guess layers: workload or batch size unknown. Run perfctl ingest "
            "--workload NAME --batch N"
        )
        return replace(report, gaps=(*report.gaps, Gap("kernel.layer", "not_available", reason)))
    from perfctl.orchestrator.counts.kernels.layers import guess_kernel_layers

    mode = report.mode or "train"
    ops, calls = settings.estimate(report.workload, mode, report.batch_size)
    layers = guess_kernel_layers(report.kernels, calls)
    report = replace(report, kernels=layers.kernels, gaps=(*report.gaps, *layers.gaps))
    if not layers.guessed:
        return report
    return replace(report, ops=report.ops or tuple(ops), mode=mode)


def _add_name_and_hint_facts(report: Report, task: IngestTask, hints: UserHints) -> Report:
    """Return the report with facts that the user gave, else its name; each is noted."""
    name = task.name
    hinted = {
        "batch_size": hints.batch,
        "workload": hints.workload,
        "mode": hints.mode,
        "precision": hints.precision,
    }
    changes: dict[str, Any] = {field: value for field, value in hinted.items() if value is not None}
    notes = [f"{field} was set by the user" for field in changes]
    gaps = []
    if report.batch_size is None and hints.batch is None:
        if name.batch_size is not None:
            changes["batch_size"] = name.batch_size
            notes.append(
                f"batch_size {name.batch_size} was read from the name {task.source.shown.name}"
            )
        else:
            gaps.append(Gap("batch_size", "not_available", _explain_missing_batch_size(report)))
    if report.rank is None and name.rank is not None:
        changes |= {"rank": name.rank, "world_size": report.world_size or name.world_size}
    rank = changes.get("rank", report.rank)
    if rank is not None:
        world_size = changes.get("world_size", report.world_size)
        changes["variant"] = add_rank_to_variant(report.variant, rank, world_size)
    # Where there is a GPU it did the work, wherever the report lists it.
    devices = sorted(report.devices, key=lambda device: device.kind != "gpu")
    if hints.device_name is not None:
        first, *other_devices = devices or [Device(None, "gpu")]
        devices = [replace(first, name=hints.device_name), *other_devices]
        notes.append("device name was set by the user")
    if (
        hints.source
        and report.tool != "workload"
        and not report.source_counters
        and all(gap.quantity != "source_counter" for gap in report.gaps)
    ):
        reason = "only .ncu-rep files contain counters per instruction"
        gaps.append(Gap("source_counter", "not_available", reason))
    noted = [Diagnostic("info", "perfctl ingest", note) for note in notes]
    return replace(
        report,
        devices=tuple(devices),
        diagnostics=(*report.diagnostics, *noted),
        gaps=(*report.gaps, *gaps),
        **changes,
    )


def _explain_missing_batch_size(report: Report) -> str:
    steps = list(report.served_steps)
    if steps and all(step.prompts is not None and step.decodes is not None for step in steps):
        return (
            "the file states the sequences of each step (table served_step), but no batch size of "
            "the complete run"
        )
    return "the file does not state it; set it with perfctl ingest --batch"


def add_rank_to_variant(variant: str | None, rank: int, world_size: int | None) -> str:
    """Return the variant with "rank 0 of 8" in it, which keeps ranks apart from each other and from
    runs of one process."""
    mark = f"rank {rank}" if world_size is None else f"rank {rank} of {world_size}"
    return f"{variant}, {mark}" if variant else mark


def write_run_and_derive(
    connection: sqlite3.Connection,
    task: IngestTask,
    settings: IngestSettings,
    facts: RunFacts,
    report: Report | None,
    error_path: Path,
    *,
    keep_other_runs: bool = True,
) -> WrittenRun:
    """Write a run with the time of its collectives that nothing covers and the estimated FLOPs of
    its shapes; then derive, in a transaction of its own, what follows from its rows. Raises
    ReportError, which names ``error_path``."""
    calls: tuple[LayerCall, ...] = ()
    if report is not None:
        collectives = list(report.collectives)
        if collectives and isinstance(report.kernels, Sequence):
            collectives = add_exposed_ns_to_collectives(collectives, report.kernels)
        ops = tuple(engine.select_countable_operations(report.ops, was_executed=True))
        report = replace(report, collectives=collectives, ops=ops)
        calls = _estimate_layer_calls(error_path, report)
        if facts.origin == "ingested":
            # A trace knows no parameters, and bytes only with its tensors' types.
            if not any(op.parameters for op in report.ops):
                calls = tuple(call._replace(parameters=None) for call in calls)
            if any(not op.dtypes for op in report.ops):
                calls = tuple(call._replace(read_bytes=None, write_bytes=None) for call in calls)
        if task.features is not None and not keep_other_runs:
            report = replace(report, features=task.features(calls))
    try:
        written = write_run(
            connection,
            task.sweep,
            facts,
            report,
            calls,
            allow_duplicate_artifact=settings.again,
            keep_failed_runs=keep_other_runs,
        )
    except OverflowError as error:
        problem = f"a number in it is beyond 64 bits ({error})"
        raise ReportError(error_path, facts.profiler, problem, "Create the report again") from error
    if written.new and written.kernels:
        store_derived_counts_and_families(connection, written.run_id)
    return written


def _estimate_layer_calls(path: Path, report: Report) -> tuple[LayerCall, ...]:
    """Return the estimated FLOPs of the shapes in a report. Raises ReportError if the shapes
    make no sense."""
    try:
        return engine.build_layer_calls_with_flops(report.ops)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"its shapes are invalid ({type(error).__name__}: {error})"
        raise ReportError(path, report.tool, reason, "Run this batch size again") from error


def _explain_partial_run(report: Report) -> str | None:
    """Return errors that the tool stated, or parts that cannot be read; None without any."""
    tool_errors = [
        d for d in report.diagnostics if d.severity == "error" and d.source == report.tool
    ]
    reasons = [f"{report.tool} reported an error: {error.text[:300]}" for error in tool_errors]
    reasons += [f"{gap.quantity}: {gap.reason}" for gap in report.gaps if gap.state == "unreadable"]
    if not reasons:
        return None
    return reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")


def _mark_partial_and_list_events(
    connection: sqlite3.Connection, source: ReportSource, report: Report, written: WrittenRun
) -> Iterator[RunStored | WarningSent]:
    """Yield that a run is stored, and what perfctl did not understand of a format newer than
    itself; a run without rows becomes partial."""
    is_empty = written.new and not has_report_rows(connection, written)
    reason = ""
    if is_empty:
        gaps = [gap.reason for about in _TABLES for gap in report.gaps if gap.quantity == about]
        header = f"it was recognized as {report.form}; its header may be missing or changed"
        reason = f"no rows were read: {written.reason or next(iter(gaps), header)}"
        mark_run_partial(connection, written.run_id, reason)
        written = replace(written, reason=reason)
    yield RunStored(source.shown, written, is_empty=is_empty)
    query = "SELECT text FROM diagnostic WHERE run_id = ? AND source = ? AND severity = 'warning'"
    rows = connection.execute(query, (written.run_id, SOURCE)).fetchall() if written.new else ()
    for doubt in ("; ".join(text for (text,) in rows), reason):
        if doubt:
            yield WarningSent(f"{source.shown}: {doubt}")


def make_path_relative_to_store(path: Path, store: Path) -> str:
    """Return the path relative to the database's folder where it lies below it, so that both can be
    moved together."""
    full, home = path.resolve(), store.resolve().parent
    return os.path.relpath(full, home) if full.is_relative_to(home) else str(full)
