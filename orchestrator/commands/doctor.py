"""Check the hardware, profilers and permissions of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.commands.declare import Command, Events, make_api_function
from perfctl.orchestrator.launch.machine.doctor import (
    MISSING,
    OK,
    TOOLS,
    WARNING,
    Finding,
    check_machine,
)
from perfctl.orchestrator.report.tables import (
    Cell,
    Table,
    build_complete_table,
    text_cell,
    text_columns,
)
from perfctl.orchestrator.report.view import View

STYLES = {OK: "better", WARNING: "news", MISSING: "no"}
ANSWERS = {OK: "yes", WARNING: "perhaps", MISSING: "no"}
STATES = {OK: "", WARNING: "warning", MISSING: "none"}
CAPTIONS = {
    "On this machine you can": ANSWERS,
    "Machine": STATES,
    "Tools": STATES,
    "Not installed": {MISSING: ""},
}
"""Table -> its words for the states."""


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Check the hardware, profilers and permissions of this machine."""


def examine_machine(options: DoctorOptions, events: Events) -> list[Finding]:
    """Examine this machine."""
    return list(check_machine())


def build_doctor_view(findings: Sequence[Finding]) -> View:
    """Return what can be done here first, then the machine and its tools."""
    tables = []
    for caption, state_labels in CAPTIONS.items():
        rows = [finding for finding in findings if _choose_caption(finding) == caption]
        tables += [_build_findings_table(caption, rows, state_labels)] if rows else []
    return View("", tables=tuple(tables))


def _choose_caption(finding: Finding) -> str:
    if finding.name.startswith("perfctl "):
        return "On this machine you can"
    if finding.name not in TOOLS:
        return "Machine"
    return "Not installed" if finding.state == MISSING else "Tools"


def _build_findings_table(
    caption: str, findings: Sequence[Finding], state_labels: Mapping[str, str]
) -> Table:
    rows = []
    for finding in findings:
        details = "; ".join(filter(None, (finding.value, finding.detail))) or "installed"
        state = Cell(state_labels[finding.state], style=STYLES[finding.state])
        rows.append((finding.name, state, text_cell(details)))
    return build_complete_table(caption, text_columns("", "", ""), rows)


COMMAND = Command(DoctorOptions, examine_machine, build_doctor_view, has_document=False)
doctor = make_api_function(DoctorOptions, examine_machine)
