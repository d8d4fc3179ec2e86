"""Run without a profiler: the workload times itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.launch import evidence, tools
from perfctl.orchestrator.launch.paths import RunPaths
from perfctl.orchestrator.launch.profiler import Command, Outcome, RunRequest, Tool, Verdict


@dataclass(frozen=True, slots=True)
class NoProfiler:
    """Only the workload's record: steps, memory and shapes, but no kernels."""

    @property
    def name(self) -> str:
        return "none"

    def missing(self) -> tuple[Tool, ...]:
        return tools.missing_torch()

    def commands(self, request: RunRequest) -> tuple[Command, ...]:
        return (Command(request.workload_command(annotate="none", window="none"), "run"),)

    def artifact(self, paths: RunPaths) -> Path:
        return paths.workload_record

    def judge(self, request: RunRequest, outcomes: tuple[Outcome, ...]) -> Verdict:
        program = evidence.program_failure(request, outcomes[0])
        status = evidence.record_status(request.paths)
        problem = None if status in ("ok", "partial") else "the program succeeded, but recorded no step"
        return evidence.verdict_of(program, problem, "The record covers the run up to then")
