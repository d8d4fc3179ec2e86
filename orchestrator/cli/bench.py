"""perfctl bench"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from perfctl.orchestrator.cli import options


class _Bench(TyperGroup):
    """``perfctl bench grid.toml`` is ``perfctl bench run grid.toml``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(name="bench", cls=_Bench, no_args_is_help=True, rich_markup_mode=None, help=options.BENCH_HELP)

File = Annotated[Path, typer.Argument(help="What to measure, in TOML: examples/bench/grid.toml.")]
Budget = Annotated[
    str | None, typer.Option(metavar="TIME", help="Stop in time: 30m, 2h, 90s. 0 only gathers. Default: all of it.")
]
Shard = Annotated[
    str | None,
    typer.Option(metavar="I/N", help="Only part I of N, for one machine of several. Default: as Slurm's array says."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of a run. Default: as the file says.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or auto. Default: as the file says.")]
Steady = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="PERCENT",
        help="Measure again what varied more: between quartiles, against the median. Once a call.",
    ),
]
Out = Annotated[Path, typer.Option(help="Folder that holds all runs.")]
Design = Annotated[bool, typer.Option("--dry-run", help="Print what would be measured, and start nothing.")]


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
    """Measure what a file says, a process a point, into the store. The same command goes on where it stopped."""
    from perfctl.orchestrator.cli import bench_run
    from perfctl.orchestrator.cli.bench_design import design, share
    from perfctl.orchestrator.cli.bench_file import read_bench

    asked = bench_run.settle(read_bench(file), device, threads)
    part = bench_run.part_of(shard)
    made = design(asked)
    points = share(made.points, *part) if part else made.points
    seconds = bench_run.seconds(budget)
    if dry_run:
        bench_run.show_design(made, points, as_json)
        return
    wanted = bench_run.Wanted(
        asked, made, points, part, seconds, steady, timeout, out, store or out.parent / "perfctl.db"
    )
    bench_run.measure(wanted, as_json)


Exported = Annotated[Path | None, typer.Argument(help="What perfctl bench export wrote. Default: the store.")]
Family = Annotated[str | None, typer.Option(help="Only this family: vgg, resnet, inception or mlp.")]


@bench.command("show")
def show(
    file: Exported = None, family: Family = None, store: options.Store = None, as_json: options.Json = False
) -> None:
    """What was measured, and what the time of a step goes with, by family: figures of pen and paper."""
    from perfctl.orchestrator.cli import bench_results

    bench_results.show(file, family, store, as_json)


@bench.command("export")
def export(
    out: Annotated[Path, typer.Option(help="FILE.json.")] = Path("bench.json"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    store: options.Store = None,
) -> None:
    """Write all points of the store into one JSON file: steps, phases, layers, figures, device."""
    from perfctl.orchestrator.cli import bench_results

    bench_results.write(out, store, force=force)
