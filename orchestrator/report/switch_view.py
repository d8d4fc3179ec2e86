"""Which kernels serve a layer along the sweep, and what changes where they do."""

from __future__ import annotations

from collections.abc import Sequence

from perfctl.orchestrator.analyse.analysis import Analysis
from perfctl.orchestrator.analyse.switches import KernelSet, LayerKernels, Switch, algorithm_changes, describe
from perfctl.orchestrator.report.kernel_view import name_cell
from perfctl.orchestrator.report.numbers import Cell, figure_cell, nothing, plain, ratio
from perfctl.orchestrator.report.tables import Column, Table, table

NAMES = 4
"""Kernel names in a cell; the rest is counted."""


def switch_table(found: Analysis) -> Table | None:
    """One row a layer, direction and stretch of batch sizes with the same kernels; None for a single batch size."""
    if found.study.foreign or len(found.study.batches) < 2:
        return None
    columns = [
        Column("layer, direction", look="code"),
        Column("batch", look="text"),
        Column("algorithm", look="text", note="read off the kernel names; of the main kernel"),
        Column("kernels", look="code"),
        Column("FLOPs a sample", "FLOP", note="counted, at the first of these batch sizes"),
        Column("bytes a sample", "B", note="DRAM, counted, at the first of these batch sizes"),
        Column("changes", look="text", note="against the batch size before"),
    ]
    served = algorithm_changes(found.prepared, found.ledger)
    served = tuple(sorted(served, key=lambda item: not item.switches))
    rows = [row for item in served for row in _rows(item)]
    return table("Kernels along the sweep, layers whose kernels change first", columns, rows)


def _rows(item: LayerKernels) -> list[list[Cell]]:
    starts = {switch.after.batch: switch for switch in item.switches}
    stretches: list[list[KernelSet]] = []
    for kernels in item.sets:
        if stretches and kernels.batch not in starts:
            stretches[-1].append(kernels)
        else:
            stretches.append([kernels])
    return [_row(item.name, stretch, starts.get(stretch[0].batch)) for stretch in stretches]


def _row(name: str, stretch: Sequence[KernelSet], switch: Switch | None) -> list[Cell]:
    first = stretch[0]
    shown = ", ".join(first.kernels[:NAMES])
    more = f" and {len(first.kernels) - NAMES} more" if len(first.kernels) > NAMES else ""
    return [
        name_cell(name),
        plain(", ".join(str(kernels.batch) for kernels in stretch)),
        plain(describe(first.algorithm)),
        name_cell(shown + more),
        figure_cell(first.flops_per_sample, "FLOP"),
        figure_cell(first.bytes_per_sample, "B"),
        plain(_change(switch)) if switch else nothing("the first batch size with these kernels"),
    ]


def _change(switch: Switch) -> str:
    """ "another algorithm: 0.44 x the FLOPs, 1.80 x the bytes a sample"."""
    what = "another algorithm" if switch.algorithm_changed else "other kernels of the same algorithm"
    factors = [(switch.flops_factor, "FLOPs"), (switch.bytes_factor, "bytes")]
    said = ", ".join(f"{ratio(factor)} × the {of}" for factor, of in factors if factor is not None)
    return f"{what}: {said} a sample" if said else what
