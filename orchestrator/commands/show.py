"""Show one run of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from perfctl.orchestrator.commands.declare import DEFAULT_STORE, Command, Events, Option, Store
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.report.ledger.rows import ShownRun, collect_shown_run
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import analyse_run_or_end, load_single_run
from perfctl.records.report import SourceLine
from perfctl.records.run import Run


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """Show one run: layers, kernels, memory, and missing values with their reasons. 1 multiply-add
    = 2 FLOPs.

    Raises StoreError if there is no store or no such run.
    """

    run: Annotated[int, Option("Number of the run, from 'perfctl runs'.", is_argument=True)]
    source: Annotated[
        bool,
        Option("Show source lines instead; needs 'perfctl ingest FILE.ncu-rep --source'."),
    ] = False
    whole: Annotated[
        bool,
        Option("Also show ranges, summary values and the SHA-256.", names=("--all",)),
    ] = False
    store: Store = DEFAULT_STORE


@dataclass(frozen=True, slots=True)
class RunToShow:
    """A run, or its source lines."""

    run: Run
    is_whole: bool
    source_lines: Sequence[SourceLine] | None
    """None: they were not asked for."""


def load_run_to_show(options: ShowOptions, events: Events) -> RunToShow:
    """Read the run."""
    with database.open_store_for_reading(options.store) as connection:
        stored = load_single_run(connection, options.run)
        if not options.source:
            return RunToShow(stored, options.whole, None)
        lines = read.read_source_lines(connection, options.run)
    if not lines:
        reasons = (gap.reason for gap in stored.report.gaps if gap.quantity == "source_counter")
        raise PerfctlError(
            f"run {options.run} has no counters of source lines: "
            f"{next(reasons, 'they were not ingested')}",
            "perfctl ingest FILE.ncu-rep --source --again",
        )
    return RunToShow(stored, options.whole, lines)


def build_run_output(report: RunToShow) -> ShownRun | list[SourceLine]:
    """Return everything that the run holds for programs, or its source lines."""
    if report.source_lines is not None:
        return list(report.source_lines)
    return analyse_run_or_end(report.run, lambda: collect_shown_run(report.run))


def build_run_view(report: RunToShow) -> View:
    """Return findings, the ledger and the tables of the run, or its source lines."""
    from perfctl.orchestrator.report import terminal

    if report.source_lines is not None:
        return terminal.build_source_view(report.source_lines)
    return View(
        chapters=_yield_run_views(report, is_document=False),
        document=lambda: View(chapters=_yield_run_views(report, is_document=True)),
    )


def _yield_run_views(report: RunToShow, *, is_document: bool) -> Iterator[View]:
    from perfctl.orchestrator.report.terminal import build_run_views

    is_whole = report.is_whole or is_document
    make = partial(build_run_views, report.run, is_whole=is_whole, is_document=is_document)
    yield from analyse_run_or_end(report.run, lambda: list(make()))


COMMAND = Command(ShowOptions, load_run_to_show, build_run_view, build_run_output)
