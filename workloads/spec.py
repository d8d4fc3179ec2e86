"""The options that all workloads share, and their errors. Does not import torch."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

MODES = ("train", "infer")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""fp32 disables TF32; tf32 enables it for convolutions and matrix products; bf16 and fp16
use autocast."""
DEVICES = ("cpu", "cuda")
DATA = ("synthetic", "mnist", "imagenet", "folder", "csv")
ANNOTATIONS = ("nvtx", "record_function", "none")
WINDOWS = ("cuda", "torch", "none")
MARKERS = ("auto", "optimizer", "forward", "backward")
"""Kinds of events that end a step of a script."""
_MARKERS_OF_A_CLASS = ("optimizer", "forward")
LEAST_STEPS = 5
"""Fewest measured steps under a time limit (``WorkloadOptions.within``)."""
STOPPED_AFTER = "stopped_after_steps"
"""Key of the environment of a script that perfctl ended: its steps until then."""
WATCH_VARIABLE = "PERFCTL_WATCH"
"""Environment variable with the options of each Python process of a program (JSON)."""
START_VARIABLE = "PERFCTL_START"
"""Environment variable with the start of the program: seconds on the monotonic clock."""
UNFINISHED = "the process was killed or crashed before its steps ended"
"""Reason of a record that its process could not complete."""
RANK = "{rank}"
"""In options of a profiler that every rank starts: "" for rank 0, ".rank1" and so on for
the others."""
LAUNCHERS = {
    "torch.distributed.run": ("torchrun",),
    "accelerate.commands.launch": ("accelerate", "launch"),
}
"""Module of a launcher, which starts a script once per rank -> the words that start it."""
_PYTHON = re.compile(r"(?:python|pypy)\d*(?:\.\d+)*[a-z]?(?:\.exe)?")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of python whose value may be the next word."""


def build_self_restart_arguments() -> tuple[str, ...]:
    """Return the words after python that start this code once more: its module, or the one file
    that holds it (annotator.pyz)."""
    archive = getattr(__loader__, "archive", None)  # type: ignore[name-defined]
    return ("-m", "perfctl.workloads") if archive is None else (os.path.abspath(archive),)  # noqa: PTH100


class SpecError(ValueError):
    """The arguments of a workload are invalid; nothing was started. One line, with fields
    in backquotes."""


class UnknownOptionsError(SpecError):
    """``words`` are not options of the workload."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        super().__init__(f"workload {name} has no option {shlex.join(arguments)}")
        self.words = tuple(arguments)


class WorkloadError(RuntimeError):
    """The workload cannot run here (no GPU, no data, ...). One line: what, why, what to do; fields
    in backquotes."""


def get_first_error_line(error: BaseException) -> str:
    """Return the first line of an error's text; the name of its class when that is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def escape_non_utf8(text: str) -> str:
    """``text`` for storage: bytes of arguments and file names that are not UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@contextmanager
def write_file_atomically(path: Path, description: str) -> Iterator[Path]:
    """A file to write in the block, which then takes the place of ``path``. Raises WorkloadError
    for an OSError."""
    part = path.with_name(f".{os.getpid()}.part-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        raise WorkloadError(
            f"cannot write the {description} {path}: {error.strerror or error}"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()


def is_python_interpreter(program: str) -> bool:
    """Return whether ``program`` names a Python interpreter."""
    return _PYTHON.fullmatch(Path(program).name) is not None


def count_python_options(arguments: Sequence[str]) -> int:
    """Return how many of the words after ``python`` are its options. Raises SpecError for code that
    is not in a file."""
    count = 0
    while (
        count < len(arguments)
        and arguments[count].startswith("-")
        and not arguments[count].startswith("-m")
    ):
        if arguments[count] == "-" or (
            arguments[count].startswith("-c") and not arguments[count].startswith("--")
        ):
            raise SpecError(
                f"python {arguments[count]} cannot be profiled: put the code into a file"
            )
        count += 2 if arguments[count] in _WITH_VALUE else 1
    return min(count, len(arguments))


def is_valid_step_marker(text: str) -> bool:
    """Return whether it is one of MARKERS, or optimizer:CLASS or forward:CLASS."""
    kind, colon, name = text.partition(":")
    return kind in (MARKERS if not colon else _MARKERS_OF_A_CLASS) and bool(name) == bool(colon)


def raise_if_trace_option_invalid(window: str, trace: Path | None) -> None:
    """Raise SpecError unless there is a trace file exactly if torch.profiler is to write one."""
    if window == "torch" and trace is None:
        raise SpecError("`window` torch needs `trace`, the file for its trace")
    if trace is not None and window != "torch":
        raise SpecError("`trace` is written only when `window` is torch: set that, or omit `trace`")
    if trace is not None and not trace.name.endswith((".json", ".json.gz")):
        raise SpecError(f"`trace` must end in .json or .json.gz, got {trace}")


class RaisingArgumentParser(argparse.ArgumentParser):
    """An argparse parser that raises SpecError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise SpecError(message)


def make_argparse_integer_type(min_value: int) -> Callable[[str], int]:
    """Argument type: a whole number, at least ``min_value``."""

    def parse_number_at_least(text: str) -> int:
        with suppress(ValueError):
            if (value := int(text)) >= min_value:
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {min_value}")

    return parse_number_at_least


def declare_option(default: Any, help: str = "", heading: str = "", **settings: Any) -> Any:
    """Return a field of options that is an option of the command line, too.

    ``settings`` are those of argparse, and ``flag`` its name, if it differs from the field's. A
    ``heading`` begins a group.
    """
    settings.update(help=help, heading=heading)
    return field(default=default, metadata=settings)


def declare_number_option(
    min_value: int, default: int | None, help: str = "", **settings: Any
) -> Any:
    """Return the field of an option that is a whole number, at least ``min_value``."""
    return declare_option(
        default, help, type=make_argparse_integer_type(min_value), metavar="N", **settings
    )


def add_declared_options(parser: argparse.ArgumentParser, options_class: Any) -> None:
    """Add an argument for each field that ``declare_option`` made."""
    group: Any = parser
    for item in fields(options_class):
        if settings := dict(item.metadata):
            if heading := settings.pop("heading"):
                group = parser.add_argument_group(heading)
            flag = settings.pop("flag", f"--{item.name.replace('_', '-')}")
            group.add_argument(flag, dest=item.name, default=item.default, **settings)


def parse_positive_seconds(text: str) -> float:
    """Argument type: a number of seconds above 0."""
    with suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """How to run a workload; counts are per process."""

    batch_size: int = declare_number_option(
        1, None, "images or sequences per step", heading="the run", flag="--batch", required=True
    )
    mode: str = declare_option(
        "train", "training or inference (default: %(default)s)", choices=MODES
    )
    device: str = declare_option("cpu", "default: %(default)s", choices=DEVICES)
    precision: str = declare_option(
        "fp32", "fp32 disables TF32 (default: %(default)s)", choices=PRECISIONS
    )
    seed: int = declare_number_option(0, 0, "default: %(default)s")
    steps: int = declare_number_option(1, 10, "measured steps (default: %(default)s)")
    """Measured steps, which the profiler records."""
    warmup: int = declare_number_option(
        1,
        3,
        "warm-up steps before the measured steps; the first one records the layers' "
        "shapes (default: %(default)s)",
    )
    epochs: int = declare_number_option(
        0, 0, "full epochs after the measured steps, with test accuracy (default: %(default)s)"
    )
    threads: int | None = declare_number_option(1, None, "CPU threads (default: chosen by torch)")
    within: float | None = declare_option(
        None,
        f"time limit for the measured steps: run fewer, but at least {LEAST_STEPS}",
        type=parse_positive_seconds,
        metavar="SECONDS",
    )
    compile: bool = declare_option(
        False,
        "compile the model with torch.compile, which needs a C++ compiler on a CPU",
        action="store_true",
    )
    """Compiled after the first warm-up step, which records the shapes."""
    data: str = declare_option("synthetic", "default: %(default)s", heading="data", choices=DATA)
    data_dir: Path | None = declare_option(
        None,
        "folder of the data set (mnist: it contains MNIST/raw; imagenet: the class folders; "
        "folder: images/ and masks/; csv: train.csv and test.csv, or give one CSV file)",
        type=Path,
        metavar="DIR",
    )
    download: bool = declare_option(
        False, "download a missing data set into --data-dir", action="store_true"
    )
    record: Path | None = declare_option(
        None, "write the JSON record to FILE", heading="profiling", type=Path, metavar="FILE"
    )
    annotate: str = declare_option(
        "none", "layer ranges (default: %(default)s)", choices=ANNOTATIONS
    )
    window: str = declare_option(
        "none", "profiler to notify of the measured steps", choices=WINDOWS
    )
    layer_steps: int | None = declare_number_option(
        1, None, "steps after the measured ones in which each layer is timed"
    )
    trace: Path | None = declare_option(
        None, "trace file of --window torch (.json or .json.gz)", type=Path, metavar="FILE"
    )
