"""Run a sweep: one process per setting, each in its own folder and independent of the others."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import devices
from perfctl.orchestrator.launch.machine.devices import Placement
from perfctl.orchestrator.launch.process import run as process_run
from perfctl.orchestrator.launch.profilers import outcome as evidence
from perfctl.orchestrator.launch.profilers.base import Command, Outcome, Verdict
from perfctl.orchestrator.launch.sweep import parallel
from perfctl.orchestrator.launch.sweep.folders import (
    Setting,
    attempts,
    is_whole,
    lock_sweep,
    read_json,
    replace_with_part,
    size,
    write_json,
)
from perfctl.orchestrator.launch.sweep.request import Listener, RunResult, SweepRequest
from perfctl.orchestrator.options import check_batches
from perfctl.workloads.spec import STOPPED_AFTER

PAUSE_S = (1.0, 3.0)
"""Shortest and longest wait, drawn at random so that two that collided do not collide again."""


def retry_start(
    command: Command, request: SweepRequest, start: Callable[[str], Outcome]
) -> Outcome:
    """Retry a profiler once if it reports a start-up failure. ``start`` is called with the name of
    the stage. The outcome is that of the last call. The run's log notes a retry. Raises Stopped
    when a signal arrives in between."""
    outcome = start(command.stage)
    # the program left a record
    began = not outcome.exit_code or request.paths.workload_record.exists()
    if command.retry_on is None or began or not evidence.says(outcome, command.retry_on):
        return outcome
    cleared = command.clear() if command.clear is not None else None
    with outcome.stderr.open("a", encoding="utf-8") as log:
        log.write("perfctl: the profiler could not start (see above); trying once more\n")
        log.write(f"perfctl: {cleared}\n" if cleared else "")
    with process_run.stop_signals() as signals:
        until = time.monotonic() + random.uniform(*PAUSE_S)  # noqa: S311  # nosec B311
        while time.monotonic() < until and not signals:
            time.sleep(0.1)
    if signals:
        message = f"stopped by {signal.Signals(signals[0]).name} before {command.stage}"
        raise process_run.Stopped(
            message, signals[0], "Repeat the same command to continue", outcome
        )
    return start(f"{command.stage}-again")


def commands(request: SweepRequest) -> Iterator[tuple[Setting, Command]]:
    """Every (setting, command) that the sweep would start, in order."""
    for _ in range(request.repeat):
        for setting in request.settings:
            for command in request.for_run(setting).commands():
                yield setting, command


def run(request: SweepRequest, listener: Listener) -> list[RunResult]:
    """Run every setting that is not complete yet. A failure is recorded, and the others
    still run.

    Repeats go through all settings in turn, so that slow drifts affect all alike; what failed is
    not repeated. Raises UsageError when another perfctl is running the same sweep or uses the same
    GPU, Interrupted after a signal.
    """
    if request.batches:
        check_batches(request.batches, "batches", are_distinct=True)
    results: list[RunResult] = []
    with ExitStack() as locks:
        locks.enter_context(devices.hold(request.reserved()))
        request.folder.mkdir(parents=True, exist_ok=True)
        if request.no_store:
            join(request)
        else:
            locks.enter_context(lock_sweep(request.folder))
            write_json(request.folder / "sweep.json", _sweep_record(request))
        for repeat in range(1, request.repeat + 1):
            failed = {result.setting for result in results if result.status != "ok"}
            settings = tuple(point for point in request.settings if point not in failed)
            if request.places and not request.no_store:
                results += _run_side_by_side(request, settings, repeat, listener)
            else:
                results += [_run_setting(request, point, repeat, listener) for point in settings]
    return results


def _run_side_by_side(
    request: SweepRequest, settings: tuple[Setting, ...], repeat: int, listener: Listener
) -> list[RunResult]:
    """One setting per place at a time; the listener is called from this thread only."""

    def work(setting: Setting, placement: Placement, post: parallel.Post) -> RunResult:
        posting = Listener(
            started=lambda setting, stage: post(
                partial(listener.started, setting, f"{stage} on {placement.label}")
            ),
            noted=lambda text: post(partial(listener.noted, text)),
            finished=lambda result: post(partial(listener.finished, result)),
            stopped=lambda result: post(partial(listener.stopped, result)),
        )
        return _run_setting(replace(request, places=(placement,)), setting, repeat, posting)

    return parallel.run(settings, request.places, work)


def join(request: SweepRequest) -> None:
    """Create the sweep's record, or join a sweep that has one. Raises UsageError when the script
    was edited since: the sweep would mix two programs."""
    record, path = _sweep_record(request), request.folder / "sweep.json"
    existing = read_json(path)
    if existing is None:
        request.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
    elif existing.get("script_sha256") != record["script_sha256"]:
        raise UsageError(
            f"{request.workload} was edited since {request.folder} was started",
            "Render the job scripts again: an edited script is a new sweep",
        )


def _run_setting(
    request: SweepRequest, setting: Setting, repeat: int, listener: Listener
) -> RunResult:
    """``repeat``: number of the run wanted, from 1; those before it exist already."""
    with lock_sweep(request.folder, setting) if request.no_store else nullcontext():
        complete = list(takewhile(is_whole, attempts(request.folder.absolute(), setting)))
        paths = request.for_run(setting, len(complete) + 1).paths
        if is_whole(paths.part):  # cut off after its last byte, before it was renamed
            replace_with_part(paths)
            complete.append(paths.folder)
        if len(complete) >= repeat and not request.again:
            folder = complete[-1 if request.repeat == 1 else repeat - 1]
            result = RunResult(setting, "ok", None, folder, skipped=True, repeat=repeat)
        else:
            result = _run_now(request.for_run(setting, len(complete) + 1), listener)
            result = replace(result, repeat=repeat)
            if setting == request.setting and repeat == 1:
                note_early_stop(result.folder, listener)
        listener.finished(result)
    return result


def note_early_stop(folder: Path, listener: Listener) -> None:
    """Tell the listener if the program of a run stopped after its measured steps."""
    record = read_json(folder / "workload.json") or {}
    steps = record.get("environment", {}).get(STOPPED_AFTER)
    if steps is not None:
        name = record["workload"]
        listener.noted(f"{name} stopped after {steps} steps; --to-end runs on")


def _run_now(request: SweepRequest, listener: Listener) -> RunResult:
    paths = request.paths
    shutil.rmtree(paths.part, ignore_errors=True)
    paths.scratch.mkdir(parents=True)
    commands = request.commands()
    for name, file in (item for command in commands for item in command.brings.items()):
        shutil.copyfile(file, paths.part / name)
    for note in filter(None, (command.note for command in commands)):
        listener.noted(f"{request.setting}: {note}")
    outcomes: list[Outcome] = []
    stop: process_run.Stopped | None = None
    for command in commands:
        if command.needs is not None and not command.needs.exists():
            break
        start = partial(_start, command, request, listener, len(outcomes))
        try:
            outcomes.append(retry_start(command, request, start))
        except process_run.Stopped as stopped:
            outcomes.append(stopped.outcome)
            stop = stop or stopped
            # a job, which cannot be continued, also exports what was cut off
            if not (request.no_store or evidence.has_all_steps(request)):
                break
    is_final = stop is None or request.no_store or evidence.has_all_steps(request)
    if not is_final:
        verdict = Verdict("partial", "interrupted before it was complete")
    else:
        verdict = _as_stopped(request.profiler.judge(request, tuple(outcomes)), stop)
    _write_record(request, commands, outcomes, verdict)
    shutil.rmtree(paths.scratch, ignore_errors=True)
    if is_final:
        replace_with_part(paths)
    spent = sum(outcome.duration_ns for outcome in outcomes)
    result = RunResult(
        request.setting, verdict.status, verdict.reason, paths.folder, duration_ns=spent
    )
    if stop is not None:
        listener.stopped(result)
        raise stop
    return result


def _as_stopped(verdict: Verdict, stop: process_run.Stopped | None) -> Verdict:
    """The verdict on a run that was stopped: ok with all steps, partial with a report, failed
    without."""
    if stop is None or verdict.status == "ok":
        return verdict
    reason = f"{stop.message} (time limit, or a canceled or preempted job)"
    if verdict.status == "failed":
        return Verdict("failed", f"{reason}, before there was a profiler report: {verdict.reason}")
    return Verdict("partial", f"{reason}: the profiler report covers the run up to then")


def _start(
    command: Command,
    request: SweepRequest,
    listener: Listener,
    number: int,
    stage: str,
) -> Outcome:
    """Start one process. The first writes stdout.log and stderr.log; later ones (exports) have
    their own logs."""
    listener.started(request.setting, stage)
    paths = request.paths
    stdout, stderr = paths.stdout, paths.stderr
    if number:
        stdout, stderr = (
            path.with_name(f"{command.stage}-{path.name}") for path in (stdout, stderr)
        )
    return process_run.run(
        command,
        cwd=Path.cwd(),
        stdout=stdout,
        stderr=stderr,
        timeout_s=request.timeout,
        scratch=paths.scratch,
        temporary=request.scratch,
        grace_s=request.grace,
        sampling=None if number else request.sampling(command),
        stall=request.stall_of(command),
    )


def _write_record(
    request: SweepRequest,
    commands: tuple[Command, ...],
    outcomes: list[Outcome],
    verdict: Verdict,
) -> None:
    artifact = request.profiler.artifact(request.paths)
    is_written = artifact.exists()
    first = outcomes[0] if outcomes else None
    write_json(
        request.paths.part / "run.json",
        {
            "perfctl_run": 1,
            "profiler": request.profiler.name,
            "origin": request.origin,
            "workload": request.workload,
            "workload_arguments": request.workload_arguments,
            "variant": request.variant,
            "profiler_options": request.profiler_options,
            "batch_size": request.setting.batch,
            "parameters": request.setting.parameters,
            "device": request.device,
            "status": verdict.status,
            "reason": verdict.reason,
            **{
                fact: getattr(first, fact, None)
                for fact in ("exit_code", "started_at", "duration_ns")
            },
            "artifact": artifact.name if is_written else None,
            "artifact_bytes": size(artifact) if is_written else None,
            "commands": [command.argv for command in commands],
            "environment": request.facts(commands),
        },
    )


def _sweep_record(request: SweepRequest) -> dict[str, Any]:
    return {
        "perfctl_sweep": 1,
        "name": request.name,
        "profiler": request.profiler.name,
        "command": request.command_line,
        "batches": request.batches,
        "parameters": [setting.parameters for setting in request.settings],
        "host": request.host,
        "script_sha256": request.program.identity()[-1] if request.program else None,
    }
