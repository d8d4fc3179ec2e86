"""Options of a sweep on this machine: which of its GPUs or cores, and inside which image. Job scripts have their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from perfctl.orchestrator.errors import UsageError

Devices = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="GPUs to use side by side, one batch size on each: 0,1,2,3. On a CPU sets of cores: cpu:0-3,cpu:4-7.",
    ),
]
ImagePath = Annotated[
    str | None, typer.Option("--image", metavar="IMAGE", help="Run profiler and program inside this Apptainer image.")
]
Binds = Annotated[
    list[str] | None, typer.Option("--bind", metavar="A[:B[:ro]]", help="Folder the image shall see (repeatable).")
]
Runtime = Annotated[
    str | None,
    typer.Option("--container-runtime", metavar="PROGRAM", help="apptainer or singularity. Default: either."),
]


@dataclass(frozen=True, slots=True)
class Here:
    """What was typed of them; on the command line in this order."""

    devices: Devices = None
    image: ImagePath = None
    bind: Binds = None
    container_runtime: Runtime = None


NOWHERE = Here()


def device(asked: str, here: Here) -> str:
    """cpu or cuda. Raises UsageError where --device and --devices say different things."""
    from perfctl.orchestrator.cli import options
    from perfctl.orchestrator.launch import devices

    if here.devices is None:
        return options.device(asked)
    kind = devices.kind_of(here.devices)
    if asked not in ("auto", kind):
        named = "sets of cores" if kind == "cpu" else "GPUs"
        raise UsageError(
            f"--device {asked} and --devices {here.devices} ({named}) do not agree", "Leave one of them out"
        )
    return kind


def program_words(command: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """(interpreter of the image, the rest) where a command begins with one; (None, the command) otherwise.

    ``python`` means the image's python3; a path, or a name with a version, is taken at its word.
    """
    from perfctl.orchestrator.launch.container import PYTHON
    from perfctl.orchestrator.launch.program import is_python

    if not command or not is_python(command[0]):
        return None, command
    return (PYTHON if command[0] == "python" else command[0]), command[1:]


def check(here: Here, *, alongside: bool) -> None:
    """Raises UsageError for options that mean nothing without, or not beside, each other."""
    if here.image is None and (here.bind or here.container_runtime):
        raise UsageError("--bind and --container-runtime are for an image", "Say which one with --image")
    if here.devices is not None and alongside:
        raise UsageError("--devices and --no-store do not go together: a task has one device", "Leave one of them out")


def without(here: Here, what: str) -> None:
    """Raises UsageError when any of them was given, where ``what`` cannot have them."""
    if replace(here, bind=here.bind or None) != NOWHERE:
        raise UsageError(f"{what} takes no --devices, --image, --bind or --container-runtime", "Leave them out")
