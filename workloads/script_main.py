"""The part of the interpreter's own start that running somebody's script again needs: paths, ``__main__``, the code."""

from __future__ import annotations

import atexit
import builtins
import os
import runpy
import signal
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any
from zipfile import is_zipfile

from perfctl.workloads.script_arguments import Command

_kept: list[Any] = []
"""perfctl's own ``__main__``: a module that nobody holds would lose its names."""
_OWN = "perfctl.workloads."
_run_as_main: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
"""What ``python -m`` itself calls."""


def set_up(command: Command) -> None:
    """From here on the process looks like one that was started as ``python train.py``: argv, path, ``__main__``."""
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = _fresh_main()
    if command.kind == "module":
        # sys.path[0] is the working folder, as -m has it already.
        sys.argv = ["-m", *command.arguments]
        return
    sys.argv = [command.target, *command.arguments]
    whole = _holds_main(command.target)
    # As the interpreter does it: of a script's folder links are followed.
    first = os.path.abspath(command.target) if whole else os.path.dirname(os.path.realpath(command.target))  # noqa: PTH100, PTH120
    if not sys.flags.safe_path:
        sys.path[0] = first
    elif whole:
        sys.path.insert(0, first)


def execute(command: Command) -> None:
    """Run it in ``__main__``. Whatever it raises passes through."""
    if command.kind == "module":
        _run_as_main(command.target)
    elif _holds_main(command.target):
        _run_as_main("__main__", alter_argv=False)
    else:
        path = _absolute(command.target)
        main = sys.modules["__main__"].__dict__
        main.update(__file__=path, __loader__=SourceFileLoader("__main__", path), __cached__=None)
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        exec(code, main)  # noqa: S102 - the user's own script, which is what was asked for  # nosec B102


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback that begins with the script's own line, or None when it has none (a syntax error).

    Frames of perfctl between others (around an optimizer's step) are taken out of it.
    """
    own = execute.__code__.co_filename
    inside = False
    while trace is not None:
        here = trace.tb_frame.f_code.co_filename == own
        if inside and not here:
            return _without_wrappers(trace)
        inside = inside or here
        trace = trace.tb_next
    return None


def _without_wrappers(trace: TracebackType) -> TracebackType:
    kept = trace
    while kept.tb_next is not None:
        if str(kept.tb_next.tb_frame.f_globals.get("__name__", "")).startswith(_OWN):
            kept.tb_next = kept.tb_next.tb_next
        else:
            kept = kept.tb_next
    return trace


def end_as_interrupted() -> None:
    """A process that Ctrl-C ended dies of SIGINT after its exit handlers, which its shell wants to know."""
    if _interrupted:
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


_interrupted: list[bool] = []


def die_of_interrupt() -> None:
    """When the process ends, let it be by SIGINT."""
    _interrupted.append(True)


def watch_for_interrupt() -> None:
    """To be called before the script's own exit handlers are registered, so that they run first."""
    atexit.register(end_as_interrupted)


def _fresh_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __package__=None, __spec__=None)
    return main


def _holds_main(path: str) -> bool:
    """A folder or zip file, which python runs as a package."""
    return Path(path).is_dir() or is_zipfile(path)


def _absolute(path: str) -> str:
    """As the interpreter makes it: joined, not tidied up."""
    return path if Path(path).is_absolute() else f"{os.getcwd()}{os.sep}{path}"  # noqa: PTH109
