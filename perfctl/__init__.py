"""perfctl: sets the FLOPs a GPU really executed against the FLOPs on paper, per layer and batch size.

The Python API, handed on lazily: importing perfctl costs nothing until a name is used.

``parse(path)`` reads one report file into records; ``sniff(path)`` says which format it is.
``runs(store)`` gives every run of a store, whole; ``ledger(store)`` is the ledger as a DataFrame;
``kernels(store)``, ``counters(store)`` and ``layer_calls(store)`` are those tables as DataFrames;
``estimate(model, inputs)`` is pen and paper for a model;
``predict(model, batch=..., device=...)`` says how long a training takes and what it costs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.estimate import estimate
    from perfctl.orchestrator.actions.predict import predict
    from perfctl.orchestrator.actions.tables import counters, kernels, layer_calls, ledger, runs
    from perfctl.parsers import ReportError, parse, sniff

__version__ = "0.3.0"
__all__ = [
    "ReportError",
    "__version__",
    "counters",
    "estimate",
    "kernels",
    "layer_calls",
    "ledger",
    "parse",
    "predict",
    "runs",
    "sniff",
]

_HOME = {
    "ReportError": "perfctl.parsers",
    "counters": "perfctl.orchestrator.actions.tables",
    "estimate": "perfctl.orchestrator.actions.estimate",
    "kernels": "perfctl.orchestrator.actions.tables",
    "layer_calls": "perfctl.orchestrator.actions.tables",
    "ledger": "perfctl.orchestrator.actions.tables",
    "parse": "perfctl.parsers",
    "predict": "perfctl.orchestrator.actions.predict",
    "runs": "perfctl.orchestrator.actions.tables",
    "sniff": "perfctl.parsers",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'perfctl' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
