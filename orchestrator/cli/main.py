"""The commands, in the order of use, and the one place where errors become exit codes.

0 done; 1 an error, said in one line; 2 the request makes no sense; 3 a comparison found something
worse; 4 some parts failed, or a report that was recognised gave no rows, and the rest was kept;
128 + signal when stopped (130 Ctrl-C, 143 TERM).

While a word is completed, the shell calls perfctl with the line so far in its environment.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar

import typer

from perfctl.orchestrator.cli import commands, console
from perfctl.orchestrator.errors import (
    Interrupted,
    LostWarning,
    PartlyDone,
    PerfctlError,
    Regressed,
    StoreNote,
    UsageError,
)
from perfctl.records.errors import ReportError
from perfctl.version import __version__

COMPLETING = "_PERFCTL_COMPLETE"
"""Set by the shell that asks what may follow."""
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
        "open": "Show what a profiler report says: findings and an HTML report.",
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
        "exercise": "Write exercise sheets for a class, and mark them.",
        "bench": "Benchmark parameterized networks to train the predictor.",
    },
    "Cluster": {
        "slurm": "Run a sweep as a Slurm job array.",
        "image": "Build Apptainer (Singularity) images that contain perfctl.",
    },
}
"""Group of the list of commands -> command or group of commands -> its line."""
COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}


class _RootCommandGroup(commands.CommandGroup):
    sections: ClassVar = GROUPS


def build_application(loaded_command: str | None = None) -> typer.Typer:
    """Return the command line. With ``loaded_command``, the first word that was typed, the modules
    of other commands are not loaded: those have a name alone, and not even that for options of
    perfctl."""
    app = typer.Typer(
        name="perfctl",
        cls=_RootCommandGroup,
        no_args_is_help=True,
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
    app.callback()(_accept_root_options)
    if loaded_command in ("--help", "--version"):
        return app
    from perfctl.orchestrator.commands.declare import load_command_or_group

    for name, line in COMMANDS.items():
        if loaded_command in (None, name):
            commands.register_declared_command(app, name, line, load_command_or_group(name))
        else:
            app.command(name, help=line)(lambda: None)
    return app


def read_arguments_or_completion_line(arguments: Sequence[str]) -> Sequence[str]:
    """Return the words after perfctl: of the line that a shell wants completed, if one asks."""
    if COMPLETING not in os.environ:
        return arguments
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return line.split()[1:]


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        console.print_result_line(f"perfctl {__version__}")
        raise typer.Exit


def _accept_root_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. A letter that the output's encoding lacks is printed as JSON
    escapes it."""
    codecs.register_error("perfctl", _escape_unencodable_letters)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="perfctl")
    sys.exit(run_command_line(sys.argv[1:] if arguments is None else arguments))


def _escape_unencodable_letters(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


@contextmanager
def _print_warnings_and_collect_losses() -> Iterator[list[str]]:
    """Print notes about the database, each once per command, and as errors what had to be omitted;
    yield the list of the latter."""
    lost: list[str] = []
    with warnings.catch_warnings():
        show_other = warnings.showwarning

        def print_warning(message: Warning | str, category: type[Warning], *location: Any) -> None:
            if issubclass(category, LostWarning):
                console.print_error(str(message))
                lost.append(str(message))
            elif issubclass(category, StoreNote):
                console.print_note(f"note: {message}")
            else:
                show_other(message, category, *location)

        warnings.simplefilter("default", StoreNote)
        warnings.simplefilter("always", LostWarning)
        warnings.showwarning = print_warning  # type: ignore[assignment]
        yield lost


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. No exception leaves here."""
    with _print_warnings_and_collect_losses() as lost:
        code = _run_catching_errors(arguments)
    return 4 if lost and code == 0 else code


def _run_catching_errors(arguments: Sequence[str]) -> int:
    try:
        app = build_application(next(iter(read_arguments_or_completion_line(arguments)), ""))
        outcome = app(list(arguments), standalone_mode=False, prog_name="perfctl")
        if outcome == 130:  # newer releases of typer turn Ctrl-C into this exit code
            raise KeyboardInterrupt
        return outcome if isinstance(outcome, int) else 0
    except _BAD_CALL as error:
        return _print_usage_error(error)
    except (typer.Abort, KeyboardInterrupt):
        console.print_error("stopped")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        is_folder_gone = error.errno == errno.ENOENT
        unnamed = "the current folder" if is_folder_gone else "an output file"
        message = f"{error.filename or unnamed}: {error.strerror or error}"
        console.print_error(str(PerfctlError(message, REMEDIES.get(error.errno or 0))))
        return 1
    except (PerfctlError, ReportError) as error:
        console.print_error(str(error))
        return _choose_exit_code(error)
    except Exception as error:
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, KeyboardInterrupt):
            # Python 3.11 wraps Ctrl-C that comes while an imported module makes a class
            console.print_error("stopped")
            return 130
        from perfctl.orchestrator.faults import describe_and_save_exception

        console.print_error(
            describe_and_save_exception(f"perfctl {next(iter(arguments), '')}".strip(), error)
        )
        return 1


def _print_usage_error(error: Any) -> int:
    """Print what typer reports of a command line that makes no sense in one line, with what to
    do; return the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        console.print_result_line(
            error.ctx.get_help()
        )  # what was asked for, so neither an error nor a note
        return 0
    message, context = error.format_message(), getattr(error, "ctx", None)
    command = "perfctl" if context is None else context.command_path
    remedy = f"Run '{command} --help' for the valid options"
    console.print_error(str(UsageError(message[:1].lower() + message[1:], remedy)))
    return int(error.exit_code)


def _choose_exit_code(error: Exception) -> int:
    if isinstance(error, Interrupted):
        return 128 + error.signal_number
    if isinstance(error, UsageError):
        return 2
    if isinstance(error, Regressed):
        return 3
    return 4 if isinstance(error, PartlyDone) else 1
