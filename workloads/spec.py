"""The options that all workloads share, and their errors. Does not import torch."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

MODES = ("train", "infer")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""fp32 disables TF32; tf32 enables it for convolutions and matrix products; bf16 and fp16
use autocast."""
DEVICES = ("cpu", "cuda")
DATA = ("synthetic", "mnist", "imagenet", "folder", "csv")
ANNOTATIONS = ("nvtx", "record_function", "none")
WINDOWS = ("cuda", "torch", "none")
LEAST_STEPS = 5
"""Fewest measured steps under a time limit (``Options.within``)."""
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


def start_words() -> tuple[str, ...]:
    """The words after python that start this code once more: its module, or the one file that holds
    it (annotator.pyz)."""
    archive = getattr(__loader__, "archive", None)  # type: ignore[name-defined]
    return ("-m", "perfctl.workloads") if archive is None else (os.path.abspath(archive),)  # noqa: PTH100


class SpecError(ValueError):
    """The arguments of a workload are invalid; nothing was started. One line, with fields
    in backquotes."""


class UnknownWords(SpecError):
    """``words`` are not options of the workload."""

    def __init__(self, name: str, words: Sequence[str]) -> None:
        super().__init__(f"workload {name} has no option {shlex.join(words)}")
        self.words = tuple(words)


class WorkloadError(RuntimeError):
    """The workload cannot run here (no GPU, no data, ...). One line: what, why, what to do; fields
    in backquotes."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text; the name of its class when that is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def utf8(text: str) -> str:
    """``text`` for storage: bytes of arguments and file names that are not UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@contextmanager
def writing(path: Path, what: str) -> Iterator[Path]:
    """A file to write in the block, which then takes the place of ``path``. Raises WorkloadError
    for an OSError."""
    part = path.with_name(f".{os.getpid()}.part-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        raise WorkloadError(f"cannot write the {what} {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink()


def is_python(word: str) -> bool:
    """Whether ``word`` names a Python interpreter."""
    return _PYTHON.fullmatch(Path(word).name) is not None


def count_python_options(words: Sequence[str]) -> int:
    """How many of the words after ``python`` are its options. Raises SpecError for code that is not
    in a file."""
    at = 0
    while at < len(words) and words[at].startswith("-") and not words[at].startswith("-m"):
        if words[at] == "-" or (words[at].startswith("-c") and not words[at].startswith("--")):
            raise SpecError(f"python {words[at]} cannot be profiled: put the code into a file")
        at += 2 if words[at] in _WITH_VALUE else 1
    return min(at, len(words))


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a workload; counts are per process."""

    batch_size: int
    mode: str = "train"
    device: str = "cpu"
    precision: str = "fp32"
    seed: int = 0
    steps: int = 10
    """Measured steps, which the profiler records."""
    warmup: int = 3
    """Steps before the measured ones, at least 1; the first records the shapes."""
    epochs: int = 0
    """Epochs after the measured steps, with loss and test accuracy; 0 for none."""
    data: str = "synthetic"
    data_dir: Path | None = None
    download: bool = False
    record: Path | None = None
    """File for the JSON record; None to print only a summary."""
    annotate: str = "none"
    window: str = "none"
    """cuda, torch or none: how the profiler learns of the measured steps."""
    trace: Path | None = None
    """File for the Kineto trace, when ``window`` is torch."""
    compile: bool = False
    """Compile the model with torch.compile after the first warm-up step, which records
    the shapes."""
    threads: int | None = None
    """CPU threads of torch; None for its default."""
    within: float | None = None
    """Seconds for the measured steps: run fewer than ``steps``, but at least LEAST_STEPS.
    None: all."""
    layer_steps: int | None = None
    """Steps after the measured ones that time each layer; None for none."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises SpecError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise SpecError(message)


def at_least(least: int) -> Callable[[str], int]:
    """Argument type: a whole number, at least ``least``."""

    def number(text: str) -> int:
        with suppress(ValueError):
            if (value := int(text)) >= least:
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")

    return number
