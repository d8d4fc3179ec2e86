"""Analyse the newest runs of a store: counted against paper FLOPs, and why they differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.stored_runs import analysed, each_study, outlines
from perfctl.orchestrator.actions.tables import newest_runs
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.evidence import roofs
from perfctl.orchestrator.ledger.analysis import analyse_all
from perfctl.orchestrator.ledger.prepared import studies
from perfctl.orchestrator.ledger.usage.served import PHASES
from perfctl.orchestrator.ledger.usage.training import passes
from perfctl.orchestrator.store import database, read
from perfctl.parsers import no_collection
from perfctl.records.ranges import DIRECTIONS

if TYPE_CHECKING:
    from perfctl.orchestrator.ledger.analysis import Analysis
    from perfctl.records.run import Run

R = TypeVar("R")

_OF_TRAINING = "forward and backward are rows of 'perfctl ledger'"

_NAMED = 8
"""Layers that a message names."""


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
    messages: Messages = SILENT

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
        peaks = roofs(self.peaks, self.store, known, self.messages.note)

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


def _of_phase(ledgers: Ledgers, phase: str, make: Callable[[list[Analysis]], R]) -> Iterator[R]:
    """The same of all runs with steps of one phase together: they need no layers on paper."""
    if phase not in PHASES:
        todo = f"Use {', '.join(PHASES[:-1])} or {PHASES[-1]}"
        passed = phase in DIRECTIONS or phase in ("training", "train")
        raise UsageError(
            f"`phase`: '{phase}' is not known", f"{todo}; {_OF_TRAINING}" if passed else todo
        )
    with no_collection():
        runs = _with_phase(ledgers.store, newest_runs(ledgers.store), phase)
        peaks = roofs(ledgers.peaks, ledgers.store, runs, ledgers.messages.note)
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
        trains = "" if not any(map(passes, runs)) else f": they are of training; {_OF_TRAINING}"
        said = f"; there is {' and '.join(there)}" if there else f": {why[0]}" if why else trains
        raise UsageError(
            f"`phase`: no run in {store} has steps of {phase}{said}",
            "docs/serving.md says how steps are recognised",
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
            f"{store}: no run has a workload and a batch size, and no report has shapes, so there "
            "is nothing on paper to compare with",
            "'perfctl report' shows reports made elsewhere; 'perfctl ncu' makes runs with layers",
        )
    if not seen.rows:
        return PerfctlError(
            f"{store}: no run knows its layers, so there is nothing on paper to compare with",
            "Sweeps know them; of reports made elsewhere: perfctl ingest FILE --workload NAME "
            "--batch N --guess-layers --again",
        )
    if layer is None:
        return UsageError(
            f"`batches`: no such batch size in {store}",
            "'perfctl ledger' without options shows all",
        )
    alike = get_close_matches(layer, seen.layers, _NAMED, 0.4) or seen.layers[:_NAMED]
    more = f" and {len(seen.layers) - len(alike):,} more" if len(seen.layers) > len(alike) else ""
    return UsageError(f"`layer`: no {layer!r} in {store}", f"There are {', '.join(alike)}{more}")


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
