"""The commands, in the order of use, and the one place where errors become exit codes.

An error names a field in backquotes; ``console.error`` prints the option of the command instead (``flags``).

0 done; 1 an error, said in one line; 2 the request makes no sense; 3 a comparison found something worse;
4 some parts failed and the rest was kept;
128 + signal when stopped (130 Ctrl-C, 143 TERM).
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer

from perfctl import __version__
from perfctl.orchestrator.cli import completion, console, flags, options
from perfctl.orchestrator.cli.cluster.image import image
from perfctl.orchestrator.cli.estimate import calculator, estimate, predict, prices
from perfctl.orchestrator.cli.measure import doctor, infer, prepare, replay, speedup
from perfctl.orchestrator.cli.measure.bench import bench
from perfctl.orchestrator.cli.measure.profilers import SWEEPS, SweepCommand, sweep_command
from perfctl.orchestrator.cli.read import compare, export, ingest, lists, plot, report, scrub, serve, tensorboard
from perfctl.orchestrator.cli.read import trace as read_trace
from perfctl.orchestrator.errors import Interrupted, PartlyDone, PerfctlError, Regressed, StoreNote, UsageError

# Newer releases of typer carry a click of their own, so its base error is found through a class that typer hands on.
_BAD_CALL: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Make room on the disk, then give the same command again")
_REMEDIES |= dict.fromkeys(
    (errno.EROFS, errno.EACCES, errno.EPERM), "Check who may read and write there, or name another place"
)
COMMANDS: dict[str, Callable[..., None]] = {
    "prepare": prepare.prepare,
    "replay": replay.replay,
    "ingest": ingest.ingest,
    "scrub": scrub.scrub,
    "runs": lists.runs,
    "show": lists.show,
    "ledger": lists.ledger,
    "report": report.report,
    "plot": plot.plot,
    "trace": read_trace.trace,
    "export": export.export,
    "query": lists.query,
    "serve": serve.serve,
    "tensorboard": tensorboard.tensorboard,
    "compare": compare.compare,
    "estimate": estimate.estimate,
    "predict": predict.predict,
    "prices": prices.prices,
    "calculator": calculator.calculator,
    "doctor": doctor.doctor,
}
SWEEPS_OF_THEIR_OWN: dict[str, Callable[..., None]] = {"infer": infer.infer, "speedup": speedup.speedup}


def application(only: str | None = None) -> typer.Typer:
    """The command line. With ``only``, other commands have a name and help, but no options: working those out takes long."""
    app = typer.Typer(
        name="perfctl",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Compare the FLOPs that GPU kernels executed with your estimates, per layer and batch size.",
        epilog="Start with 'perfctl doctor', then 'perfctl torch --batches 16,32,64' and 'perfctl report'.",
    )
    app.callback()(_root)
    for name, made_from in {**SWEEPS, **SWEEPS_OF_THEIR_OWN, **COMMANDS}.items():
        if only not in (None, name):
            app.command(name)(_only_named(made_from))
        elif name in SWEEPS:
            app.command(name, cls=SweepCommand, context_settings=options.SWEEP)(sweep_command(SWEEPS[name]))
        elif name in SWEEPS_OF_THEIR_OWN:
            app.command(name, cls=SweepCommand, context_settings=options.SWEEP)(made_from)
        else:
            app.command(name)(made_from)
    if only in (None, "slurm"):
        from perfctl.orchestrator.cli.cluster.slurm import slurm

        app.add_typer(slurm)
    else:
        app.command("slurm", help=options.SLURM_HELP)(_only_named(_root))
    app.add_typer(bench)
    app.add_typer(image)
    return app


def _only_named(command: Callable[..., Any]) -> Callable[[], None]:
    """What a list of commands shows of one that is not called."""

    def nothing() -> None:
        pass

    nothing.__doc__ = command.__doc__
    return nothing


def _version(wanted: bool) -> None:
    if wanted:
        console.result(f"perfctl {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    show_completion: completion.Show = None,
    install_completion: completion.Install = None,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


@contextmanager
def _store_notes() -> Iterator[None]:
    """What the store says of its user's own changes is printed like any other note, each once a command."""
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
            if issubclass(category, StoreNote):
                console.note(f"note: {message}")
            else:
                others(message, category, filename, lineno, file, line)

        warnings.simplefilter("default", StoreNote)
        warnings.showwarning = show
        yield


@_store_notes()
def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Nothing but a bug in perfctl leaves here as an exception."""
    try:
        typed = completion.typed()
        if typed is not None:
            completion.prepare()
        app = application(next(iter(arguments if typed is None else typed), ""))
        flags.remember(app, arguments)
        outcome = app(list(arguments), standalone_mode=False, prog_name="perfctl")
        return outcome if isinstance(outcome, int) else 0
    except _BAD_CALL as error:
        return _bad_call(error)
    except (typer.Abort, KeyboardInterrupt):
        console.error("stopped")
        return 130
    except Interrupted as stop:
        console.error(str(stop))
        return 128 + stop.signal_number
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        said = f"{error.filename or 'a file that was being written'}: {error.strerror or error}"
        console.error(f"{said}. {remedy}" if (remedy := _REMEDIES.get(error.errno or 0)) else said)
        return 1
    except _expected_errors() as error:
        console.error(str(error))
        return _exit_code(error)


def _bad_call(error: Any) -> int:
    """What typer says of a command line that makes no sense, as perfctl says everything: one line, with what to do."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # the whole help
        return int(error.exit_code)
    said = error.format_message()
    where = error.ctx.command_path if getattr(error, "ctx", None) is not None else "perfctl"
    console.error(str(UsageError(said[:1].lower() + said[1:], f"'{where} --help' lists what there is")))
    return int(error.exit_code)


def _expected_errors() -> tuple[type[Exception], ...]:
    """Looked up when something went wrong, and not before: '--help' loads no parser."""
    from perfctl.records.errors import ReportError

    return PerfctlError, ReportError


def _exit_code(error: Exception) -> int:
    if isinstance(error, UsageError):
        return 2
    if isinstance(error, Regressed):
        return 3
    return 4 if isinstance(error, PartlyDone) else 1
