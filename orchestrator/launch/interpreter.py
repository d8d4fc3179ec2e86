"""Check, before anything is profiled, that a program's own Python interpreter can run it under perfctl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache

from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.program import Program

_PROBE = """
import importlib.util, json, sys
there = lambda name: importlib.util.find_spec(name) is not None
sys.path.insert(0, "")
module = there(sys.argv[1].partition(".")[0]) if sys.argv[1] else True
sys.path.pop(0)
import perfctl, perfctl.workloads
print(json.dumps({"version": perfctl.__version__, "torch": there("torch"), "module": module}))
"""
"""Run with -c: reports what an interpreter has; imports only perfctl."""


def choose_interpreter(program: Program, typed: str) -> Program:
    """The program with perfctl's own interpreter where a bare ``python`` on PATH has no perfctl, as when perfctl is
    called by its path. ``typed``: the first word of the command; an interpreter given as a path is kept."""
    if program.python == sys.executable or os.sep in typed or not tools.has_package("torch"):
        return program
    try:
        _ask(program.python, program.flags, "")
    except ToolMissing:
        return replace(program, python=sys.executable)
    return program


def check(program: Program, version: str, prefix: tuple[str, ...] = ()) -> None:
    """Raises ToolMissing or UsageError unless the program's interpreter has this ``version`` of perfctl, torch, and the
    module to run. ``prefix``: words before the interpreter, for one inside an image."""
    module = program.name if program.words[0] == "-m" else ""
    try:
        said = _ask(program.python, program.flags, module, prefix)
    except ToolMissing as error:
        if prefix:
            raise
        own = f"or omit the word python to run {program.name} with {sys.executable}"
        raise ToolMissing(error.message, f"{error.remedy}; {own}") from error
    if said["version"] != version:
        raise ToolMissing(
            f"{program.python} has perfctl {said['version']}, but this is {version}: the versions must match",
            f"Install it there: {program.python} -m pip install perfctl=={version}",
        )
    if not said["torch"]:
        raise ToolMissing(
            f"{program.python} has no torch, which perfctl needs to mark layers",
            f"Install it there, or put another interpreter before {program.name}",
        )
    if not said["module"]:
        raise UsageError(f"{program.python} finds no module {program.name}", "Check the name and the working directory")


@cache
def _ask(python: str, flags: tuple[str, ...], module: str, prefix: tuple[str, ...] = ()) -> dict[str, object]:
    try:
        code, out, lines = tools.run((*prefix, python, *flags, "-c", _PROBE, module), 60.0)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissing(f"{python} does not run: {error}", "Use another interpreter") from error
    with suppress(ValueError, IndexError, TypeError):
        if code == 0:
            return dict(json.loads(out[-1]))
    why = lines[-1] if lines else f"exit code {code}"
    raise ToolMissing(
        f"{python} cannot import perfctl, which must run inside the profiled process ({why})",
        f"Install it there: {python} -m pip install perfctl",
    )
