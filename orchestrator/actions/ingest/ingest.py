"""Take reports that were made elsewhere, and folders of perfctl's own runs, from disk into the store."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from perfctl import parsers
from perfctl.orchestrator.actions.estimate import Request, estimate_at
from perfctl.orchestrator.actions.ingest.derived import derived_rows
from perfctl.orchestrator.actions.ingest.run import estimate_shapes, relative, take_run
from perfctl.orchestrator.actions.ingest.scan_file import FileScan
from perfctl.orchestrator.actions.messages import Messages, Silent
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.analyse.kernels.names import family
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError
from perfctl.orchestrator.launch.sweep.folders import read_run_record
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.write import RunFacts, SweepFacts, Written, find_artifact, holds_artifacts, write_run
from perfctl.parsers import ReportError
from perfctl.parsers.text.doubts import SOURCE
from perfctl.records.report import Device, Diagnostic, Gap, Report
from perfctl.workloads.spec import MODES, PRECISIONS

_BATCH_IN_NAME = re.compile(
    r"(?<![a-z0-9])(?:batch(?:size)?|bs|b)[-_]?(\d+)(?![a-z0-9])|(?<![a-z0-9])(\d+)_batch(?![a-z0-9])", re.IGNORECASE
)
_GPU_NAMES = re.compile(r"(?<![a-z0-9])b(?:40|100|200|300)(?![a-z0-9])", re.IGNORECASE)
"""Blackwell GPUs stand in file names just as batch sizes do."""
_NAMED = 8
"""Names of secrets that a warning lists."""
_PROFILERS = (".nsys-rep", ".qdrep", ".qdstrm", ".ncu-rep", ".nsight-cuprof-report")
"""Ends of names that nothing but a profiler gives."""
_REPORTS = (".sqlite", ".pt.trace.json", ".pt.trace.json.gz", ".csv")
"""Ends of names that reports have among others."""


@dataclass(frozen=True, slots=True)
class UserHints:
    """What the user says about reports that do not say it themselves; None where nothing was said."""

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
    """Where a report has no ranges, guess which layer of ``workload`` launched what, by order and shape. Needs torch."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of the reports."""

    store: Path
    taken: tuple[tuple[Path, Written], ...]
    """(report or run folder, its run) of each that is in the store now; ``Written.new`` is False for one that was already."""
    failed: tuple[str, ...]
    """One line for each report that could not be read."""

    def check(self) -> None:
        """Raises PartlyDone where some could not be read, PerfctlError where none could."""
        total = len(self.failed) + len(self.taken)
        if self.failed and not self.taken:
            raise PerfctlError(f"nothing was taken in: {total} of {total} could not be read")
        if self.failed:
            raise PartlyDone(f"{len(self.failed)} of {total} could not be read; the others are in the store")


class IngestListener(Messages, Protocol):
    """Hears how the reading goes."""

    def found(self, total: int) -> None:
        """So many files and folders will be read."""

    def begin(self, path: Path, what: str = "reading") -> None:
        """``what`` happens to ``path`` from now on."""

    def end(self) -> None:
        """The current file is done."""

    def failed(self, text: str) -> None:
        """One report could not be read, and why."""


class _Silent(Silent):
    def found(self, total: int) -> None: ...
    def begin(self, path: Path, what: str = "reading") -> None: ...
    def end(self) -> None: ...
    def failed(self, text: str) -> None: ...


SILENT: IngestListener = _Silent()
"""Hears nothing."""


def ingest(
    paths: Path | str | Iterable[Path | str],
    store: Path | str = DEFAULT,
    *,
    hints: UserHints = UserHints(),
    again: bool = False,
    listener: IngestListener = SILENT,
    command_line: str | None = None,
) -> Ingested:
    """Take reports of any profiler that perfctl knows, and run folders, into ``store``, which is made if need be.

    ``paths``: report files, or folders that hold some. Each report goes in whole or not at all; one that cannot be read
    is in ``failed`` and does not stop the others. ``again`` takes in once more what the store has already.
    ``command_line`` is stored with the runs.

    Raises UsageError for hints that make no sense, ToolMissing where ``guess_layers`` finds no torch, StoreError.
    """
    check_hints(hints)
    given = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
    store = Path(store)
    at = database.now()
    sweep = SweepFacts(f"ingest {at} {os.getpid()}", "ingest", command_line, os.uname().nodename, at)
    files = {path: sources(path) if path.is_dir() else [path] for path in given}
    listener.found(sum(map(len, files.values())))
    with database.writing(store) as connection:
        intake = _Intake(connection, sweep, hints, store, again, listener)
        for path, inside in files.items():
            intake.take_all(path, inside)
    return Ingested(store, tuple(intake.taken), tuple(intake.failed))


def check_hints(hints: UserHints) -> None:
    """Everything that can be wrong before any report is read. Raises UsageError, ToolMissing or PerfctlError."""
    for field_name, value, known in (("mode", hints.mode, MODES), ("precision", hints.precision, PRECISIONS)):
        if value is not None and value not in known:
            raise UsageError(f"`{field_name}`: '{value}' is not known", f"Use one of {', '.join(known)}")
    if hints.batch_size is not None and hints.batch_size < 1:
        raise UsageError(f"`batch_size` must be at least 1, got {hints.batch_size}")
    if hints.guess_layers and hints.workload is None:
        remedy = "Name it with `workload`: mnist_cnn, torchvision:resnet18, ..."
        raise UsageError("`guess_layers`: of which network?", remedy)
    if hints.guess_layers:
        estimate_at(Request(str(hints.workload), mode=hints.mode or "train"), 1)


@dataclass(slots=True)
class _Intake:
    """One call of ``ingest``: where its files go, and what became of each."""

    connection: sqlite3.Connection
    sweep: SweepFacts
    hints: UserHints
    store: Path
    again: bool
    listener: IngestListener
    taken: list[tuple[Path, Written]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def take_all(self, given: Path, files: list[Path]) -> None:
        """``files`` are the reports that ``given``, a file or a folder, holds."""
        broken = self._name_others(given, files)
        if not files and not broken:
            self._failed(f"{given}: no report was found in this folder. Name the report file itself")
        for path in files:
            self.listener.begin(path)
            self._take(path)
            self.listener.end()

    def _take(self, path: Path) -> None:
        try:
            if path.is_dir() and read_run_record(path) is not None:
                self._note(path, take_run(self.connection, path, self.sweep, store=self.store, again=self.again))
                return
            with FileScan(path) as scan, parsers.no_collection():
                written = take_report(
                    self.connection, path, scan.digest, self.sweep, self.hints, store=self.store, again=self.again
                )
                self._note(path, written)
                self.listener.begin(path, "looking for secrets")
                self._warn_of_secrets(path, scan.secrets())
        except FileNotFoundError:
            self._failed(f"{path}: there is no such file. Check the path")
        except OSError as error:
            self._failed(f"{error.filename or path}: {error.strerror or error}. Check who may read there")
        except ReportError as error:
            self._failed(str(error))

    def _note(self, path: Path, written: Written) -> None:
        """Warn of what was not understood of a format newer than perfctl, in one line; the store keeps it too."""
        self.taken.append((path, written))
        query = "SELECT text FROM diagnostic WHERE run_id = ? AND source = ? AND severity = 'warning'"
        said = self.connection.execute(query, (written.run_id, SOURCE)).fetchall() if written.new else []
        if said:
            self.listener.warning(f"{path}: {'; '.join(text for (text,) in said)}")

    def _failed(self, why: str) -> None:
        self.failed.append(why)
        self.listener.failed(why)

    def _warn_of_secrets(self, path: Path, names: list[str]) -> None:
        """Name what looks like a secret in a report, so that nobody shares the file without knowing."""
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            held, command = f"{', '.join(names[:_NAMED])}{more}", f"perfctl scrub {shlex.quote(str(path))}"
            self.listener.warning(f"{path}: holds what looks like secrets ({held}): {command}")

    def _name_others(self, folder: Path, found: list[Path]) -> bool:
        """Name the files of a folder that are not reports; whether some should be one, by their name: these failed."""
        if not folder.is_dir() or found == [folder]:
            return False
        others = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]
        taken = set(found)
        why = {file: _why_broken(file) for file in others if file not in taken and taken.isdisjoint(file.parents)}
        broken = [said for said in why.values() if said is not None]
        for said in broken:
            self._failed(said)
        if names := [file.name for file, said in why.items() if said is None]:
            files = "1 file that is not a report" if len(names) == 1 else f"{len(names)} files that are not reports"
            more = ", ..." if len(names) > 5 else ""
            self.listener.note(f"{folder}: skipped {files}: {', '.join(names[:5])}{more}")
        return bool(broken)


def _why_broken(path: Path) -> str | None:
    """What is wrong with a file that no parser knows although its name says that it is, or was, a report."""
    try:
        if path.name.endswith(_PROFILERS) or (path.name.endswith(_REPORTS) and parsers.is_stump(path)):
            parsers.parse(path)
    except (ReportError, OSError) as error:
        return str(error)
    return None


def sources(path: Path) -> list[Path]:
    """Run folders, DLProf folders and report files at ``path``, sorted."""
    return parsers.find(path, is_one=lambda folder: read_run_record(folder) is not None)


def take_report(
    connection: sqlite3.Connection,
    path: Path,
    digest: Callable[[], str],
    sweep: SweepFacts,
    hints: UserHints,
    *,
    store: Path,
    again: bool,
) -> Written:
    """Store one report made elsewhere. Raises ReportError when it cannot be read; the store is then as it was.

    ``digest`` gives its SHA-256, by which a report that is in the store already is recognised. It is called late, so that
    another thread may work it out during the parsing.
    """
    if not again and holds_artifacts(connection) and (known := find_artifact(connection, digest())) is not None:
        return Written(known, new=False)
    report = _with_hints(parsers.parse(path, source=hints.source), hints, path)
    if hints.source and report.tool != "workload" and not report.source_counters:
        known = any(gap.quantity == "source_counter" for gap in report.gaps)
        gap = Gap("source_counter", "not_available", "only .ncu-rep files hold counters of each instruction")
        report = replace(report, gaps=report.gaps if known else (*report.gaps, gap))
    # A report made elsewhere may list its devices in any order: where there is a GPU, the GPU did the work.
    report = replace(report, devices=tuple(sorted(report.devices, key=lambda device: device.kind != "gpu")))
    if hints.guess_layers:
        report = _with_guesses(report)
    reason, place = _errors(report), relative(path, store)
    status = "partial" if reason else "ok"
    facts = RunFacts(report.tool, status, "ingested", reason=reason, artifact=place, artifact_sha256=digest())
    return write_run(
        connection, sweep, facts, report, estimate_shapes(path, report), family=family, again=again, derive=derived_rows
    )


def _with_hints(report: Report, hints: UserHints, path: Path) -> Report:
    """The report completed from the user's hints, then from its file name; each such value is marked."""
    given = {field: getattr(hints, field) for field in ("batch_size", "workload", "mode", "precision")}
    changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    notes = [f"{field} was given by the user" for field in changes]
    if report.batch_size is None and hints.batch_size is None and (batch := batch_in_name(path)) is not None:
        changes["batch_size"] = batch
        notes.append(f"batch_size {batch} was read from the name {path.name}")
    if hints.device_name is not None:
        first, *rest = report.devices or (Device(None, "gpu"),)
        changes["devices"] = (replace(first, name=hints.device_name), *rest)
        notes.append("device name was given by the user")
    said = tuple(Diagnostic("info", "perfctl ingest", note) for note in notes)
    gaps = report.gaps
    if report.batch_size is None and "batch_size" not in changes:
        gaps = (*gaps, Gap("batch_size", "not_available", "the file does not say; give it with perfctl ingest --batch"))
    return replace(report, diagnostics=(*report.diagnostics, *said), gaps=gaps, **changes)


def batch_in_name(path: Path) -> int | None:
    """The batch size in the name of a file or its folder (b64, batch_64, resnet152_5_batch); None if none or several."""
    for part in (path.stem, path.parent.name):
        stated = {int(a or b) for a, b in _BATCH_IN_NAME.findall(_GPU_NAMES.sub("", part))}
        if stated:
            return stated.pop() if len(stated) == 1 else None
    return None


def _errors(report: Report) -> str | None:
    """What makes a report partial: errors the tool stated, or parts that cannot be read; None when there are none."""
    own = [d for d in report.diagnostics if d.severity == "error" and d.source == report.tool]
    said = [f"{report.tool} reported an error: {d.text[:300]}" for d in own]
    said += [f"{gap.quantity}: {gap.reason}" for gap in report.gaps if gap.state == "unreadable"]
    return None if not said else said[0] + (f" (and {len(said) - 1} more)" if len(said) > 1 else "")


def _with_guesses(report: Report) -> Report:
    """The report with layers, directions and steps guessed, and the shapes they were guessed from; else with a gap."""
    if report.workload is None or report.batch_size is None:
        reason = "no layers were guessed: workload or batch size unknown; use perfctl ingest --workload NAME --batch N"
        return replace(report, gaps=(*report.gaps, Gap("kernel.layer", "not_available", reason)))
    from perfctl.orchestrator.analyse.kernels.guess_layers import guess

    mode = report.mode or "train"
    paper = estimate_at(Request(report.workload, mode=mode), report.batch_size)
    made = guess(report.kernels, paper.calls)
    report = replace(report, kernels=made.kernels, gaps=(*report.gaps, *made.gaps))
    return replace(report, ops=report.ops or paper.ops, mode=mode) if made.guessed else report
