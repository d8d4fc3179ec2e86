"""The parts of a run report: run groups, and their chapters with what only this report draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfctl.orchestrator.report.findings import SHOWN
from perfctl.orchestrator.report.ledger.page import LedgerMatrix, LedgerView
from perfctl.orchestrator.report.page.about import CAUTIONED, ORIGINS
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import JsonObject, PackedTable
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run


@dataclass(frozen=True, slots=True)
class Section(View):
    """A chapter of a run group. Its key is unique in the group."""

    ledger: LedgerView | None = None
    matrix: LedgerMatrix | None = None
    trails: Mapping[str, Any] = field(default_factory=dict)
    """As ``trail.packed`` makes them; "names": short kernel name -> complete name."""
    grids: tuple[PackedTable, ...] = ()
    """Long tables that are drawn a screen at a time."""
    timelines: tuple[JsonObject, ...] = ()
    icicles: tuple[JsonObject, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    """Facts on which all runs agree."""
    commands: tuple[tuple[str, str], ...] = ()
    """(name, command line) to repeat the runs."""


def build_group_view(
    key: str,
    title: str,
    runs: Sequence[Run],
    facts: Mapping[str, str | None],
    findings: Iterable[Finding],
    sections: Iterable[Section],
) -> View:
    """Return a run group as a part of the report. ``facts`` without a value are left out."""
    origins = dict.fromkeys(run.origin for run in runs)
    names = (name if name in CAUTIONED else ORIGINS.get(name, name) for name in origins)
    properties = {**facts, "origin": ", ".join(names)}
    cautions = [f"The numbers below are {ORIGINS[name]}." for name in origins if name in CAUTIONED]
    return View(
        title,
        findings=tuple(findings),
        key=key,
        properties=tuple((name, value) for name, value in properties.items() if value),
        caution=" ".join(cautions) or None,
        open_findings=SHOWN,
        chapters=tuple(sections),
    )
