"""perfctl doctor"""

from __future__ import annotations

from dataclasses import asdict

from perfctl.orchestrator.cli import console, options


def doctor(as_json: options.Json = False) -> None:
    """Say what this machine has, and what each profiler can do on it."""
    from perfctl.orchestrator.launch.environment import examine
    from perfctl.orchestrator.report import terminal

    findings = examine()
    if as_json:
        console.as_json([asdict(finding) for finding in findings])
    else:
        rows = [(finding.name, finding.state, finding.value, finding.detail) for finding in findings]
        console.show(terminal.doctor_table(rows))
