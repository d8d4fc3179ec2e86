"""perfctl doctor"""

from __future__ import annotations

from perfctl.orchestrator.cli import console, options


def doctor(as_json: options.Json = False) -> None:
    """Show what this machine has, and what each profiler can do on it."""
    from perfctl.orchestrator.actions import setup
    from perfctl.orchestrator.report import text_tables

    findings = setup.doctor()
    if as_json:
        console.as_json(findings, "doctor")
    else:
        rows = [
            (finding.name, finding.state, finding.value, finding.detail) for finding in findings
        ]
        console.show(text_tables.doctor_table(rows))
