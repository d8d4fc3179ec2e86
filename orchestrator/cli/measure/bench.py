"""perfctl bench"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.cli.commands import Command, CommandList, function_of, show_events

if TYPE_CHECKING:
    from perfctl.orchestrator.commands.bench import BenchRequest
    from perfctl.orchestrator.launch.sweep.request import Listener, RunResult

_SKIPPED = 5
"""Skipped networks that are named; --dry-run names all."""


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


@contextmanager
def listening(request: BenchRequest) -> Iterator[Listener]:
    """Say what is skipped, then how each point went."""
    from perfctl.orchestrator.commands.bench import reasons_of
    from perfctl.orchestrator.launch.sweep.request import Listener

    reasons = reasons_of(request)
    for reason in reasons[:_SKIPPED]:
        console.note(f"skipped: {reason}")
    if len(reasons) > _SKIPPED:
        console.note(f"skipped: for {len(reasons) - _SKIPPED} more reasons (--dry-run names them)")
    finished: list[RunResult] = []
    total = len(request.points)

    def finish(result: RunResult) -> None:
        finished.append(result)
        if not result.skipped or request.part:
            console.note(_line(result))

    with show_events() as events:
        yield Listener(
            started=lambda batch, stage: events.progress(f"batch {batch}", len(finished), total),
            finished=finish,
            stopped=finish if request.part else lambda result: None,
        )


def _line(result: RunResult) -> str:
    name = f"{result.folder.parent.name}/{result.folder.name}"
    if result.skipped:
        return f"{name}: whole already, skipped"
    spent = f" in {result.duration_ns / 1e9:.1f} s" if result.duration_ns is not None else ""
    return f"{name}: {result.status}{spent}" + (f": {result.reason}" if result.reason else "")


def _group() -> typer.Typer:
    from perfctl.orchestrator.commands import bench as commands

    def run(asked: Any, events: Any) -> Any:
        return commands.measure(asked, listening, console.command_line())

    lines = {
        "run": "Measure what a file describes, each point in a process of its own.",
        "show": "Show what was measured, and what times go with.",
        "export": "Write all points of the store into one JSON file.",
    }
    declared: tuple[Any, ...] = (replace(commands.RUN, run=run), commands.SHOW, commands.EXPORT)
    for (name, line), command in zip(lines.items(), declared, strict=True):
        bench.command(name, short_help=line, cls=Command)(function_of(command))
    return bench


_group()
