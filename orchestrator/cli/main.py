"""The commands, in the order of use, and the one place where errors become exit codes.

0 done; 1 an error, said in one line; 2 the request makes no sense; 3 a comparison found something
worse; 4 some parts failed, or a report that was recognised gave no rows, and the rest was kept;
128 + signal when stopped (130 Ctrl-C, 143 TERM).

Completion in bash, zsh and fish uses typer's own scripts. While a word is completed, the shell
calls perfctl with the line so far in its environment.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TextIO

import typer

from perfctl.orchestrator.cli import commands, console
from perfctl.orchestrator.errors import (
    Interrupted,
    Lost,
    PartlyDone,
    PerfctlError,
    Regressed,
    StoreNote,
    UsageError,
)
from perfctl.version import __version__

if TYPE_CHECKING:
    from perfctl.orchestrator.commands.declare import Command as Declared
    from perfctl.orchestrator.commands.declare import Group

ASKED = "_PERFCTL_COMPLETE"
"""Set by the shell that asks what may follow."""
SHELLS = ("bash", "zsh", "fish")
COMPDEF = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"
# Newer releases of typer carry a click of their own, so its base error is found through a class
# that typer hands on.
_BAD_CALL: Any = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free disk space, then repeat the same command"),
    **dict.fromkeys(
        (errno.EROFS, errno.EACCES, errno.EPERM), "Check the permissions, or choose another path"
    ),
}
"""Number of an error of the system -> what to do."""


def typed_words() -> list[str] | None:
    """The words after ``perfctl`` on the line that a shell wants completed; None where
    none asks."""
    if ASKED not in os.environ:
        return None
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return line.split()[1:]


def prepare() -> None:
    """Make typer answer shells in its own way, which its scripts expect."""
    from typer._completion_classes import completion_init

    completion_init()


def _show(shell: str | None) -> None:
    if shell is None:
        return
    from typer._completion_shared import get_completion_script

    _check_shell(shell)
    script = get_completion_script(prog_name="perfctl", complete_var=ASKED, shell=shell)  # nosec B604
    if shell == "zsh":  # a ~/.zshrc need not have called what defines compdef
        script = script.replace("\ncompdef ", f"\n{COMPDEF}\ncompdef ")
    console.raw(script + "\n")
    raise typer.Exit


def _install(shell: str | None) -> None:
    if shell is None:
        return
    from typer._completion_shared import install

    _check_shell(shell)
    _, path = install(shell=shell, prog_name="perfctl", complete_var=ASKED)  # nosec B604
    console.result(f"Wrote {path}. Start a new {shell} to use completion")
    raise typer.Exit


def _check_shell(shell: str) -> None:
    """Raises UsageError for a shell whose scripts no test tries."""
    if shell not in SHELLS:
        raise UsageError(f"invalid shell '{shell}'", f"Choose {', '.join(SHELLS)}")


Show = Annotated[
    str | None,
    typer.Option(
        "--show-completion",
        callback=_show,
        is_eager=True,
        expose_value=False,
        metavar="SHELL",
        help="Print shell completion for bash, zsh or fish.",
    ),
]
Install = Annotated[
    str | None,
    typer.Option(
        "--install-completion",
        callback=_install,
        is_eager=True,
        expose_value=False,
        metavar="SHELL",
        help="Install shell completion for bash, zsh or fish.",
    ),
]


GROUPS = {
    "Measure": {
        "doctor": "Check hardware, profilers and permissions of this machine.",
        "nsys": "Measure kernel, copy and range times with Nsight Systems.",
        "ncu": "Measure executed FLOPs with Nsight Compute.",
        "torch": "Measure operators and layers with the PyTorch profiler.",
        "dlprof": "Measure with DLProf (last released in 2021).",
        "infer": "Measure inference over models and batch sizes.",
        "speedup": "Train on several devices and precisions, and compare.",
        "study": "Run a complete study and write a report.",
        "replay": "Replay a recorded sweep without a GPU or a profiler.",
        "prepare": "Sort a data set's archive into class folders.",
    },
    "Read": {
        "ingest": "Ingest profiler reports and perfctl run folders.",
        "runs": "List the runs in the results database.",
        "show": "Show one run: layers, kernels, memory, missing values.",
        "query": "Query the results database with SQL (read-only).",
        "export": "Write tables as CSV, Parquet, JSON or Excel.",
        "trace": "Write one step as a trace for Perfetto.",
        "scrub": "Copy a report without environments and secrets.",
    },
    "Understand": {
        "ledger": "Compare executed with estimated FLOPs and explain differences.",
        "report": "Write one self-contained HTML report.",
        "serve": "Serve the HTML reports of a folder to a browser.",
        "mcp": "Serve the results database to agents (Model Context Protocol).",
        "plot": "Write one chart of the report for a publication.",
        "compare": "Compare two runs, sweeps or databases.",
        "history": "Track metrics across runs or commits and detect changes.",
        "gate": "Fail CI when FLOPs, memory or time regress against a baseline.",
    },
    "Predict": {
        "estimate": "Estimate FLOPs, bytes and memory of a model.",
        "mfu": "Audit the MFU of a training run by every formula.",
        "predict": "Predict time, memory and cost of a training run.",
        "calculator": "Write an offline HTML calculator for training time and cost.",
        "bench": "Benchmark parameterized networks to train the predictor.",
    },
    "Cluster": {
        "slurm": "Run a sweep as a Slurm job array.",
        "image": "Build Apptainer (Singularity) images that contain perfctl.",
    },
}
"""Group of the list of commands -> command or group of commands -> its line."""
DECLARATIONS = {
    "nsys": "profile.NSYS",
    "ncu": "profile.NCU",
    "torch": "profile.TORCH",
    "dlprof": "profile.DLPROF",
    "study": "study.GROUP",
    "bench": "bench.GROUP",
    "slurm": "slurm.GROUP",
    "image": "image.GROUP",
}
"""Command -> module below ``commands`` and name of its declaration there, unless it is COMMAND in a
module of its own name."""
COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}


class _Commands(commands.CommandList):
    sections: ClassVar = GROUPS


def application(only: str | None = None) -> typer.Typer:
    """Return the command line. With ``only``, the first word that was typed, the modules of other
    commands are not loaded: those have a name alone, and not even that for options of perfctl."""
    app = typer.Typer(
        name="perfctl",
        cls=_Commands,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help=(
            "Compare the FLOPs that GPU kernels executed with your estimates, per layer and batch "
            "size."
        ),
        epilog=(
            "Start with 'perfctl doctor', then 'perfctl torch --batches 16,32,64' and 'perfctl "
            "report'."
        ),
    )
    app.callback()(_root)
    if only in ("--help", "--version"):
        return app
    for name, line in COMMANDS.items():
        if only in (None, name):
            commands.add_declared(app, name, line, declaration(name))
        else:
            app.command(name, help=line)(_not_loaded)
    return app


def declaration(name: str) -> Declared[Any, Any] | Group:
    """Return a declared command, or group of them, by its name."""
    module, _, attribute = DECLARATIONS.get(name, f"{name}.COMMAND").partition(".")
    commands_module = import_module(f"perfctl.orchestrator.commands.{module}")
    declared: Declared[Any, Any] | Group = getattr(commands_module, attribute)
    return declared


def _not_loaded() -> None:
    pass


def _version(wanted: bool) -> None:
    if wanted:
        console.result(f"perfctl {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    show_completion: Show = None,
    install_completion: Install = None,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the store says of its user's own changes is printed like any other note, each once a
    command; what had to be left out is printed as an error, and is what the block gets."""
    lost: list[str] = []
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, Lost):
                console.error(str(message))
                lost.append(str(message))
            elif issubclass(category, StoreNote):
                console.note(f"note: {message}")
            else:
                others(message, category, filename, lineno, file, line)

        warnings.simplefilter("default", StoreNote)
        warnings.simplefilter("always", Lost)
        warnings.showwarning = show
        yield lost


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. No exception leaves here."""
    with _warnings() as lost:
        code = _run(arguments)
    return 4 if lost and code == 0 else code


def _run(arguments: Sequence[str]) -> int:
    try:
        typed = typed_words()
        if typed is not None:
            prepare()
        app = application(next(iter(arguments if typed is None else typed), ""))
        outcome = app(list(arguments), standalone_mode=False, prog_name="perfctl")
        return outcome if isinstance(outcome, int) else 0
    except _BAD_CALL as error:
        return _bad_call(error)
    except (typer.Abort, KeyboardInterrupt):
        console.error("stopped")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        message = f"{error.filename or 'an output file'}: {error.strerror or error}"
        console.error(str(PerfctlError(message, REMEDIES.get(error.errno or 0))))
        return 1
    except _expected_errors() as error:
        console.error(str(error))
        return _exit_code(error)
    except Exception as error:
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, KeyboardInterrupt):
            # Python 3.11 wraps Ctrl-C that comes while an imported module makes a class
            console.error("stopped")
            return 130
        from perfctl.orchestrator.faults import said_of, short_of_memory

        name = f"perfctl {next(iter(arguments), '')}".strip()
        console.error(
            short_of_memory(name) if isinstance(error, MemoryError) else said_of(name, error)
        )
        return 1


def _bad_call(error: Any) -> int:
    """What typer says of a command line that makes no sense, as perfctl says everything: one line,
    with what to do."""
    if type(error).__name__ == "NoArgsIsHelpError":
        console.result(error.ctx.get_help())  # what was asked for, so neither an error nor a note
        return 0
    said = error.format_message()
    where = error.ctx.command_path if getattr(error, "ctx", None) is not None else "perfctl"
    console.error(
        str(UsageError(said[:1].lower() + said[1:], f"Run '{where} --help' for the valid options"))
    )
    return int(error.exit_code)


def _expected_errors() -> tuple[type[Exception], ...]:
    """Looked up when something went wrong, and not before: '--help' loads no parser."""
    from perfctl.records.errors import ReportError

    return PerfctlError, ReportError


def _exit_code(error: Exception) -> int:
    if isinstance(error, Interrupted):
        return 128 + error.signal_number
    if isinstance(error, UsageError):
        return 2
    if isinstance(error, Regressed):
        return 3
    return 4 if isinstance(error, PartlyDone) else 1
