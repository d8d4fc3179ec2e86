"""Runs a user's script in this process as ``python train.py`` would, with perfctl waiting for torch. Needs no torch itself.

What the script can see of the process is its own: ``sys.argv``, ``__main__``, ``sys.path``, streams, random state. torch is
not imported before the script does it, for it may set variables first; annotation is armed at that moment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType

from perfctl.workloads.script_arguments import ScriptOptions, parse
from perfctl.workloads.script_import import after_import
from perfctl.workloads.script_main import die_of_interrupt, execute, set_up, watch_for_interrupt, without_own_frames
from perfctl.workloads.script_record import Keeper
from perfctl.workloads.spec import SpecError, WorkloadError


def run_script(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 2 when nothing was started. Whatever the script raises, SystemExit too, passes through."""
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
        options = options.for_rank(_rank()).from_here()
        keeper = Keeper(options)
        keeper.write()
    except (SpecError, WorkloadError) as error:
        print(f"perfctl: {error}", file=sys.stderr)
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
    """Which of several processes this is, as launchers say it; 0 when alone."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0


def _restart(options: ScriptOptions) -> None:
    """Options of python (-u, -O, -X ...) take effect at its start only: start it again with them."""
    words = ("-m", "perfctl.workloads", *options.own_words, "--", *options.command.words)
    os.execv(sys.executable, [sys.executable, *options.command.flags, *words])  # noqa: S606  # nosec B606


def _hide_own_frames() -> None:
    """What python prints when the script's exception ends the process begins with the script's own line."""
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        trace = without_own_frames(trace)
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = show
