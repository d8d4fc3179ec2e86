"""perfctl nsys, ncu, torch and dlprof: sweeps over batch sizes under a profiler.

What every profiler command takes beside the profiler's own options is added here. What follows
``--`` is a program of the user's, and no option in it is perfctl's.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.cli import commands, console
from perfctl.orchestrator.launch.profilers.dlprof import DLProf
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.profilers.table import Recorder
from perfctl.orchestrator.launch.profilers.torch import TorchProfiler
from perfctl.orchestrator.launch.sweep.options import SweepOptions, reject_placement
from perfctl.orchestrator.options import Field, Option
from perfctl.orchestrator.store import DEFAULT_STORE as DEFAULT

if TYPE_CHECKING:
    from pathlib import Path

    from perfctl.orchestrator.actions.sweep.sweep import NcuCost, SweepListener, Swept
    from perfctl.orchestrator.launch.sweep.request import RunResult, SweepRequest

PASS_ON_CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of sweep commands: options that perfctl does not know go to the workload."""
AFTER = "perfctl.after"
"""Key of the words after ``--``."""
CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
"""The parameter of commands that look at words which they do not know."""


Print = Annotated[bool, Option("Print the commands, ready to paste, and start nothing.", "Output")]
Json = Annotated[bool, Option("Print JSON.", "Output", names=("--json",))]
SWEEPS: dict[str, type[Recorder]] = {
    "nsys": Nsys,
    "ncu": Ncu,
    "torch": TorchProfiler,
    "dlprof": DLProf,
}
"""Name of each command -> the profiler, whose fields are its options."""


@dataclass(frozen=True, slots=True)
class SweepOutput:
    """What a sweep prints."""

    dry_run: Print = False
    as_json: Json = False


@dataclass(frozen=True, slots=True)
class NcuOutput(SweepOutput):
    """What a sweep under ncu prints."""

    estimate_cost: Annotated[
        bool,
        Option(
            "Run one plain step and print what ncu would replay; count nothing.", "What to measure"
        ),
    ] = False


class SweepCommand(commands.Command):
    """A command that leaves what follows ``--`` alone, and tells it from options it does
    not know."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options up to ``--``; the words after it go into ``ctx.meta[AFTER]``."""
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[AFTER] = args[:cut], tuple(args[cut + 1 :])
        return list(super().parse_args(ctx, args))


def sweep_command(profiler: type[Recorder]) -> Callable[..., None]:
    """Return the typer command of a profiler: its options, then those of every sweep.

    Words that neither knows are left in the context, for the workload.
    """
    own, swept = commands.declared_by(profiler), commands.declared_by(SweepOptions)
    printing: type[SweepOutput] = NcuOutput if profiler is Ncu else SweepOutput
    shown = commands.declared_by(printing)

    def command(context: typer.Context, **given: Any) -> None:
        made = profiler(**commands.values_of(own, given))
        asked = sweep_options(swept, given)
        output = printing(**commands.values_of(shown, given))
        rest, after = tuple(context.args), context.meta.get(AFTER)
        if isinstance(made, Ncu) and isinstance(output, NcuOutput) and output.estimate_cost:
            from perfctl.orchestrator.actions.sweep.sweep import CostEstimate

            reject_placement(asked, "an estimate of ncu's cost")
            _print_cost(CostEstimate(made).run(asked, rest, after, console), output)
            return
        from perfctl.orchestrator.actions.sweep.request import sweep_request

        request = sweep_request(made, asked, rest, after, messages=console)
        run_and_print(request, asked.store, output)

    parameters = [CONTEXT, *commands.parameters_of(own | swept | shown)]
    return commands.with_parameters(command, parameters, inspect.getdoc(profiler) or "")


def sweep_options(declared: Mapping[str, Field], given: Mapping[str, Any]) -> SweepOptions:
    """Return what was typed for a sweep, with the line that was typed."""
    values = commands.values_of(declared, given)
    return SweepOptions(**values, command_line=console.command_line())


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

    if request.options.no_store:
        yield SweepListener(
            started=lambda batch, stage: console.note(f"batch {batch}: {stage}"),
            noted=console.note,
            finished=lambda result: console.note(_line(result, request.options.repeat)),
            stopped=lambda result: console.note(_line(result, request.options.repeat)),
        )
        return
    repeats = request.options.repeat
    with console.progress(len(request.options.batches) * repeats) as bar:
        yield SweepListener(
            started=lambda batch, stage: bar.stage(f"batch {batch}: {stage}"),
            tick=bar.tick,
            noted=console.note,
            finished=lambda result: bar.done(_line(result, repeats), ran=not result.skipped),
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

    batches = done.request.options.batches
    asked = [run for run in stored_runs(store, [done.name]) if run.batch_size in batches]
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


nsys, ncu, torch, dlprof = map(sweep_command, SWEEPS.values())
