"""perfctl image"""

from __future__ import annotations

import inspect
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from perfctl.orchestrator.cli import commands, console
from perfctl.orchestrator.commands.declare import Force
from perfctl.orchestrator.launch.images import definition
from perfctl.orchestrator.launch.images.definition import Definition
from perfctl.orchestrator.options import Option

image = typer.Typer(
    name="image",
    cls=commands.CommandList,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make Apptainer (Singularity) images that hold perfctl.",
)


@image.callback()
def _image() -> None:
    """Keeps ``render`` a word of its own while it is the only one."""


@dataclass(frozen=True, slots=True)
class Written:
    """Where the definition goes."""

    out: Annotated[Path, Option("The definition to write.", "Output", names=("--out", "-o"))] = (
        Path("perfctl.def")
    )
    force: Force = False


_DEFINITION, _WRITTEN = commands.declared_by(Definition), commands.declared_by(Written)


def render(**given: Any) -> None:
    """Write an Apptainer definition with perfctl and its workloads in it, and say how to build it.
    Needs no Apptainer."""
    asked = Definition(**commands.values_of(_DEFINITION, given))
    target = Written(**commands.values_of(_WRITTEN, given))
    build = definition.write(
        asked, target.out, force=target.force, command_line=console.command_line()
    )
    console.result(f"Wrote {target.out}")
    console.result(f"Next: {shlex.join(build)}")


image.command(
    "render", short_help="Write an Apptainer definition with perfctl in it.", cls=commands.Command
)(
    commands.with_parameters(
        render, commands.parameters_of(_DEFINITION | _WRITTEN), inspect.getdoc(render) or ""
    )
)
