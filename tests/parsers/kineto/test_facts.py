"""Versions and gaps of a Kineto trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.records.report import Kernel
from tests.make.kineto import Event, event, launch, operation, read

MM = operation("aten::mm", 1, 2, 1)
CALL = event("cuda_runtime", "cudaMalloc", 5, 1, correlation=7)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"cuda_runtime_version": 12040}, {"cuda_runtime_version": "12040", "cuda": "12.4"}),
        ({"cuda_runtime_version": "11080"}, {"cuda_runtime_version": "11080", "cuda": "11.8"}),
        ({"cuda_runtime_version": 0}, {"cuda_runtime_version": "0"}),
        (
            {"hip_runtime_version": 60_342_134},
            {"hip_runtime_version": "60342134", "hip": "6.3.42134"},
        ),
        (
            {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "host": "x"}},
            {"distributed_backend": "nccl", "distributed_rank": "3", "distributed_world_size": "8"},
        ),
        ({"distributedInfo": {"rank": [1]}}, {}),
        ({"pytorch_version": "2.1.0"}, {"torch": "2.1.0"}),
        ({"baseTimeNanoseconds": 7}, {"clock_base_ns": "7"}),
        ({"with_stack": 1, "record_shapes": [1]}, {"with_stack": "1"}),
        ({"distributedInfo": "none", "cupti_version": 22}, {"cupti_version": "22"}),
        ({"hip_runtime_version": 60_300_000}, {"hip_runtime_version": "60300000", "hip": "6.3.0"}),
        (
            {"hip_driver_version": 60_342_134, "baseTimeNanoseconds": 1.5},
            {"hip_driver_version": "60342134"},
        ),
    ],
)
def test_versions_are_read_from_cuda_and_hip_numbers(
    metadata: dict[str, Any], expected: dict[str, str], tmp_path: Path
) -> None:
    """CUDA: 1000 x major + 10 x minor; HIP: 10,000,000 x major + 100,000 x minor + patch."""
    assert read(tmp_path, MM, **metadata).environment == {
        **expected,
        "schema_version": "1",
    }


def test_without_single_operators_only_the_sums_are_kept(tmp_path: Path) -> None:
    report = read(tmp_path, operation("aten::add", 10, 20, 1))
    without = kineto_trace.parse(report.path, single_operators=False)
    assert list(without.op_calls) == []
    assert list(without.operations) == list(report.operations)


def test_a_reason_names_at_most_three_kernels_in_one_sentence() -> None:
    kernels = [
        Kernel(number, f"{number}_{'long_name_' * 20}", start_ns=0, duration_ns=10)
        for number in range(4000)
    ]
    kernels.append(Kernel(4000, "gemm", "gemm", "fc", "forward", 0, "range", duration_ns=10))
    reasons = [
        gap.reason
        for gap in kineto_trace._find_kernel_gaps(kernels, by_operator=True)
        if gap.quantity == "kernel.layer"
    ]
    assert len(reasons) == 1
    assert reasons[0].endswith(" and 3997 more")
    assert len(reasons[0]) <= 160


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([launch(5, 1), launch(9, 2)], "2 launches recorded, GPU activity missing"),
        ([CALL], "1 CUDA calls and no launch recorded, GPU activity missing"),
        ([], "the trace holds no GPU activity: torch.profiler ran without"),
    ],
)
def test_why_a_trace_has_no_kernel(calls: list[Event], reason: str, tmp_path: Path) -> None:
    gaps = read(tmp_path, MM, *calls).gaps
    assert [gap.reason.startswith(reason) for gap in gaps if gap.quantity == "kernel"] == [True]
