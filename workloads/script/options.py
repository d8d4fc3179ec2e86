"""Parse the command line of a script under perfctl: perfctl's options, ``--``, and the command.
Does not import torch."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from perfctl.workloads import spec
from perfctl.workloads.spec import (
    LAUNCHERS,
    RANK,
    SpecError,
    WorkloadError,
    build_self_restart_arguments,
    declare_number_option,
    declare_option,
    is_python_interpreter,
)

USAGE = "python -m perfctl.workloads [options] -- train.py --batch-size 64"

_PATIENCE_S = 60.0
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    kind: str
    """script, module, torchrun or accelerate."""
    target: str
    """Path of the script or name of the module; "" for launchers, whose parsers find it."""
    arguments: tuple[str, ...]
    flags: tuple[str, ...] = ()
    """Options between python and the script."""

    @property
    def name(self) -> str:
        """Name of the run: file name of the script, or the module."""
        if self.kind != "script":
            return self.target or self.kind
        return Path(self.target).name or Path(self.target).absolute().name

    @property
    def argv(self) -> tuple[str, ...]:
        """The words of the command, without python and its options."""
        if self.kind == "script":
            return (self.target, *self.arguments)
        if self.kind == "module":
            return ("-m", self.target, *self.arguments)
        return (self.kind, *(("launch",) if self.kind == "accelerate" else ()), *self.arguments)


def parse_json_argv(text: str) -> tuple[str, ...]:
    argv = json.loads(text)  # a ValueError is what argparse reports
    if not isinstance(argv, list) or not all(isinstance(argument, str) for argument in argv):
        raise ValueError
    return tuple(argv)


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    command: ScriptCommand
    own_words: tuple[str, ...]
    """The options before ``--``, to pass on to every rank."""
    batch_size: int | None = declare_number_option(1, None, flag="--batch")
    """The batch size in the command; None when unknown."""
    batch_env: str | None = declare_option(None)
    """Environment variable that also has the batch size."""
    record: Path | None = declare_option(None, type=Path)
    annotate: str = declare_option("none", choices=spec.ANNOTATIONS)
    window: str = declare_option("none", choices=spec.WINDOWS)
    trace: Path | None = declare_option(None, type=Path)
    steps: int = declare_number_option(1, 10)
    warmup: int = declare_number_option(0, 3)
    step_marker: str = declare_option("auto")
    """Kind of event that ends a step, one of spec.MARKERS, with :CLASS for only events of this
    optimizer or module class."""
    device: str | None = declare_option(None, choices=spec.DEVICES)
    """The expected device; the script decides."""
    under: tuple[str, ...] = declare_option((), type=parse_json_argv)
    """Profiler and options that every rank of a launcher starts itself under; RANK marks the names
    of its files."""
    under_rank: int | None = declare_number_option(0, None)
    """The only rank that starts ``under`` the profiler; None for every rank."""
    stop: bool = declare_option(False, action="store_true")
    """End the script after its measured steps."""
    after: int = declare_number_option(0, 0)
    """Seconds from the start of the program to the time window."""
    duration: int | None = declare_number_option(1, None, flag="--for")
    """Seconds of the time window; None: ``steps`` limit the recording."""
    variant: str | None = declare_option(None)
    """Distinguishes this command from others of the same script; None: derived from
    its arguments."""

    def add_rank_to_file_paths(self, rank: int) -> ScriptOptions:
        """Return the options with separate files per rank, whose paths are absolute, because the
        script may change the working directory; rank 0 keeps the names."""

        def add_rank_to_file_name(path: Path | None) -> Path | None:
            if path is None:
                return None
            stem, dot, suffix = path.name.partition(".")
            mark = f".rank{rank}" if rank else ""
            return path.absolute().with_name(f"{stem}{mark}{dot}{suffix}")

        return replace(
            self, record=add_rank_to_file_name(self.record), trace=add_rank_to_file_name(self.trace)
        )

    def build_rank_profiler_command(self, rank: int) -> tuple[str, ...]:
        """``under`` with the rank's files, then perfctl with the other options and the command."""
        index = self.own_words.index("--under")
        options = (*self.own_words[:index], *self.own_words[index + 2 :])
        mark = f".rank{rank}" if rank else ""
        return (
            *(argument.replace(RANK, mark) for argument in self.under),
            sys.executable,
            *self.command.flags,
            *build_self_restart_arguments(),
            *options,
            "--",
            *self.command.argv,
        )

    def format_arguments_with_batch_placeholder(self) -> str | None:
        """``variant``, else the command's arguments with {batch} for the batch size; None
        without arguments.

        {batch} is put into options named after the batch size, else wherever the number occurs.
        """
        if self.variant is not None:
            return self.variant
        value, arguments = str(self.batch_size), list(self.command.arguments)
        places = [
            number
            for number, argument in enumerate(arguments)
            if argument == value or argument.endswith(f"={value}")
        ]
        for number in [
            number for number in places if _is_batch_size_argument(arguments, number)
        ] or places:
            arguments[number] = arguments[number][: -len(value)] + "{batch}"
        return " ".join(arguments) or None


def is_script_command_line(arguments: Sequence[str]) -> bool:
    """Return whether there is a ``--`` without the name of a workload before it, so that a user's
    program follows."""
    flags = set(arguments[: arguments.index("--")]) if "--" in arguments else {"--help"}
    return arguments[0].startswith("-") and not {"-h", "--help"} & flags


def parse_script_options(arguments: Sequence[str]) -> ScriptOptions:
    end = list(arguments).index("--")
    parser = spec.RaisingArgumentParser(
        prog="python -m perfctl.workloads", add_help=False, allow_abbrev=False
    )
    spec.add_declared_options(parser, ScriptOptions)
    own_arguments = tuple(arguments[:end])
    values = vars(parser.parse_args(own_arguments))
    options = ScriptOptions(parse_python_command(arguments[end + 1 :]), own_arguments, **values)
    if not spec.is_valid_step_marker(options.step_marker):
        kinds = ", ".join((*spec.MARKERS, "optimizer:CLASS", "forward:CLASS"))
        raise SpecError(f"`step_marker` must be one of {kinds}; got {options.step_marker}")
    spec.raise_if_trace_option_invalid(options.window, options.trace)
    return options


def parse_python_command(argv: Sequence[str]) -> ScriptCommand:
    """Return the command in words such as ``python -u train.py``, ``-m package``, ``torchrun
    train.py``. Raises SpecError."""
    flags: tuple[str, ...] = ()
    if argv and is_python_interpreter(argv[0]):
        count = spec.count_python_options(argv[1:])
        flags, argv = tuple(argv[1 : 1 + count]), argv[1 + count :]
    if not argv:
        raise SpecError(f"no script was given after --: {USAGE}")
    first = argv[0]
    if first.startswith("-m"):
        module, arguments = (
            (first[2:], argv[1:]) if len(first) > 2 else (" ".join(argv[1:2]), argv[2:])
        )
        if not module:
            raise SpecError("no module was given after -m")
        if module == "torch.distributed.launch":
            raise SpecError(
                "torch.distributed.launch is deprecated: start the script with torchrun"
            )
        kind = LAUNCHERS[module][0] if module in LAUNCHERS else "module"
        return ScriptCommand(kind, module if kind == "module" else "", tuple(arguments), flags)
    launcher = Path(first).name
    if launcher == "torchrun":
        return ScriptCommand("torchrun", "", tuple(argv[1:]), flags)
    if launcher == "accelerate":
        if list(argv[1:2]) != ["launch"]:
            raise SpecError("use accelerate launch train.py ...")
        return ScriptCommand("accelerate", "", tuple(argv[2:]), flags)
    if not Path(first).exists():
        raise SpecError(f"script {first} does not exist (looked in {Path.cwd()})")
    return ScriptCommand("script", first, tuple(argv[1:]), flags)


def _is_batch_size_argument(arguments: Sequence[str], index: int) -> bool:
    option = (
        arguments[index].partition("=")[0]
        if "=" in arguments[index]
        else arguments[index - 1]
        if index
        else ""
    )
    return "batch" in option.lower() or option in ("-b", "-bs", "--bs")


def launch_ranks_and_wait(options: ScriptOptions) -> None:
    """Start the ranks and wait for them. Raises SpecError, WorkloadError, and what the
    launcher raises.

    The launcher's parser finds the script among its arguments; in its place the launcher starts
    perfctl with the same options, ``--``, the script and its arguments.
    """
    start: Callable[[Any], object]
    kind = options.command.kind
    try:
        if kind == "torchrun":
            from torch.distributed import run
            from torch.distributed.elastic.multiprocessing.errors import record

            parser, start = run.get_args_parser(), record(run.run)
        else:
            accelerate = import_module("accelerate.commands.launch")
            parser, start = accelerate.launch_command_parser(), accelerate.launch_command
    except ImportError as error:
        if kind == "torchrun":
            raise WorkloadError(
                f"torchrun: torch cannot be imported ({error}): pip install torch"
            ) from error
        other = "pip install accelerate, or start the script with torchrun"
        raise WorkloadError(f"accelerate cannot be imported ({error}): {other}") from error
    arguments = parser.parse_args(list(options.command.arguments))
    if arguments.training_script is None:
        raise SpecError(f"no script was given for {kind} to start")
    argv = [
        *(["-m"] if arguments.module else []),
        arguments.training_script,
        *arguments.training_script_args,
    ]
    *module, arguments.training_script = build_self_restart_arguments()
    arguments.module, arguments.no_python = bool(module), False
    arguments.training_script_args = [*options.own_words, "--", *argv]
    if kind == "torchrun":
        arguments.run_path = False
    start(arguments)


def replace_process_by_profiler(options: ScriptOptions, rank: int) -> None:
    """Replace this process by the rank's profiler, which starts the script. Raises WorkloadError
    when it cannot start.

    Ranks start one after the other: nsys fails while another nsys starts on the machine (2022.4). A
    rank has started when its record exists.
    """
    local = os.environ.get("LOCAL_RANK", "0")
    if local.isdecimal() and int(local) > 0 and options.record is not None:
        before = options.add_rank_to_file_paths(rank - 1).record
        end = time.monotonic() + _PATIENCE_S
        while before is not None and not before.exists() and time.monotonic() < end:
            time.sleep(_PAUSE_S)
    argv = options.build_rank_profiler_command(rank)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  # nosec B606
    except OSError as error:
        raise WorkloadError(
            f"rank {rank}: cannot start {argv[0]}: {error.strerror or error}"
        ) from error
