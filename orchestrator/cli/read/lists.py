"""perfctl runs, show, ledger and query: what the store holds, as tables or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    pass


def show(
    run: Annotated[int, typer.Argument(help="Number of the run, from 'perfctl runs'.")],
    source: Annotated[
        bool,
        typer.Option(
            "--source",
            help="Show its source lines instead, after 'perfctl ingest FILE.ncu-rep --source'.",
        ),
    ] = False,
    form: options.Form = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Show one run: layers, kernels, memory, what is missing and why. FLOPs count 1 multiply-add
    as 2."""
    from perfctl.orchestrator.actions import stored_runs
    from perfctl.orchestrator.report import terminal
    from perfctl.orchestrator.report.ledger import rows as export
    from perfctl.orchestrator.store import database, read

    form = console.form_of(form, as_json)
    if source and form:
        raise UsageError("--format and --source together", "Leave one out; --source has --json")
    with database.reading(store or DEFAULT) as connection:
        found = stored_runs.only_run(connection, run)
        lines = read.source_lines(connection, run) if source else []
    if source and not lines:
        why = next(
            (gap.reason for gap in found.report.gaps if gap.quantity == "source_counter"),
            "it was not asked for",
        )
        raise PerfctlError(
            f"run {run} has no counters of source lines: {why}",
            "perfctl ingest FILE.ncu-rep --source --again",
        )
    if source and as_json:
        console.as_json(lines, "show-source")
        return
    if source:
        console.show(terminal.source_lines(lines))
        return
    if as_json:
        console.as_json(stored_runs.shown(found, lambda: export.shown_run(found)), "show")
        return
    if form:
        console.document(form, stored_runs.shown(found, lambda: terminal.run_document(found)))
        return
    for part in stored_runs.shown(found, lambda: terminal.run_details(found)):
        console.show(part)
