"""Write the HTML report of a results database; serve the reports of a folder, with their list, the
progress of its sweeps, and answers for the calculator."""

from __future__ import annotations

import sqlite3
import webbrowser
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn
from urllib.parse import quote

from perfctl.orchestrator import evidence
from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Force,
    Option,
    PeaksOf,
    Runs,
    Store,
    make_api_function,
)
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.evidence import build_evidence_for_all_devices
from perfctl.orchestrator.faults import process_all_but_failing_items
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.ledger.prepared import group_into_studies as group_studies
from perfctl.orchestrator.report.numbers import format_time
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import (
    load_readable_runs,
    load_runs_without_report_rows,
    run_work_without_failing_runs,
)
from perfctl.parsers import pause_garbage_collection
from perfctl.records.bench import WORKLOAD
from perfctl.records.report import pluralize_count
from perfctl.redact import mask_command_line, mask_secrets

if TYPE_CHECKING:
    from perfctl.orchestrator.report.calculator import FamilyAnswers
    from perfctl.orchestrator.report.page.server import Answers
    from perfctl.records.run import Run

STUDIES = 12
"""Run groups in a report by default: more than a reader goes through, and several MB already."""
SHOWN = 500
"""Reports in the list, the newest."""


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """An HTML report that was written."""

    JSON_NAMES: ClassVar = {"size": "bytes"}

    path: Path
    size: int
    runs: tuple[int, ...]
    """Numbers of the runs in it."""
    omitted: str | None
    """Which older run groups are not in it, in one sentence; None when all are."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Write one self-contained HTML report: executed and estimated FLOPs, time, memory, kernels and
    missing values. The same database gives the same report.

    Raises StoreError if there is no store, PerfctlError if it has no such run or the report cannot
    be written, UsageError for other values of ``studies`` and ``peaks``.
    """

    store: Store = DEFAULT_STORE
    out: Annotated[Path, Option("HTML report to write.", group="Output")] = Path(
        "perfctl-report.html"
    )
    _: KW_ONLY
    sweep: Annotated[
        int | None,
        Option("Only this sweep. Default: the newest run of each kind (benchmark: the fastest)."),
    ] = None
    runs: Runs = ()
    studies: Annotated[
        int, Option("Maximum number of run groups in the report, newest first.", least=1)
    ] = STUDIES
    title: Annotated[str | None, Option("Title of the report.")] = None
    peaks: PeaksOf = "published"
    force: Force = False
    open_page: Annotated[bool, Option("Open the report in the browser.", names=("--open",))] = False


def write_html_report(options: ReportOptions, events: Events) -> WrittenReport:
    """Write the HTML report."""
    return write_report_page(options, events)[0]


@pause_garbage_collection()
def write_report_page(options: ReportOptions, events: Events) -> tuple[WrittenReport, View]:
    """Write the HTML report, and return what is in it too."""
    from perfctl.orchestrator.report.page.page import render_view_as_html
    from perfctl.orchestrator.report.page.sections import build_report_view
    from perfctl.orchestrator.report.page.timeline import CALLS_MAX

    store, page_path, omitted = Path(options.store), Path(options.out), None
    with database.open_store_for_reading(store) as connection:
        ids = list(options.runs)
        if not ids:
            ids = read.list_run_ids(connection, sweep=options.sweep, latest_per_configuration=True)
            if options.sweep is None:
                fastest, slower = read.split_fastest_bench_runs(connection)
                ids = sorted({*ids, *fastest} - {*slower})
            ids, omitted = select_runs_of_newest_groups(connection, ids, options.studies)
        events.progress("reading the database", 0, 0)
        runs = load_readable_runs(connection, ids, CALLS_MAX)
        last_change = read.find_newest_ingest_time(connection)
    if not runs:
        _raise_nothing_to_report(store, options.sweep, has_runs=bool(ids))
    peaks = evidence.measure_roofline_peaks_if_selected(options.peaks, store, runs, events.note)

    def draw_report(sound: Sequence[Run]) -> tuple[View, str, tuple[int, ...]]:
        drawn = build_report_view(
            sound,
            generated_at=last_change,
            title=options.title,
            peaks=peaks,
            caution=omitted and f"{omitted}.",
            # reading was the first part
            on_progress=lambda name, done, total: events.progress(
                f"drawing {name}", done + 1, total + 1
            ),
        )
        return drawn, render_view_as_html(drawn, "run.html"), tuple(run.id for run in sound)

    answer, html, drawn = run_work_without_failing_runs(runs, draw_report)
    write_text(page_path, html, force=options.force)
    if omitted:
        events.note(omitted)
    if options.open_page:
        webbrowser.open(page_path.resolve().as_uri())
    return WrittenReport(page_path, len(html.encode()), drawn, omitted), answer


def _raise_nothing_to_report(store: Path, sweep: int | None, *, has_runs: bool) -> NoReturn:
    if has_runs:
        reason, fix = "none of its runs can be read", "See the reasons above"
    elif sweep is not None:
        fix = "Run 'perfctl runs --json' to list the sweep_id of each run"
        raise PerfctlError(f"{store}: no run belongs to sweep {sweep}", fix)
    else:
        reason, fix = "it has no runs", "Run a sweep or 'perfctl ingest FILE' first"
    raise PerfctlError(f"{store}: nothing to report, because {reason}", fix)


def build_written_view(report: WrittenReport) -> View:
    """Return what was written."""
    runs = pluralize_count(len(report.runs), "run")
    return View(f"Wrote {report.path} ({report.size / 1e6:.1f} MB, {runs})")


def select_runs_of_newest_groups(
    connection: sqlite3.Connection, ids: Sequence[int], max_groups: int
) -> tuple[list[int], str | None]:
    """Return the runs of the ``max_groups`` groups with the newest runs, and a sentence about the
    other groups. Points of a bench share a part of the report, and are never omitted."""
    runs = load_runs_without_report_rows(connection, ids)
    bench = [run for run in runs if run.workload == WORKLOAD and run.profiler == "none"]
    points = [run.id for run in bench if run.batch_size is not None]
    ordinary = [run for run in runs if run.id not in set(points)]
    groups = sorted(([run.id for run in study.runs] for study in group_studies(ordinary)), key=max)
    older, newest = groups[:-max_groups], groups[-max_groups:]
    ids = sorted(chain(points, *newest))
    if not older:
        return ids, None
    verb = "is" if len(older) == 1 else "are"
    run_count = pluralize_count(sum(map(len, older)), "run")
    return ids, (
        f"{pluralize_count(len(older), 'older run group')} ({run_count}) of the database {verb} "
        f"not in this report: 'perfctl runs' lists them, 'perfctl report --studies {len(groups)}' "
        "shows all"
    )


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Serve the HTML reports of a folder, and the progress of its sweeps, to a browser. Press
    Ctrl-C to stop.

    Calculators that it serves also accept the parameters of the families: depth, width, image size
    and others. From a laptop: ssh -L 8765:127.0.0.1:8765 LOGIN-NODE, then open
    http://127.0.0.1:8765/.

    Raises UsageError if there is no such folder, PerfctlError if the address cannot be used.
    """

    folder: Annotated[
        Path,
        Option(
            "Folder with HTML reports and perfctl-runs. Default: this folder.", is_argument=True
        ),
    ] = Path()
    port: Annotated[int, Option("Port; 0 chooses a free one.", least=0, most=65535)] = 8765
    host: Annotated[
        str, Option("Address to listen on; other machines can connect unless it is a local one.")
    ] = "127.0.0.1"
    store: Annotated[
        Path, Option("Results database whose runs the calculator uses, if it exists.")
    ] = DEFAULT_STORE


def serve_reports(options: ServeOptions, events: Events) -> None:
    """Serve until Ctrl-C."""
    from perfctl.orchestrator.report.page.page import compute_calculator_script_digest
    from perfctl.orchestrator.report.page.server import PageServer

    folder, host, port = options.folder, options.host, options.port
    if not folder.is_dir():
        raise UsageError(f"{folder}: folder not found", "Name the folder of the HTML reports")
    try:
        answers = _make_calculator_query_handler(options.store)
        server = PageServer(
            folder,
            host,
            port,
            lambda: render_reports_and_sweeps_html(folder),
            answers,
            compute_calculator_script_digest(),
        )
    except OSError as error:
        raise PerfctlError(
            f"{host}:{port} cannot be used ({error.strerror or error})",
            "Choose another `port`, or `port` 0",
        ) from error
    server.failed = events.warning
    try:
        with server:
            if not server.local:
                events.warning(f"everyone who can reach {host} can read the reports in {folder}")
            events.note(f"Serving {folder} on {server.url}  (Ctrl-C ends it)")
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        events.note("ended")


def _make_calculator_query_handler(store: Path) -> Answers:
    """Return the answers of the calculator. perfctl reads its tables at the first question."""

    @cache
    def load_family_answers() -> FamilyAnswers:
        from perfctl.orchestrator.report.calculator import FamilyAnswers

        return FamilyAnswers(partial(build_evidence_for_all_devices, store))

    return lambda query: load_family_answers().answer_query(query)


def render_reports_and_sweeps_html(folder: Path) -> str:
    """Return HTML of the reports in the folder and of the state of its sweeps."""
    from perfctl.orchestrator.launch.sweep import parallel
    from perfctl.orchestrator.report.page import page
    from perfctl.orchestrator.report.page.server import is_regular_file_without_hard_links

    root, reports = folder.resolve(), []
    for file in (*root.glob("*.html"), *root.glob("*/*.html")):
        name = str(file.relative_to(root))
        is_hidden = name.startswith(".") or file.name.startswith(".")
        if (
            is_regular_file_without_hard_links(file.lstat())
            and not file.parent.is_symlink()
            and not is_hidden
        ):
            address = quote(name, errors="surrogateescape")
            reports.append((-file.stat().st_mtime, name, address))
    sweeps = process_all_but_failing_items(
        list(parallel.list_sweep_states(folder)),
        lambda states: list(map(_describe_sweep_state, states)),
        lambda state: f"sweep {state.name}",
    )
    return page.render_view_as_html(
        {
            "folder": root.name or "/",
            "reports": [
                (address, name, f"{datetime.fromtimestamp(-when, UTC):%Y-%m-%d %H:%M} UTC")
                for when, name, address in sorted(reports)[:SHOWN]
            ],
            "omitted": max(0, len(reports) - SHOWN),
            "sweeps": sweeps,
            "running": sum(sweep["running"] for sweep in sweeps),
        },
        "sweeps.html",
    )


def _describe_sweep_state(state: Any) -> dict[str, Any]:
    return {
        "name": state.name,
        "command": state.command and mask_command_line(state.command),
        "host": state.host,
        "running": state.running,
        "runs": [
            (
                f"{run.setting if run.setting.others else run.setting.batch or run.setting}"
                + (f" (attempt {run.attempt})" if run.attempt else ""),
                run.status + (f": {mask_secrets(run.reason)}" if run.reason else ""),
                (run.started_at or "")[:19].replace("T", " "),
                "" if run.duration_ns is None else format_time(run.duration_ns),
            )
            for run in state.runs
        ],
    }


COMMAND = Command(ReportOptions, write_html_report, build_written_view, has_document=False)
report = make_api_function(ReportOptions, write_html_report)
SERVE = Command(ServeOptions, serve_reports, lambda _: View(""), has_document=False, has_json=False)
