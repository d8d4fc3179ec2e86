"""What a GPU did with the time: parts that add up, communication and copies only where nothing
hides them."""

import pytest

from perfctl.orchestrator.ledger.usage.run_usage import PARTS, RunUsage
from perfctl.records.report import Copy, Kernel
from tests.make.synthetic import cpu_run, foreign_run
from tests.make.tables import table

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNELS = (
    Kernel(0, "gemm", start_ns=0, duration_ns=400, device_index=0),
    Kernel(1, NCCL, start_ns=300, duration_ns=300, device_index=0),  # 100 of it under the product
    Kernel(2, "gemm", start_ns=900, duration_ns=100, device_index=0),
)
COPIES = (Copy("HtoD", 64, 550, 150, None, 0, 7),)
"""From 550 to 700: 50 of it while the collective runs."""


def test_parts_add_up_and_what_is_hidden_costs_no_time():
    usage = RunUsage(foreign_run(1, kernels=list(KERNELS), copies=COPIES, ranges=[]))
    found = usage.breakdown
    assert found is not None and found.gpus == 1
    parts = {
        "compute": 400 + 100,
        "communication": 300 - 100,
        "copies": 150 - 50,
        "idle": 900 - 700,
    }
    assert found.shares == pytest.approx({part: length / 1000 for part, length in parts.items()})
    assert tuple(found.shares) == PARTS
    with_a_kernel = found.shares["compute"] + found.shares["communication"]
    assert with_a_kernel == pytest.approx(usage.ways.kernels.value)


def test_several_gpus_are_averaged():
    second = [Kernel(3, "gemm", start_ns=0, duration_ns=1000, device_index=1)]
    found = RunUsage(foreign_run(1, kernels=[*KERNELS, *second], copies=(), ranges=[])).breakdown
    assert found is not None and found.gpus == 2
    assert found.shares["compute"] == pytest.approx((0.5 + 1) / 2)


@table(
    "run",
    {
        "counters": foreign_run(1, profiler="ncu"),
        "a kernel without a start": foreign_run(1, kernels=[Kernel(0, "gemm", duration_ns=9)]),
        "a CPU": cpu_run(1, 16),
    },
)
def test_without_times_of_kernels_there_is_none(run):
    assert RunUsage(run).breakdown is None
