"""Analyse the newest runs of a store: counted against paper FLOPs, and why they differ."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.predict.peaks import roofs
from perfctl.orchestrator.actions.tables import DEFAULT, newest_runs
from perfctl.orchestrator.actions.wall.runs import analysed
from perfctl.orchestrator.analyse.analysis import analyse_all
from perfctl.orchestrator.analyse.ledger.studies import studies
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.parsers import no_collection

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.analysis import Analysis


def ledger(
    store: Path = DEFAULT,
    *,
    layer: str | None = None,
    batch: Collection[int] | None = None,
    peaks: str = "published",
    messages: Messages = SILENT,
) -> list[Analysis]:
    """One analysis for each study of the newest runs, with the rows that were asked for. FLOPs: 1 multiply-add = 2.

    ``layer``: this layer and those inside it; ``batch``: only these batch sizes; ``peaks``: published or measured.
    Raises StoreError without a store, PerfctlError where no run has layers on paper, UsageError where no row is left.
    """
    with no_collection():
        runs = newest_runs(store)
        known = roofs(peaks, store, runs, messages)
        found = analysed(runs, lambda some: analyse_all((one for one in studies(some) if one.on_paper), known))
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
