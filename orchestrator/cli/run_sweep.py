"""What every profiler command does with its request: check, run, store, tell."""

from __future__ import annotations

import shlex
from pathlib import Path

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console
from perfctl.orchestrator.cli.here import NOWHERE, Here
from perfctl.orchestrator.cli.sweep_command import Asked
from perfctl.orchestrator.cli.sweep_request import check_ready, sweep_request
from perfctl.orchestrator.errors import Interrupted, PartlyDone
from perfctl.orchestrator.launch import printable
from perfctl.orchestrator.launch import sweep as sweeps
from perfctl.orchestrator.launch.profiler import Profiler
from perfctl.orchestrator.launch.sweep_records import Listener, RunResult, SweepRequest


def run_sweep(
    profiler: Profiler,
    asked: Asked,
    *,
    rest: tuple[str, ...] = (),
    command: tuple[str, ...] | None = None,
    origin: str = "measured",
    here: Here = NOWHERE,
) -> None:
    """Check everything, then run. Raises PartlyDone when a batch size failed.

    ``rest`` are options that only the workload knows, ``command`` is the program after ``--``, if there is one.
    """
    request = sweep_request(profiler, asked, rest, command, origin, here)
    if asked.dry_run:
        planned = list(sweeps.commands(request))
        if asked.as_json:
            console.as_json([{"batch_size": batch, "stage": one.stage, "argv": one.argv} for batch, one in planned])
            return
        for _, command_of_batch in planned:
            console.result(printable(command_of_batch))
        return
    request = check_ready(request)
    if request.alongside:
        _leave(request, as_json=asked.as_json)
        return
    store = asked.store or request.out.parent / DEFAULT
    results = _run_and_store(request, store)
    if asked.as_json:
        _tell_programs(request, store, results)
    else:
        _tell(request, store, results)


def _leave(request: SweepRequest, *, as_json: bool) -> None:
    """Run, and write to no store: others may be running other batch sizes of this sweep on other machines."""
    listener = Listener(
        started=lambda batch, stage: console.note(f"batch {batch}: {stage}"),
        finished=lambda result: console.note(_line(result, request.repeat)),
        stopped=lambda result: console.note(_line(result, request.repeat)),
    )
    results = sweeps.run(request, listener)
    if as_json:
        _tell_programs(request, None, results)
        return
    console.result(f"Wrote {request.folder}. Next: perfctl slurm gather {shlex.quote(str(request.folder))}")
    _raise_if_partly(results)


def _run_and_store(request: SweepRequest, store: Path) -> list[RunResult]:
    """Each batch size goes into the store as soon as it is finished."""
    from perfctl.orchestrator.store import database
    from perfctl.orchestrator.store.write import SweepFacts

    facts = SweepFacts(request.name, "sweep", request.command_line, request.host)
    with database.writing(store) as connection, console.progress(len(request.batches) * request.repeat) as bar:

        def finished(result: RunResult) -> None:
            _store_result(connection, result, facts, store, request.again)
            bar.done(_line(result, request.repeat), ran=not result.skipped)

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


def run_into(request: SweepRequest, store: Path) -> list[RunResult]:
    """Run it into ``store``, and tell no more than how far it is."""
    return _run_and_store(check_ready(request), store)


def _store_result(connection: object, result: RunResult, facts: object, store: Path, again: bool) -> None:
    from perfctl.orchestrator.actions.ingest_run import take_run

    written = take_run(connection, result.folder, facts, store=store, again=again and not result.skipped)  # type: ignore[arg-type]
    if not written.new and not result.skipped:
        console.note(f"batch {result.batch_size}: the same report is in the store already, as run {written.run_id}")


def _line(result: RunResult, repeats: int) -> str:
    batch = f"batch {result.batch_size}" + (f", repeat {result.repeat} of {repeats}" if repeats > 1 else "")
    if result.skipped:
        return f"{batch}: whole already, skipped (--again repeats it)"
    seconds = f" in {result.duration_ns / 1e9:.1f} s" if result.duration_ns is not None else ""
    return f"{batch}: {result.status}{seconds}" + (f": {result.reason}" if result.reason else "")


def _tell(request: SweepRequest, store: Path, results: list[RunResult]) -> None:
    """The summary table, where everything is, and what to type next."""
    from perfctl.orchestrator.report import terminal
    from perfctl.orchestrator.store import database, read

    with database.reading(store) as connection:
        number = next((row["id"] for row in read.sweeps(connection) if row["name"] == request.name), None)
        # None: all its reports are in the store already, as runs of another sweep
        numbers = [] if number is None else read.run_ids(connection, sweep=number, latest_of_each=True)
        runs = read.load(connection, numbers)
    asked = [run for run in runs if run.batch_size in request.batches]
    first = [run for run in asked if run.report.environment.get("rank", "0") == "0"]
    for part in terminal.sweep_summary(first):
        console.show(part)
    if len(asked) > len(first):
        console.note(f"runs of further ranks in the store, each for itself: {len(asked) - len(first)} (perfctl runs)")
    console.result(f"Wrote {request.folder} and {store}")
    if request.profiler.name == "nsys":
        console.note(
            "nsys keeps the environment of the profiled process in its reports: perfctl scrub before you share them"
        )
    extra = "" if store == DEFAULT else f" --store {shlex.quote(str(store))}"
    console.result(f"Next: perfctl report{extra}")
    _raise_if_partly(results)


def _tell_programs(request: SweepRequest, store: Path | None, results: list[RunResult]) -> None:
    """Each batch size and how it went; ``store`` is None where nothing was written to one."""
    console.as_json(for_programs(request, store, results))
    _raise_if_partly(results)


def for_programs(request: SweepRequest, store: Path | None, results: list[RunResult]) -> dict[str, object]:
    """A sweep and how each run of it went, as JSON has it; times in nanoseconds."""
    keys = ("batch_size", "status", "reason", "skipped", "duration_ns")
    runs = [{**{key: getattr(one, key) for key in keys}, "folder": str(one.folder)} for one in results]
    about = {"sweep": request.name, "folder": str(request.folder), "store": None if store is None else str(store)}
    return {**about, "runs": runs}


def _raise_if_partly(results: list[RunResult]) -> None:
    failed = [result for result in results if result.status != "ok"]
    if failed:
        sizes = ", ".join(str(result.batch_size) for result in failed)
        asked = len({result.batch_size for result in results})
        raise PartlyDone(
            f"{len(failed)} of {asked} batch sizes failed or are partial ({sizes}): {failed[0].reason}",
            f"Logs are in {failed[0].folder}",
        )
