"""perfctl infer"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.cli import commands, console
from perfctl.orchestrator.cli.commands import CONTEXT
from perfctl.orchestrator.commands import profile
from perfctl.orchestrator.errors import PartlyDone
from perfctl.orchestrator.launch.sweep.options import SweepOptions
from perfctl.orchestrator.options import Option, words

if TYPE_CHECKING:
    from perfctl.orchestrator.ingest.sweep import Swept
    from perfctl.orchestrator.launch.sweep.request import SweepRequest

BATCHES = (1, 5, 10, 15, 20)
_SET_HERE = ("workload", "mode", "steps", "batch_env", "step_marker", "sweep_name", "no_store")
"""Options of sweeps that make no sense here, or that this command sets itself."""


@dataclass(frozen=True, slots=True)
class InferOptions:
    """Measure inference over models and batch sizes: latency, images/s, top-1 and top-5, one
    process a run.

    Options that are not listed here go to the workload: --images N (3000), --weights
    default|none|FILE, --weights-dir DIR, --data imagenet --data-dir DIR, --dataloader-workers
    N. The same command goes on where it was stopped.
    """

    models: Annotated[
        tuple[str, ...],
        Option(
            "Models of torchvision: resnet152,densenet201.",
            names=("--models", "-m"),
            metavar="NAMES",
            parse=words,
        ),
    ]
    profiler: Annotated[
        str,
        Option(
            "none, nsys, torch or dlprof.", "Profiler", names=("--profiler", "-p"), metavar="NAME"
        ),
    ] = "none"


@dataclass(frozen=True, slots=True)
class SweepOutput:
    """What a sweep prints."""

    dry_run: profile.DryRun = False
    as_json: Annotated[bool, Option("Print JSON.", "Output", names=("--json",))] = False


_OWN = commands.declared_by(InferOptions)
_SWEPT = commands.declared_by(SweepOptions, but=_SET_HERE)
_SWEPT["batches"] = replace(_SWEPT["batches"], default=BATCHES)
_SHOWN = commands.declared_by(SweepOutput)


def _infer(context: typer.Context, **given: Any) -> None:
    from perfctl.orchestrator.ingest.sweep import ModelSwept, run_sweep
    from perfctl.orchestrator.launch.sweep.plan import plan_inference

    own = InferOptions(**commands.values_of(_OWN, given))
    asked = SweepOptions(**commands.values_of(_SWEPT, given), command_line=console.command_line())
    output = SweepOutput(**commands.values_of(_SHOWN, given))
    requests = plan_inference(
        own.models,
        own.profiler,
        asked,
        arguments=tuple(context.args),
        only_planned=output.dry_run,
    )
    if output.dry_run:
        _print_commands(requests, as_json=output.as_json)
        return
    done: dict[str, Swept] = {}
    for model, request in requests.items():
        with commands.show_events(context.command) as events:
            if len(requests) > 1 and not output.as_json:
                events.note(f"{model}:")
            done[model] = run_sweep(request, events)
        if not output.as_json:
            console.view(profile.view(done[model]), None)
    if output.as_json:
        console.as_json([ModelSwept(model, swept) for model, swept in done.items()], "infer")
    else:
        _print_all(done, asked.store_path)
    _check(done)


infer = commands.with_parameters(
    _infer,
    [CONTEXT, *commands.parameters_of(_OWN | _SWEPT | _SHOWN)],
    inspect.getdoc(InferOptions) or "",
)


def _print_commands(requests: dict[str, SweepRequest], *, as_json: bool) -> None:
    """A line for each command; as JSON one list with an object a command."""
    from perfctl.orchestrator.ingest.sweep import ModelCommand, planned_commands

    commands = {model: planned_commands(request) for model, request in requests.items()}
    if as_json:
        each = [ModelCommand(model, one) for model, some in commands.items() for one in some]
        console.as_json(each, "infer-commands")
        return
    for some in commands.values():
        console.view(profile.view(some), None)


def _print_all(done: dict[str, Swept], store: Path) -> None:
    """One table over models and batch sizes, from the store."""
    from perfctl.orchestrator.actions.stored_runs import runs_of_sweeps
    from perfctl.orchestrator.report import terminal

    for part in terminal.inference_summary(
        runs_of_sweeps(store, [one.name for one in done.values()])
    ):
        console.show(part)


def _check(done: dict[str, Swept]) -> None:
    """Raises PartlyDone where a model failed or is partial."""
    failed = []
    for model, one in done.items():
        try:
            one.check()
        except PartlyDone as error:
            failed.append(f"{model}: {error}")
    if failed:
        raise PartlyDone(f"{len(failed)} of {len(done)} models failed or are partial: {failed[0]}")
