"""Start a script as the interpreter does: set up paths and ``__main__``, and execute the code."""

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
"""perfctl's ``__main__``: a module without references would lose its names."""
_OWN = "perfctl.workloads."
_run_as_main: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
"""The function behind ``python -m``."""


def set_up(command: Command) -> None:
    """Make argv, path and ``__main__`` those of a process started as ``python train.py``."""
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = _fresh_main()
    if command.kind == "module":
        # sys.path[0] is the working directory already, as with -m.
        sys.argv = ["-m", *command.arguments]
        return
    sys.argv = [command.target, *command.arguments]
    whole = _holds_main(command.target)
    # Like the interpreter, follow links of a script's folder.
    first = os.path.abspath(command.target) if whole else os.path.dirname(os.path.realpath(command.target))  # noqa: PTH100, PTH120
    if not sys.flags.safe_path:
        sys.path[0] = first
    elif whole:
        sys.path.insert(0, first)


def execute(command: Command) -> None:
    """Run it in ``__main__``. Exceptions pass through."""
    if command.kind == "module":
        _run_as_main(command.target)
    elif _holds_main(command.target):
        _run_as_main("__main__", alter_argv=False)
    else:
        path = _absolute(command.target)
        main = sys.modules["__main__"].__dict__
        main.update(__file__=path, __loader__=SourceFileLoader("__main__", path), __cached__=None)
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        exec(code, main)  # noqa: S102 - the user's own script  # nosec B102


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's own frame on, or None without one (a syntax error).

    Removes frames of perfctl between others (around an optimizer's step).
    """
    own = execute.__code__.co_filename
    inside = False
    while trace is not None:
        is_own = trace.tb_frame.f_code.co_filename == own
        if inside and not is_own:
            return _without_wrappers(trace)
        inside = inside or is_own
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
    """After the exit handlers, end an interrupted process by SIGINT, so that its shell notices."""
    if _interrupted:
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


_interrupted: list[bool] = []


def die_of_interrupt() -> None:
    """Let the process end by SIGINT."""
    _interrupted.append(True)


def watch_for_interrupt() -> None:
    """Call this before the script registers exit handlers, so that those run first."""
    atexit.register(end_as_interrupted)


def _fresh_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __package__=None, __spec__=None)
    return main


def _holds_main(path: str) -> bool:
    """Whether it is a folder or zip file, which Python runs through its ``__main__``."""
    return Path(path).is_dir() or is_zipfile(path)


def _absolute(path: str) -> str:
    """An absolute path made like the interpreter's: joined, not normalised."""
    return path if Path(path).is_absolute() else f"{os.getcwd()}{os.sep}{path}"  # noqa: PTH109
