"""The command line of a sweep: what every profiler command takes beside the profiler's own options.

What follows ``--`` is a program of the user's, and no option in it is perfctl's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer
from typer.core import TyperCommand

from perfctl.orchestrator.cli import options
from perfctl.orchestrator.cli.here import Here, without

if TYPE_CHECKING:
    from perfctl.orchestrator.cli.ncu_cost import CostEstimate
    from perfctl.orchestrator.launch.profiler import Profiler


AFTER = "perfctl.after"
"""Key of the words after ``--``."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that all sweeps share, as typed; on the command line in this order."""

    batches: options.Batches = "16,32,64,128,256"
    workload: options.Workload = None
    mode: options.Mode = None
    steps: options.Steps = None
    warmup: options.Warmup = None
    precision: options.Precision = None
    device: options.Device = "auto"
    out: options.Out = Path("perfctl-runs")
    store: options.Store = None
    timeout: options.Timeout = None
    batch_env: options.BatchEnv = None
    step_marker: options.StepMarker = None
    grace: options.Grace = 3.0
    no_store: options.NoStore = False
    sweep_name: options.SweepName = None
    scratch: options.Scratch = None
    sample: options.Sample = "50ms"
    again: options.Again = False
    repeat: options.Repeat = 1
    dry_run: options.DryRun = False
    as_json: options.Json = False


class SweepCommand(TyperCommand):
    """A command that leaves what follows ``--`` alone, and tells it from options it does not know."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options up to ``--``; the words after it go into ``ctx.meta[AFTER]``."""
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[AFTER] = args[:cut], tuple(args[cut + 1 :])
        return list(super().parse_args(ctx, args))


def sweep_command(profiler: Callable[..., Profiler | CostEstimate]) -> Callable[..., None]:
    """A typer command: the parameters of ``profiler`` (which makes one from them), then those of Asked and Here.

    What neither knows is left in the context, for the workload.
    """
    own = parameters_of(profiler)
    shared, local = parameters_of(Asked), parameters_of(Here)

    def command(context: typer.Context, **given: Any) -> None:
        from perfctl.orchestrator.cli.ncu_cost import CostEstimate
        from perfctl.orchestrator.cli.run_sweep import run_sweep

        made = profiler(**{parameter.name: given.pop(parameter.name) for parameter in own})
        here = Here(**{parameter.name: given.pop(parameter.name) for parameter in local})
        asked, rest, after = Asked(**given), tuple(context.args), context.meta.get(AFTER)
        if isinstance(made, CostEstimate):
            without(here, "an estimate of ncu's cost")
            made.run(asked, rest, after)
        else:
            run_sweep(made, asked, rest=rest, command=after, here=here)

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *own, *shared, *local]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = profiler.__doc__
    return command


@cache
def parameters_of(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """The parameters of a function or dataclass, their annotations as objects."""
    # Profiler, what they return, is not loaded just to print help.
    hints = get_type_hints(function, localns={"Profiler": object, "CostEstimate": object}, include_extras=True)
    return tuple(
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(function).parameters.values()
    )
