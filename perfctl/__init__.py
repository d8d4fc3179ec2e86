"""perfctl: sets the FLOPs a GPU really executed against the FLOPs on paper, per layer and batch size.

The Python API, handed on lazily: importing perfctl costs nothing until a name is used.

``parse(path)`` reads one report file into records; ``sniff(path)`` says which format it is.
``runs(store)`` gives every run of a store, whole; ``ledger(store)`` is the ledger as a DataFrame;
``kernels(store)``, ``counters(store)`` and ``layer_calls(store)`` are those tables as DataFrames;
``estimate(model, inputs)`` is pen and paper for a model;
``predict(model, batch=..., device=...)`` says how long a training takes and what it costs;
``ingest(paths, store)`` takes reports into a store; ``sweep(profiler, SweepOptions(...))`` runs a workload or program under
a profiler, once per batch size, and stores what it measured; ``replay(folder)`` does so from a recorded sweep.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfctl.estimation import estimate
    from perfctl.orchestrator.actions.ingest import UserHints, ingest
    from perfctl.orchestrator.actions.sweep import replay, sweep
    from perfctl.orchestrator.actions.sweep_options import LocalPlacement, SweepOptions
    from perfctl.orchestrator.actions.tables import counters, kernels, layer_calls, ledger, runs
    from perfctl.orchestrator.errors import PerfctlError
    from perfctl.parsers import ReportError, parse, sniff
    from perfctl.prediction import predict

__version__ = "0.3.0"
__all__ = [
    "LocalPlacement",
    "PerfctlError",
    "ReportError",
    "SweepOptions",
    "UserHints",
    "__version__",
    "counters",
    "estimate",
    "ingest",
    "kernels",
    "layer_calls",
    "ledger",
    "parse",
    "predict",
    "replay",
    "runs",
    "sniff",
    "sweep",
]

_HOME = {
    "LocalPlacement": "perfctl.orchestrator.actions.sweep_options",
    "PerfctlError": "perfctl.orchestrator.errors",
    "ReportError": "perfctl.parsers",
    "SweepOptions": "perfctl.orchestrator.actions.sweep_options",
    "UserHints": "perfctl.orchestrator.actions.ingest",
    "counters": "perfctl.orchestrator.actions.tables",
    "estimate": "perfctl.estimation",
    "ingest": "perfctl.orchestrator.actions.ingest",
    "kernels": "perfctl.orchestrator.actions.tables",
    "layer_calls": "perfctl.orchestrator.actions.tables",
    "ledger": "perfctl.orchestrator.actions.tables",
    "parse": "perfctl.parsers",
    "predict": "perfctl.prediction",
    "replay": "perfctl.orchestrator.actions.sweep",
    "runs": "perfctl.orchestrator.actions.tables",
    "sniff": "perfctl.parsers",
    "sweep": "perfctl.orchestrator.actions.sweep",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'perfctl' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
