"""Check the hardware, profilers and permissions of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.commands.declare import Command, Events, api
from perfctl.orchestrator.launch.machine.doctor import (
    MISSING,
    OK,
    TOOLS,
    WARNING,
    Finding,
    examine,
)
from perfctl.orchestrator.report.tables import Cell, Column, Table, text_cell
from perfctl.orchestrator.report.view import View

STYLES = {OK: "better", WARNING: "news", MISSING: "no"}
ANSWERS = {OK: "yes", WARNING: "perhaps", MISSING: "no"}
STATES = {OK: "", WARNING: "warning", MISSING: "none"}


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Check the hardware, profilers and permissions of this machine."""


def run(asked: DoctorOptions, events: Events) -> list[Finding]:
    """Examine this machine."""
    return list(examine())


def view(findings: Sequence[Finding]) -> View:
    """Return what can be done here first, then the machine and its tools."""
    here = [finding for finding in findings if finding.name.startswith("perfctl ")]
    tools = [finding for finding in findings if finding.name in TOOLS]
    machine = [finding for finding in findings if finding not in (*here, *tools)]
    installed = [finding for finding in tools if finding.state != MISSING]
    missing = [finding for finding in tools if finding.state == MISSING]
    tables = (
        _table("On this machine you can", here, ANSWERS),
        _table("Machine", machine, STATES),
        _table("Tools", installed, STATES),
        _table("Not installed", missing, {MISSING: ""}),
    )
    return View("", tables=tuple(table for table in tables if table.rows))


def _table(caption: str, findings: Sequence[Finding], words: Mapping[str, str]) -> Table:
    columns = (Column("", style="text"), Column("", style="text"), Column("", style="text"))
    rows = []
    for finding in findings:
        state = words[finding.state]
        details = "; ".join(filter(None, (finding.value, finding.detail))) or "installed"
        cell = Cell(state, style=STYLES[finding.state])
        rows.append((text_cell(finding.name), cell, text_cell(details)))
    return Table(columns, tuple(rows), caption)


COMMAND = Command(DoctorOptions, run, view, has_document=False)
doctor = api(DoctorOptions, run)
