"""perfctl ingest"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.reading import reading
from perfctl.orchestrator.cli.store_access import DEFAULT
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError

if TYPE_CHECKING:
    import sqlite3

    from perfctl.orchestrator.cli.intake import Told
    from perfctl.orchestrator.cli.reading import Reading
    from perfctl.orchestrator.store.write import SweepFacts, Written


NAMED = 8
"""Names of secrets that are named in a warning."""
PROFILERS = (".nsys-rep", ".qdrep", ".qdstrm", ".ncu-rep", ".nsight-cuprof-report")
"""Ends of names that nothing but a profiler gives."""
REPORTS = (".sqlite", ".pt.trace.json", ".pt.trace.json.gz", ".csv")
"""Ends of names that reports have among others."""


def ingest(
    paths: Annotated[list[Path], typer.Argument(help="Report files, or folders that hold some.")],
    batch: Annotated[int | None, typer.Option(min=1, help="Batch size, where the file cannot say.")] = None,
    workload: Annotated[str | None, typer.Option(help="Name of the workload, where the file cannot say.")] = None,
    device_name: Annotated[str | None, typer.Option(help="Name of the GPU or CPU, where the file cannot say.")] = None,
    mode: options.Mode = None,
    precision: options.Precision = None,
    guess_layers: Annotated[
        bool,
        typer.Option(
            "--guess-layers",
            help="Where a report has no ranges: guess which layer of --workload launched what, by order and shape.",
        ),
    ] = False,
    store: options.Store = None,
    again: Annotated[bool, typer.Option("--again", help="Take in once more what the store has already.")] = False,
    as_json: options.Json = False,
) -> None:
    """Take in reports made elsewhere, of any profiler that perfctl knows, and run folders.

    nsys: .sqlite, .nsys-rep, .qdrep, .qdstrm, 'nsys stats' as CSV, TSV, JSON or text. ncu: CSV of any page, console
    text, .ncu-rep. DLProf: CSV, JSON, dlprof_dldb.sqlite. torch.profiler: Kineto traces, plain or gzipped. nvprof:
    GPU trace as text. nvidia-smi: queries, tables, dmon, pmon. DCGM: dmon.

    Each file goes in whole or not at all; one that cannot be read does not stop the others.
    """
    # Nothing here multiplies matrices: numpy's threads for that would only spin for a tenth of a second.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from perfctl.orchestrator.cli.intake import Told, sources
    from perfctl.orchestrator.store import database
    from perfctl.orchestrator.store.write import SweepFacts

    _check_words(mode, precision)
    if guess_layers:
        from perfctl.orchestrator.cli.guessing import check

        check(workload, mode)
    told = Told(batch, workload, device_name, mode, precision, guess_layers)
    store = store or DEFAULT
    at = database.now()
    command = shlex.join(["perfctl", *sys.argv[1:]])
    sweep = SweepFacts(f"ingest {at} {os.getpid()}", "ingest", command, os.uname().nodename, at)
    given = {path: sources(path) if path.is_dir() else [path] for path in paths}
    with database.writing(store) as connection, reading(sum(map(len, given.values()))) as progress:
        intake = _Intake(connection, sweep, told, store, again)
        for path, files in given.items():
            intake.take_all(path, files, progress)
    _tell(intake.taken, intake.failed, store, as_json)


def _name_others(folder: Path, found: list[Path]) -> list[str]:
    """Files of a folder that are no reports are passed over, and said; what is wrong with those that ought to be some."""
    if not folder.is_dir() or found == [folder]:
        return []
    others = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    taken = set(found)
    others = [file for file in others if file not in taken and taken.isdisjoint(file.parents)]
    wrong = {file: said for file in others if (said := _why_broken(file)) is not None}
    for said in wrong.values():
        console.error(said)
    others = [file for file in others if file not in wrong]
    if others:
        names = ", ".join(file.name for file in others[:5]) + (", ..." if len(others) > 5 else "")
        console.note(f"{folder}: {len(others)} files are no report that perfctl knows and were left out: {names}")
    return list(wrong.values())


def _why_broken(path: Path) -> str | None:
    """Of a file that no parser knows though its name says that it is, or was, a report."""
    from perfctl.parsers import ReportError, is_stump, parse

    try:
        if path.name.endswith(PROFILERS) or (path.name.endswith(REPORTS) and is_stump(path)):
            parse(path)
    except (ReportError, OSError) as error:
        return str(error)
    return None


def _check_words(mode: str | None, precision: str | None) -> None:
    from perfctl.workloads.spec import MODES, PRECISIONS

    for option, value, known in (("--mode", mode, MODES), ("--precision", precision, PRECISIONS)):
        if value is not None and value not in known:
            raise UsageError(f"{option}: '{value}' is not known", f"Say one of {', '.join(known)}")


@dataclass(slots=True)
class _Intake:
    """One call of ingest: where its files go, and what became of each."""

    connection: sqlite3.Connection
    sweep: SweepFacts
    told: Told
    store: Path
    again: bool
    taken: list[tuple[Path, Written]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def take_all(self, given: Path, files: list[Path], progress: Reading) -> None:
        """``files`` are the reports that ``given``, a file or a folder, holds."""
        broken = _name_others(given, files)
        self.failed += broken
        if not files and not broken:
            self._failed(f"{given}: no report was found in this folder. Give the report file itself")
        for path in files:
            progress.begin(path)
            self._take(path, progress)
            progress.end()

    def _take(self, path: Path, progress: Reading) -> None:
        from perfctl.orchestrator.cli.run_intake import take_run
        from perfctl.orchestrator.launch.run_folder import read_run_record
        from perfctl.parsers import ReportError

        try:
            if path.is_dir() and read_run_record(path) is not None:
                written = take_run(self.connection, path, self.sweep, store=self.store, again=self.again)
                self._note(path, written)
            else:
                self._take_report(path, progress)
        except FileNotFoundError:
            self._failed(f"{path}: there is no such file. Check the path")
        except OSError as error:
            self._failed(f"{error.filename or path}: {error.strerror or error}. Check who may read there")
        except ReportError as error:
            self._failed(str(error))

    def _take_report(self, path: Path, progress: Reading) -> None:
        from perfctl.orchestrator.cli.intake import take_report
        from perfctl.orchestrator.cli.look import Look
        from perfctl.parsers import no_collection

        with Look(path) as look, no_collection():
            written = take_report(
                self.connection, path, look.digest, self.sweep, self.told, store=self.store, again=self.again
            )
            self._note(path, written)
            progress.begin(path, "looking for secrets")
            _warn_of_secrets(path, look.secrets())

    def _note(self, path: Path, written: Written) -> None:
        self.taken.append((path, written))
        if written.new:
            _warn_of_unknown(self.connection, path, written.run_id)

    def _failed(self, why: str) -> None:
        self.failed.append(why)
        console.error(why)


def _warn_of_unknown(connection: sqlite3.Connection, path: Path, run_id: int) -> None:
    """One line that names what of a format newer than known was not understood; the store keeps it too."""
    from perfctl.parsers.unknown import SOURCE

    query = "SELECT text FROM diagnostic WHERE run_id = ? AND source = ? AND severity = 'warning'"
    if said := [text for (text,) in connection.execute(query, (run_id, SOURCE))]:
        console.warning(f"{path}: {'; '.join(said)}")


def _warn_of_secrets(path: Path, names: list[str]) -> None:
    """Name what looks like a secret in a report, so that nobody hands the file on unawares."""
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        held = f"{', '.join(names[:NAMED])}{more}"
        console.warning(f"{path}: holds what looks like secrets ({held}): perfctl scrub {shlex.quote(str(path))}")


def _tell(taken: list[tuple[Path, Written]], failed: list[str], store: Path, as_json: bool) -> None:
    if as_json:
        rows = [{"path": str(path), **_facts(written)} for path, written in taken]
        console.as_json({"store": str(store), "runs": rows, "failed": failed})
    else:
        for path, written in taken:
            console.result(_line(path, written))
        if any(written.new for _, written in taken):
            extra = "" if store == DEFAULT else f" --store {shlex.quote(str(store))}"
            console.result(f"Wrote {store}. Next: perfctl report{extra}")
    if failed and not taken:
        raise PerfctlError(f"nothing was taken in: {len(failed)} of {len(failed)} could not be read")
    if failed:
        total = len(failed) + len(taken)
        raise PartlyDone(f"{len(failed)} of {total} could not be read; the others are in the store")


def _facts(written: Written) -> dict[str, int | bool]:
    fields = ("run_id", "new", "kernels", "counters", "ranges", "copies", "operations", "samples")
    return {field: getattr(written, field) for field in fields}


def _line(path: Path, written: Written) -> str:
    if not written.new:
        return f"{path}: in the store already, as run {written.run_id} (--again takes it in once more)"
    counts = _facts(written)
    del counts["run_id"], counts["new"]
    held = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    said = f"{path}: run {written.run_id}: {held or 'no rows in the large tables'}"
    return f"{said}; partial: {written.reason}" if written.reason else said
