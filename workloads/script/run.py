"""Run a user's script in this process as ``python train.py`` would, and start watching it when it
imports torch.

The script sees a process of its own: ``sys.argv``, ``__main__``, ``sys.path``, streams and random
state are unchanged. torch is imported by the script, which may set variables first.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn
from zipfile import is_zipfile

from perfctl.workloads.run.options import replace_fields_by_flags
from perfctl.workloads.script.options import (
    ScriptCommand,
    ScriptOptions,
    launch_ranks_and_wait,
    parse_script_options,
    replace_process_by_profiler,
)
from perfctl.workloads.script.record import ScriptRecordWriter
from perfctl.workloads.spec import (
    START_VARIABLE,
    WATCH_VARIABLE,
    SpecError,
    WorkloadError,
    build_self_restart_arguments,
    get_first_error_line,
)

_kept: list[Any] = []
"""perfctl's ``__main__``: a module without references would lose its names."""
_OWN = "perfctl.workloads."
_run_as_main: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
"""The function behind ``python -m``."""

_interrupted: list[bool] = []


def replace_main_module_and_argv(command: ScriptCommand) -> None:
    """Make argv, path and ``__main__`` those of a process started as ``python train.py``."""
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __package__=None, __spec__=None)
    if command.kind == "module":
        sys.argv = ["-m", *command.arguments]
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = os.getcwd()  # noqa: PTH109
        return
    sys.argv = [command.target, *command.arguments]
    holds_main = _is_folder_or_zip(command.target)
    # Like the interpreter, follow links of a script's folder.
    first = (
        os.path.abspath(command.target)  # noqa: PTH100
        if holds_main
        else os.path.dirname(os.path.realpath(command.target))  # noqa: PTH120
    )
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11 and later
        sys.path[0] = first
    elif holds_main:
        sys.path.insert(0, first)


def execute_as_main(command: ScriptCommand) -> None:
    """Run it in ``__main__``. Exceptions pass through."""
    if command.kind == "module":
        _run_as_main(command.target)
    elif _is_folder_or_zip(command.target):
        _run_as_main("__main__", alter_argv=False)
    else:
        # Made absolute like the interpreter does: joined, not normalised.
        path = (
            command.target
            if Path(command.target).is_absolute()
            else f"{os.getcwd()}{os.sep}{command.target}"  # noqa: PTH109
        )
        main = sys.modules["__main__"].__dict__
        main.update(__file__=path, __loader__=SourceFileLoader("__main__", path), __cached__=None)
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        exec(code, main)  # noqa: S102 - the user's own script  # nosec B102


def strip_perfctl_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the script's own frame on, or None without one (a syntax error).

    Removes frames of perfctl between others (around an optimizer's step).
    """
    own_file = execute_as_main.__code__.co_filename
    while trace is not None and trace.tb_frame.f_code.co_filename != own_file:
        trace = trace.tb_next
    while trace is not None and trace.tb_frame.f_code.co_filename == own_file:
        trace = trace.tb_next
    frame = trace
    while frame is not None and frame.tb_next is not None:
        if str(frame.tb_next.tb_frame.f_globals.get("__name__", "")).startswith(_OWN):
            frame.tb_next = frame.tb_next.tb_next
        else:
            frame = frame.tb_next
    return trace


def end_by_sigint_if_interrupted() -> None:
    """After the exit handlers, end an interrupted process by SIGINT, so that its shell notices."""
    if _interrupted:
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _is_folder_or_zip(path: str) -> bool:
    """Return whether it is a folder or zip file, which Python runs through its ``__main__``."""
    return Path(path).is_dir() or is_zipfile(path)


class _ImportWatcher:
    """First on ``sys.meta_path`` until torch is imported; finds it through the other finders."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        specs = (
            finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self
        )
        spec = next((spec_of_other for spec_of_other in specs if spec_of_other is not None), None)
        if spec is not None and spec.loader is not None:
            self._patch_loader_to_call_back(spec.loader)
        return spec

    def _patch_loader_to_call_back(self, loader: Any) -> None:
        """Patch this loader only, until the module was executed."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._then()

        loader.exec_module = exec_module


def run_script(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, or 2 when nothing was started. Exceptions of the script, SystemExit
    too, pass through."""
    try:
        options = parse_script_options(arguments)
        if options.command.flags:  # -u, -O, -X ... take effect only at the start of Python
            argv = (
                *build_self_restart_arguments(),
                *options.own_words,
                "--",
                *options.command.argv,
            )
            os.execv(sys.executable, [sys.executable, *options.command.flags, *argv])  # noqa: S606  # nosec B606
        if options.command.kind in ("torchrun", "accelerate"):
            launch_ranks_and_wait(options)
            return 0
        text = os.environ.get("RANK", "")
        rank = int(text) if text.isdecimal() else 0
        if options.under and options.under_rank in (None, rank):
            replace_process_by_profiler(options, rank)
        options = options.add_rank_to_file_paths(rank)
        keeper = ScriptRecordWriter(options)
        keeper.write()
    except (SpecError, WorkloadError) as error:
        print(f"perfctl: {replace_fields_by_flags(str(error))}", file=sys.stderr)
        return 2
    if options.batch_env is not None and options.batch_size is not None:
        os.environ[options.batch_env] = str(options.batch_size)
    _watch_script_after_torch_import(options, keeper)
    # before the script registers handlers, so that those run first
    atexit.register(end_by_sigint_if_interrupted)
    replace_main_module_and_argv(options.command)
    try:
        execute_as_main(options.command)
    except BaseException as error:
        keeper.finish_record_on_script_end(error)
        if isinstance(error, KeyboardInterrupt):
            _interrupted.append(True)
        _hide_perfctl_frames_in_tracebacks()
        raise
    keeper.finish_record_on_script_end(None)
    return 0


def start_watching_current_process() -> None:
    """Watch the program of this process, one of those that WATCH_VARIABLE reaches."""
    os.environ.setdefault(START_VARIABLE, str(time.monotonic()))
    options = parse_script_options(json.loads(os.environ[WATCH_VARIABLE]))
    keeper = ScriptRecordWriter(options)
    _watch_script_after_torch_import(options, keeper)
    atexit.register(keeper.finish_record_on_script_end, None)


def _watch_script_after_torch_import(options: ScriptOptions, keeper: ScriptRecordWriter) -> None:
    """Watch the script from its import of torch on."""

    def watch_script() -> None:
        try:
            from perfctl.workloads.script.watch import ScriptWatch

            watch = ScriptWatch(options, keeper)
            watch.start()
            keeper.before_end = watch.end_and_explain_missing_steps
        except Exception as error:  # the script runs on
            version = getattr(sys.modules["torch"], "__version__", "of unknown version")
            problem = (
                f"perfctl cannot watch a script with torch {version} ({type(error).__name__}: "
                f"{get_first_error_line(error)})"
            )
            keeper.before_end = lambda: problem

    if "torch" in sys.modules:
        watch_script()
    else:
        sys.meta_path.insert(0, _ImportWatcher(watch_script))
    _patch_os_exit_for_record(keeper)


def _patch_os_exit_for_record(keeper: ScriptRecordWriter) -> None:
    """Finish the record where the script ends itself with ``os._exit``, which runs no
    exit handlers."""
    exit_at_once = os._exit

    @functools.wraps(exit_at_once)
    def record_and_exit(status: int) -> NoReturn:
        with suppress(Exception):  # perhaps after the end of the script
            keeper.finish_record_on_script_end(SystemExit(status))
        exit_at_once(status)

    os._exit = record_and_exit


def _hide_perfctl_frames_in_tracebacks() -> None:
    """Start the traceback of an uncaught exception at the script's own frame."""
    hook = sys.excepthook

    def show_script_traceback(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        sys.excepthook = hook
        trace = strip_perfctl_frames(trace)
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = show_script_traceback
