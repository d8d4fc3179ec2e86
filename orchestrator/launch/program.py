"""Read a user's program, as typed after ``--``: its interpreter, its name, and where the values of
a sweep go."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from perfctl.orchestrator.errors import UsageError
from perfctl.workloads.spec import (
    LAUNCHERS,
    SpecError,
    count_python_options,
    escape_non_utf8,
    is_python_interpreter,
)

BATCH = "{batch}"
"""Placeholder of the batch size, anywhere in any argument. Other parameters that vary have
placeholders of the same form; all other braces mean nothing."""
LAUNCHER_NAMES = tuple(words[0] for words in LAUNCHERS.values())
"""Programs that start a script once per rank."""
_EXAMPLE = "For example: -- python train.py --batch-size {batch}"


def fill_placeholders(text: str, parameters: Mapping[str, str]) -> str:
    """Return ``text`` with the values of parameters in place of their names in braces."""
    for name, value in parameters.items():
        text = text.replace(f"{{{name}}}", value)
    return text


@dataclass(frozen=True, slots=True)
class UserProgram:
    """The checked command after ``--``. A Python program runs as
    ``python FLAGS -m perfctl.workloads ... -- WORDS``, any other as it is."""

    python: str | None
    """The interpreter that runs it; None: it runs as it is, and nothing marks layers or steps."""
    flags: tuple[str, ...]
    """Options of the interpreter before the script (-u, -X dev)."""
    words: tuple[str, ...]
    """The script (or -m MODULE, or a launcher, or any program) and its arguments, with
    ``{batch}``."""
    name: str
    """Of the script's file, or of the module."""
    script: Path | None
    """The script's file, absolute; None for a module."""
    batch_env: str | None = None
    """Environment variable that is also set to the batch size."""
    variables: tuple[tuple[str, str], ...] = ()
    """(parameter, environment variable that is set to its value)."""

    def fill_command(self, parameters: Mapping[str, str]) -> tuple[str, ...]:
        """Return the words at one value of each parameter."""
        return tuple(fill_placeholders(argument, parameters) for argument in self.words)

    def passes_parameter(self, parameter: str) -> bool:
        """Return whether the value of a parameter reaches the program."""
        variables = {"batch": self.batch_env, **dict(self.variables)}
        is_set = variables.get(parameter) is not None
        return is_set or any(f"{{{parameter}}}" in argument for argument in self.words)

    @property
    def variant(self) -> str | None:
        """Its arguments and variables, with {batch} and the like, which distinguish runs of one
        script; None without any."""
        arguments = self.words[2 if self.words[0] in ("-m", "accelerate") else 1 :]
        variables = (f"{variable}={{{name}}}" for name, variable in self.variables)
        return escape_non_utf8(" ".join((*arguments, *variables))) or None

    def list_identity_values(self) -> list[object]:
        """Return values that identify the program: its words and the content of the script. Editing
        the script changes them."""
        content = (
            sha256(self.script.read_bytes()).hexdigest()
            if self.script and self.script.is_file()
            else None
        )
        values = [self.python, self.flags, self.words, self.batch_env, str(self.script), content]
        return [*([self.variables] if self.variables else []), *values]


def parse_user_program(
    command: Sequence[str],
    batch_env: str | None,
    value_count_by_parameter: Mapping[str, int],
    *,
    sweep_env: Sequence[str] = (),
    runs_unannotated: bool | None = False,
    is_local_program: bool = True,
) -> UserProgram:
    """Return the command after ``--``; starts nothing.

    ``value_count_by_parameter``: parameter -> number of its values. ``runs_unannotated``: True for
    a program of any kind, False for a Python program, None for whichever it is.
    ``is_local_program``: False for one in an image. Raises UsageError when the script does not
    exist or is not of that kind, or when nothing in the command takes a parameter.
    """
    if not command:
        raise UsageError("no command was given after --", _EXAMPLE)
    variables = tuple(map(_parse_sweep_env, sweep_env))
    for name in (*([batch_env] if batch_env is not None else []), *dict(variables).values()):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            field = "batch_env" if name == batch_env else "sweep_env"
            raise UsageError(
                f"`{field}`: {name!r} is not the name of an environment variable",
                "For example BATCH",
            )
    python, flags, command_line = (
        (None, (), tuple(command))
        if runs_unannotated
        else _split_interpreter(tuple(command), accepts_non_python=runs_unannotated is None)
    )
    if python is not None:
        name, script = _find_script_name_and_file(command_line, value_count_by_parameter)
    else:
        command_line, name, script = _parse_non_python_program(command_line, is_local_program)
    program = UserProgram(python, flags, command_line, name, script, batch_env, variables)
    for parameter, count in value_count_by_parameter.items():
        if parameter == "batch" and count > 1 and not program.passes_parameter("batch"):
            raise UsageError(
                f"`batches`: {count} sizes, but '{shlex.join(command)}' does not use the batch "
                "size",
                "Put {batch} in its arguments (--batch-size {batch}), set `batch_env`, or use one "
                "batch size",
            )
        if parameter != "batch" and not program.passes_parameter(parameter):
            raise UsageError(
                f"`sweep`: '{shlex.join(command)}' does not use {parameter}",
                f"Put {{{parameter}}} in its arguments, or set `sweep_env` {parameter}=VARIABLE",
            )
    if unknown := [name for name, _ in variables if name not in value_count_by_parameter]:
        raise UsageError(
            f"`sweep_env`: the sweep has no parameter {unknown[0]}",
            f"Give its values: `sweep` {unknown[0]}=VALUE,VALUE",
        )
    return program


def _parse_sweep_env(text: str) -> tuple[str, str]:
    name, equals, variable = text.partition("=")
    if not equals:
        raise UsageError(f"`sweep_env`: '{text}' is not NAME=VARIABLE", "For example N=SIZE")
    return name, variable


def _parse_non_python_program(
    command: tuple[str, ...], is_local_program: bool
) -> tuple[tuple[str, ...], str, Path | None]:
    """Return (words, name, file) of a program that is not Python. The name is that of the file
    which is run, also behind a shell or launcher from PATH (bash run.sh, mpirun -n 2 ./solver)."""
    first, *arguments = command
    if not is_local_program:
        return command, escape_non_utf8(Path(first).name), None
    path = shutil.which(first)
    if path is None:
        exists = Path(first).is_file()
        raise UsageError(
            f"{first} is not executable" if exists else f"program {first} does not exist",
            f"chmod +x {shlex.quote(first)}, or put its interpreter before it"
            if exists
            else f"perfctl looked in {Path.cwd()} and on PATH",
        )
    files = (
        [path]
        if os.sep in first
        else [argument for argument in arguments if Path(argument).is_file()]
    )
    # nsys does not search PATH as a shell does
    argv = (os.path.abspath(path), *arguments)  # noqa: PTH100 - resolve() would follow links
    script = Path(files[0]).absolute() if files else None
    return argv, escape_non_utf8(script.name if script else Path(first).name), script


def _split_interpreter(
    command: tuple[str, ...], *, accepts_non_python: bool
) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """Return (interpreter, its options, the rest) of a command; no interpreter for one that is not
    Python, if ``accepts_non_python``."""
    first = Path(command[0]).name
    if is_python_interpreter(first):
        try:
            count = count_python_options(command[1:])
        except SpecError as error:
            raise UsageError(str(error), _EXAMPLE) from error
        if count == len(command) - 1:
            raise UsageError("no script was given after python", _EXAMPLE)
        return (
            resolve_interpreter_path(command[0]),
            command[1 : 1 + count],
            _normalize_module_options(command[1 + count :]),
        )
    if first in LAUNCHER_NAMES:
        return (
            _read_python_shebang(shutil.which(command[0])) or sys.executable,
            (),
            (first, *command[1:]),
        )
    if command[0].startswith("-m") or first.endswith(".py") or Path(command[0]).is_dir():
        return sys.executable, (), _normalize_module_options(command)
    path = command[0] if Path(command[0]).is_file() else shutil.which(command[0])
    python = _read_python_shebang(path)
    if python is None or path is None:
        if accepts_non_python:
            return None, (), command
        raise UsageError(
            f"'{command[0]}' is not a Python program; perfctl marks layers in Python only",
            "Name the script (-- python train.py, -- torchrun train.py), or use perfctl nsys or "
            "ncu, which profile any program",
        )
    return python, (), (path, *command[1:])


def _normalize_module_options(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """``-mpackage`` as two words, and launchers called as modules by name."""
    if arguments[0].startswith("-m") and len(arguments[0]) > 2:
        arguments = ("-m", arguments[0][2:], *arguments[1:])
    launcher = LAUNCHERS.get(arguments[1]) if arguments[0] == "-m" and len(arguments) > 1 else None
    return (*launcher, *arguments[2:]) if launcher else arguments


def resolve_interpreter_path(python: str) -> str:
    """Return path of the interpreter ``python``; perfctl's own if it is in that folder, or if PATH
    has no ``python``.

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


def _read_python_shebang(path: str | None) -> str | None:
    """Return the Python interpreter in a script's first line; None when there is none."""
    if path is None:
        return None
    line = b""
    with suppress(OSError), Path(path).open("rb") as file:
        line = file.readline(4096)
    parts = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
    if parts and Path(parts[0]).name == "env":
        parts = [part for part in parts[1:] if not part.startswith("-")]
    return resolve_interpreter_path(parts[0]) if parts and is_python_interpreter(parts[0]) else None


def _find_script_name_and_file(
    arguments: tuple[str, ...], parameters: Iterable[str]
) -> tuple[str, Path | None]:
    """Return (name, file) of the script or module. Raises UsageError when there is none, or its
    file does not exist."""
    if arguments[0] not in LAUNCHER_NAMES:
        if arguments[0] != "-m":
            name = escape_non_utf8(Path(arguments[0]).name or Path(arguments[0]).absolute().name)
            return name, _require_script_file(arguments[0], parameters)
        if len(arguments) < 2:
            raise UsageError(
                "no module was given after -m",
                "For example: -- python -m package --batch-size {batch}",
            )
        return arguments[1], None
    for argument, following in pairwise((*arguments[1:], None)):
        if argument in ("-m", "--module") and following is not None:
            return following, None
        if argument is not None and argument.endswith(".py"):
            return escape_non_utf8(Path(argument).name), _require_script_file(argument, parameters)
    raise UsageError(
        f"'{shlex.join(arguments)}' does not name a script",
        f"For example: -- {arguments[0]} train.py {BATCH}",
    )


def _require_script_file(script_name: str, parameters: Iterable[str]) -> Path:
    for placeholder in (BATCH, *(f"{{{name}}}" for name in parameters)):
        if placeholder in script_name:
            raise UsageError(
                f"{script_name}: the script's name must not contain {placeholder}",
                f"Put {placeholder} in its arguments",
            )
    path = Path(script_name)
    if not path.exists():
        raise UsageError(f"script {script_name} does not exist", f"perfctl looked in {Path.cwd()}")
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UsageError(f"folder {script_name} has no __main__.py", "Name the script in it")
    return path.absolute()
