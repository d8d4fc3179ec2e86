"""Ingest existing reports, and folders of perfctl's own runs, into a results database; show what a
report says without a database of the user's; copy a report without names and secrets."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import groupby
from math import floor
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Force,
    MemoryLimit,
    Option,
    Store,
    make_api_function,
    suggest_report_command,
)
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.files import get_perfctl_user_folder
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
from perfctl.orchestrator.ingest.scrub import ScrubOutput, scrub_report
from perfctl.orchestrator.options import extract_base_class_fields
from perfctl.orchestrator.report.view import RawLines, View
from perfctl.orchestrator.store.write import WrittenRun
from perfctl.parsers import sniff
from perfctl.version import __version__

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
REMOVED = {
    "TARGET_INFO_SYSTEM_ENV": "the machine's environment and name",
    "META_DATA_CAPTURE": "process environments, users, folders",
    "META_DATA_EXPORT": "host, user, folders",
    "EXPORT_META_DATA": "host, user, folders",
    "ProcessStreams": "the program's output",
    "ANALYSIS_FILE": "the program's output, collected files",
    "StringIds": "unused strings, such as process environments",
    "rocpd_info_process": "process environments, commands",
    "rocpd_info_node": "host names",
}
"""Table, or its beginning -> content of the removed rows."""
UNKNOWN = (
    "The copy keeps passwords and tokens without a known name or prefix. It also keeps names of "
    "people, projects, data and machines in names of kernels, ranges and files, and folders "
    "outside /home and /Users. Search the copy for yours before you share it."
)
FINDINGS = 3


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
    from perfctl.orchestrator.ingest.derive import derive_counts_of_all_runs
    from perfctl.orchestrator.ingest.ingest import ingest_paths

    paths = [options.paths] if isinstance(options.paths, (str, Path)) else list(options.paths)
    if options.derive:
        runs = derive_counts_of_all_runs(options.store)
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
        hints=replace(extract_base_class_fields(options, UserHints), capture=capture),
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
    from perfctl.orchestrator.estimate.session import estimate_model_for_batch

    paper = estimate_model_for_batch(Request(workload, mode=mode), batch_size)
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
        yield f"Wrote {done.store}. {suggest_report_command(done.store)}"


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
        share = floor(written.placed * 1000) / 10
        line += f"; {share:.1f}% of the kernel time has a module or operator"
    return f"{line}; partial: {written.reason}" if written.reason else line


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """Write a copy of a report without process environments, secrets and home folders. perfctl does
    not print the removed values.

    perfctl does not change the report. Kernels, copies, ranges and counters are the same in both
    files.

    Raises UsageError, before anything is written, if the copy cannot be made, or exists and
    ``force`` is not set; ReportError for a report that cannot be edited, and if a second pass over
    the copy finds a secret.
    """

    file: Annotated[
        Path,
        Option(
            "Report: an nsys .sqlite, or any text report, gzipped or not.",
            is_argument=True,
        ),
    ]
    out: Annotated[
        Path | None,
        Option(
            "Output file. Default: NAME.scrubbed.* next to the report.",
            group="Output",
        ),
    ] = None
    _: KW_ONLY
    force: Force = False


def scrub_to_copy(options: ScrubOptions, events: Events) -> ScrubOutput:
    """Write the copy."""
    return scrub_report(options.file, options.out, force=options.force)


def build_scrub_view(done: ScrubOutput) -> View:
    """Return what was removed and replaced, and what perfctl cannot find."""
    facts = []
    for table, rows in done.rows_removed.items():
        contents = (text for start, text in REMOVED.items() if table.startswith(start))
        content = next((f" ({text})" for text in contents), "")
        change = "emptied" if table.startswith("rocpd") else "removed"
        facts.append(f"{table}: {rows:,} row{'s' * (rows != 1)} {change}{content}")
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in done.replaced.items())
    facts.append(f"Replaced by (removed): {kinds or 'nothing'}")
    if "secret" in done.replaced:
        facts.append("Everyone who had the report has its secrets. Replace those tokens.")
    can_be_read = sniff(done.path) is not None
    facts += [f"Next: perfctl ingest {shlex.quote(str(done.path))}"] if can_be_read else []
    return View(f"Wrote {done.path}", tuple(facts), notes=(UNKNOWN,))


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """Show what profiler reports say: ingest them into a results database in your cache folder,
    print the first findings, and open the HTML report in the browser.

    The same files use the same database again. All formats of 'perfctl ingest' are read.

    Raises UsageError without a file, PerfctlError if none of them is a report.
    """

    files: Annotated[
        Sequence[Path],
        Option("Profiler report files, or folders and archives with them.", is_argument=True),
    ] = ()
    _: KW_ONLY
    no_browser: Annotated[
        bool, Option("Do not open the browser. Default over SSH, or without a display.")
    ] = False
    forget: Annotated[
        bool, Option("Remove the database and HTML report of these files; without files, of all.")
    ] = False


@dataclass(frozen=True, slots=True)
class Opened:
    """What was made of the reports, or removed."""

    JSON_KEYS: ClassVar = ("title", "facts", "findings", "warnings", "page", "store", "forgotten")

    title: str
    facts: str
    """What was measured, and with what."""
    findings: tuple[str, ...]
    """The first findings."""
    warnings: tuple[str, ...]
    """What to know before using them."""
    page: Path | None
    """The HTML report; None if it was removed."""
    store: Path | None
    """The results database; None if it was removed."""
    forgotten: tuple[Path, ...] = ()
    """Folders that were removed."""
    ingested: IngestResult | None = None

    def check(self) -> None:
        """Raise PartlyDone if some files could not be read."""
        if self.ingested is not None:
            self.ingested.check()


def ingest_and_open_html_report(options: OpenOptions, events: Events) -> Opened:
    """Ingest the reports and write the page, or forget them."""
    from perfctl.orchestrator.commands import report

    home = get_perfctl_user_folder("XDG_CACHE_HOME", "~/.cache") / "opened"
    folder = _choose_cache_folder(home, options.files) if options.files else home
    if options.forget:
        if folder.exists():
            shutil.rmtree(folder)
            return Opened("", "", (), (), None, None, (folder,))
        return Opened("", "", (), (), None, None)
    if not options.files:
        raise UsageError("no report was named", "Name report files, folders or archives")
    store, complete, done = folder / "perfctl.db", folder / "complete", None
    with ExitStack() as on_failure:
        on_failure.callback(shutil.rmtree, folder, ignore_errors=True)
        if not complete.exists():
            folder.mkdir(parents=True, exist_ok=True)
            done = ingest_reports(IngestOptions(options.files, store), events)
            if not done.taken:
                done.check()
            if not done.failed and not done.empty:
                complete.touch()
        page = folder / "report.html"
        written, answer = report.write_report_page(report.ReportOptions(store, page), events)
        on_failure.pop_all()
    if not options.no_browser and _can_show_browser():
        webbrowser.open(written.path.as_uri())
    first = next(
        (view for view in (answer, *answer.chapters) if view.findings),
        next(iter(answer.chapters), answer),
    )
    findings, cautions = first.finding_and_warning_sentences
    facts = "; ".join(f"{name}: {value}" for name, value in first.properties)
    title = answer.title or first.title
    if title != first.title:
        facts = f"first, whose findings these are: {first.title}; {facts}"
    return Opened(title, facts, tuple(findings[:FINDINGS]), tuple(cautions), page, store, (), done)


def _choose_cache_folder(home: Path, files: Sequence[Path]) -> Path:
    """Return the cache folder of files in their present state."""
    facts = [__version__]
    for path in files:
        try:
            for member in (path, *(sorted(path.rglob("*")) if path.is_dir() else ())):
                status = member.stat() if member.exists() or member == path else member.lstat()
                facts.append(f"{member.resolve()}\0{status.st_size}\0{status.st_mtime_ns}")
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", "Check the path") from error
    key = sha256("\n".join(facts).encode(errors="surrogateescape")).hexdigest()[:12]
    return home / key


def _can_show_browser() -> bool:
    """Whether a browser would be on the user's screen."""
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    return sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


def build_opened_view(opened: Opened) -> View:
    """Return the findings and where the page is."""
    if opened.page is None:
        paths = ", ".join(map(str, opened.forgotten))
        return View(f"Removed {paths}" if paths else "Nothing to forget")
    return View(
        opened.title,
        facts=(opened.facts,),
        findings=opened.findings,
        warnings=opened.warnings if opened.findings or opened.warnings else ("No findings.",),
        lines=(f"HTML report: {opened.page}", f"Results database: {opened.store}"),
    )


COMMAND = Command(
    IngestOptions,
    ingest_reports,
    build_ingest_lines,
    build_ingest_output,
    has_document=False,
)
ingest = make_api_function(IngestOptions, ingest_reports)
SCRUB = Command(ScrubOptions, scrub_to_copy, build_scrub_view, has_document=False)
scrub = make_api_function(ScrubOptions, scrub_to_copy)
OPEN = Command(OpenOptions, ingest_and_open_html_report, build_opened_view, has_document=False)
