"""perfctl compares the FLOPs that GPU kernels executed with the estimated FLOPs, per layer and
batch size.

The Python API. perfctl imports each name when it is first used, so ``import perfctl`` costs
nothing. docs/reference/python.md lists all names; ``help(perfctl.NAME)`` explains the keywords.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfctl.version import __version__

if TYPE_CHECKING:
    from perfctl.frames import counters, kernels, layer_calls, ledger
    from perfctl.orchestrator.commands.calculator import calculator
    from perfctl.orchestrator.commands.compare import compare
    from perfctl.orchestrator.commands.export import export, trace
    from perfctl.orchestrator.commands.gate import gate
    from perfctl.orchestrator.commands.history import history
    from perfctl.orchestrator.commands.ingest import ingest, scrub
    from perfctl.orchestrator.commands.mfu import mfu
    from perfctl.orchestrator.commands.plot import charts, plot
    from perfctl.orchestrator.commands.predict import predict, predict_generation
    from perfctl.orchestrator.commands.prepare import doctor, prepare
    from perfctl.orchestrator.commands.profile import dlprof, ncu, nsys, replay, sweep, torch
    from perfctl.orchestrator.commands.report import report
    from perfctl.orchestrator.errors import PerfctlError
    from perfctl.orchestrator.estimate.flops.registered import register_flops
    from perfctl.orchestrator.estimate.session import estimate
    from perfctl.orchestrator.launch.sweep.options import SweepOptions
    from perfctl.orchestrator.stored_runs import runs
    from perfctl.parsers import ReportError, parse, sniff
    from perfctl.recording import record

__all__ = [
    "PerfctlError",
    "ReportError",
    "SweepOptions",
    "__version__",
    "calculator",
    "charts",
    "compare",
    "counters",
    "dlprof",
    "doctor",
    "estimate",
    "export",
    "gate",
    "history",
    "ingest",
    "kernels",
    "layer_calls",
    "ledger",
    "mfu",
    "ncu",
    "nsys",
    "parse",
    "plot",
    "predict",
    "predict_generation",
    "prepare",
    "record",
    "register_flops",
    "replay",
    "report",
    "runs",
    "scrub",
    "sniff",
    "sweep",
    "torch",
    "trace",
]

_COMMANDS = "perfctl.orchestrator.commands"
_HOME = {
    "PerfctlError": "perfctl.orchestrator.errors",
    "SweepOptions": "perfctl.orchestrator.launch.sweep.options",
    "calculator": f"{_COMMANDS}.calculator",
    "charts": f"{_COMMANDS}.plot",
    "compare": f"{_COMMANDS}.compare",
    "doctor": f"{_COMMANDS}.prepare",
    "estimate": "perfctl.orchestrator.estimate.session",
    "plot": f"{_COMMANDS}.plot",
    "scrub": f"{_COMMANDS}.ingest",
    "trace": f"{_COMMANDS}.export",
    "export": f"{_COMMANDS}.export",
    "gate": f"{_COMMANDS}.gate",
    "history": f"{_COMMANDS}.history",
    "ingest": f"{_COMMANDS}.ingest",
    "mfu": f"{_COMMANDS}.mfu",
    **dict.fromkeys(("predict", "predict_generation"), f"{_COMMANDS}.predict"),
    "prepare": f"{_COMMANDS}.prepare",
    "record": "perfctl.recording",
    "report": f"{_COMMANDS}.report",
    **dict.fromkeys(("dlprof", "ncu", "nsys", "replay", "sweep", "torch"), f"{_COMMANDS}.profile"),
    **dict.fromkeys(("counters", "kernels", "layer_calls", "ledger"), "perfctl.frames"),
    "register_flops": "perfctl.orchestrator.estimate.flops.registered",
    "runs": "perfctl.orchestrator.stored_runs",
    **dict.fromkeys(("ReportError", "parse", "sniff"), "perfctl.parsers"),
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'perfctl' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
