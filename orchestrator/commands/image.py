"""Make Apptainer images that hold perfctl: write the definition, and say how it is built."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from perfctl.orchestrator.commands.declare import Command, CommandLine, Events, Force, Group, Option
from perfctl.orchestrator.launch.images import definition
from perfctl.orchestrator.report.view import View


@dataclass(frozen=True, slots=True)
class ImageOptions(definition.ImageRecipe):
    """Write an Apptainer definition that contains perfctl.

    It also contains the workloads. perfctl prints the command that builds it. Apptainer is not
    needed.
    """

    out: Annotated[Path, Option("Definition file to write.", "Output")] = Path("perfctl.def")
    force: Force = False
    command_line: CommandLine = ""


@dataclass(frozen=True, slots=True)
class ImageDefinition:
    """The definition that was written."""

    path: Path
    build: tuple[str, ...]
    """Words of the command that builds the image."""


def write_image_definition(options: ImageOptions, events: Events) -> ImageDefinition:
    """Write the definition of an image."""
    build = definition.write_definition_file(
        options, options.out, force=options.force, command_line=options.command_line
    )
    return ImageDefinition(options.out, build)


def build_definition_view(written: ImageDefinition) -> View:
    """Return what was written and what to type next."""
    return View("", lines=(f"Wrote {written.path}", f"Next: {shlex.join(written.build)}"))


GROUP = Group(
    "Build Apptainer (Singularity) images that contain perfctl.",
    {
        "render": Command(
            ImageOptions, write_image_definition, build_definition_view, has_document=False
        )
    },
)
