"""JSON Schemas of what commands print with ``--json``. ``VERSIONS`` names them;
``outputs.schema_of`` makes one."""

from __future__ import annotations

VERSIONS = {
    "runs": 1,
    "show": 1,
    "show-source": 1,
    "ledger": 1,
    "compare": 1,
    "query": 1,
    "doctor": 1,
    "prices": 1,
    "estimate": 1,
    "estimate-layer": 1,
    "estimate-sheet": 1,
    "estimate-generation": 1,
    "predict": 1,
    "predict-generation": 1,
    "report": 1,
    "plot": 1,
    "plot-list": 1,
    "trace": 1,
    "export": 1,
    "export-dataset": 1,
    "calculator": 1,
    "scrub": 2,
    "mcp": 1,
    "sweep": 1,
    "sweep-commands": 1,
    "ncu-cost": 1,
    "infer": 1,
    "infer-commands": 1,
    "speedup": 1,
    "bench": 1,
    "bench-design": 1,
    "bench-show": 1,
    "prepare": 1,
    "slurm-status": 1,
    "ingest": 1,
    "mfu": 1,
    "gate": 2,
    "history": 1,
}
"""Output -> its version. Within a version keys are added only; one that goes, or changes its
meaning, type or unit, makes a new version."""


def name_of(output: str) -> str:
    """ "perfctl.ledger/1": what an output that is an object says of itself under "schema"."""
    return f"perfctl.{output}/{VERSIONS[output]}"
