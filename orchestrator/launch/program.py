"""Read a user's program, as typed after ``--``: its interpreter, its name, and where the batch
size goes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from perfctl.orchestrator.errors import UsageError
from perfctl.workloads.spec import LAUNCHERS, SpecError, count_python_options, is_python, utf8

BATCH = "{batch}"
"""Placeholder of the batch size, anywhere in any argument; other braces mean nothing."""
LAUNCHER_NAMES = tuple(words[0] for words in LAUNCHERS.values())
"""Programs that start a script once per rank."""
_EXAMPLE = "For example: -- python train.py --batch-size {batch}"


@dataclass(frozen=True, slots=True)
class Program:
    """The checked command after ``--``. Runs as
    ``python FLAGS -m perfctl.workloads ... -- WORDS``."""

    python: str
    """The interpreter that runs it."""
    flags: tuple[str, ...]
    """Options of the interpreter before the script (-u, -X dev)."""
    words: tuple[str, ...]
    """The script (or -m MODULE, or a launcher) and its arguments, with ``{batch}``."""
    name: str
    """Of the script's file, or of the module."""
    script: Path | None
    """The script's file, absolute; None for a module."""
    batch_env: str | None = None
    """Environment variable that is also set to the batch size."""

    def words_at(self, batch_size: int) -> tuple[str, ...]:
        """The words at one batch size."""
        return tuple(word.replace(BATCH, str(batch_size)) for word in self.words)

    @property
    def says_batch(self) -> bool:
        """Whether the batch size reaches the program."""
        return self.batch_env is not None or any(BATCH in word for word in self.words)

    @property
    def variant(self) -> str | None:
        """Its arguments, with {batch}, which distinguish runs of one script; None
        without arguments."""
        arguments = self.words[2 if self.words[0] in ("-m", "accelerate") else 1 :]
        return utf8(" ".join(arguments)) or None

    def identity(self) -> list[object]:
        """Values that identify the program: its words and the content of the script. Editing the
        script changes them."""
        content = (
            sha256(self.script.read_bytes()).hexdigest()
            if self.script and self.script.is_file()
            else None
        )
        return [self.python, self.flags, self.words, self.batch_env, str(self.script), content]


def read_program(command: Sequence[str], batch_env: str | None, batches: Sequence[int]) -> Program:
    """The command after ``--``; starts nothing. Raises UsageError when the script does not exist,
    is not a Python program, or when there are several ``batches`` and nothing in the command takes
    the batch size."""
    if not command:
        raise UsageError("no command was given after --", _EXAMPLE)
    if batch_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", batch_env):
        raise UsageError(
            f"`batch_env`: {batch_env!r} is not the name of an environment variable",
            "For example BATCH",
        )
    python, flags, words = _interpreter(tuple(command))
    name, script = _what_runs(words)
    program = Program(python, flags, words, name, script, batch_env)
    if len(batches) > 1 and not program.says_batch:
        raise UsageError(
            f"`batches`: {len(batches)} sizes, but '{shlex.join(command)}' does not use the batch "
            "size",
            "Put {batch} in its arguments (--batch-size {batch}), set `batch_env`, or use one "
            "batch size",
        )
    return program


def _interpreter(command: tuple[str, ...]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(interpreter, its options, the rest) of a command."""
    first = Path(command[0]).name
    if is_python(first):
        try:
            count = count_python_options(command[1:])
        except SpecError as error:
            raise UsageError(str(error), _EXAMPLE) from error
        if count == len(command) - 1:
            raise UsageError("no script was given after python", _EXAMPLE)
        return resolve(command[0]), command[1 : 1 + count], _module_words(command[1 + count :])
    if first in LAUNCHER_NAMES:
        return _of_shebang(shutil.which(command[0])) or sys.executable, (), (first, *command[1:])
    if command[0].startswith("-m") or first.endswith(".py") or Path(command[0]).is_dir():
        return sys.executable, (), _module_words(command)
    path = command[0] if Path(command[0]).is_file() else shutil.which(command[0])
    python = _of_shebang(path)
    if python is None or path is None:
        raise UsageError(
            f"'{command[0]}' is not a Python program; perfctl marks layers in Python only",
            "Name the script: -- python train.py ..., -- -m package ..., -- torchrun ... train.py "
            "...",
        )
    return python, (), (path, *command[1:])


def _module_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """``-mpackage`` as two words, and launchers called as modules by name."""
    if words[0].startswith("-m") and len(words[0]) > 2:
        words = ("-m", words[0][2:], *words[1:])
    launcher = LAUNCHERS.get(words[1]) if words[0] == "-m" and len(words) > 1 else None
    return (*launcher, *words[2:]) if launcher else words


def resolve(python: str) -> str:
    """Path of the interpreter ``python``; perfctl's own if it is in that folder, or if PATH has
    no ``python``.

    Links between folders are not followed: they lead out of a virtual environment. Raises
    UsageError without it.
    """
    executable = shutil.which(python)
    if executable is None:
        if python == "python":  # Debian and many images have python3 only
            return sys.executable
        raise UsageError(
            f"interpreter {python} does not exist", f"perfctl's own is {sys.executable}"
        )
    path = Path(os.path.abspath(executable))  # noqa: PTH100 - resolve() would follow links
    return (
        sys.executable
        if path.parent.resolve() == Path(sys.executable).parent.resolve()
        else str(path)
    )


def _of_shebang(path: str | None) -> str | None:
    """The Python interpreter in a script's first line; None when there is none."""
    if path is None:
        return None
    line = b""
    with suppress(OSError), Path(path).open("rb") as file:
        line = file.readline(4096)
    words = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    return resolve(words[0]) if words and is_python(words[0]) else None


def _what_runs(words: tuple[str, ...]) -> tuple[str, Path | None]:
    """(name, file) of the script or module. Raises UsageError when there is none, or its file does
    not exist."""
    if words[0] not in LAUNCHER_NAMES:
        if words[0] != "-m":
            return utf8(Path(words[0]).name or Path(words[0]).absolute().name), _existing(words[0])
        if len(words) < 2:
            raise UsageError(
                "no module was given after -m",
                "For example: -- python -m package --batch-size {batch}",
            )
        return words[1], None
    for word, following in pairwise((*words[1:], None)):
        if word in ("-m", "--module") and following is not None:
            return following, None
        if word is not None and word.endswith(".py"):
            return utf8(Path(word).name), _existing(word)
    raise UsageError(
        f"'{shlex.join(words)}' does not name a script",
        f"For example: -- {words[0]} train.py {BATCH}",
    )


def _existing(word: str) -> Path:
    if BATCH in word:
        raise UsageError(
            f"{word}: the script's name must not contain {BATCH}", "Put {batch} in its arguments"
        )
    path = Path(word)
    if not path.exists():
        raise UsageError(f"script {word} does not exist", f"perfctl looked in {Path.cwd()}")
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UsageError(f"folder {word} has no __main__.py", "Name the script in it")
    return path.absolute()
