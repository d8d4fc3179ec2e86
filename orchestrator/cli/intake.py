"""A report that was made elsewhere, from disk into the store."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from perfctl import parsers
from perfctl.orchestrator.analyse.algorithms import family
from perfctl.orchestrator.cli.run_record import paper
from perfctl.orchestrator.launch.run_folder import read_run_record
from perfctl.orchestrator.store.write import (
    RunFacts,
    SweepFacts,
    Written,
    find_artifact,
    holds_artifacts,
    write_run,
)
from perfctl.parsers.records import Device, Diagnostic, Gap, Report

_BATCH_IN_NAME = re.compile(
    r"(?<![a-z0-9])(?:batch(?:size)?|bs|b)[-_]?(\d+)(?![a-z0-9])|(?<![a-z0-9])(\d+)_batch(?![a-z0-9])", re.IGNORECASE
)
_GPU_NAMES = re.compile(r"(?<![a-z0-9])b(?:40|100|200|300)(?![a-z0-9])", re.IGNORECASE)
"""Blackwell GPUs stand in file names just as batch sizes do."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the user says about reports that cannot say it themselves; None where nothing was said."""

    batch_size: int | None = None
    workload: str | None = None
    device_name: str | None = None
    mode: str | None = None
    precision: str | None = None
    guess_layers: bool = False


def sources(path: Path) -> list[Path]:
    """Run folders, DLProf folders and report files at ``path``, sorted."""
    return parsers.find(path, is_one=lambda folder: read_run_record(folder) is not None)


def take_report(
    connection: sqlite3.Connection,
    path: Path,
    digest: Callable[[], str],
    sweep: SweepFacts,
    told: Told,
    *,
    store: Path,
    again: bool,
) -> Written:
    """One report made elsewhere. Raises ReportError when it cannot be read; the store is then as it was.

    ``digest`` gives its SHA-256, by which one that is in the store already is known; asked for late, it may be worked
    out meanwhile.
    """
    if not again and holds_artifacts(connection) and (known := find_artifact(connection, digest())) is not None:
        return Written(known, new=False)
    report = _gpus_first(_with_told(parsers.parse(path), told, path))
    if told.guess_layers:
        from perfctl.orchestrator.cli.guessing import with_guesses

        report = with_guesses(report)
    facts = RunFacts(
        profiler=report.tool,
        status="partial" if _errors(report) else "ok",
        origin="ingested",
        reason=_errors(report),
        artifact=relative(path, store),
        artifact_sha256=digest(),
    )
    return write_run(connection, sweep, facts, report, paper(path, report), family=family, again=again)


def _gpus_first(report: Report) -> Report:
    """In a report made elsewhere, the device that did the work is a GPU where there is one."""
    return replace(report, devices=tuple(sorted(report.devices, key=lambda device: device.kind != "gpu")))


def _with_told(report: Report, told: Told, path: Path) -> Report:
    """The report completed by what the user said, then by what its name says; each marked as such."""
    changes: dict[str, object] = {
        field: getattr(told, field)
        for field in ("batch_size", "workload", "mode", "precision")
        if getattr(told, field) is not None
    }
    notes = [f"{field} was given by the user" for field in changes]
    if report.batch_size is None and told.batch_size is None and (batch := batch_in_name(path)) is not None:
        changes["batch_size"] = batch
        notes.append(f"batch_size {batch} was read from the name {path.name}")
    if told.device_name is not None:
        first, rest = (report.devices[:1] or (Device(None, "gpu"),))[0], report.devices[1:]
        changes["devices"] = (replace(first, name=told.device_name), *rest)
        notes.append("device name was given by the user")
    said = tuple(Diagnostic("info", "perfctl ingest", note) for note in notes)
    gaps = report.gaps
    if report.batch_size is None and "batch_size" not in changes:
        gaps = (*gaps, Gap("batch_size", "not_available", "the file does not say; give it with --batch"))
    return replace(report, diagnostics=(*report.diagnostics, *said), gaps=gaps, **changes)  # type: ignore[arg-type]


def batch_in_name(path: Path) -> int | None:
    """The batch size that a file's or its folder's name states (b64, batch_64, resnet152_5_batch); None if none or several."""
    for part in (path.stem, path.parent.name):
        stated = {int(a or b) for a, b in _BATCH_IN_NAME.findall(_GPU_NAMES.sub("", part))}
        if stated:
            return stated.pop() if len(stated) == 1 else None
    return None


def _errors(report: Report) -> str | None:
    """What makes a report partial: errors the tool stated, or parts that cannot be read; None when there are none."""
    said = [f"{report.tool} reported an error: {d.text[:300]}" for d in report.diagnostics if _is_own_error(d, report)]
    said += [f"{gap.quantity}: {gap.reason}" for gap in report.gaps if gap.state == "unreadable"]
    return None if not said else said[0] + (f" (and {len(said) - 1} more)" if len(said) > 1 else "")


def _is_own_error(said: Diagnostic, report: Report) -> bool:
    return said.severity == "error" and said.source == report.tool


def relative(path: Path, store: Path) -> str:
    """Relative to the store's folder where it lies below it, so that both can be moved together."""
    full, home = path.resolve(), store.resolve().parent
    return os.path.relpath(full, home) if full.is_relative_to(home) else str(full)
