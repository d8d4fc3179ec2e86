"""Collectives of a trace, with and without NCCL's arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers.kineto.fused import element_bytes
from perfctl.records.report import Collective
from tests.make.kineto import annotation, event, kernel, launch, operation, read

ARGS = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 8,
    "dtype": "BFloat16",
    "Process Group Name": "3",
    "Process Group Ranks": "[0, 1]",
}
RING = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_arguments_of_the_kernel_say_what_was_sent(tmp_path: Path) -> None:
    made = event("kernel", RING, 50, 9, process=0, thread=7)
    found = read(tmp_path, {**made, "args": {**made["args"], **ARGS}})
    assert list(found.collectives) == [
        Collective("allreduce", "3", 8, 1000 * 2, "BFloat16", 50_000, 9_000)
    ]


def test_arguments_of_the_operation_that_launched_it_do_too(tmp_path: Path) -> None:
    comms = operation("record_param_comms", 0, 20, 1)
    comms = {**comms, "args": {**comms["args"], **ARGS, "dtype": "Float8_e4m3fn"}}
    found = read(
        tmp_path,
        comms,
        annotation("nccl:all_reduce", 5, 10),
        launch(8, 3),
        kernel(RING, 50, 9, None, 3),
    )
    assert list(found.collectives) == [
        Collective("allreduce", "3", 8, 1000, "Float8_e4m3fn", 50_000, 9_000)
    ]


def test_without_arguments_the_range_names_it_else_the_kernel_and_its_size_is_not_known(
    tmp_path: Path,
) -> None:
    old = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
    found = read(
        tmp_path,
        annotation("nccl:all_to_all", 0, 10),
        launch(5, 1),
        kernel(old, 20, 3, None, 1),
        kernel(old, 40, 3),
        kernel("ncclKernel_AllReduce_TREE_LL_Sum_float(ncclDevComm*)", 50, 3),
        kernel("gemm_nccl_like", 60, 3),
        kernel("rcclGenericKernel_4(ncclDevComm*)", 70, 3),
        kernel("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)", 80, 3),
        kernel("void deep_ep::intranode::notify_dispatch<8>(int const*)", 90, 3),
    )
    assert [(one.name, one.bytes, one.start_ns) for one in found.collectives] == [
        ("all_to_all", None, 20_000),
        ("send_recv", None, 40_000),
        ("all_reduce", None, 50_000),
        ("rcclGenericKernel_4(ncclDevComm*)", None, 70_000),
        ("dispatch", None, 80_000),
        ("notify_dispatch", None, 90_000),
    ]


@pytest.mark.parametrize(
    ("dtype", "size"), [("Half", 2), ("Double", 8), ("Byte", 1), ("odd", None), (None, None)]
)
def test_a_size_needs_a_type_that_is_known(
    tmp_path: Path, dtype: str | None, size: int | None
) -> None:
    assert element_bytes(dtype) == size
    made = kernel(RING, 50, 9)
    found = read(tmp_path, {**made, "args": {**ARGS, "dtype": dtype}})
    assert [one.bytes for one in found.collectives] == [None if size is None else 1000 * size]


def test_a_job_of_one_process_has_no_rank_and_one_of_several_has(tmp_path: Path) -> None:
    def said(**distributed: object) -> tuple[int | None, int | None]:
        report = read(tmp_path, operation("op", 0, 1), distributedInfo=distributed)
        return report.rank, report.world_size

    assert said(rank=3, world_size=8) == (3, 8)
    assert said(rank=0, world_size=1) == (None, None)
    assert said(rank=9, world_size=8) == (None, None)
    assert said(rank=2) == (2, None)
