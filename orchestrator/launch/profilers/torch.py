"""Run torch.profiler: layers, operations and kernels as seen by PyTorch. Needs no other tool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perfctl.orchestrator.launch.profilers import outcome
from perfctl.orchestrator.launch.profilers.base import Command, ProcessOutcome
from perfctl.orchestrator.launch.profilers.outcome import ReportProblem, ToolProfiler
from perfctl.orchestrator.launch.sweep.folders import RunPaths, read_json_object
from perfctl.orchestrator.launch.sweep.request import SweepRequest


@dataclass(frozen=True)
class TorchProfiler(ToolProfiler):
    """The PyTorch profiler: operators and layers on the CPU, kernels if there is a GPU."""

    name: ClassVar[str] = "torch"
    partial_note: ClassVar[str] = "The trace covers the run up to then"

    def commands(self, request: SweepRequest) -> tuple[Command, ...]:
        trace = self.artifact(request.paths)
        workload = request.build_workload_command(
            annotate="record_function", window="torch", trace=trace
        )
        return (Command(workload, "profile"),)

    def artifact(self, paths: RunPaths) -> Path:
        return paths.report(".pt.trace.json.gz")

    def check_report(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> ReportProblem | None:
        trace = self.artifact(request.paths)
        if not trace.exists():
            log = outcomes[0].stderr.name
            return ReportProblem(f"the program succeeded, but wrote no trace. See {log}")
        if outcome.is_older_than_run(trace, request.paths):
            return ReportProblem(f"{trace.name} is older than this run. Remove it and run again")
        damage = outcome.check_gzip_trace(trace)
        remedy = "Check for a full disk and run again"
        return ReportProblem(f"{trace.name} {damage}. {remedy}") if damage else None


@dataclass(frozen=True, slots=True)
class NoProfiler(ToolProfiler):
    """Only the workload's record: steps, memory and shapes, but no kernels."""

    name: ClassVar[str] = "none"
    partial_note: ClassVar[str] = "The record covers the run up to then"

    def commands(self, request: SweepRequest) -> tuple[Command, ...]:
        return (Command(request.build_workload_command(annotate="none", window="none"), "run"),)

    def artifact(self, paths: RunPaths) -> Path:
        return paths.workload_record

    def check_report(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> ReportProblem | None:
        record = read_json_object(request.paths.workload_record) or {}
        if record.get("status") in ("ok", "partial"):
            return None
        return ReportProblem("the program succeeded, but recorded no step")
