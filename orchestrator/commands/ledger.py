"""Compare executed with estimated FLOPs of the newest runs of a database, and explain the
differences; show one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from perfctl.orchestrator.evidence import measure_roofline_peaks_if_selected
from perfctl.orchestrator.ledger.analysis import analyse_studies
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.ledger.usage.served import PHASES
from perfctl.orchestrator.ledger.usage.training import list_ingested_training_pass_times
from perfctl.orchestrator.options import parse_batch_sizes
from perfctl.orchestrator.outputs import JsonLists
from perfctl.orchestrator.report.ledger.causes import SWITCH
from perfctl.orchestrator.report.ledger.rows import (
    LedgerOutput,
    ShownRun,
    build_ledger_json,
    collect_run_details,
)
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import (
    load_latest_runs_per_configuration,
    load_runs_without_report_rows,
    load_single_run,
    run_work_or_raise_partly_done,
    run_work_per_study,
    run_work_without_failing_runs,
)
from perfctl.parsers import pause_garbage_collection
from perfctl.records.ranges import DIRECTIONS
from perfctl.records.report import SourceLine
from perfctl.records.run import Run

if TYPE_CHECKING:
    from perfctl.orchestrator.ledger.analysis import Analysis
    from perfctl.orchestrator.ledger.ledger import LedgerRow, UnattributedWork
    from perfctl.orchestrator.report.terminal import LedgerViewOptions
    from perfctl.records.run import Run

R = TypeVar("R")

_OF_TRAINING = "forward and backward are rows of 'perfctl ledger'"

NAMES_MAX = 8
"""Layers that a message names."""
ORDERS = ("time", "network")


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Compare executed with estimated FLOPs per layer, pass and batch size, and explain the
    differences. 1 multiply-add = 2 FLOPs.

    Raises StoreError if there is no store, PerfctlError if no run has estimated layers,
    UsageError if no row is left.
    """

    layer: Annotated[str | None, Option("Show only this layer and the layers inside it.")] = None
    batches: Annotated[
        tuple[int, ...],
        Option(
            "Show only these batch sizes: 16,64.",
            metavar="LIST",
            parse=parse_batch_sizes,
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


class _GroupFacts(NamedTuple):
    """What a group of run groups has."""

    has_estimates: bool
    has_rows: bool
    is_asked: bool
    """Whether some of its rows were asked for."""
    layers: tuple[str, ...]
    """Names of all rows if none was asked for."""
    patterns: tuple[str, ...]
    """Of the kernels that have a formula of the user's."""


@dataclass(frozen=True, slots=True)
class RequestedLedgers:
    """The ledgers of the newest runs of a database. They are made when they are asked for, one
    group of run groups after the other, of which no more than one is in memory."""

    options: LedgerOptions
    events: Events = SILENT

    def map_run_groups(self, build_result: Callable[[list[Analysis]], R]) -> Iterator[R]:
        """Yield what ``build_result`` returns for the analyses of a run group and of those of the
        same sweep, with the rows that were asked for. If a run cannot be analyzed or shown, perfctl
        prints a warning and omits it.

        What ``build_result`` returns can be pickled: several processes may make it. Analyses have
        no short kernel names. Raises StoreError if there is no database, PerfctlError if no run
        has estimated layers, UsageError if no row is left: before anything is yielded.
        """
        options = self.options
        if options.phase is not None:
            runs = _load_newest_runs_with_phase(options.store, options.phase)
            peaks = measure_roofline_peaks_if_selected(
                options.peaks, options.store, runs, self.events.note
            )
            with pause_garbage_collection():
                yield run_work_without_failing_runs(
                    runs,
                    lambda some: build_result(
                        list(analyse_studies(group_into_studies(some), peaks))
                    ),
                )
            return
        with database.open_store_for_reading(options.store) as connection:
            runs = load_runs_without_report_rows(
                connection, read.list_run_ids(connection, latest_per_configuration=True)
            )
        peaks = measure_roofline_peaks_if_selected(
            options.peaks, options.store, runs, self.events.note
        )

        def analyse_group(runs: Sequence[Run]) -> tuple[_GroupFacts, R]:
            estimated = (study for study in group_into_studies(runs) if study.has_ledger)
            analyses = list(analyse_studies(estimated, peaks, {}))
            chosen = [_keep_requested_rows(analysis, options) for analysis in analyses]
            ledgers = [analysis.ledger for analysis in analyses]
            has_rows = any(ledger.rows for ledger in ledgers)
            is_asked = any(analysis.ledger.rows for analysis in chosen)
            names = dict.fromkeys(row.layer_label for ledger in ledgers for row in ledger.rows)
            patterns = tuple(item.pattern for run in runs for item in run.expectations)
            listed = () if is_asked else tuple(names)
            group = _GroupFacts(bool(analyses), has_rows, is_asked, listed, patterns)
            return group, build_result(chosen)

        groups: list[_GroupFacts] = []
        waiting: list[R] = []  # until there are rows
        for group, result in run_work_per_study(
            options.store, runs, analyse_group, group_related_studies=True, is_result_picklable=True
        ):
            groups.append(_GroupFacts(*group))
            waiting.append(result)
            if any(group.is_asked for group in groups):
                yield from waiting
                waiting.clear()
        if not any(group.is_asked for group in groups):
            raise _build_no_rows_error(options, groups)


def create_lazy_ledgers(options: LedgerOptions, events: Events) -> RequestedLedgers:
    """Return the ledgers, which are read when they are shown."""
    if options.order not in ORDERS:
        raise UsageError(
            f"invalid value '{options.order}' for `order`", f"Choose {' or '.join(ORDERS)}"
        )
    return RequestedLedgers(options, events)


def stream_ledger_json(ledgers: RequestedLedgers) -> JsonLists[LedgerOutput]:
    """Return the rows of all ledgers for programs."""
    options = ledgers.options

    def yield_json_batches(
        format_json: Callable[[object], str],
    ) -> Iterator[Mapping[str, Iterable[str]]]:
        def format_rows_as_json(analyses: list[Analysis]) -> dict[str, list[str]]:
            lists = build_ledger_json(analyses, options.phase, by_block=options.each)
            return {name: list(map(format_json, rows)) for name, rows in lists.items()}

        return ledgers.map_run_groups(format_rows_as_json)

    return JsonLists(LedgerOutput, yield_json_batches)


def build_ledgers_view(ledgers: RequestedLedgers) -> View:
    """Return each ledger below its heading, after the findings if it is complete."""
    from perfctl.orchestrator.report.terminal import DOCUMENT, LedgerViewOptions

    options = ledgers.options
    shape = LedgerViewOptions(
        is_whole=options.layer is None,
        has_all_rows=options.all_rows,
        has_all_batches=options.wide,
        is_by_time=options.order == "time",
        is_explained=options.explain,
        is_by_block=options.each,
    )
    complete = replace(DOCUMENT, is_whole=shape.is_whole, is_by_block=options.each)
    return View(
        chapters=_yield_ledger_chapters(ledgers, shape),
        document=lambda: View(chapters=_yield_ledger_chapters(ledgers, complete)),
    )


def _yield_ledger_chapters(ledgers: RequestedLedgers, options: LedgerViewOptions) -> Iterator[View]:
    """Yield the views of each ledger."""
    phase = ledgers.options.phase
    for views in ledgers.map_run_groups(
        lambda analyses: list(_yield_group_views(analyses, phase, options))
    ):
        yield from views


def _yield_group_views(
    analyses: Sequence[Analysis], phase: str | None, options: LedgerViewOptions
) -> Iterator[View]:
    from perfctl.orchestrator.report.terminal import (
        build_multi_rank_job_views,
        build_phase_views,
        build_run_group_views,
    )

    if phase is not None:
        yield from build_phase_views(analyses, phase, is_by_block=options.is_by_block)
        return
    if options.is_whole:  # what the ranks wait for comes before what each of them does
        yield from build_multi_rank_job_views(analyses, options)
    for analysis in analyses:
        yield from build_run_group_views(analysis, options)


def _load_newest_runs_with_phase(store: Path, serving_phase: str) -> list[Run]:
    """Return the runs with steps of this phase. Raises UsageError if there is none, with the reason
    if one is known."""
    if serving_phase not in PHASES:
        choice = f"Choose {', '.join(PHASES[:-1])} or {PHASES[-1]}"
        is_pass = serving_phase in DIRECTIONS or serving_phase in ("training", "train")
        raise UsageError(
            f"invalid value '{serving_phase}' for `phase`",
            f"{choice}; {_OF_TRAINING}" if is_pass else choice,
        )
    with pause_garbage_collection():
        runs = load_latest_runs_per_configuration(store)
    phases_of = {run.id: {step.phase for step in run.report.served_steps} for run in runs}
    chosen = [run for run in runs if serving_phase in phases_of[run.id]]
    if not chosen:
        phases = sorted(set().union(*phases_of.values()))
        gaps = (gap for run in runs for gap in run.report.gaps)
        reasons = [gap.reason for gap in gaps if gap.quantity == "served_step"]
        if phases:
            explanation = f"; available: {' and '.join(phases)}"
        elif reasons:
            explanation = f": {reasons[0]}"
        else:
            trains = f", because they are training runs; {_OF_TRAINING}"
            explanation = trains if any(map(list_ingested_training_pass_times, runs)) else ""
        raise UsageError(
            f"`phase`: no run in {store} has steps of {serving_phase}{explanation}",
            "perfctl recognizes steps by the ranges of a server, or by shapes (record_shapes=True)",
        )
    return chosen


def _build_no_rows_error(options: LedgerOptions, groups: Sequence[_GroupFacts]) -> PerfctlError:
    store, layer = options.store, options.layer
    if not any(group.has_estimates for group in groups):
        return PerfctlError(
            f"{store}: no run has a workload, a batch size or shapes, so perfctl cannot compute "
            "estimated FLOPs",
            "Run 'perfctl report' to show ingested reports, or 'perfctl ncu' to record runs with "
            "layers",
        )
    patterns = dict.fromkeys(pattern for group in groups for pattern in group.patterns)
    if patterns and not any(group.has_rows for group in groups):
        return PerfctlError(
            f"{store}: no kernel matches --expect '{next(iter(patterns))}', and no range of that "
            "name contains a kernel",
            "'perfctl show RUN' lists the kernels. Repeat perfctl ingest with another pattern",
        )
    if not any(group.has_rows for group in groups):
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
    names = list(dict.fromkeys(name for group in groups for name in group.layers))
    similar = get_close_matches(layer, names, NAMES_MAX, 0.4) or names[:NAMES_MAX]
    others_count = f" and {len(names) - len(similar):,} more" if len(names) > len(similar) else ""
    return UsageError(
        f"layer {layer!r} not found in {store} (`layer`)",
        f"Available layers: {', '.join(similar)}{others_count}",
    )


def _keep_requested_rows(analysis: Analysis, options: LedgerOptions) -> Analysis:
    """Keep the rows that were asked for, and the changes of algorithm among them; unattributed work
    belongs to no layer."""
    layer, ledger = options.layer, analysis.ledger

    def is_requested_batch(row: LedgerRow | UnattributedWork) -> bool:
        return not options.batches or row.batch in options.batches

    rows = tuple(
        row
        for row in ledger.rows
        if is_requested_batch(row)
        and (layer is None or f"{row.layer_label}.".startswith(f"{layer}."))
    )
    unattributed = tuple(
        item for item in ledger.unattributed if layer is None and is_requested_batch(item)
    )
    names = {(row.name, row.batch_size_or_one) for row in rows}
    sweep = tuple(
        cause
        for cause in analysis.judgement.sweep
        if cause.rule != SWITCH or (cause.facts["name"], cause.facts["batch"]) in names
    )
    return replace(
        analysis,
        ledger=replace(ledger, rows=rows, unattributed=unattributed),
        judgement=replace(analysis.judgement, sweep=sweep),
    )


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
    return run_work_or_raise_partly_done(report.run, lambda: collect_run_details(report.run))


def build_run_view(report: RunToShow) -> View:
    """Return findings, the ledger and the tables of the run, or its source lines."""
    from perfctl.orchestrator.report import terminal

    if report.source_lines is not None:
        return terminal.build_source_lines_view(report.source_lines)
    return View(
        chapters=_yield_run_views(report, is_document=False),
        document=lambda: View(chapters=_yield_run_views(report, is_document=True)),
    )


def _yield_run_views(report: RunToShow, *, is_document: bool) -> Iterator[View]:
    from perfctl.orchestrator.report.terminal import build_run_views

    is_whole = report.is_whole or is_document
    make = partial(build_run_views, report.run, show_all=is_whole, is_document=is_document)
    yield from run_work_or_raise_partly_done(report.run, lambda: list(make()))


COMMAND = Command(LedgerOptions, create_lazy_ledgers, build_ledgers_view, stream_ledger_json)
SHOW = Command(ShowOptions, load_run_to_show, build_run_view, build_run_output)
