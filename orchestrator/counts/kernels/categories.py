"""What kind of work an operation or a kernel is: one table of rules, tried in order.

Dispatcher names decide for operations, families for kernels; time that no rule knows counts
as "other".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from perfctl.orchestrator.counts.kernels.names import LONGEST_NAME, PatternTables, recognise_family
from perfctl.records.run import Run

CATEGORIES = (
    "convolution",
    "GEMM",
    "RNN",
    "normalisation",
    "elementwise",
    "reduction",
    "memory",
    "copy",
    "optimizer",
    "other",
)

FAMILIES = {
    "conv": "convolution",
    "winograd": "convolution",
    "fft": "convolution",
    "depthwise": "convolution",
    "gemm": "GEMM",
    "attention": "GEMM",
    "rnn": "RNN",
    "norm": "normalisation",
    "elementwise": "elementwise",
    "softmax": "reduction",
    "pool": "reduction",
    "reduction": "reduction",
    "layout": "memory",
    "copy": "memory",
    "collective": "copy",
    "optimizer": "optimizer",
}
"""Family of a kernel -> kind of work. "copy" kernels move memory on the device; transfers are
no kernels."""

_OPERATIONS = PatternTables("operations.csv")
"""What torch.compile fuses (pointwise work, normalisation and reductions in one loop) counts as
elementwise: products and convolutions stay operations of their own."""
_AROUND = re.compile(
    "^(autograd::engine::evaluate_function: |torch::autograd::|aten::|torchvision::|c10::|"
    "autograd::)+"
)


@lru_cache(maxsize=65536)
def categorize_operation(name: str) -> str:
    """Kind of work of a framework operation ("aten::addmm", "autograd::engine::evaluate_function:
    AddmmBackward0")."""
    bare = _AROUND.sub("", name[:LONGEST_NAME]).lower()
    return next(
        (
            kind
            for kind, pattern in _OPERATIONS.get_compiled_table("operation")
            if pattern.search(bare)
        ),
        "other",
    )


def categorize_kernel(name: str) -> str:
    """Kind of work of a kernel, by its family."""
    return FAMILIES.get(recognise_family(name) or "", "other")


def sum_ns_by_category(run: Run) -> Mapping[str, float] | None:
    """Kind of work -> ns over the whole report: kernels and copies of a GPU, else self time of
    operations on the CPU.

    None where the report times neither.
    """
    totals = dict.fromkeys(CATEGORIES, 0.0)
    if run.report.kernels:
        for launch in run.report.kernels:
            totals[
                "optimizer" if launch.direction == "optimizer" else categorize_kernel(launch.name)
            ] += launch.duration_ns or 0
        for moved in run.report.copies:
            totals["memory" if moved.kind == "memset" else "copy"] += moved.duration_ns or 0
        return totals
    for item in run.report.operations:
        kind = "optimizer" if item.direction == "optimizer" else categorize_operation(item.name)
        totals[kind] += item.self_cpu_ns or 0
    return totals if any(totals.values()) else None
