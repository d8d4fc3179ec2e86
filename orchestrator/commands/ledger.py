"""Compare counted with paper FLOPs of the newest runs of a store, and say why they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfctl.orchestrator.actions.ledger import Ledgers
from perfctl.orchestrator.actions.stored_runs import analysed, loaded
from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Option,
    PeaksOf,
    Store,
)
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.options import read_batches
from perfctl.orchestrator.outputs import JsonLists
from perfctl.orchestrator.report.ledger.rows import LedgerOutput, ledger_json
from perfctl.orchestrator.report.view import Layout, Paper, View, as_parts, draw_views
from perfctl.orchestrator.store import database
from perfctl.parsers import no_collection

if TYPE_CHECKING:
    from perfctl.orchestrator.ledger.analysis import Analysis
    from perfctl.orchestrator.report.files.documents import Part
    from perfctl.orchestrator.report.ledger.view import LedgerShape
    from perfctl.orchestrator.report.view import Block
    from perfctl.records.run import Run


ORDERS = ("time", "network")


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Compare counted with paper FLOPs per layer, direction and batch size, and say why they
    differ. 1 multiply-add = 2 FLOPs.

    Raises StoreError if there is no store, PerfctlError if no run has layers on paper, UsageError
    if no row is left.
    """

    layer: Annotated[str | None, Option("Only this layer and the ones inside it.")] = None
    batches: Annotated[
        tuple[int, ...],
        Option(
            "Only these batch sizes: 16,64.",
            names=("--batches", "-b"),
            metavar="LIST",
            parse=read_batches,
        ),
    ] = ()
    phase: Annotated[
        str | None,
        Option(
            "Of a language model's traces: prefill, decode or mixed, by part of the model.",
            metavar="PHASE",
        ),
    ] = None
    each: Annotated[bool, Option("Each repeated block by itself, not all in one row.")] = False
    all_rows: Annotated[
        bool, Option("Rows below 1% of the time too.", "Output", names=("--all",))
    ] = False
    wide: Annotated[
        bool, Option("All batch sizes, not only the first, the middle and the last.", "Output")
    ] = False
    order: Annotated[
        str, Option("Rows by time, or by their place in the network.", "Output", metavar="ORDER")
    ] = "time"
    explain: Annotated[
        bool, Option("Also the reasons for the differences, and the sources.", "Output")
    ] = False
    peaks: PeaksOf = "published"
    store: Store = DEFAULT_STORE


@dataclass(frozen=True, slots=True)
class AskedLedgers:
    """Ledgers, which are read when they are shown, and how they are shown."""

    ledgers: Ledgers
    asked: LedgerOptions


def run(asked: LedgerOptions, events: Events) -> AskedLedgers:
    """Return the ledgers, which are read when they are shown."""
    if asked.order not in ORDERS:
        raise UsageError(f"`order`: '{asked.order}' is not known", f"Use {' or '.join(ORDERS)}")
    return AskedLedgers(
        Ledgers(
            asked.store, asked.layer, asked.batches, asked.phase, asked.peaks, asked.each, events
        ),
        asked,
    )


def record(result: AskedLedgers) -> JsonLists[LedgerOutput]:
    """Return the rows of all ledgers for programs."""
    ledgers = result.ledgers

    def batches(json_text: Callable[[object], str]) -> Iterator[Mapping[str, Iterable[str]]]:
        def make(analyses: list[Analysis]) -> tuple[dict[str, list[str]], list[int]]:
            lists = ledger_json(analyses, ledgers.phase, each=ledgers.is_by_block)
            texts = {name: list(map(json_text, rows)) for name, rows in lists.items()}
            return texts, _runs_of_ranks(analyses)

        of_ranks: dict[int, None] = {}
        for texts, ids in ledgers.each(make, is_pickled=True):
            of_ranks |= dict.fromkeys(ids)
            yield texts
        if of_ranks:
            from perfctl.orchestrator.report.studies.ranks import job_outputs

            jobs = analysed(_load(ledgers.store, of_ranks), job_outputs)
            yield {"jobs": map(json_text, jobs)}

    return JsonLists(LedgerOutput, batches)


def view(result: AskedLedgers) -> Layout:
    """Return each ledger under its heading, with the findings before it if it is whole."""
    return Layout(partial(_draw, result), partial(_document, result))


def _draw(result: AskedLedgers, paper: Paper) -> Iterator[Block | str]:
    from perfctl.orchestrator.report.ledger.view import LedgerShape, ranks_views

    ledgers, asked = result.ledgers, result.asked
    shape = LedgerShape(
        is_whole=asked.layer is None,
        has_all_rows=asked.all_rows,
        has_all_batches=asked.wide,
        is_by_time=asked.order == "time",
        is_explained=asked.explain,
        is_by_block=asked.each,
    )

    def make(analyses: list[Analysis]) -> tuple[str, list[int]]:
        blocks = draw_views(_views(analyses, asked.phase, shape), paper.width)
        return paper.print_to_text(blocks), _runs_of_ranks(analyses)

    of_ranks: dict[int, None] = {}
    for number, (text, ids) in enumerate(ledgers.each(make, is_pickled=True)):
        of_ranks |= dict.fromkeys(ids)
        yield f"\n{text}" if number and text else text
    if asked.phase is None and shape.is_whole and of_ranks:
        jobs = analysed(_load(ledgers.store, of_ranks), lambda runs: list(ranks_views(runs, shape)))
        yield "\n"
        yield from draw_views(jobs, paper.width)


def _document(result: AskedLedgers) -> list[Part]:
    from perfctl.orchestrator.report.ledger.view import DOCUMENT, ranks_views

    asked = result.asked
    shape = replace(DOCUMENT, is_whole=asked.layer is None, is_by_block=asked.each)

    def make(analyses: list[Analysis]) -> list[View]:
        views = list(_views(analyses, asked.phase, shape))
        if asked.phase is None and shape.is_whole:
            runs = (run for analysis in analyses for run in analysis.study.runs)
            views += ranks_views(runs, shape)
        return views

    return [part for views in result.ledgers.each(make) for one in views for part in as_parts(one)]


def _views(analyses: Iterable[Analysis], phase: str | None, shape: LedgerShape) -> Iterator[View]:
    from perfctl.orchestrator.report.ledger.view import ledger_views, phase_views

    if phase is not None:
        yield from phase_views(analyses, phase, is_by_block=shape.is_by_block)
        return
    for analysis in analyses:
        yield from ledger_views(analysis, shape)


def _runs_of_ranks(analyses: Iterable[Analysis]) -> list[int]:
    """Return the runs of jobs with several processes, whose tables stand behind all ledgers."""
    runs = (run for analysis in analyses for run in analysis.study.runs)
    return [run.id for run in runs if run.id is not None and run.report.rank is not None]


def _load(store: Path, ids: Iterable[int]) -> list[Run]:
    with database.reading(store) as connection, no_collection():
        return loaded(connection, ids)


COMMAND = Command(LedgerOptions, run, view, record)
