"""What every profiler command does with its request: check, run, store, tell."""

from __future__ import annotations

import platform
import shlex
import sys
from pathlib import Path

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.store_access import DEFAULT
from perfctl.orchestrator.cli.sweep_command import Asked
from perfctl.orchestrator.errors import Interrupted, PartlyDone, UsageError
from perfctl.orchestrator.launch import check_tools, printable
from perfctl.orchestrator.launch import sweep as sweeps
from perfctl.orchestrator.launch.profiler import Profiler
from perfctl.orchestrator.launch.sweep import Listener, RunResult, SweepRequest

COMMON = ("mode", "steps", "warmup", "precision")
OWN = ("--batch", "--device", "--record", "--annotate", "--window", "--trace")
"""Options of the workload that perfctl sets for each run."""


def run_sweep(profiler: Profiler, asked: Asked, *, rest: tuple[str, ...] = (), origin: str = "measured") -> None:
    """Check everything, then run. ``rest`` are options that only the workload knows. Raises PartlyDone when a batch size failed."""
    request = _request(profiler, asked, rest, origin)
    sweeps.check_batches(request.batches)
    if asked.dry_run:
        for _, command in sweeps.commands(request):
            console.result(printable(command))
        return
    check_tools(profiler)
    store = asked.store or request.out.parent / DEFAULT
    results = _run_and_store(request, store)
    _tell(request, store, results)


def _request(profiler: Profiler, asked: Asked, rest: tuple[str, ...], origin: str) -> SweepRequest:
    _check_not_own(rest)
    device = options.device(asked.device)
    arguments = (*_workload_arguments(asked, device), *rest)
    if origin == "measured":
        _check_workload(asked.workload, arguments)
    return SweepRequest(
        profiler=profiler,
        workload=asked.workload,
        workload_arguments=arguments,
        batches=options.batch_list(asked.batches),
        device=device,
        out=asked.out,
        command_line=shlex.join(["perfctl", *sys.argv[1:]]),
        host=platform.node(),
        origin=origin,
        timeout_s=asked.timeout,
        again=asked.again,
    )


def _workload_arguments(asked: Asked, device: str) -> tuple[str, ...]:
    words = ["--device", device]
    for name in COMMON:
        value = getattr(asked, name)
        if value is not None:
            words += [f"--{name}", str(value)]
    return tuple(words)


def _check_not_own(rest: tuple[str, ...]) -> None:
    """Raises UsageError for an option that would contradict what perfctl itself says to the workload."""
    for word in rest:
        name = word.partition("=")[0]
        if name in OWN:
            instead = "Batch sizes are given with --batches" if name == "--batch" else "perfctl sets it for each run"
            raise UsageError(f"{name} cannot be passed on to the workload", instead)


def _check_workload(name: str, arguments: tuple[str, ...]) -> None:
    """Ask the workload whether it knows these options, without loading torch."""
    from perfctl.workloads.spec import SpecError, parse_arguments

    try:
        parse_arguments(name, ["--batch", "1", *arguments])
    except SpecError as error:
        raise UsageError(str(error)) from error


def _run_and_store(request: SweepRequest, store: Path) -> list[RunResult]:
    """Each batch size goes into the store as soon as it is finished."""
    from perfctl.orchestrator.store import database
    from perfctl.orchestrator.store.write import SweepFacts

    facts = SweepFacts(request.name, "sweep", request.command_line, request.host)
    with database.writing(store) as connection, console.progress(len(request.batches)) as bar:

        def finished(result: RunResult) -> None:
            _store_result(connection, result, facts, store, request.again)
            bar.done(_line(result), ran=not result.skipped)

        listener = Listener(
            started=lambda batch, stage: bar.stage(f"batch {batch}: {stage}"), tick=bar.tick, finished=finished
        )
        try:
            return sweeps.run(request, listener)
        except Interrupted as stop:
            raise Interrupted(
                "stopped; the batch sizes that were whole are kept",
                stop.signal_number,
                "The same command goes on from here",
            ) from stop


def _store_result(connection: object, result: RunResult, facts: object, store: Path, again: bool) -> None:
    from perfctl.orchestrator.cli.intake import take_run

    written = take_run(connection, result.folder, facts, store=store, again=again and not result.skipped)  # type: ignore[arg-type]
    if not written.new and not result.skipped:
        console.note(f"batch {result.batch_size}: the same report is in the store already, as run {written.run_id}")


def _line(result: RunResult) -> str:
    if result.skipped:
        return f"batch {result.batch_size}: whole already, skipped (--again repeats it)"
    seconds = f" in {result.duration_ns / 1e9:.1f} s" if result.duration_ns is not None else ""
    return f"batch {result.batch_size}: {result.status}{seconds}" + (f": {result.reason}" if result.reason else "")


def _tell(request: SweepRequest, store: Path, results: list[RunResult]) -> None:
    """The summary table, where everything is, and what to type next."""
    from perfctl.orchestrator.report import terminal
    from perfctl.orchestrator.store import database, read

    with database.reading(store) as connection:
        number = next(row["id"] for row in read.sweeps(connection) if row["name"] == request.name)
        runs = read.load(connection, read.run_ids(connection, sweep=number, latest_of_each=True))
    wanted = [run for run in runs if run.batch_size in request.batches]
    for part in terminal.sweep_summary(wanted):
        console.show(part)
    console.result(f"Wrote {request.folder} and {store}")
    if request.profiler.name == "nsys":
        console.note(
            "nsys keeps the environment of the profiled process in its reports: perfctl scrub before you share them"
        )
    extra = "" if store == DEFAULT else f" --store {shlex.quote(str(store))}"
    console.result(f"Next: perfctl report{extra}")
    failed = [result for result in results if result.status != "ok"]
    if failed:
        sizes = ", ".join(str(result.batch_size) for result in failed)
        raise PartlyDone(
            f"{len(failed)} of {len(results)} batch sizes failed or are partial ({sizes}): {failed[0].reason}",
            f"Logs are in {failed[0].folder}",
        )
