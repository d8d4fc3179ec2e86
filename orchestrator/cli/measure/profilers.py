"""perfctl nsys, ncu, torch and dlprof: sweeps over batch sizes under a profiler.

What every profiler command takes beside the profiler's own options is added here. What follows
``--`` is a program of the user's, and no option in it is perfctl's.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from perfctl.orchestrator.actions.sweep.options import (
    NONE,
    LocalPlacement,
    SweepOptions,
    reject_placement,
)
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.options import SweepOutput
from perfctl.orchestrator.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from perfctl.orchestrator.actions.sweep.sweep import CostEstimate, NcuCost, SweepListener, Swept
    from perfctl.orchestrator.launch.profilers.base import Profiler
    from perfctl.orchestrator.launch.sweep.request import RunResult, SweepRequest

PASS_ON_CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of sweep commands: options that perfctl does not know go to the workload."""
AFTER = "perfctl.after"
"""Key of the words after ``--``."""


def nsys(
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="APIs to trace. Default: cuda,nvtx,cudnn,cublas; on a CPU nvtx,osrt.",
        ),
    ] = None,
    cuda_graph_trace: Annotated[
        str | None,
        typer.Option(
            metavar="graph|node", help="Record CUDA graphs as one, or each kernel. Default: node."
        ),
    ] = None,
    gpu_metrics_devices: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Sample GPU metrics of these devices: 0,1 or all."),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Let nsys print its own tables, into stdout.log.")
    ] = False,
    tool_args: options.ToolArgs = None,
) -> Profiler:
    """Sweep under Nsight Systems: time of every range, kernel and copy.

    A program of your own follows --, with {batch} where the batch size goes: -- python train.py
    --batch-size {batch}. Without one, options that are not listed here go to the built-in workload
    (python -m perfctl.workloads WORKLOAD --help lists them).
    """
    from perfctl.orchestrator.launch.profilers.base import split_tool_args
    from perfctl.orchestrator.launch.profilers.nsys import Nsys

    return Nsys(
        trace=trace,
        cuda_graph_trace=cuda_graph_trace,
        gpu_metrics_devices=gpu_metrics_devices,
        stats=stats,
        extra=split_tool_args(tool_args),
    )


def ncu(
    metrics: Annotated[
        str,
        typer.Option(
            help="flops (all that FLOPs need), fadd (one counter, the study's), or NAME,NAME,..."
        ),
    ] = "flops",
    layer: Annotated[
        list[str] | None,
        typer.Option(help="Count in this layer, and the layers inside it, only; may be repeated."),
    ] = None,
    kernel_name: Annotated[
        str | None,
        typer.Option(
            "--kernel-name", "-k", metavar="NAME", help="Only this kernel, or regex:EXPRESSION."
        ),
    ] = None,
    launch_skip: Annotated[
        int | None, typer.Option(min=0, help="Matching launches to skip first.")
    ] = None,
    launch_count: Annotated[
        int | None, typer.Option(min=1, help="Matching launches to count at most.")
    ] = None,
    replay_mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help=(
                "kernel, application (the program runs once a pass), range or app-range (the "
                "window as one, with collectives; no layers and no FADD, FMUL, FFMA)."
            ),
        ),
    ] = "kernel",
    clock_control: Annotated[
        str, typer.Option(help="base (locked clocks), none, or boost (newer ncu).")
    ] = "base",
    cache_control: Annotated[
        str, typer.Option(help="all (flushed before each pass) or none.")
    ] = "all",
    graph_profiling: Annotated[
        str | None,
        typer.Option(
            metavar="node|graph", help="Count each kernel of a CUDA graph, or the graph as one."
        ),
    ] = None,
    section: Annotated[
        list[str] | None,
        typer.Option(help="Section of ncu to collect too, for its own window; may be repeated."),
    ] = None,
    section_set: Annotated[
        str | None,
        typer.Option(
            "--set", metavar="NAME", help="Set of sections to collect too: basic, full, roofline."
        ),
    ] = None,
    ranks: Annotated[
        str,
        typer.Option(
            metavar="0|all", help="Ranks of a launcher to count; the others run as usual."
        ),
    ] = "0",
    launches: Annotated[
        str,
        typer.Option(
            metavar="all|distinct",
            help=(
                "distinct: replay one of the layers that have the same kernels, grids and shapes, "
                "and mark the others' counts as taken from it; a plain step before finds them."
            ),
        ),
    ] = "all",
    estimate_cost: Annotated[
        bool,
        typer.Option(
            "--estimate-cost",
            help="Run one plain step and say what ncu would replay; count nothing.",
        ),
    ] = False,
    tool_args: options.ToolArgs = None,
) -> Profiler | CostEstimate:
    """Sweep under Nsight Compute: what every kernel executed, by hardware counters. One step is
    measured by default.

    FLOPs count 1 multiply-add as 2. Kernels that wait for other GPUs (NCCL) are left out, because a
    replay of one never ends. A program of your own follows --, with {batch} where the batch size
    goes; without one, options that are not listed here go to the built-in workload.
    """
    from perfctl.orchestrator.launch.profilers.base import split_tool_args
    from perfctl.orchestrator.launch.profilers.ncu import Ncu

    if ranks not in ("0", "all"):
        raise UsageError(f"`ranks` must be 0 or all, got {ranks}")
    asked = Ncu(
        metrics=metrics,
        layers=tuple(layer or ()),
        kernel_name=kernel_name,
        launch_skip=launch_skip,
        launch_count=launch_count,
        replay_mode=replay_mode,
        clock_control=clock_control,
        cache_control=cache_control,
        graph_profiling=graph_profiling,
        section=tuple(section or ()),
        section_set=section_set,
        all_ranks=ranks == "all",
        launches=launches,
        extra=split_tool_args(tool_args),
    )
    if not estimate_cost:
        return asked
    from perfctl.orchestrator.actions.sweep.sweep import CostEstimate

    return CostEstimate(asked)


def torch() -> Profiler:
    """Sweep under the PyTorch profiler: operators and layers on the CPU, kernels where there is
    a GPU.

    A program of your own follows --, with {batch} where the batch size goes: -- python train.py
    --batch-size {batch}. Without one, options that are not listed here go to the built-in workload
    (python -m perfctl.workloads WORKLOAD --help lists them).
    """
    from perfctl.orchestrator.launch.profilers.torch import TorchProfiler

    return TorchProfiler()


def dlprof(
    dlprof_mode: Annotated[
        str, typer.Option(help="simple, or pytorch (the program must enable DLProf's NVTX plugin).")
    ] = "simple",
    tool_args: options.ToolArgs = None,
) -> Profiler:
    """Sweep under DLProf (last released in 2021): utilisation, tensor core use, time by operation.

    A program of your own follows --, with {batch} where the batch size goes; without one, options
    that are not listed here go to the built-in workload.
    """
    from perfctl.orchestrator.launch.profilers.base import split_tool_args
    from perfctl.orchestrator.launch.profilers.dlprof import DLProf

    try:
        return DLProf(mode=dlprof_mode, extra=split_tool_args(tool_args))
    except UsageError as error:  # --mode is another option of this command
        raise UsageError(error.message.replace("`mode`", "`dlprof_mode`"), error.remedy) from error


SWEEPS: dict[str, Callable[..., Profiler | CostEstimate]] = {
    "nsys": nsys,
    "ncu": ncu,
    "torch": torch,
    "dlprof": dlprof,
}
"""Name of the profiler -> what takes its own options and makes it."""


class SweepCommand(TyperCommand):
    """A command that leaves what follows ``--`` alone, and tells it from options it does
    not know."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options up to ``--``; the words after it go into ``ctx.meta[AFTER]``."""
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[AFTER] = args[:cut], tuple(args[cut + 1 :])
        return list(super().parse_args(ctx, args))


def sweep_command(profiler: Callable[..., Profiler | CostEstimate]) -> Callable[..., None]:
    """A typer command: the parameters of ``profiler`` (which makes one from them), then those of
    every sweep.

    Words that neither knows are left in the context, for the workload.
    """
    own = parameters_of(profiler)

    def command(context: typer.Context, **given: Any) -> None:
        from perfctl.orchestrator.actions.sweep.sweep import CostEstimate

        made = profiler(**{parameter.name: given.pop(parameter.name) for parameter in own})
        asked, output, placement = options.sweep_options(given)
        rest, after = tuple(context.args), context.meta.get(AFTER)
        if isinstance(made, CostEstimate):
            reject_placement(placement, "an estimate of ncu's cost")
            _print_cost(made.run(asked, rest, after, console), output)
        else:
            run_sweep(made, asked, output, rest=rest, command=after, placement=placement)

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *own, *options.sweep_parameters()]
    # what typer reads
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = profiler.__doc__
    return command


@cache
def parameters_of(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """The parameters of a function or dataclass, their annotations as objects."""
    # Profiler, what they return, is not loaded just to print help.
    hints = get_type_hints(
        function, localns={"Profiler": object, "CostEstimate": object}, include_extras=True
    )
    return tuple(
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(function).parameters.values()
    )


def run_sweep(
    profiler: Profiler,
    asked: SweepOptions,
    output: SweepOutput,
    *,
    rest: tuple[str, ...] = (),
    command: tuple[str, ...] | None = None,
    placement: LocalPlacement = NONE,
) -> None:
    """Check everything, then run and print. Raises PartlyDone when a batch size failed."""
    from perfctl.orchestrator.actions.sweep.request import sweep_request

    request = sweep_request(profiler, asked, rest, command, placement=placement, messages=console)
    run_and_print(request, asked.store, output)


def run_and_print(request: SweepRequest, store: Path | None, output: SweepOutput) -> None:
    """Run a checked request, or print its commands only. Raises PartlyDone when a batch
    size failed."""
    from perfctl.orchestrator.actions.sweep.sweep import run_request

    if output.dry_run:
        print_commands(request, store, as_json=output.as_json)
        return
    done = run_request(request, store, listening)
    if output.as_json:
        console.as_json(done, "sweep")
    elif done.store is None:
        console.result(
            f"Wrote {done.folder}. Next: perfctl slurm gather {shlex.quote(str(done.folder))}"
        )
    else:
        print_summary(done, done.store)
    done.check()


def print_commands(request: SweepRequest, store: Path | None, *, as_json: bool) -> None:
    """What the request would start, a line each, ready to paste; or as JSON."""
    from perfctl.orchestrator.actions.sweep.sweep import planned
    from perfctl.orchestrator.launch.catalog import printable

    if as_json:
        console.as_json(planned(request, store), "sweep-commands")
        return
    commands = [step.command for step in planned(request, store)]
    for command in commands:
        console.result(printable(command))
    for note in dict.fromkeys(command.note for command in commands if command.note):
        console.note(note)


@contextmanager
def listening(request: SweepRequest) -> Iterator[SweepListener]:
    """A bar or lines on stderr while a request runs; of one that runs beside others lines only."""
    from perfctl.orchestrator.actions.sweep.sweep import SweepListener

    if request.alongside:
        yield SweepListener(
            started=lambda batch, stage: console.note(f"batch {batch}: {stage}"),
            noted=console.note,
            finished=lambda result: console.note(_line(result, request.repeat)),
            stopped=lambda result: console.note(_line(result, request.repeat)),
        )
        return
    with console.progress(len(request.batches) * request.repeat) as bar:
        yield SweepListener(
            started=lambda batch, stage: bar.stage(f"batch {batch}: {stage}"),
            tick=bar.tick,
            noted=console.note,
            finished=lambda result: bar.done(_line(result, request.repeat), ran=not result.skipped),
            known=lambda result, run_id: console.note(
                f"batch {result.batch_size}: the same report is in the store already, as run "
                f"{run_id}"
            ),
        )


def _line(result: RunResult, repeats: int) -> str:
    batch = f"batch {result.batch_size}" + (
        f", repeat {result.repeat} of {repeats}" if repeats > 1 else ""
    )
    if result.skipped:
        return f"{batch}: whole already, skipped (--again repeats it)"
    seconds = f" in {result.duration_ns / 1e9:.1f} s" if result.duration_ns is not None else ""
    return f"{batch}: {result.status}{seconds}" + (f": {result.reason}" if result.reason else "")


def print_summary(done: Swept, store: Path) -> None:
    """The summary table, where everything is, and what to type next."""
    from perfctl.orchestrator.actions.sweep.sweep import stored_runs
    from perfctl.orchestrator.report import terminal

    asked = [
        run for run in stored_runs(store, [done.name]) if run.batch_size in done.request.batches
    ]
    first = [run for run in asked if run.report.environment.get("rank", "0") == "0"]
    for part in terminal.sweep_summary(first):
        console.show(part)
    if len(asked) > len(first):
        console.note(
            f"runs of further ranks in the store, each for itself: {len(asked) - len(first)} "
            "(perfctl runs)"
        )
    console.result(f"Wrote {done.folder} and {store}")
    if done.request.profiler.name == "nsys":
        console.note(
            "nsys reports hold the environment of the profiled process: perfctl scrub before you "
            "share them"
        )
    extra = "" if store == DEFAULT else f" --store {shlex.quote(str(store))}"
    console.result(f"Next: perfctl report{extra}")


def _print_cost(found: NcuCost, output: SweepOutput) -> None:
    from perfctl.orchestrator.counts.kernels.replays import cost_lines

    if output.as_json:
        console.as_json(found, "ncu-cost")
        return
    for line in cost_lines(found.cost, found.batch_size, found.layers):
        console.result(line)
    console.result(
        "Nothing was counted yet: run it without --estimate-cost; --layer and --steps reduce the "
        "cost"
    )
