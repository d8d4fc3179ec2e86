"""Layers guessed at intake: pen and paper of the named workload against the launches of a report without ranges."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from perfctl.orchestrator.analyse.guess import guess
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.parsers.records import Gap, Report

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.estimate import Estimate


def check(workload: str | None, mode: str | None) -> None:
    """Everything that can be wrong before any report is read. Raises UsageError, ToolMissing or PerfctlError."""
    from perfctl.orchestrator.actions.estimate import need_torch
    from perfctl.workloads.models import ModelError

    if workload is None:
        raise UsageError(
            "--guess-layers: of which network?", "Name it: --workload mnist_cnn, torchvision:resnet18, ..."
        )
    need_torch()
    try:
        _on_paper(workload, mode or "train", 1)
    except ModelError as error:
        kind = PerfctlError if error.raised else UsageError
        raise kind(error.message, error.remedy) from error


def with_guesses(report: Report) -> Report:
    """The report with layers, directions and steps guessed, and the shapes they were guessed from; else with a gap."""
    if report.workload is None or report.batch_size is None:
        reason = "no layers were guessed: the workload or the batch size is not known; give --workload and --batch"
        return replace(report, gaps=(*report.gaps, Gap("kernel.layer", "not_available", reason)))
    paper = _on_paper(report.workload, report.mode or "train", report.batch_size)
    made = guess(report.kernels, paper.calls)
    gaps = (*report.gaps, *made.gaps)
    if not made.guessed:
        return replace(report, kernels=made.kernels, gaps=gaps)
    return replace(report, kernels=made.kernels, ops=report.ops or paper.ops, mode=report.mode or "train", gaps=gaps)


@lru_cache(maxsize=8)
def _on_paper(workload: str, mode: str, batch: int) -> Estimate:
    from perfctl.orchestrator.actions.estimate import Request, Session

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="CUDA initialization", category=UserWarning)
        return Session(Request(workload, mode=mode)).at(batch)
