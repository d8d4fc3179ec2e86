"""perfctl study: a command for each study that comes with perfctl, and for a TOML file of the
user's."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfctl.orchestrator.cli import commands, console
from perfctl.orchestrator.cli.commands import AFTER, CONTEXT, PASS_ON_CONTEXT
from perfctl.orchestrator.launch.sweep.study import (
    SEEDS,
    Study,
    StudyParts,
    StudyRequest,
    parts_of,
    read_study,
)
from perfctl.orchestrator.options import Option, options_of

if TYPE_CHECKING:
    from perfctl.orchestrator.commands.study import StudyResult


@dataclass(frozen=True, slots=True)
class Running:
    """Options of every study."""

    quick: Annotated[bool, Option("A small form that takes under 3 minutes on two CPU cores.")] = (
        False
    )
    source: Annotated[
        Path | None,
        Option(
            "Run nothing: take the runs from this folder, report or store.",
            names=("--from",),
            metavar="PATH",
        ),
    ] = None
    part: Annotated[
        str | None, Option("Run this part only (tasks of a cluster).", "Cluster", metavar="LABEL")
    ] = None
    dry_run: Annotated[
        bool,
        Option("Run nothing: print the commands of the study's parts, for a batch system."),
    ] = False
    out: Annotated[
        Path | None,
        Option(
            "Folder of the study: runs, store, page, summary, tables, charts. Default: study-NAME.",
            "Output",
            names=("--out", "-o"),
            metavar="FOLDER",
        ),
    ] = None


_RUNNING = {field.name: field for field in options_of(Running)}


class _Studies(commands.CommandList):
    """The studies of perfctl, and those of files."""

    def get_command(self, ctx: Any, name: str) -> Any:
        known = super().get_command(ctx, name)
        if known is not None or not name.endswith(".toml"):
            return known
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        _add(alone, name)
        return typer.main.get_command(alone)


study = typer.Typer(
    name="study",
    cls=_Studies,
    no_args_is_help=True,
    help="Do a whole study: measure, compare, and write a page and a summary. "
    "perfctl study FILE.toml does one of your own.",
)


def _function(declared: Study) -> Callable[..., None]:
    """Return what typer calls for a study."""

    def call(context: typer.Context, **given: Any) -> None:
        from perfctl.orchestrator.commands.study import run_part, run_study

        request = _request(declared, context, given)
        if given["dry_run"]:
            parts = plan(request)
            for words in (*(words for _, words in parts.parts), parts.finish):
                console.result(shlex.join(["perfctl", *words]))
            return
        with commands.show_events(context.command) as events:
            result = None if request.part else run_study(request, events)
            if request.part:
                run_part(request, events)
        if result is not None:
            _show(result)

    text = inspect.cleandoc(declared.content.get("help", declared.content.get("line", "")))
    parameters = [CONTEXT, *commands.parameters_of({**declared.options, **_RUNNING})]
    return commands.with_parameters(call, parameters, text)


def _request(declared: Study, context: Any, given: Mapping[str, Any]) -> StudyRequest:
    """Return what was typed for a study."""
    values = commands.values_of(declared.options, given)
    defaults = {name: field.default for name, field in declared.options.items()}
    running = Running(**commands.values_of(_RUNNING, given))
    return StudyRequest(
        declared,
        {name: value for name, value in values.items() if value != defaults[name]},
        running.out or Path(f"study-{declared.kind}"),
        running.quick,
        running.source,
        running.part,
        tuple(context.args),
        context.meta.get(AFTER),
        console.command_line(),
    )


def plan(request: StudyRequest) -> StudyParts:
    """Return the parts of a study that other machines will run. Raises UsageError."""
    from perfctl.orchestrator.commands.study import resolve_devices

    request, _ = resolve_devices(request, is_planned=True)
    return parts_of(request)


def read_parts(name: str, words: Sequence[str]) -> StudyParts:
    """Return the parts of ``perfctl study NAME WORDS``. Raises UsageError, and typer's errors."""
    command: Any = typer.main.get_command(study)
    context = command.get_command(None, name).make_context(f"perfctl study {name}", list(words))
    return plan(_request(read_study(name), context, context.params))


def _show(result: StudyResult) -> None:
    """Print the findings and the names of what was written. Raises PartlyDone where a part
    failed."""
    for number, finding in enumerate(result.page.findings, 1):
        console.result(f"{number}  {finding.text}")
    for what, why in result.page.missing:
        console.note(f"not in this study: {what}: {why}")
    for path in result.files:
        console.result(f"Wrote {path}")
    result.check()


def _add(group: typer.Typer, name: str) -> None:
    """Add the command of a study. Raises UsageError for a file that is none."""
    declared = read_study(name)
    takes_program = bool(declared.content.get("takes_program"))
    group.command(
        name,
        short_help=declared.content.get("line"),
        cls=commands.Command,
        context_settings=PASS_ON_CONTEXT if takes_program else None,
    )(_function(declared))


for _name in SEEDS:
    _add(study, _name)
