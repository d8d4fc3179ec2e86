"""Run a sweep: one process per setting, each in its own folder and independent of the others."""

from __future__ import annotations

import math
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
from perfctl.orchestrator.launch.machine.devices import DevicePlacement
from perfctl.orchestrator.launch.process import run as process_run
from perfctl.orchestrator.launch.profilers import outcome as evidence
from perfctl.orchestrator.launch.profilers.base import Command, ProcessOutcome, RunStatus
from perfctl.orchestrator.launch.sweep import parallel
from perfctl.orchestrator.launch.sweep.folders import (
    SweepSetting,
    is_run_complete,
    list_run_folders,
    lock_sweep_or_setting,
    measure_size_bytes,
    read_json_object,
    rename_partial_run_folder,
    write_json_atomically,
)
from perfctl.orchestrator.launch.sweep.request import RunResult, SweepListener, SweepRequest
from perfctl.orchestrator.options import raise_if_invalid_batch_sizes
from perfctl.workloads.spec import STOPPED_AFTER

RUNS_ON_S = 5.0
"""Seconds after the recorded steps until perfctl says that the program runs on."""
PAUSE_S = (1.0, 3.0)
"""Shortest and longest wait, drawn at random so that two that collided do not collide again."""


def start_and_retry_failed_startup(
    command: Command, request: SweepRequest, start: Callable[[str], ProcessOutcome]
) -> ProcessOutcome:
    """Retry a profiler once if it reports a start-up failure. ``start`` is called with the name of
    the stage. The outcome is that of the last call. The run's log notes a retry. Raises
    StoppedBySignal when a signal arrives in between."""
    outcome = start(command.stage)
    # the program left a record
    began = not outcome.exit_code or request.paths.workload_record.exists()
    if (
        command.retry_on is None
        or began
        or not evidence.has_matching_output_line(outcome, command.retry_on)
    ):
        return outcome
    cleared = command.clear() if command.clear is not None else None
    with outcome.stderr.open("a", encoding="utf-8") as log:
        log.write("perfctl: the profiler could not start (see above); trying once more\n")
        log.write(f"perfctl: {cleared}\n" if cleared else "")
    with process_run.collect_stop_signals() as signals:
        until = time.monotonic() + random.uniform(*PAUSE_S)  # noqa: S311  # nosec B311
        while time.monotonic() < until and not signals:
            time.sleep(0.1)
    if signals:
        message = f"stopped by {signal.Signals(signals[0]).name} before {command.stage}"
        raise process_run.StoppedBySignal(
            message, signals[0], "Repeat the same command to continue", outcome
        )
    return start(f"{command.stage}-again")


def list_sweep_commands(request: SweepRequest) -> Iterator[tuple[SweepSetting, Command]]:
    """Every (setting, command) that the sweep would start, in order."""
    for _ in range(request.repeat):
        for setting in request.settings:
            for command in request.make_single_run_request(setting).build_run_commands():
                yield setting, command


def run_incomplete_settings(request: SweepRequest, listener: SweepListener) -> list[RunResult]:
    """Run every setting that is not complete yet. A failure is recorded, and the others
    still run.

    Repeats go through all settings in turn, so that slow drifts affect all alike; what failed is
    not repeated. Raises UsageError when another perfctl is running the same sweep or uses the same
    GPU, Interrupted after a signal.
    """
    if request.batches:
        raise_if_invalid_batch_sizes(request.batches, "batches", requires_distinct=True)
    results: list[RunResult] = []
    with ExitStack() as locks:
        locks.enter_context(devices.lock_placements(request.list_placements_to_lock()))
        request.folder.mkdir(parents=True, exist_ok=True)
        if request.no_store:
            create_or_verify_sweep_record(request)
        else:
            locks.enter_context(lock_sweep_or_setting(request.folder))
            write_json_atomically(request.folder / "sweep.json", _build_sweep_record(request))
        for repeat in range(1, request.repeat + 1):
            failed = {result.setting for result in results if result.status != "ok"}
            settings = tuple(point for point in request.settings if point not in failed)
            if request.places and not request.no_store:
                results += _run_settings_in_parallel(request, settings, repeat, listener)
            else:
                results += [
                    _run_setting_if_needed(request, point, repeat, listener) for point in settings
                ]
    return results


def _run_settings_in_parallel(
    request: SweepRequest,
    settings: tuple[SweepSetting, ...],
    repeat_number: int,
    listener: SweepListener,
) -> list[RunResult]:
    """One setting per place at a time; the listener is called from this thread only."""

    def run_on_placement(
        setting: SweepSetting, placement: DevicePlacement, post: parallel.Post
    ) -> RunResult:
        posting = SweepListener(
            started=lambda setting, stage: post(
                partial(listener.started, setting, f"{stage} on {placement.label}")
            ),
            noted=lambda text: post(partial(listener.noted, text)),
            finished=lambda result: post(partial(listener.finished, result)),
            stopped=lambda result: post(partial(listener.stopped, result)),
        )
        return _run_setting_if_needed(
            replace(request, places=(placement,)), setting, repeat_number, posting
        )

    return parallel.run_items_on_placements(settings, request.places, run_on_placement)


def create_or_verify_sweep_record(request: SweepRequest) -> None:
    """Create the sweep's record, or join a sweep that has one. Raises UsageError when the script
    was edited since: the sweep would mix two programs."""
    record, path = _build_sweep_record(request), request.folder / "sweep.json"
    existing = read_json_object(path)
    if existing is None:
        request.folder.mkdir(parents=True, exist_ok=True)
        write_json_atomically(path, record)
    elif existing.get("script_sha256") != record["script_sha256"]:
        raise UsageError(
            f"{request.workload} was edited since {request.folder} was started",
            "Render the job scripts again: an edited script is a new sweep",
        )


def _run_setting_if_needed(
    request: SweepRequest, setting: SweepSetting, repeat_number: int, listener: SweepListener
) -> RunResult:
    """``repeat_number``: number of the run wanted, from 1; those before it exist already."""
    with lock_sweep_or_setting(request.folder, setting) if request.no_store else nullcontext():
        complete = list(
            takewhile(is_run_complete, list_run_folders(request.folder.absolute(), setting))
        )
        paths = request.make_single_run_request(setting, len(complete) + 1).paths
        if is_run_complete(paths.partial_folder):  # killed between its last byte and its new name
            rename_partial_run_folder(paths)
            complete.append(paths.folder)
        if len(complete) >= repeat_number and not request.again:
            folder = complete[-1 if request.repeat == 1 else repeat_number - 1]
            result = RunResult(setting, "ok", None, folder, skipped=True, repeat=repeat_number)
        else:
            result = _run_and_record(
                request.make_single_run_request(setting, len(complete) + 1), listener
            )
            result = replace(result, repeat=repeat_number)
            record = read_json_object(result.folder / "workload.json") or {}
            steps = record.get("environment", {}).get(STOPPED_AFTER)
            if steps is not None and setting == request.setting and repeat_number == 1:
                listener.noted(
                    f"{record['workload']} stopped after {steps} steps; --to-end runs on"
                )
        listener.finished(result)
    return result


def _run_and_record(request: SweepRequest, listener: SweepListener) -> RunResult:
    paths = request.paths
    shutil.rmtree(paths.partial_folder, ignore_errors=True)
    paths.scratch.mkdir(parents=True)
    commands = request.build_run_commands()
    for name, file in (item for command in commands for item in command.brings.items()):
        shutil.copyfile(file, paths.partial_folder / name)
    for note in filter(None, (command.note for command in commands)):
        listener.noted(f"{request.setting}: {note}")
    outcomes: list[ProcessOutcome] = []
    stop: process_run.StoppedBySignal | None = None
    for command in commands:
        if command.needs is not None and not command.needs.exists():
            break
        start = partial(_run_command_with_logs, command, request, listener, len(outcomes))
        try:
            outcomes.append(start_and_retry_failed_startup(command, request, start))
        except process_run.StoppedBySignal as stopped:
            outcomes.append(stopped.outcome)
            stop = stop or stopped
            # a job, which cannot be continued, also exports what was cut off
            if not (request.no_store or evidence.has_recorded_all_requested_steps(request)):
                break
    is_final = (
        stop is None or request.no_store or evidence.has_recorded_all_requested_steps(request)
    )
    if not is_final:
        verdict = RunStatus("partial", "interrupted before it was complete")
    else:
        verdict = _adjust_status_for_stop(
            request.profiler.determine_run_status(request, tuple(outcomes)), stop
        )
    _write_run_record(request, commands, outcomes, verdict)
    shutil.rmtree(paths.scratch, ignore_errors=True)
    if is_final:
        rename_partial_run_folder(paths)
    spent = sum(outcome.duration_ns for outcome in outcomes)
    result = RunResult(
        request.setting, verdict.status, verdict.reason, paths.folder, duration_ns=spent
    )
    if stop is not None:
        listener.stopped(result)
        raise stop
    return result


def _adjust_status_for_stop(
    verdict: RunStatus, stop: process_run.StoppedBySignal | None
) -> RunStatus:
    """Return the verdict on a run that was stopped: ok with all steps, partial with a report,
    failed without."""
    if stop is None or verdict.status == "ok":
        return verdict
    reason = f"{stop.message} (time limit, or a canceled or preempted job)"
    if verdict.status == "failed":
        return RunStatus(
            "failed", f"{reason}, before there was a profiler report: {verdict.reason}"
        )
    return RunStatus("partial", f"{reason}: the profiler report covers the run up to then")


def _run_command_with_logs(
    command: Command,
    request: SweepRequest,
    listener: SweepListener,
    command_index: int,
    stage: str,
) -> ProcessOutcome:
    """Start one process. The first writes stdout.log and stderr.log; later ones (exports) have
    their own logs."""
    listener.started(request.setting, stage)
    paths = request.paths
    stdout, stderr = paths.stdout, paths.stderr
    is_noted = bool(
        command_index
        or request.program is None
        or request.stops_after_measured_steps
        or request.profiler_options.get("duration")
        or request.profiler_options.get("whole")
    )

    recorded_s = math.inf

    def note_recorded_steps(seconds: float) -> bool:
        nonlocal is_noted, recorded_s
        if (
            not is_noted
            and recorded_s > seconds
            and evidence.has_recorded_all_requested_steps(request)
        ):
            recorded_s = seconds
        if not is_noted and seconds >= recorded_s + RUNS_ON_S:
            is_noted = True
            remedy = "" if request.is_rank_launcher else "; --no-to-end stops it"
            listener.noted(
                f"{request.setting}: all steps are recorded, and {request.workload} runs to its "
                f"end{remedy}"
            )
        return command.is_recorded(seconds)

    if command_index:
        stdout, stderr = (
            path.with_name(f"{command.stage}-{path.name}") for path in (stdout, stderr)
        )
    return process_run.run_command(
        replace(command, is_recorded=note_recorded_steps),
        cwd=Path.cwd(),
        stdout=stdout,
        stderr=stderr,
        timeout_s=request.timeout,
        scratch=paths.scratch,
        tmpdir_parent=request.scratch,
        grace_s=request.grace,
        sampling=None if command_index else request.make_sampling_settings(command),
        stall_rule=request.make_stall_rule(command),
    )


def _write_run_record(
    request: SweepRequest,
    commands: tuple[Command, ...],
    outcomes: list[ProcessOutcome],
    verdict: RunStatus,
) -> None:
    artifact = request.profiler.get_report_path(request.paths)
    is_written = artifact.exists()
    first = outcomes[0] if outcomes else None
    write_json_atomically(
        request.paths.partial_folder / "run.json",
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
            "artifact_bytes": measure_size_bytes(artifact) if is_written else None,
            "commands": [command.argv for command in commands],
            "environment": request.collect_run_record_facts(commands),
        },
    )


def _build_sweep_record(request: SweepRequest) -> dict[str, Any]:
    return {
        "perfctl_sweep": 1,
        "name": request.name,
        "profiler": request.profiler.name,
        "command": request.command_line,
        "batches": request.batches,
        "parameters": [setting.parameters for setting in request.settings],
        "host": request.host,
        "script_sha256": request.program.list_identity_values()[-1] if request.program else None,
    }
