"""Compare counted with paper FLOPs of the newest runs of a store, and say why they differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Option,
    PeaksOf,
    Store,
)
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.events import SILENT
from perfctl.orchestrator.evidence import roofs
from perfctl.orchestrator.ledger.analysis import analyse_all
from perfctl.orchestrator.ledger.prepared import studies
from perfctl.orchestrator.ledger.usage.served import PHASES
from perfctl.orchestrator.ledger.usage.training import passes
from perfctl.orchestrator.options import read_batches
from perfctl.orchestrator.outputs import JsonLists
from perfctl.orchestrator.report.ledger.rows import LedgerOutput, ledger_json
from perfctl.orchestrator.report.view import Layout, Paper, View, as_parts, draw_views
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import (
    analysed,
    each_study,
    loaded,
    newest_runs,
    outlines,
)
from perfctl.parsers import no_collection
from perfctl.records.ranges import DIRECTIONS

if TYPE_CHECKING:
    from perfctl.orchestrator.ledger.analysis import Analysis
    from perfctl.orchestrator.report.files.documents import Part
    from perfctl.orchestrator.report.ledger.view import LedgerShape
    from perfctl.orchestrator.report.view import Block
    from perfctl.records.run import Run


R = TypeVar("R")

_OF_TRAINING = "forward and backward are rows of 'perfctl ledger'"

_NAMED = 8
"""Layers that a message names."""
ORDERS = ("time", "network")


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Compare executed with estimated FLOPs per layer, pass and batch size, and explain the
    differences. 1 multiply-add = 2 FLOPs.

    Raises StoreError if there is no store, PerfctlError if no run has layers on paper, UsageError
    if no row is left.
    """

    layer: Annotated[str | None, Option("Show only this layer and the layers inside it.")] = None
    batches: Annotated[
        tuple[int, ...],
        Option(
            "Show only these batch sizes: 16,64.",
            names=("--batches", "-b"),
            metavar="LIST",
            parse=read_batches,
        ),
    ] = ()
    phase: Annotated[
        str | None,
        Option(
            "Show one phase of an LLM trace by model component: prefill, decode or mixed.",
            metavar="PHASE",
        ),
    ] = None
    each: Annotated[bool, Option("Show each repeated block in a separate row.")] = False
    all_rows: Annotated[
        bool, Option("Also show rows below 1% of the step time.", "Output", names=("--all",))
    ] = False
    wide: Annotated[
        bool, Option("Show all batch sizes, not only the first, middle and last.", "Output")
    ] = False
    order: Annotated[
        str,
        Option("Sort the rows by time or by position in the network.", "Output", metavar="ORDER"),
    ] = "time"
    explain: Annotated[
        bool, Option("Also show the causes of the differences and the data sources.", "Output")
    ] = False
    peaks: PeaksOf = "published"
    store: Store = DEFAULT_STORE


@dataclass(frozen=True, slots=True)
class Ledgers:
    """The ledgers of the newest runs of a store. They are made when they are asked for: one group
    of studies after the other, of which no more than one is held."""

    store: Path
    layer: str | None = None
    """Only this layer and the ones inside it."""
    batches: Collection[int] = ()
    """Only these batch sizes; empty: all."""
    phase: str | None = None
    """Prefill, decode or mixed, which a run must have."""
    peaks: str = "published"
    is_by_block: bool = False
    """Whether each repeated block is shown by itself."""
    events: Events = SILENT

    def each(self, make: Callable[[list[Analysis]], R], *, is_pickled: bool = False) -> Iterator[R]:
        """Yield what ``make`` makes of the analyses of a study and of those beside it in a sweep,
        with the rows that were asked for. A run that cannot be analysed or shown is said and left
        out.

        ``is_pickled``: what ``make`` gives can be pickled, so that several processes may make it.
        Analyses have no short kernel names. Raises StoreError if there is no store, PerfctlError if
        no run has layers on paper, UsageError if no row is left: before anything is given.
        """
        if self.phase is not None:
            yield from _of_phase(self, self.phase, make)
            return
        seen = _Seen()
        waiting: list[R] = []  # until there are rows
        with database.reading(self.store) as connection:
            known = outlines(connection, read.run_ids(connection, latest_of_each=True))
        peaks = roofs(self.peaks, self.store, known, self.events.note)

        def work(runs: Sequence[Run]) -> tuple[_Seen, R]:
            analyses = list(
                analyse_all((study for study in studies(runs) if study.on_paper), peaks, {})
            )
            chosen = [_keep_rows(analysis, self) for analysis in analyses]
            names = (row.place for analysis in analyses for row in analysis.ledger.rows)
            group = _Seen(
                bool(analyses),
                _has_rows(analyses, rest=True),
                _has_rows(chosen),
                () if _has_rows(chosen) else tuple(dict.fromkeys(names)),
            )
            return group, make(chosen)

        for group, made in each_study(self.store, known, work, beside=True, plain=is_pickled):
            seen = seen.with_group(_Seen(*group))
            waiting.append(made)
            if seen.asked:
                yield from waiting
                waiting.clear()
        if not seen.asked:
            raise _nothing(self.store, seen, self.layer)


@dataclass(frozen=True, slots=True)
class AskedLedgers:
    """Ledgers, which are read when they are shown, and how they are shown."""

    ledgers: Ledgers
    asked: LedgerOptions


def run(asked: LedgerOptions, events: Events) -> AskedLedgers:
    """Return the ledgers, which are read when they are shown."""
    if asked.order not in ORDERS:
        raise UsageError(
            f"invalid value '{asked.order}' for `order`", f"Choose {' or '.join(ORDERS)}"
        )
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


def _of_phase(ledgers: Ledgers, phase: str, make: Callable[[list[Analysis]], R]) -> Iterator[R]:
    """The same of all runs with steps of one phase together: they need no layers on paper."""
    if phase not in PHASES:
        todo = f"Choose {', '.join(PHASES[:-1])} or {PHASES[-1]}"
        passed = phase in DIRECTIONS or phase in ("training", "train")
        raise UsageError(
            f"invalid value '{phase}' for `phase`", f"{todo}; {_OF_TRAINING}" if passed else todo
        )
    with no_collection():
        runs = _with_phase(ledgers.store, newest_runs(ledgers.store), phase)
        peaks = roofs(ledgers.peaks, ledgers.store, runs, ledgers.events.note)
        yield analysed(runs, lambda some: make(list(analyse_all(studies(some), peaks))))


def _with_phase(store: Path, runs: Sequence[Run], phase: str) -> list[Run]:
    """The runs with steps of this phase. Raises UsageError where there is none, with the reason
    where one is known."""
    found = [run for run in runs if any(step.phase == phase for step in run.report.served_steps)]
    if not found:
        there = sorted({step.phase for run in runs for step in run.report.served_steps})
        why = [
            gap.reason for run in runs for gap in run.report.gaps if gap.quantity == "served_step"
        ]
        trains = (
            ""
            if not any(map(passes, runs))
            else f", because they are training runs; {_OF_TRAINING}"
        )
        said = f"; available: {' and '.join(there)}" if there else f": {why[0]}" if why else trains
        raise UsageError(
            f"`phase`: no run in {store} has steps of {phase}{said}",
            "docs/serving.md explains how perfctl recognizes steps",
        )
    return found


class _Seen(NamedTuple):
    """What there is to show."""

    studies: bool = False
    rows: bool = False
    asked: bool = False
    layers: tuple[str, ...] = ()
    """Of the rows that there are; not needed where some were asked for."""

    def with_group(self, other: _Seen) -> _Seen:
        """Return what there is to show here or in another group of studies."""
        return _Seen(
            self.studies or other.studies,
            self.rows or other.rows,
            self.asked or other.asked,
            tuple(dict.fromkeys((*self.layers, *other.layers))),
        )


def _has_rows(found: Iterable[Analysis], *, rest: bool = False) -> bool:
    return any(one.ledger.rows or (rest and one.ledger.unattributed) for one in found)


def _nothing(store: Path, seen: _Seen, layer: str | None) -> PerfctlError:
    if not seen.studies:
        return PerfctlError(
            f"{store}: no run has a workload, a batch size or shapes, so perfctl cannot compute "
            "estimated FLOPs",
            "Run 'perfctl report' to show ingested reports, or 'perfctl ncu' to record runs with "
            "layers",
        )
    if not seen.rows:
        return PerfctlError(
            f"{store}: no run has layer information, so perfctl cannot compute estimated FLOPs",
            "perfctl's sweeps record layers. For existing reports run perfctl ingest FILE "
            "--workload NAME --batch N --guess-layers --again",
        )
    if layer is None:
        return UsageError(
            f"batch size not found in {store} (`batches`)",
            "Run 'perfctl ledger' without options to list all",
        )
    alike = get_close_matches(layer, seen.layers, _NAMED, 0.4) or seen.layers[:_NAMED]
    more = f" and {len(seen.layers) - len(alike):,} more" if len(seen.layers) > len(alike) else ""
    return UsageError(
        f"layer {layer!r} not found in {store} (`layer`)",
        f"Available layers: {', '.join(alike)}{more}",
    )


def _keep_rows(analysis: Analysis, ledgers: Ledgers) -> Analysis:
    """Keep the rows that were asked for; work that is not attributed belongs to no layer."""
    layer, batches = ledgers.layer, ledgers.batches

    def is_asked(name: str, batch: int | None) -> bool:
        is_inside = layer is None or name == layer or name.startswith(f"{layer}.")
        return is_inside and (not batches or batch in batches)

    rows = tuple(row for row in analysis.ledger.rows if is_asked(row.place, row.batch))
    rest = tuple(
        item for item in analysis.ledger.unattributed if layer is None and is_asked("", item.batch)
    )
    return replace(analysis, ledger=replace(analysis.ledger, rows=rows, unattributed=rest))


COMMAND = Command(LedgerOptions, run, view, record)
