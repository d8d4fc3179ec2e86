"""Run torch.profiler: layers, operations and kernels as seen by PyTorch. Needs no other tool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import outcome
from perfctl.orchestrator.launch.profilers.base import Command, Outcome, Tool, Verdict
from perfctl.orchestrator.launch.sweep.folders import RunPaths, read_json
from perfctl.orchestrator.launch.sweep.request import SweepRequest


@dataclass(frozen=True)
class TorchProfiler:
    """The PyTorch profiler: operators and layers on the CPU, kernels if there is a GPU."""

    name: ClassVar[str] = "torch"

    def missing(self) -> tuple[Tool, ...]:
        return tools.missing()

    def commands(self, request: SweepRequest) -> tuple[Command, ...]:
        trace = self.artifact(request.paths)
        workload = request.workload_command(annotate="record_function", window="torch", trace=trace)
        return (Command(workload, "profile"),)

    def artifact(self, paths: RunPaths) -> Path:
        return paths.report(".pt.trace.json.gz")

    def judge(self, request: SweepRequest, outcomes: tuple[Outcome, ...]) -> Verdict:
        problem = self.artifact_problem(request, outcomes)
        return outcome.verdict_of(
            request, outcomes[0], problem, "The trace covers the run up to then"
        )

    def artifact_problem(self, request: SweepRequest, outcomes: tuple[Outcome, ...]) -> str | None:
        """Why the trace cannot be read, with a remedy; None when it can."""
        trace = self.artifact(request.paths)
        if not trace.exists():
            return f"the program succeeded, but wrote no trace. See {outcomes[0].stderr.name}"
        if outcome.is_older_than_run(trace, request.paths):
            return f"{trace.name} is older than this run. Remove it and run again"
        wrong = outcome.gzip_problem(trace)
        return f"{trace.name} {wrong}. Check for a full disk and run again" if wrong else None


@dataclass(frozen=True, slots=True)
class NoProfiler:
    """Only the workload's record: steps, memory and shapes, but no kernels."""

    name: ClassVar[str] = "none"

    def missing(self) -> tuple[Tool, ...]:
        return tools.missing()

    def commands(self, request: SweepRequest) -> tuple[Command, ...]:
        return (Command(request.workload_command(annotate="none", window="none"), "run"),)

    def artifact(self, paths: RunPaths) -> Path:
        return paths.workload_record

    def judge(self, request: SweepRequest, outcomes: tuple[Outcome, ...]) -> Verdict:
        record = read_json(request.paths.workload_record) or {}
        problem = (
            None
            if record.get("status") in ("ok", "partial")
            else "the program succeeded, but recorded no step"
        )
        return outcome.verdict_of(
            request, outcomes[0], problem, "The record covers the run up to then"
        )
