"""No profiler: the workload alone, timed by its own clock. What it costs without anybody watching."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.launch import evidence, tools
from perfctl.orchestrator.launch.paths import RunPaths
from perfctl.orchestrator.launch.profiler import Command, Outcome, RunRequest, Tool, Verdict


@dataclass(frozen=True, slots=True)
class Plain:
    """The workload's own record is all there is: steps, memory, shapes, and no kernel."""

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
        nothing = None if status in ("ok", "partial") else "the program ended well, but left no record of a step"
        return evidence.weigh(program, nothing, "The record holds what ran until then")
