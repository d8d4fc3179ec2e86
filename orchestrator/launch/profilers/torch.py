"""Run torch.profiler: layers, operations and kernels as seen by PyTorch. Needs no other tool."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from perfctl.orchestrator.launch.profilers import outcome
from perfctl.orchestrator.launch.profilers.base import (
    Command,
    ProcessOutcome,
    TimeWindow,
    describe_end_before_recording,
)
from perfctl.orchestrator.launch.profilers.outcome import ReportProblem, ToolProfiler
from perfctl.orchestrator.launch.sweep.folders import RunPaths, read_json_object
from perfctl.orchestrator.launch.sweep.request import SweepRequest
from perfctl.workloads.spec import LAUNCHERS, UNFINISHED, WATCH_VARIABLE


@dataclass(frozen=True)
class TorchProfiler(TimeWindow, ToolProfiler):
    """The PyTorch profiler: operators and layers on the CPU, kernels if there is a GPU."""

    name: ClassVar[str] = "torch"
    partial_note: ClassVar[str] = "The trace covers the run up to then"

    def build_commands(self, request: SweepRequest) -> tuple[Command, ...]:
        trace = self.get_report_path(request.paths)
        self.raise_if_window_without_program(request.program)
        if self.duration is not None:
            return (self._build_time_window_command(request, trace),)
        workload = request.build_workload_command(
            layer_marking="record_function", step_window_method="torch", trace_path=trace
        )
        return (Command(workload, "profile"),)

    def _build_time_window_command(self, request: SweepRequest, trace: Path) -> Command:
        """Return the program as it was typed, with variables from which each of its Python
        processes learns what to record."""
        program = request.program
        assert program is not None
        argv = program.fill_command(request.setting.parameters)
        for module, launcher in LAUNCHERS.items() if program.python else ():
            if argv[: len(launcher)] == launcher:
                argv = ("-m", module, *argv[len(launcher) :])
        options = (
            *request.format_annotator_options("record_function", "torch", trace),
            *("--steps", "1", "--after", str(self.delay or 0), "--for", str(self.duration)),
            *("--", "-m", request.workload),
        )
        paths = filter(None, (str(request.annotator_archive), os.environ.get("PYTHONPATH")))
        return Command(
            (*((program.python, *program.flags) if program.python else ()), *argv),
            "profile",
            {"PYTHONPATH": os.pathsep.join(paths), WATCH_VARIABLE: json.dumps(options)},
            is_recorded=partial(self._has_finished_recording, request.paths),
        )

    def _has_finished_recording(self, paths: RunPaths, elapsed_s: float) -> bool:
        """Return whether the window is over, and each process that recorded has its trace or has
        ended."""
        records = [
            read_json_object(path) or {} for path in paths.partial_folder.glob("workload*.json")
        ]
        return elapsed_s > (self.delay or 0) + (self.duration or 0) and all(
            record.get("reason") != UNFINISHED
            or not Path(f"/proc/{record.get('options', {}).get('process')}").exists()
            for record in records
        )

    def get_report_path(self, paths: RunPaths) -> Path:
        return paths.get_report_path(".pt.trace.json.gz")

    def find_report_problem(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> ReportProblem | None:
        trace = self.get_report_path(request.paths)
        if not trace.exists() and self.duration is not None:
            begin, (run, *_) = self.delay or 0, outcomes
            reason = describe_end_before_recording(begin)
            if run.duration_ns > begin * 1e9:
                reason = (
                    f"the program called no model from {begin} s to {begin + self.duration} s "
                    "after its start. Send requests in this time, or change `delay` and `duration`"
                )
            return ReportProblem(reason, is_of_tool=not run.exit_code)
        if not trace.exists():
            log = outcomes[0].stderr.name
            return ReportProblem(f"the program succeeded, but wrote no trace. See {log}")
        if outcome.is_older_than_run(trace, request.paths):
            return ReportProblem(f"{trace.name} is older than this run. Remove it and run again")
        damage = outcome.find_gzip_trace_fault(trace)
        remedy = "Check for a full disk and run again"
        return ReportProblem(f"{trace.name} {damage}. {remedy}") if damage else None


@dataclass(frozen=True, slots=True)
class NoProfiler(ToolProfiler):
    """Only the workload's record: steps, memory and shapes, but no kernels."""

    name: ClassVar[str] = "none"
    partial_note: ClassVar[str] = "The record covers the run up to then"

    def build_commands(self, request: SweepRequest) -> tuple[Command, ...]:
        return (
            Command(
                request.build_workload_command(layer_marking="none", step_window_method="none"),
                "run",
            ),
        )

    def get_report_path(self, paths: RunPaths) -> Path:
        return paths.workload_record

    def find_report_problem(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> ReportProblem | None:
        record = read_json_object(request.paths.workload_record) or {}
        if record.get("status") in ("ok", "partial"):
            return None
        return ReportProblem("the program succeeded, but recorded no step")
