"""perfctl image"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.cli.commands import CommandList

image = typer.Typer(
    name="image",
    cls=CommandList,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make Apptainer (Singularity) images that hold perfctl.",
)


@image.callback()
def _image() -> None:
    """Keeps ``render`` a word of its own while it is the only one."""


@image.command(short_help="Write an Apptainer definition with perfctl in it.")
def render(
    base: Annotated[
        str | None,
        typer.Option(
            help=(
                "Base image: docker://NAME:TAG, a plain NAME:TAG, FILE.sif or the folder of a "
                "root. Default: NVIDIA's PyTorch image, which has torch, nsys and ncu."
            )
        ),
    ] = None,
    extra: Annotated[
        str | None,
        typer.Option(
            help=(
                "Extras of perfctl, commas between. Default: torch,ncu,nvml; torch not in NVIDIA's "
                "image."
            )
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help=(
                "perfctl's checkout, wheel or sdist to install. Default: what this perfctl was "
                "installed from; for a release, its number."
            )
        ),
    ] = None,
    wheels: Annotated[
        Path | None,
        typer.Option(
            help="Folder of wheels that pip takes everything from, for builds without network."
        ),
    ] = None,
    pip_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD", help="Word for pip install, as in --pip-option=--no-deps (repeatable)."
        ),
    ] = None,
    post: Annotated[
        list[str] | None,
        typer.Option(metavar="LINE", help="Shell line before perfctl is installed (repeatable)."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The definition to write.")] = Path(
        "perfctl.def"
    ),
    force: console.Force = False,
) -> None:
    """Write an Apptainer definition with perfctl and its workloads in it, and say how to build it.
    Needs no Apptainer."""
    from perfctl.orchestrator.actions.setup import render_image
    from perfctl.orchestrator.launch.images.definition import BASE, Definition

    extras = (
        None if extra is None else tuple(name.strip() for name in extra.split(",") if name.strip())
    )
    asked = Definition(
        base or BASE, extras, source, wheels, tuple(pip_option or ()), tuple(post or ())
    )
    build = render_image(asked, out, force=force, command_line=console.command_line())
    console.result(f"Wrote {out}")
    console.result(f"Next: {shlex.join(build)}")
