"""perfctl infer"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.cli import commands, console
from perfctl.orchestrator.cli.measure.profilers import (
    CONTEXT,
    SweepOutput,
    listening,
    print_commands,
    print_summary,
    sweep_options,
)
from perfctl.orchestrator.errors import PartlyDone
from perfctl.orchestrator.launch.sweep.options import SweepOptions
from perfctl.orchestrator.options import Option, words
from perfctl.orchestrator.store import DEFAULT_STORE as DEFAULT

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.sweep.sweep import Swept
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


_OWN = commands.declared_by(InferOptions)
_SWEPT = commands.declared_by(SweepOptions, but=_SET_HERE)
_SWEPT["batches"] = replace(_SWEPT["batches"], default=BATCHES)
_SHOWN = commands.declared_by(SweepOutput)


def _infer(context: typer.Context, **given: Any) -> None:
    from perfctl.orchestrator.actions.sweep.sweep import ModelSwept, infer_requests

    own = InferOptions(**commands.values_of(_OWN, given))
    asked = sweep_options(_SWEPT, given)
    output = SweepOutput(**commands.values_of(_SHOWN, given))
    requests = infer_requests(
        own.models,
        own.profiler,
        asked,
        arguments=tuple(context.args),
        only_planned=output.dry_run,
        messages=console,
    )
    if output.dry_run:
        _print_commands(requests, asked.store, output)
        return
    store = asked.store or asked.out.parent / DEFAULT
    done = _run(requests, store, output)
    if output.as_json:
        console.as_json([ModelSwept(model, swept) for model, swept in done.items()], "infer")
    else:
        _print_all(done, store)
    _check(done)


infer = commands.with_parameters(
    _infer,
    [CONTEXT, *commands.parameters_of(_OWN | _SWEPT | _SHOWN)],
    inspect.getdoc(InferOptions) or "",
)


def _run(requests: dict[str, SweepRequest], store: Path, output: SweepOutput) -> dict[str, Swept]:
    from perfctl.orchestrator.actions.sweep.sweep import infer as run

    if output.as_json:
        return run(requests, store, listening=listening)

    def began(model: str) -> None:
        if len(requests) > 1:
            console.note(f"{model}:")

    return run(
        requests,
        store,
        listening=listening,
        began=began,
        ended=lambda model, done: print_summary(done, store),
    )


def _print_commands(
    requests: dict[str, SweepRequest], store: Path | None, output: SweepOutput
) -> None:
    """A line for each command; as JSON one list with an object a command."""
    from perfctl.orchestrator.actions.sweep.sweep import ModelCommand, planned

    if not output.as_json:
        for request in requests.values():
            print_commands(request, store, as_json=False)
        return
    console.as_json(
        [
            ModelCommand(model, command)
            for model, request in requests.items()
            for command in planned(request, store)
        ],
        "infer-commands",
    )


def _print_all(done: dict[str, Swept], store: Path) -> None:
    """One table over models and batch sizes, from the store."""
    from perfctl.orchestrator.actions.sweep.sweep import stored_runs
    from perfctl.orchestrator.report import terminal

    for part in terminal.inference_summary(stored_runs(store, [one.name for one in done.values()])):
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
