"""The command line of a sweep: what every profiler command takes beside the profiler's own options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from perfctl.orchestrator.cli import options

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.profiler import Profiler


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that all sweeps share, as typed; on the command line in this order."""

    batches: options.Batches = "16,32,64,128,256"
    workload: options.Workload = "mnist_cnn"
    mode: options.Mode = None
    steps: options.Steps = None
    warmup: options.Warmup = None
    precision: options.Precision = None
    device: options.Device = "auto"
    out: options.Out = Path("perfctl-runs")
    store: options.Store = None
    timeout: options.Timeout = None
    again: options.Again = False
    dry_run: options.DryRun = False


def sweep_command(profiler: Callable[..., Profiler]) -> Callable[..., None]:
    """A typer command: the parameters of ``profiler`` (which makes one from them), then those of Asked.

    What neither knows is left in the context, for the workload.
    """
    own = _parameters(profiler)
    shared = _parameters(Asked)

    def command(context: typer.Context, **given: Any) -> None:
        from perfctl.orchestrator.cli.run_sweep import run_sweep

        made = profiler(**{parameter.name: given.pop(parameter.name) for parameter in own})
        run_sweep(made, Asked(**given), rest=tuple(context.args))

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *own, *shared]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = profiler.__doc__
    return command


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function or dataclass, their annotations as objects."""
    # Profiler, what they return, is not loaded just to print help.
    hints = get_type_hints(function, localns={"Profiler": object}, include_extras=True)
    return [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(function).parameters.values()
    ]
