"""Analyse the newest runs of a store: counted against paper FLOPs, and why they differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.predict.peaks import roofs
from perfctl.orchestrator.actions.stored_runs import analysed, each_study, outlines
from perfctl.orchestrator.actions.tables import DEFAULT, newest_runs
from perfctl.orchestrator.errors import PerfctlError, UsageError
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


def ledger(
    store: Path = DEFAULT,
    *,
    layer: str | None = None,
    batch: Collection[int] | None = None,
    phase: str | None = None,
    peaks: str = "published",
    messages: Messages = SILENT,
    plain: bool = False,
    made: Callable[[list[Analysis]], R],
) -> Iterator[R]:
    """What ``made`` makes of the analyses of a study of the newest runs and of those beside it in a
    sweep, with the rows that were asked for; one group after the other, of which no more than one
    is held. FLOPs: 1 multiply-add = 2. A run that cannot be analysed or shown is said and left out.

    ``layer``: this layer and those inside it; ``batch``: only these batch sizes; ``phase``:
    prefill, decode or mixed, which a run must have; ``peaks``: published or measured; ``plain``:
    what ``made`` gives can be pickled, so that several processes may make it. Analyses have no
    short kernel names. Raises StoreError without a store, PerfctlError where no run has layers on
    paper, UsageError where no row is left: before anything is given.
    """
    if phase is not None:
        yield from _of_phase(store, phase, peaks, messages, made)
        return
    seen = _Seen()
    held: list[R] = []  # until there are rows
    with database.reading(store) as connection:
        known = outlines(connection, read.run_ids(connection, latest_of_each=True))
    top = roofs(peaks, store, known, messages)

    def work(some: Sequence[Run]) -> tuple[_Seen, R]:
        found = list(analyse_all((one for one in studies(some) if one.on_paper), top, {}))
        asked = [_part(one, layer, batch) for one in found]
        names = (
            ()
            if _has_rows(asked)
            else tuple(dict.fromkeys(row.place for one in found for row in one.ledger.rows))
        )
        return _Seen(bool(found), _has_rows(found, rest=True), _has_rows(asked), names), made(asked)

    for told, part in each_study(store, known, work, beside=True, plain=plain):
        mine = _Seen(*told)
        names = tuple(dict.fromkeys((*seen.layers, *mine.layers)))
        seen = _Seen(
            seen.studies or mine.studies, seen.rows or mine.rows, seen.asked or mine.asked, names
        )
        held.append(part)
        if seen.asked:
            yield from held
            held.clear()
    if not seen.asked:
        raise _nothing(store, seen, layer)


def _of_phase(
    store: Path, phase: str, peaks: str, messages: Messages, made: Callable[[list[Analysis]], R]
) -> Iterator[R]:
    """The same of all runs with steps of one phase together: they need no layers on paper."""
    if phase not in PHASES:
        todo = f"Use {', '.join(PHASES[:-1])} or {PHASES[-1]}"
        passed = phase in DIRECTIONS or phase in ("training", "train")
        raise UsageError(
            f"`phase`: '{phase}' is not known", f"{todo}; {_OF_TRAINING}" if passed else todo
        )
    with no_collection():
        runs = _with_phase(store, newest_runs(store), phase)
        known = roofs(peaks, store, runs, messages)
        yield analysed(runs, lambda some: made(list(analyse_all(studies(some), known))))


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
            f"`batch`: no such batch size in {store}", "'perfctl ledger' without options shows all"
        )
    alike = get_close_matches(layer, seen.layers, _NAMED, 0.4) or seen.layers[:_NAMED]
    more = f" and {len(seen.layers) - len(alike):,} more" if len(seen.layers) > len(alike) else ""
    return UsageError(f"`layer`: no {layer!r} in {store}", f"There are {', '.join(alike)}{more}")


def _part(found: Analysis, layer: str | None, batches: Collection[int] | None) -> Analysis:
    """Only the rows that were asked for; work that is not attributed belongs to no layer."""

    def wanted(name: str, size: int | None) -> bool:
        inside = layer is None or name == layer or name.startswith(f"{layer}.")
        return inside and (batches is None or size in batches)

    rows = tuple(row for row in found.ledger.rows if wanted(row.place, row.batch))
    rest = tuple(
        item for item in found.ledger.unattributed if layer is None and wanted("", item.batch)
    )
    return replace(found, ledger=replace(found.ledger, rows=rows, unattributed=rest))
