"""Analyse the newest runs of a store: counted against paper FLOPs, and why they differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.predict.peaks import roofs
from perfctl.orchestrator.actions.tables import DEFAULT, newest_runs
from perfctl.orchestrator.actions.wall.runs import analysed
from perfctl.orchestrator.analyse.analysis import analyse_all
from perfctl.orchestrator.analyse.ledger.studies import studies
from perfctl.orchestrator.analyse.usage.served import PHASES
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.parsers import no_collection

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.analysis import Analysis
    from perfctl.records.run import Run

R = TypeVar("R")


def ledger(
    store: Path = DEFAULT,
    *,
    layer: str | None = None,
    batch: Collection[int] | None = None,
    phase: str | None = None,
    peaks: str = "published",
    messages: Messages = SILENT,
    made: Callable[[list[Analysis]], R],
) -> R:
    """What ``made`` makes of the analyses, one for each study of the newest runs, with the rows that were asked for. FLOPs:
    1 multiply-add = 2. A run that cannot be analysed or shown is said and left out.

    ``layer``: this layer and those inside it; ``batch``: only these batch sizes; ``phase``: prefill, decode or mixed,
    which a run must have; ``peaks``: published or measured.
    Raises StoreError without a store, PerfctlError where no run has layers on paper, UsageError where no row is left.
    """
    if phase is not None and phase not in PHASES:
        raise UsageError(f"`phase`: '{phase}' is not known", f"Use {', '.join(PHASES[:-1])} or {PHASES[-1]}")
    with no_collection():
        runs = newest_runs(store)
        if phase is not None:
            runs = _with_phase(store, runs, phase)
        known = roofs(peaks, store, runs, messages)

        def work(some: Sequence[Run]) -> R:
            found = list(analyse_all((one for one in studies(some) if phase or one.on_paper), known))
            if phase:
                return made(found)
            return made(_asked(store, found, layer, batch))

        return analysed(runs, work)


def _with_phase(store: Path, runs: Sequence[Run], phase: str) -> list[Run]:
    """The runs with steps of this phase. Raises UsageError where there is none, with the reason where one is known."""
    found = [run for run in runs if any(step.phase == phase for step in run.report.served_steps)]
    if not found:
        there = sorted({step.phase for run in runs for step in run.report.served_steps})
        why = [gap.reason for run in runs for gap in run.report.gaps if gap.quantity == "served_step"]
        said = f"; there is {' and '.join(there)}" if there else f": {why[0]}" if why else ""
        raise UsageError(
            f"`phase`: no run in {store} has steps of {phase}{said}", "docs/serving.md says how steps are recognised"
        )
    return found


def _asked(store: Path, found: list[Analysis], layer: str | None, batch: Collection[int] | None) -> list[Analysis]:
    """The rows that were asked for. Raises PerfctlError and UsageError where there are none."""
    if not found:
        raise PerfctlError(
            f"{store}: no run has a workload and a batch size, and no report has shapes, so there is nothing on paper to compare with",
            "'perfctl report' shows reports made elsewhere; 'perfctl ncu' makes runs with layers",
        )
    if not any(one.ledger.rows or one.ledger.unattributed for one in found):
        raise PerfctlError(
            f"{store}: no run knows its layers, so there is nothing on paper to compare with",
            "Sweeps know them; of reports made elsewhere: perfctl ingest FILE --workload NAME --batch N --guess-layers --again",
        )
    found = [_part(one, layer, batch) for one in found]
    if not any(one.ledger.rows for one in found):
        missing = f"`layer`: no {layer!r}" if layer else "`batch`: no such batch size"
        raise UsageError(f"{missing} in {store}", "'perfctl ledger' without options shows all")
    return found


def _part(found: Analysis, layer: str | None, batches: Collection[int] | None) -> Analysis:
    """Only the rows that were asked for; work that is not attributed belongs to no layer."""

    def wanted(name: str, size: int | None) -> bool:
        inside = layer is None or name == layer or name.startswith(f"{layer}.")
        return inside and (batches is None or size in batches)

    rows = tuple(row for row in found.ledger.rows if wanted(row.place, row.batch))
    rest = tuple(item for item in found.ledger.unattributed if layer is None and wanted("", item.batch))
    return replace(found, ledger=replace(found.ledger, rows=rows, unattributed=rest))
