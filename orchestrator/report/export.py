"""A run as plain data for programs: the records as they are, the ledger beside them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from perfctl.orchestrator.analyse.analysis import analyse
from perfctl.orchestrator.analyse.grouping import studies
from perfctl.orchestrator.report.ledger_rows import ledger_rows
from perfctl.parsers.stored import Run

BULK = ("kernels", "counters", "copies", "ranges", "operations", "samples")
SMALL = ("steps", "memory", "summaries", "gaps", "diagnostics")
FACTS = (
    "id", "sweep_id", "sweep_name", "sweep_command", "host", "profiler", "profiler_version", "workload", "batch_size",
    "mode", "precision", "status", "origin", "exit_code", "reason", "started_at", "duration_ns", "artifact",
    "artifact_sha256", "command",
)  # fmt: skip


def run_json(run: Run) -> dict[str, Any]:
    """Everything a run holds; NULL is null. FLOPs count 1 multiply-add as 2. Units are those of the store."""
    (study,) = studies([run])
    return {
        **{name: getattr(run, name) for name in FACTS},
        "form": run.report.form,
        "devices": [asdict(device) for device in run.report.devices],
        "environment": run.report.environment,
        "ledger": list(ledger_rows([analyse(study)])),
        "layer_calls": [call._asdict() for call in run.layer_calls],
        **{name: [row._asdict() for row in getattr(run.report, name)] for name in (*SMALL, *BULK)},
    }
