"""The reason of a gap that lists kernel names is one short sentence."""

from __future__ import annotations

from perfctl.parsers.kineto.trace import _find_kernel_gaps
from perfctl.records.report import Kernel

LONGEST = 160


def test_a_reason_names_at_most_three_kernels_in_one_sentence() -> None:
    kernels = [
        Kernel(number, f"{number}_{'long_name_' * 20}", start_ns=0, duration_ns=10)
        for number in range(4000)
    ]
    kernels.append(Kernel(4000, "gemm", "gemm", "fc", "forward", 0, "range", duration_ns=10))
    reasons = [
        gap.reason
        for gap in _find_kernel_gaps(kernels, by_operator=True)
        if gap.quantity == "kernel.layer"
    ]
    assert len(reasons) == 1
    assert reasons[0].endswith(" and 3997 more")
    assert len(reasons[0]) <= LONGEST
