"""What profilers need of this machine, and their command lines as text."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from perfctl.orchestrator.launch import annotator, interpreter
from perfctl.orchestrator.launch.images import check as images_check
from perfctl.orchestrator.launch.images import run
from perfctl.orchestrator.launch.profilers.base import Command
from perfctl.orchestrator.launch.sweep.request import Profiler, SweepRequest
from perfctl.version import __version__


def require_profiler_tools(
    profiler: Profiler, device: str = "cpu", *, excluded_tools: tuple[str, ...] = ()
) -> None:
    """Raise ToolMissing when this machine lacks something that ``profiler`` needs: what, why, how
    to get it.

    ``excluded_tools`` names tools that are not needed here, because the program has its own
    interpreter.
    """
    runs_in = run.find_surrounding_container()
    missing = (
        images_check.list_tools_missing_in_container(profiler, device)
        if runs_in
        else profiler.list_missing_tools()
    )
    lacks = tuple(tool for tool in missing if tool.name not in excluded_tools)
    images_check.require_no_missing_tools(lacks, f"here, inside {runs_in}" if runs_in else "here")


def require_tools_and_write_annotator(request: SweepRequest) -> SweepRequest:
    """Return the request, ready to run; writes the file that an interpreter without perfctl needs.

    Raises ToolMissing if what the profiler or the program's own interpreter needs is neither on
    this machine nor in the image.
    """
    image, program = request.container, request.program
    if image is not None:
        profiler = images_check.require_image_tools_adapt_profiler(
            image, request.profiler, request.device, __version__
        )
        if program is not None and program.python is not None:
            interpreter.raise_if_interpreter_unusable(
                program,
                __version__,
                image.build_command_prefix(request.folders_to_bind, Path.cwd()),
            )
        request = replace(request, profiler=profiler, sweep_name=request.name)
    else:
        elsewhere = program is not None and program.python != sys.executable
        excepted = ("torch",) if elsewhere else ()
        require_profiler_tools(request.profiler, request.device, excluded_tools=excepted)
        if program is not None and program.python is not None:
            interpreter.raise_if_interpreter_unusable(program, __version__)
    if request.annotator_archive is not None:
        request.folder.mkdir(parents=True, exist_ok=True)
        annotator.write_annotator_archive(request.annotator_archive, __version__)
    return request


def format_shell_command(command: Command) -> str:
    """One line for a shell: environment variables, then the quoted arguments."""
    assignments = (
        f"{name}={shlex.quote(value)}" for name, value in sorted(command.environment.items())
    )
    return " ".join((*assignments, shlex.join(command.argv)))
