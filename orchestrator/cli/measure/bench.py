"""perfctl bench"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.commands import CommandList

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.bench import BenchRequest, BenchResult
    from perfctl.orchestrator.launch.sweep.request import Listener, RunResult

_SKIPPED, _POINTS, _FIGURES = 5, 12, 8
"""Skipped networks that are named (--dry-run names all), and rows of the tables on the terminal."""


class _Bench(CommandList):
    """``perfctl bench grid.toml`` is ``perfctl bench run grid.toml``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    name="bench",
    cls=_Bench,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure families of networks, and show what their time depends on. "
    "perfctl bench FILE is short for bench run FILE.",
)

File = Annotated[
    Path, typer.Argument(help="What to measure, as TOML, like examples/bench/grid.toml.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help=(
            "Stop after this time: 30m, 2h, 90s. 0 only takes in what is there. Default: no limit."
        ),
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Only part I of N, for one machine of several. Default: this task of a Slurm array.",
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads of a run. Default: what the file says.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or auto. Default: what the file says.")]
Steady = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="PERCENT",
        help=(
            "Measure points again, once a call, whose quartiles are further apart than this share "
            "of the median."
        ),
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder that holds all runs.")]
Design = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be measured, and start nothing.")
]


@bench.command("run")
def run(
    file: File,
    budget: Budget = None,
    shard: Shard = None,
    device: Device = None,
    threads: Threads = None,
    steady: Steady = None,
    timeout: options.Timeout = None,
    out: Out = Path("perfctl-runs"),
    store: options.Store = None,
    dry_run: Design = False,
    as_json: options.Json = False,
) -> None:
    """Measure what a file describes, each point in a process of its own. The same command goes on
    where it stopped."""
    from perfctl.orchestrator.actions import bench as actions
    from perfctl.orchestrator.actions.bench_file import read_bench

    request = actions.bench_request(
        read_bench(file),
        device=device,
        threads=threads,
        part=actions.part_of(shard),
        budget=actions.seconds(budget) if budget is not None else None,
        steady=steady,
        timeout=timeout,
        out=out,
        store=store,
        command_line=console.command_line(),
    )
    if dry_run:
        _show_design(request, as_json)
        return
    result = actions.bench(request, listening)
    _show_result(result, as_json)
    result.check()


def _show_design(request: BenchRequest, as_json: bool) -> None:
    """Every point, and every network that is skipped."""
    points, skipped = request.points, request.design.skipped
    if as_json:
        console.as_json(request, "bench-design")
        return
    for point in points:
        console.result(f"{point.model}, batch {point.batch}: {point.flops / 1e9:.3g} GFLOP a step")
    for reason in _reasons(request):
        console.result(f"skipped: {reason}")
    models = len({point.model for point in points})
    console.note(
        f"{len(points)} points of {models} networks, {len(skipped)} skipped; FLOPs: 1 multiply-add "
        "is 2"
    )


def _reasons(request: BenchRequest) -> list[str]:
    """Why networks are skipped, each reason once, with the number of networks when there
    are several."""
    counts: dict[str, int] = {}
    for one in request.design.skipped:
        counts[one.reason] = counts.get(one.reason, 0) + 1
    return [
        f"{reason} ({count} networks)" if count > 1 else reason for reason, count in counts.items()
    ]


@contextmanager
def listening(request: BenchRequest) -> Iterator[Listener]:
    """Say what is skipped, then how each point went: a bar over the points, plain lines for a part
    of a bench."""
    from perfctl.orchestrator.launch.sweep.request import Listener

    reasons = _reasons(request)
    for reason in reasons[:_SKIPPED]:
        console.note(f"skipped: {reason}")
    if len(reasons) > _SKIPPED:
        console.note(f"skipped: for {len(reasons) - _SKIPPED} more reasons (--dry-run names them)")
    if request.part:
        tell = lambda result: console.note(_line(result))  # noqa: E731
        yield Listener(finished=tell, stopped=tell)
        return
    on_terminal = sys.stderr.isatty()
    with console.progress(len(request.points)) as bar:

        def finished(result: RunResult) -> None:
            if not result.skipped:
                bar.done(_line(result))
            elif on_terminal:
                bar.done("", ran=False)

        yield Listener(
            started=lambda batch, stage: bar.stage(f"batch {batch}") if on_terminal else None,
            tick=bar.tick,
            finished=finished,
        )


def _line(result: RunResult) -> str:
    name = f"{result.folder.parent.name}/{result.folder.name}"
    if result.skipped:
        return f"{name}: whole already, skipped"
    spent = f" in {result.duration_ns / 1e9:.1f} s" if result.duration_ns is not None else ""
    return f"{name}: {result.status}{spent}" + (f": {result.reason}" if result.reason else "")


def _show_result(result: BenchResult, as_json: bool) -> None:
    request = result.request
    if as_json:
        console.as_json(result, "bench")
        return
    console.result(
        f"{result.whole} of {len(request.points)} points measured, {result.new} of them now"
    )
    if request.part:
        console.result(
            f"Wrote {request.out}. When all parts are done: the same command without --shard, "
            "--budget 0"
        )
    else:
        console.result(f"Wrote {request.store}. Next: perfctl bench show")


Exported = Annotated[
    Path | None, typer.Argument(help="What perfctl bench export wrote. Default: the store.")
]
Family = Annotated[
    str | None, typer.Option(help="Only this family: vgg, resnet, inception or mlp.")
]


@bench.command("show", short_help="Show what was measured, and what times go with.")
def show(
    file: Exported = None,
    family: Family = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Show what was measured and, by family, which estimated figures the time of a step
    goes with."""
    from perfctl.orchestrator.actions import bench as actions
    from perfctl.orchestrator.predict.bench import correlations
    from perfctl.orchestrator.report import terminal
    from perfctl.orchestrator.report.page import bench as page_bench

    points = actions.bench_points(store or DEFAULT, file=file, family=family)
    found = correlations(points)
    if as_json:
        console.as_json(page_bench.bench_shown(points, found), "bench-show")
        return
    tables = [page_bench.points_table(points)]
    for part in terminal.shown([one for one in tables if one], _POINTS, "--json has them"):
        console.show(part)
    for name in dict.fromkeys(one.family for one in found):
        table = page_bench.correlation_table(name, [one for one in found if one.family == name])
        for part in terminal.shown([table] if table else [], _FIGURES, "--json has them"):
            console.show(part)
    if file is None:
        console.note(
            "Drawings: perfctl plot bench-flops-forward; perfctl plot --list names them all"
        )


@bench.command("export", short_help="Write all points of the store into one JSON file.")
def export(
    out: Annotated[Path, typer.Option("--out", "-o", help="FILE.json.")] = Path("bench.json"),
    force: console.Force = False,
    store: options.Store = None,
) -> None:
    """Write all points of the store into one JSON file: steps, phases, layers, figures, device."""
    from perfctl.orchestrator.actions import bench as actions

    points = actions.export_bench(out, store or DEFAULT, force=force)
    console.result(
        f"Wrote {out}: {len(points)} points of {len({point.model for point in points})} networks"
    )
