"""Check, before anything is profiled, that a program's own Python interpreter can run it
under perfctl.

perfctl's own interpreter has perfctl. Any other on this machine gets what must run inside the
process as one file (see ``annotator``), and so needs only Python 3.8 and torch 1.8. One inside an
image must have perfctl.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache

import msgspec

from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.launch.annotator import OLDEST_PYTHON, OLDEST_TORCH
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.program import UserProgram

_PROBE = """
import json, sys
from importlib import import_module, util
def there(name):
    return util.find_spec(name) is not None
def version(name):
    if not there(name):
        return None
    try:
        return import_module("importlib.metadata").version(name)
    except Exception:
        return ""
sys.path.insert(0, "")
module = there(sys.argv[1].partition(".")[0]) if sys.argv[1] else True
sys.path.pop(0)
if sys.argv[2:]:
    import perfctl, perfctl.workloads
print(json.dumps({
    "python": sys.version_info[:3], "torch": version("torch"), "module": module,
    "perfctl": perfctl.__version__ if sys.argv[2:] else None,
}))
"""
"""Run with -c: reports what an interpreter has; imports perfctl if asked to, and nothing else."""


class _InterpreterFacts(msgspec.Struct, frozen=True):
    python: tuple[int, ...]
    torch: str | None
    """Its version; "" when unknown, None without torch."""
    module: bool
    """Whether the interpreter finds the module to run."""
    perfctl: str | None
    """Its version, if asked for."""


def replace_python_without_torch(program: UserProgram, typed_interpreter: str) -> UserProgram:
    """Return the program with perfctl's own interpreter where a bare ``python`` on PATH has no
    torch, as when perfctl is called by its path. ``typed_interpreter``: the first word of the
    command; an interpreter given as a path is kept."""
    if (
        program.python == sys.executable
        or os.sep in typed_interpreter
        or not tools.is_package_importable("torch")
    ):
        return program
    with suppress(ToolMissing):
        if _query_interpreter(program.python, program.flags, "").torch is not None:
            return program
    return replace(program, python=sys.executable)


def raise_if_interpreter_unusable(
    program: UserProgram, perfctl_version: str, container_prefix: tuple[str, ...] = ()
) -> None:
    """Raise ToolMissing or UsageError unless the program's interpreter can run it under perfctl,
    and has the module to run. ``container_prefix``: words before the interpreter, for one inside an
    image, which must have this ``perfctl_version``."""
    module = program.name if program.words[0] == "-m" else ""
    python, remedy = program.python, f"Put another interpreter before {program.name}"
    interpreter = _query_interpreter(python, program.flags, module, container_prefix)
    if container_prefix and interpreter.perfctl != perfctl_version:
        raise ToolMissing(
            f"{python} has perfctl {interpreter.perfctl}, but this is {perfctl_version}: the "
            f"versions must "
            "match",
            f"Install it there: {python} -m pip install perfctl=={perfctl_version}",
        )
    if interpreter.python < OLDEST_PYTHON:
        raise ToolMissing(
            f"{python} is Python {_format_version(interpreter.python)}: layers are marked in "
            f"Python {_format_version(OLDEST_PYTHON)} and later",
            remedy,
        )
    if interpreter.torch is None:
        raise ToolMissing(
            f"{python} has no torch, which perfctl needs to mark layers",
            f"Install it there, put another interpreter before {program.name}, or run it `as_is` "
            "(nsys and ncu)",
        )
    numbers = re.match(r"(\d+)\.(\d+)", interpreter.torch)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST_TORCH:
        raise ToolMissing(
            f"{python} has torch {interpreter.torch}: layers are marked in torch "
            f"{_format_version(OLDEST_TORCH)} and later",
            remedy,
        )
    if not interpreter.module:
        raise UsageError(
            f"{python} finds no module {program.name}", "Check the name and the working directory"
        )


def _format_version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@cache
def _query_interpreter(
    python: str, flags: tuple[str, ...], module: str, container_prefix: tuple[str, ...] = ()
) -> _InterpreterFacts:
    argv = (
        *container_prefix,
        python,
        *flags,
        "-c",
        _PROBE,
        module,
        *(("perfctl",) if container_prefix else ()),
    )
    try:
        code, output, lines = tools.run_with_time_limit(argv, 60.0)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissing(f"{python} does not run: {error}", "Use another interpreter") from error
    with suppress(IndexError, msgspec.MsgspecError):
        if code == 0:
            return msgspec.json.decode(output[-1], type=_InterpreterFacts)
    reason = lines[-1] if lines else f"exit code {code}"
    if container_prefix:
        raise ToolMissing(
            f"{python} cannot import perfctl, which must run inside the profiled process "
            f"({reason})",
            f"Install it there: {python} -m pip install perfctl",
        )
    raise ToolMissing(f"{python} does not run as Python does ({reason})", "Use another interpreter")
