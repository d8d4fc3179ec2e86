"""The speed-up studies whose charts perfctl plot can draw: those of the store, or what --runs names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.actions import peaks
from perfctl.orchestrator.cli import console
from perfctl.orchestrator.cli.speedup import ASKED, allowed, named_arms
from perfctl.orchestrator.cli.speedup_study import EVERY_WAY
from perfctl.orchestrator.errors import PerfctlError

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.speedup_records import Arm, Speedup
    from perfctl.orchestrator.report.chart_files import Drawn

Study = dict[int | None, "list[Arm]"]
"""Batch size -> arms, the first is what the others are set against."""


def named(runs: str, store: Path, peak: str, allow: str | None, *, pie: bool) -> dict[str, Drawn]:
    """name -> chart, of ``--runs A,B,...``, under the rules of perfctl speedup. Raises where nothing can be compared."""
    found = _drawn("", named_arms(runs, store), store, peak, allowed(allow), pie=pie)
    if not found:
        raise PerfctlError(f"--runs {runs}: there is nothing to draw", "A chart needs whole runs of two devices")
    return found


def of_store(store: Path, sweep: int | None, peak: str, *, pie: bool) -> dict[str, Drawn]:
    """name -> chart, of every study that perfctl speedup left in the store; names begin with the workload."""
    found: dict[str, Drawn] = {}
    for workload, ways in _studies(store).items() if sweep is None else ():
        arms = named_arms(",".join(ways.values()), store)
        study = {
            batch: [replace(arm, label=label) for arm, label in zip(row, ways, strict=True)]
            for batch, row in arms.items()
        }
        found |= _drawn(f"{workload}-", study, store, peak, ASKED, pie=pie)
    return found


def _studies(store: Path) -> dict[str, dict[str, str]]:
    """workload -> device -> sweep: the sweeps that are named after a workload and a device, as perfctl speedup does."""
    from perfctl.orchestrator.store import database, read

    found: dict[str, dict[str, str]] = {}
    with database.reading(store) as connection:
        whole = [row for row in read.run_rows(connection) if row["status"] == "ok"]
    for row in whole:
        workload, label = _way(str(row["sweep_name"]))
        if workload is not None and workload == row["workload"]:
            found.setdefault(workload, {})[label] = str(row["sweep_name"])
    return {workload: ways for workload, ways in found.items() if len(ways) > 1}


def _way(sweep: str) -> tuple[str | None, str]:
    """ "lstm_cpu_bf16" -> ("lstm", "cpu:bf16"); (None, "") for sweeps that perfctl speedup did not make."""
    for label in EVERY_WAY:
        workload = sweep.removesuffix(f"_{label.replace(':', '_')}")
        if workload not in (sweep, ""):
            return workload, label
    return None, ""


def _drawn(before: str, study: Study, store: Path, peak: str, allow: frozenset[str], *, pie: bool) -> dict[str, Drawn]:
    from perfctl.orchestrator.report import chart_files, speedup_charts

    found: dict[str, Drawn] = {}
    for batch, arms in study.items():
        one = _compared(arms, store, peak, allow)
        if one is None:
            continue
        for other in one.against:
            for why in other.refused:
                console.note(f"{other.label} has no speed-up: {why} (--allow)")
        size = f"b{batch}-" if len(study) > 1 else ""
        with chart_files.drawn() as drawings:
            speedup_charts.charts(one, "s1", pie=pie)
        found |= {f"{before}{size}{drawing.name.partition('-')[2]}": drawing for drawing in drawings}
    return found


def _compared(arms: list[Arm], store: Path, peak: str, allow: frozenset[str]) -> Speedup | None:
    from perfctl.orchestrator.analyse import speedup as analysis

    roofs = [roof for arm in arms for roof in peaks.roofs(peak, store, arm.runs)]
    try:
        return analysis.speedup(arms, allowed=allow, peaks=roofs)
    except ValueError:  # fewer than two arms with a whole run: no speed-up to draw
        return None
