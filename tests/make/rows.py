"""Ledger rows and kernels made by hand for the rules of verdicts: a Linear layer of 100 inputs and
10 outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.kernels.names import NOTHING, Algorithm
from perfctl.orchestrator.ledger.causes.evidence import EvidenceTable, KernelGroup, RowEvidence
from perfctl.orchestrator.ledger.ledger import LedgerRow
from perfctl.records.paper import LayerCall

GEMM = Algorithm("gemm", "gemm")


def call(
    batch: int,
    direction: str = "forward",
    macs: int = 1000,
    outputs: int = 10,
    layer: str = "fc",
    kind: str = "Linear",
) -> LayerCall:
    return LayerCall(
        layer, kind, direction, macs * batch, 2 * macs * batch, 1010, 0, 0, outputs * batch, None
    )


def work(
    name: str = "gemm",
    algorithm: Algorithm = GEMM,
    grid: tuple[int, int, int] | None = None,
    *,
    flops: float | None = None,
    tensor: float | None = 0,
    launches: float = 1,
    **counts: float,
) -> KernelGroup:
    """``flops`` are those of the counts (FFMA twice, all others once) where not given."""
    total = (
        sum((2 if count == "ffma" else 1) * value for count, value in counts.items())
        if flops is None
        else flops
    )
    return KernelGroup(
        name, algorithm, grid, launches, counts, Figure(total, "counted"), Figure(tensor, "counted")
    )


def case(
    batch: int,
    *kernels: KernelGroup,
    direction: str = "forward",
    layer: str = "fc",
    kind: str = "Linear",
    counted: float | None = None,
    calls: tuple[LayerCall, ...] | None = None,
    position: int = 0,
    **more: Any,
) -> RowEvidence:
    said = calls if calls is not None else (call(batch, direction, layer=layer, kind=kind),)
    paper = sum(item.flops or 0 for item in said)
    row = LedgerRow(
        batch=batch,
        layer=layer,
        kind=kind,
        direction=direction,
        position=position,
        paper=Figure(paper, "counted"),
        calls=said,
        counted=Figure(counted, "counted" if counted is not None else "not_collected"),
        ratio=counted / paper if counted is not None and paper else None,
        time=None,
        time_reason=None,
        basis=None,
        trusted=True,
        share=None,
        whole=None,
        achieved=None,
        kernels=(),
    )
    made = RowEvidence(row, kernels, {}, "fp32", True)
    return replace(made, **more)


def by_place(*cases: RowEvidence) -> EvidenceTable:
    return EvidenceTable((one.place, one) for one in cases)


__all__ = ["GEMM", "NOTHING", "by_place", "call", "case", "work"]
