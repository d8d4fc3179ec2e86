"""Can another interpreter than perfctl's own run a script for it? Asked before anything is profiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache

from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.launch import tools
from perfctl.orchestrator.launch.program import Program

_LIMIT_S = 60.0
_ASKED = """
import importlib.util, json, sys
there = lambda name: importlib.util.find_spec(name) is not None
sys.path.insert(0, "")
module = there(sys.argv[1].partition(".")[0]) if sys.argv[1] else True
sys.path.pop(0)
import perfctl, perfctl.workloads
print(json.dumps({"version": perfctl.__version__, "torch": there("torch"), "module": module}))
"""
"""Run with -c: what an interpreter has, none of it imported but perfctl."""


def settle(program: Program, typed: str) -> Program:
    """The program as it will run: a bare ``python`` on PATH that has no perfctl gives way to perfctl's own interpreter.

    So it is when perfctl is called by its path, out of a virtual environment that is not activated. ``typed`` is the
    first word of the command; an interpreter that was named by its path is taken at its word.
    """
    if program.python == sys.executable or os.sep in typed or not tools.has_package("torch"):
        return program
    try:
        _ask(program.python, program.flags, "")
    except ToolMissing:
        return replace(program, python=sys.executable)
    return program


def check(program: Program, version: str, prefix: tuple[str, ...] = ()) -> None:
    """Raises ToolMissing or UsageError unless the program's interpreter has perfctl in this ``version``, torch, and the
    module to run. ``prefix`` stands before the interpreter where it is one inside an image."""
    module = program.name if program.words[0] == "-m" else ""
    try:
        said = _ask(program.python, program.flags, module, prefix)
    except ToolMissing as error:
        if prefix:
            raise
        own = f"without the word python, {program.name} runs under perfctl's own interpreter, {sys.executable}"
        raise ToolMissing(error.message, f"{error.remedy}; {own}") from error
    if said["version"] != version:
        raise ToolMissing(
            f"{program.python} has perfctl {said['version']}, and this is {version}: both must be the same",
            f"Install it there: {program.python} -m pip install perfctl=={version}",
        )
    if not said["torch"]:
        raise ToolMissing(
            f"{program.python} has no torch, and perfctl marks the layers of PyTorch programs",
            f"Install it there, or name another interpreter before {program.name}",
        )
    if not said["module"]:
        raise UsageError(f"{program.name}: {program.python} finds no such module", "Check the name and the folder")


@cache
def _ask(python: str, flags: tuple[str, ...], module: str, prefix: tuple[str, ...] = ()) -> dict[str, object]:
    argv = (*prefix, python, *flags, "-c", _ASKED, module)
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissing(f"{python} does not run: {error}", "Name another interpreter") from error
    if done.returncode == 0:
        try:
            answer = json.loads(done.stdout.decode(errors="replace").splitlines()[-1])
            return dict(answer)
        except (ValueError, IndexError, TypeError):
            pass
    lines = done.stderr.decode(errors="replace").split("\n")
    why = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {done.returncode}")
    raise ToolMissing(
        f"{python} cannot import perfctl, which must run inside the profiled process ({why})",
        f"Install it there: {python} -m pip install perfctl",
    )
