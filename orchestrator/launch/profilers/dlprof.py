"""Run DLProf, which writes tables of layers, kernels and iterations. Last release: 1.8.0
(December 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.profilers import base, outcome
from perfctl.orchestrator.launch.profilers.base import Command, ProcessOutcome, RequiredTool
from perfctl.orchestrator.launch.profilers.outcome import ReportProblem, ToolProfiler
from perfctl.orchestrator.launch.sweep.folders import RunPaths
from perfctl.orchestrator.launch.sweep.request import SweepRequest
from perfctl.orchestrator.options import Option

TOOL = RequiredTool(
    "dlprof",
    "DLProf writes the tables",
    "it can no longer be installed; NVIDIA's PyTorch containers up to 22.12 contain it",
    "perfctl nsys records the same kernels; perfctl ingest reads existing DLProf reports",
)
MODES = ("simple", "pytorch")
REPORTS = (
    "summary",
    "detail",
    "iteration",
    "kernel",
    "op_type",
    "group_op",
    "tensor_core",
    "expert_systems",
)

DEFAULT_REPORTS = {
    "simple": ("summary", "iteration", "kernel"),
    "pytorch": ("summary", "detail", "iteration", "kernel", "op_type"),
}


RESERVED = {
    "perfctl sets the names of the tables and reads them": (
        *("--output_path", "--out_base_name", "--force", "-f"),
    ),
    "perfctl reads CSV and chooses the tables": ("--formats", "--reports"),
    "perfctl has an option for it": ("--mode", "-m"),
    "perfctl sets it": ("--nsys_opts",),
    "it prints information and measures nothing": ("--help", "-h", "--version"),
}
"""Reason -> options of dlprof that ``extra`` cannot have."""


@dataclass(frozen=True)
class DLProf(ToolProfiler):
    """DLProf: utilization, tensor core use, time by operation."""

    name: ClassVar[str] = "dlprof"
    tool: ClassVar[RequiredTool] = TOOL
    partial_note: ClassVar[str] = "The tables cover the run up to then"
    dlprof_mode: Annotated[
        str,
        Option(
            "simple (kernels) or pytorch (your script must enable DLProf's NVTX plugin).",
            "Profiler",
            metavar="MODE",
        ),
    ] = "simple"
    reports: tuple[str, ...] | None = None
    """None for DEFAULT_REPORTS of the mode."""
    iter_start: int | None = None
    """First iteration to analyse; None for DLProf's default."""
    iter_stop: int | None = None
    nsys_opts: str = "--trace=cuda,nvtx,cudnn,cublas --sample=none --cpuctxsw=none"
    """Options of the nsys that dlprof starts."""
    extra: base.ToolArgs = ()

    def __post_init__(self) -> None:
        if self.dlprof_mode not in MODES:
            raise UsageError(f"`dlprof_mode` must be {' or '.join(MODES)}, got {self.dlprof_mode}")
        if unknown := [report for report in self.reports or () if report not in REPORTS]:
            raise UsageError(
                f"DLProf has no report {', '.join(unknown)}",
                f"Choose {', '.join(REPORTS)}",
            )
        base.reject_reserved_options("dlprof", self.extra, RESERVED)

    def build_commands(self, request: SweepRequest) -> tuple[Command, ...]:
        """Raises UsageError on a CPU, which DLProf does not support."""
        if request.device != "cuda":
            raise UsageError(
                "DLProf needs a GPU", "Set `device` to cuda, or use perfctl torch on a CPU"
            )
        argv = (
            "dlprof",
            f"--mode={self.dlprof_mode}",
            f"--reports={','.join(self.reports or DEFAULT_REPORTS[self.dlprof_mode])}",
            "--formats=csv",
            *(() if self.iter_start is None else (f"--iter_start={self.iter_start}",)),
            *(() if self.iter_stop is None else (f"--iter_stop={self.iter_stop}",)),
            f"--output_path={self.get_report_path(request.paths)}",
            "--force=true",
            f"--nsys_opts={self.nsys_opts}",
            *self.extra,
            *request.build_workload_command(layer_marking="nvtx", step_window_method="none"),
        )
        return (Command(argv, "profile"),)

    def get_report_path(self, paths: RunPaths) -> Path:
        """Return a folder of CSV files, ``dlprof_summary.csv`` among them."""
        return paths.get_report_path(".dlprof")

    def find_report_problem(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> ReportProblem | None:
        folder = self.get_report_path(request.paths)
        tables = [path for path in folder.glob("*.csv") if path.stat().st_size]
        if not tables:
            message = outcome.read_last_output_line(outcomes[0]) or "nothing"
            return ReportProblem(
                f"DLProf left no tables in {folder.name}; it printed: {message}. See "
                f"{outcomes[0].stdout.name}"
            )
        if all(outcome.is_older_than_run(path, request.paths) for path in tables):
            return ReportProblem(
                f"the tables in {folder.name} are older than this run. Remove the folder and run "
                "again"
            )
        return None
