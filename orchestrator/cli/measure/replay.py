"""perfctl replay"""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from perfctl.orchestrator.cli import commands
from perfctl.orchestrator.cli.measure.profilers import SweepOutput, run_and_print, sweep_options
from perfctl.orchestrator.launch.sweep.options import SweepOptions

FOLDER = inspect.Parameter(
    "folder",
    inspect.Parameter.KEYWORD_ONLY,
    annotation=Annotated[
        Path, typer.Argument(help="A recorded sweep: a folder with b16, b32, ... in it.")
    ],
)
REPLAYED = (
    *("batches", "out", "store", "timeout", "grace", "no_store", "sweep_name", "scratch", "again"),
)
"""Options of a sweep that a replay has."""
_SWEPT = {name: one for name, one in commands.declared_by(SweepOptions).items() if name in REPLAYED}
_BATCHES = _SWEPT["batches"]
_SWEPT["batches"] = replace(
    _BATCHES,
    default=(),
    option=replace(_BATCHES.option, help="Batch sizes. Default: all that were recorded."),
)
_SHOWN = commands.declared_by(SweepOutput)


def _replay(folder: Path, **given: Any) -> None:
    """Replay a recorded sweep of any profiler, without a GPU or the tool. Its runs are marked as
    recorded everywhere."""
    from perfctl.orchestrator.actions.sweep.sweep import replay_request

    asked = sweep_options(_SWEPT, given)
    request = replay_request(folder, asked, all_batches=not asked.batches)
    run_and_print(request, asked.store, SweepOutput(**commands.values_of(_SHOWN, given)))


replay = commands.with_parameters(
    _replay, [FOLDER, *commands.parameters_of(_SWEPT | _SHOWN)], inspect.getdoc(_replay) or ""
)
