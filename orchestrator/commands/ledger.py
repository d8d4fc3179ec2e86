"""Compare counted with paper FLOPs of the newest runs of a store, and say why they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
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
from perfctl.orchestrator.options import read_batches
from perfctl.orchestrator.outputs import JsonLists
from perfctl.orchestrator.report.ledger.rows import LedgerOutput, ledger_json
from perfctl.orchestrator.report.view import Layout, Paper
from perfctl.orchestrator.store import database
from perfctl.parsers import no_collection

if TYPE_CHECKING:
    from perfctl.orchestrator.ledger.analysis import Analysis
    from perfctl.orchestrator.report.files.documents import Part
    from perfctl.orchestrator.report.view import Block
    from perfctl.records.run import Run


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
    peaks: PeaksOf = "published"
    store: Store = DEFAULT_STORE


def run(asked: LedgerOptions, events: Events) -> Ledgers:
    """Return the ledgers, which are read when they are shown."""
    return Ledgers(
        asked.store, asked.layer, asked.batches, asked.phase, asked.peaks, asked.each, events
    )


def record(ledgers: Ledgers) -> JsonLists[LedgerOutput]:
    """Return the rows of all ledgers for programs."""

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


def view(ledgers: Ledgers) -> Layout:
    """Return each ledger under its heading, with the findings before it if it is whole."""
    return Layout(partial(_draw, ledgers), partial(_document, ledgers))


def _draw(ledgers: Ledgers, paper: Paper) -> Iterator[Block | str]:
    from perfctl.orchestrator.report import terminal

    whole = ledgers.layer is None
    if (phase := ledgers.phase) is not None:
        for blocks in ledgers.each(
            lambda analyses: terminal.phases(analyses, phase, each=ledgers.is_by_block)
        ):
            yield from blocks
        return

    def make(analyses: list[Analysis]) -> tuple[str, list[int]]:
        blocks = terminal.ledgers(analyses, whole=whole, each=ledgers.is_by_block)
        return paper.print_to_text(blocks), _runs_of_ranks(analyses)

    of_ranks: dict[int, None] = {}
    for text, ids in ledgers.each(make, is_pickled=True):
        of_ranks |= dict.fromkeys(ids)
        yield text
    if whole and of_ranks:
        yield from analysed(_load(ledgers.store, of_ranks), terminal.ranks)


def _document(ledgers: Ledgers) -> list[Part]:
    from perfctl.orchestrator.report import terminal

    make: Callable[[list[Analysis]], list[Part]]
    if ledgers.phase is not None:
        make = partial(terminal.phases_document, phase=ledgers.phase, each=ledgers.is_by_block)
    else:
        make = partial(terminal.ledgers_document, whole=ledgers.layer is None)
    return list(chain.from_iterable(ledgers.each(make)))


def _runs_of_ranks(analyses: Iterable[Analysis]) -> list[int]:
    """Return the runs of jobs with several processes, whose tables stand behind all ledgers."""
    runs = (run for analysis in analyses for run in analysis.study.runs)
    return [run.id for run in runs if run.id is not None and run.report.rank is not None]


def _load(store: Path, ids: Iterable[int]) -> list[Run]:
    with database.reading(store) as connection, no_collection():
        return loaded(connection, ids)


COMMAND = Command(LedgerOptions, run, view, record)
