"""Run a user's script in this process as ``python train.py`` would, and start watching it when it imports torch.

The script sees a process of its own: ``sys.argv``, ``__main__``, ``sys.path``, streams and random state are unchanged.
torch is imported by the script, which may set variables first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType

from perfctl.workloads.arguments import as_flags
from perfctl.workloads.script_arguments import ScriptOptions, parse
from perfctl.workloads.script_import import after_import
from perfctl.workloads.script_main import die_of_interrupt, execute, set_up, watch_for_interrupt, without_own_frames
from perfctl.workloads.script_record import Keeper
from perfctl.workloads.spec import SpecError, WorkloadError


def run_script(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 2 when nothing was started. Exceptions of the script, SystemExit too, pass through."""
    try:
        options = parse(arguments)
        if options.command.flags:
            _restart(options)
        if options.command.kind in ("torchrun", "accelerate"):
            from perfctl.workloads.script_launchers import launch

            return launch(options)
        if options.under:
            from perfctl.workloads.script_launchers import start_under

            start_under(options, _rank())
        options = options.for_rank(_rank()).with_absolute_paths()
        keeper = Keeper(options)
        keeper.write()
    except (SpecError, WorkloadError) as error:
        print(f"perfctl: {as_flags(str(error))}", file=sys.stderr)
        return 2
    if options.batch_env is not None and options.batch_size is not None:
        os.environ[options.batch_env] = str(options.batch_size)
    _run(options, keeper)
    return 0


def _run(options: ScriptOptions, keeper: Keeper) -> None:
    def arm() -> None:
        from perfctl.workloads.script_watch import ScriptWatch

        watch = ScriptWatch(options, keeper)
        keeper.before_end = watch.end
        watch.start()

    after_import("torch", arm)
    watch_for_interrupt()
    set_up(options.command)
    try:
        execute(options.command)
    except BaseException as error:
        keeper.end(error)
        if isinstance(error, KeyboardInterrupt):
            die_of_interrupt()
        _hide_own_frames()
        raise
    keeper.end(None)


def _rank() -> int:
    """The rank that a launcher set; 0 without a launcher."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0


def _restart(options: ScriptOptions) -> None:
    """Restart Python with its options (-u, -O, -X ...), which take effect only at its start."""
    words = ("-m", "perfctl.workloads", *options.own_words, "--", *options.command.words)
    os.execv(sys.executable, [sys.executable, *options.command.flags, *words])  # noqa: S606  # nosec B606


def _hide_own_frames() -> None:
    """Start the traceback of an uncaught exception at the script's own frame."""
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        trace = without_own_frames(trace)
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = show
