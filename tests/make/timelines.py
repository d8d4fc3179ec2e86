"""Runs with a timeline made by hand, on one GPU, and what is found in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfctl.orchestrator.ledger.causes.timeline.judge import detect_run_timeline_verdicts
from perfctl.orchestrator.ledger.causes.timeline.records import RunVerdict
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.records.report import Kernel
from perfctl.records.run import Run
from tests.make import synthetic

US = 1000
"""ns of a microsecond."""


def kernel(start: int, length: int, name: str = "gemm", stream: int = 7, **more: Any) -> Kernel:
    """A kernel of ``length`` us from ``start`` us on."""
    return Kernel(
        start,
        name,
        start_ns=start * US,
        duration_ns=length * US,
        device_index=0,
        stream=stream,
        correlation=start,
        **more,
    )


def in_a_row(*named: tuple[str, int], gap: int = 0, **more: Any) -> list[Kernel]:
    """Kernels (name, us) one after the other."""
    kernels, start = [], 0
    for name, length in named:
        kernels.append(kernel(start, length, name, **more))
        start += length + gap
    return kernels


def make_run(kernels: Sequence[Kernel], **changes: Any) -> Run:
    settings = {"profiler": "torch", "kernels": list(kernels), "ranges": []} | changes
    return synthetic.foreign_run(1, **settings)


def verdicts_of(run: Run) -> dict[str, RunVerdict]:
    return {verdict.rule: verdict for verdict in detect_run_timeline_verdicts(RunUsage(run))}


def find_verdict(rule: str, kernels: Sequence[Kernel], **changes: Any) -> RunVerdict | None:
    return verdicts_of(make_run(kernels, **changes)).get(rule)
