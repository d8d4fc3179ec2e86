"""Measure inference over models of torchvision: each model and batch size in a separate
process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from perfctl.orchestrator.commands import profile
from perfctl.orchestrator.commands.declare import Command, Events, Option, words
from perfctl.orchestrator.errors import PartlyDone
from perfctl.orchestrator.ingest.sweep import ModelCommand, ModelSwept, Swept
from perfctl.orchestrator.launch.catalog import printable
from perfctl.orchestrator.launch.sweep.options import PROFILER, SweepOptions
from perfctl.orchestrator.launch.sweep.plan import plan_inference
from perfctl.orchestrator.options import part_of, read_batches
from perfctl.orchestrator.report.view import Lines, View


@dataclass(frozen=True, slots=True, kw_only=True)
class InferOptions(SweepOptions):
    """Measure inference over models and batch sizes: latency, images/s, top-1 and top-5, one
    process per run.

    perfctl passes options that are not listed here to the workload: --images N (3000), --weights
    default|none|FILE, --weights-dir DIR, --data imagenet --data-dir DIR, --dataloader-workers
    N. Repeat the command to continue after an interruption.
    """

    models: Annotated[
        tuple[str, ...],
        Option(
            "torchvision models: resnet152,densenet201.",
            names=("--models", "-m"),
            metavar="NAMES",
            parse=words,
            is_common=True,
        ),
    ]
    batches: Annotated[
        tuple[int, ...],
        Option(
            "Batch sizes, one process each: 1,5,10.",
            names=("--batches", "-b"),
            metavar="LIST",
            parse=read_batches,
            is_common=True,
        ),
    ] = (1, 5, 10, 15, 20)
    profiler: Annotated[
        str,
        Option(
            "none, nsys, torch or dlprof.",
            PROFILER,
            names=("--profiler", "-p"),
            metavar="NAME",
            is_common=True,
        ),
    ] = "none"
    arguments: Annotated[
        Sequence[str], Option("Options for the workload.", filled_from="rest")
    ] = ()
    dry_run: profile.DryRun = False
    # not options here: the workload is inference only, of complete data, in one sweep per model
    workload: str | None = None
    mode: str | None = None
    steps: int | None = None
    batch_env: str | None = None
    step_marker: str | None = None
    to_end: bool | None = None
    sweep_name: str | None = None
    no_store: bool = False


def run(asked: InferOptions, events: Events) -> list[ModelSwept] | list[ModelCommand]:
    """Measure each model; for a dry run, return what would be started."""
    requests = plan_inference(
        asked.models,
        asked.profiler,
        part_of(asked, SweepOptions),
        arguments=asked.arguments,
        only_planned=asked.dry_run,
    )
    swept, planned = [], []
    for model, request in requests.items():
        if len(requests) > 1 and not asked.dry_run:
            events.note(f"{model}:")
        result = profile.run_or_plan(request, events, dry_run=asked.dry_run)
        if isinstance(result, Swept):
            swept.append(ModelSwept(model, result))
        else:
            planned += [ModelCommand(model, command) for command in result]
    return planned if asked.dry_run else swept


def view(result: list[ModelSwept] | list[ModelCommand]) -> View | Lines:
    """Return findings and one table over models and batch sizes, or the commands."""
    from perfctl.orchestrator.report.studies.inference import inference_answer
    from perfctl.orchestrator.stored_runs import runs_of_sweeps

    commands = [one.result for one in result if isinstance(one, ModelCommand)]
    if commands:
        return Lines((f"{printable(one.command)}\n" for one in commands), "--dry-run", True)
    sweeps = [one.result for one in result if isinstance(one, ModelSwept)]
    store = sweeps[0].request.store_path
    runs = runs_of_sweeps(store, [sweep.name for sweep in sweeps])
    return replace(
        inference_answer(runs),
        title=f"Inference of {', '.join(one.model for one in result)}",
        lines=(
            *(f"Wrote {sweep.folder}" for sweep in sweeps),
            f"Wrote {store}",
            profile.next_step(store),
        ),
    )


def check(result: list[ModelSwept] | list[ModelCommand], events: Events) -> None:
    """Raise PartlyDone if a model failed or is partial."""
    failed = []
    for sweep in result:
        if isinstance(sweep, ModelSwept):
            try:
                sweep.result.check()
            except PartlyDone as error:
                failed.append(f"{sweep.model}: {error}")
    if failed:
        count = f"{len(failed)} of {len(result)} models"
        raise PartlyDone(f"{count} failed or are incomplete: {failed[0]}")


COMMAND = Command(
    InferOptions,
    run,
    view,
    check=check,
    examples=(
        "perfctl infer --models resnet152,densenet201",
        "perfctl infer --models resnet50 --batches 1,8,32 --profiler nsys",
        "perfctl infer --models resnet18 --data imagenet --data-dir imagenet/val",
    ),
)
