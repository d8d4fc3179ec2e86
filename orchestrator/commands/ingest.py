"""Ingest existing reports, and folders of perfctl's own runs, into a results database."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import groupby
from math import floor
from pathlib import Path
from typing import Annotated, NamedTuple

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    MemoryLimit,
    Option,
    Store,
    make_api_function,
)
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.ingest.context import (
    Event,
    FileEnded,
    FileStarted,
    IngestResult,
    NoteSent,
    Paper,
    ReportFailed,
    SourcesCounted,
    UserHints,
    WarningSent,
)
from perfctl.orchestrator.options import extract_part
from perfctl.orchestrator.report.view import RawLines
from perfctl.orchestrator.store.write import WrittenRun

LIST_BYTES = 64 << 20
"""Bytes of a list of reports."""
AGAIN = "use --again to ingest it again"
SINGLE_RUNS_MAX = 8
"""Runs of one file that have a line each."""
SINGULAR = {
    "kernels": "kernel",
    "counters": "counter",
    "ranges": "range",
    "copies": "copy",
    "operations": "operation",
    "samples": "sample",
    "op_calls": "op_call",
}
"""Fields of ``WrittenRun`` that are printed, and what one of them is called."""


@dataclass(frozen=True, slots=True)
class IngestedRun:
    """A run that was read."""

    JSON_INLINED = ("written",)

    path: Path
    """The report."""
    written: WrittenRun


class IngestOutput(NamedTuple):
    """The runs that are in the store now."""

    store: Path
    runs: list[IngestedRun]
    """One object per run that was read."""
    failed: tuple[str, ...]
    """Reports that could not be read, with the reason."""
    empty: tuple[Path, ...]
    """Files without anything to store."""


@dataclass(frozen=True, slots=True)
class IngestOptions(UserHints):
    """Ingest existing profiler reports and run folders of perfctl.

    nsys: .sqlite, .nsys-rep, .qdrep, .qdstrm, folders of parquetdir and arrowdir, 'nsys stats' and
    'nsys analyze' as CSV, TSV, JSON or text. ncu: CSV of any page, console text, .ncu-rep. DLProf:
    CSV, JSON, dlprof_dldb.sqlite. PyTorch: Kineto traces, plain or gzipped, memory snapshots. JAX:
    trace.json.gz.
    nvprof: traces and sums. nvidia-smi: queries, tables, dmon, pmon. DCGM: dmon. rocprofv3:
    results.db, CSV, JSON. Proton: .hatchet. A log with several outputs gives several runs.

    perfctl stores each run completely or not at all. An unreadable file does not stop the others.
    Exit code 4: a file was unreadable or gave no rows.

    Raises UsageError for hints that make no sense and for a name that may say several batch sizes,
    ToolMissing if ``guess_layers`` finds no torch, StoreError.
    """

    paths: Annotated[
        Path | str | Sequence[Path | str],
        Option(
            "Profiler report files, or folders and archives that contain them.", is_argument=True
        ),
    ] = ()
    store: Store = DEFAULT_STORE
    _: KW_ONLY
    files_from: Annotated[
        Path | None,
        Option("File with more paths, one per line; - reads standard input."),
    ] = None
    jobs: Annotated[
        int | None,
        Option(
            "Parser processes. Default: one per core, for 16 MB or more.",
            least=1,
        ),
    ] = None
    memory_limit: MemoryLimit = None
    again: Annotated[
        bool, Option("Ingest reports again that the results database already has.")
    ] = False
    derive: Annotated[
        bool, Option("Derive counts and kernel families of the stored runs again.")
    ] = False


def ingest_reports(options: IngestOptions, events: Events) -> IngestResult:
    """Read the reports."""
    # Nothing here multiplies matrices: numpy's threads for that would only spin for a tenth of
    # a second.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from perfctl.orchestrator.ingest.derive import derive_store
    from perfctl.orchestrator.ingest.ingest import ingest_paths

    paths = [options.paths] if isinstance(options.paths, (str, Path)) else list(options.paths)
    if options.derive:
        runs = derive_store(options.store)
        events.note(f"derived the counts and kernel families of {runs:,} runs again")
        if not paths and options.files_from is None:
            return IngestResult(options.store, (), ())
    if options.files_from is not None:
        paths += _read_path_list(options.files_from)
    if not paths:
        raise UsageError(
            "no report was named",
            "Name report files or folders, or a list of them with `files_from`",
        )
    capture = options.capture
    if capture is not None:
        if not capture.is_file():
            raise UsageError(f"`capture` {capture}: file not found", "Check the path")
        capture = capture.absolute()
    return ingest_paths(
        paths,
        options.store,
        hints=replace(extract_part(options, UserHints), capture=capture),
        again=options.again,
        listener=_EventForwarder(events),
        command_line=events.command_line,
        ask=partial(_ask_batch_size, events),
        jobs=options.jobs,
        memory_limit=options.memory_limit,
        estimate=estimate_workload_operations,
    )


def estimate_workload_operations(workload: str, mode: str, batch_size: int) -> Paper:
    """Return the operations and estimated FLOPs of a workload. Raises UsageError, ToolMissing."""
    from perfctl.orchestrator.estimate.request import Request
    from perfctl.orchestrator.estimate.session import estimate_at

    paper = estimate_at(Request(workload, mode=mode), batch_size)
    return paper.ops, paper.calls


def _read_path_list(file: Path) -> list[Path]:
    """Return the paths in a file, one a line."""
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as opened:
            content = opened.read(LIST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"`files_from` {file}: cannot be read ({error.strerror})", "Check the path"
        ) from error
    if len(content) > LIST_BYTES or b"\0" in content:
        problem = f"`files_from` {file}: this is no list of paths"
        raise UsageError(problem, f"Use a text of at most {LIST_BYTES >> 20} MiB, a path per line")
    return [Path(os.fsdecode(line)) for line in content.splitlines() if line.strip()]


def _ask_batch_size(events: Events, path: Path, sizes: Sequence[int]) -> int | None:
    """Return which of the numbers in the name of a report is its batch size."""
    question = f"{path}: batch size? ({', '.join(map(str, sizes))})"
    while (answer := events.ask(question, str(sizes[-1]))) is not None:
        if answer.strip().isdecimal() and int(answer) > 0:
            return int(answer)
    return None


class _EventForwarder:
    """Listener that forwards the events of an ingest to those of the command."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._done, self._total = 0, 0
        events.progress("looking for reports", 0, 0)

    def __call__(self, event: Event) -> None:
        match event:
            case SourcesCounted(total):
                self._total = total
            case FileStarted(path):
                self.events.progress("reading", self._done, self._total, path)
            case FileEnded():
                self._done += 1
                self.events.progress("files done", self._done, self._total)
            case NoteSent(text):
                self.events.note(text)
            case WarningSent(text):
                self.events.warning(text)
            case ReportFailed(text):
                self.events.error(text)


def build_ingest_output(done: IngestResult) -> IngestOutput:
    """Return what ``--json`` prints."""
    runs = [IngestedRun(path, written) for path, written in done.taken]
    return IngestOutput(done.store, runs, done.failed, done.empty)


def build_ingest_lines(done: IngestResult) -> RawLines:
    """Return a line for each run, or for a file with many, and what comes next."""
    return RawLines((f"{line}\n" for line in _yield_summary_lines(done)), "ingest", has_names=True)


def _yield_summary_lines(done: IngestResult) -> Iterator[str]:
    for path, group in groupby(done.taken, key=lambda pair: pair[0]):
        runs = [written for _, written in group]
        if len(runs) > SINGLE_RUNS_MAX:
            yield _describe_many_runs(path, runs, done.updated)
        else:
            yield from (_describe_single_run(path, written, done.updated) for written in runs)
    if any(written.new for _, written in done.taken):
        store_option = (
            "" if done.store == DEFAULT_STORE else f" --store {shlex.quote(str(done.store))}"
        )
        yield f"Wrote {done.store}. Next: perfctl report{store_option}"


def _format_row_counts(runs: Sequence[WrittenRun]) -> str:
    totals = {name: sum(getattr(written, name) for written in runs) for name in SINGULAR}
    counts = ", ".join(
        f"{total:,} {SINGULAR[name] if total == 1 else name}"
        for name, total in totals.items()
        if total
    )
    return counts or "no kernels, ranges or counters"


def _describe_many_runs(path: Path, runs: Sequence[WrittenRun], updated: str) -> str:
    """Return one line for a file that holds many runs."""
    existing = sum(not written.new for written in runs)
    partial = sum(written.reason is not None for written in runs)
    ids = f"{runs[0].run_id} to {runs[-1].run_id}"
    line = f"{path}: {len(runs)} runs, {ids}: {_format_row_counts(runs)}"
    if existing:
        line += f"; {existing} already in the database"
        line += f", {updated} replaced" if updated else ""
    if partial:
        line += f"; {partial} partial or failed (run 'perfctl runs' for the reasons)"
    return line


def _describe_single_run(path: Path, written: WrittenRun, updated: str) -> str:
    if not written.new:
        line = f"{path}: already in the database as run {written.run_id}"
        return f"{line}; perfctl replaced its {updated}" if updated else f"{line} ({AGAIN})"
    line = f"{path}: run {written.run_id}: {_format_row_counts([written])}"
    if written.placed is not None:
        line += f"; {floor(written.placed * 1000) / 10:.1f}% of the kernel time has a module"
    return f"{line}; partial: {written.reason}" if written.reason else line


COMMAND = Command(
    IngestOptions,
    ingest_reports,
    build_ingest_lines,
    build_ingest_output,
    has_document=False,
    check=lambda done, events: done.check(),
)
ingest = make_api_function(IngestOptions, ingest_reports)
