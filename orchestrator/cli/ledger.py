"""perfctl ledger"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT, newest_runs
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.report import Peaks
from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.analysis import Analysis


def ledger(
    layer: Annotated[str | None, typer.Option(help="Only this layer and the ones inside it.")] = None,
    batch: Annotated[str | None, typer.Option("--batch", "-b", help="Only these batch sizes: 16,64.")] = None,
    peak: Peaks = "published",
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Counted against paper FLOPs per layer, direction and batch size, and why they differ. 1 multiply-add = 2 FLOPs."""
    from perfctl.orchestrator.actions import peaks
    from perfctl.orchestrator.analyse.analysis import analyse
    from perfctl.orchestrator.analyse.grouping import studies
    from perfctl.orchestrator.report import ledger_rows, terminal
    from perfctl.parsers import no_collection

    store = store or DEFAULT
    with no_collection():
        runs = newest_runs(store)
        roofs = peaks.roofs(peak, store, runs, console)
        found = [analyse(study, roofs) for study in studies(runs) if not study.foreign]
    if not found:
        raise PerfctlError(
            f"{store}: no run has a workload and a batch size, so there is nothing on paper to compare with",
            "'perfctl report' shows reports made elsewhere; 'perfctl ncu' makes runs with layers",
        )
    if not any(one.ledger.rows or one.ledger.unattributed for one in found):
        raise PerfctlError(
            f"{store}: no run knows its layers, so there is nothing on paper to compare with",
            "Sweeps know them; of reports made elsewhere: perfctl ingest FILE --workload NAME --batch N --guess-layers --again",
        )
    wanted = None if batch is None else options.batch_list(batch)
    found = [_part(one, layer, wanted) for one in found]
    if not any(one.ledger.rows for one in found):
        raise UsageError(
            f"{'--layer: no ' + repr(layer) if layer else '--batch: no such batch size'} in {store}",
            "'perfctl ledger' without options shows all",
        )
    if as_json:
        console.as_json({"rows": list(ledger_rows.ledger_rows(found)), "sweep": ledger_rows.sweep_verdicts(found)})
        return
    for part in terminal.ledgers(found, whole=layer is None):
        console.show(part)


def _part(found: Analysis, layer: str | None, batches: tuple[int, ...] | None) -> Analysis:
    """Only the rows asked for; what is not attributed belongs to no layer."""

    def wanted(name: str, size: int) -> bool:
        inside = layer is None or name == layer or name.startswith(f"{layer}.")
        return inside and (batches is None or size in batches)

    rows = tuple(row for row in found.ledger.rows if wanted(row.place, row.batch))
    rest = tuple(item for item in found.ledger.unattributed if layer is None and wanted("", item.batch))
    return replace(found, ledger=replace(found.ledger, rows=rows, unattributed=rest))
