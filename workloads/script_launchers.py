"""Run torchrun or accelerate launch in this process, so that every rank runs the script under perfctl."""

from __future__ import annotations

import os
import time
from typing import Any

from perfctl.workloads.script_arguments import ScriptOptions
from perfctl.workloads.spec import SpecError, WorkloadError

_PATIENCE_S = 60.0
_PAUSE_S = 0.05
MODULE = "perfctl.workloads"


def launch(options: ScriptOptions) -> int:
    """0 when all ranks succeeded. Raises SpecError, WorkloadError, and what the launcher raises.

    The launcher's parser finds the script among its arguments; perfctl replaces it, as a module.
    """
    start = _torchrun if options.command.kind == "torchrun" else _accelerate
    start(options)
    return 0


def _torchrun(options: ScriptOptions) -> None:
    try:
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing.errors import record
    except ImportError as error:
        raise WorkloadError(f"torchrun: torch cannot be imported ({error}): pip install torch") from error
    arguments = run.get_args_parser().parse_args(list(options.command.arguments))
    _take_place(arguments, options)
    arguments.run_path = False
    record(run.run)(arguments)


def _accelerate(options: ScriptOptions) -> None:
    try:
        from accelerate.commands.launch import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
            launch_command,
            launch_command_parser,
        )
    except ImportError as error:
        raise WorkloadError(
            f"accelerate cannot be imported ({error}): pip install accelerate, or start the script with torchrun"
        ) from error
    arguments = launch_command_parser().parse_args(list(options.command.arguments))
    _take_place(arguments, options)
    launch_command(arguments)


def _take_place(arguments: Any, options: ScriptOptions) -> None:
    """The launcher starts ``-m perfctl.workloads [the same options] -- script its arguments``."""
    if arguments.training_script is None:
        raise SpecError(f"no script was given for {options.command.kind} to start")
    words = [arguments.training_script, *arguments.training_script_args]
    if arguments.module:
        words.insert(0, "-m")
    arguments.module, arguments.no_python = True, False
    arguments.training_script = MODULE
    arguments.training_script_args = [*options.own_words, "--", *words]


def start_under(options: ScriptOptions, rank: int) -> None:
    """Replace this process by the rank's profiler, which starts the script. Raises WorkloadError when it cannot start.

    Ranks start one after the other: nsys fails while another nsys starts on the machine (2022.4). A rank has started when
    its record exists.
    """
    local = os.environ.get("LOCAL_RANK", "0")
    if local.isdecimal() and int(local) > 0 and options.record is not None:
        before = options.for_rank(rank - 1).record
        end = time.monotonic() + _PATIENCE_S
        while before is not None and not before.exists() and time.monotonic() < end:
            time.sleep(_PAUSE_S)
    words = options.started_by_rank(rank)
    try:
        os.execvp(words[0], words)  # noqa: S606  # nosec B606
    except OSError as error:
        raise WorkloadError(f"rank {rank}: cannot start {words[0]}: {error.strerror or error}") from error
