"""Ledger rows and kernels made by hand for the rules of causes: a Linear layer of 100 inputs and
10 outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.evidence import (
    EvidenceTable,
    KernelGroup,
    RowEvidence,
    sum_executed_flops,
)
from perfctl.orchestrator.ledger.causes.judge import ROW_RULES, drop_refuted_and_rank_causes
from perfctl.orchestrator.ledger.causes.rule import Cause, RowCase
from perfctl.orchestrator.ledger.ledger import LedgerRow
from perfctl.records.paper import LayerCall

GEMM = Algorithm("gemm", "gemm")
HALF = Algorithm("gemm", "gemm", tensor_core=True, math="fp16")
DGRAD = Algorithm("conv", "implicit gemm", direction="grad_input")
WGRAD = Algorithm("conv", "implicit gemm", direction="grad_weight")
FPROP = Algorithm("conv", "implicit gemm", direction="forward")
PAPER = 64_000
"""Estimated FLOPs of 32 samples."""


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


BOTH = (call(32, "grad_input"), call(32, "grad_weight"))


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
    """``flops`` are those of the counts (FFMA twice, all others once) and of the tensor cores, if
    they are not given."""
    if flops is None:
        once = sum(counts.values()) + (tensor or 0)
        flops = once + counts.get("ffma", 0)
    return KernelGroup(
        name, algorithm, grid, launches, counts, Figure(flops, "counted"), Figure(tensor, "counted")
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
    """A row whose FLOPs were not counted, unless ``counted`` states them."""
    calls = (call(batch, direction, layer=layer, kind=kind),) if calls is None else calls
    paper = sum(item.flops or 0 for item in calls)
    row = LedgerRow(
        batch=batch,
        layer=layer,
        kind=kind,
        direction=direction,
        position=position,
        estimated=Figure(paper, "counted"),
        calls=calls,
        executed=Figure(counted, "counted" if counted is not None else "not_collected"),
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
    return replace(RowEvidence(row, kernels, {}, "fp32", True), **more)


def measured(batch: int, *kernels: KernelGroup, **more: Any) -> RowEvidence:
    """A row with the FLOPs of its kernels."""
    return case(batch, *kernels, counted=sum_executed_flops(kernels), **more)


def backward(*kernels: KernelGroup, calls: Any = BOTH, **more: Any) -> RowEvidence:
    """The gradients of a convolution of 32 samples, whose estimate is 64,000 FLOPs each."""
    more = {"kind": "Conv2d", "direction": "backward", **more}
    return measured(32, *kernels, calls=calls, **more)


def convolution(shape: ConvShape, *kernels: KernelGroup, **more: Any) -> RowEvidence:
    """Forward of a convolution of this shape."""
    calls = (call(shape.batch, macs=shape.macs // shape.batch, kind="Conv2d"),)
    return measured(shape.batch, *kernels, kind="Conv2d", calls=calls, forward=shape, **more)


def linear(shape: GemmShape, *kernels: KernelGroup, **more: Any) -> RowEvidence:
    """Forward of a linear layer of this shape."""
    calls = (call(shape.m, macs=shape.n * shape.k),)
    return measured(shape.m, *kernels, calls=calls, forward=shape, **more)


def partly_counted(row: RowEvidence) -> RowEvidence:
    """The same row, of which one launch of two was not counted."""
    figure = replace(row.row.executed, launches=1, of_launches=2)
    return replace(row, row=replace(row.row, executed=figure))


def product(algorithm: Algorithm, name: str = "", share: float = 1.0, **more: Any) -> KernelGroup:
    """One kernel with a share of a gradient's multiply-adds."""
    name = name or f"k_{algorithm.direction}"
    return work(name, algorithm, more.pop("grid", (3, 3, 1)), ffma=PAPER // 2 * share, **more)


def gemm(name: str, share: float = 1.0, **more: Any) -> KernelGroup:
    """The same, with a grid of one block and no direction in its name."""
    return product(GEMM, name, share, **{"grid": (1, 1, 1), **more})


def by_place(*cases: RowEvidence) -> EvidenceTable:
    return EvidenceTable((row.row_key, row) for row in cases)


def seen_with(row: RowEvidence, *others: RowEvidence, loose: Iterable[KernelGroup] = ()) -> RowCase:
    """The row with the other rows of its sweep, and kernels outside of layers."""
    return RowCase(row, by_place(row, *others), tuple(loose))


def causes_of(row: RowEvidence, *others: RowEvidence, **more: Any) -> dict[str, Cause]:
    """Rule -> its cause, as all rules together find them."""
    given = seen_with(row, *others, **more)
    proposed = [cause for rule in ROW_RULES if (cause := rule(given)) is not None]
    return {cause.rule: cause for cause in drop_refuted_and_rank_causes(given, proposed)}
