"""perfctl infer"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.cli.here import Here
from perfctl.orchestrator.cli.store_access import DEFAULT
from perfctl.orchestrator.cli.sweep_command import Asked, parameters_of
from perfctl.orchestrator.errors import PartlyDone, UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.profiler import Profiler
    from perfctl.orchestrator.launch.sweep_records import SweepRequest

WORKLOAD = "torchvision_infer"
BATCHES = "1,5,10,15,20"
_SET_HERE = ("workload", "mode", "steps", "batch_env", "step_marker", "sweep_name", "no_store")
"""Options of sweeps that have no sense here, or that this command sets itself."""

Models = Annotated[str, typer.Option("--models", "-m", help="Models of torchvision: resnet152,densenet201.")]
WithProfiler = Annotated[str, typer.Option("--profiler", "-p", help="none, nsys, torch or dlprof.")]


def _command() -> Callable[..., None]:
    """The typer command: models and profiler, then what sweeps take; the rest is for the workload."""

    def infer(context: typer.Context, models: str, profiler: str, **given: Any) -> None:
        """Sweep models x batch sizes in inference: latency, images/s, top-1 and top-5, each run a process of its own.

        Options that are not listed here go to the workload: --images N (3000), --weights default|none|FILE,
        --weights-dir DIR, --data imagenet --data-dir DIR, --dataloader-workers N. The same command goes on where it
        was stopped, and never adds runs up.
        """
        here = Here(**{one.name: given.pop(one.name) for one in parameters_of(Here)})
        _infer(_names(models), profiler, replace(Asked(), **given, workload=WORKLOAD), tuple(context.args), here)

    kind = inspect.Parameter.KEYWORD_ONLY
    shared = [one for one in parameters_of(Asked) if one.name not in _SET_HERE]
    parameters = [
        inspect.Parameter("context", kind, annotation=typer.Context),
        inspect.Parameter("models", kind, annotation=Models),
        inspect.Parameter("profiler", kind, annotation=WithProfiler, default="none"),
        *(one.replace(default=BATCHES) if one.name == "batches" else one for one in shared),
        *parameters_of(Here),
    ]
    infer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    infer.__annotations__ = {one.name: one.annotation for one in parameters}
    return infer


infer = _command()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError("--models names no model", "Say for instance --models resnet18,densenet201")
    if len(set(names)) < len(names):
        raise UsageError(f"a model stands twice in {text}", "Name each once")
    return names


def _infer(models: tuple[str, ...], name: str, asked: Asked, rest: tuple[str, ...], here: Here) -> None:
    """Everything is checked before anything runs; a model that fails does not stop those after it."""
    from perfctl.orchestrator.cli.run_sweep import run_sweep
    from perfctl.orchestrator.cli.sweep_request import sweep_request

    profiler = _profiler(name)
    words = {model: ("--model", model, *rest) for model in models}
    requests = {model: sweep_request(profiler, asked, words[model], None, here=here) for model in models}
    _check(models, asked, rest, inside=here.image is not None)
    if asked.as_json:
        _for_programs(requests, asked)
        return
    failed: list[str] = []
    for model in models:
        if len(models) > 1 and not asked.dry_run:
            console.note(f"{model}:")
        try:
            run_sweep(profiler, asked, rest=words[model], here=here)
        except PartlyDone as error:
            failed.append(f"{model}: {error}")
    if not asked.dry_run:
        _tell(asked, [request.name for request in requests.values()])
    if failed:
        raise PartlyDone(f"{len(failed)} of {len(models)} models failed or are partial: {failed[0]}")


def _for_programs(requests: dict[str, SweepRequest], asked: Asked) -> None:
    """Run it all, then one list with an object a model; with --dry-run one with an object a command."""
    from perfctl.orchestrator.cli.run_sweep import for_programs, run_into
    from perfctl.orchestrator.launch import sweep as sweeps

    if asked.dry_run:
        planned = [(model, *one) for model, request in requests.items() for one in sweeps.commands(request)]
        console.as_json([{"model": model, "batch_size": batch, "stage": command.stage, "argv": command.argv}
                         for model, batch, command in planned])  # fmt: skip
        return
    store = asked.store or asked.out.parent / DEFAULT
    done = {model: run_into(request, store) for model, request in requests.items()}
    console.as_json([{"model": model, **for_programs(requests[model], store, runs)} for model, runs in done.items()])
    failed = [f"{model}: {run.reason}" for model, runs in done.items() for run in runs if run.status != "ok"]
    if failed:
        raise PartlyDone(f"{len(failed)} runs failed or are partial: {failed[0]}", "Logs are in the runs' folders")


def _profiler(name: str) -> Profiler:
    from perfctl.orchestrator.launch.dlprof import DLProf
    from perfctl.orchestrator.launch.nsys import Nsys
    from perfctl.orchestrator.launch.plain import NoProfiler
    from perfctl.orchestrator.launch.torch_profiler import TorchProfiler

    known = {kind().name: kind for kind in (NoProfiler, Nsys, TorchProfiler, DLProf)}
    if name not in known:
        raise UsageError(f"--profiler: '{name}' is not known", f"Say {', '.join(known)}")
    return known[name]()


def _check(models: tuple[str, ...], asked: Asked, rest: tuple[str, ...], *, inside: bool) -> None:
    """Raises UsageError for batch sizes that the workload refuses, and for files and models that are not there.

    ``inside`` an image there may be others than here, so only the workload itself can look.
    """
    from perfctl.orchestrator.cli.options import batch_list
    from perfctl.orchestrator.cli.sweep_request import unknown
    from perfctl.workloads.spec import SpecError, UnknownWords, WorkloadError, parse_arguments

    try:
        for batch in batch_list(asked.batches):
            options, own = parse_arguments(WORKLOAD, ["--batch", str(batch), "--model", models[0], *rest])
            if inside:
                continue
            if own.weights not in ("default", "none") and not Path(own.weights).is_file():
                raise SpecError(f"--weights {own.weights}: there is no such file; say default, none, or a checkpoint")
            if options.data_dir is not None and not options.data_dir.is_dir():
                raise SpecError(f"--data-dir {options.data_dir}: there is no such folder")
        if asked.dry_run or inside:
            return
        from perfctl.workloads.weights import family_of

        for model in models:
            family_of(model)
    except UnknownWords as error:
        raise unknown(WORKLOAD, error.words) from error
    except (SpecError, WorkloadError) as error:
        raise UsageError(str(error)) from error


def _tell(asked: Asked, sweeps: list[str]) -> None:
    """One table over models and batch sizes, from the store."""
    from perfctl.orchestrator.report import terminal
    from perfctl.orchestrator.store import database, read

    store: Path = asked.store or asked.out.parent / DEFAULT
    with database.reading(store) as connection:
        numbers = [row["id"] for row in read.sweeps(connection) if row["name"] in sweeps]
        ids = [run for number in numbers for run in read.run_ids(connection, sweep=number, latest_of_each=True)]
        runs = read.load(connection, ids)
    for part in terminal.inference_summary(runs):
        console.show(part)
