"""perfctl runs, show, ledger and query: what the store holds, as tables or JSON."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.ledger.analysis import Analysis
    from perfctl.records.run import Run


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


def ledger(
    layer: Annotated[
        str | None, typer.Option(help="Only this layer and the ones inside it.")
    ] = None,
    batches: Annotated[
        str | None, typer.Option("--batches", "-b", help="Only these batch sizes: 16,64.")
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option(
            help="Of a language model's traces: prefill, decode or mixed, by part of the model."
        ),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Each repeated block by itself, not all in one row.")
    ] = False,
    peaks: options.Peaks = "published",
    form: options.Form = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Compare counted with paper FLOPs per layer, direction and batch size, and say why they
    differ. 1 multiply-add = 2 FLOPs."""
    from perfctl.orchestrator.actions import ledger as actions
    from perfctl.orchestrator.actions import stored_runs
    from perfctl.orchestrator.report import terminal
    from perfctl.orchestrator.report.studies import ranks

    form = console.form_of(form, as_json)
    sizes = None if batches is None else options.batch_list(batches)
    asked = partial(
        actions.ledger,
        store or DEFAULT,
        layer=layer,
        batch=sizes,
        phase=phase,
        peaks=peaks,
        messages=console,
    )
    whole = layer is None
    ranked: dict[int, None] = {}
    if as_json:
        with console.JsonLists("ledger", ("rows", "sweep", "phases", "passes", "jobs")) as lists:
            for texts, of_ranks in asked(
                plain=True, made=lambda some: (_texts(some, phase, each), _of_ranks(some))
            ):
                ranked |= dict.fromkeys(of_ranks)
                lists.add(texts)
            jobs = stored_runs.analysed(_runs(store, ranked), ranks.job_outputs) if ranked else []
            lists.add({"jobs": list(map(console.json_text, jobs))})
        return
    if form:
        document = (
            partial(terminal.phases_document, phase=phase, each=each)
            if phase
            else partial(terminal.ledgers_document, whole=whole)
        )
        console.document(form, [part for parts in asked(made=document) for part in parts])
        return
    if phase:
        for shown in asked(made=lambda some: terminal.phases(some, phase, each=each)):
            for part in shown:
                console.show(part)
        return
    printed = console.printer()

    def made(some: list[Analysis]) -> tuple[str, list[int]]:
        return printed(terminal.ledgers(some, whole=whole, each=each)), _of_ranks(some)

    for text, of_ranks in asked(plain=True, made=made):
        ranked |= dict.fromkeys(of_ranks)
        console.printed(text)
    for part in (
        stored_runs.analysed(_runs(store, ranked), terminal.ranks) if whole and ranked else ()
    ):
        console.show(part)


def _texts(some: list[Analysis], phase: str | None, each: bool) -> dict[str, list[str]]:
    from perfctl.orchestrator.report.ledger.rows import ledger_json

    return {
        name: list(map(console.json_text, rows))
        for name, rows in ledger_json(some, phase, each=each).items()
    }


def _of_ranks(some: list[Analysis]) -> list[int]:
    """Runs of jobs with several processes, whose tables stand behind all ledgers."""
    return [
        run.id
        for one in some
        for run in one.study.runs
        if run.id is not None and run.report.rank is not None
    ]


def _runs(store: Path | None, ids: Iterable[int]) -> list[Run]:
    from perfctl.orchestrator.actions.stored_runs import loaded
    from perfctl.orchestrator.store import database
    from perfctl.parsers import no_collection

    with database.reading(store or DEFAULT) as connection, no_collection():
        return loaded(connection, ids)
